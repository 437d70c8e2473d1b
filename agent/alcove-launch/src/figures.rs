//! What `/proc` tells programs that size themselves by the machine: the sandbox's own memory and processors. Files written
//! once, at the launch: what is in use they do not tell. And which controllers there are, without the number of groups.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;

use crate::error::{AtStep, Result};
use crate::spec::Limits;
use crate::sys::{self, MountAttr};

const STEP: &str = "figures";

pub fn show(limits: &Limits) -> Result<()> {
    cover("/proc/meminfo", &meminfo(limits.memory_mb))?;
    if crate::overlay::exists("/proc/cgroups") {
        let controllers = fs::read_to_string("/proc/cgroups").at(STEP, "/proc/cgroups")?;
        cover("/proc/cgroups", &uncounted(&controllers))?;
    }
    let cpuinfo = File::open("/proc/cpuinfo").at(STEP, "/proc/cpuinfo")?;
    match processors(BufReader::new(cpuinfo), limits.vcpus.ceil().max(1.0) as usize) {
        Some(shown) => cover("/proc/cpuinfo", &shown),
        None => Ok(()),
    }
}

/// Swap is not to be had.
fn meminfo(memory_mb: u64) -> String {
    let total = memory_mb * 1024;
    let fields = [
        ("MemTotal", total),
        ("MemFree", total),
        ("MemAvailable", total),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("Active", 0),
        ("Inactive", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", 0),
        ("Mapped", 0),
        ("Shmem", 0),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("SUnreclaim", 0),
        ("CommitLimit", total),
        ("Committed_AS", 0),
    ];
    fields.iter().map(|(name, value)| format!("{:<16}{value:>8} kB\n", format!("{name}:"))).collect()
}

/// The first `wanted` processors. Read no further than that: each costs the kernel time. None when there are no more.
fn processors(cpuinfo: impl BufRead, wanted: usize) -> Option<String> {
    let (mut shown, mut seen) = (String::new(), 0);
    for line in cpuinfo.lines() {
        let line = line.ok()?;
        if line.starts_with("processor") {
            seen += 1;
            if seen > wanted {
                return Some(shown);
            }
        }
        shown.push_str(&line);
        shown.push('\n');
    }
    None
}

/// The table of controllers with one group for each: the machine's number of groups is that of its sandboxes.
fn uncounted(controllers: &str) -> String {
    let line = |line: &str| match line.split('\t').collect::<Vec<_>>()[..] {
        [name, hierarchy, _, enabled] if !name.starts_with('#') => format!("{name}\t{hierarchy}\t1\t{enabled}\n"),
        _ => format!("{line}\n"),
    };
    controllers.lines().map(line).collect()
}

/// Puts a file of this content, which has no other name, over `path`.
fn cover(path: &str, content: &str) -> Result<()> {
    let draft = "/dev/.figures";
    fs::write(draft, content).at(STEP, draft)?;
    fs::set_permissions(draft, Permissions::from_mode(0o444)).at(STEP, draft)?;
    let mount = sys::open_tree(libc::AT_FDCWD, draft, sys::OPEN_TREE_CLONE).at(STEP, draft)?;
    let attributes = MountAttr { set: sys::MOUNT_ATTR_RDONLY, ..MountAttr::default() };
    sys::mount_setattr(mount.as_raw_fd(), 0, &attributes).at(STEP, path)?;
    sys::move_mount(mount.as_raw_fd(), libc::AT_FDCWD, path).at(STEP, path)?;
    fs::remove_file(draft).at(STEP, draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_processors_as_wanted_are_shown() {
        let machine = "processor\t: 0\nmodel\t: x\n\nprocessor\t: 1\nmodel\t: x\n\n";
        assert_eq!(processors(machine.as_bytes(), 1).as_deref(), Some("processor\t: 0\nmodel\t: x\n\n"));
        assert_eq!(processors(machine.as_bytes(), 2), None);
    }

    #[test]
    fn groups_are_not_counted() {
        let machine = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t0\t214\t1\nmemory\t3\t97\t0\n";
        let shown = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t0\t1\t1\nmemory\t3\t1\t0\n";
        assert_eq!(uncounted(machine), shown);
    }

    #[test]
    fn memory_is_told_in_kilobytes() {
        let text = meminfo(64);
        assert!(text.starts_with("MemTotal:          65536 kB\nMemFree:"), "{text}");
    }
}
