//! The root: a shared read-only lower directory under a private writable layer.
//!
//! `volatile` leaves out syncs that would make the end of a sandbox wait for its dirty pages; its contents need not
//! survive the machine. Upper directories are named relative to the runtime's directory, so that /proc/mounts inside
//! does not show where the service keeps its data.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use crate::disk::LAYERS;
use crate::error::{AtStep, Result};
use crate::spec::DiskSpec;
use crate::sys::{self, MountAttr};

const STEP: &str = "overlay";
const NOSUID_NODEV: u64 = sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV;

/// Makes the layers below `dir`, of which each belongs to `owner` where it was made before.
pub fn make_layers(dir: RawFd, owner: Option<u32>) -> Result<()> {
    for (name, mode) in LAYERS {
        match sys::make_dir(dir, name, mode) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            other => other.at(STEP, name)?,
        }
        if let Some(id) = owner {
            sys::chown_at(dir, name, id, id).at(STEP, name)?;
        }
    }
    Ok(())
}

/// The writable layer of an unprivileged sandbox, in the working directory.
pub fn make_writable(disk: &DiskSpec) -> Result<()> {
    if let Some(size_mb) = disk.tmpfs_mb {
        enter_tmpfs(size_mb)?;
    }
    make_layers(libc::AT_FDCWD, None)
}

/// Mounts a writable layer of memory below the working directory, in a mount namespace of this process, and enters it.
pub fn enter_tmpfs(size_mb: u64) -> Result<()> {
    let options = format!("size={size_mb}m,mode=700");
    sys::make_dir(libc::AT_FDCWD, "disk", 0o700).at("disk", "disk")?;
    sys::mount("disk", "disk", "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, &options).at("disk", "tmpfs")?;
    std::env::set_current_dir("disk").at("disk", "disk")
}

/// A root without layers, for a file system that can neither be idmapped nor lie below an overlay: a copy of a small tree,
/// owned by the sandbox's ids, detached.
pub fn copied(from: &str, base: u32, count: u32) -> Result<OwnedFd> {
    const STEP: &str = "copy";
    crate::shift::copy(Path::new(from), Path::new("root"), base, count)?;
    let clone = sys::open_tree(libc::AT_FDCWD, "root", sys::OPEN_TREE_CLONE).at(STEP, "root")?;
    let attributes = MountAttr { set: NOSUID_NODEV, propagation: sys::PRIVATE, ..MountAttr::default() };
    sys::mount_setattr(clone.as_raw_fd(), 0, &attributes).at(STEP, "root")?;
    Ok(clone)
}

/// A detached read-only clone of a mounted file or directory.
pub fn read_only_clone(path: &str, exec: bool) -> Result<OwnedFd> {
    let recursive = libc::AT_RECURSIVE as u32;
    let clone = sys::open_tree(libc::AT_FDCWD, path, sys::OPEN_TREE_CLONE | recursive).at("mount", path)?;
    let mut set = sys::MOUNT_ATTR_RDONLY | NOSUID_NODEV;
    if !exec {
        set |= sys::MOUNT_ATTR_NOEXEC;
    }
    let attributes = MountAttr { set, propagation: sys::PRIVATE, ..MountAttr::default() };
    sys::mount_setattr(clone.as_raw_fd(), libc::AT_RECURSIVE, &attributes).at("mount", path)?;
    Ok(clone)
}

/// What is below `path` and not mounted there, read-only and as files of its own: watches and locks on them reach nobody
/// else's. `empty` is a directory without entries.
pub fn read_only_view(path: &str, empty: &str) -> Result<OwnedFd> {
    let make = || {
        let context = sys::fsopen("overlay")?;
        let fd = context.as_raw_fd();
        sys::fs_string(fd, "source", "programs")?;
        sys::fs_string(fd, "lowerdir", &format!("{}:{empty}", escaped(path)))?;
        sys::fs_create(fd)?;
        sys::fsmount(fd, sys::MOUNT_ATTR_RDONLY | NOSUID_NODEV)
    };
    make().at(STEP, path)
}

fn escaped(path: &str) -> String {
    path.replace('\\', "\\\\").replace(':', "\\:").replace(',', "\\,")
}

/// The overlay of a rooted service, detached, with the layers of the working directory. `users` is the
/// namespace that owns the ids.
///
/// `shifted`: the files belong to the sandbox's ids already. `used`: see `Begun`.
pub fn rooted(lower: &str, users: &OwnedFd, shifted: bool, used: &mut Vec<OwnedFd>) -> Result<OwnedFd> {
    let lower_clone = lower_clone(lower, users, shifted)?;
    let overlay = match by_descriptor(&lower_clone, None) {
        Ok(overlay) => overlay,
        // Before Linux 6.8 a layer cannot be given as a descriptor.
        Err(first) => by_path(&lower_clone).map_err(|mut error| {
            error.message = format!("{} (by descriptor: {first})", error.message);
            error
        })?,
    };
    used.push(lower_clone);
    Ok(overlay)
}

/// The same with the layers of a file system that is attached nowhere.
/// @returns nothing before Linux 6.13, which wants those at a path.
pub fn rooted_on(
    layers: &OwnedFd,
    lower: &str,
    users: &OwnedFd,
    shifted: bool,
    used: &mut Vec<OwnedFd>,
) -> Result<Option<OwnedFd>> {
    let lower_clone = lower_clone(lower, users, shifted)?;
    let mut opened = Vec::new();
    for (name, _) in LAYERS {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        opened.push(sys::open_path_at(layers.as_raw_fd(), name, flags, 0).at(STEP, name)?);
    }
    let overlay = match &opened[..] {
        [upper, work] => by_descriptor(&lower_clone, Some((upper, work))).ok(),
        _ => None,
    };
    used.push(lower_clone);
    Ok(overlay)
}

fn lower_clone(lower: &str, users: &OwnedFd, shifted: bool) -> Result<OwnedFd> {
    if shifted { read_only_clone(lower, true) } else { idmapped_clone(lower, users) }
}

fn idmapped_clone(lower: &str, users: &OwnedFd) -> Result<OwnedFd> {
    let clone = sys::open_tree(libc::AT_FDCWD, lower, sys::OPEN_TREE_CLONE).at(STEP, lower)?;
    let attributes = MountAttr {
        set: sys::MOUNT_ATTR_IDMAP | sys::MOUNT_ATTR_RDONLY | NOSUID_NODEV,
        propagation: sys::PRIVATE,
        userns_fd: users.as_raw_fd() as u64,
        ..MountAttr::default()
    };
    sys::mount_setattr(clone.as_raw_fd(), 0, &attributes).at("idmap", format!("idmapped mount of {lower}"))?;
    Ok(clone)
}

/// @param layers upper and work; none: those of the working directory.
fn by_descriptor(lower: &OwnedFd, layers: Option<(&OwnedFd, &OwnedFd)>) -> std::io::Result<OwnedFd> {
    let context = sys::fsopen("overlay")?;
    let fd = context.as_raw_fd();
    sys::fs_string(fd, "source", "overlay")?;
    sys::fs_fd(fd, "lowerdir+", lower.as_raw_fd())?;
    match layers {
        Some((upper, work)) => {
            sys::fs_fd(fd, "upperdir", upper.as_raw_fd())?;
            sys::fs_fd(fd, "workdir", work.as_raw_fd())?;
        }
        None => {
            sys::fs_string(fd, "upperdir", "upper")?;
            sys::fs_string(fd, "workdir", "work")?;
        }
    }
    sys::fs_flag(fd, "volatile")?;
    sys::fs_create(fd)?;
    sys::fsmount(fd, NOSUID_NODEV)
}

/// Older kernels want every layer at a path: in a mount namespace of this process, which ends with it.
fn by_path(lower: &OwnedFd) -> Result<OwnedFd> {
    sys::private_mounts().at(STEP, "mount namespace")?;
    for name in ["lower", "merged"] {
        sys::make_dir(libc::AT_FDCWD, name, 0o700).at(STEP, name)?;
    }
    sys::move_mount(lower.as_raw_fd(), libc::AT_FDCWD, "lower").at(STEP, "lower")?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    sys::mount("overlay", "merged", "overlay", flags, "lowerdir=lower,upperdir=upper,workdir=work,volatile")
        .at(STEP, "overlay on an idmapped layer (needs Linux 5.19)")?;
    sys::open_tree(libc::AT_FDCWD, "merged", sys::OPEN_TREE_CLONE).at(STEP, "merged")
}

/// The overlay of an unprivileged service, made by the child in its own mount namespace at `target`.
pub fn unprivileged(lower: &str, target: &str) -> Result<()> {
    let escaped = escaped(lower);
    let data = format!("lowerdir={escaped},upperdir=upper,workdir=work,userxattr,volatile");
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    sys::mount("overlay", target, "overlay", flags, &data).at(STEP, "overlay in a user namespace (needs Linux 5.11)")
}

pub fn exists(path: &str) -> bool {
    Path::new(path).exists()
}
