//! Sockets that tell of interfaces and routes (`NETLINK_ROUTE`): libraries ask them at everyday calls, but answers that
//! nobody takes wait in them, some 200 KB in each, and are counted for no control group. The system call filter asks the
//! agent for each, who lets a sandbox have few at a time.

use crate::sys;
use std::collections::VecDeque;
use std::io::Result;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// So many of these a sandbox has at most, and of others that the kernel counts for no protocol: TCP and UDP sockets
/// before they have an address.
const MOST: usize = 256;
/// What was granted is a socket by then.
const GRANTED_MS: u64 = 100;
/// Who cannot have one waits so long for another to go, also out of the kernel's count, which takes its time.
const HELD_MS: u64 = 1_000;
/// Until held questions are looked at again.
pub const AGAIN_MS: u64 = 10;

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

/// Somebody who waits for an answer.
struct Held {
    id: u64,
    thread: u32,
    until: u64,
}

pub struct RouteSockets {
    listener: OwnedFd,
    /// Threads that were granted a socket that may not be among those that the kernel counts yet, and when.
    granted: VecDeque<(u32, u64)>,
    held: Vec<Held>,
}

impl RouteSockets {
    pub fn new(listener: OwnedFd) -> Self {
        Self { listener, granted: VecDeque::new(), held: Vec::new() }
    }

    pub fn fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Takes one question and answers it, or holds the answer back: then the caller is to come [`again`](Self::again).
    /// Only to be called when one waits; who asked may be gone by now.
    pub fn take(&mut self) -> Result<bool> {
        let mut question = Question::default();
        // SAFETY: the kernel fills a struct of this size.
        sys::check(unsafe { libc::ioctl(self.fd(), RECEIVE as libc::Ioctl, &raw mut question) })?;
        // A thread that asks again has what it was granted, or had it.
        self.granted.retain(|(thread, _)| *thread != question.pid);
        let was_idle = self.held.is_empty();
        self.held.push(Held { id: question.id, thread: question.pid, until: sys::boottime_ms() + HELD_MS });
        Ok(was_idle && self.again())
    }

    /// Answers those held back who can be by now. Whether any are left.
    pub fn again(&mut self) -> bool {
        let now = sys::boottime_ms();
        while self.granted.front().is_some_and(|(_, at)| at + GRANTED_MS < now) {
            self.granted.pop_front();
        }
        let read = |path| {
            let table = sys::read_small(path, 16 * 1024).unwrap_or_default();
            String::from_utf8_lossy(&table).into_owned()
        };
        let there = uncounted(&read(c"/proc/net/sockstat"), &read(c"/proc/net/protocols"));
        for held in std::mem::take(&mut self.held) {
            if there.is_none_or(|there| there + self.granted.len() < MOST) {
                self.granted.push_back((held.thread, now));
                self.send(&Answer { id: held.id, value: 0, error: 0, flags: CONTINUE });
            } else if held.until <= now {
                self.send(&Answer { id: held.id, value: 0, error: -libc::ENOBUFS, flags: 0 });
            } else {
                self.held.push(held);
            }
        }
        !self.held.is_empty()
    }

    fn send(&self, answer: &Answer) {
        // SAFETY: the kernel reads a struct of this size. Who asked may be gone.
        unsafe { libc::ioctl(self.fd(), SEND as libc::Ioctl, &raw const *answer) };
    }
}

/// Sockets of this network but those that the kernel counts for another protocol.
fn uncounted(sockets: &str, protocols: &str) -> Option<usize> {
    let used: usize = sockets.lines().find_map(|line| line.strip_prefix("sockets: used ")?.trim().parse().ok())?;
    let (mut others, mut routes) = (0, 0);
    for line in protocols.lines().skip(1) {
        let mut words = line.split_ascii_whitespace();
        let (name, count) = (words.next(), words.nth(1).and_then(|word| word.parse::<usize>().ok()).unwrap_or(0));
        *(if name == Some("NETLINK") { &mut routes } else { &mut others }) += count;
    }
    // The tables were read one after the other.
    Some(used.saturating_sub(others).max(routes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_spoken_to_in_its_own_numbers() {
        assert_eq!((RECEIVE, SEND), (0xc050_2100, 0xc018_2101));
    }

    #[test]
    fn sockets_of_other_protocols_do_not_count() {
        let protocols = "protocol  size sockets  memory press\nUNIX-STREAM 1152 57 -1 NI\nTCP 2304 13 389 no\nNETLINK 1096 4 -1 NI\n";
        assert_eq!(uncounted("sockets: used 78\nTCP: inuse 13\n", protocols), Some(8));
        assert_eq!(uncounted("sockets: used 70\n", protocols), Some(4));
        assert_eq!(uncounted("sockets: used 70\n", ""), Some(70));
        assert_eq!(uncounted("", protocols), None);
    }
}
