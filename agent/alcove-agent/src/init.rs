//! The agent as process 1 of a virtual machine: it makes the machine fit for commands, serves, and ends the machine when its
//! serving ends. Whatever fails is one line on the console, and the machine's end. docs/agent-protocol.md, In a machine.

mod furnish;
pub mod groups;
mod network;
mod root;

use crate::{console, names, sys};
use network::Network;
use std::fmt::Display;
use std::os::fd::OwnedFd;

pub use groups::Groups;

/// As the kernel's command line gives them, after its ` -- `: `layer=/dev/vdb port=1024 hostname=box pids=512`. They begin with no
/// dashes, because a monitor of machines that looks for ` -- ` itself may take every `--` for it.
#[derive(Debug, PartialEq, Eq)]
pub struct InitOptions {
    /// Name in /dev of the block device, an ext4 file system, that takes what is written.
    layer: String,
    port: u32,
    pub hostname: String,
    /// The most processes and threads that all commands together may have.
    pids: Option<u32>,
    /// None: the loopback interface alone.
    network: Option<Network>,
}

/// What serving needs of a machine that is ready.
pub struct Ready {
    pub listener: OwnedFd,
    pub groups: Option<Groups>,
}

const DEFAULT_HOSTNAME: &str = "sandbox";

impl InitOptions {
    pub fn parse(words: &[String]) -> Result<InitOptions, String> {
        let (mut layer, mut port, mut hostname, mut pids) = (None, None, None, None);
        let (mut address, mut gateway, mut dns) = (None, None, None);
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is no name=value"))?;
            let known = match name {
                "layer" => &mut layer,
                "port" => &mut port,
                "hostname" => &mut hostname,
                "pids" => &mut pids,
                "address" => &mut address,
                "gateway" => &mut gateway,
                "dns" => &mut dns,
                _ => return Err(format!("option {name} is unknown")),
            };
            if known.replace(value).is_some() {
                return Err(format!("{name} is given twice"));
            }
        }
        let layer = layer.ok_or("layer is missing")?;
        let device = layer.strip_prefix("/dev/").filter(|name| !name.is_empty() && !name.contains('/'));
        let port = port.ok_or("port is missing")?;
        let hostname = hostname.unwrap_or(DEFAULT_HOSTNAME);
        let most = |text: &str| text.parse().map_err(|_| format!("pids={text:?} is no number of processes"));
        Ok(InitOptions {
            layer: device.ok_or_else(|| format!("layer={layer:?} is no name in /dev"))?.to_owned(),
            port: port.parse().map_err(|_| format!("port={port:?} is no port"))?,
            network: Network::parse(address, gateway, dns)?,
            pids: pids.map(most).transpose()?,
            hostname: names::checked(hostname).map_err(|why| format!("hostname={hostname:?} {why}"))?.to_owned(),
        })
    }
}

/// What went wrong, with the step and what it was about.
fn at<E: Display>(step: &'static str, about: &str) -> impl FnOnce(E) -> String {
    move |error| format!("{step} {about}: {error}")
}

/// Makes the machine ready. Called once, before anything else is done.
pub fn prepare(options: &InitOptions) -> Result<Ready, String> {
    // Control, alt and delete then tell this process, which ends the machine in order; else the kernel resets it at once.
    sys::take_over_reset();
    root::replace(&options.layer)?;
    furnish::mount_all()?;
    sys::loopback_up().map_err(at("network", "lo"))?;
    furnish::open_low_ports();
    names::set(None, &options.hostname).map_err(at("hostname", &options.hostname))?;
    if let Some(network) = &options.network {
        network.set_up()?;
    }
    furnish::complete_etc()?;
    let groups =
        groups::make(options.pids).map_err(|error| console::say(format_args!("no control groups: {error}"))).ok();
    let listener = sys::listen_vsock(options.port).map_err(at("vsock port", &options.port.to_string()))?;
    Ok(Ready { listener, groups })
}

/// Ends everything that runs and the machine with it.
pub fn end(why: Option<&str>) -> ! {
    if let Some(why) = why {
        console::say(format_args!("init: {why}"));
    }
    console::say(format_args!("the machine ends"));
    // SAFETY: plain kill: everything but this process.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    let error = sys::end_machine();
    console::say(format_args!("the machine cannot be ended: {error}"));
    // The kernel ends it with its first process.
    std::process::exit(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<InitOptions, String> {
        InitOptions::parse(&words.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_pairs_that_are_known_and_given_once() {
        let expected = InitOptions {
            layer: "vdb".into(),
            port: 1024,
            hostname: "box-1.local".into(),
            pids: Some(512),
            network: None,
        };
        assert_eq!(parse("layer=/dev/vdb port=1024 pids=512 hostname=box-1.local"), Ok(expected));
        assert_eq!(parse("port=5 layer=/dev/vdb").map(|options| options.hostname), Ok("sandbox".into()));
        for (words, why) in [
            ("port=1024", "layer is missing"),
            ("layer=/dev/vdb", "port is missing"),
            ("layer=vdb port=1", "layer=\"vdb\" is no name in /dev"),
            ("layer=/dev/../sda port=1", "is no name in /dev"),
            ("layer=/dev/vdb port=-1", "port=\"-1\" is no port"),
            ("layer=/dev/vdb port=1 port=2", "port is given twice"),
            ("layer=/dev/vdb port=1 pids=many", "pids=\"many\" is no number"),
            ("layer=/dev/vdb port=1 address=10.0.0.2", "address=\"10.0.0.2\""),
            ("layer=/dev/vdb port=1 address=10.0.0.2/33", "address=\"10.0.0.2/33\""),
            ("layer=/dev/vdb port=1 address=10.0.0.2/24 gateway=me", "gateway=\"me\""),
            ("layer=/dev/vdb port=1 gateway=10.0.0.1", "gateway and dns want an address"),
            ("layer=/dev/vdb port=1 quiet", "\"quiet\" is no name=value"),
            ("layer=/dev/vdb port=1 colour=red", "option colour is unknown"),
            ("layer=/dev/vdb port=1 hostname=a_b", "hostname=\"a_b\""),
        ] {
            let error = parse(words).expect_err(words);
            assert!(error.contains(why), "{words}: {error}");
        }
    }
}
