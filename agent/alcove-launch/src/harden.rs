//! The last steps before the agent's exec: resource limits, capabilities, no new privileges, Landlock, seccomp.

use std::os::fd::OwnedFd;

use crate::error::{AtStep, Result, StepError};
use crate::spec::{LaunchSpec, Limits, Network};
use crate::{landlock, sys};

const STEP: &str = "harden";

/// CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID: running commands as users and owning files takes no more.
const AGENT_CAPS: [u32; 6] = [0, 1, 3, 5, 6, 7];
const LAST_CAP: u32 = 40;
const CAP_NAMES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// Descriptors a process may have open: what Linux itself gives at most, enough for servers, and bounding what one sandbox
/// takes of the machine's table of open files.
const OPEN_FILES: u64 = 4_096;
/// Bytes that a process may keep from being swapped or given up: what Linux itself gave for decades. Pages of the machine's
/// programs and of images are locked without being counted for who locks them.
const LOCKED_BYTES: u64 = 64 << 10;
/// Without a cgroup the agent and its monitors count against the commands' limit.
const RESERVED_PIDS: u64 = 64;

/// Resource limits. Set inside the user namespace, whose processes are then counted apart from all others.
/// @param grouped whether there is a control group, which has the others.
pub fn limit(limits: &Limits, grouped: bool) -> Result<()> {
    // With 1, unlike 0, the kernel starts no handler of the host for a dump; where the hard limit is 0 it stays.
    lower(libc::RLIMIT_CORE, 1)?;
    lower(libc::RLIMIT_NOFILE, OPEN_FILES)?;
    lower(libc::RLIMIT_MEMLOCK, LOCKED_BYTES)?;
    if !grouped {
        lower(libc::RLIMIT_NPROC, limits.pids + RESERVED_PIDS)?;
        // Address space would be the wrong measure: many runtimes reserve far more than they use.
        lower(libc::RLIMIT_DATA, limits.memory_mb << 20)?;
    }
    Ok(())
}

fn lower(resource: sys::Resource, wanted: u64) -> Result<()> {
    // SAFETY: the struct is alive through both calls.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        sys::check(libc::getrlimit(resource, &raw mut limit) as libc::c_long).at(STEP, "getrlimit")?;
        let value = wanted.min(limit.rlim_max);
        let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
        sys::check(libc::setrlimit(resource, &raw const limit) as libc::c_long).at(STEP, "setrlimit")?;
    }
    Ok(())
}

/// How many sockets for datagrams a sandbox has at most: what can wait in them unfinished, 544 KB each, is then about an
/// eighth of its memory, or 34 MB.
pub fn datagram_sockets(limits: &Limits) -> u64 {
    (limits.memory_mb / 4).max(64)
}

/// Returns where the agent is asked for sockets whose memory is counted for nobody, if it is.
pub fn drop_rights(spec: &LaunchSpec) -> Result<Option<OwnedFd>> {
    let kept = kept_caps(&spec.added_caps)?;
    for cap in 0..64 {
        if kept & (1 << cap) == 0 {
            // SAFETY: plain numbers. Numbers this kernel does not know answer EINVAL.
            let result = sys::check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) } as libc::c_long);
            if result.is_err() && cap > LAST_CAP {
                break;
            }
            result.at(STEP, format!("drop capability {cap}"))?;
        }
    }
    // SAFETY: plain numbers.
    unsafe {
        sys::check(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) as libc::c_long)
            .at(STEP, "ambient capabilities")?;
        sys::check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) as libc::c_long).at(STEP, "no new privileges")?;
    }
    set_caps(kept)?;
    // Refused by kernels that record nothing.
    let _ = sys::keep_landlock_quiet();
    landlock::confine()?;
    if spec.network != Network::Host {
        // Refused where somebody above has a listener already, as in some containers.
        if let Ok(listener) = alcove_filter::install_asking() {
            return Ok(Some(listener));
        }
    }
    alcove_filter::install().at("seccomp", "filter").map(|()| None)
}

fn kept_caps(added: &[String]) -> Result<u64> {
    let mut kept = AGENT_CAPS.iter().fold(0u64, |set, cap| set | 1 << cap);
    for name in added {
        let upper = name.to_ascii_uppercase();
        let full = if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
        match CAP_NAMES.iter().position(|known| *known == full) {
            Some(cap) => kept |= 1 << cap,
            None => {
                return Err(StepError::new(STEP, format!("added_caps: there is no capability {name}")));
            }
        }
    }
    Ok(kept)
}

/// What the relay of a sandbox's network gives up before the sandbox's first packet: its user, every right, every file,
/// and all system calls but those that carry frames.
pub fn confine_relay(id: Option<u32>) -> Result<()> {
    lower(libc::RLIMIT_CORE, 0)?;
    lower(libc::RLIMIT_NOFILE, 64)?;
    std::env::set_current_dir("/").at(STEP, "/")?;
    // SAFETY: plain numbers and an empty list.
    unsafe {
        if let Some(id) = id {
            sys::check(libc::setgroups(0, std::ptr::null()) as libc::c_long).at(STEP, "setgroups")?;
            sys::check(libc::setresgid(id, id, id) as libc::c_long).at(STEP, "setresgid")?;
            sys::check(libc::setresuid(id, id, id) as libc::c_long).at(STEP, "setresuid")?;
        }
        sys::check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) as libc::c_long).at(STEP, "no new privileges")?;
    }
    set_caps(0)?;
    landlock::close_files()?;
    alcove_filter::install_carrying().at("seccomp", "filter of the relay")
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn set_caps(kept: u64) -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = CapHeader { version: VERSION_3, pid: 0 };
    let half = |bits: u64| CapData { effective: bits as u32, permitted: bits as u32, inheritable: 0 };
    let data = [half(kept), half(kept >> 32)];
    // SAFETY: version 3 takes two data structs; both are alive.
    sys::check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) })
        .map(drop)
        .at(STEP, "capabilities")
}
