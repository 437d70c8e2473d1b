//! What the sandbox's console shows: a line for each thing an operator would look for, on standard error, with the
//! seconds since the machine's boot in front as the kernel's own log has them.

use crate::sys;
use std::fmt::{Arguments, Write};
use std::sync::atomic::{AtomicU32, Ordering};

/// Lines in the life of an agent: a sandbox that dies a thousand deaths does not fill the host's disk.
const MAX_LINES: u32 = 5_000;

static WRITTEN: AtomicU32 = AtomicU32::new(0);

/// Never waits: a console that nobody empties loses lines.
pub fn say(message: Arguments<'_>) {
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    if number >= MAX_LINES {
        WRITTEN.store(MAX_LINES, Ordering::Relaxed);
        return;
    }
    let now = sys::boottime_ms();
    let mut line = format!("[{:5}.{:03}] alcove-agent: ", now / 1000, now % 1000);
    // Writing to a string cannot fail.
    let _ = line.write_fmt(message);
    if number == MAX_LINES - 1 {
        line.push_str(" (the last line that is written)");
    }
    line.push('\n');
    let mut ready = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: the structure and the bytes are alive through the calls; lines are shorter than a pipe's atomic write.
    unsafe {
        if libc::poll(&mut ready, 1, 0) == 1 && ready.revents & libc::POLLOUT != 0 {
            libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len().min(libc::PIPE_BUF));
        }
    }
}
