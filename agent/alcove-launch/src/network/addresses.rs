//! Which addresses a sandbox may not reach. The list is of what is not the internet: the machine itself, private and shared
//! networks, link-local and metadata addresses, groups of receivers, and what is reserved.

use std::net::Ipv4Addr;

use super::routes;
use crate::error::{Result, StepError};

/// The network between a sandbox and its helper. From the block for benchmarks, which nobody's network is in.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 18, 255, 2);
pub const DNS: Ipv4Addr = Ipv4Addr::new(198, 18, 255, 3);
pub const GUEST: Ipv4Addr = Ipv4Addr::new(198, 18, 255, 100);
pub const OWN_NETWORK: &str = "198.18.255.0/24";

/// The special-purpose registry of IPv4, and an address that a cloud's metadata is served from beside 169.254.169.254.
const CLOSED: [(Ipv4Addr, u8); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    address: u32,
    mask: u32,
}

impl Prefix {
    pub fn new(address: Ipv4Addr, length: u8) -> Self {
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        Self { address: u32::from(address) & mask, mask }
    }

    /// `192.0.2.0/24`; an address alone is a network of one.
    fn parse(text: &str) -> Result<Self> {
        let (address, length) = text.split_once('/').unwrap_or((text, "32"));
        match (address.parse(), length.parse()) {
            (Ok(address), Ok(length)) if length <= 32 => Ok(Self::new(address, length)),
            _ => {
                Err(StepError::new("network", format!("network_allow: {text} is no IPv4 network such as 192.0.2.0/24")))
            }
        }
    }

    fn holds(self, address: Ipv4Addr) -> bool {
        u32::from(address) & self.mask == self.address
    }
}

pub struct Reach {
    closed: Vec<Prefix>,
    allowed: Vec<Prefix>,
    /// The machine's own, which may be public; none: they were never told, and every address may be one of them.
    own: Option<Vec<Prefix>>,
}

impl Reach {
    pub fn new(allow: &[String]) -> Result<Self> {
        Ok(Self {
            closed: CLOSED.map(|(address, length)| Prefix::new(address, length)).to_vec(),
            allowed: allow.iter().map(|text| Prefix::parse(text)).collect::<Result<_>>()?,
            own: own_addresses(),
        })
    }

    /// Addresses of a machine come and go.
    pub fn look_again(&mut self) {
        self.learn(own_addresses());
    }

    /// What could not be found out does not open what is known.
    fn learn(&mut self, own: Option<Vec<Prefix>>) {
        if own.is_some() {
            self.own = own;
        }
    }

    pub fn is_open(&self, address: Ipv4Addr) -> bool {
        let mut allowed = self.allowed.iter().filter(|prefix| prefix.holds(address));
        if self.own.as_ref().is_none_or(|own| own.iter().any(|prefix| prefix.holds(address))) {
            // Who opens a network that the machine is in does not mean the machine.
            return allowed.any(|prefix| prefix.mask == u32::MAX);
        }
        allowed.next().is_some() || !self.closed.iter().any(|prefix| prefix.holds(address))
    }
}

/// Of every interface of the network that this process is in, and those that only its routes call its own: clouds give a machine
/// the address of a load balancer so. @returns none where the kernel does not tell.
fn own_addresses() -> Option<Vec<Prefix>> {
    let mut found = interface_addresses()?;
    for route in routes::local()? {
        if !found.contains(&route) {
            found.push(route);
        }
    }
    Some(found)
}

fn interface_addresses() -> Option<Vec<Prefix>> {
    let mut found = Vec::new();
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the list is the library's until it is freed, and an address of this family has this type.
    unsafe {
        if libc::getifaddrs(&raw mut first) != 0 {
            return None;
        }
        let mut entry = first;
        while let Some(interface) = entry.as_ref() {
            if let Some(address) = interface.ifa_addr.as_ref() {
                if i32::from(address.sa_family) == libc::AF_INET {
                    let address = interface.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    found.push(Prefix::new(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)), 32));
                }
            }
            entry = interface.ifa_next;
        }
        libc::freeifaddrs(first);
    }
    Some(found)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    impl Reach {
        pub fn of(allow: &[&str], own: &[&str]) -> Self {
            let allow: Vec<String> = allow.iter().map(|text| (*text).to_owned()).collect();
            let own = own.iter().map(|text| Prefix::parse(text).expect("a network")).collect();
            Self { own: Some(own), ..Self::new(&allow).expect("a list") }
        }
    }

    fn open(reach: &Reach, address: &str) -> bool {
        reach.is_open(address.parse().expect("an address"))
    }

    #[test]
    fn what_is_not_the_internet_is_closed_from_its_first_to_its_last_address() {
        let reach = Reach::of(&[], &["8.8.4.4"]);
        let ranges = [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("168.63.129.16", "168.63.129.16"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "255.255.255.255"),
            ("8.8.4.4", "8.8.4.4"),
        ];
        let number = |text: &str| u32::from(text.parse::<Ipv4Addr>().expect("an address"));
        let closed = |value: u32| ranges.iter().any(|(first, last)| (number(first)..=number(last)).contains(&value));
        for (first, last) in ranges {
            let edges = [number(first), number(last), number(first).wrapping_sub(1), number(last).wrapping_add(1)];
            for value in edges {
                let address = Ipv4Addr::from(value);
                assert_eq!(reach.is_open(address), !closed(value), "{address}");
            }
        }
        assert!(open(&reach, "1.1.1.1"));
    }

    #[test]
    fn what_is_allowed_is_open_and_nothing_beside_it() {
        let reach = Reach::of(&["10.1.2.0/24", "203.0.113.80"], &["10.1.2.7", "203.0.113.80"]);
        for (address, is_open) in [
            ("10.1.2.0", true),
            ("10.1.2.255", true),
            ("10.1.3.0", false),
            ("203.0.113.80", true),
            ("203.0.113.81", false),
            // The machine's own, in a network that is allowed.
            ("10.1.2.7", false),
        ] {
            assert_eq!(open(&reach, address), is_open, "{address}");
        }
    }

    #[test]
    fn networks_whose_addresses_are_all_the_machines_own_are_closed() {
        let reach = Reach::of(&["8.8.4.9"], &["8.8.4.0/24"]);
        for (address, is_open) in [("8.8.4.0", false), ("8.8.4.255", false), ("8.8.5.0", true), ("8.8.4.9", true)] {
            assert_eq!(open(&reach, address), is_open, "{address}");
        }
    }

    #[test]
    fn the_machine_stays_closed_while_its_addresses_cannot_be_found_out() {
        let mut reach = Reach::of(&["10.1.2.0/24", "203.0.113.80"], &["8.8.4.4"]);
        reach.learn(None);
        assert!(!open(&reach, "8.8.4.4") && open(&reach, "8.8.8.8"));
        reach.learn(Some(vec![Prefix::parse("8.8.8.8").expect("an address")]));
        assert!(open(&reach, "8.8.4.4") && !open(&reach, "8.8.8.8"));
        // Never told: what is named alone is open whosever it is, and nothing else.
        reach.own = None;
        for (address, is_open) in [("1.1.1.1", false), ("10.1.2.7", false), ("203.0.113.80", true)] {
            assert_eq!(open(&reach, address), is_open, "{address}");
        }
    }

    #[test]
    fn the_filter_of_the_relay_lets_it_find_out_the_addresses_and_have_memory() {
        let child = crate::sys::fork().expect("a process");
        if child == 0 {
            // SAFETY: plain numbers.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            let told = alcove_filter::install_carrying().is_ok()
                && own_addresses().is_some_and(|own| own.contains(&Prefix::new(Ipv4Addr::new(127, 0, 0, 0), 8)));
            let memory = (1..24).map(|size| vec![1u8; 1 << size]).collect::<Vec<_>>();
            // SAFETY: as above; nothing that is shared with the tests is flushed.
            unsafe { libc::_exit(i32::from(!(told && memory.iter().all(|part| part[0] == 1)))) }
        }
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }

    #[test]
    fn a_list_that_cannot_be_read_is_refused() {
        for text in ["10.0.0.0/33", "fd00::/8", "10.0.0", "10.0.0.0/-1", ""] {
            let refused = Reach::new(&[text.to_owned()]).err().expect(text);
            assert!(refused.message.contains("network_allow"), "{}", refused.message);
        }
        assert!(Reach::new(&["0.0.0.0/0".to_owned()]).is_ok_and(|reach| open(&reach, "255.255.255.255")));
    }
}
