//! Lending a connection's socket to a worker thread, and taking it back.

use crate::agent::{Agent, busy};
use crate::connection::Operation;
use crate::files::context::Context;
use crate::poller::{PEER_GONE, READ, Source};
use crate::slab::Key;
use crate::sys;
use crate::workers::{Class, Job, Outcome, Task};
use alcove_protocol::Decoder;
use std::os::fd::AsRawFd;

impl Agent {
    pub fn lend(&mut self, key: Key, class: Class, task: Task) {
        if !self.workers.has_room(class) {
            return self.refuse(key, &busy("too many operations of this kind run already"));
        }
        // What waits to be sent goes out first: the worker writes to the socket directly.
        self.flush(key);
        let context =
            Context { user: self.config.user.clone(), ids: self.config.ids, passing_group: self.config.passing_group };
        let Some(connection) = self.connections.list.get_mut(key) else { return };
        let fd = connection.fd.as_raw_fd();
        let decoder = std::mem::replace(&mut connection.decoder, Decoder::new());
        let waiting = std::mem::take(&mut connection.out);
        let unsent = waiting[connection.sent..].to_vec();
        connection.sent = 0;
        connection.operation = Operation::Lent;
        self.poller.remove(fd);
        let job = Job { connection: key, class, task, fd, decoder, unsent, context };
        let started =
            sys::set_nonblocking(fd, false).map_err(|_| None).and_then(|()| self.workers.start(job).map_err(Some));
        if let Err(job) = started {
            if let Some(job) = job {
                if let Some(connection) = self.connections.list.get_mut(key) {
                    connection.decoder = job.decoder;
                    connection.out = job.unsent;
                }
            }
            self.resume(key);
            self.refuse(key, &busy("no thread can be started: the sandbox has used up its processes or memory"));
        }
    }

    /// The socket belongs to the loop again.
    fn resume(&mut self, key: Key) {
        let Some(connection) = self.connections.list.get_mut(key) else { return };
        connection.operation = Operation::Idle { drop_data: true };
        connection.interest = READ | PEER_GONE;
        connection.full = false;
        let fd = connection.fd.as_raw_fd();
        let watched = sys::set_nonblocking(fd, true)
            .and_then(|()| self.poller.add(fd, Source::Connection(key), READ | PEER_GONE));
        if watched.is_err() {
            self.close(key);
        }
    }

    pub fn take_back(&mut self) {
        for done in self.workers.finished() {
            match done.outcome {
                Outcome::Return(decoder) => {
                    if let Some(connection) = self.connections.list.get_mut(done.connection) {
                        connection.decoder = decoder;
                    }
                    self.resume(done.connection);
                    self.decode(done.connection);
                }
                Outcome::Close => {
                    if let Some(connection) = self.connections.list.get_mut(done.connection) {
                        connection.operation = Operation::Closing;
                    }
                    self.close(done.connection);
                }
            }
        }
    }
}
