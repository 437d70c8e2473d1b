//! A container's first process, as its engine names it: by a number, which is this machine's only when the engine is on
//! it and sees the same processes, and which may be another process's by the time that it is looked at.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;

use super::STEP;
use crate::error::{AtStep, Result, StepError};
use crate::spec::ContainerSpec;
use crate::sys;

/// The step that fails where the engine is not on this machine, which nothing that is asked for here can change.
const ENGINE: &str = "engine";

/// @throws StepError when that number is not of a process of this container here, or the container has no network of its
/// own: the interface would be made in somebody else's.
pub fn process(container: &ContainerSpec) -> Result<OwnedFd> {
    let ContainerSpec { id, pid } = container;
    let elsewhere = || {
        StepError::new(
            ENGINE,
            format!(
                "process {pid} is not one of container {id:.12} here: the engine has to run on this machine, and to see the same processes as the service"
            ),
        )
    };
    if id.len() != 64 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(StepError::new(STEP, format!("{id:.80} is no id of a container")));
    }
    // Opened first, compared after, and looked at again at the end: what is read in between is of this process.
    let handle = sys::pidfd_open(*pid).map_err(|_| elsewhere())?;
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).map_err(|_| elsewhere())?;
    if !is_in(&groups, id) {
        return Err(elsewhere());
    }
    if network_of(&pid.to_string())? == network_of("self")? {
        return Err(StepError::new(STEP, format!("container {id:.12} has the network of the machine")));
    }
    if sys::wait_readable(handle.as_raw_fd(), 0).at(STEP, "the container")? {
        return Err(StepError::new(STEP, "the container ended"));
    }
    Ok(handle)
}

/// Engines name a group by the container's id, alone or with their own name around it: nobody else makes one of this name,
/// for the id is a random number of 256 bits and groups are made with rights over the machine.
fn is_in(groups: &str, id: &str) -> bool {
    let names = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).flat_map(|path| path.split('/'));
    names
        .map(|name| name.strip_suffix(".scope").unwrap_or(name))
        .any(|name| name.strip_suffix(id).is_some_and(|before| before.is_empty() || before.ends_with('-')))
}

fn network_of(process: &str) -> Result<(u64, u64)> {
    let path = format!("/proc/{process}/ns/net");
    let found = std::fs::metadata(&path).at(STEP, &path)?;
    Ok((found.st_dev(), found.st_ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "1e7b928b16440a4f3e49ea8d92059fb5257fd986b1537154cb1cac1ecceb1a1f";

    #[test]
    fn a_group_of_a_container_is_known_by_its_id_however_an_engine_spells_it() {
        for groups in [
            format!("9:name=systemd:/docker/{ID}\n8:pids:/docker/{ID}\n0::/docker/{ID}\n"),
            format!("0::/system.slice/docker-{ID}.scope\n"),
            format!("0::/../../machine.slice/libpod-{ID}.scope/container\n"),
            format!("4:memory:/a:b/{ID}\n"),
        ] {
            assert!(is_in(&groups, ID), "{groups}");
        }
    }

    #[test]
    fn other_groups_are_not_of_it() {
        let other = ID.replace('e', "0");
        for groups in [
            "0::/\n".to_owned(),
            String::new(),
            format!("0::/docker/{other}\n"),
            format!("0::/docker/{ID}0\n"),
            format!("0::/docker/0{ID}\n"),
            format!("1:name={ID}:/\n"),
        ] {
            assert!(!is_in(&groups, ID), "{groups}");
        }
    }

    #[test]
    fn a_process_of_somebody_else_is_refused_and_a_number_that_is_nobodys() {
        let own = std::process::id() as i32;
        for (id, pid, why) in [
            (ID, own, "is not one of container 1e7b928b1644 here"),
            (ID, i32::MAX, "is not one of container"),
            ("self", own, "is no id of a container"),
            ("", own, "is no id of a container"),
        ] {
            let refused = process(&ContainerSpec { id: id.to_owned(), pid }).expect_err("refused");
            assert!(refused.message.contains(why), "{}", refused.message);
        }
    }
}
