//! A connection in the hands of a worker: blocking, one operation.

use super::Outcome;
use crate::connection::push_json;
use crate::sys;
use alcove_protocol::{Decoder, ErrorBody, ErrorCode, Event, Kind, MAX_DATA, frame};
use serde::Serialize;
use std::io::{self, Read};
use std::os::fd::RawFd;

/// Why an operation stops.
#[derive(Debug)]
pub enum Stop {
    /// The operation is refused; the connection stays good.
    Refused(ErrorBody),
    /// The peer is gone or spoke out of turn; the connection is closed.
    Gone,
}

impl From<ErrorBody> for Stop {
    fn from(error: ErrorBody) -> Self {
        Stop::Refused(error)
    }
}

pub type Served = Result<(), Stop>;

pub struct Channel {
    fd: RawFd,
    decoder: Decoder,
    out: Vec<u8>,
    /// Payload of the data frame being read: how much of it has not been handed out.
    data_left: usize,
    eof: bool,
}

const GATHER: usize = 64 * 1024;
const RECEIVE: usize = 256 * 1024;

impl Channel {
    pub fn new(fd: RawFd, decoder: Decoder, unsent: Vec<u8>) -> Self {
        Self { fd, decoder, out: unsent, data_left: 0, eof: false }
    }

    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// Whether bytes of the client wait here that the socket no longer shows.
    pub fn has_buffered(&self) -> bool {
        self.decoder.buffered() > 0
    }

    /// Whether nobody is left to take an answer, for operations that send nothing for long.
    pub fn is_abandoned(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd, events: 0, revents: 0 };
        // SAFETY: one valid entry.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        ready > 0 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0
    }

    fn push<T: Serialize>(&mut self, kind: Kind, payload: &T) -> Served {
        push_json(&mut self.out, kind, payload);
        if self.out.len() > GATHER {
            self.flush()?;
        }
        Ok(())
    }

    pub fn reply<T: Serialize>(&mut self, payload: &T) -> Served {
        self.push(Kind::Reply, payload)
    }

    pub fn event(&mut self, event: &Event) -> Served {
        self.push(Kind::Event, event)
    }

    pub fn flush(&mut self) -> Served {
        let mut sent = 0;
        while sent < self.out.len() {
            sent += sys::send_vectored(self.fd, &[&self.out[sent..]]).map_err(|_| Stop::Gone)?;
        }
        self.out.clear();
        Ok(())
    }

    pub fn frame(&mut self, kind: Kind, payload: &[u8]) -> Served {
        let header = frame::encode_header(kind, payload.len());
        let total = self.out.len() + header.len() + payload.len();
        let mut sent = 0;
        while sent < total {
            let mut skip = sent;
            let parts = [&self.out[..], &header[..], payload].map(|part| {
                let from = skip.min(part.len());
                skip -= from;
                &part[from..]
            });
            sent += sys::send_vectored(self.fd, &parts).map_err(|_| Stop::Gone)?;
        }
        self.out.clear();
        Ok(())
    }

    pub fn data(&mut self, bytes: &[u8]) -> Served {
        for piece in bytes.chunks(MAX_DATA) {
            self.frame(Kind::Data, piece)?;
        }
        Ok(())
    }

    /// Fills `buffer` with data that the client sends; 0 when it sent `eof`.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Stop> {
        while self.data_left == 0 && !self.eof {
            let (kind, length) = self.next_header()?;
            match kind {
                Kind::Data => self.data_left = length,
                Kind::Eof => self.eof = true,
                _ => return Err(Stop::Gone),
            }
        }
        if self.eof || buffer.is_empty() {
            return Ok(0);
        }
        let wanted = buffer.len().min(self.data_left);
        let buffered = self.decoder.take_raw(&mut buffer[..wanted]);
        let count = match buffered {
            0 => match sys::read(self.fd, &mut buffer[..wanted]) {
                Ok(count) if count > 0 => count,
                _ => return Err(Stop::Gone),
            },
            count => count,
        };
        self.data_left -= count;
        Ok(count)
    }

    /// Reads exactly a header, so that payloads go straight to where they are wanted.
    fn next_header(&mut self) -> Result<(Kind, usize), Stop> {
        let mut header = [0; frame::HEADER_LENGTH];
        let mut filled = self.decoder.take_raw(&mut header);
        while filled < header.len() {
            match sys::read(self.fd, &mut header[filled..]) {
                Ok(count) if count > 0 => filled += count,
                _ => return Err(Stop::Gone),
            }
        }
        frame::parse_header(&header).ok().flatten().ok_or(Stop::Gone)
    }

    /// Ends the operation: tells the client, and gives the connection back if it is still good.
    pub fn finish(mut self, result: Served) -> Outcome {
        let told = match result {
            Ok(()) => {
                frame::encode(&mut self.out, Kind::End, &[]);
                self.flush()
            }
            Err(Stop::Refused(error)) => {
                push_json(&mut self.out, Kind::Error, &error);
                // What is left of a half-read data frame would be taken for a header.
                self.skip_rest().and_then(|()| self.flush())
            }
            Err(Stop::Gone) => Err(Stop::Gone),
        };
        match told {
            Ok(()) => Outcome::Return(self.decoder),
            Err(_) => Outcome::Close,
        }
    }

    fn skip_rest(&mut self) -> Served {
        if self.data_left == 0 {
            return Ok(());
        }
        // The error goes out first: the client may stop sending when it sees it, but not within a frame.
        self.flush()?;
        let mut sink = vec![0; self.data_left.min(RECEIVE)];
        while self.data_left > 0 {
            self.receive(&mut sink)?;
        }
        Ok(())
    }
}

/// The client's data as a reader, for the tar library.
pub struct Incoming<'a> {
    pub channel: &'a mut Channel,
    pub gone: bool,
}

impl Read for Incoming<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.channel.receive(buffer).map_err(|_| {
            self.gone = true;
            io::Error::from(io::ErrorKind::ConnectionAborted)
        })
    }
}

pub fn refused(code: ErrorCode, message: impl Into<String>) -> Stop {
    Stop::Refused(ErrorBody::new(code, message))
}
