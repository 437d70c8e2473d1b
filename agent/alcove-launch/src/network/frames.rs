//! Frames as they pass between a sandbox and its helper: what is read of them, and the few that are made here.

use std::net::Ipv4Addr;

use super::addresses::{DNS, GATEWAY, GUEST};

const ETHERNET: usize = 14;
const TYPE_IPV4: u16 = 0x0800;
const TYPE_ARP: u16 = 0x0806;
const ARP_LENGTH: usize = 28;
const MORE_FRAGMENTS_OR_OFFSET: u16 = 0x3fff;
/// What is heard of a refusal: "communication administratively prohibited".
const UNREACHABLE: [u8; 2] = [3, 13];
const HELPER_ADDRESS: [u8; 6] = [0x52, 0x55, 0xc6, 0x12, 0xff, 0x02];
const GUEST_ADDRESS: [u8; 6] = [0x52, 0x55, 0xc6, 0x12, 0xff, 0x64];

pub const ECHO_REQUEST: u8 = 8;
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

#[derive(Debug, PartialEq, Clone, Copy)]
pub enum Transport {
    Tcp { from: u16, to: u16, flags: u8 },
    Udp { from: u16, to: u16 },
    Icmp { kind: u8, id: u16 },
    Other,
}

#[derive(Debug, PartialEq)]
pub enum Frame {
    /// Who has this address?
    ArpRequest(Ipv4Addr),
    Packet {
        source: Ipv4Addr,
        destination: Ipv4Addr,
        transport: Transport,
    },
    /// IPv6, pieces of a packet, packets with options, and whatever else no program of a sandbox needs to send.
    Unwanted,
}

pub fn read(frame: &[u8]) -> Frame {
    parse(frame).unwrap_or(Frame::Unwanted)
}

fn parse(frame: &[u8]) -> Option<Frame> {
    match number(frame, 12)? {
        TYPE_ARP => {
            let request = frame.get(ETHERNET..ETHERNET + ARP_LENGTH)?;
            // For Ethernet and IPv4, and a question.
            (request[..8] == [0, 1, 8, 0, 6, 4, 0, 1]).then(|| address(request, 24).map(Frame::ArpRequest))?
        }
        TYPE_IPV4 => {
            let packet = frame.get(ETHERNET..)?;
            // Version 4, without options: one of them chooses a packet's way.
            if *packet.first()? != 0x45 || number(packet, 6)? & MORE_FRAGMENTS_OR_OFFSET != 0 {
                return None;
            }
            let inner = packet.get(20..usize::from(number(packet, 2)?))?;
            let transport = match packet[9] {
                6 => Transport::Tcp { from: number(inner, 0)?, to: number(inner, 2)?, flags: *inner.get(13)? },
                17 if inner.len() >= 8 => Transport::Udp { from: number(inner, 0)?, to: number(inner, 2)? },
                1 => Transport::Icmp { kind: *inner.first()?, id: number(inner, 4)? },
                17 => return None,
                _ => Transport::Other,
            };
            Some(Frame::Packet { source: address(packet, 12)?, destination: address(packet, 16)?, transport })
        }
        _ => None,
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn address(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(Ipv4Addr::from(four))
}

/// The answer to a packet that is refused: its sender learns at once, instead of waiting. `frame` was read as a packet.
pub fn refusal(frame: &[u8]) -> Vec<u8> {
    let packet = &frame[ETHERNET..];
    let quoted = &packet[..packet.len().min(28)];
    let mut answer = Vec::with_capacity(ETHERNET + 28 + quoted.len());
    answer.extend_from_slice(&frame[6..12]);
    answer.extend_from_slice(&HELPER_ADDRESS);
    answer.extend_from_slice(&TYPE_IPV4.to_be_bytes());
    answer.extend_from_slice(&[0x45, 0]);
    answer.extend_from_slice(&((28 + quoted.len()) as u16).to_be_bytes());
    answer.extend_from_slice(&[0, 0, 0, 0, 64, 1, 0, 0]);
    answer.extend_from_slice(&GATEWAY.octets());
    answer.extend_from_slice(&GUEST.octets());
    let sum = checksum(&answer[ETHERNET..]);
    answer[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum);
    let message = answer.len();
    answer.extend_from_slice(&UNREACHABLE);
    answer.extend_from_slice(&[0; 6]);
    answer.extend_from_slice(quoted);
    let sum = checksum(&answer[message..]);
    answer[message + 2..message + 4].copy_from_slice(&sum);
    answer
}

/// A question that the helper answers while it lives.
pub fn probe() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&GUEST_ADDRESS);
    frame.extend_from_slice(&TYPE_ARP.to_be_bytes());
    frame.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend_from_slice(&GUEST_ADDRESS);
    frame.extend_from_slice(&GUEST.octets());
    frame.extend_from_slice(&[0; 6]);
    frame.extend_from_slice(&GATEWAY.octets());
    frame
}

/// The interface's own, so that what the helper learns from a probe is what it learns from the sandbox.
pub fn guest_address() -> [u8; 6] {
    GUEST_ADDRESS
}

pub fn is_neighbour(address: Ipv4Addr) -> bool {
    address == GATEWAY || address == DNS
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A packet from the sandbox, with `inner` as what the protocol carries.
    pub fn packet(destination: &str, protocol: u8, inner: &[u8]) -> Vec<u8> {
        let destination: Ipv4Addr = destination.parse().expect("an address");
        let mut frame = [&HELPER_ADDRESS[..], &GUEST_ADDRESS[..], &TYPE_IPV4.to_be_bytes()[..]].concat();
        frame.extend_from_slice(&[0x45, 0]);
        frame.extend_from_slice(&((20 + inner.len()) as u16).to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0x40, 0, 64, protocol, 0, 0]);
        frame.extend_from_slice(&GUEST.octets());
        frame.extend_from_slice(&destination.octets());
        frame.extend_from_slice(inner);
        frame
    }

    pub fn tcp(destination: &str, from: u16, to: u16, flags: u8) -> Vec<u8> {
        let mut inner = [from.to_be_bytes(), to.to_be_bytes()].concat();
        inner.extend_from_slice(&[0; 8]);
        inner.extend_from_slice(&[0x50, flags]);
        inner.extend_from_slice(&[0; 6]);
        packet(destination, 6, &inner)
    }

    pub fn udp(destination: &str, from: u16, to: u16) -> Vec<u8> {
        let mut inner = [from.to_be_bytes(), to.to_be_bytes()].concat();
        inner.extend_from_slice(&[0, 8, 0, 0]);
        packet(destination, 17, &inner)
    }

    /// What comes back of a connection of the sandbox.
    pub fn answered(source: &str, from: u16, to: u16, flags: u8) -> Vec<u8> {
        let mut frame = tcp("198.18.255.100", from, to, flags);
        let source: Ipv4Addr = source.parse().expect("an address");
        frame[ETHERNET + 12..ETHERNET + 16].copy_from_slice(&source.octets());
        frame
    }

    #[test]
    fn packets_are_read() {
        let found = read(&tcp("1.2.3.4", 1000, 443, SYN));
        let transport = Transport::Tcp { from: 1000, to: 443, flags: SYN };
        assert_eq!(found, Frame::Packet { source: GUEST, destination: Ipv4Addr::new(1, 2, 3, 4), transport });
        assert_eq!(read(&probe()), Frame::ArpRequest(GATEWAY));
    }

    #[test]
    fn no_beginning_of_a_frame_and_no_damage_to_it_is_more_than_unwanted() {
        for whole in [tcp("1.2.3.4", 1, 2, SYN), udp("1.2.3.4", 1, 2), packet("1.2.3.4", 1, &[8, 0, 0, 0, 1, 2])] {
            for length in 0..whole.len() {
                assert_eq!(read(&whole[..length]), Frame::Unwanted, "{length} bytes");
            }
            for at in 0..whole.len() {
                for value in [0, 1, 0x46, 0x60, 0xff] {
                    let mut damaged = whole.clone();
                    damaged[at] = value;
                    // Whatever it is taken for, reading it ends.
                    let _ = read(&damaged);
                }
            }
        }
    }

    #[test]
    fn pieces_and_packets_with_options_and_ipv6_are_unwanted() {
        let mut piece = udp("1.2.3.4", 1, 2);
        piece[ETHERNET + 6] = 0x20;
        assert_eq!(read(&piece), Frame::Unwanted);
        let mut later_piece = udp("1.2.3.4", 1, 2);
        later_piece[ETHERNET + 7] = 1;
        assert_eq!(read(&later_piece), Frame::Unwanted);
        let mut with_options = tcp("1.2.3.4", 1, 2, SYN);
        with_options[ETHERNET] = 0x46;
        assert_eq!(read(&with_options), Frame::Unwanted);
        let mut version_6 = tcp("1.2.3.4", 1, 2, SYN);
        version_6[12..14].copy_from_slice(&[0x86, 0xdd]);
        assert_eq!(read(&version_6), Frame::Unwanted);
    }

    #[test]
    fn a_refusal_quotes_what_it_refuses_and_adds_up() {
        let refused = tcp("10.1.2.3", 1000, 80, SYN);
        let answer = refusal(&refused);
        assert_eq!(checksum(&answer[ETHERNET..ETHERNET + 20]), [0, 0]);
        assert_eq!(checksum(&answer[ETHERNET + 20..]), [0, 0]);
        assert_eq!(answer[ETHERNET + 20..ETHERNET + 22], UNREACHABLE);
        assert_eq!(answer[ETHERNET + 28..], refused[ETHERNET..ETHERNET + 28]);
        assert_eq!(answer[..6], refused[6..12]);
    }
}
