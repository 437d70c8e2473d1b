//! `alcove-agent stdio`: standard input and output as a connection to the agent's socket.

use crate::sys;
use std::io::Result;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

const CHUNK: usize = 64 * 1024;

/// Copies both ways until the agent closes, or standard input ends and everything has been answered.
pub fn run(path: &str) -> Result<()> {
    let stream = UnixStream::connect(path)?;
    let socket = stream.as_raw_fd();
    let mut buffer = vec![0; CHUNK];
    let mut input_open = true;
    loop {
        let entry = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polls = [entry(socket), entry(if input_open { 0 } else { -1 })];
        // SAFETY: two valid entries.
        match sys::check(unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) }) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            result => result?,
        };
        if polls[0].revents != 0 {
            let count = sys::read(socket, &mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            sys::write_all(1, &buffer[..count])?;
        }
        if polls[1].revents != 0 {
            let count = sys::read(0, &mut buffer)?;
            if count == 0 {
                // The peer of a bridge that ends its input is gone: so is this connection.
                return Ok(());
            }
            input_open = true;
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                let sent = sys::send_vectored(socket, &[rest])?;
                rest = &rest[sent..];
            }
        }
    }
}
