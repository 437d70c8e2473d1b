//! A pipe whose other end one holds oneself never ends: who would write to it does.

use std::os::fd::AsRawFd;

#[test]
fn who_waits_for_a_word_stops_when_nobody_is_left_to_say_it() {
    for said in [false, true] {
        let (reader, writer) = alcove_sys::pipe().expect("a pipe");
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let process = alcove_sys::pidfd_open(other.id() as i32).expect("its descriptor");
        if said {
            alcove_sys::write_all(writer.as_raw_fd(), b"x").expect("written");
        } else {
            other.kill().expect("killed");
        }
        let readable = alcove_sys::wait_readable_of(reader.as_raw_fd(), process.as_raw_fd());
        assert_eq!(readable.expect("an answer"), said);
        let _ = other.kill();
        other.wait().expect("its end");
        drop(writer);
    }
}
