//! The interface of a sandbox: made and given its address from outside, by a process that is in the sandbox's network for
//! as long as that takes. It lives as long as its descriptor.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use super::addresses::{DNS, GATEWAY, GUEST};
use super::frames::guest_address;
use crate::error::{AtStep, Result, StepError};
use crate::{overlay, sys};

const STEP: &str = "network";
const NAME: &str = "tap0";
/// Larger than an Ethernet's, because each frame costs a trip through two processes.
pub const MTU: i32 = 16_384;
/// Frames that wait to be taken count for nobody: at most 2 MB of them.
const QUEUE: i32 = 128;
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;

/// @param enter_users whether the namespace of users has to be entered first: without rights of the machine's own.
pub fn open(pid: i32, enter_users: bool) -> Result<OwnedFd> {
    let namespace = |name: &str| {
        sys::open_path_at(libc::AT_FDCWD, &format!("/proc/{pid}/ns/{name}"), libc::O_RDONLY | libc::O_CLOEXEC, 0)
            .at(STEP, format!("namespace {name}"))
    };
    let users = if enter_users { Some(namespace("user")?) } else { None };
    let network = namespace("net")?;
    let (reader, writer) = sys::pipe().at(STEP, "pipe")?;
    // It shares our descriptors, so what it opens is ours.
    let child = sys::clone_process(libc::CLONE_FILES as u64, None).at(STEP, "clone")?;
    if child == 0 {
        let answer = match enter_and_make(users.as_ref(), &network) {
            Ok(tap) => format!("{}\n", tap.into_raw_fd()),
            Err(error) => format!("{}\t{}\n", error.errno.unwrap_or(0), error.message),
        };
        let _ = sys::write_all(writer.as_raw_fd(), answer.as_bytes());
        // SAFETY: plain number; nothing that is shared may be closed or flushed.
        unsafe { libc::_exit(0) }
    }
    // SAFETY: our own child.
    sys::check(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } as libc::c_long).at(STEP, "wait")?;
    let mut answer = [0u8; 512];
    let count = if sys::wait_readable(reader.as_raw_fd(), 0).at(STEP, "answer")? {
        sys::read(reader.as_raw_fd(), &mut answer).at(STEP, "answer")?
    } else {
        0
    };
    let text = String::from_utf8_lossy(&answer[..count]).trim().to_owned();
    match text.split_once('\t') {
        // SAFETY: the descriptor was opened for us in the table we share.
        None => text
            .parse()
            .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
            .map_err(|_| StepError::new(STEP, "the process that makes the interface ended before it had")),
        Some((errno, message)) => Err(StepError {
            step: STEP.to_owned(),
            message: message.to_owned(),
            errno: errno.parse().ok().filter(|errno| *errno != 0),
        }),
    }
}

fn enter_and_make(users: Option<&OwnedFd>, network: &OwnedFd) -> Result<OwnedFd> {
    for (namespace, kind) in
        users.map(|fd| (fd, libc::CLONE_NEWUSER)).into_iter().chain([(network, libc::CLONE_NEWNET)])
    {
        // SAFETY: a descriptor of ours.
        sys::check(unsafe { libc::setns(namespace.as_raw_fd(), kind) } as libc::c_long)
            .at(STEP, "enter a namespace")?;
    }
    let path = "/dev/net/tun";
    let tap =
        sys::open_path_at(libc::AT_FDCWD, path, libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK, 0).at(STEP, path)?;
    let mut request = named();
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    control(tap.as_raw_fd(), TUNSETIFF, &request, "TUNSETIFF")?;
    configure()?;
    Ok(tap)
}

fn configure() -> Result<()> {
    // SAFETY: plain numbers; the descriptor is owned from here on.
    let socket = unsafe {
        let fd = sys::check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) as libc::c_long);
        OwnedFd::from_raw_fd(fd.at(STEP, "socket")? as i32)
    };
    let socket = socket.as_raw_fd();
    let mut request = named();
    // SAFETY: each writes the field of the union that its request reads.
    unsafe {
        request.ifr_ifru.ifru_hwaddr.sa_family = libc::ARPHRD_ETHER;
        for (place, byte) in request.ifr_ifru.ifru_hwaddr.sa_data.iter_mut().zip(guest_address()) {
            *place = byte as libc::c_char;
        }
    }
    control(socket, libc::SIOCSIFHWADDR as libc::c_ulong, &request, "hardware address")?;
    request = named();
    request.ifr_ifru.ifru_mtu = MTU;
    control(socket, libc::SIOCSIFMTU as libc::c_ulong, &request, "MTU")?;
    shorten_queue()?;
    // The helper speaks IPv4; an address of the other kind would only be waited for. With one, a sandbox has neighbours of that kind
    // too, and they have one table of the machine as well. Where settings cannot be written the interface at least gets none.
    let _ = no_address_of_its_own();
    let path = format!("/proc/sys/net/ipv6/conf/{NAME}/disable_ipv6");
    if overlay::exists(&path) {
        // Whatever comes of it: no such packet gets past the helper.
        let _ = std::fs::write(&path, "1");
    }
    request = named();
    request.ifr_ifru.ifru_addr = socket_address(GUEST);
    control(socket, libc::SIOCSIFADDR as libc::c_ulong, &request, "address")?;
    // A network of one: the machine has one table of neighbours for all networks, a thousand as a rule, and each address that
    // is asked for would be one.
    request.ifr_ifru.ifru_netmask = socket_address(Ipv4Addr::BROADCAST);
    control(socket, libc::SIOCSIFNETMASK as libc::c_ulong, &request, "netmask")?;
    request = named();
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    control(socket, libc::SIOCSIFFLAGS as libc::c_ulong, &request, "up")?;
    // It is there now, or never: the interface was ready at once.
    let _ = no_groups_of_ipv6();
    for neighbour in [GATEWAY, DNS] {
        route(socket, neighbour, None)?;
    }
    route(socket, Ipv4Addr::UNSPECIFIED, Some(GATEWAY))?;
    keep_unrouted()
}

/// To one address, or to all.
fn route(socket: i32, to: Ipv4Addr, gateway: Option<Ipv4Addr>) -> Result<()> {
    let mut device = NAME.as_bytes().to_vec();
    device.push(0);
    // SAFETY: an all-zero route is valid, and the kernel reads only this struct and the name it points to.
    unsafe {
        let mut route: libc::rtentry = std::mem::zeroed();
        route.rt_dst = socket_address(to);
        route.rt_genmask = socket_address(if gateway.is_some() { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::BROADCAST });
        route.rt_gateway = socket_address(gateway.unwrap_or(Ipv4Addr::UNSPECIFIED));
        route.rt_flags = libc::RTF_UP | if gateway.is_some() { libc::RTF_GATEWAY } else { libc::RTF_HOST };
        route.rt_dev = device.as_mut_ptr().cast();
        sys::check(libc::ioctl(socket, libc::SIOCADDRT as _, &raw const route) as libc::c_long).at(STEP, "route")
    }
    .map(drop)
}

/// By message, because the call for it wants rights over the machine's network.
fn shorten_queue() -> Result<()> {
    change_link(&number(libc::IFLA_TXQLEN, QUEUE as u32), "queue")
}

/// By message too: settings are files, which may be closed to whoever writes here.
fn no_address_of_its_own() -> Result<()> {
    const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
    const NONE: u8 = 1;
    let mode = attribute(IFLA_INET6_ADDR_GEN_MODE, &[NONE]);
    let family = attribute(libc::AF_INET6 as u16, &mode);
    change_link(&attribute(libc::IFLA_AF_SPEC, &family), "addresses of IPv6")
}

/// What an interface without an address sends all the same, from the sandbox's own `::1`: to groups, each of which is a neighbour.
fn no_groups_of_ipv6() -> Result<()> {
    const GROUPS: [u8; 16] = [0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const BITS: u8 = 8;
    // Route, as below.
    let mut body = vec![libc::AF_INET6 as u8, BITS, 0, 0, libc::RT_TABLE_LOCAL, 0, libc::RT_SCOPE_NOWHERE, 0];
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&attribute(libc::RTA_DST, &GROUPS));
    body.extend_from_slice(&number(libc::RTA_OIF, index()));
    ask(libc::RTM_DELROUTE, 0, &body, "groups of IPv6")
}

fn change_link(change: &[u8], what: &str) -> Result<()> {
    let mut body = vec![0; 4];
    // Interface: family, type, index, flags, changes.
    body.extend_from_slice(&index().to_ne_bytes());
    body.extend_from_slice(&[0; 8]);
    body.extend_from_slice(change);
    ask(libc::RTM_NEWLINK, 0, &body, what)
}

/// What is sent past the routes, to "this interface, no gateway" (`SO_DONTROUTE`, `MSG_DONTROUTE`), finds none of them, and then
/// the kernel takes every address for a neighbour. So it finds one that gives it back to the sandbox itself; whatever else is
/// sent has the route to the gateway, which goes first.
fn keep_unrouted() -> Result<()> {
    // Route: family, lengths of both addresses, service, table, who made it, scope, type, flags. Attributes: interface, priority.
    let mut body = vec![
        libc::AF_INET as u8,
        0,
        0,
        0,
        libc::RT_TABLE_MAIN,
        libc::RTPROT_BOOT,
        libc::RT_SCOPE_HOST,
        libc::RTN_LOCAL,
    ];
    body.extend_from_slice(&[0; 4]);
    body.extend_from_slice(&number(libc::RTA_OIF, index()));
    body.extend_from_slice(&number(libc::RTA_PRIORITY, u32::MAX));
    ask(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &body, "route of last resort")
}

fn index() -> u32 {
    // SAFETY: a constant string.
    unsafe { libc::if_nametoindex(c"tap0".as_ptr()) }
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_ne_bytes())
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len();
    let mut bytes = Vec::with_capacity(length.next_multiple_of(4));
    bytes.extend_from_slice(&(length as u16).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

fn ask(kind: u16, flags: i32, body: &[u8], what: &str) -> Result<()> {
    // Header: length, type, flags, sequence, port.
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16).to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(body);
    let what = format!("{NAME}: {what}");
    // SAFETY: plain numbers; the descriptor is owned from here on.
    let socket = unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let fd = sys::check(libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) as libc::c_long);
        OwnedFd::from_raw_fd(fd.at(STEP, &what)? as i32)
    };
    sys::write_all(socket.as_raw_fd(), &message).at(STEP, &what)?;
    let mut answer = [0u8; 256];
    let count = sys::read(socket.as_raw_fd(), &mut answer).at(STEP, &what)?;
    // An error's number follows the header; 0 is none.
    let number = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
    if count >= 20 && number == 0 {
        return Ok(());
    }
    Err(StepError::io(STEP, what, std::io::Error::from_raw_os_error(-number)))
}

fn named() -> libc::ifreq {
    // SAFETY: an all-zero request is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(NAME.bytes()) {
        *place = byte as libc::c_char;
    }
    request
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0 as libc::c_char; 14];
    for (place, byte) in data[2..].iter_mut().zip(address.octets()) {
        *place = byte as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

fn control(fd: i32, kind: libc::c_ulong, request: &libc::ifreq, what: &str) -> Result<()> {
    // SAFETY: the kernel reads and writes no more than this struct.
    sys::check(unsafe { libc::ioctl(fd, kind as _, std::ptr::from_ref(request)) } as libc::c_long)
        .map(drop)
        .at(STEP, format!("{NAME}: {what}"))
}
