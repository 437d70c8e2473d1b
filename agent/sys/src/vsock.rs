//! Sockets between a virtual machine and its host.

use crate::descriptors::{check, owned};
use std::io::Result;
use std::os::fd::{AsRawFd, OwnedFd};

/// Connections that wait to be accepted.
const BACKLOG: libc::c_int = 128;

/// Listens on a port of AF_VSOCK, whatever context id the machine has.
pub fn listen_vsock(port: u32) -> Result<OwnedFd> {
    // SAFETY: plain numbers; the address is whole, alive through the call, and its size is given.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        let socket = owned(libc::socket(libc::AF_VSOCK, kind, 0).into())?;
        let mut address: libc::sockaddr_vm = std::mem::zeroed();
        address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
        address.svm_cid = libc::VMADDR_CID_ANY;
        address.svm_port = port;
        let size = size_of_val(&address) as libc::socklen_t;
        check(libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), size))?;
        check(libc::listen(socket.as_raw_fd(), BACKLOG))?;
        Ok(socket)
    }
}
