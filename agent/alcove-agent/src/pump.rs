//! Sending: replies and events that wait, and the output that followers are behind with.

use crate::agent::Agent;
use crate::connection::{Operation, push_json};
use crate::journal::Stream;
use crate::slab::Key;
use crate::sys;
use alcove_protocol::{Event, Kind, frame};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

/// Pieces of output up to this are gathered into one write.
const SMALL: usize = 16 * 1024;
const GATHER: usize = 64 * 1024;
/// Largest output frame.
const FRAME: usize = 256 * 1024;
/// Emptied buffers above this are given back.
const KEEP_BUFFER: usize = 16 * 1024;

enum Step {
    /// Everything there is has been sent.
    Done,
    /// The socket is full.
    Full,
    /// The peer is gone.
    Broken,
}

impl Agent {
    /// Sends what a connection waits for, then takes what it asks next.
    pub fn pump(&mut self, key: Key) {
        self.flush(key);
        if matches!(self.connections.list.get(key).map(|connection| &connection.operation), Some(Operation::Lent)) {
            return;
        }
        // A request may have waited for the end of an operation, or for its answers to be read.
        self.decode(key);
        self.update_interest(key);
    }

    /// Sends what a connection waits for, as far as its socket takes it.
    pub fn flush(&mut self, key: Key) {
        if let Some(connection) = self.connections.list.get_mut(key) {
            connection.dirty = false;
            if matches!(connection.operation, Operation::Lent) {
                return;
            }
        }
        let step = self.send(key);
        let Some(connection) = self.connections.list.get_mut(key) else { return };
        let exec = match &connection.operation {
            Operation::Following(follow) if follow.lossless => Some(follow.exec),
            _ => None,
        };
        connection.full = matches!(step, Step::Full);
        match step {
            Step::Broken => return self.close(key),
            Step::Done => {
                if connection.out.capacity() > KEEP_BUFFER {
                    connection.out = Vec::new();
                }
                if matches!(connection.operation, Operation::Closing) {
                    return self.close(key);
                }
            }
            Step::Full => {}
        }
        if let Some(exec) = exec {
            self.resume_output(exec);
        }
        self.update_interest(key);
    }

    fn send(&mut self, key: Key) -> Step {
        loop {
            self.gather(key);
            let Some(connection) = self.connections.list.get_mut(key) else { return Step::Done };
            let fd = connection.fd.as_raw_fd();
            if let Operation::Following(follow) = &mut connection.operation {
                // Only a large piece is left here: it goes out of the journal as it is.
                let waiting = connection.out.len() - connection.sent;
                let exec = self.commands.execs.get(follow.exec).filter(|_| follow.replied && waiting < GATHER);
                let limit = match (follow.frame_left, follow.until) {
                    (0, Some(until)) => until.saturating_sub(follow.cursor).min(FRAME as u64) as usize,
                    (0, None) => FRAME,
                    (left, _) => left,
                };
                if let Some(chunk) =
                    exec.and_then(|exec| exec.journal.chunk(follow.cursor, limit)).filter(|chunk| chunk.length() > 0)
                {
                    let mut header = [0u8; frame::HEADER_LENGTH + frame::OFFSET_LENGTH];
                    write_header(&mut header, chunk.stream, chunk.offset, chunk.length());
                    let head = if follow.frame_left > 0 { &[][..] } else { &header[..] };
                    let sent = match sys::send_vectored(
                        fd,
                        &[&connection.out[connection.sent..], head, chunk.parts[0], chunk.parts[1]],
                    ) {
                        Ok(sent) => sent,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Full,
                        Err(_) => return Step::Broken,
                    };
                    if sent < waiting {
                        connection.sent += sent;
                        return Step::Full;
                    }
                    connection.out.clear();
                    connection.sent = 0;
                    // The frame has begun, so its rest must follow.
                    let of_head = (sent - waiting).min(head.len());
                    let of_body = sent - waiting - of_head;
                    connection.out.extend_from_slice(&head[of_head..]);
                    if follow.lossless && follow.until.is_none() {
                        follow.cursor = chunk.offset + of_body as u64;
                        follow.frame_left = chunk.length() - of_body;
                    } else {
                        // The journal may drop it meanwhile.
                        let mut skip = of_body;
                        for part in chunk.parts {
                            let from = skip.min(part.len());
                            skip -= from;
                            connection.out.extend_from_slice(&part[from..]);
                        }
                        follow.cursor = chunk.offset + chunk.length() as u64;
                    }
                    if of_body < chunk.length() {
                        return Step::Full;
                    }
                    continue;
                }
            }
            if connection.waiting() == 0 {
                return Step::Done;
            }
            match sys::send_vectored(fd, &[&connection.out[connection.sent..]]) {
                Ok(sent) => {
                    connection.sent += sent;
                    if connection.waiting() > 0 {
                        return Step::Full;
                    }
                    connection.out.clear();
                    connection.sent = 0;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Full,
                Err(_) => return Step::Broken,
            }
        }
    }

    /// Copies small output behind what waits, and ends the operation when all of it is there: a fast command's reply,
    /// output, exit and end leave in one write.
    fn gather(&mut self, key: Key) {
        let Some(connection) = self.connections.list.get_mut(key) else { return };
        let Operation::Following(follow) = &mut connection.operation else { return };
        if !follow.replied || follow.frame_left > 0 {
            return;
        }
        let Some(exec) = self.commands.execs.get(follow.exec) else { return };
        // Once what was told before is through, so that a client that does not read is told little; and once there is room,
        // as a client that waits for this sends more then.
        let tells = connection.out.len() == connection.sent && (exec.stdin.room() > 0 || !exec.stdin.open());
        if let Some(told) = follow.told.filter(|_| tells) {
            if let Some(taken) = exec.inputs.taken(key).filter(|taken| *taken > told) {
                follow.told = Some(taken);
                push_json(&mut connection.out, Kind::Event, &Event::Input { taken });
            }
        }
        loop {
            if connection.out.len() - connection.sent >= GATHER {
                return;
            }
            let end = follow.until.unwrap_or(u64::MAX).min(exec.journal.end());
            let limit = end.saturating_sub(follow.cursor).min(FRAME as u64) as usize;
            match exec.journal.chunk(follow.cursor, limit).filter(|chunk| chunk.length() > 0 && chunk.offset < end) {
                Some(chunk) if chunk.length() <= SMALL => {
                    let mut header = [0u8; frame::HEADER_LENGTH + frame::OFFSET_LENGTH];
                    write_header(&mut header, chunk.stream, chunk.offset, chunk.length());
                    for part in [&header[..], chunk.parts[0], chunk.parts[1]] {
                        connection.out.extend_from_slice(part);
                    }
                    follow.cursor = chunk.offset + chunk.length() as u64;
                }
                Some(_) => return,
                None => break,
            }
        }
        let exit = exec.exit_event();
        if exit.is_none() && follow.until.is_none() {
            return;
        }
        if let Some(exit) = exit {
            push_json(&mut connection.out, Kind::Event, &Event::Exit(exit));
        }
        frame::encode(&mut connection.out, Kind::End, &[]);
        self.end_operation(key);
    }

    /// The connection is free for the next request.
    pub fn end_operation(&mut self, key: Key) {
        let Some(connection) = self.connections.list.get_mut(key) else { return };
        let operation = std::mem::replace(&mut connection.operation, Operation::Idle { drop_data: true });
        connection.stalled = false;
        self.detach(key, &operation);
        // Its next request is taken when what it waits for is sent: here, requests could pile up on the stack.
        self.mark(key);
    }
}

fn write_header(header: &mut [u8], stream: Stream, offset: u64, length: usize) {
    let kind = match stream {
        Stream::Stdout => Kind::Stdout,
        Stream::Stderr => Kind::Stderr,
    };
    header[..frame::HEADER_LENGTH].copy_from_slice(&frame::encode_header(kind, length + frame::OFFSET_LENGTH));
    header[frame::HEADER_LENGTH..].copy_from_slice(&offset.to_be_bytes());
}
