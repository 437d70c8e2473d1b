//! Programs of the kernel's packet filter, as far as seccomp needs them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

#[cfg(target_arch = "x86_64")]
pub const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub const AUDIT_ARCH: u32 = 0xc000_00b7;

pub const RET_ALLOW: u32 = 0x7fff_0000;
pub const RET_ERRNO: u32 = 0x0005_0000;
/// Whoever holds the listener decides.
pub const RET_ASK: u32 = 0x7fc0_0000;

pub const LOAD_WORD: u16 = 0x20;
pub const AND: u16 = 0x54;
pub const JUMP_EQUAL: u16 = 0x15;
pub const JUMP_GREATER_EQUAL: u16 = 0x35;
pub const JUMP_ANY_BIT: u16 = 0x45;
pub const JUMP: u16 = 0x05;
pub const RETURN: u16 = 0x06;

pub const NUMBER: u32 = 0;
pub const ARCH: u32 = 4;
/// Low half of an argument; these machines are little endian.
pub const fn argument(index: u32) -> u32 {
    16 + index * 8
}
pub const fn argument_high(index: u32) -> u32 {
    argument(index) + 4
}

#[derive(Default)]
pub struct Program(Vec<libc::sock_filter>);

/// So many calls are compared one after the other.
const LOOKED_THROUGH: usize = 3;

/// Rules by the number of the call; of several for one call the first holds. They are searched for: the kernel follows a filter for each call
/// there is when it is installed, and through a list of 150 rules that takes a quarter of a millisecond.
#[derive(Default)]
pub struct Calls(BTreeMap<u32, Program>);

impl Calls {
    /// Answers a call with `value`.
    pub fn when(&mut self, call: libc::c_long, value: u32) {
        self.only_for(call, |rules| rules.give(value));
    }
    /// Answers each of them with `value`.
    pub fn when_any(&mut self, calls: &[libc::c_long], value: u32) {
        for call in calls {
            self.when(*call, value);
        }
    }
    /// Adds `rules`, which end with a return, for one call.
    pub fn only_for(&mut self, call: libc::c_long, rules: impl FnOnce(&mut Program)) {
        self.0.entry(call as u32).or_insert_with(|| {
            let mut program = Program::default();
            rules(&mut program);
            debug_assert!(program.always_returns(), "the rules of call {call} go on with another's");
            program
        });
    }
}

impl Program {
    pub fn of(steps: Vec<libc::sock_filter>) -> Self {
        Self(steps)
    }
    pub fn into_steps(self) -> Vec<libc::sock_filter> {
        self.0
    }
    pub fn put(&mut self, code: u16, k: u32, jt: u8, jf: u8) {
        self.0.push(libc::sock_filter { code, jt, jf, k });
    }
    pub fn load(&mut self, offset: u32) {
        self.put(LOAD_WORD, offset, 0, 0);
    }
    pub fn give(&mut self, value: u32) {
        self.put(RETURN, value, 0, 0);
    }
    /// Returns `value` when the loaded word equals `k`.
    pub fn when(&mut self, k: u32, value: u32) {
        self.put(JUMP_EQUAL, k, 0, 1);
        self.give(value);
    }
    /// Returns `value` when the loaded word is one of `words`.
    pub fn when_any(&mut self, words: &[u32], value: u32) {
        let Some((last, others)) = words.split_last() else { return };
        for (index, word) in others.iter().enumerate() {
            let to_return = u8::try_from(others.len() - index).expect("words are few");
            self.put(JUMP_EQUAL, *word, to_return, 0);
        }
        self.when(*last, value);
    }
    /// Adds `rules`, which end with a return, for when the loaded word equals `k`.
    pub fn block(&mut self, k: u32, rules: impl FnOnce(&mut Program)) {
        let mut inner = Program(Vec::new());
        rules(&mut inner);
        let skip = u8::try_from(inner.0.len()).expect("rules of one call are few");
        self.put(JUMP_EQUAL, k, 0, skip);
        self.0.append(&mut inner.0);
    }

    /// Whether nothing leads out of it: behind the rules of one call are those of the next, and at last the answer for calls that have none.
    fn always_returns(&self) -> bool {
        let inside = |target: usize| target < self.0.len();
        self.0.iter().enumerate().all(|(at, step)| match step.code {
            RETURN => true,
            JUMP => inside(at + 1 + step.k as usize),
            JUMP_EQUAL | JUMP_GREATER_EQUAL | JUMP_ANY_BIT => {
                [step.jt, step.jf].into_iter().all(|far| inside(at + 1 + usize::from(far)))
            }
            _ => inside(at + 1),
        })
    }

    /// Goes on with the rules of the loaded number of a call, and with `otherwise` where there are none.
    pub fn go_by(&mut self, calls: &Calls, otherwise: u32) {
        let calls: Vec<_> = calls.0.iter().map(|(call, rules)| (*call, rules)).collect();
        self.search(&calls, otherwise);
    }
    fn search(&mut self, calls: &[(u32, &Program)], otherwise: u32) {
        if calls.len() <= LOOKED_THROUGH {
            for (call, rules) in calls {
                self.put(JUMP_EQUAL, *call, 0, u8::try_from(rules.0.len()).expect("rules of one call are few"));
                self.0.extend_from_slice(&rules.0);
            }
            return self.give(otherwise);
        }
        let (lower, upper) = calls.split_at(calls.len() / 2);
        let mut below = Program::default();
        below.search(lower, otherwise);
        // A condition reaches 255 instructions far.
        self.put(JUMP_GREATER_EQUAL, upper[0].0, 0, 1);
        self.put(JUMP, below.0.len() as u32, 0, 0);
        self.0.append(&mut below.0);
        self.search(upper, otherwise);
    }

    /// Makes it a filter of this process and of all it starts. Needs no_new_privs.
    pub fn install(&self) -> io::Result<()> {
        self.set(0).map(drop)
    }

    /// The same; who holds the descriptor is asked where the program says so. A process has at most one above it.
    pub fn install_with_listener(&self) -> io::Result<OwnedFd> {
        const NEW_LISTENER: u32 = 1 << 3;
        // Once asked, only what ends a program interrupts its call; Linux before 5.19 answers EINTR to others' signals.
        const WAIT_KILLABLE_RECV: u32 = 1 << 5;
        let fd = self.set(NEW_LISTENER | WAIT_KILLABLE_RECV).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => self.set(NEW_LISTENER),
            _ => Err(error),
        })?;
        // SAFETY: the kernel has just made this descriptor and nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
    }

    fn set(&self, flags: u32) -> io::Result<libc::c_long> {
        let program = libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_ptr().cast_mut() };
        const SET_MODE_FILTER: u32 = 1;
        // SAFETY: the program and its instructions are alive through the call.
        let result = unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const program) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    #[cfg(test)]
    pub fn steps(&self) -> &[libc::sock_filter] {
        &self.0
    }
}

/// Runs the program as the kernel would.
#[cfg(test)]
pub fn run(program: &Program, call: libc::c_long, arch: u32, arguments: [u64; 6]) -> u32 {
    let filter = program.steps();
    let (mut at, mut word) = (0usize, 0u32);
    loop {
        let step = filter[at];
        at += 1;
        match step.code {
            LOAD_WORD => {
                word = match step.k {
                    NUMBER => call as u32,
                    ARCH => arch,
                    offset => {
                        let argument = arguments[((offset - 16) / 8) as usize];
                        (if offset % 8 == 4 { argument >> 32 } else { argument }) as u32
                    }
                }
            }
            AND => word &= step.k,
            JUMP => at += step.k as usize,
            RETURN => return step.k,
            code => {
                let holds = match code {
                    JUMP_EQUAL => word == step.k,
                    JUMP_GREATER_EQUAL => word >= step.k,
                    JUMP_ANY_BIT => word & step.k != 0,
                    _ => panic!("unknown instruction {code:#x}"),
                };
                at += usize::from(if holds { step.jt } else { step.jf });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_answered_by_its_first_rules_however_many_there_are() {
        for count in 0..40 {
            let mut calls = Calls::default();
            // In no order, and far apart: what is between them has no rules.
            for call in (0..count).map(|index| (index * 23) % 97 * 3) {
                calls.only_for(call, |rules| {
                    rules.load(argument(0));
                    rules.when(1, 1_000 + call as u32);
                    rules.give(2_000 + call as u32);
                });
                calls.when(call, 9);
            }
            let mut program = Program::default();
            program.load(NUMBER);
            program.go_by(&calls, 7);
            for call in 0..300 {
                let known = calls.0.contains_key(&(call as u32));
                for (first, base) in [(1, 1_000), (0, 2_000)] {
                    let wanted = if known { base + call as u32 } else { 7 };
                    assert_eq!(run(&program, call, AUDIT_ARCH, [first; 6]), wanted, "{call} of {count}");
                }
            }
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "the rules of call 3 go on with another's")]
    fn rules_that_may_not_end_are_refused() {
        Calls::default().only_for(3, |rules| {
            rules.load(argument(0));
            rules.when(1, RET_ERRNO);
        });
    }
}
