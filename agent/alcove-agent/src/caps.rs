//! Capabilities of the agent and of what it starts.

use crate::sys;
use std::io::Result;

pub const CHOWN: u32 = 0;
pub const DAC_OVERRIDE: u32 = 1;
pub const FOWNER: u32 = 3;
pub const KILL: u32 = 5;
pub const SETGID: u32 = 6;
pub const SETUID: u32 = 7;
const SETPCAP: u32 = 8;
const LAST: u32 = 40;

/// What lifts the rules of ownership and permission of files: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID,
/// LINUX_IMMUTABLE, MKNOD, MAC_OVERRIDE.
pub const OVER_FILES: u64 = 0b1_1111 | 1 << 9 | 1 << 27 | 1 << 32;

/// What the agent needs to run commands as users and to own files for them.
pub const KEPT: u64 = 1 << CHOWN | 1 << DAC_OVERRIDE | 1 << FOWNER | 1 << KILL | 1 << SETGID | 1 << SETUID;

const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The number of a capability, its name with or without `CAP_`, in any case.
pub fn by_name(name: &str) -> Option<u32> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    NAMES.iter().position(|known| *known == bare).map(|number| number as u32)
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const VERSION_3: u32 = 0x2008_0522;

/// The permitted set of this thread.
pub fn permitted() -> u64 {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: version 3 fills two entries.
    if unsafe { libc::syscall(libc::SYS_capget, &mut header, data.as_mut_ptr()) } < 0 {
        return 0;
    }
    u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32
}

/// Sets all three sets of this thread. Async-signal-safe.
pub fn set(effective: u64, permitted: u64, inheritable: u64) -> Result<()> {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let half = |shift: u32| Data {
        effective: (effective >> shift) as u32,
        permitted: (permitted >> shift) as u32,
        inheritable: (inheritable >> shift) as u32,
    };
    let data = [half(0), half(32)];
    // SAFETY: version 3 reads two entries.
    sys::check(unsafe { libc::syscall(libc::SYS_capset, &mut header, data.as_ptr()) }).map(|_| ())
}

/// Raises `caps` in the ambient set, so that they survive the execution of a program. Async-signal-safe.
pub fn raise_ambient(caps: u64) {
    for cap in (0..=LAST).filter(|cap| caps & 1 << cap != 0) {
        // SAFETY: plain prctl.
        unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, cap as libc::c_ulong, 0, 0) };
    }
}

/// Gives up every capability but `keep`, for good. The bounding set is emptied too where that is allowed: what is
/// permitted already stays usable, but no program started from here can gain anything by being executed.
/// `keep` stays inheritable, because without CAP_SETPCAP nothing could be made inheritable later.
pub fn drop_all_but(keep: u64) -> Result<u64> {
    let held = permitted();
    let keep = held & keep;
    if held & 1 << SETPCAP != 0 {
        set(held, held, keep)?;
        for cap in 0..=LAST {
            // SAFETY: plain prctl; unknown capabilities answer EINVAL, which is fine.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap as libc::c_ulong, 0, 0, 0) };
        }
    }
    set(keep, keep, keep)?;
    Ok(keep)
}
