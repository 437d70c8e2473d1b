//! Which ids of the host the sandbox's users are.

use std::process::Command;

use crate::error::{AtStep, Result, StepError};
use crate::spec::IdsSpec;

const STEP: &str = "id_map";

pub fn write(pid: i32, ids: &IdsSpec) -> Result<()> {
    // SAFETY: no arguments.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    match ids {
        IdsSpec::Range { base, count } => {
            put(pid, "uid_map", &format!("0 {base} {count}\n"))?;
            put(pid, "gid_map", &format!("0 {base} {count}\n"))
        }
        IdsSpec::Single => {
            put(pid, "uid_map", &format!("0 {uid} 1\n"))?;
            // Without this a process could drop a group that takes rights away, and the kernel refuses the map.
            put(pid, "setgroups", "deny")?;
            put(pid, "gid_map", &format!("0 {gid} 1\n"))
        }
        IdsSpec::Subids { uid_start, gid_start, count } => {
            helper("newuidmap", pid, uid, *uid_start, *count)?;
            helper("newgidmap", pid, gid, *gid_start, *count)
        }
    }
}

fn put(pid: i32, name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/{pid}/{name}");
    std::fs::write(&path, value).at(STEP, path)
}

/// The setuid tools of the package `uidmap` write a range that /etc/subuid grants.
fn helper(program: &str, pid: i32, own: u32, start: u32, count: u32) -> Result<()> {
    let output = Command::new(program)
        .args([
            pid.to_string(),
            "0".into(),
            own.to_string(),
            "1".into(),
            "1".into(),
            start.to_string(),
            count.to_string(),
        ])
        .output()
        .at(STEP, program)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(StepError::new(STEP, format!("{program}: {}", said.trim())))
}
