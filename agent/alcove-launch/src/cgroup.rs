//! Limits. The sandbox has one group (v2) or one for each controller (v1). Where the agent can, commands live in the
//! group `execs` below, whose process limit leaves the agent and its monitors room under a fork bomb.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{AtStep, Result, StepError};
use crate::spec::{CgroupSpec, Limits};
use crate::sys;

const STEP: &str = "cgroup";
/// Processes beyond the commands' limit: the agent and one monitor for each command.
const RESERVED_PIDS: u64 = 1024;
const PERIOD_US: u64 = 100_000;

/// Descriptors the agent is started with.
#[derive(Default)]
pub struct Handles {
    /// Holds a line `oom_kill N`.
    pub oom: Option<OwnedFd>,
    /// A process that writes `0` here joins the commands' group.
    pub exec_join: Option<OwnedFd>,
    /// v2: the group the agent is born into.
    pub agent_group: Option<OwnedFd>,
}

fn set(dir: &str, name: &str, value: &str) -> Result<()> {
    let path = format!("{dir}/{name}");
    OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(value.as_bytes())).at(STEP, path)
}

/// For files that only some kernels have.
fn set_if_there(dir: &str, name: &str, value: &str) -> Result<()> {
    if Path::new(&format!("{dir}/{name}")).exists() { set(dir, name, value) } else { Ok(()) }
}

fn make(path: &str) -> Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.at(STEP, path),
    }
}

fn open_fd(path: &str, write: bool) -> Result<OwnedFd> {
    OpenOptions::new().read(!write).write(write).open(path).map(OwnedFd::from).at(STEP, path)
}

/// Makes the groups and sets their limits. With v1 the calling process joins them, for its child to inherit.
pub fn enter(spec: &CgroupSpec, limits: &Limits) -> Result<Handles> {
    if spec.version == 2 { enter_v2(spec, limits) } else { enter_v1(spec, limits) }
}

fn enter_v2(spec: &CgroupSpec, limits: &Limits) -> Result<Handles> {
    let [dir] = &spec.dirs[..] else {
        return Err(StepError::new(STEP, "cgroup v2 takes exactly one directory"));
    };
    let dir = dir.path.as_str();
    make(dir)?;
    set(dir, "memory.max", &(limits.memory_mb << 20).to_string())?;
    set_if_there(dir, "memory.swap.max", "0")?;
    set(dir, "cpu.max", &format!("{} {PERIOD_US}", quota_us(limits)))?;
    set(dir, "pids.max", &whole_limit(limits).to_string())?;
    let mut handles = Handles { oom: Some(open_fd(&format!("{dir}/memory.events"), false)?), ..Handles::default() };
    // Processes live in leaves only.
    let agent = if limits.exec_group { format!("{dir}/agent") } else { dir.to_owned() };
    if limits.exec_group {
        set(dir, "cgroup.subtree_control", "+pids")?;
        let execs = format!("{dir}/execs");
        make(&agent)?;
        make(&execs)?;
        set(&execs, "pids.max", &limits.pids.to_string())?;
        handles.exec_join = Some(open_fd(&format!("{execs}/cgroup.procs"), true)?);
    }
    let group = sys::open_at(libc::AT_FDCWD, &agent, libc::O_PATH | libc::O_DIRECTORY, 0).at(STEP, &agent)?;
    handles.agent_group = Some(group);
    Ok(handles)
}

fn enter_v1(spec: &CgroupSpec, limits: &Limits) -> Result<Handles> {
    let mut handles = Handles::default();
    for group in &spec.dirs {
        let dir = group.path.as_str();
        make(dir)?;
        match group.controller.as_str() {
            "memory" => {
                let bytes = (limits.memory_mb << 20).to_string();
                set(dir, "memory.limit_in_bytes", &bytes)?;
                // Absent where the kernel does not account swap.
                set_if_there(dir, "memory.memsw.limit_in_bytes", &bytes)?;
                handles.oom = Some(open_fd(&format!("{dir}/memory.oom_control"), false)?);
            }
            "cpu" => {
                set(dir, "cpu.cfs_period_us", &PERIOD_US.to_string())?;
                set(dir, "cpu.cfs_quota_us", &quota_us(limits).to_string())?;
            }
            "pids" => {
                set(dir, "pids.max", &whole_limit(limits).to_string())?;
                if limits.exec_group {
                    let execs = format!("{dir}/execs");
                    make(&execs)?;
                    set(&execs, "pids.max", &limits.pids.to_string())?;
                    handles.exec_join = Some(open_fd(&format!("{execs}/tasks"), true)?);
                }
            }
            _ => {}
        }
        // Joining through `tasks` by oneself waits for nobody; being moved from outside can take 15 ms.
        set(dir, "tasks", "0")?;
    }
    Ok(handles)
}

fn whole_limit(limits: &Limits) -> u64 {
    if limits.exec_group { limits.pids + RESERVED_PIDS } else { limits.pids }
}

fn quota_us(limits: &Limits) -> u64 {
    ((limits.vcpus * PERIOD_US as f64) as u64).max(1_000)
}

/// Kills what is left in the groups and removes them. Groups that are not there are fine.
pub fn remove(spec: &CgroupSpec, deadline: Instant) -> Result<()> {
    for group in &spec.dirs {
        let dir = group.path.as_str();
        if !Path::new(dir).exists() {
            continue;
        }
        if spec.version == 2 {
            set_if_there(dir, "cgroup.kill", "1")?;
        }
        loop {
            for below in ["execs", "agent"] {
                // The directory itself tells below whether anything is left.
                let _ = std::fs::remove_dir(format!("{dir}/{below}"));
            }
            match std::fs::remove_dir(dir) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) if Instant::now() > deadline => {
                    return Err(StepError::io(STEP, dir, error));
                }
                Err(_) => {
                    kill_members(dir);
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
    Ok(())
}

/// PID 1's end takes its namespace with it; this is for what never got that far.
fn kill_members(dir: &str) {
    for path in [dir.to_owned(), format!("{dir}/execs"), format!("{dir}/agent")] {
        let Ok(members) = std::fs::read_to_string(format!("{path}/cgroup.procs")) else {
            continue;
        };
        for pid in members.lines().filter_map(|line| line.parse::<i32>().ok()) {
            // The process can end, and its number be given away, only after it has left the group just read; the
            // descriptor is opened first and membership looked at again.
            let Ok(handle) = sys::pidfd_open(pid) else {
                continue;
            };
            let still = std::fs::read_to_string(format!("{path}/cgroup.procs"))
                .is_ok_and(|members| members.lines().any(|line| line.parse() == Ok(pid)));
            if still && pid != std::process::id() as i32 {
                let _ = sys::pidfd_kill(handle.as_raw_fd());
            }
        }
    }
}
