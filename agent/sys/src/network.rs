//! Interfaces of this network namespace, as the older system calls set them: they need no library and no message.

use crate::descriptors::{check, owned};
use std::io::Result;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

fn any_socket() -> Result<OwnedFd> {
    // SAFETY: plain numbers.
    owned(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) }.into())
}

/// A request about an interface, all zero but for the name.
fn about(name: &str) -> libc::ifreq {
    // SAFETY: all zero is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (place, byte) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request
}

fn ask(request: &libc::ifreq, what: libc::Ioctl) -> Result<()> {
    let socket = any_socket()?;
    // SAFETY: the kernel reads and writes only this struct.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), what, std::ptr::from_ref(request)) }).map(drop)
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let plain = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from(address).to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: both have the same size, and any bytes are a valid `sockaddr`.
    unsafe { std::mem::transmute(plain) }
}

pub fn interface_up(name: &str) -> Result<()> {
    let mut request = about(name);
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    ask(&request, libc::SIOCSIFFLAGS as libc::Ioctl)
}

pub fn loopback_up() -> Result<()> {
    interface_up("lo")
}

/// Gives an interface its address, and the network of the first `prefix` bits of it.
pub fn set_address(name: &str, address: Ipv4Addr, prefix: u32) -> Result<()> {
    let mut request = about(name);
    request.ifr_ifru.ifru_addr = socket_address(address);
    ask(&request, libc::SIOCSIFADDR as libc::Ioctl)?;
    let mask = u32::MAX.checked_shl(32 - prefix.min(32)).unwrap_or(0);
    request.ifr_ifru.ifru_netmask = socket_address(Ipv4Addr::from(mask));
    ask(&request, libc::SIOCSIFNETMASK as libc::Ioctl)
}

/// What is for no other network goes to `gateway`.
pub fn add_default_route(gateway: Ipv4Addr) -> Result<()> {
    let socket = any_socket()?;
    // SAFETY: all zero is a valid route; the kernel only reads it.
    unsafe {
        let mut route: libc::rtentry = std::mem::zeroed();
        route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
        route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
        route.rt_gateway = socket_address(gateway);
        route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT as libc::Ioctl, &raw const route)).map(drop)
    }
}
