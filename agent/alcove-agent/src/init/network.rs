//! The network of a machine that has one beside its loopback interface.

use super::at;
use crate::sys;
use std::fs;
use std::net::Ipv4Addr;

/// The first interface of a machine.
const INTERFACE: &str = "eth0";
const RESOLVER: &str = "/etc/resolv.conf";

#[derive(Debug, PartialEq, Eq)]
pub struct Network {
    address: Ipv4Addr,
    prefix: u32,
    gateway: Option<Ipv4Addr>,
    dns: Option<Ipv4Addr>,
}

impl Network {
    /// Of `address=10.0.0.2/30`, `gateway=10.0.0.1` and `dns=10.0.0.1`, each of which may be missing.
    pub fn parse(address: Option<&str>, gateway: Option<&str>, dns: Option<&str>) -> Result<Option<Network>, String> {
        let Some(text) = address else {
            let none = gateway.is_none() && dns.is_none();
            return if none { Ok(None) } else { Err("gateway and dns want an address".into()) };
        };
        let (address, prefix) = text
            .split_once('/')
            .and_then(|(address, prefix)| Some((address.parse().ok()?, prefix.parse().ok()?)))
            .filter(|(_, prefix)| *prefix <= 32)
            .ok_or_else(|| {
                format!("address={text:?} is no IPv4 address with the length of its network, as 10.0.0.2/30")
            })?;
        let plain = |name: &str, text: Option<&str>| {
            text.map(|text| text.parse().map_err(|_| format!("{name}={text:?} is no IPv4 address"))).transpose()
        };
        Ok(Some(Network { address, prefix, gateway: plain("gateway", gateway)?, dns: plain("dns", dns)? }))
    }

    pub fn set_up(&self) -> Result<(), String> {
        sys::set_address(INTERFACE, self.address, self.prefix).map_err(at("network", INTERFACE))?;
        sys::interface_up(INTERFACE).map_err(at("network", INTERFACE))?;
        if let Some(gateway) = self.gateway {
            sys::add_default_route(gateway).map_err(at("network gateway", &gateway.to_string()))?;
        }
        if let Some(dns) = self.dns {
            // In place of whatever an image has there, a link into nowhere often.
            let _ = fs::remove_file(RESOLVER);
            let _ = fs::create_dir("/etc");
            fs::write(RESOLVER, format!("nameserver {dns}\n")).map_err(at("write", RESOLVER))?;
        }
        Ok(())
    }
}
