//! When the launcher was asked for something last, as its children see it: what nobody waits for is done when nobody waits for anything.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nothing was asked for so long: what is done then takes no processor from who waits for an answer.
const QUIET: Duration = Duration::from_millis(25);
/// Where it never is: what was put off is a process that waits.
const PATIENCE: Duration = Duration::from_millis(250);

/// Shared by a launcher and all that it forks.
#[derive(Clone, Copy)]
pub struct Quiet {
    began: Instant,
    /// Milliseconds from then on until it was asked last.
    asked: &'static AtomicU64,
}

impl Quiet {
    pub fn new() -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, never unmapped, large and aligned enough for the number and zero at first, as that may be.
        let asked = unsafe {
            let page = libc::mmap(std::ptr::null_mut(), size_of::<AtomicU64>(), protection, flags, -1, 0);
            if page == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            &*page.cast::<AtomicU64>()
        };
        Ok(Self { began: Instant::now(), asked })
    }

    /// Something is asked of the launcher.
    pub fn disturb(self) {
        self.asked.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// What this process forks from here on may come to serve a sandbox, and does not have the page, which all share.
    pub fn keep_from_children(self) {
        // SAFETY: a page of its own, which stays where it is in this process.
        unsafe { libc::madvise(self.asked.as_ptr().cast(), size_of::<AtomicU64>(), libc::MADV_DONTFORK) };
    }

    /// How long it will be until it is quiet, if nothing is asked until then.
    pub fn left(self) -> Duration {
        let asked = Duration::from_millis(self.asked.load(Ordering::Relaxed));
        QUIET.saturating_sub(self.began.elapsed().saturating_sub(asked))
    }

    /// Until it is quiet, and not for ever.
    pub fn wait(self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = self.left().min(until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waits_for_is_put_off_until_it_is_quiet() {
        let quiet = Quiet::new().expect("a page");
        let began = Instant::now();
        quiet.disturb();
        quiet.wait();
        // The page has whole milliseconds.
        assert!(began.elapsed() >= QUIET - Duration::from_millis(1));
        assert_eq!(quiet.left(), Duration::ZERO);
    }

    #[test]
    fn where_it_is_never_quiet_nothing_is_put_off_for_ever() {
        let quiet = Quiet::new().expect("a page");
        quiet.asked.store(u64::MAX, Ordering::Relaxed);
        let began = Instant::now();
        quiet.wait();
        assert!((PATIENCE..Duration::from_secs(2)).contains(&began.elapsed()));
        assert_eq!(quiet.left(), QUIET);
    }

    #[test]
    fn a_process_has_the_page_of_who_forked_it_and_one_that_may_serve_a_sandbox_has_not() {
        let quiet = Quiet::new().expect("a page");
        const UNTOUCHED: u64 = 1 << 40;
        let ended_with = |quiet: Quiet| {
            quiet.asked.store(UNTOUCHED, Ordering::Relaxed);
            let child = crate::sys::fork().expect("a process");
            if child == 0 {
                quiet.disturb();
                // SAFETY: plain number.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: our own child.
            unsafe { libc::waitpid(child, &mut status, 0) };
            (status, quiet.asked.load(Ordering::Relaxed) == UNTOUCHED)
        };
        assert_eq!(ended_with(quiet), (0, false));
        quiet.keep_from_children();
        let (status, is_untouched) = ended_with(quiet);
        assert!(libc::WIFSIGNALED(status) && is_untouched);
    }
}
