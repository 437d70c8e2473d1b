//! Unix sockets by short relative names: who listens and who connects is in the runtime's directory.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::sys;

pub fn listen(name: &str) -> io::Result<OwnedFd> {
    let socket = socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    let (address, size) = address(name);
    // SAFETY: the address is alive and its size its own.
    unsafe {
        let previous = libc::umask(0o177);
        let bound = sys::check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) as libc::c_long);
        libc::umask(previous);
        bound?;
        sys::check(libc::listen(socket.as_raw_fd(), 4) as libc::c_long)?;
    }
    Ok(socket)
}

pub fn seqpacket_to(name: &str) -> io::Result<OwnedFd> {
    let socket = socket(libc::SOCK_SEQPACKET)?;
    let (address, size) = address(name);
    // SAFETY: as above.
    sys::check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) } as libc::c_long)?;
    Ok(socket)
}

/// @returns undefined when nobody waits.
pub fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for; the descriptor is owned from here on.
    unsafe {
        let fd = libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

fn socket(kind: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers; the descriptor is owned from here on.
    unsafe {
        let fd = sys::check(libc::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0) as libc::c_long)?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

fn address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: an all-zero address is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (slot, byte) in address.sun_path.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    (address, (size_of::<libc::sa_family_t>() + name.len() + 1) as libc::socklen_t)
}
