//! Deadlines on CLOCK_BOOTTIME: they go on while the machine sleeps, and nobody inside can set that clock.

use crate::sys;
use std::collections::BTreeMap;
use std::io::Result;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerId(u64, u64);

impl TimerId {
    /// Belongs to no timer.
    pub const NONE: TimerId = TimerId(u64::MAX, u64::MAX);
}

pub struct Timers<T> {
    fd: OwnedFd,
    queue: BTreeMap<TimerId, T>,
    next: u64,
    armed: Option<u64>,
}

impl<T> Timers<T> {
    pub fn new() -> Result<Self> {
        // SAFETY: a fresh descriptor; a kernel without timers on CLOCK_BOOTTIME has them on CLOCK_MONOTONIC.
        let fd = unsafe {
            let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
            let fd = sys::check(libc::timerfd_create(libc::CLOCK_BOOTTIME, flags))
                .or_else(|_| sys::check(libc::timerfd_create(libc::CLOCK_MONOTONIC, flags)))?;
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Self { fd, queue: BTreeMap::new(), next: 0, armed: None })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// `what` comes out of [`Timers::due`] once `after_ms` have passed.
    pub fn add(&mut self, after_ms: u64, what: T) -> TimerId {
        let id = TimerId(sys::boottime_ms().saturating_add(after_ms), self.next);
        self.next += 1;
        self.queue.insert(id, what);
        self.arm();
        id
    }

    pub fn cancel(&mut self, id: TimerId) {
        // The descriptor stays armed: one needless wake-up costs less than a system call for every timer.
        self.queue.remove(&id);
    }

    /// Takes one timer that was due at `now`. The caller asks until there is none, always with the same `now`: timers that
    /// come due meanwhile wait for another turn, so that they cannot keep it from anything else.
    pub fn due(&mut self, now: u64) -> Option<T> {
        let (id, _) = self.queue.first_key_value()?;
        if id.0 > now {
            return None;
        }
        self.queue.pop_first().map(|(_, what)| what)
    }

    /// To be called when the descriptor became readable, before asking what is due.
    pub fn acknowledge(&mut self) {
        let mut count = [0; 8];
        // Nothing to read is fine: the timer may have been set again in between.
        let _ = sys::read(self.fd(), &mut count);
        self.armed = None;
    }

    /// Sets the descriptor anew, whatever became of what it was set to.
    pub fn rearm(&mut self) {
        self.armed = None;
        self.arm();
    }

    /// To be called after the last `due`.
    pub fn arm(&mut self) {
        let Some((id, _)) = self.queue.first_key_value() else { return };
        if self.armed.is_some_and(|armed| armed <= id.0) {
            return;
        }
        self.armed = Some(id.0);
        let left = id.0.saturating_sub(sys::boottime_ms()).max(1);
        let value = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec { tv_sec: (left / 1000) as _, tv_nsec: (left % 1000 * 1_000_000) as _ },
        };
        // SAFETY: a live descriptor and a valid value.
        unsafe { libc::timerfd_settime(self.fd(), 0, &value, std::ptr::null_mut()) };
    }
}
