//! Pseudo-terminals.

use crate::sys;
use std::ffi::CStr;
use std::io::Result;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// End of transmission, what a terminal's user types to close standard input.
pub const END_OF_TRANSMISSION: u8 = 4;

/// A master that never blocks, and its slave.
pub fn open(cols: u16, rows: u16) -> Result<(OwnedFd, OwnedFd)> {
    // SAFETY: descriptors that were just returned are ours; the name buffer is valid for its length.
    unsafe {
        // By its name: a library may tell another error than the kernel does when none is left.
        let master = sys::open(c"/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY, 0)?;
        sys::check(libc::unlockpt(master.as_raw_fd()))?;
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        // Through the master itself where the kernel can: no name of the sandbox is in the way.
        let peer = if sys::compat() { -1 } else { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
        let slave = if peer >= 0 {
            OwnedFd::from_raw_fd(peer)
        } else {
            let mut name = [0 as libc::c_char; 128];
            let failed = libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr(), name.len());
            if failed != 0 {
                return Err(std::io::Error::from_raw_os_error(failed));
            }
            sys::open(CStr::from_ptr(name.as_ptr()), flags, 0)?
        };
        resize(master.as_raw_fd(), cols, rows)?;
        sys::set_nonblocking(master.as_raw_fd(), true)?;
        Ok((master, slave))
    }
}

pub fn resize(fd: RawFd, cols: u16, rows: u16) -> Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request reads one winsize.
    sys::check(unsafe { libc::ioctl(fd, libc::TIOCSWINSZ, &size) }).map(|_| ())
}
