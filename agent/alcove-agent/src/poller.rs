//! epoll, and the tokens that tell what became ready.

use crate::slab::Key;
use crate::sys;
use std::io::Result;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Listener,
    Signals,
    Timers,
    Workers,
    SocketGrants,
    Connection(Key),
    ExecStdout(Key),
    ExecStderr(Key),
    ExecStdin(Key),
    Monitor(Key),
}

impl Source {
    fn token(self) -> u64 {
        let pack =
            |kind: u64, key: Key| kind << 56 | u64::from(key.index & 0xff_ffff) << 32 | u64::from(key.generation);
        match self {
            Source::Listener => 0,
            Source::Signals => 1 << 56,
            Source::Timers => 2 << 56,
            Source::Workers => 3 << 56,
            Source::Connection(key) => pack(4, key),
            Source::ExecStdout(key) => pack(5, key),
            Source::ExecStderr(key) => pack(6, key),
            Source::ExecStdin(key) => pack(7, key),
            Source::Monitor(key) => pack(8, key),
            Source::SocketGrants => 9 << 56,
        }
    }

    fn from_token(token: u64) -> Source {
        let key = Key { index: (token >> 32) as u32 & 0xff_ffff, generation: token as u32 };
        match token >> 56 {
            0 => Source::Listener,
            1 => Source::Signals,
            2 => Source::Timers,
            3 => Source::Workers,
            4 => Source::Connection(key),
            5 => Source::ExecStdout(key),
            6 => Source::ExecStderr(key),
            7 => Source::ExecStdin(key),
            9 => Source::SocketGrants,
            _ => Source::Monitor(key),
        }
    }
}

pub const READ: u32 = libc::EPOLLIN as u32;
pub const WRITE: u32 = libc::EPOLLOUT as u32;
pub const PEER_GONE: u32 = libc::EPOLLRDHUP as u32;
pub const HANG_UP: u32 = libc::EPOLLHUP as u32 | libc::EPOLLERR as u32;

pub struct Poller {
    epoll: OwnedFd,
}

const BATCH: usize = 64;

impl Poller {
    pub fn new() -> Result<Self> {
        // SAFETY: a fresh descriptor.
        let epoll = unsafe { OwnedFd::from_raw_fd(sys::check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Self { epoll })
    }

    fn control(&self, operation: i32, fd: RawFd, source: Source, interest: u32) -> Result<()> {
        let mut event = libc::epoll_event { events: interest, u64: source.token() };
        // SAFETY: both descriptors are open.
        sys::check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &mut event) }).map(|_| ())
    }

    pub fn add(&self, fd: RawFd, source: Source, interest: u32) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, source, interest)
    }

    pub fn change(&self, fd: RawFd, source: Source, interest: u32) -> Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, source, interest)
    }

    /// Must come before the close: a monitor forked in between may still hold the file open.
    pub fn remove(&self, fd: RawFd) {
        // A descriptor that was not watched is fine.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, Source::Listener, 0);
    }

    /// Collects events into `ready`; without one it waits for the first, if it is to.
    pub fn wait(&self, ready: &mut Vec<(Source, u32)>, patient: bool) -> Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        ready.clear();
        let limit = if patient { -1 } else { 0 };
        // SAFETY: the array is valid for its length.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), BATCH as i32, limit) };
        match sys::check(count) {
            Ok(count) => {
                ready.extend(events[..count as usize].iter().map(|event| (Source::from_token(event.u64), event.events)))
            }
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
