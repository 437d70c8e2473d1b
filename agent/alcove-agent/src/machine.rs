//! What the agent does where it is process 1 of a virtual machine, and nowhere else: commands of root hold what the machine's
//! root holds, and the machine can be renewed when it goes on somewhere else than where it stood.

use crate::agent::Agent;
use crate::requests::{Answer, bad_request};
use crate::{caps, console, names, sys};
use alcove_protocol::{ErrorBody, ErrorCode, Renew};

/// What [`Machine`] adds to the features of the agent.
const FEATURES: [&str; 2] = ["renew", "own_groups"];
/// A generator that starts again needs as much as it keeps.
const LEAST_ENTROPY: usize = 32;
const MOST_ENTROPY: usize = 256;

pub struct Machine {
    hostname: String,
    /// Capabilities of the machine's root.
    pub root_caps: u64,
    /// Whether single commands can have control groups.
    pub own_groups: bool,
}

impl Machine {
    pub fn new(hostname: String, own_groups: bool) -> Machine {
        Machine { hostname, root_caps: caps::permitted(), own_groups }
    }

    pub fn features(&self) -> &'static [&'static str] {
        if self.own_groups { &FEATURES } else { &FEATURES[..1] }
    }

    pub fn rename(&mut self, name: &str) -> Answer<()> {
        names::checked(name).map_err(|why| bad_request(format!("hostname: {name:?} {why}")))?;
        names::set(Some(&self.hostname), name)
            .map_err(|error| ErrorBody::new(ErrorCode::Io, format!("hostname: {error}")))?;
        name.clone_into(&mut self.hostname);
        Ok(())
    }
}

impl Agent {
    /// The machine is a copy of one that stood still: nothing that others have too is left of its clock, its random numbers
    /// and its name.
    pub fn renew(&mut self, request: &Renew) -> Answer<()> {
        let Some(machine) = &mut self.machine else {
            return Err(ErrorBody::new(
                ErrorCode::Unsupported,
                "sandbox.renew: the agent is not the init of a machine",
            ));
        };
        let secret = unhex(&request.entropy)
            .filter(|secret| (LEAST_ENTROPY..=MOST_ENTROPY).contains(&secret.len()))
            .ok_or_else(|| {
                bad_request(format!(
                    "entropy: {LEAST_ENTROPY} to {MOST_ENTROPY} bytes in hexadecimal digits are wanted"
                ))
            })?;
        let failed = |step: &str, error: std::io::Error| ErrorBody::new(ErrorCode::Io, format!("{step}: {error}"));
        if let Some(name) = &request.hostname {
            machine.rename(name)?;
        }
        sys::add_entropy(&secret).map_err(|error| failed("entropy", error))?;
        sys::set_wall_clock(request.realtime).map_err(|error| failed("realtime", error))?;
        self.timers.rearm();
        console::say(format_args!("the machine is renewed: its clock, its random numbers, its name"));
        Ok(())
    }
}

/// The bytes that pairs of hexadecimal digits stand for.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    (0..text.len())
        .step_by(2)
        .map(|at| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()))
        .collect()
}
