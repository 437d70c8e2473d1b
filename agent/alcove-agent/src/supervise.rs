//! The life of a running command: its output and input, the reports of its monitor, its end, and the killing of its tree.

use crate::agent::{Agent, Timer};
use crate::connection::Operation;
use crate::exec::{signal_name, Ending, Exec, Output, Phase};
use crate::journal::Stream;
use crate::monitor::{Report, REPORT_LENGTH};
use crate::poller::{Source, READ, WRITE};
use crate::slab::Key;
use crate::{console, sys, tree};
use alcove_protocol::{Event, ExitReason, Kind};
use std::collections::HashSet;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

const READ_CHUNK: usize = 256 * 1024;
const PIPE_FULL: usize = 64 * 1024;
const PIPE_ENLARGED: libc::c_int = 1024 * 1024;
/// A terminal hands its last output over with a short delay.
const TERMINAL_DRAIN_MS: u64 = 50;
const MAX_ENDED: usize = 1000;
/// What a running command's journal may always have, whatever the others took.
const LEAST_RING: usize = 16 * 1024;
const KILLED: i32 = 128 + libc::SIGKILL;

impl Agent {
    pub fn output_ready(&mut self, key: Key, stream: Stream) {
        let ended = match self.execs.get(key) {
            Some(exec) => exec.ended(),
            None => return,
        };
        if ended {
            self.drop_output(key, stream);
        } else {
            self.read_output(key, stream, None);
        }
        self.mark_followers(key);
    }

    fn mark_followers(&mut self, key: Key) {
        let Some(exec) = self.execs.get(key) else { return };
        for follower in exec.followers.clone() {
            self.mark(follower);
        }
    }

    /// The oldest byte that a lossless follower has not been sent.
    fn protected(&self, exec: &Exec) -> Option<u64> {
        exec.followers
            .iter()
            .filter_map(|follower| match &self.connections.get(*follower)?.operation {
                Operation::Following(follow) if follow.lossless && follow.until.is_none() => Some(follow.cursor),
                _ => None,
            })
            .min()
    }

    /// Reads once into the journal. `all` is set for the last reading of an ended command: then everything must fit.
    /// Returns how much was read.
    fn read_output(&mut self, key: Key, stream: Stream, all: Option<usize>) -> usize {
        let Some(exec) = self.execs.get(key) else { return 0 };
        let protect = self.protected(exec);
        let output = match stream {
            Stream::Stdout => &exec.stdout,
            Stream::Stderr => &exec.stderr,
        };
        let Some(output) = output else { return 0 };
        let fd = output.fd.as_raw_fd();
        let available = if exec.tty { 4096 } else { sys::readable_bytes(fd) };
        if available == 0 {
            // Making room would cost the oldest byte for nothing.
            self.close_at_end(key, stream);
            return 0;
        }
        let wanted = all.unwrap_or(available).min(READ_CHUNK);
        let fit = if all.is_some() && protect.is_some() {
            // A slow reader must not keep an ended command from ending: its last output gets room of its own.
            (exec.journal.end() - exec.journal.start()) as usize + wanted
        } else {
            exec.journal.size_for(wanted)
        };
        self.enlarge(key, fit);
        let Some(exec) = self.execs.get_mut(key) else { return 0 };
        let room = exec.journal.room(wanted, protect);
        if room.is_empty() {
            self.watch_output(key, stream, false);
            return 0;
        }
        match sys::read(fd, room) {
            Ok(0) => self.close_output(key, stream),
            Ok(count) => {
                exec.journal.commit(count, stream);
                if count >= PIPE_FULL {
                    enlarge_pipe(exec, stream);
                }
                return count;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) if exec.tty => self.desert_terminal(key),
            Err(_) => self.close_output(key, stream),
        }
        0
    }

    /// Grows a journal, taking the memory of ended execs first when all journals together are at their bound.
    fn enlarge(&mut self, key: Key, size: usize) {
        let Some(exec) = self.execs.get(key) else { return };
        let allocated = exec.journal.allocated();
        if size <= allocated {
            return;
        }
        let more = size - allocated;
        if self.journal_bytes + more > self.config.journals_bytes {
            for index in 0..self.ended.len() {
                let old = self.ended[index];
                let Some(old) = self.execs.get_mut(old).filter(|old| old.followers.is_empty()) else { continue };
                self.journal_bytes -= old.journal.allocated();
                old.journal.release();
                if self.journal_bytes + more <= self.config.journals_bytes {
                    break;
                }
            }
        }
        let Some(exec) = self.execs.get_mut(key) else { return };
        let left = self.config.journals_bytes.saturating_sub(self.journal_bytes);
        let granted = size.min((allocated + left).max(LEAST_RING));
        if granted > allocated {
            exec.journal.grow(granted);
            self.journal_bytes += granted - allocated;
        }
    }

    /// Starts or stops watching an output.
    fn watch_output(&mut self, key: Key, stream: Stream, watch: bool) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        let (output, source) = match stream {
            Stream::Stdout => (&mut exec.stdout, Source::ExecStdout(key)),
            Stream::Stderr => (&mut exec.stderr, Source::ExecStderr(key)),
        };
        let Some(output) = output.as_mut().filter(|output| output.watched != watch) else { return };
        if watch {
            output.watched = self.poller.add(output.fd.as_raw_fd(), source, READ).is_ok();
        } else {
            self.poller.remove(output.fd.as_raw_fd());
            output.watched = false;
        }
    }

    fn watch_first_time(&mut self, key: Key) {
        let Some(exec) = self.execs.get(key) else { return };
        if exec.journal.end() == 0 {
            self.watch_output(key, Stream::Stdout, true);
            self.watch_output(key, Stream::Stderr, true);
        }
    }

    /// A lossless reader has caught up, or left: the command may write on.
    pub fn resume_output(&mut self, key: Key) {
        let paused = |output: &Option<Output>| output.as_ref().is_some_and(|output| !output.watched && !output.deserted);
        let Some(exec) = self.execs.get(key) else { return };
        if !paused(&exec.stdout) && !paused(&exec.stderr) {
            return;
        }
        let protect = self.protected(exec);
        let Some(exec) = self.execs.get_mut(key) else { return };
        if exec.ended() || !exec.journal.room(1, protect).is_empty() {
            self.watch_output(key, Stream::Stdout, true);
            self.watch_output(key, Stream::Stderr, true);
        }
    }

    /// A terminal answers EIO while nobody has it open. Closing it now would hang up on a command that closed its streams
    /// just before its exit, so that waits for the end; a command that opens `/dev/tty` again is heard a little later.
    fn desert_terminal(&mut self, key: Key) {
        self.watch_output(key, Stream::Stdout, false);
        let Some(exec) = self.execs.get_mut(key) else { return };
        if matches!(exec.phase, Phase::Draining(_)) {
            return self.close_output(key, Stream::Stdout);
        }
        if let Some(output) = exec.stdout.as_mut().filter(|output| !output.deserted) {
            output.deserted = true;
            self.timers.add(TERMINAL_DRAIN_MS, Timer::Terminal(key));
        }
    }

    pub fn look_at_terminal(&mut self, key: Key) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        if let Some(output) = exec.stdout.as_mut() {
            output.deserted = false;
            self.resume_output(key);
        }
    }

    fn close_output(&mut self, key: Key, stream: Stream) {
        self.watch_output(key, stream, false);
        let Some(exec) = self.execs.get_mut(key) else { return };
        match stream {
            Stream::Stdout => exec.stdout = None,
            Stream::Stderr => exec.stderr = None,
        }
        if exec.drain.is_some() && exec.stdout.is_none() {
            self.finish_draining(key);
        }
    }

    /// After the end: background processes may write on, and must not be stopped by a full or closed pipe.
    fn drop_output(&mut self, key: Key, stream: Stream) {
        let Some(exec) = self.execs.get(key) else { return };
        let output = match stream {
            Stream::Stdout => &exec.stdout,
            Stream::Stderr => &exec.stderr,
        };
        let Some(output) = output else { return };
        let mut sink = [0u8; 16 * 1024];
        match sys::read(output.fd.as_raw_fd(), &mut sink) {
            Ok(count) if count > 0 => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => self.close_output(key, stream),
        }
    }

    pub fn monitor_ready(&mut self, key: Key) {
        let Some(monitor) = self.monitors.get(key) else { return };
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
            let Some(exec) = self.monitors.get(key).and_then(|monitor| monitor.exec) else { continue };
            match Report::decode(bytes) {
                Some(Report::Started { pid }) => self.exec_started(exec, pid),
                Some(Report::Failed { stage, errno, pid }) => self.exec_failed(exec, stage, errno, pid),
                Some(Report::Ended { status }) => self.main_ended(exec, status),
                Some(Report::Idle) => self.tree_gone(exec, key),
                None => {}
            }
        }
        // A command whose end came with its start needs no watching.
        if let Some(exec) = self.monitors.get(key).and_then(|monitor| monitor.exec) {
            if self.execs.get(exec).is_some_and(|exec| matches!(exec.phase, Phase::Running)) {
                self.watch_first_time(exec);
            }
        }
    }

    /// Nothing of the exec is left; its monitor can serve another.
    fn tree_gone(&mut self, exec_key: Key, monitor_key: Key) {
        if let Some(monitor) = self.monitors.get_mut(monitor_key) {
            monitor.exec = None;
            monitor.spare_since = sys::boottime_ms();
        }
        self.keep_spare(monitor_key);
        self.release_monitor(exec_key);
    }

    fn release_monitor(&mut self, exec_key: Key) {
        let Some(exec) = self.execs.get_mut(exec_key) else { return };
        exec.monitor = None;
        if let Some(timer) = exec.sweep.take() {
            self.timers.cancel(timer);
        }
        self.answer_kills(exec_key);
    }

    fn monitor_lost(&mut self, key: Key) {
        let exec = self.monitors.get(key).and_then(|monitor| monitor.exec);
        self.dismiss(key);
        let Some(exec_key) = exec else { return };
        self.kill_orphans();
        self.timers.add(5, Timer::Orphans);
        let Some(exec) = self.execs.get(exec_key) else { return };
        if matches!(exec.phase, Phase::Starting | Phase::Running) {
            if matches!(exec.phase, Phase::Starting) {
                self.exec_started(exec_key, 0);
            }
            let ending = self.ending(exec_key, KILLED, Some(signal_name(libc::SIGKILL)), ExitReason::Lost);
            self.conclude(exec_key, ending);
        }
        self.release_monitor(exec_key);
    }

    fn ending(&self, key: Key, exit_code: i32, signal: Option<String>, reason: ExitReason) -> Ending {
        let duration_ms = self.execs.get(key).map_or(0, |exec| sys::boottime_ms().saturating_sub(exec.started_boot));
        Ending { ended_at: sys::wall_ms(), exit_code, signal, reason, duration_ms, start_error: None }
    }

    /// The command's first process has ended: so has the exec, once what it wrote has been read.
    fn main_ended(&mut self, key: Key, status: i32) {
        let Some(exec) = self.execs.get(key) else { return };
        let (exit_code, signal) = if libc::WIFSIGNALED(status) {
            let number = libc::WTERMSIG(status);
            (128 + number, Some(number))
        } else {
            (libc::WEXITSTATUS(status), None)
        };
        let by_kill = signal == Some(libc::SIGKILL);
        let reason = match (exec.killed, by_kill || exit_code == KILLED, signal) {
            (Some(killed), true, _) => killed,
            (None, true, _) if self.oom.total() > exec.oom_before => ExitReason::Oom,
            (_, _, Some(_)) => ExitReason::Signaled,
            (_, _, None) => ExitReason::Exited,
        };
        let ending = self.ending(key, exit_code, signal.map(signal_name), reason);
        self.conclude(key, ending);
    }

    /// Reads what the command has written, then ends the exec.
    pub fn conclude(&mut self, key: Key, ending: Ending) {
        self.close_emptied(key);
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.read_rest(key, stream);
        }
        if self.execs.get(key).is_some_and(|exec| exec.stdout.as_ref().is_some_and(|output| output.deserted)) {
            self.close_output(key, Stream::Stdout);
        }
        let Some(exec) = self.execs.get_mut(key) else { return };
        if exec.tty && exec.stdout.is_some() {
            exec.phase = Phase::Draining(ending);
            exec.drain = Some(self.timers.add(TERMINAL_DRAIN_MS, Timer::Drain(key)));
            self.mark_followers(key);
            return;
        }
        self.finish(key, ending);
    }

    /// Closes the pipes that are empty and that nobody has open any more, which after a short command is both.
    fn close_emptied(&mut self, key: Key) {
        let Some(exec) = self.execs.get(key).filter(|exec| !exec.tty) else { return };
        // A negative descriptor is passed over.
        let entry = |output: &Option<Output>| libc::pollfd {
            fd: output.as_ref().map_or(-1, |output| output.fd.as_raw_fd()),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut polls = [entry(&exec.stdout), entry(&exec.stderr)];
        // SAFETY: two valid entries, no waiting.
        if unsafe { libc::poll(polls.as_mut_ptr(), 2, 0) } <= 0 {
            return;
        }
        for (poll, stream) in polls.iter().zip([Stream::Stdout, Stream::Stderr]) {
            if poll.revents & (libc::POLLHUP | libc::POLLIN) == libc::POLLHUP {
                self.close_output(key, stream);
            }
        }
    }

    /// What is in the pipe at this moment: a background process may go on filling it.
    fn read_rest(&mut self, key: Key, stream: Stream) {
        let Some(exec) = self.execs.get(key) else { return };
        let output = match stream {
            Stream::Stdout => &exec.stdout,
            Stream::Stderr => &exec.stderr,
        };
        let Some(output) = output else { return };
        let mut left = if exec.tty { PIPE_ENLARGED as usize } else { sys::readable_bytes(output.fd.as_raw_fd()) };
        while left > 0 {
            let count = self.read_output(key, stream, Some(left.min(READ_CHUNK)));
            if count == 0 {
                return;
            }
            left = left.saturating_sub(count);
        }
        // At its end, the pipe is closed now rather than by another turn of the loop.
        let open = self.execs.get(key).is_some_and(|exec| !exec.tty);
        if open {
            self.close_at_end(key, stream);
        }
    }

    fn close_at_end(&mut self, key: Key, stream: Stream) {
        let Some(exec) = self.execs.get(key) else { return };
        let output = match stream {
            Stream::Stdout => &exec.stdout,
            Stream::Stderr => &exec.stderr,
        };
        let Some(output) = output else { return };
        let mut poll = libc::pollfd { fd: output.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry, no waiting.
        let ready = unsafe { libc::poll(&mut poll, 1, 0) };
        if ready > 0 && poll.revents & libc::POLLHUP != 0 && poll.revents & libc::POLLIN == 0 {
            self.close_output(key, stream);
        }
    }

    pub fn finish_draining(&mut self, key: Key) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        if let Some(timer) = exec.drain.take() {
            self.timers.cancel(timer);
        }
        if matches!(exec.phase, Phase::Draining(_)) {
            self.read_rest(key, Stream::Stdout);
            let Some(exec) = self.execs.get_mut(key) else { return };
            if let Phase::Draining(ending) = std::mem::replace(&mut exec.phase, Phase::Running) {
                self.finish(key, ending);
            }
        }
    }

    fn finish(&mut self, key: Key, ending: Ending) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        if !matches!(ending.reason, ExitReason::Exited | ExitReason::Signaled) {
            console::say(format_args!("command {} was ended: {}", exec.id, ending.reason.name()));
        }
        exec.phase = Phase::Ended(ending);
        for timer in [exec.timeout.take(), exec.grace.take()].into_iter().flatten() {
            self.timers.cancel(timer);
        }
        if let Some(fd) = exec.stdin.fd.take() {
            self.poller.remove(fd.as_raw_fd());
        }
        // What was written and taken needs no apology: such a writer is refused only if it sends more.
        let untaken = !exec.stdin.queue.is_empty();
        // Who has been rid of all that came so far may have nothing left to send but the end of it.
        let taken = exec.stdin.queue.is_empty();
        exec.stdin = Default::default();
        let writers = if taken { Vec::new() } else { std::mem::take(&mut exec.stdin_writers) };
        let event = exec.exit_event();
        self.running -= 1;
        self.ended.push_back(key);
        self.watch_output(key, Stream::Stdout, true);
        self.watch_output(key, Stream::Stderr, true);
        for writer in writers {
            if untaken {
                self.stdin_gone(writer);
            } else if let Some(connection) = self.connections.get_mut(writer) {
                connection.stalled = false;
                self.update_interest(writer);
            }
        }
        for follower in self.execs.get(key).map(|exec| exec.followers.clone()).unwrap_or_default() {
            if let Some(connection) = self.connections.get_mut(follower) {
                connection.stalled = false;
            }
            self.mark(follower);
        }
        if let Some(event) = event.map(Event::Exit) {
            for listener in self.listeners.clone() {
                self.tell_listener(listener, &event);
            }
        }
        self.answer_kills(key);
        self.forget_oldest();
    }

    fn tell_listener(&mut self, listener: Key, event: &Event) {
        const MAX_BEHIND: usize = 1 << 20;
        let Some(connection) = self.connections.get_mut(listener) else { return };
        if connection.waiting() > MAX_BEHIND {
            // It does not read; it comes back and asks for the list.
            return self.close(listener);
        }
        connection.push_event(event);
        self.mark(listener);
    }

    fn forget_oldest(&mut self) {
        let mut excess = self.ended.len().saturating_sub(MAX_ENDED);
        let mut index = 0;
        while excess > 0 && index < self.ended.len() {
            let key = self.ended[index];
            let in_use = self.execs.get(key).is_some_and(|exec| exec.monitor.is_some() || !exec.followers.is_empty());
            if in_use {
                index += 1;
                continue;
            }
            self.ended.remove(index);
            self.forget_exec(key);
            excess -= 1;
        }
    }

    pub fn forget_exec(&mut self, key: Key) {
        let Some(exec) = self.execs.remove(key) else { return };
        self.exec_keys.remove(&exec.id);
        self.journal_bytes -= exec.journal.allocated();
        if !exec.ended() {
            self.running -= 1;
        }
        for output in [exec.stdout, exec.stderr].into_iter().flatten() {
            self.poller.remove(output.fd.as_raw_fd());
        }
        if let Some(fd) = exec.stdin.fd {
            self.poller.remove(fd.as_raw_fd());
        }
        for timer in [exec.timeout, exec.grace, exec.sweep, exec.drain].into_iter().flatten() {
            self.timers.cancel(timer);
        }
        // Only an exec that never ran is forgotten while somebody waits for it.
        let gone = alcove_protocol::ErrorBody::new(alcove_protocol::ErrorCode::NotFound, format!("exec {} did not start", exec.id));
        for waiter in exec.followers.into_iter().chain(exec.kill_waiters).chain(exec.stdin_writers) {
            if exec.starter != Some(waiter) {
                self.refuse(waiter, &gone);
            }
        }
    }

    /// Kills everything that descends from the exec's monitor. The first reason given stays.
    pub fn kill_tree(&mut self, key: Key, reason: ExitReason) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        if !exec.ended() {
            exec.killed.get_or_insert(reason);
        }
        exec.sweeps = 0;
        if exec.sweep.is_none() {
            self.sweep(key);
        }
    }

    pub fn sweep(&mut self, key: Key) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        exec.sweep = None;
        let Some(monitor) = exec.monitor.and_then(|monitor| self.monitors.get(monitor)) else { return };
        let group = exec.pid;
        if tree::sweep(&[monitor.handle.pid], &HashSet::new()) == 0 && exec.sweeps == 0 && group > 0 && !exec.ended() {
            // Without a /proc at least the command's own group can be reached.
            // SAFETY: plain kill.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        let after = (2u64 << exec.sweeps.min(5)).min(50);
        exec.sweeps += 1;
        exec.sweep = Some(self.timers.add(after, Timer::Sweep(key)));
    }

    /// Those who asked for a kill hear of it when nothing is left.
    pub fn answer_kills(&mut self, key: Key) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        if !exec.ended() || exec.monitor.is_some() {
            return;
        }
        let record = exec.record(None);
        for waiter in std::mem::take(&mut exec.kill_waiters) {
            self.reply(waiter, &record);
        }
    }

    /// Writes queued standard input as far as the command takes it.
    pub fn feed(&mut self, key: Key) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        let stdin = &mut exec.stdin;
        let Some(fd) = stdin.fd.as_ref().map(AsRawFd::as_raw_fd) else { return };
        let mut broken = false;
        while !stdin.queue.is_empty() {
            match sys::write(fd, stdin.queue.as_slices().0) {
                Ok(count) => {
                    stdin.queue.drain(..count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    // The command has closed its standard input: the rest has nowhere to go.
                    broken = true;
                    stdin.queue.clear();
                }
            }
        }
        if stdin.queue.is_empty() && stdin.queue.capacity() > 4096 {
            stdin.queue = Default::default();
        }
        let wants_writing = !stdin.queue.is_empty();
        if wants_writing != stdin.watched {
            if wants_writing {
                stdin.watched = self.poller.add(fd, Source::ExecStdin(key), WRITE).is_ok();
            } else {
                self.poller.remove(fd);
                stdin.watched = false;
            }
        }
        if broken || (stdin.closing && stdin.queue.is_empty()) {
            stdin.fd = None;
            stdin.closing = true;
        }
        // Room again: those who wait with more may send it.
        let waiting: Vec<Key> = exec.followers.iter().chain(&exec.stdin_writers).copied().collect();
        for waiter in waiting {
            let Some(connection) = self.connections.get_mut(waiter).filter(|connection| connection.stalled) else { continue };
            connection.stalled = false;
            self.decode(waiter);
            self.update_interest(waiter);
        }
    }

    /// What a follower sends.
    pub fn take_input(&mut self, connection: Key, exec_key: Key, kind: Kind, payload: &[u8]) {
        let Some(exec) = self.execs.get_mut(exec_key) else { return };
        if !exec.stdin.open() {
            return;
        }
        if kind == Kind::Eof {
            self.shut_stdin(exec_key);
        } else {
            exec.stdin.queue.extend(payload);
            let full = exec.stdin.room() == 0;
            self.feed_or_stall(connection, exec_key, full);
        }
    }

    pub fn feed_or_stall(&mut self, connection: Key, exec_key: Key, full: bool) {
        self.feed(exec_key);
        let still = self.execs.get(exec_key).is_some_and(|exec| exec.stdin.room() == 0);
        if full && still {
            if let Some(connection) = self.connections.get_mut(connection) {
                connection.stalled = true;
            }
            self.update_interest(connection);
        }
    }

    /// Closes standard input once everything queued is through; on a terminal by typing the end.
    pub fn shut_stdin(&mut self, exec_key: Key) {
        let Some(exec) = self.execs.get_mut(exec_key) else { return };
        if exec.tty {
            exec.stdin.queue.push_back(crate::terminal::END_OF_TRANSMISSION);
        }
        exec.stdin.closing = true;
        self.feed(exec_key);
    }
}

/// A command that fills its pipe gets a larger one: fewer turns for the same output.
fn enlarge_pipe(exec: &mut Exec, stream: Stream) {
    let output = match stream {
        Stream::Stdout => &mut exec.stdout,
        Stream::Stderr => &mut exec.stderr,
    };
    if let Some(output) = output.as_mut().filter(|output| !output.enlarged) {
        output.enlarged = true;
        // SAFETY: a live descriptor; a refusal changes nothing.
        let _ = unsafe { libc::fcntl(output.fd.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_ENLARGED) };
    }
}
