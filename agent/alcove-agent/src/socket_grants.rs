//! Sockets in which memory waits that is counted for no control group. Those that tell of interfaces and routes
//! (`NETLINK_ROUTE`), which libraries ask at everyday calls, hold answers that nobody takes, some 200 KB each. Those of
//! datagrams hold one that is never finished (`MSG_MORE`): 17 pieces, which hold up to 32 KB each however small they are. The
//! system call filter asks the agent for each, who lets a sandbox have so many at a time.

use crate::sys;
use std::collections::VecDeque;
use std::io::Result;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// So many that tell of routes a sandbox has at most, and of others that the kernel counts for no protocol: TCP and UDP
/// sockets before they have an address.
const MOST_ROUTES: usize = 256;
/// For datagrams, where nobody says how many.
pub const MOST_DATAGRAMS: usize = 128;
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

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Routes,
    Datagrams,
}

impl Kind {
    /// What the kernel calls the protocols of such sockets that have an address.
    const fn names(self) -> &'static [&'static str] {
        match self {
            Kind::Routes => &["NETLINK"],
            Kind::Datagrams => &["UDP", "UDPv6", "PING", "PINGv6"],
        }
    }
}

/// Somebody who waits for an answer.
struct Held {
    id: u64,
    thread: u32,
    kind: Kind,
    until: u64,
}

/// A socket that may not be among those that the kernel counts yet.
struct Granted {
    thread: u32,
    kind: Kind,
    at: u64,
}

pub struct SocketGrants {
    listener: OwnedFd,
    routes: Allowance,
    datagrams: Allowance,
    granted: VecDeque<Granted>,
    held: Vec<Held>,
}

/// The kernel's count has sockets of other kinds in it: those for connections before they have an address. So it says at most
/// how many of one kind there are; so does the number of those that were granted since it was last lower.
struct Allowance {
    most: usize,
    there: usize,
}

impl Allowance {
    /// Whether one more is to be had, which is then there, where the kernel counts so many that may be of this kind.
    fn take(&mut self, counted: usize) -> bool {
        self.there = self.there.min(counted);
        let fits = self.there < self.most;
        self.there += usize::from(fits);
        fits
    }
}

impl SocketGrants {
    pub fn new(listener: OwnedFd, most_datagrams: usize) -> Self {
        let none_of = |most| Allowance { most, there: 0 };
        let (routes, datagrams) = (none_of(MOST_ROUTES), none_of(most_datagrams));
        Self { listener, routes, datagrams, granted: VecDeque::new(), held: Vec::new() }
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
        self.granted.retain(|granted| granted.thread != question.pid);
        let was_idle = self.held.is_empty();
        // After the number of the call and where it was made come its arguments.
        let kind = if question.call[2] as i32 == libc::AF_NETLINK { Kind::Routes } else { Kind::Datagrams };
        self.held.push(Held { id: question.id, thread: question.pid, kind, until: sys::boottime_ms() + HELD_MS });
        Ok(was_idle && self.again())
    }

    /// Answers those held back who can be by now. Whether any are left.
    pub fn again(&mut self) -> bool {
        let now = sys::boottime_ms();
        while self.granted.front().is_some_and(|granted| granted.at + GRANTED_MS < now) {
            self.granted.pop_front();
        }
        let read = |path| {
            let table = sys::read_small(path, 16 * 1024).unwrap_or_default();
            String::from_utf8_lossy(&table).into_owned()
        };
        let (sockets, protocols) = (read(c"/proc/net/sockstat"), read(c"/proc/net/protocols"));
        for held in std::mem::take(&mut self.held) {
            let granted = self.granted.iter().filter(|granted| granted.kind == held.kind).count();
            let allowance = if held.kind == Kind::Routes { &mut self.routes } else { &mut self.datagrams };
            if there(held.kind, &sockets, &protocols).is_none_or(|there| allowance.take(there + granted)) {
                self.granted.push_back(Granted { thread: held.thread, kind: held.kind, at: now });
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

/// Sockets of this network but those that the kernel counts for protocols of other kinds.
fn there(kind: Kind, sockets: &str, protocols: &str) -> Option<usize> {
    let used: usize = sockets.lines().find_map(|line| line.strip_prefix("sockets: used ")?.trim().parse().ok())?;
    let (mut others, mut own) = (0, 0);
    for line in protocols.lines().skip(1) {
        let mut words = line.split_ascii_whitespace();
        let (name, count) = (words.next(), words.nth(1).and_then(|word| word.parse::<usize>().ok()).unwrap_or(0));
        *(if name.is_some_and(|name| kind.names().contains(&name)) { &mut own } else { &mut others }) += count;
    }
    // The tables were read one after the other.
    Some(used.saturating_sub(others).max(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_spoken_to_in_its_own_numbers() {
        assert_eq!((RECEIVE, SEND), (0xc050_2100, 0xc018_2101));
    }

    #[test]
    fn sockets_of_other_kinds_do_not_take_the_place_of_these() {
        let mut datagrams = Allowance { most: 64, there: 0 };
        // Hundreds of sockets for connections, without an address yet.
        assert_eq!((0..100).filter(|_| datagrams.take(300)).count(), 64);
        // Those are gone, and all but ten of the others.
        assert_eq!((0..100).filter(|more| datagrams.take(10 + more.min(&54))).count(), 54);
        assert!(!datagrams.take(300));
        assert!(datagrams.take(0));
    }

    #[test]
    fn sockets_of_other_protocols_do_not_count() {
        let protocols = "protocol  size sockets  memory press\nUNIX-STREAM 1152 57 -1 NI\nUDPv6 1472 3 2 NI\nUDP 1344 2 2 NI\nTCP 2304 13 389 no\nNETLINK 1096 4 -1 NI\n";
        assert_eq!(there(Kind::Routes, "sockets: used 83\nTCP: inuse 13\n", protocols), Some(8));
        assert_eq!(there(Kind::Datagrams, "sockets: used 83\nTCP: inuse 13\n", protocols), Some(9));
        assert_eq!(there(Kind::Routes, "sockets: used 70\n", protocols), Some(4));
        assert_eq!(there(Kind::Datagrams, "sockets: used 70\n", protocols), Some(5));
        assert_eq!(there(Kind::Routes, "sockets: used 70\n", ""), Some(70));
        assert_eq!(there(Kind::Datagrams, "", protocols), None);
    }
}
