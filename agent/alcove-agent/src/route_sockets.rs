//! Sockets that tell of interfaces and routes (`NETLINK_ROUTE`): libraries ask them at everyday calls, but answers that
//! nobody takes wait in them, some 200 KB in each, and are counted for no control group. The system call filter asks the
//! agent for each, who lets a sandbox have few at a time.

use crate::sys;
use std::collections::VecDeque;
use std::io::Result;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// So many sockets of any kind a sandbox may have and get another one of these: the kernel tells their number alone.
const MOST: usize = 256;
/// What was granted is a socket by then.
const GRANTED_MS: u64 = 100;

#[repr(C)]
#[derive(Default)]
struct Question {
    id: u64,
    pid: u32,
    flags: u32,
    call: [u64; 8],
}

#[repr(C)]
struct Answer {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

const fn both_ways(number: u32, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | (b'!' as u64) << 8 | number as u64
}
const RECEIVE: u64 = both_ways(0, size_of::<Question>());
const SEND: u64 = both_ways(1, size_of::<Answer>());
/// The call is made as it was asked for.
const CONTINUE: u32 = 1;

pub struct RouteSockets {
    listener: OwnedFd,
    /// When sockets were granted that may not be among those that the kernel counts yet.
    granted: VecDeque<u64>,
}

impl RouteSockets {
    pub fn new(listener: OwnedFd) -> Self {
        Self { listener, granted: VecDeque::new() }
    }

    pub fn fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Answers one question. Only to be called when one waits; who asked may be gone by now.
    pub fn answer(&mut self) -> Result<()> {
        let mut question = Question::default();
        // SAFETY: the kernel fills a struct of this size.
        sys::check(unsafe { libc::ioctl(self.fd(), RECEIVE as libc::Ioctl, &raw mut question) })?;
        let granted = self.grants();
        let mut answer = Answer { id: question.id, value: 0, error: 0, flags: 0 };
        if granted {
            answer.flags = CONTINUE
        } else {
            answer.error = -libc::ENOBUFS
        }
        // SAFETY: the kernel reads a struct of this size.
        sys::check(unsafe { libc::ioctl(self.fd(), SEND as libc::Ioctl, &raw mut answer) }).map(drop)
    }

    fn grants(&mut self) -> bool {
        let now = sys::boottime_ms();
        while self.granted.front().is_some_and(|at| at + GRANTED_MS < now) {
            self.granted.pop_front();
        }
        let table = sys::read_small(c"/proc/net/sockstat", 4096).unwrap_or_default();
        let grants = used(&String::from_utf8_lossy(&table)).is_none_or(|used| used + self.granted.len() < MOST);
        if grants {
            self.granted.push_back(now);
        }
        grants
    }
}

/// Sockets of this network, of all kinds.
fn used(table: &str) -> Option<usize> {
    table.lines().find_map(|line| line.strip_prefix("sockets: used ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_spoken_to_in_its_own_numbers() {
        assert_eq!((RECEIVE, SEND), (0xc050_2100, 0xc018_2101));
        assert_eq!(used("sockets: used 12\nTCP: inuse 1\n"), Some(12));
        assert_eq!(used("TCP: inuse 1\n"), None);
    }
}
