//! The options of sockets that commands may set. Options nobody here needs keep memory for a socket that no control group
//! counts, or take from tables of the whole machine; new ones come with every kernel. So this is a list of what programs
//! use, unlike that of the system calls.

use crate::bpf::{Program, RET_ALLOW, argument};
use crate::refusals::{DONE, refuse};

const SOL_SOCKET: u32 = 1;
/// Also what iptables speaks to: `NETFILTER`.
const SOL_IP: u32 = 0;
const SOL_TCP: u32 = 6;
const SOL_UDP: u32 = 17;
const SOL_IPV6: u32 = 41;
const SOL_ICMPV6: u32 = 58;
const SOL_RAW: u32 = 255;
const SOL_PACKET: u32 = 263;
const SOL_NETLINK: u32 = 270;

/// RCVBUF, SNDBUFFORCE, RCVBUFFORCE. Answered as done, as the kernel does with sizes above what it allows: a receiving queue's
/// first size bounds what a socket can hold back. What a sender has queued is counted as its memory.
const QUEUE_SIZES: &[u32] = &[8, 32, 33];
/// REUSEADDR, DONTROUTE, BROADCAST, SNDBUF, KEEPALIVE, OOBINLINE, NO_CHECK, PRIORITY, LINGER, REUSEPORT, PASSCRED, RCVLOWAT,
/// SNDLOWAT, RCVTIMEO, SNDTIMEO, BINDTODEVICE, DETACH_FILTER, PASSSEC, MARK, RXQ_OVFL, PEEK_OFF, BUSY_POLL, INCOMING_CPU,
/// BINDTOIFINDEX, RCVTIMEO_NEW, SNDTIMEO_NEW, RCVMARK, PASSPIDFD, PASSRIGHTS. Not SO_ATTACH_*, whose programs take the
/// kernel's only memory for compiled ones; not TIMESTAMPING and ZEROCOPY, whose answers wait uncounted; no other
/// TIMESTAMP*, whose first and last user have the kernel rewrite its own code, which stops every processor.
const COMMON: &[u32] =
    &[2, 5, 6, 7, 9, 10, 11, 12, 13, 15, 16, 18, 19, 20, 21, 25, 27, 34, 36, 40, 42, 46, 49, 62, 66, 67, 75, 76, 83];
/// NODELAY, MAXSEG, CORK, KEEPIDLE, KEEPINTVL, KEEPCNT, SYNCNT, DEFER_ACCEPT, WINDOW_CLAMP, QUICKACK, CONGESTION,
/// THIN_LINEAR_TIMEOUTS, THIN_DUPACK, USER_TIMEOUT, FASTOPEN, NOTSENT_LOWAT, FASTOPEN_CONNECT, FASTOPEN_NO_COOKIE, INQ.
const TCP: &[u32] = &[1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 13, 16, 17, 18, 23, 25, 30, 34, 36];
/// LINGER2. Answered as done: with more than a minute, connections that their program has closed stay whole, and the number of
/// those is one for the whole machine.
const TCP_LINGER: u32 = 8;
/// CORK, NO_CHECK6_TX, NO_CHECK6_RX, SEGMENT. Not GRO, whose first and last user rewrite code as time stamps do.
const UDP: &[u32] = &[1, 101, 102, 103];
/// TOS, TTL, HDRINCL, PKTINFO, MTU_DISCOVER, RECVTTL, RECVTOS, FREEBIND, TRANSPARENT, RECVORIGDSTADDR, MINTTL, NODEFRAG,
/// BIND_ADDRESS_NO_PORT, RECVFRAGSIZE, MULTICAST_IF, _TTL and _LOOP, MULTICAST_ALL, UNICAST_IF, LOCAL_PORT_RANGE.
const IP: &[u32] = &[1, 2, 3, 8, 10, 12, 13, 15, 19, 20, 21, 22, 24, 25, 32, 33, 34, 49, 50, 51];
/// ADD_MEMBERSHIP, ADD_SOURCE_MEMBERSHIP, MCAST_JOIN_GROUP, MCAST_JOIN_SOURCE_GROUP. Each takes the one lock of all networks
/// of the machine and walks the groups there are; leaving them, also by the end of a process, does so again. The kernel's
/// answer where no interface takes part.
const IP_JOINS: &[u32] = &[35, 39, 42, 46];
/// DROP_MEMBERSHIP, UNBLOCK_SOURCE, BLOCK_SOURCE, DROP_SOURCE_MEMBERSHIP, and MCAST_ of the same. They take that lock even
/// where there is nothing to leave. The kernel's answer to who is no member.
const IP_LEAVES: &[u32] = &[36, 37, 38, 40, 43, 44, 45, 47];
/// RECVERR. Answered as done: glibc gives up asking a name server where it is refused, and asks without it just as well.
const IP_ERRORS: u32 = 11;
/// 2292PKTINFO, CHECKSUM, 2292HOPLIMIT, UNICAST_HOPS, MULTICAST_IF, _HOPS and _LOOP, MTU_DISCOVER, V6ONLY,
/// MULTICAST_ALL, RECVPKTINFO, PKTINFO, RECVHOPLIMIT, RECVPATHMTU, DONTFRAG, RECVTCLASS, TCLASS, AUTOFLOWLABEL,
/// ADDR_PREFERENCES, MINHOPCOUNT, RECVORIGDSTADDR, TRANSPARENT, UNICAST_IF, RECVFRAGSIZE, FREEBIND.
const IPV6: &[u32] = &[2, 7, 8, 16, 17, 18, 19, 23, 26, 29, 49, 50, 51, 60, 62, 66, 67, 70, 72, 73, 74, 75, 76, 77, 78];
const IPV6_ERRORS: u32 = 25;
/// MTU. With a small one a datagram that is never finished waits in 50 buffers instead of one, each of which holds 17 pieces
/// of memory that is counted for nobody. Answered as done: name servers ask for it, and do without.
const IPV6_MTU: u32 = 24;
/// JOIN_GROUP, MCAST_JOIN_GROUP, MCAST_JOIN_SOURCE_GROUP, thousands to a socket; and what leaves them: as with IPv4.
const IPV6_JOINS: &[u32] = &[20, 42, 46];
const IPV6_LEAVES: &[u32] = &[21, 43, 44, 45, 47];
/// The tables of iptables, for who was given the capability.
const TABLES: &[u32] = &[64, 65];

/// Rules for `setsockopt`.
pub fn rules(rules: &mut Program, packets: bool) {
    let unknown = refuse(libc::ENOPROTOOPT);
    let level = |rules: &mut Program, level: u32, inner: &dyn Fn(&mut Program)| {
        rules.block(level, |rules| {
            rules.load(argument(2));
            inner(rules);
            rules.give(unknown);
        });
    };
    rules.load(argument(1));
    level(rules, SOL_SOCKET, &|rules| {
        rules.when_any(COMMON, RET_ALLOW);
        rules.when_any(QUEUE_SIZES, DONE);
    });
    level(rules, SOL_TCP, &|rules| {
        rules.when_any(TCP, RET_ALLOW);
        rules.when(TCP_LINGER, DONE);
    });
    level(rules, SOL_UDP, &|rules| rules.when_any(UDP, RET_ALLOW));
    level(rules, SOL_IP, &|rules| {
        rules.when_any(IP, RET_ALLOW);
        rules.when(IP_ERRORS, DONE);
        rules.when_any(IP_JOINS, refuse(libc::ENODEV));
        rules.when_any(IP_LEAVES, refuse(libc::EADDRNOTAVAIL));
        if packets {
            rules.when_any(TABLES, RET_ALLOW);
        }
    });
    level(rules, SOL_IPV6, &|rules| {
        rules.when_any(IPV6, RET_ALLOW);
        rules.when_any(&[IPV6_ERRORS, IPV6_MTU], DONE);
        rules.when_any(IPV6_JOINS, refuse(libc::ENODEV));
        rules.when_any(IPV6_LEAVES, refuse(libc::EADDRNOTAVAIL));
        if packets {
            rules.when_any(TABLES, RET_ALLOW);
        }
    });
    // Which kinds of messages raw sockets take.
    for raw in [SOL_RAW, SOL_ICMPV6] {
        level(rules, raw, &|rules| rules.when(1, RET_ALLOW));
    }
    rules.when(SOL_NETLINK, RET_ALLOW);
    if packets {
        rules.when(SOL_PACKET, RET_ALLOW);
    }
    rules.give(unknown);
}
