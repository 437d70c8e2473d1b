//! The control groups of a machine (cgroup v2): one for all commands, in which single ones may have groups of their own.
//!
//! ```text
//! /sys/fs/cgroup          the agent
//!   sandbox               nothing itself; its process limit stops what forks without pause
//!     commands            commands without limits of their own
//!     execs/<exec id>     a command with limits of its own
//! ```

use crate::own_group::OwnGroup;
use crate::{stats, sys};
use std::ffi::CStr;
use std::fs;
use std::io::{Error, Result};
use std::os::fd::OwnedFd;

const ROOT: &str = "/sys/fs/cgroup";
const EXECS: &str = "/sys/fs/cgroup/sandbox/execs";
/// How many processes and threads commands have.
pub const PIDS: &CStr = c"/sys/fs/cgroup/sandbox/pids.current";
pub const PIDS_LIMIT: &CStr = c"/sys/fs/cgroup/sandbox/pids.max";
/// Of the memory that is free at the start, the part that is the agent's and the kernel's.
const RESERVED: u64 = 16;
const CONTROLLERS: [&str; 2] = ["+memory", "+pids"];

/// Open files of the group of all commands.
pub struct Groups {
    /// Joins it.
    pub join: OwnedFd,
    /// Its process limit.
    pub pids: OwnedFd,
    /// Counts its memory kills.
    pub kills: OwnedFd,
}

/// @param most processes and threads of all commands.
pub fn make(most: Option<u32>) -> Result<Groups> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    sys::mount("cgroup2", ROOT, "cgroup2", flags, "")?;
    let (sandbox, commands) = (format!("{ROOT}/sandbox"), format!("{ROOT}/sandbox/commands"));
    for (parent, child) in [(ROOT, sandbox.as_str()), (&sandbox, &commands), (&sandbox, EXECS)] {
        hand_down(parent)?;
        fs::create_dir(child)?;
    }
    hand_down(EXECS)?;
    if let Some(available) = stats::available_memory() {
        // What commands use up is found out in their group, at once; a machine without any memory left stands still first.
        fs::write(format!("{sandbox}/memory.max"), (available - available / RESERVED).to_string())?;
    }
    if let Some(most) = most {
        fs::write(format!("{sandbox}/pids.max"), most.to_string())?;
    }
    Ok(Groups {
        join: open(format!("{commands}/cgroup.procs"), libc::O_WRONLY)?,
        pids: open(format!("{sandbox}/pids.max"), libc::O_RDWR)?,
        kills: open(format!("{sandbox}/memory.events"), libc::O_RDONLY)?,
    })
}

/// A group for the command that is started next with this id.
pub fn make_one(exec_id: &str, memory_bytes: Option<u64>, pids: Option<u64>) -> Result<OwnGroup> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if exec_id.is_empty() || exec_id.len() > 64 || !exec_id.bytes().all(fits) {
        return Err(Error::other("its id cannot name one"));
    }
    let group = format!("{EXECS}/{exec_id}");
    // One that was asked for before and not used.
    let _ = fs::remove_dir(&group);
    fs::create_dir(&group)?;
    let file = |name: &str| format!("{group}/{name}");
    let mut met = Vec::new();
    if let Some(bytes) = memory_bytes {
        fs::write(file("memory.max"), bytes.to_string())?;
        // Absent where the kernel does not swap.
        let _ = fs::write(file("memory.swap.max"), "0");
        met.push(open(file("memory.events"), libc::O_RDONLY)?);
    }
    if let Some(count) = pids {
        fs::write(file("pids.max"), count.to_string())?;
    }
    let join = open(file("cgroup.procs"), libc::O_WRONLY)?;
    let kills = open(file("memory.events"), libc::O_RDONLY)?;
    Ok(OwnGroup::of(vec![join], vec![kills], met))
}

/// Removes the groups of commands that are not `used` any more, and in which nothing is left.
pub fn sweep(used: &[&str]) {
    for entry in fs::read_dir(EXECS).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if entry.path().is_dir() && !used.iter().any(|id| name == **id) {
            // One that has processes stays for another time.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn open(path: String, flags: libc::c_int) -> Result<OwnedFd> {
    sys::open(&sys::c_text(&path), flags, 0)
}

fn hand_down(group: &str) -> Result<()> {
    // With it all commands together count for as much as the agent, which can then end what forks without pause. A kernel may
    // schedule processes one by one.
    let _ = fs::write(format!("{group}/cgroup.subtree_control"), "+cpu");
    CONTROLLERS.iter().try_for_each(|name| fs::write(format!("{group}/cgroup.subtree_control"), name))
}
