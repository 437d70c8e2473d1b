//! What a sandbox may send: decided for each frame, after the sandbox's own network has done with it. Nothing that
//! programs inside do about routes, interfaces or names changes an address that a frame has.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use super::addresses::{DNS, GUEST, OWN_NETWORK, Reach};
use super::bucket::Bucket;
use super::frames::{ACK, ECHO_REQUEST, FIN, Frame, RST, SYN, Transport, is_neighbour, read};

const DNS_PORT: u16 = 53;
/// Questions for names: the machine's resolver is everybody's.
const NAMES_PER_SECOND: f64 = 100.0;
const NAMES_AT_ONCE: f64 = 200.0;
/// How long the helper keeps the socket of a question that was answered.
const ANSWERED_MS: u64 = 10_000;
/// Questions that it has sockets for: no more than the rate lets be answered. One that nobody answers keeps its socket for as
/// long as any datagram, so that the rate alone would let them take all of its descriptors, and as many ports of the machine.
const MOST_QUESTIONS: usize = (NAMES_AT_ONCE + NAMES_PER_SECOND * (ANSWERED_MS / 1_000) as f64) as usize;
/// The share of its connections that a sandbox may open in a second, for long.
const NEW_EACH_SECOND: f64 = 0.1;
/// How long the helper keeps a socket for what nothing is heard of any more. Its own times, so that the count here is
/// never below what it has.
const OPENING_MS: u64 = 130_000;
const DATAGRAM_MS: u64 = 240_000;
const CONNECTED_MS: u64 = 7_200_000;
const SWEEP_MS: u64 = 1_000;

#[derive(Debug, PartialEq, Clone, Copy)]
pub enum Verdict {
    Pass,
    /// Without a word: its sender tries again, or should not have sent it.
    Drop,
    /// With an answer.
    Refuse,
}

/// A socket of the helper.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
enum Flow {
    Tcp { from: u16, address: Ipv4Addr, to: u16 },
    Udp { from: u16 },
    Echo { id: u16 },
}

struct State {
    until_ms: u64,
    /// Who has said that nothing more comes.
    ended_here: bool,
    ended_there: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Debug)]
pub struct Counts {
    /// Packets for addresses that are closed.
    pub closed: u64,
    /// Packets beyond a limit of connections or names.
    pub limited: u64,
}

pub struct Filter {
    pub reach: Reach,
    pub counts: Counts,
    flows: HashMap<Flow, State>,
    most: usize,
    names: Bucket,
    /// By the port that asks, until when.
    questions: HashMap<u16, u64>,
    fresh: Bucket,
    swept_ms: u64,
    questions_swept_ms: u64,
}

impl Filter {
    pub fn new(reach: Reach, connections: u32) -> Self {
        let most = f64::from(connections);
        Self {
            reach,
            counts: Counts::default(),
            flows: HashMap::new(),
            most: connections as usize,
            names: Bucket::new(NAMES_AT_ONCE, NAMES_PER_SECOND),
            questions: HashMap::new(),
            fresh: Bucket::new(most, most * NEW_EACH_SECOND),
            swept_ms: 0,
            questions_swept_ms: 0,
        }
    }

    pub fn connections(&self) -> usize {
        self.flows.len()
    }

    pub fn outgoing(&mut self, frame: &[u8], now_ms: u64) -> Verdict {
        match read(frame) {
            Frame::ArpRequest(address) if is_neighbour(address) => Verdict::Pass,
            Frame::ArpRequest(_) | Frame::Unwanted => Verdict::Drop,
            Frame::Packet { source, .. } if source != GUEST => Verdict::Drop,
            Frame::Packet { destination: DNS, transport, .. } => self.name(transport, now_ms),
            Frame::Packet { destination, transport, .. } => {
                if !self.reach.is_open(destination) || is_own(destination) {
                    self.counts.closed += 1;
                    return Verdict::Refuse;
                }
                self.send(destination, transport, now_ms)
            }
        }
    }

    /// Learns the end of connections, and which questions were answered, from what comes back.
    pub fn incoming(&mut self, frame: &[u8], now_ms: u64) {
        match read(frame) {
            Frame::Packet { source, transport: Transport::Tcp { from, to, flags }, .. } => {
                self.follow(Flow::Tcp { from: to, address: source, to: from }, flags, |state| state.ended_there = true);
            }
            Frame::Packet { source: DNS, transport: Transport::Udp { to, .. }, .. } => {
                if let Some(until_ms) = self.questions.get_mut(&to) {
                    *until_ms = now_ms + ANSWERED_MS;
                }
            }
            _ => {}
        }
    }

    /// To the helper's resolver, whose address is for that alone.
    fn name(&mut self, transport: Transport, now_ms: u64) -> Verdict {
        let is_question = match transport {
            Transport::Udp { to, .. } | Transport::Tcp { to, .. } => to == DNS_PORT,
            _ => false,
        };
        if !is_question {
            self.counts.closed += 1;
            return Verdict::Refuse;
        }
        if !self.names.take(1.0, now_ms) {
            self.counts.limited += 1;
            return Verdict::Drop;
        }
        match transport {
            Transport::Udp { from, .. } => self.ask(from, now_ms),
            _ => self.send(DNS, transport, now_ms),
        }
    }

    fn ask(&mut self, from: u16, now_ms: u64) -> Verdict {
        let is_full =
            |questions: &HashMap<u16, u64>| questions.len() >= MOST_QUESTIONS && !questions.contains_key(&from);
        if is_full(&self.questions) && now_ms >= self.questions_swept_ms + SWEEP_MS {
            self.questions_swept_ms = now_ms;
            self.questions.retain(|_, until_ms| *until_ms > now_ms);
        }
        if is_full(&self.questions) {
            self.counts.limited += 1;
            return Verdict::Drop;
        }
        self.questions.insert(from, now_ms + DATAGRAM_MS);
        Verdict::Pass
    }

    fn send(&mut self, address: Ipv4Addr, transport: Transport, now_ms: u64) -> Verdict {
        match transport {
            Transport::Tcp { from, to, flags } => {
                let flow = Flow::Tcp { from, address, to };
                if flags & (SYN | ACK) == SYN {
                    return self.open(flow, OPENING_MS, now_ms);
                }
                if let Some(state) = self.flows.get_mut(&flow) {
                    state.until_ms = now_ms + CONNECTED_MS;
                }
                self.follow(flow, flags, |state| state.ended_here = true);
                Verdict::Pass
            }
            Transport::Udp { from, .. } => self.open(Flow::Udp { from }, DATAGRAM_MS, now_ms),
            Transport::Icmp { kind: ECHO_REQUEST, id } => self.open(Flow::Echo { id }, DATAGRAM_MS, now_ms),
            Transport::Icmp { .. } => Verdict::Drop,
            Transport::Other => Verdict::Refuse,
        }
    }

    fn open(&mut self, flow: Flow, for_ms: u64, now_ms: u64) -> Verdict {
        if let Some(state) = self.flows.get_mut(&flow) {
            state.until_ms = now_ms + for_ms;
            return Verdict::Pass;
        }
        if self.flows.len() >= self.most && now_ms >= self.swept_ms + SWEEP_MS {
            self.swept_ms = now_ms;
            self.flows.retain(|_, state| state.until_ms > now_ms);
        }
        if self.flows.len() >= self.most {
            self.counts.limited += 1;
            return Verdict::Refuse;
        }
        if !self.fresh.take(1.0, now_ms) {
            self.counts.limited += 1;
            return Verdict::Drop;
        }
        self.flows.insert(flow, State { until_ms: now_ms + for_ms, ended_here: false, ended_there: false });
        Verdict::Pass
    }

    fn follow(&mut self, flow: Flow, flags: u8, ended: impl FnOnce(&mut State)) {
        if flags & (FIN | RST) == 0 {
            return;
        }
        if let Some(state) = self.flows.get_mut(&flow) {
            ended(state);
            if flags & RST != 0 || (state.ended_here && state.ended_there) {
                self.flows.remove(&flow);
            }
        }
    }
}

/// The network of sandbox and helper is nobody's, whatever else is allowed: the gateway would be the machine's loopback.
fn is_own(address: Ipv4Addr) -> bool {
    debug_assert_eq!(OWN_NETWORK, "198.18.255.0/24");
    address.octets()[..3] == GUEST.octets()[..3]
}

#[cfg(test)]
mod tests {
    use super::super::frames::probe;
    use super::super::frames::tests::{answered, packet, tcp, udp};
    use super::*;

    const FAR: &str = "1.2.3.4";

    fn filter(connections: u32) -> Filter {
        Filter::new(Reach::of(&[], &["93.184.216.34"]), connections)
    }

    #[test]
    fn closed_addresses_are_refused_by_every_protocol() {
        let mut filter = filter(8);
        for address in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "93.184.216.34", "224.0.0.251", "255.255.255.255"] {
            let echo = packet(address, 1, &[ECHO_REQUEST, 0, 0, 0, 0, 1]);
            for frame in [tcp(address, 1, 80, SYN), tcp(address, 1, 80, ACK), udp(address, 1, 53), echo] {
                assert_eq!(filter.outgoing(&frame, 0), Verdict::Refuse, "{address}");
            }
        }
        assert_eq!(filter.counts, Counts { closed: 24, limited: 0 });
        assert_eq!(filter.connections(), 0);
        assert_eq!(filter.outgoing(&tcp(FAR, 1, 80, SYN), 0), Verdict::Pass);
    }

    #[test]
    fn the_network_of_the_helper_stays_closed_whatever_is_allowed() {
        let mut filter = Filter::new(Reach::of(&["0.0.0.0/0"], &[]), 8);
        for (address, port) in
            [("198.18.255.2", 80), ("198.18.255.2", 53), ("198.18.255.3", 80), ("198.18.255.255", 53)]
        {
            assert_eq!(filter.outgoing(&tcp(address, 1, port, SYN), 0), Verdict::Refuse, "{address}:{port}");
            assert_eq!(filter.outgoing(&udp(address, 1, port), 0), Verdict::Refuse, "{address}:{port}");
        }
        assert_eq!(filter.outgoing(&udp("198.18.255.3", 1, 53), 0), Verdict::Pass);
        assert_eq!(filter.outgoing(&tcp("10.0.0.1", 1, 80, SYN), 0), Verdict::Pass);
    }

    #[test]
    fn only_neighbours_are_asked_for_and_nobody_else_is_spoken_for() {
        let mut filter = filter(8);
        let mut stranger = probe();
        stranger[41] = 9;
        assert_eq!(filter.outgoing(&probe(), 0), Verdict::Pass);
        assert_eq!(filter.outgoing(&stranger, 0), Verdict::Drop);
        let mut forged = tcp(FAR, 1, 80, SYN);
        forged[14 + 12] = 9;
        assert_eq!(filter.outgoing(&forged, 0), Verdict::Drop);
    }

    #[test]
    fn connections_are_counted_and_their_end_frees_them() {
        let mut filter = filter(2);
        assert_eq!(filter.outgoing(&tcp(FAR, 1, 80, SYN), 0), Verdict::Pass);
        assert_eq!(filter.outgoing(&udp(FAR, 2, 80), 0), Verdict::Pass);
        assert_eq!(filter.outgoing(&udp(FAR, 2, 81), 0), Verdict::Pass);
        assert_eq!(filter.outgoing(&tcp(FAR, 3, 80, SYN), 0), Verdict::Refuse);
        // The first again is the same connection.
        assert_eq!(filter.outgoing(&tcp(FAR, 1, 80, SYN), 0), Verdict::Pass);
        assert_eq!((filter.connections(), filter.counts.limited), (2, 1));
        filter.outgoing(&tcp(FAR, 1, 80, FIN | ACK), 0);
        assert_eq!(filter.connections(), 2);
        filter.incoming(&answered(FAR, 80, 1, FIN | ACK), 0);
        assert_eq!(filter.connections(), 1);
        let later = 60_000;
        assert_eq!(filter.outgoing(&tcp(FAR, 3, 80, SYN), later), Verdict::Pass);
        filter.incoming(&answered(FAR, 80, 3, RST), later);
        assert_eq!(filter.connections(), 1);
        // Nothing was heard of the datagrams.
        assert_eq!(filter.outgoing(&tcp(FAR, 4, 80, SYN), later), Verdict::Pass);
        assert_eq!(filter.outgoing(&tcp(FAR, 5, 80, SYN), later + SWEEP_MS), Verdict::Refuse);
        assert_eq!(filter.outgoing(&tcp(FAR, 5, 80, SYN), DATAGRAM_MS), Verdict::Pass);
    }

    #[test]
    fn connections_are_opened_no_faster_than_a_share_of_them_each_second() {
        let mut filter = filter(10);
        let mut passed = 0;
        for port in 0..100u16 {
            if filter.outgoing(&tcp(FAR, port, 80, SYN), 0) == Verdict::Pass {
                passed += 1;
            }
            filter.outgoing(&tcp(FAR, port, 80, RST), 0);
        }
        assert_eq!((passed, filter.connections()), (10, 0));
        assert_eq!(filter.outgoing(&tcp(FAR, 1, 80, SYN), 1_000), Verdict::Pass);
        assert_eq!(filter.outgoing(&tcp(FAR, 2, 80, SYN), 1_000), Verdict::Drop);
    }

    #[test]
    fn a_flood_of_questions_reaches_the_resolver_at_a_bounded_rate() {
        let mut filter = filter(10);
        let mut asked = |now_ms: u64| {
            (0..10_000u16)
                .filter(|port| filter.outgoing(&udp("198.18.255.3", *port, 53), now_ms) == Verdict::Pass)
                .count()
        };
        assert_eq!(asked(0), 200);
        assert_eq!(asked(1_000), 100);
    }

    #[test]
    fn questions_that_nobody_answers_end_at_as_many_as_could_be_answered() {
        let mut filter = filter(10);
        // A hundred each second for four minutes, each from a port of its own.
        let mut passed = 0;
        for second in 0..240u64 {
            for port in 0..100u64 {
                let from = (second * 100 + port) as u16;
                passed += usize::from(filter.outgoing(&udp("198.18.255.3", from, 53), second * 1_000) == Verdict::Pass);
            }
        }
        assert_eq!(passed, MOST_QUESTIONS);
        // Who has asked may ask again.
        assert_eq!(filter.outgoing(&udp("198.18.255.3", 7, 53), 240_000), Verdict::Pass);
        // What is answered is forgotten soon.
        let mut answer = udp("198.18.255.100", 53, 7);
        answer[26..30].copy_from_slice(&DNS.octets());
        filter.incoming(&answer, 240_000);
        assert_eq!(filter.questions.get(&7), Some(&(240_000 + ANSWERED_MS)));
        assert_eq!(filter.outgoing(&udp("198.18.255.3", 60_000, 53), 241_000), Verdict::Pass);
    }

    #[test]
    fn questions_that_are_answered_end_at_their_rate_alone() {
        let mut filter = filter(10);
        let mut passed = 0;
        for second in 0..60u64 {
            for port in 0..100u64 {
                let from = (second * 100 + port) as u16;
                passed += usize::from(filter.outgoing(&udp("198.18.255.3", from, 53), second * 1_000) == Verdict::Pass);
                let mut answer = udp("198.18.255.100", 53, from);
                answer[26..30].copy_from_slice(&DNS.octets());
                filter.incoming(&answer, second * 1_000);
            }
        }
        assert_eq!(passed, 6_000);
    }
}
