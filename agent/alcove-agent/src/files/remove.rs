//! `file.remove`, also of whole trees; symlinks are removed, never followed.

use super::path::{self, failed};
use super::walk::{Visit, Walk};
use crate::sys;
use crate::workers::channel::{Channel, Served, refused};
use alcove_protocol::{ErrorCode, FileRemove};
use serde::Serialize;
use std::ffi::CStr;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, RawFd};

#[derive(Serialize)]
struct Empty {}

fn unlink(dir: RawFd, name: &CStr, flags: libc::c_int) -> Result<()> {
    // SAFETY: the name is a C string.
    match sys::check(unsafe { libc::unlinkat(dir, name.as_ptr(), flags) }) {
        Ok(_) => Ok(()),
        // Somebody else removed it: that is what was wanted.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes a name and everything below it.
pub fn remove_tree(dir: RawFd, name: &CStr) -> Result<()> {
    match unlink(dir, name, 0) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EPERM)) => {}
        done => return done,
    }
    // Through the directory itself the name is reached as any other is.
    let above = sys::open_at(dir, c".", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let mut walk = Walk::only(above, name)?;
    while let Some(visit) = walk.advance()? {
        let (name, emptied) = match visit {
            Visit::Entry(name) => (name, false),
            Visit::Left(name) => (name, true),
        };
        let flags = if emptied { libc::AT_REMOVEDIR } else { 0 };
        match unlink(walk.dir(), &name, flags).map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => {}
            Err((Some(libc::EISDIR | libc::EPERM), error)) if !emptied => {
                drop(path::hold(walk.dir(), &name)?);
                walk.enter_in_part(&name).map_err(|_| error)?;
            }
            // More names than are read at once, or made meanwhile by somebody who can be outrun only so often.
            Err((Some(libc::ENOTEMPTY | libc::EEXIST), error)) if emptied => {
                if walk.enter_in_part(&name)? == 0 {
                    return Err(error);
                }
            }
            Err((_, error)) => return Err(error),
        }
    }
    Ok(())
}

pub fn remove(channel: &mut Channel, request: &FileRemove) -> Served {
    let path = path::parse(&request.path)?;
    let text = path.text();
    let failure = |error: Error| failed(&text, &error);
    if path.is_root() {
        return Err(refused(ErrorCode::BadRequest, "/ cannot be removed"));
    }
    let place = path::locate(&path)?;
    let dir = place.dir.as_raw_fd();
    let stat = place.stat().map_err(failure)?;
    if path::on_procfs(dir) {
        return Err(refused(ErrorCode::Permission, format!("{text} is in procfs, which is not changed")));
    }
    let directory = path::is_directory(&stat);
    // What is mounted stays, and what is in it with it: it would be emptied before the kernel says so.
    if place.is_mounted(&stat) {
        return Err(failure(Error::from_raw_os_error(libc::EBUSY)));
    }
    match (directory, request.recursive) {
        (true, true) => remove_tree(dir, &place.name).map_err(failure)?,
        (true, false) => unlink(dir, &place.name, libc::AT_REMOVEDIR).map_err(|error| match error.raw_os_error() {
            Some(libc::EEXIST) => refused(ErrorCode::NotEmpty, format!("{text} is not empty")),
            _ => failure(error),
        })?,
        (false, _) => unlink(dir, &place.name, 0).map_err(failure)?,
    }
    channel.reply(&Empty {})
}
