//! The host name of a container that was made before anybody knew for whom. No process inside may set it: its engine gave none of
//! them the right.

use std::os::fd::AsRawFd;

use crate::error::{AtStep, Result, StepError};
use crate::spec::NameSpec;
use crate::{network, sys};

const STEP: &str = "name";

/// Runs in a process of its own, which sees the container's name from then on.
pub fn name(spec: &NameSpec) -> Result<()> {
    let NameSpec { container, hostname } = spec;
    let process = network::container_process(container)?;
    let names = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/uts")).at(STEP, "the container's name");
    if names(&container.pid.to_string())? == names("self")? {
        return Err(StepError::new(STEP, format!("container {:.12} has the name of the machine", container.id)));
    }
    sys::set_hostname_in(process.as_raw_fd(), hostname).at(STEP, hostname)
}
