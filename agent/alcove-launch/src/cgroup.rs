//! Limits. The sandbox has one group (v2) or one for each controller (v1), and in it a group `execs` for its commands with
//! the limits that were asked for; commands with limits of their own have groups in there, which the service makes. The
//! agent stays outside of `execs`, and what the outer group allows beyond those limits is its own: whatever commands do to
//! memory, processors and processes, it can still end them, serve files and tell figures.
//!
//! Processor time has no outer limit: agent, commands and network each have a quota of their own. What is done in the kernel
//! is done beyond a quota and owed, by every group above as well, and in a group that owes nobody runs: the agent would
//! pay for the commands.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{AtStep, Result, StepError};
use crate::spec::{CgroupDir, CgroupSpec, Limits};
use crate::sys;

const STEP: &str = "cgroup";
/// What the agent has beyond the commands' limits: processes (its threads, and monitors until they join), memory (its
/// journals and buffers), and processor time of each period, besides half of what commands have: files and output cost
/// it time, and more of it in a larger sandbox.
const RESERVED_PIDS: u64 = 256;
const RESERVED_MEMORY_MB: u64 = 16;
const RESERVED_QUOTA_US: u64 = PERIOD_US / 4;
const PERIOD_US: u64 = 100_000;
/// The agent's group: v2 has it for all controllers, v1 for processor time alone.
const AGENT: &str = "agent";
/// The commands' group, and v2's leaf in it for those without limits of their own.
const EXECS: &str = "execs";
const SHARED: &str = "shared";
/// v1: the members of a group, and what one of them is that writes there.
const MEMBERS_V1: &str = "tasks";
const JOIN: &str = "0";
/// v1's controller of memory.
const MEMORY: &str = "memory";
/// What carries the network has a group of its own: neither it nor the agent waits for what the other one uses.
const NETWORK: &str = "network";
const NETWORK_MEMORY_MB: u64 = 96;
const NETWORK_QUOTA_US: u64 = PERIOD_US / 2;
const NETWORK_PIDS: u64 = 16;
/// v1: so much of the memory, on top of it, may wait in sockets.
const QUEUED_SHARE: u64 = 8;
/// Weights of a sandbox that is being ended; ordinary ones have 1024 (v1) and 100 (v2).
const DYING_SHARES: &str = "128";
const DYING_WEIGHT: &str = "12";

/// Descriptors the agent is started with.
#[derive(Default)]
pub struct Handles {
    /// Holds a line `oom_kill N`, which counts kills among the commands.
    pub oom: Option<OwnedFd>,
    /// A process that writes `0` to each of these joins the commands' group.
    pub exec_join: Vec<OwnedFd>,
    /// Process limit of the commands' group: the agent closes it for a moment to end what forks without pause.
    pub exec_pids: Option<OwnedFd>,
    /// Quota of the commands' group: written again, it is as if nothing of it had been used.
    pub exec_quota: Option<OwnedFd>,
}

fn set(dir: &str, name: &str, value: &str) -> Result<()> {
    let path = format!("{dir}/{name}");
    OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(value.as_bytes())).at(STEP, path)
}

/// For files that only some kernels have.
fn set_if_there(dir: &str, name: &str, value: &str) -> Result<()> {
    match set(dir, name, value) {
        Err(error) if error.errno == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

fn make(path: &str) -> Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.at(STEP, path),
    }
}

fn open_fd(path: &str, write: bool) -> Result<OwnedFd> {
    OpenOptions::new().read(true).write(write).open(path).map(OwnedFd::from).at(STEP, path)
}

/// Makes what has to be there before a sandbox's first process is: with v2 all of the groups, with v1 the one that its memory is counted
/// in, the kernel's too, which the calling process joins for its child to inherit. `complete` makes the rest. Groups have no limits
/// before `limit` sets those.
/// @param network whether there is a group for what carries the sandbox's network, beside the agent's and the commands'.
/// @returns with v2, the group that the child is to be born into.
pub fn begin(spec: &CgroupSpec, exec_group: bool, network: bool) -> Result<Option<OwnedFd>> {
    if spec.version == 2 {
        let dir = only(spec)?;
        make_v2(dir, exec_group, network)?;
        let agent = agent_v2(dir, exec_group);
        return sys::open_path_at(libc::AT_FDCWD, &agent, libc::O_PATH | libc::O_DIRECTORY, 0)
            .at(STEP, &agent)
            .map(Some);
    }
    if let Some(memory) = spec.dirs.iter().find(|group| group.controller == MEMORY) {
        make(&memory.path)?;
        set(&memory.path, MEMBERS_V1, JOIN)?;
    }
    Ok(None)
}

/// Makes the groups that `begin` left. @returns files by which the sandbox's first process joins them, in the order of `joined_later`.
pub fn complete(spec: &CgroupSpec, exec_group: bool, network: bool) -> Result<Vec<OwnedFd>> {
    let mut files = Vec::new();
    for group in spec.dirs.iter().filter(|_| spec.version == 1) {
        make_v1(group, exec_group, network)?;
    }
    for path in joined_later(spec) {
        files.push(OpenOptions::new().write(true).open(&path).map(OwnedFd::from).at(STEP, path)?);
    }
    Ok(files)
}

/// Where the groups that `complete` makes are joined: one after the other, since `cpuacct` may be the same tree as `cpu`. To join through
/// `tasks` by oneself waits for nobody; to be moved from outside can take 15 ms.
pub fn joined_later(spec: &CgroupSpec) -> impl Iterator<Item = String> {
    later_v1(spec).map(|group| format!("{}/{MEMBERS_V1}", home_v1(group)))
}

/// The calling process joins a group. @param path of the file, for who is told that it failed.
pub fn join(file: &OwnedFd, path: &str) -> Result<()> {
    sys::write_all(file.as_raw_fd(), JOIN.as_bytes()).at(STEP, path)
}

/// Opens what the agent is started with, of groups that are there.
pub fn handles(spec: &CgroupSpec, exec_group: bool) -> Result<Handles> {
    if spec.version == 2 { handles_v2(only(spec)?, exec_group) } else { handles_v1(spec, exec_group) }
}

/// Those whose groups are joined when all are made: none waits for them but limits. What the kernel keeps for a sandbox is counted from
/// its first process on.
fn later_v1(spec: &CgroupSpec) -> impl Iterator<Item = &CgroupDir> {
    spec.dirs.iter().filter(|group| spec.version == 1 && group.controller != MEMORY)
}

/// Of one that is made: the group of a sandbox's first process.
fn home_v1(group: &CgroupDir) -> String {
    let agent = format!("{}/{AGENT}", group.path);
    if Path::new(&agent).exists() { agent } else { group.path.clone() }
}

/// What a sandbox's group has beyond the limits of its commands.
struct Reserved {
    memory: u64,
    /// Of one whose agent and commands share a group.
    quota_us: u64,
    pids: u64,
    network: bool,
}

impl Reserved {
    fn of(limits: &Limits, network: bool) -> Self {
        let mut reserved = Self { memory: 0, quota_us: 0, pids: 0, network };
        if limits.exec_group {
            (reserved.memory, reserved.pids) = (RESERVED_MEMORY_MB << 20, RESERVED_PIDS);
        }
        if network {
            reserved.memory += NETWORK_MEMORY_MB << 20;
            reserved.quota_us += NETWORK_QUOTA_US;
            reserved.pids += NETWORK_PIDS;
        }
        reserved
    }
}

/// Makes the groups of a network whose sandbox has groups that are none of ours. They may be there.
pub fn make_for_network(spec: &CgroupSpec) -> Result<()> {
    for group in &spec.dirs {
        make(&group.path)?;
        limit_network(&group.path, &group.controller)?;
    }
    Ok(())
}

fn limit_network(dir: &str, controller: &str) -> Result<()> {
    let memory = NETWORK_MEMORY_MB << 20;
    match controller {
        "unified" => {
            set(dir, "memory.max", &memory.to_string())?;
            set_if_there(dir, "memory.swap.max", "0")?;
            set(dir, "cpu.max", &format!("{NETWORK_QUOTA_US} {PERIOD_US}"))?;
            set(dir, "pids.max", &NETWORK_PIDS.to_string())
        }
        MEMORY => limit_memory_v1(dir, memory),
        "cpu" => limit_cpu_v1(dir, NETWORK_QUOTA_US),
        "pids" => set(dir, "pids.max", &NETWORK_PIDS.to_string()),
        _ => Ok(()),
    }
}

/// The calling process joins the group of the sandbox's network.
pub fn join_network(spec: &CgroupSpec) -> Result<()> {
    let members = if spec.version == 2 { "cgroup.procs" } else { MEMBERS_V1 };
    for group in &spec.dirs {
        let inner = format!("{}/{NETWORK}", group.path);
        set(if Path::new(&inner).exists() { &inner } else { &group.path }, members, JOIN)?;
    }
    Ok(())
}

fn make_v1(group: &CgroupDir, exec_group: bool, network: bool) -> Result<()> {
    let dir = group.path.as_str();
    let limited = [MEMORY, "cpu", "pids"].contains(&group.controller.as_str());
    make(dir)?;
    if exec_group && limited {
        make(&format!("{dir}/{EXECS}"))?;
    }
    if exec_group && group.controller == "cpu" {
        make(&format!("{dir}/{AGENT}"))?;
    }
    if network && limited {
        make(&format!("{dir}/{NETWORK}"))?;
    }
    Ok(())
}

fn only(spec: &CgroupSpec) -> Result<&str> {
    match &spec.dirs[..] {
        [dir] => Ok(&dir.path),
        _ => Err(StepError::new(STEP, "cgroup v2 takes exactly one directory")),
    }
}

fn make_v2(dir: &str, exec_group: bool, network: bool) -> Result<()> {
    make(dir)?;
    if !exec_group {
        return Ok(());
    }
    // Processes live in leaves only.
    set(dir, "cgroup.subtree_control", "+memory +cpu +pids")?;
    let execs = format!("{dir}/{EXECS}");
    make(&format!("{dir}/{AGENT}"))?;
    make(&execs)?;
    // Commands with limits of their own get groups beside this one, and processes live in leaves only.
    set(&execs, "cgroup.subtree_control", "+memory +pids")?;
    make(&format!("{execs}/{SHARED}"))?;
    if network { make(&format!("{dir}/{NETWORK}")) } else { Ok(()) }
}

/// Sets every limit of groups that were made, whatever they had.
pub fn limit(spec: &CgroupSpec, limits: &Limits, network: bool) -> Result<()> {
    let reserved = Reserved::of(limits, network);
    if spec.version == 2 {
        return limit_v2(only(spec)?, limits, &reserved);
    }
    for group in &spec.dirs {
        limit_v1(&group.path, &group.controller, limits, &reserved)?;
        if network {
            limit_network(&format!("{}/{NETWORK}", group.path), &group.controller)?;
        }
    }
    Ok(())
}

fn limit_v2(dir: &str, limits: &Limits, reserved: &Reserved) -> Result<()> {
    set(dir, "memory.max", &outer_memory(limits, reserved).to_string())?;
    set_if_there(dir, "memory.swap.max", "0")?;
    set(dir, "pids.max", &outer_pids(limits, reserved).to_string())?;
    if !limits.exec_group {
        return set(dir, "cpu.max", &format!("{} {PERIOD_US}", shared_quota_us(limits, reserved)));
    }
    set(&format!("{dir}/{AGENT}"), "cpu.max", &format!("{} {PERIOD_US}", agent_quota_us(limits)))?;
    let execs = format!("{dir}/{EXECS}");
    set(&execs, "memory.max", &memory(limits).to_string())?;
    set(&execs, "cpu.max", &format!("{} {PERIOD_US}", quota_us(limits)))?;
    set(&execs, "pids.max", &limits.pids.to_string())?;
    if reserved.network { limit_network(&format!("{dir}/{NETWORK}"), "unified") } else { Ok(()) }
}

fn limit_v1(dir: &str, controller: &str, limits: &Limits, reserved: &Reserved) -> Result<()> {
    let execs = format!("{dir}/{EXECS}");
    match controller {
        MEMORY => {
            limit_memory_v1(dir, outer_memory(limits, reserved))?;
            if limits.exec_group { limit_memory_v1(&execs, memory(limits)) } else { Ok(()) }
        }
        "cpu" if limits.exec_group => {
            limit_cpu_v1(&execs, quota_us(limits))?;
            limit_cpu_v1(&format!("{dir}/{AGENT}"), agent_quota_us(limits))
        }
        "cpu" => limit_cpu_v1(dir, shared_quota_us(limits, reserved)),
        "pids" => {
            set(dir, "pids.max", &outer_pids(limits, reserved).to_string())?;
            if limits.exec_group { set(&execs, "pids.max", &limits.pids.to_string()) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

fn agent_v2(dir: &str, exec_group: bool) -> String {
    if exec_group { format!("{dir}/{AGENT}") } else { dir.to_owned() }
}

fn handles_v2(dir: &str, exec_group: bool) -> Result<Handles> {
    if !exec_group {
        return Ok(Handles { oom: Some(open_fd(&format!("{dir}/memory.events"), false)?), ..Handles::default() });
    }
    let execs = format!("{dir}/{EXECS}");
    let shared = format!("{execs}/{SHARED}");
    Ok(Handles {
        oom: Some(open_fd(&format!("{shared}/memory.events"), false)?),
        exec_join: vec![open_fd(&format!("{shared}/cgroup.procs"), true)?],
        exec_pids: Some(open_fd(&format!("{execs}/pids.max"), true)?),
        exec_quota: Some(open_fd(&format!("{execs}/cpu.max"), true)?),
    })
}

fn handles_v1(spec: &CgroupSpec, exec_group: bool) -> Result<Handles> {
    let mut handles = Handles::default();
    for group in &spec.dirs {
        let dir = group.path.as_str();
        let execs = exec_group.then(|| format!("{dir}/{EXECS}"));
        match group.controller.as_str() {
            MEMORY => {
                // Unlike v2's it counts its own group alone.
                let counted = execs.as_deref().unwrap_or(dir);
                handles.oom = Some(open_fd(&format!("{counted}/memory.oom_control"), false)?);
            }
            "cpu" => {
                if let Some(execs) = &execs {
                    handles.exec_quota = Some(open_fd(&format!("{execs}/cpu.cfs_quota_us"), true)?);
                }
            }
            "pids" => {
                if let Some(execs) = &execs {
                    handles.exec_pids = Some(open_fd(&format!("{execs}/pids.max"), true)?);
                }
            }
            _ => {}
        }
        if let Some(execs) = execs.filter(|execs| Path::new(execs).exists()) {
            handles.exec_join.push(open_fd(&format!("{execs}/{MEMBERS_V1}"), true)?);
        }
    }
    Ok(handles)
}

fn limit_memory_v1(dir: &str, bytes: u64) -> Result<()> {
    let limit = &bytes.to_string();
    set(dir, "memory.limit_in_bytes", limit)?;
    // Absent where the kernel does not account swap.
    set_if_there(dir, "memory.memsw.limit_in_bytes", limit)?;
    // What waits in sockets counts apart from the rest here.
    let queued = (bytes / QUEUED_SHARE).max(1 << 20).to_string();
    set_if_there(dir, "memory.kmem.tcp.limit_in_bytes", &queued)
}

fn limit_cpu_v1(dir: &str, quota_us: u64) -> Result<()> {
    // The period is the kernel's own for new groups.
    set(dir, "cpu.cfs_quota_us", &quota_us.to_string())
}

fn memory(limits: &Limits) -> u64 {
    limits.memory_mb << 20
}

fn quota_us(limits: &Limits) -> u64 {
    ((limits.vcpus * PERIOD_US as f64) as u64).max(1_000)
}

fn outer_memory(limits: &Limits, reserved: &Reserved) -> u64 {
    memory(limits) + reserved.memory
}

fn shared_quota_us(limits: &Limits, reserved: &Reserved) -> u64 {
    quota_us(limits) + reserved.quota_us
}

fn agent_quota_us(limits: &Limits) -> u64 {
    quota_us(limits) / 2 + RESERVED_QUOTA_US
}

fn outer_pids(limits: &Limits, reserved: &Reserved) -> u64 {
    limits.pids + reserved.pids
}

/// Kills everything in the groups, however much of it there is and whatever it does: no process of it can start another
/// one, none waits for memory or for its share of a processor to be able to end, and what others run goes first.
pub fn end(spec: &CgroupSpec) {
    // Each step stands alone, and the caller looks at what is left; a file that is not there is an older kernel's.
    let lenient = |dir: &str, name: &str, value: &str| drop(set_if_there(dir, name, value));
    for group in &spec.dirs {
        for dir in with_inner(&group.path) {
            lenient(&dir, "pids.max", "0");
        }
    }
    // Of v1's trees one is enough: every process is in each of them.
    for group in spec.dirs.iter().filter(|group| matches!(group.controller.as_str(), "pids" | "unified")) {
        lenient(&group.path, "cgroup.kill", "1");
        for dir in with_inner(&group.path) {
            kill_members(&dir);
        }
    }
    // Only now: what is not killed yet would take what it gets.
    for group in &spec.dirs {
        for dir in with_inner(&group.path) {
            for name in ["memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "cpu.cfs_quota_us"] {
                lenient(&dir, name, "-1");
            }
            lenient(&dir, "memory.max", "max");
            lenient(&dir, "cpu.max", "max");
        }
        lenient(&group.path, "cpu.shares", DYING_SHARES);
        lenient(&group.path, "cpu.weight", DYING_WEIGHT);
    }
}

/// The group itself, those that may be in it, and those of single commands.
fn with_inner(dir: &str) -> Vec<String> {
    let execs = format!("{dir}/{EXECS}");
    let mut found = vec![dir.to_owned(), execs.clone(), format!("{dir}/{AGENT}"), format!("{dir}/{NETWORK}")];
    found.extend(groups_in(&execs));
    found
}

fn groups_in(dir: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.map(|entry| entry.path().to_string_lossy().into_owned()).collect()
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
            // From the leaves up. The directory itself tells below whether anything is left.
            for below in with_inner(dir).iter().skip(1).rev() {
                let _ = std::fs::remove_dir(below);
            }
            match std::fs::remove_dir(dir) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) if Instant::now() > deadline => {
                    return Err(StepError::io(STEP, dir, error));
                }
                Err(_) => {
                    for group in with_inner(dir) {
                        kill_members(&group);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
    Ok(())
}

/// Kills the processes of one group.
fn kill_members(dir: &str) {
    let members = || -> Vec<i32> {
        let text = std::fs::read_to_string(format!("{dir}/cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    let own = std::process::id() as i32;
    for pids in members().chunks(256) {
        // A process can end, and its number be given away, only after it has left the group just read: descriptors are
        // opened first and membership looked at again.
        let handles: Vec<(i32, OwnedFd)> = pids
            .iter()
            .filter(|pid| **pid != own)
            .filter_map(|pid| Some((*pid, sys::pidfd_open(*pid).ok()?)))
            .collect();
        let still: std::collections::HashSet<i32> = members().into_iter().collect();
        for (pid, handle) in handles {
            if still.contains(&pid) {
                let _ = sys::pidfd_kill(handle.as_raw_fd());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a launch does it, parent and child.
    fn limited(spec: &CgroupSpec, limits: &Limits, network: bool) -> Result<Handles> {
        begin(spec, limits.exec_group, network)?;
        for (file, path) in complete(spec, limits.exec_group, network)?.iter().zip(joined_later(spec)) {
            join(file, &path)?;
        }
        limit(spec, limits, network)?;
        handles(spec, limits.exec_group)
    }

    /// Directories of ordinary files, with the names that a kernel gives those of groups.
    struct Tree(std::path::PathBuf);

    impl Tree {
        fn new(name: &str, groups: &[&str], files: &[&str]) -> Self {
            let root = std::env::temp_dir().join(format!("alcove-cgroup-{name}-{}", std::process::id()));
            for group in groups {
                std::fs::create_dir_all(root.join(group)).expect("a directory");
                for file in files {
                    std::fs::write(root.join(group).join(file), "").expect("a file");
                }
            }
            Self(root)
        }

        fn spec(&self, version: u8, controllers: &[&str]) -> CgroupSpec {
            let path = |controller: &str| self.0.join(controller).join("rt").to_string_lossy().into_owned();
            let dirs = controllers.iter().map(|name| CgroupDir { controller: (*name).to_owned(), path: path(name) });
            CgroupSpec { version, dirs: dirs.collect() }
        }

        fn written(&self, file: &str) -> String {
            std::fs::read_to_string(self.0.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const V2: [&str; 7] = [
        "memory.max",
        "memory.swap.max",
        "memory.events",
        "cpu.max",
        "pids.max",
        "cgroup.subtree_control",
        "cgroup.procs",
    ];

    #[test]
    fn with_v2_the_network_is_a_leaf_beside_agent_and_commands_and_has_its_own_limits() {
        let inner = ["unified/rt", "unified/rt/agent", "unified/rt/execs", "unified/rt/execs/shared"];
        let tree = Tree::new("v2", &[&inner[..], &["unified/rt/network"]].concat(), &V2);
        let spec = tree.spec(2, &["unified"]);
        let limits = Limits { memory_mb: 256, vcpus: 1.5, pids: 100, exec_group: true };
        limited(&spec, &limits, true).expect("groups");
        join_network(&spec).expect("joined");
        for (file, value) in [
            ("rt/memory.max", (256u64 + 16 + 96) << 20),
            ("rt/pids.max", 100 + 256 + 16),
            ("rt/execs/memory.max", 256 << 20),
            ("rt/network/memory.max", 96 << 20),
            ("rt/network/pids.max", 16),
            ("rt/network/memory.swap.max", 0),
            ("rt/network/cgroup.procs", 0),
        ] {
            assert_eq!(tree.written(&format!("unified/{file}")), value.to_string(), "{file}");
        }
        // What the kernel does for commands is not charged to the agent, which has half of their quota and some.
        assert_eq!(tree.written("unified/rt/cpu.max"), "");
        assert_eq!(tree.written("unified/rt/execs/cpu.max"), "150000 100000");
        assert_eq!(tree.written("unified/rt/agent/cpu.max"), "100000 100000");
        assert_eq!(tree.written("unified/rt/network/cpu.max"), "50000 100000");
        // A group that hands controllers down can have no processes: nothing joins it, nor does the network hand any down.
        assert_eq!(tree.written("unified/rt/cgroup.subtree_control"), "+memory +cpu +pids");
        assert_eq!(tree.written("unified/rt/cgroup.procs"), "");
        assert_eq!(tree.written("unified/rt/network/cgroup.subtree_control"), "");
    }

    #[test]
    fn without_a_network_there_is_no_group_for_one() {
        let inner = ["unified/rt", "unified/rt/agent", "unified/rt/execs", "unified/rt/execs/shared"];
        let tree = Tree::new("none", &inner, &V2);
        let limits = Limits { memory_mb: 256, vcpus: 1.0, pids: 100, exec_group: true };
        limited(&tree.spec(2, &["unified"]), &limits, false).expect("groups");
        assert!(!tree.0.join("unified/rt/network").exists());
        assert_eq!(tree.written("unified/rt/pids.max"), "356");
    }

    #[test]
    fn with_v1_the_agent_has_processor_time_of_its_own_and_all_else_beside_the_commands() {
        let names = ["memory", "cpu", "cpuacct", "pids"];
        let groups = names.map(|name| format!("{name}/rt"));
        let inner = ["memory/rt/execs", "cpu/rt/execs", "cpu/rt/agent", "pids/rt/execs"];
        let files = ["memory.limit_in_bytes", "memory.oom_control", "cpu.cfs_quota_us", "pids.max", "tasks"];
        let tree = Tree::new("v1", &[&groups.each_ref().map(String::as_str)[..], &inner].concat(), &files);
        let limits = Limits { memory_mb: 256, vcpus: 0.5, pids: 100, exec_group: true };
        let handles = limited(&tree.spec(1, &names), &limits, false).expect("groups");
        for (file, value) in [
            ("cpu/rt/cpu.cfs_quota_us", ""),
            ("cpu/rt/execs/cpu.cfs_quota_us", "50000"),
            ("cpu/rt/agent/cpu.cfs_quota_us", "50000"),
            ("cpu/rt/agent/tasks", "0"),
            ("cpu/rt/tasks", ""),
            ("memory/rt/tasks", "0"),
            ("cpuacct/rt/tasks", "0"),
            ("pids/rt/tasks", "0"),
        ] {
            assert_eq!(tree.written(file), value, "{file}");
        }
        let mut quota = std::fs::File::from(handles.exec_quota.expect("the commands' quota"));
        assert_eq!(io::read_to_string(&mut quota).expect("the quota"), "50000");
    }

    #[test]
    fn with_v1_the_agent_stays_in_its_group_where_two_controllers_share_a_tree() {
        let files = ["cpu.cfs_quota_us", "tasks"];
        let tree = Tree::new("shared", &["cpu/rt", "cpu/rt/execs", "cpu/rt/agent"], &files);
        std::os::unix::fs::symlink("cpu", tree.0.join("cpuacct")).expect("a link");
        let limits = Limits { memory_mb: 256, vcpus: 1.0, pids: 100, exec_group: true };
        limited(&tree.spec(1, &["cpu", "cpuacct"]), &limits, false).expect("groups");
        assert_eq!(tree.written("cpu/rt/agent/tasks"), "0");
        assert_eq!(tree.written("cpu/rt/tasks"), "");
    }

    #[test]
    fn with_v1_the_group_of_memory_is_joined_first_and_the_child_joins_the_others() {
        let tree = Tree::new("order", &["memory/rt", "cpu/rt", "cpu/rt/agent", "pids/rt"], &["tasks"]);
        let spec = tree.spec(1, &["cpu", "memory", "pids"]);
        let joined = || ["cpu/rt/agent", "memory/rt", "pids/rt"].map(|group| tree.written(&format!("{group}/tasks")));
        assert!(begin(&spec, true, false).expect("begun").is_none());
        assert_eq!(joined(), ["", "0", ""]);
        let files = complete(&spec, true, false).expect("the others");
        assert_eq!(joined(), ["", "0", ""]);
        let paths: Vec<_> = joined_later(&spec).collect();
        assert_eq!((files.len(), paths.len()), (2, 2));
        for (file, path) in files.iter().zip(&paths) {
            join(file, path).expect("joined");
        }
        assert_eq!(joined(), ["0", "0", "0"]);
        assert!(paths[0].ends_with("cpu/rt/agent/tasks") && paths[1].ends_with("pids/rt/tasks"), "{paths:?}");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("full").into();
        let refused = join(&full, &paths[1]).expect_err("a refusal");
        assert!(refused.step == STEP && refused.message.starts_with(&paths[1]), "{refused}");
    }

    #[test]
    fn with_v2_all_groups_are_there_before_the_child_that_is_born_into_its_own() {
        let inner = ["unified/rt", "unified/rt/agent", "unified/rt/execs", "unified/rt/execs/shared"];
        let tree = Tree::new("born", &inner, &V2);
        let spec = tree.spec(2, &["unified"]);
        let born_in = begin(&spec, true, false).expect("begun").expect("a group");
        let path = std::fs::read_link(format!("/proc/self/fd/{}", born_in.as_raw_fd())).expect("its path");
        assert!(path.ends_with("unified/rt/agent"), "{}", path.display());
        assert!(complete(&spec, true, false).expect("nothing").is_empty());
        assert_eq!(joined_later(&spec).count(), 0);
    }

    #[test]
    fn the_network_of_a_container_has_a_group_to_itself() {
        let tree = Tree::new("own", &["unified/rt"], &V2);
        let spec = tree.spec(2, &["unified"]);
        make_for_network(&spec).expect("a group");
        join_network(&spec).expect("joined");
        for (file, value) in
            [("memory.max", "100663296"), ("cpu.max", "50000 100000"), ("pids.max", "16"), ("cgroup.procs", "0")]
        {
            assert_eq!(tree.written(&format!("unified/rt/{file}")), value, "{file}");
        }

        let v1 = ["memory.limit_in_bytes", "cpu.cfs_quota_us", "pids.max", "tasks"];
        let names = ["memory", "cpu", "cpuacct", "pids"];
        let tree = Tree::new("own-v1", &names.map(|name| format!("{name}/rt")).each_ref().map(String::as_str), &v1);
        let spec = tree.spec(1, &names);
        make_for_network(&spec).expect("groups");
        join_network(&spec).expect("joined");
        assert_eq!(tree.written("memory/rt/memory.limit_in_bytes"), "100663296");
        assert_eq!(tree.written("cpu/rt/cpu.cfs_quota_us"), "50000");
        assert_eq!(tree.written("pids/rt/pids.max"), "16");
        for name in names {
            assert_eq!(tree.written(&format!("{name}/rt/tasks")), "0", "{name}");
        }
    }
}
