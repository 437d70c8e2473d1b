//! Writing what commands read: standard input on its way, and who waits for room in it.

use crate::agent::Agent;
use crate::connection::Operation;
use crate::poller::{Source, WRITE};
use crate::slab::Key;
use crate::sys;
use alcove_protocol::Kind;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

/// What a client may send of a named input beyond what it was told to have been taken, without being stopped.
const INPUT_CREDIT: u64 = 512 * 1024;

impl Agent {
    /// Writes queued standard input as far as the command takes it.
    pub fn feed(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
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
        let room = exec.stdin.room() > 0;
        for waiter in waiting {
            if room {
                self.mark_untold(waiter);
            }
            let Some(connection) = self.connections.list.get_mut(waiter).filter(|connection| connection.stalled) else {
                continue;
            };
            connection.stalled = false;
            self.decode(waiter);
            self.update_interest(waiter);
        }
    }

    /// A client may wait to be told that there is room.
    fn mark_untold(&mut self, waiter: Key) {
        if let Some(Operation::Following(follow)) = self.connections.list.get(waiter).map(|waiter| &waiter.operation) {
            let taken = self.commands.execs.get(follow.exec).and_then(|exec| exec.inputs.taken(waiter));
            if follow.told.is_some_and(|told| taken.is_some_and(|taken| taken > told)) {
                self.mark(waiter);
            }
        }
    }

    /// What a follower sends.
    pub fn take_input(&mut self, connection: Key, exec_key: Key, kind: Kind, payload: &[u8]) {
        let Some(exec) = self.commands.execs.get_mut(exec_key) else { return };
        let told = match self.connections.list.get(connection).map(|connection| &connection.operation) {
            Some(Operation::Following(follow)) => follow.told,
            _ => None,
        };
        if told.is_some() {
            if exec.inputs.taken(connection).is_none() {
                // It comes on another connection by now, from where this one broke off.
                return;
            }
            exec.inputs.took(connection, payload.len());
            self.mark(connection);
        }
        let Some(exec) = self.commands.execs.get_mut(exec_key) else { return };
        if !exec.stdin.open() {
            return;
        }
        if kind == Kind::Eof {
            self.shut_stdin(exec_key);
        } else {
            exec.stdin.queue.extend(payload);
            // A client that waits to be told may acknowledge output behind what it has sent so far: that is still read.
            let exceeds = told.is_none_or(|told| {
                let taken = exec.inputs.taken(connection).unwrap_or(told);
                taken.saturating_sub(told) > INPUT_CREDIT
            });
            let full = exec.stdin.room() == 0 && exceeds;
            self.feed_or_stall(connection, exec_key, full);
        }
    }

    pub fn feed_or_stall(&mut self, connection: Key, exec_key: Key, full: bool) {
        self.feed(exec_key);
        let still = self.commands.execs.get(exec_key).is_some_and(|exec| exec.stdin.room() == 0);
        if full && still {
            if let Some(connection) = self.connections.list.get_mut(connection) {
                connection.stalled = true;
            }
            self.update_interest(connection);
            // What it acknowledges is not read now: output that was sent to it must not wait for that.
            self.resume_output(exec_key);
        }
    }

    /// Closes standard input once everything queued is through; on a terminal by typing the end.
    pub fn shut_stdin(&mut self, exec_key: Key) {
        let Some(exec) = self.commands.execs.get_mut(exec_key) else { return };
        if exec.tty {
            exec.stdin.queue.push_back(crate::terminal::END_OF_TRANSMISSION);
        }
        exec.stdin.closing = true;
        self.feed(exec_key);
    }
}
