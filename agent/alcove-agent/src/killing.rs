//! Killing the trees of commands. All kills under way share one walk through `/proc`, however many commands end at once,
//! and a turn of the loop takes one step of it, so that requests are answered meanwhile.
//!
//! A pass: processes are stopped, one walk after the other, until a walk finds none that is new; then all of them are
//! killed. Stopped processes cannot fork, so nothing escapes between the look and the kill. Passes follow one another,
//! with longer and longer pauses while they achieve nothing, until the monitors tell that nothing is left.

use crate::agent::{Agent, Timer};
use crate::exec::Phase;
use crate::exec_group;
use crate::slab::Key;
use crate::supervise::SURVIVORS_MS;
use crate::sys;
use crate::timers::TimerId;
use crate::tree::{self, Walk};
use alcove_protocol::ExitReason;
use std::collections::HashSet;

/// Walks of stopping before the killing starts all the same.
const STOP_WALKS: u32 = 12;
/// Processes looked at in one turn of the loop.
const STEP: usize = 256;
const FIRST_PAUSE_MS: u64 = 2;
/// A kill that leaves as many as this forks as fast as it is killed, and nothing may fork until it is over.
const BOMB: usize = 32;
/// Then forking is allowed again: what is still there cannot be killed at the moment.
const CLOSED_MS: u64 = 60_000;
/// For what cannot be killed at the moment, as in a wait that nothing interrupts.
const LONGEST_PAUSE_MS: u64 = 1_000;
/// A kill that takes longer waits for the commands' share of the processors: their work in the kernel, making room in
/// memory for one, is done beyond it and owed, and what was killed cannot end before all of that is paid.
const PATIENCE_MS: u64 = 250;
/// From then on they have the share of a period anew once in each period, so twice of it at most.
const RENEWAL_MS: u64 = 100;
/// What does not end even so waits for something else.
const MOST_RENEWALS: u32 = 300;

/// The kills under way.
#[derive(Default)]
pub struct Killing {
    /// Execs whose trees are to go, whether these have ended or not.
    targets: Vec<Key>,
    /// A monitor was killed: what it watched over has come to the agent, and must go too.
    orphans: bool,
    /// Told to stop in this pass.
    stopped: HashSet<i32>,
    walks: u32,
    walk: Option<Walk>,
    /// When the pass began.
    began: u64,
    /// The walk goes on in this turn of the loop.
    due: bool,
    pause_ms: u64,
    /// What the last pass found.
    found: usize,
    timer: Option<TimerId>,
    /// When commands were kept from forking; they are only once in a kill.
    closed: Option<u64>,
    /// When the first pass began.
    since: Option<u64>,
    /// When the commands' share of the processors was renewed last, and how often it was.
    renewed: (u64, u32),
}

impl Killing {
    /// Whether the loop must not wait for events.
    pub fn is_due(&self) -> bool {
        self.due
    }

    fn hasten(&mut self) {
        self.due = true;
        self.pause_ms = FIRST_PAUSE_MS;
        self.found = usize::MAX;
    }

    /// Whether the commands' share of the processors is to be renewed now, because a kill waits for it.
    fn renews(&mut self, now: u64) -> bool {
        let (last, times) = self.renewed;
        let late = self.since.is_some_and(|since| now - since >= PATIENCE_MS);
        let due = late && times < MOST_RENEWALS && now - last >= RENEWAL_MS;
        if due {
            self.renewed = (now, times + 1);
        }
        due
    }
}

impl Agent {
    /// Kills everything that descends from the exec's monitor. The first reason given stays.
    pub fn kill_tree(&mut self, key: Key, reason: ExitReason) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        if !exec.ended() {
            exec.killed.get_or_insert(reason);
            exec.unread_from = None;
        }
        if exec.monitor.is_none() {
            return;
        }
        if !exec.dying {
            exec.dying = true;
            if matches!(exec.phase, Phase::Starting | Phase::Running) {
                exec.survivors = Some(self.timers.add(SURVIVORS_MS, Timer::Survivors(key)));
            }
            self.killing.targets.push(key);
            self.killing.renewed.1 = 0;
        }
        self.killing.hasten();
    }

    /// Nothing is left of one tree; with the last one that was to go, commands may fork again.
    pub fn killed_off(&mut self, key: Key) {
        self.killing.targets.retain(|target| *target != key);
        if self.killing.targets.is_empty() {
            self.killing.since = None;
            if self.killing.closed.take().is_some() {
                exec_group::let_fork(true);
            }
        }
    }

    pub fn kill_orphans(&mut self) {
        self.killing.orphans = true;
        self.killing.hasten();
    }

    /// The pause is over.
    pub fn resume_killing(&mut self) {
        self.killing.timer = None;
        self.killing.due = true;
    }

    /// One step, for all kills under way. Called once in a turn of the loop.
    pub fn kill_on(&mut self) {
        if let Some(timer) = self.killing.timer.take() {
            self.timers.cancel(timer);
        }
        if self.killing.walks == 0 && self.killing.walk.is_none() {
            self.killing.began = sys::boottime_ms();
            self.killing.since.get_or_insert(self.killing.began);
        }
        if self.killing.walk.get_or_insert_with(Walk::begin).step(STEP) {
            return;
        }
        let all = self.killing.walk.take().map(Walk::finish).unwrap_or_default();
        self.killing.due = false;
        let (execs, monitors) = (&self.commands.execs, &self.monitors.list);
        let monitor_of = |key: Key| Some(monitors.get(execs.get(key)?.monitor?)?.handle.pid);
        self.killing.targets.retain(|key| monitor_of(*key).is_some());
        let watched: Vec<i32> = self.killing.targets.iter().filter_map(|key| monitor_of(*key)).collect();
        let mut roots = watched.clone();
        if self.killing.orphans {
            roots.push(std::process::id() as i32);
        }
        if roots.is_empty() {
            if self.killing.closed.is_some() {
                exec_group::let_fork(true);
            }
            self.killing = Killing::default();
            return;
        }
        if all.is_empty() {
            self.kill_groups();
        }
        let spared: HashSet<i32> = self.monitors.list.iter().map(|(_, monitor)| monitor.handle.pid).collect();
        let found = tree::descendants(&all, &roots, &spared);
        let killing = &mut self.killing;
        killing.walks += 1;
        let mut settled = true;
        for pid in &found {
            if killing.stopped.insert(*pid) {
                settled = false;
                tree::signal(*pid, libc::SIGSTOP);
            }
        }
        if !settled && killing.walks < STOP_WALKS {
            killing.due = true;
            return;
        }
        for pid in &found {
            tree::signal(*pid, libc::SIGKILL);
        }
        // Where commands have the agent's own user they can stop their monitor, which then tells of no end.
        for monitor in &watched {
            tree::signal(*monitor, libc::SIGCONT);
        }
        killing.stopped.clear();
        killing.walks = 0;
        killing.orphans &= !found.is_empty();
        let now = sys::boottime_ms();
        // The first pass of a kill says nothing yet.
        let repeated = killing.found != usize::MAX;
        match killing.closed {
            None if repeated && found.len() >= BOMB => {
                exec_group::let_fork(false);
                killing.closed = Some(now);
            }
            Some(since) if now - since >= CLOSED_MS => exec_group::let_fork(true),
            _ => {}
        }
        killing.pause_ms = if found.len() < killing.found { FIRST_PAUSE_MS } else { killing.pause_ms * 2 };
        killing.found = found.len();
        let limited = exec_group::has_quota();
        if limited && killing.renews(now) {
            exec_group::renew_quota();
        }
        let longest = if limited && killing.renewed.1 < MOST_RENEWALS { RENEWAL_MS } else { LONGEST_PAUSE_MS };
        // Half of the time at most is spent in walks.
        let pause = killing.pause_ms.min(longest).max(now - killing.began);
        killing.pause_ms = pause;
        killing.timer = Some(self.timers.add(pause, Timer::Killing));
    }

    /// Without a `/proc` at least the commands' own groups can be reached.
    fn kill_groups(&mut self) {
        for key in &self.killing.targets {
            if let Some(exec) = self.commands.execs.get(*key).filter(|exec| exec.pid > 0 && !exec.ended()) {
                // SAFETY: plain kill.
                unsafe { libc::kill(-exec.pid, libc::SIGKILL) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_that_takes_long_renews_the_share_of_commands_now_and_then_and_not_for_ever() {
        let mut killing = Killing { since: Some(10_000), ..Killing::default() };
        let renewals = |killing: &mut Killing, from: u64, to: u64| {
            (from..to).filter(|now| killing.renews(*now)).collect::<Vec<u64>>()
        };
        assert_eq!(renewals(&mut killing, 10_000, 10_560), [10_250, 10_350, 10_450, 10_550]);
        assert_eq!(renewals(&mut killing, 10_560, 100_000).len(), MOST_RENEWALS as usize - 4);
    }

    #[test]
    fn a_kill_that_is_over_renews_nothing() {
        assert!(!Killing::default().renews(100_000));
    }
}
