//! On which processors threads run.

use std::io;

use crate::{check, errno_is};

/// Some of the machine's processors.
#[derive(Clone, Copy)]
pub struct Processors(libc::cpu_set_t);

impl Processors {
    /// Those that this thread may use.
    pub fn of_this_thread() -> io::Result<Self> {
        // SAFETY: the set is alive through the call, and as large as is said.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            check(libc::sched_getaffinity(0, size_of_val(&set), &mut set) as libc::c_long)?;
            Ok(Self(set))
        }
    }

    /// What this thread is given back when it has kept to fewer: all of the machine's where nobody has chosen some for it, by `taskset` say.
    /// What a thread was given by number it keeps for good, and all that it starts, also when its groups are allowed more later. A choice
    /// that holds all that its groups allow at the moment is not seen.
    pub fn to_give_back() -> io::Result<Self> {
        let now = Self::of_this_thread()?;
        let all = Self::all();
        all.give_to(0)?;
        if Self::of_this_thread()?.is_same(&now) {
            return Ok(all);
        }
        now.give_to(0)?;
        Ok(now)
    }

    /// As `give_to`; where none of them is allowed any more, whatever is. Async-signal-safe.
    pub fn give_back_to(&self, thread: i32) -> io::Result<()> {
        // Refused as well, since Linux 6.2, while what its groups allow is being changed: that passes.
        const ATTEMPTS: usize = 4;
        let mut given = Ok(());
        for set in [*self; ATTEMPTS].into_iter().chain([Self::all(); ATTEMPTS]) {
            given = set.give_to(thread);
            if !given.as_ref().is_err_and(|error| errno_is(error, libc::EINVAL)) {
                break;
            }
        }
        given
    }

    fn all() -> Self {
        // SAFETY: a set without any is valid, and each number is in range.
        unsafe {
            let mut all: libc::cpu_set_t = std::mem::zeroed();
            (0..libc::CPU_SETSIZE as usize).for_each(|processor| libc::CPU_SET(processor, &mut all));
            Self(all)
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        // SAFETY: plain comparison.
        unsafe { libc::CPU_EQUAL(&self.0, &other.0) }
    }

    pub fn only(processor: usize) -> Self {
        // SAFETY: a set without any is valid.
        let mut only = Self(unsafe { std::mem::zeroed() });
        if processor < libc::CPU_SETSIZE as usize {
            // SAFETY: it is in range.
            unsafe { libc::CPU_SET(processor, &mut only.0) };
        }
        only
    }

    fn without(&self, processor: usize) -> Self {
        let mut left = *self;
        if processor < libc::CPU_SETSIZE as usize {
            // SAFETY: it is in range.
            unsafe { libc::CPU_CLR(processor, &mut left.0) };
        }
        left
    }

    fn is_empty(&self) -> bool {
        // SAFETY: plain count.
        unsafe { libc::CPU_COUNT(&self.0) == 0 }
    }

    /// Async-signal-safe.
    /// @param thread 0: this one.
    pub fn give_to(&self, thread: i32) -> io::Result<()> {
        // SAFETY: the set is alive through the call, and as large as is said.
        check(unsafe { libc::sched_setaffinity(thread, size_of_val(&self.0), &self.0) } as libc::c_long).map(drop)
    }
}

/// The processor that this thread runs on.
pub fn processor() -> io::Result<usize> {
    // SAFETY: no arguments.
    check(unsafe { libc::sched_getcpu() } as libc::c_long).map(|number| number as usize)
}

/// Has a thread that is on a processor go on, or begin, on another one, where this one may use others. A new process is left on its maker's
/// mostly and waits there until that sleeps, or has it wait; where few are left to choose from, beside a free one too. From then on it may
/// run wherever it might before.
/// @param thread 0: this one.
/// @param all what it is given back. Not asked for here: somebody else may have that thread leave just now.
pub fn leave_processor(thread: i32, processor: usize, all: &Processors) -> io::Result<()> {
    let others = all.without(processor);
    if others.is_empty() {
        return Ok(());
    }
    match others.give_to(thread) {
        // Its group has this one alone, or is given others just now: it may have been narrowed all the same.
        Err(error) if errno_is(&error, libc::EINVAL) => {}
        // One that is elsewhere stays there.
        other => other?,
    }
    all.give_back_to(thread)
}
