//! When a process began, by which its number is told from that of another.

#[test]
fn is_known_whatever_its_name_is() {
    let mine = alcove_sys::start_time(std::process::id() as i32).expect("of this process");
    // The kernel keeps 15 bytes, whatever character that cuts.
    for name in [c"a) R 1 2", c"f\xC3\xBCr-abcdefghi\xC3\xA4", c"\xFF\xFE"] {
        let began = std::thread::spawn(move || {
            // SAFETY: the name is alive through the call; a number without arguments.
            let thread = unsafe {
                libc::prctl(libc::PR_SET_NAME, name.as_ptr());
                libc::gettid()
            };
            alcove_sys::start_time(thread)
        });
        assert!(began.join().expect("joined").expect("known") >= mine, "{name:?}");
    }
}
