//! Addresses that are the machine's own because a route says so, whether an interface has them or not.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::addresses::Prefix;

const HEADER: usize = 16;
const ROUTE: usize = 12;
const ATTRIBUTE: usize = 4;
/// What the kernel fills at once, at most.
const PART_BYTES: usize = 32_768;
/// Routes that change while they are told are asked for again.
const ATTEMPTS: usize = 3;

/// @returns none where the kernel does not tell.
pub fn local() -> Option<Vec<Prefix>> {
    (0..ATTEMPTS).find_map(|_| ask())
}

fn ask() -> Option<Vec<Prefix>> {
    // SAFETY: plain numbers; the descriptor is nobody else's.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))?
    };
    let fd = socket.as_raw_fd();
    let yes: libc::c_int = 1;
    // A kernel that does not know it tells the routes of all tables, which takes longer.
    // SAFETY: a number and its size.
    unsafe {
        let size = size_of_val(&yes) as libc::socklen_t;
        libc::setsockopt(fd, libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, (&raw const yes).cast(), size);
    }
    let request = request();
    // SAFETY: pointer and length belong together.
    let sent = unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) };
    if sent != request.len() as isize {
        return None;
    }
    let mut found = Vec::new();
    let mut part = vec![0u8; PART_BYTES];
    loop {
        // SAFETY: as above.
        let count = unsafe { libc::recv(fd, part.as_mut_ptr().cast(), part.len(), libc::MSG_TRUNC) };
        let told = part.get(..usize::try_from(count).ok()?)?;
        if !read(told, &mut found)? {
            return Some(found);
        }
    }
}

fn request() -> Vec<u8> {
    let mut request = Vec::with_capacity(HEADER + ROUTE);
    request.extend(((HEADER + ROUTE) as u32).to_ne_bytes());
    request.extend(libc::RTM_GETROUTE.to_ne_bytes());
    request.extend(((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    request.extend([0; 8]);
    request.extend([libc::AF_INET as u8, 0, 0, 0, libc::RT_TABLE_LOCAL, 0, 0, libc::RTN_LOCAL]);
    request.extend([0; 4]);
    request
}

/// Adds what a part of the answer names. @returns whether more follows; none for what is no whole answer.
fn read(mut part: &[u8], found: &mut Vec<Prefix>) -> Option<bool> {
    while !part.is_empty() {
        let length = number(part, 0)? as usize;
        let message = part.get(..length).filter(|message| message.len() >= HEADER)?;
        let [kind, flags] = [4, 6].map(|at| u16::from_ne_bytes([message[at], message[at + 1]]));
        if libc::c_int::from(flags) & libc::NLM_F_DUMP_INTR != 0 {
            return None;
        }
        match libc::c_int::from(kind) {
            libc::NLMSG_DONE => return Some(false),
            libc::NLMSG_ERROR => return None,
            _ if kind == libc::RTM_NEWROUTE => found.extend(own_network(&message[HEADER..])),
            _ => {}
        }
        part = part.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(true)
}

/// Of a route that says of a network that it is the machine's own.
fn own_network(route: &[u8]) -> Option<Prefix> {
    let (head, mut attributes) = route.split_at_checked(ROUTE)?;
    if head[0] != libc::AF_INET as u8 || head[4] != libc::RT_TABLE_LOCAL || head[7] != libc::RTN_LOCAL {
        return None;
    }
    let mut address = Ipv4Addr::UNSPECIFIED;
    while attributes.len() >= ATTRIBUTE {
        let length = usize::from(u16::from_ne_bytes([attributes[0], attributes[1]]));
        let value = attributes.get(ATTRIBUTE..length)?;
        if u16::from_ne_bytes([attributes[2], attributes[3]]) == libc::RTA_DST {
            address = <[u8; 4]>::try_from(value).ok()?.into();
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Prefix::new(address, head[1]))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(table: u8, kind: u8, length: u8, address: [u8; 4]) -> Vec<u8> {
        let mut message = Vec::new();
        message.extend(36u32.to_ne_bytes());
        message.extend(libc::RTM_NEWROUTE.to_ne_bytes());
        message.extend([0; 10]);
        message.extend([libc::AF_INET as u8, length, 0, 0, table, 0, 0, kind, 0, 0, 0, 0]);
        message.extend(8u16.to_ne_bytes());
        message.extend(libc::RTA_DST.to_ne_bytes());
        message.extend(address);
        message
    }

    fn done(flags: u16) -> Vec<u8> {
        let mut message = 20u32.to_ne_bytes().to_vec();
        message.extend((libc::NLMSG_DONE as u16).to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend([0; 12]);
        message
    }

    #[test]
    fn networks_that_a_route_calls_the_machines_own_are_told_and_no_others() {
        let (own, local) = (libc::RTN_LOCAL, libc::RT_TABLE_LOCAL);
        let told = [
            route(local, own, 32, [8, 8, 4, 4]),
            route(local, libc::RTN_BROADCAST, 32, [8, 8, 4, 255]),
            // Of a proxy that takes everything: only what is marked goes by it.
            route(100, own, 0, [0; 4]),
            route(local, own, 24, [8, 8, 5, 0]),
            done(0),
        ]
        .concat();
        let mut found = Vec::new();
        assert_eq!(read(&told, &mut found), Some(false));
        let network = |address: [u8; 4], length| Prefix::new(address.into(), length);
        assert!(found == [network([8, 8, 4, 4], 32), network([8, 8, 5, 0], 24)]);
        for cut in 1..told.len() {
            let whole = cut % 36 == 0;
            assert_eq!(read(&told[..cut], &mut Vec::new()), whole.then_some(true), "{cut}");
        }
        assert_eq!(read(&done(libc::NLM_F_DUMP_INTR as u16), &mut found), None);
    }

    #[test]
    fn the_kernel_tells_of_loopback() {
        assert!(local().expect("routes").contains(&Prefix::new(Ipv4Addr::new(127, 0, 0, 0), 8)));
    }
}
