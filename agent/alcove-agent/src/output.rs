//! Reading what commands write: from pipes and terminals into their journals, as far as their readers allow.

use crate::agent::{Agent, Timer};
use crate::connection::Operation;
use crate::exec::{Exec, Output, Phase};
use crate::journal::Stream;
use crate::poller::{READ, Source};
use crate::slab::Key;
use crate::supervise::TERMINAL_DRAIN_MS;
use crate::sys;
use alcove_protocol::LimitName;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

const READ_CHUNK: usize = 256 * 1024;
const PIPE_FULL: usize = 64 * 1024;
const PIPE_ENLARGED: libc::c_int = 1024 * 1024;
/// What a running command's journal may always have, whatever the others took.
const LEAST_RING: usize = 16 * 1024;

impl Agent {
    pub fn output_ready(&mut self, key: Key, stream: Stream) {
        let ended = match self.commands.execs.get(key) {
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

    pub fn mark_followers(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.get(key) else { return };
        for follower in exec.followers.clone() {
            self.mark(follower);
        }
    }

    /// The oldest byte that a lossless follower has not been sent, or may come back for. One that acknowledges may come back
    /// for what it was sent, and for some of what it handed on: its own reader may not have got that. One whose input is not
    /// read for now cannot acknowledge, and its command may not read before it can write.
    pub fn protected(&self, exec: &Exec) -> Option<u64> {
        exec.followers
            .iter()
            .filter_map(|follower| {
                let connection = self.connections.list.get(*follower)?;
                match &connection.operation {
                    Operation::Following(follow) if follow.lossless && follow.until.is_none() => {
                        let acked = follow.acked.filter(|_| !connection.stalled);
                        Some(acked.map_or(follow.cursor, |acked| exec.journal.half_before(acked)))
                    }
                    _ => None,
                }
            })
            .chain(exec.unread_from)
            .min()
    }

    /// A follower has handed on what is before `offset`.
    pub fn take_ack(&mut self, connection: Key, offset: u64) {
        let Some(Operation::Following(follow)) =
            self.connections.list.get_mut(connection).map(|connection| &mut connection.operation)
        else {
            return;
        };
        let exec = follow.exec;
        follow.acked = follow.acked.max(Some(offset.min(follow.cursor)));
        self.resume_output(exec);
    }

    /// A lossless follower has left that has handed on, or was sent, what is before `cursor`. Unless the command is to go on
    /// without readers, its output waits for one: the service may only have been replaced by its next process. What was
    /// on its way to the reader is lost with the connection, so half of what the journal may keep lies before the cursor.
    pub fn keep_unread(&mut self, key: Key, cursor: u64) {
        let Some(exec) = self.commands.execs.get(key) else { return };
        let follows = self.protected(exec).is_some();
        if follows || exec.detached || exec.killed.is_some() || exec.ended() {
            return;
        }
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        let before = exec.journal.limit() as u64 / 2;
        exec.unread_from = Some(cursor.saturating_sub(before).max(exec.journal.start()));
    }

    /// Reads once into the journal. `all` is set for the last reading of an ended command: then everything must fit.
    /// Returns how much was read.
    pub fn read_output(&mut self, key: Key, stream: Stream, all: Option<usize>) -> usize {
        let Some(exec) = self.commands.execs.get(key) else { return 0 };
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
        let Some(wanted) = self.within_limit(key, wanted) else { return self.drop_excess(key, stream) };
        if let (Some(_), Some(unread)) = (all, protect) {
            // A slow reader must not keep an ended command from ending, nor lose anything: its last output, which is
            // no more than the pipes held, gets room of its own, whatever the bounds.
            let fit = exec.journal.size_to_keep(unread, wanted);
            self.grow(key, fit);
        } else {
            let fit = exec.journal.size_for(wanted);
            self.enlarge(key, fit);
        }
        let protect = self.give_up_unread(key, protect);
        let Some(exec) = self.commands.execs.get_mut(key) else { return 0 };
        let room = exec.journal.room(wanted, protect);
        if room.is_empty() {
            self.watch_output(key, stream, false);
            return 0;
        }
        match sys::read(fd, room) {
            Ok(0) => self.close_output(key, stream),
            Ok(count) => {
                let before = exec.journal.memory();
                exec.journal.commit(count, stream);
                self.commands.journal_bytes += exec.journal.memory() - before;
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

    /// How much of `wanted` may still be read; None when a command has written as much as it may.
    fn within_limit(&self, key: Key, wanted: usize) -> Option<usize> {
        let exec = self.commands.execs.get(key)?;
        let Some(limit) = exec.limits.output_bytes else { return Some(wanted) };
        let left = limit.saturating_sub(exec.journal.end());
        (left > 0).then(|| wanted.min(usize::try_from(left).unwrap_or(usize::MAX)))
    }

    /// Output beyond the limit ends its command and is not kept.
    fn drop_excess(&mut self, key: Key, stream: Stream) -> usize {
        let count = self.drop_output(key, stream);
        if count > 0 {
            if let Some(exec) = self.commands.execs.get_mut(key) {
                exec.excess = true;
            }
            self.exceed(key, LimitName::OutputBytes);
        }
        count
    }

    /// Where all journals together are at their bound, commands that wait for a reader to come back would hold one another
    /// up: one that was not given what its journal may have goes on. Returns what is protected now.
    fn give_up_unread(&mut self, key: Key, protect: Option<u64>) -> Option<u64> {
        let exec = self.commands.execs.get_mut(key)?;
        let small = exec.journal.allocated() < exec.journal.limit();
        if exec.unread_from.is_none() || !small || !exec.journal.room(1, protect).is_empty() {
            return protect;
        }
        exec.unread_from = None;
        self.commands.execs.get(key).and_then(|exec| self.protected(exec))
    }

    /// Grows a journal, taking the memory of ended execs first when all journals together are at their bound.
    pub fn enlarge(&mut self, key: Key, size: usize) {
        let Some(exec) = self.commands.execs.get(key) else { return };
        let allocated = exec.journal.allocated();
        if size <= allocated {
            return;
        }
        let more = size - allocated;
        if self.commands.journal_bytes + more > self.config.journals_bytes {
            for index in 0..self.commands.ended.len() {
                let old = self.commands.ended[index];
                let Some(old) = self.commands.execs.get_mut(old).filter(|old| old.followers.is_empty()) else {
                    continue;
                };
                self.commands.journal_bytes -= old.journal.memory();
                old.journal.release();
                if self.commands.journal_bytes + more <= self.config.journals_bytes {
                    break;
                }
            }
        }
        let left = self.config.journals_bytes.saturating_sub(self.commands.journal_bytes);
        self.grow(key, size.min((allocated + left).max(LEAST_RING)));
    }

    fn grow(&mut self, key: Key, size: usize) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        let before = exec.journal.memory();
        exec.journal.grow(size);
        self.commands.journal_bytes += exec.journal.memory() - before;
    }

    /// Adds a text of the agent's own to a command's output.
    pub fn write_output(&mut self, key: Key, text: &str, stream: Stream) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        let before = exec.journal.memory();
        let size = exec.journal.size_for(text.len());
        exec.journal.grow(size);
        exec.journal.append(text.as_bytes(), stream);
        self.commands.journal_bytes += exec.journal.memory() - before;
    }

    /// Starts or stops watching an output.
    pub fn watch_output(&mut self, key: Key, stream: Stream, watch: bool) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
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

    pub fn watch_first_time(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.get(key) else { return };
        if exec.journal.end() == 0 {
            self.watch_output(key, Stream::Stdout, true);
            self.watch_output(key, Stream::Stderr, true);
        }
    }

    /// A lossless reader has caught up, or left: the command may write on.
    pub fn resume_output(&mut self, key: Key) {
        let paused =
            |output: &Option<Output>| output.as_ref().is_some_and(|output| !output.watched && !output.deserted);
        let Some(exec) = self.commands.execs.get(key) else { return };
        // One that starts is watched when its start has been told of.
        let starts = matches!(exec.phase, Phase::Starting);
        if starts || (!paused(&exec.stdout) && !paused(&exec.stderr)) {
            return;
        }
        let protect = self.protected(exec);
        // A journal that has nothing yet only seems to be one that was given nothing.
        let fit = exec.journal.size_for(1);
        self.enlarge(key, fit);
        let protect = self.give_up_unread(key, protect);
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        if exec.ended() || !exec.journal.room(1, protect).is_empty() {
            self.watch_output(key, Stream::Stdout, true);
            self.watch_output(key, Stream::Stderr, true);
        }
    }

    /// A terminal answers EIO while nobody has it open. Closing it now would hang up on a command that closed its streams
    /// just before its exit, so that waits for the end; a command that opens `/dev/tty` again is heard a little later.
    pub fn desert_terminal(&mut self, key: Key) {
        self.watch_output(key, Stream::Stdout, false);
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        if matches!(exec.phase, Phase::Draining(_)) {
            return self.close_output(key, Stream::Stdout);
        }
        if let Some(output) = exec.stdout.as_mut().filter(|output| !output.deserted) {
            output.deserted = true;
            self.timers.add(TERMINAL_DRAIN_MS, Timer::Terminal(key));
        }
    }

    pub fn look_at_terminal(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        if let Some(output) = exec.stdout.as_mut() {
            output.deserted = false;
            self.resume_output(key);
        }
    }

    pub fn close_output(&mut self, key: Key, stream: Stream) {
        self.watch_output(key, stream, false);
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        match stream {
            Stream::Stdout => exec.stdout = None,
            Stream::Stderr => exec.stderr = None,
        }
        if exec.drain.is_some() && exec.stdout.is_none() {
            self.finish_draining(key);
        }
    }

    /// After the end: background processes may write on, and must not be stopped by a full or closed pipe. Returns how much
    /// was dropped.
    pub fn drop_output(&mut self, key: Key, stream: Stream) -> usize {
        let Some(exec) = self.commands.execs.get(key) else { return 0 };
        let output = match stream {
            Stream::Stdout => &exec.stdout,
            Stream::Stderr => &exec.stderr,
        };
        let Some(output) = output else { return 0 };
        let ended = exec.ended();
        let mut sink = [0u8; 16 * 1024];
        match sys::read(output.fd.as_raw_fd(), &mut sink) {
            Ok(count) if count > 0 => return count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) if exec.tty && !ended => self.desert_terminal(key),
            _ => self.close_output(key, stream),
        }
        0
    }

    /// Closes the pipes that are empty and that nobody has open any more, which after a short command is both.
    pub fn close_emptied(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.get(key).filter(|exec| !exec.tty) else { return };
        if exec.stdout.is_none() && exec.stderr.is_none() {
            return;
        }
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
    pub fn read_rest(&mut self, key: Key, stream: Stream) {
        let Some(exec) = self.commands.execs.get(key) else { return };
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
        let open = self.commands.execs.get(key).is_some_and(|exec| !exec.tty);
        if open {
            self.close_at_end(key, stream);
        }
    }

    pub fn close_at_end(&mut self, key: Key, stream: Stream) {
        let Some(exec) = self.commands.execs.get(key) else { return };
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
