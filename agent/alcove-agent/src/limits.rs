//! What a command may use. Output is counted where it is read. Processor time is looked at from time to time, for all
//! processes of the command together, the sooner the less is left; looks that fall together share one walk through `/proc`.

use crate::agent::{Agent, Timer};
use crate::own_group::OwnGroup;
use crate::slab::Key;
use crate::{sys, tree};
use alcove_protocol::{ExitReason, LimitName};

pub const FIRST_LOOK_MS: u64 = 20;
/// The kernel has ended what exceeded a limit of memory; what else the command started is ended so soon after it.
const MEMORY_LOOK_MS: u64 = 100;
const SHORTEST_MS: u64 = 20;
const LONGEST_MS: u64 = 1_000;
/// For how long what a walk has found is good enough.
const FRESH_MS: u64 = 10;

/// The last walk.
#[derive(Default)]
pub struct Looks {
    at: u64,
    processes: Vec<tree::Process>,
}

impl Agent {
    /// Ends a command that has used more than it may.
    pub fn exceed(&mut self, key: Key, limit: LimitName) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        if exec.ended() || exec.killed.is_some() {
            return;
        }
        exec.exceeded = Some(limit);
        self.kill_tree(key, ExitReason::Limit);
    }

    pub fn check_processor(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        exec.cpu_timer = None;
        if exec.group.as_ref().is_some_and(OwnGroup::exceeded) {
            return self.exceed(key, LimitName::MemoryMb);
        }
        if exec.limits.cpu_ms.is_none() && exec.group.is_some() {
            exec.cpu_timer = Some(self.timers.add(MEMORY_LOOK_MS, Timer::Processor(key)));
            return;
        }
        let (Some(limit), Some(monitor), false) = (exec.limits.cpu_ms, exec.monitor, exec.ended()) else { return };
        let before = exec.ticks_before;
        let Some(monitor) = self.monitors.list.get(monitor).map(|monitor| monitor.handle.pid) else { return };
        let now = sys::boottime_ms();
        if now > self.commands.looks.at + FRESH_MS {
            self.commands.looks = Looks { at: now, processes: tree::processes() };
        }
        let ticks = tree::ticks_below(&self.commands.looks.processes, monitor) + tree::ticks_of_children(monitor);
        let used = tree::milliseconds(ticks.saturating_sub(before));
        if used > limit {
            return self.exceed(key, LimitName::CpuTime);
        }
        // As if every processor worked for it from now on.
        let wait = ((limit - used) / self.commands.looks.processors()).clamp(SHORTEST_MS, LONGEST_MS);
        let timer = self.timers.add(wait, Timer::Processor(key));
        if let Some(exec) = self.commands.execs.get_mut(key) {
            exec.cpu_timer = Some(timer);
        }
    }
}

impl Looks {
    fn processors(&self) -> u64 {
        // Those of the machine that are there or, with musl, those that this process may use, as its commands may.
        // SAFETY: plain question.
        u64::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1).max(1)
    }
}
