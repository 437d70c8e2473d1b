//! The life of a running command: the reports of its monitor and its end. What it writes is read in `output.rs`, what it
//! reads is fed in `feeding.rs`, its tree is killed in `killing.rs`.

use crate::agent::{Agent, Timer};
use crate::exec::{Ending, Exec, Phase, signal_name};
use crate::journal::Stream;
use crate::monitor::{self, REPORT_LENGTH, Report};
use crate::own_group::OwnGroup;
use crate::slab::Key;
use crate::{console, sys, tree};
use alcove_protocol::{Event, ExitReason, Usage};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

/// A terminal hands its last output over with a short delay.
pub const TERMINAL_DRAIN_MS: u64 = 50;
/// How long the end of a command that was killed waits for all of its tree: what is still there then cannot be ended at the
/// moment, and whoever waits for a deadline has waited long enough.
pub const SURVIVORS_MS: u64 = 2_000;
const MAX_ENDED: usize = 1000;
/// Most bytes of text that the records of ended commands keep.
const MAX_ENDED_TEXT: usize = 8 << 20;
const KILLED: i32 = 128 + libc::SIGKILL;

impl Agent {
    pub fn monitor_ready(&mut self, key: Key) {
        let Some(monitor) = self.monitors.list.get(key) else { return };
        let mut bytes = [0u8; 4 * REPORT_LENGTH];
        let count = match sys::read(monitor.handle.socket.as_raw_fd(), &mut bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(_) => 0,
        };
        if count == 0 {
            return self.monitor_lost(key);
        }
        // Reports are written whole into an empty socket, so they arrive whole.
        for bytes in bytes[..count].chunks(REPORT_LENGTH) {
            let Some(exec) = self.monitors.list.get(key).and_then(|monitor| monitor.exec) else { continue };
            match Report::decode(bytes) {
                Some(Report::Started { pid }) => self.exec_started(exec, pid),
                Some(Report::Failed { stage, errno, pid }) => self.exec_failed(exec, stage, errno, pid),
                Some(Report::Ended { status, usage }) => self.main_ended(exec, status, usage),
                Some(Report::Idle) => self.tree_gone(exec, key),
                None => {}
            }
        }
        // A command whose end came with its start needs no watching.
        if let Some(exec) = self.monitors.list.get(key).and_then(|monitor| monitor.exec) {
            if self.commands.execs.get(exec).is_some_and(|exec| matches!(exec.phase, Phase::Running)) {
                self.watch_first_time(exec);
            }
        }
    }

    /// Nothing of the exec is left; its monitor can serve another.
    fn tree_gone(&mut self, exec_key: Key, monitor_key: Key) {
        if let Some(monitor) = self.monitors.list.get_mut(monitor_key) {
            monitor.exec = None;
            monitor.spare_since = sys::boottime_ms();
        }
        self.keep_spare(monitor_key);
        self.end_dying(exec_key);
        self.release_monitor(exec_key);
    }

    fn release_monitor(&mut self, exec_key: Key) {
        let Some(exec) = self.commands.execs.get_mut(exec_key) else { return };
        exec.monitor = None;
        if std::mem::take(&mut exec.dying) {
            self.killed_off(exec_key);
        }
        self.answer_kills(exec_key);
    }

    fn monitor_lost(&mut self, key: Key) {
        let exec = self.monitors.list.get(key).and_then(|monitor| monitor.exec);
        self.dismiss(key);
        let Some(exec_key) = exec else { return };
        self.kill_orphans();
        self.end_dying(exec_key);
        let Some(exec) = self.commands.execs.get(exec_key) else { return };
        if matches!(exec.phase, Phase::Starting | Phase::Running) {
            if matches!(exec.phase, Phase::Starting) {
                self.exec_started(exec_key, 0);
            }
            let ending = self.ending(exec_key, KILLED, Some(signal_name(libc::SIGKILL)), ExitReason::Lost);
            self.conclude(exec_key, ending);
        }
        self.release_monitor(exec_key);
    }

    /// Memory kills while a command ran, in the group that it has to itself or shares with the others.
    fn oom_kills(&self, exec: &Exec) -> u64 {
        let own = exec.group.as_ref().and_then(OwnGroup::kills);
        own.unwrap_or_else(|| self.oom.total().saturating_sub(exec.oom_before))
    }

    fn ending(&self, key: Key, exit_code: i32, signal: Option<String>, reason: ExitReason) -> Ending {
        let exec = self.commands.execs.get(key);
        let duration_ms = exec.map_or(0, |exec| sys::boottime_ms().saturating_sub(exec.started_boot));
        let oom_kills = exec.map_or(0, |exec| self.oom_kills(exec));
        let ended_at = sys::wall_ms();
        Ending { ended_at, exit_code, signal, reason, duration_ms, start_error: None, usage: None, oom_kills }
    }

    /// The command's first process has ended: so has the exec, once what it wrote has been read, and where its tree is being
    /// killed, once nothing is left of that.
    fn main_ended(&mut self, key: Key, status: i32, usage: monitor::Usage) {
        let Some(exec) = self.commands.execs.get(key) else { return };
        // Its end has been told already where somebody kept it.
        if !matches!(exec.phase, Phase::Starting | Phase::Running) {
            return;
        }
        let (exit_code, signal) = if libc::WIFSIGNALED(status) {
            let number = libc::WTERMSIG(status);
            (128 + number, Some(number))
        } else {
            (libc::WEXITSTATUS(status), None)
        };
        let by_kill = signal == Some(libc::SIGKILL);
        let reason = match (exec.killed, by_kill || exit_code == KILLED, signal) {
            (Some(killed), true, _) => killed,
            (None, true, _) if self.oom_kills(exec) > 0 => ExitReason::Oom,
            (_, _, Some(_)) => ExitReason::Signaled,
            (_, _, None) => ExitReason::Exited,
        };
        let mut ending = self.ending(key, exit_code, signal.map(signal_name), reason);
        let max_memory_bytes = u64::from(usage.max_memory_kb) * 1024;
        ending.usage = Some(Usage { cpu_ms: usage.cpu_ms.into(), max_memory_bytes });
        let Some(exec) = self.commands.execs.get_mut(key).filter(|exec| exec.dying) else {
            return self.conclude(key, ending);
        };
        exec.phase = Phase::Dying(ending);
        if let Some(timer) = exec.survivors.take() {
            self.timers.cancel(timer);
        }
        exec.survivors = Some(self.timers.add(SURVIVORS_MS, Timer::Survivors(key)));
    }

    /// Ends a command that was killed: nothing of it is left, or it was waited for long enough.
    pub fn end_dying(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        if let Some(timer) = exec.survivors.take() {
            self.timers.cancel(timer);
        }
        if !matches!(exec.phase, Phase::Dying(_)) {
            return;
        }
        if let Phase::Dying(ending) = std::mem::replace(&mut exec.phase, Phase::Running) {
            self.conclude(key, ending);
        }
    }

    /// A kill has been waited for long enough. A first process that is dead and that somebody traces is kept from its monitor for as
    /// long as that one likes, which may be another command: its end is told without it.
    pub fn end_kept(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.get(key) else { return };
        if matches!(exec.phase, Phase::Dying(_)) {
            return self.end_dying(key);
        }
        // The news of its end may have come: a process id is another's soon after it.
        if let Some(monitor) = exec.monitor {
            self.monitor_ready(monitor);
        }
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        if !matches!(exec.phase, Phase::Starting | Phase::Running) {
            return;
        }
        if exec.pid > 0 && tree::is_kept(exec.pid) {
            exec.survivors = None;
            let reason = exec.killed.unwrap_or(ExitReason::Lost);
            let ending = self.ending(key, KILLED, Some(signal_name(libc::SIGKILL)), reason);
            return self.conclude(key, ending);
        }
        exec.survivors = Some(self.timers.add(SURVIVORS_MS, Timer::Survivors(key)));
    }

    /// Reads what the command has written, then ends the exec.
    pub fn conclude(&mut self, key: Key, ending: Ending) {
        self.close_emptied(key);
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.read_rest(key, stream);
        }
        if self.commands.execs.get(key).is_some_and(|exec| exec.stdout.as_ref().is_some_and(|output| output.deserted)) {
            self.close_output(key, Stream::Stdout);
        }
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        if exec.tty && exec.stdout.is_some() {
            exec.phase = Phase::Draining(ending);
            exec.drain = Some(self.timers.add(TERMINAL_DRAIN_MS, Timer::Drain(key)));
            self.mark_followers(key);
            return;
        }
        self.finish(key, ending);
    }

    pub fn finish_draining(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        if let Some(timer) = exec.drain.take() {
            self.timers.cancel(timer);
        }
        if matches!(exec.phase, Phase::Draining(_)) {
            self.read_rest(key, Stream::Stdout);
            let Some(exec) = self.commands.execs.get_mut(key) else { return };
            if let Phase::Draining(ending) = std::mem::replace(&mut exec.phase, Phase::Running) {
                self.finish(key, ending);
            }
        }
    }

    fn finish(&mut self, key: Key, mut ending: Ending) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        // One that ended before it was noticed has exceeded its limit all the same.
        if let Some(limit) = exec.over_limit(&ending) {
            (ending.reason, exec.exceeded) = (ExitReason::Limit, Some(limit));
        }
        if !matches!(ending.reason, ExitReason::Exited | ExitReason::Signaled) {
            console::say(format_args!("command {} was ended: {}", exec.id, ending.reason.name()));
        }
        exec.phase = Phase::Ended(ending);
        exec.group = None;
        let grace = exec.grace.take().map(|grace| grace.timer);
        for timer in [exec.timeout.take(), exec.cpu_timer.take(), exec.survivors.take(), grace].into_iter().flatten() {
            self.timers.cancel(timer);
        }
        if let Some(fd) = exec.stdin.fd.take() {
            self.poller.remove(fd.as_raw_fd());
        }
        // What was written and taken needs no apology: such a writer may have nothing left to send but the end of it, and is
        // refused only if it sends more.
        let taken = exec.stdin.queue.is_empty();
        exec.stdin = Default::default();
        let untaken = if taken { Vec::new() } else { std::mem::take(&mut exec.stdin_writers) };
        let event = exec.exit_event();
        self.commands.running -= 1;
        self.commands.ended.push_back(key);
        self.commands.ended_text += self.commands.execs.get(key).map_or(0, Exec::text_bytes);
        self.watch_output(key, Stream::Stdout, true);
        self.watch_output(key, Stream::Stderr, true);
        for writer in untaken {
            self.stdin_gone(writer);
        }
        let followers = self.commands.execs.get(key).map(|exec| exec.followers.clone()).unwrap_or_default();
        let followed = !followers.is_empty();
        for follower in followers {
            if let Some(connection) = self.connections.list.get_mut(follower) {
                connection.stalled = false;
            }
            self.mark(follower);
        }
        if let Some(event) = event.map(Event::Exit) {
            for listener in self.connections.followers.clone() {
                self.tell_listener(listener, &event, followed);
            }
        }
        self.answer_kills(key);
        self.forget_oldest();
    }

    fn tell_listener(&mut self, listener: Key, event: &Event, may_wait: bool) {
        const MAX_BEHIND: usize = 1 << 20;
        let Some(connection) = self.connections.list.get_mut(listener) else { return };
        if connection.waiting() > MAX_BEHIND {
            // It does not read; it comes back and asks for the list.
            return self.close(listener);
        }
        connection.push_event(event);
        if may_wait {
            self.feed_soon();
        } else {
            self.mark(listener);
        }
    }

    fn forget_oldest(&mut self) {
        let mut index = 0;
        while (self.commands.ended.len() > MAX_ENDED || self.commands.ended_text > MAX_ENDED_TEXT)
            && index + 1 < self.commands.ended.len()
        {
            let key = self.commands.ended[index];
            let in_use =
                self.commands.execs.get(key).is_some_and(|exec| exec.monitor.is_some() || !exec.followers.is_empty());
            if in_use {
                index += 1;
                continue;
            }
            self.commands.ended.remove(index);
            self.forget_exec(key);
        }
    }

    pub fn forget_exec(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.remove(key) else { return };
        self.commands.by_id.remove(&exec.id);
        self.commands.journal_bytes -= exec.journal.memory();
        if exec.ended() {
            self.commands.ended_text -= exec.text_bytes();
        } else {
            self.commands.running -= 1;
        }
        for output in [exec.stdout, exec.stderr].into_iter().flatten() {
            self.poller.remove(output.fd.as_raw_fd());
        }
        if let Some(fd) = exec.stdin.fd {
            self.poller.remove(fd.as_raw_fd());
        }
        let grace = exec.grace.map(|grace| grace.timer);
        for timer in [exec.timeout, exec.cpu_timer, grace, exec.drain, exec.survivors].into_iter().flatten() {
            self.timers.cancel(timer);
        }
        // Only an exec that never ran is forgotten while somebody waits for it.
        let gone = alcove_protocol::ErrorBody::new(
            alcove_protocol::ErrorCode::NotFound,
            format!("exec {} did not start", exec.id),
        );
        for waiter in exec.followers.into_iter().chain(exec.kill_waiters).chain(exec.stdin_writers) {
            if exec.starter != Some(waiter) {
                self.refuse(waiter, &gone);
            }
        }
    }

    /// Those who asked for a kill hear of it when nothing is left.
    pub fn answer_kills(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        if !exec.ended() || exec.monitor.is_some() {
            return;
        }
        let record = exec.record(None);
        for waiter in std::mem::take(&mut exec.kill_waiters) {
            self.reply(waiter, &record);
        }
    }
}
