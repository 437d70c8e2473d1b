//! Receiving: bytes become frames, frames become what the state of the connection allows.

use crate::agent::Agent;
use crate::connection::Operation;
use crate::machine::Machine;
use crate::own_group::MAX_GIVEN;
use crate::slab::Key;
use crate::sys;
use alcove_protocol::{ErrorBody, ErrorCode, Hello, Kind, Request, VERSIONS, Welcome};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

const CHUNK: usize = 64 * 1024;
/// Bytes read from one connection before the others get their turn.
const TURN: usize = 1 << 20;

pub const FEATURES: [&str; 13] = [
    "exec",
    "pty",
    "files",
    "archive",
    "glob",
    "watch",
    "dial",
    "limits",
    "input",
    "output_ack",
    "exec_group",
    "input_offset",
    "input_bytes",
];

enum Next {
    /// There may be another frame.
    More,
    /// Nothing more for now.
    Wait,
    Fail(ErrorBody),
}

impl Agent {
    pub fn receive(&mut self, key: Key) {
        if self.scratch.is_empty() {
            self.scratch = vec![0; CHUNK];
        }
        let mut turn = 0;
        while turn < TURN {
            let Some(connection) = self.connections.list.get_mut(key) else { return };
            if connection.stalled
                || connection.behind()
                || matches!(connection.operation, Operation::Lent | Operation::Closing | Operation::Killing(_))
            {
                break;
            }
            let socket = connection.fd.as_raw_fd();
            match sys::receive(socket, &mut self.scratch, &mut connection.given, MAX_GIVEN) {
                Ok(0) => return self.close(key),
                Ok(count) => {
                    turn += count;
                    connection.decoder.extend(&self.scratch[..count]);
                    self.decode(key);
                    if count < CHUNK {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return self.close(key),
            }
        }
        if let Some(connection) = self.connections.list.get_mut(key) {
            connection.decoder.shrink();
        }
        self.update_interest(key);
    }

    /// Works off the frames that have arrived whole.
    pub fn decode(&mut self, key: Key) {
        loop {
            match self.decode_one(key) {
                Next::More => {}
                Next::Wait => return,
                Next::Fail(error) => {
                    if let Some(connection) = self.connections.list.get_mut(key) {
                        // In the middle of an output frame an error could not be told from output.
                        if !matches!(&connection.operation, Operation::Following(follow) if follow.frame_left > 0) {
                            connection.push_error(&error);
                        }
                        let operation = std::mem::replace(&mut connection.operation, Operation::Closing);
                        if let Operation::Greeting(Some(timer)) = operation {
                            self.timers.cancel(timer);
                        }
                        self.detach(key, &operation);
                        self.mark(key);
                    }
                    return;
                }
            }
        }
    }

    fn decode_one(&mut self, key: Key) -> Next {
        let protocol = |message: String| Next::Fail(ErrorBody::new(ErrorCode::Protocol, message));
        let Some(connection) = self.connections.list.get_mut(key) else { return Next::Wait };
        if connection.stalled || connection.behind() {
            return Next::Wait;
        }
        if matches!(connection.operation, Operation::Lent | Operation::Killing(_) | Operation::Closing) {
            return Next::Wait;
        }
        let (kind, payload) = match connection.decoder.next_frame() {
            Ok(Some(found)) => found,
            Ok(None) => return Next::Wait,
            Err(error) => return protocol(error.to_string()),
        };
        match (&connection.operation, kind) {
            (Operation::Greeting(_), Kind::Hello) => match serde_json::from_slice::<Hello>(payload) {
                Ok(hello) => self.greet(key, &hello),
                Err(error) => protocol(format!("the hello cannot be read: {error}")),
            },
            (Operation::Idle { .. }, Kind::Request) => {
                // The request is read before anything else touches the decoder.
                match serde_json::from_slice::<Request>(payload) {
                    Ok(request) => {
                        connection.operation = Operation::Idle { drop_data: false };
                        self.serve(key, request);
                        Next::More
                    }
                    Err(error) => protocol(format!("the request cannot be read: {error}")),
                }
            }
            (Operation::Idle { drop_data: true }, Kind::Data | Kind::Eof | Kind::Ack) => Next::More,
            (Operation::Following(follow), Kind::Ack) if follow.acked.is_some() => match payload.try_into() {
                Ok(offset) => {
                    self.take_ack(key, u64::from_be_bytes(offset));
                    Next::More
                }
                Err(_) => protocol(format!("an ack has an offset of 8 bytes, not {}", payload.len())),
            },
            (Operation::Following(follow), Kind::Data | Kind::Eof) if follow.input => {
                let exec = follow.exec;
                let payload = payload.to_vec();
                self.take_input(key, exec, kind, &payload);
                Next::More
            }
            // A refused or merely reading follower: its input has nowhere to go.
            (Operation::Following(_) | Operation::Starting(_), Kind::Data | Kind::Eof) => Next::More,
            (Operation::Feeding { exec, .. }, Kind::Data | Kind::Eof) => {
                let exec = *exec;
                let payload = payload.to_vec();
                self.take_stdin(key, exec, kind, &payload);
                Next::More
            }
            (operation, kind) => {
                let state = match operation {
                    Operation::Greeting(_) => "before the hello",
                    Operation::Idle { .. } => "between operations",
                    _ => "during this operation",
                };
                protocol(format!("a {kind:?} frame is not allowed {state}"))
            }
        }
    }

    fn greet(&mut self, key: Key, hello: &Hello) -> Next {
        let Some(version) = VERSIONS.iter().rev().find(|version| hello.versions.contains(version)) else {
            let message = format!("the agent speaks the versions {VERSIONS:?}, the client {:?}", hello.versions);
            return Next::Fail(ErrorBody::new(ErrorCode::Version, message));
        };
        if self.connections.token.as_ref().is_some_and(|token| !same(token, &hello.token)) {
            return Next::Fail(ErrorBody::new(ErrorCode::Unauthorized, "the token is not this sandbox's"));
        }
        let Some(connection) = self.connections.list.get_mut(key) else { return Next::Wait };
        if let Operation::Greeting(Some(timer)) = connection.operation {
            self.timers.cancel(timer);
        }
        connection.operation = Operation::Idle { drop_data: false };
        let more = self.machine.as_ref().map_or(&[][..], Machine::features);
        connection.push_json(
            Kind::Welcome,
            &Welcome {
                version: *version,
                agent: env!("CARGO_PKG_VERSION").to_owned(),
                features: FEATURES.iter().chain(more).map(|feature| (*feature).to_owned()).collect(),
            },
        );
        self.mark(key);
        Next::More
    }
}

/// Compares without telling through its time how much was right.
fn same(expected: &str, given: &str) -> bool {
    let (expected, given) = (expected.as_bytes(), given.as_bytes());
    if expected.len() != given.len() {
        return false;
    }
    expected.iter().zip(given).fold(0u8, |difference, (a, b)| std::hint::black_box(difference | (a ^ b))) == 0
}
