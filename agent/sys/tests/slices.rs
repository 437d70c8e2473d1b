//! Who mostly waits asks for short slices, for itself alone.

/// Slice of this thread, nanoseconds; `None` where the kernel tells none.
fn own_slice() -> Option<u64> {
    let mut attr = [0u64; 6];
    // SAFETY: the struct is as large as is said.
    let told = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attr.as_mut_ptr(), size_of_val(&attr), 0) };
    // Its fields of 32 bits lie by twos before the slice.
    (told == 0 && attr[3] != 0).then_some(attr[3])
}

fn nice() -> i32 {
    // SAFETY: plain numbers.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// In a thread of its own, which has what the test's has not. @returns its slice, and that of a thread it started.
fn asked() -> [Option<u64>; 2] {
    std::thread::spawn(|| {
        // SAFETY: plain numbers.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 3) };
        alcove_sys::ask_for_short_slices(0);
        assert_eq!(nice(), 3, "its priority stays");
        [own_slice(), std::thread::spawn(own_slice).join().expect("joined")]
    })
    .join()
    .expect("joined")
}

#[test]
fn what_is_started_has_the_usual_slices() {
    let Some(usual) = own_slice() else {
        eprintln!("skipped: a kernel without slices of threads (before Linux 6.12)");
        return;
    };
    assert_ne!(usual, 200_000);
    assert_eq!(asked(), [Some(200_000), Some(usual)]);
}
