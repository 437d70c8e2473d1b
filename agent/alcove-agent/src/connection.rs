//! A client's connection: what it sent and is not decoded yet, what waits to be sent, and the operation it carries.

use crate::slab::Key;
use crate::timers::TimerId;
use alcove_protocol::{Decoder, ErrorBody, Event, Kind, frame};
use serde::Serialize;
use std::os::fd::OwnedFd;

/// Bytes of answers that may wait while further requests are taken.
const MAX_WAITING: usize = 64 * 1024;

/// Following the output of an exec.
#[derive(Debug)]
pub struct Follow {
    pub exec: Key,
    /// Offset of the next byte to send.
    pub cursor: u64,
    /// Where an attach without `follow` stops.
    pub until: Option<u64>,
    pub lossless: bool,
    /// Of a lossless follower that acknowledges: what is before this has been handed on.
    pub acked: Option<u64>,
    /// Keeps a grace from ending the command.
    pub holds: bool,
    /// False until the reply has been queued: output must not overtake it.
    pub replied: bool,
    /// Whether standard input may come from this connection.
    pub input: bool,
    /// Of a named input: how much of it the client was told was taken.
    pub told: Option<u64>,
    /// What is left to send, from `cursor` on, of a frame whose header is out already. Only of a lossless follower:
    /// the journal keeps it for him.
    pub frame_left: usize,
}

/// The operation on a connection. One at a time.
#[derive(Debug)]
pub enum Operation {
    /// Waits for the hello.
    Greeting(Option<TimerId>),
    /// Waits for a request. Data that was on its way when the last operation ended is dropped.
    Idle {
        drop_data: bool,
    },
    /// `exec.start` without `follow`, until its reply.
    Starting(Key),
    Following(Follow),
    /// `exec.stdin`: bytes taken over so far.
    Feeding {
        exec: Key,
        written: u64,
        /// The input has a name: what was taken of it earlier is skipped.
        named: bool,
    },
    Killing(Key),
    /// `sandbox.events`: stays until one side closes.
    Listening,
    /// A worker thread has the socket.
    Lent,
    /// Closed as soon as what waits has been sent.
    Closing,
}

pub struct Connection {
    pub fd: OwnedFd,
    pub decoder: Decoder,
    /// Descriptors that came along, for the request they belong to.
    pub given: Vec<OwnedFd>,
    pub out: Vec<u8>,
    pub sent: usize,
    pub operation: Operation,
    /// What epoll watches for.
    pub interest: u32,
    /// Standard input that found no room: nothing more is read until there is some.
    pub stalled: bool,
    pub dirty: bool,
    /// The socket is full: there is more to send once it takes something, be it here or in a journal.
    pub full: bool,
}

impl Connection {
    pub fn new(fd: OwnedFd, greeting: TimerId, interest: u32) -> Self {
        Self {
            fd,
            decoder: Decoder::new(),
            given: Vec::new(),
            out: Vec::new(),
            sent: 0,
            operation: Operation::Greeting(Some(greeting)),
            interest,
            stalled: false,
            dirty: false,
            full: false,
        }
    }

    pub fn waiting(&self) -> usize {
        self.out.len() - self.sent
    }

    /// So many answers wait that no further request is taken until the client has read some.
    pub fn behind(&self) -> bool {
        matches!(self.operation, Operation::Idle { .. }) && self.waiting() > MAX_WAITING
    }

    pub fn push(&mut self, kind: Kind, payload: &[u8]) {
        frame::encode(&mut self.out, kind, payload);
    }

    pub fn push_json<T: Serialize>(&mut self, kind: Kind, payload: &T) {
        push_json(&mut self.out, kind, payload);
    }

    pub fn push_event(&mut self, event: &Event) {
        self.push_json(Kind::Event, event);
    }

    pub fn push_error(&mut self, error: &ErrorBody) {
        self.push_json(Kind::Error, error);
    }
}

/// Appends a frame that carries JSON. A reply too long for a frame becomes an error.
pub fn push_json<T: Serialize>(out: &mut Vec<u8>, kind: Kind, payload: &T) {
    let start = out.len();
    out.extend_from_slice(&[0; frame::HEADER_LENGTH]);
    let written = serde_json::to_writer(&mut *out, payload);
    let length = out.len() - start - frame::HEADER_LENGTH;
    if written.is_err() || length > frame::MAX_JSON {
        out.truncate(start);
        let error = ErrorBody::new(
            alcove_protocol::ErrorCode::TooLarge,
            format!("the answer has {length} bytes, more than the {} of a frame", frame::MAX_JSON),
        );
        let text = serde_json::to_vec(&error).unwrap_or_default();
        frame::encode(out, Kind::Error, &text);
        return;
    }
    out[start..start + frame::HEADER_LENGTH].copy_from_slice(&frame::encode_header(kind, length));
}
