//! Who does something in the name of another user keeps what it has with its parent.

use std::io::Error;

/// @returns what the process that did it ended with.
fn in_a_process(act: impl FnOnce() -> bool) -> i32 {
    let pid = alcove_sys::fork().expect("a process");
    if pid == 0 {
        let code = if act() { 0 } else { 1 };
        // SAFETY: plain number.
        unsafe { libc::_exit(code) }
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid, "{}", Error::last_os_error());
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
}

#[test]
fn who_acts_as_somebody_else_for_a_moment_still_ends_with_its_parent() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    for signal in [0, libc::SIGKILL] {
        let kept = in_a_process(|| {
            let set = alcove_sys::set_death_signal(signal).is_ok();
            // SAFETY: no arguments.
            let acted = alcove_sys::acting_as(1_900_000_000, || Ok(unsafe { libc::geteuid() }));
            // SAFETY: no arguments.
            let own = unsafe { libc::geteuid() };
            let left = alcove_sys::death_signal().ok();
            set && acted.ok() == Some(1_900_000_000) && own == 0 && left == Some(signal)
        });
        assert_eq!(kept, 0, "signal {signal}");
    }
}
