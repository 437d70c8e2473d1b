//! The writable layer's own file system, where its size has a limit: a sparse copy of a preformatted image on a loop
//! device. Device and mount go when the sandbox's mount namespace does; the image is a file of the runtime's directory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::error::{AtStep, Result};
use crate::sys;

const STEP: &str = "disk";
/// Its name in a runtime's directory.
pub const IMAGE: &str = "disk.img";
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_GET_FREE: libc::c_ulong = 0x4c82;
const AUTOCLEAR: u32 = 4;
const BLOCK_SIZE: u32 = 4096;

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    numbers: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// The directories of an overlay, in every layer from its beginning: the first directory of a file system is slow to make.
pub const LAYERS: [(&str, u32); 2] = [("upper", 0o755), ("work", 0o700)];

/// Copies `template` to `image` and mounts that, attached nowhere yet. @returns the mount, which holds `LAYERS`.
pub fn make(template: &str, image: &str) -> Result<OwnedFd> {
    copy_sparse(template, image).at(STEP, template)?;
    let device = attach(image)?;
    let mount = mount_detached(&device).at(STEP, format!("ext4 on {}", device.path))?;
    for (name, mode) in LAYERS {
        sys::make_dir(mount.as_raw_fd(), name, mode).at(STEP, name)?;
    }
    Ok(mount)
}

/// Attaches it at `disk` below the working directory, in a mount namespace of this process, and enters it.
pub fn enter(mount: &OwnedFd) -> Result<()> {
    sys::private_mounts().at(STEP, "mount namespace")?;
    sys::make_dir(libc::AT_FDCWD, "disk", 0o700).at(STEP, "disk")?;
    sys::move_mount(mount.as_raw_fd(), libc::AT_FDCWD, "disk").at(STEP, "disk")?;
    std::env::set_current_dir("disk").at(STEP, "disk")
}

fn copy_sparse(from: &str, to: &str) -> io::Result<()> {
    let source = File::open(from)?;
    let target = OpenOptions::new().write(true).create_new(true).open(to)?;
    let size = source.metadata()?.len() as i64;
    target.set_len(size as u64)?;
    let mut offset = 0i64;
    loop {
        // SAFETY: plain numbers.
        let data = unsafe { libc::lseek(source.as_raw_fd(), offset, libc::SEEK_DATA) };
        if data < 0 {
            let error = io::Error::last_os_error();
            return if sys::errno_is(&error, libc::ENXIO) { Ok(()) } else { Err(error) };
        }
        // SAFETY: plain numbers.
        let end = sys::check(unsafe { libc::lseek(source.as_raw_fd(), data, libc::SEEK_HOLE) })?;
        let (mut read_at, mut write_at) = (data, data);
        while read_at < end {
            // SAFETY: both offsets are alive through the call.
            let count = sys::check(unsafe {
                libc::copy_file_range(
                    source.as_raw_fd(),
                    &raw mut read_at,
                    target.as_raw_fd(),
                    &raw mut write_at,
                    (end - read_at) as usize,
                    0,
                )
            } as libc::c_long)?;
            if count == 0 {
                break;
            }
        }
        offset = end;
    }
}

struct Device {
    path: String,
    /// Keeps the device until the mount does.
    _open: OwnedFd,
}

fn attach(image: &str) -> Result<Device> {
    let backing = OpenOptions::new().read(true).write(true).open(image).at(STEP, image)?;
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control").at(STEP, "/dev/loop-control")?;
    // Two that ask at once get the same free device; one of them would have to ask again.
    // SAFETY: a descriptor of ours.
    sys::check(unsafe { libc::flock(control.as_raw_fd(), libc::LOCK_EX) } as libc::c_long).at(STEP, "lock")?;
    for _ in 0..16 {
        // SAFETY: takes no argument.
        let number = sys::check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_GET_FREE as _) } as libc::c_long)
            .at(STEP, "free loop device")?;
        let path = format!("/dev/loop{number}");
        let device = sys::open_path_at(libc::AT_FDCWD, &path, libc::O_RDWR, 0).at(STEP, &path)?;
        match configure(device.as_raw_fd(), backing.as_raw_fd()) {
            Ok(()) => {
                return Ok(Device { path, _open: device });
            }
            // Somebody outside took it.
            Err(error) if sys::errno_is(&error, libc::EBUSY) => {}
            Err(error) => return Err(crate::error::StepError::io(STEP, path, error)),
        }
    }
    Err(crate::error::StepError::new(STEP, "no loop device could be had"))
}

fn configure(device: RawFd, backing: RawFd) -> io::Result<()> {
    // SAFETY: all-zero is a valid configuration.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = backing as u32;
    config.block_size = BLOCK_SIZE;
    config.info.flags = AUTOCLEAR;
    // SAFETY: the struct is alive and laid out as the kernel's.
    sys::check(unsafe { libc::ioctl(device, LOOP_CONFIGURE as _, &raw const config) } as libc::c_long).map(drop)
}

fn mount_detached(device: &Device) -> io::Result<OwnedFd> {
    let context = sys::fsopen("ext4")?;
    let fd = context.as_raw_fd();
    sys::fs_string(fd, "source", &device.path)?;
    // Freed blocks go back to the host's file system; unused inode tables need not be written.
    sys::fs_flag(fd, "discard")?;
    sys::fs_flag(fd, "noinit_itable")?;
    // A flush would be one of the host's disk, with each write to a file that has the flag for it, and on what is mapped;
    // nothing of a sandbox has to survive its machine.
    sys::fs_flag(fd, "nobarrier")?;
    sys::fs_create(fd)?;
    sys::fsmount(fd, sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV)
}
