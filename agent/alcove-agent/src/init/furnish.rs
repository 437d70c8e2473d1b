//! What programs expect of a machine around them.

use super::at;
use crate::{names, sys};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};

const QUIET: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

pub fn mount_all() -> Result<(), String> {
    for (path, mode) in [
        ("/proc", 0o555),
        ("/sys", 0o555),
        ("/dev", 0o755),
        // What images have in these belongs to their programs; it stays, and what is added is the machine's own.
        ("/run", 0o755),
        ("/tmp", 0o1777),
    ] {
        ensure_dir(path, mode)?;
    }
    mount("proc", "/proc", QUIET, "")?;
    mount("sysfs", "/sys", QUIET, "")?;
    mount("devtmpfs", "/dev", libc::MS_NOSUID, "")?;
    for (path, mode) in [("/dev/pts", 0o755), ("/dev/shm", 0o1777)] {
        ensure_dir(path, mode)?;
    }
    // Group 5 is `tty` everywhere.
    mount("devpts", "/dev/pts", libc::MS_NOSUID | libc::MS_NOEXEC, "ptmxmode=0666,mode=620,gid=5")?;
    mount("tmpfs", "/dev/shm", QUIET, "mode=1777")?;
    for (target, name) in [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
    ] {
        match symlink(target, name) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(at("link", name)(error)),
            _ => {}
        }
    }
    Ok(())
}

fn mount(kind: &str, place: &str, flags: libc::c_ulong, options: &str) -> Result<(), String> {
    sys::mount(kind, place, kind, flags, options).map_err(at("mount", place))
}

/// An image may have anything at these names, links too.
fn ensure_dir(path: &str, mode: u32) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => fs::remove_file(path).map_err(at("remove", path))?,
        Err(_) => {}
    }
    fs::create_dir(path).map_err(at("make", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(at("make", path))
}

/// The machine has its ports to itself, and an image's user may be another than root.
pub fn open_low_ports() {
    // A kernel without the setting keeps them for root, which harms nobody.
    let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
}

/// What an engine gives to images; their names are in [`names`].
pub fn complete_etc() -> Result<(), String> {
    names::complete("/etc/resolv.conf", "").map_err(at("write", "/etc/resolv.conf"))
}
