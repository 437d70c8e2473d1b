//! The directory of a runtime, with the files that a launch puts there before anything else. A file system may take half a
//! millisecond to find a place for each new file, as ext4 does without a journal: those are made ahead, with the layer.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::error::{AtStep, Result, StepError};
use crate::{disk, sys};

const STEP: &str = "directory";
/// Of its own file system, when it is made ahead.
const AHEAD: &str = "disk";
pub const RECORD: &str = "runtime.json";
pub const PROCESS: &str = "process.json";

/// One that is nobody's yet, and holds the image of a writable layer whose mount is attached nowhere.
pub struct Ready {
    pub path: String,
    pub mount: OwnedFd,
    pub listener: OwnedFd,
}

/// What of a folder every launch has open.
pub struct Opened {
    pub listener: OwnedFd,
    pub console: OwnedFd,
}

/// Makes all of it but the record, in a process of its own, which enters it.
pub fn make_ahead(template: &str, path: &str) -> Result<Ready> {
    sys::make_dir(libc::AT_FDCWD, path, 0o700).at(AHEAD, path)?;
    std::env::set_current_dir(path).at(AHEAD, path)?;
    let mount = disk::make(template, disk::IMAGE)?;
    let listener = listen()?;
    drop(open_console()?);
    for name in [RECORD, PROCESS] {
        sys::prepare_file(libc::AT_FDCWD, name).at(AHEAD, name)?;
    }
    Ok(Ready { path: path.to_owned(), mount, listener })
}

/// Gives a runtime its directory, with the record of it first, and enters it: what comes later is relative to it, which keeps paths
/// short and out of /proc/mounts.
pub fn enter(dir: &str, record: &serde_json::Value, ready: Option<&Ready>) -> Result<Opened> {
    let Some(ready) = ready else {
        sys::make_dir(libc::AT_FDCWD, dir, 0o700).at(STEP, dir)?;
        std::env::set_current_dir(dir).at(STEP, dir)?;
        write_record(record)?;
        return Ok(Opened { listener: listen()?, console: open_console()? });
    };
    std::env::set_current_dir(&ready.path).at(AHEAD, &ready.path)?;
    write_record(record)?;
    move_to(&ready.path, dir).map_err(|error| {
        let step = if sys::errno_is(&error, libc::EXDEV) { AHEAD } else { STEP };
        StepError::io(step, dir, error)
    })?;
    Ok(Opened { listener: ready.listener.try_clone().at(AHEAD, "descriptor")?, console: open_console()? })
}

/// Fails when something is there already.
pub fn move_to(path: &str, dir: &str) -> std::io::Result<()> {
    match sys::rename_new(path, dir) {
        // Some file systems cannot tell: an empty one that was just made gives way.
        Err(error) if sys::errno_is(&error, libc::EINVAL) => {
            sys::make_dir(libc::AT_FDCWD, dir, 0o700)?;
            std::fs::rename(path, dir)
        }
        other => other,
    }
}

/// No fsync: sandboxes do not outlive the machine, and a directory without a record is removed all the same.
pub fn write_record(record: &serde_json::Value) -> Result<()> {
    let bytes = serde_json::to_vec(record).map_err(|error| StepError::new(STEP, error.to_string()))?;
    sys::write_file_atomically(libc::AT_FDCWD, RECORD, &bytes).at(STEP, RECORD)
}

/// In place of the one before, which is left for `drop_former_record`.
pub fn exchange_record(record: &serde_json::Value) -> Result<()> {
    let bytes = serde_json::to_vec(record).map_err(|error| StepError::new(STEP, error.to_string()))?;
    sys::exchange_file(libc::AT_FDCWD, RECORD, &bytes).at(STEP, RECORD)
}

/// Waits for the disk, it may be. Where it fails the file goes with its folder.
pub fn drop_former_record() {
    let _ = sys::drop_former(libc::AT_FDCWD, RECORD);
}

/// One that nobody will have, if it is there.
pub fn discard(path: &str) {
    let _ = std::fs::remove_dir_all(path);
}

fn open_console() -> Result<OwnedFd> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_NOFOLLOW;
    sys::open_path_at(libc::AT_FDCWD, "console.log", flags, 0o600).at(STEP, "console.log")
}

fn listen() -> Result<OwnedFd> {
    const STEP: &str = "socket";
    // SAFETY: plain numbers; the descriptor is owned from here on.
    let socket = unsafe {
        let fd = sys::check(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) as libc::c_long)
            .at(STEP, "socket")?;
        OwnedFd::from_raw_fd(fd as RawFd)
    };
    let path = b"agent.sock";
    // SAFETY: an all-zero address is valid; the path is shorter than its field.
    unsafe {
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (slot, byte) in address.sun_path.iter_mut().zip(path) {
            *slot = *byte as libc::c_char;
        }
        let size = size_of::<libc::sa_family_t>() + path.len() + 1;
        let previous = libc::umask(0o177);
        let bound = sys::check(
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size as libc::socklen_t) as libc::c_long
        );
        libc::umask(previous);
        bound.at(STEP, "agent.sock")?;
        sys::check(libc::listen(socket.as_raw_fd(), 1024) as libc::c_long).at(STEP, "agent.sock")?;
    }
    Ok(socket)
}
