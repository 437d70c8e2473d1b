//! `sandbox.stats`: from the control group where it can be read inside, else from what `/proc` shows.

use crate::init::groups;
use crate::sys;
use crate::workers::channel::{Channel, Served};
use alcove_protocol::Stats;
use std::ffi::CStr;

fn text(path: &CStr) -> Option<String> {
    sys::read_small(path, 64 * 1024).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A file that holds one number. `max`, and what cgroup v1 writes for "no limit", are none.
fn number(path: &CStr) -> Option<u64> {
    text(path)?.trim().parse().ok().filter(|number| *number < 1 << 60)
}

fn field(path: &CStr, name: &str) -> Option<u64> {
    text(path)?.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// Processor time, resident memory and number of all processes that `/proc` shows.
fn processes() -> (u64, u64, u64) {
    let (mut ticks, mut pages, mut count) = (0, 0, 0);
    // SAFETY: `sysconf` has no preconditions; the directory stream is used and closed here only.
    unsafe {
        let directory = libc::opendir(c"/proc".as_ptr());
        if directory.is_null() {
            return (0, 0, 0);
        }
        loop {
            let entry = libc::readdir64(directory);
            if entry.is_null() {
                break;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr()).to_string_lossy();
            if !name.bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            let Ok(path) = sys::c_string(format!("/proc/{name}/stat").as_bytes()) else { continue };
            let Some(stat) = text(&path) else { continue };
            let fields: Vec<u64> = stat
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .map(|field| field.parse().unwrap_or(0))
                .collect();
            // Counted from the state: user and system time, the same of children waited for, threads, resident pages.
            ticks += fields.iter().skip(11).take(4).sum::<u64>();
            count += fields.get(17).unwrap_or(&1);
            pages += fields.get(21).unwrap_or(&0);
        }
        libc::closedir(directory);
        let per_second = libc::sysconf(libc::_SC_CLK_TCK).max(1) as u64;
        let page = libc::sysconf(libc::_SC_PAGESIZE).max(1) as u64;
        (ticks * 1000 / per_second, pages * page, count)
    }
}

pub fn collect() -> Stats {
    let (cpu, memory, pids) = processes();
    let mut stats = Stats {
        cpu_usage_ms: field(c"/sys/fs/cgroup/cpu.stat", "usage_usec ")
            .map(|micros| micros / 1000)
            .or_else(|| number(c"/sys/fs/cgroup/cpuacct/cpuacct.usage").map(|nanos| nanos / 1_000_000))
            .or(Some(cpu)),
        memory_bytes: number(c"/sys/fs/cgroup/memory.current")
            .or_else(|| number(c"/sys/fs/cgroup/memory/memory.usage_in_bytes"))
            .or(Some(memory)),
        memory_limit_bytes: number(c"/sys/fs/cgroup/memory.max")
            .or_else(|| number(c"/sys/fs/cgroup/memory/memory.limit_in_bytes")),
        pids: number(c"/sys/fs/cgroup/pids.current")
            .or_else(|| number(c"/sys/fs/cgroup/pids/pids.current"))
            .or(Some(pids)),
        pids_limit: number(c"/sys/fs/cgroup/pids.max").or_else(|| number(c"/sys/fs/cgroup/pids/pids.max")),
        ..Stats::default()
    };
    // SAFETY: `statvfs` fills the structure when it succeeds.
    unsafe {
        let mut disk: libc::statvfs = std::mem::zeroed();
        if libc::statvfs(c"/".as_ptr(), &mut disk) == 0 {
            let total = disk.f_blocks as u64 * disk.f_frsize as u64;
            stats.disk_bytes = Some(total.saturating_sub(disk.f_bfree as u64 * disk.f_frsize as u64));
            stats.disk_limit_bytes = Some(total);
        }
    }
    stats
}

/// Bytes of memory that a machine has or could have free.
pub fn available_memory() -> Option<u64> {
    field(c"/proc/meminfo", "MemAvailable:").map(|kilobytes| kilobytes * 1024)
}

/// What a machine of the sandbox's own has used: the kernel's share of memory is its own too.
fn collect_machine() -> Stats {
    let total = field(c"/proc/meminfo", "MemTotal:").map(|kilobytes| kilobytes * 1024);
    let used = total.zip(available_memory()).map(|(total, available)| total.saturating_sub(available));
    let counted = collect();
    Stats {
        memory_bytes: used.or(counted.memory_bytes),
        memory_limit_bytes: total,
        pids: number(groups::PIDS).or(counted.pids),
        pids_limit: number(groups::PIDS_LIMIT),
        ..counted
    }
}

pub fn serve(channel: &mut Channel, whole_machine: bool) -> Served {
    channel.reply(&if whole_machine { collect_machine() } else { collect() })
}
