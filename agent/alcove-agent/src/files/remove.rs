//! `file.remove`, also of whole trees; symlinks are removed, never followed.

use super::list::{names, open_directory};
use super::path::{self, failed};
use crate::sys;
use crate::workers::channel::{Channel, Served, refused};
use alcove_protocol::{ErrorCode, FileRemove};
use serde::Serialize;
use std::ffi::{CStr, CString};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

#[derive(Serialize)]
struct Empty {}

/// Levels of directories held open at once.
const MAX_LEVELS: usize = 800;
const BATCH: usize = 100_000;

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
    struct Level {
        fd: OwnedFd,
        name: CString,
        left: Vec<CString>,
    }
    let enter = |dir: RawFd, name: &CStr| -> Result<Level> {
        let fd = open_directory(dir, name)?;
        let left = names(sys::open_at(fd.as_raw_fd(), c".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?, BATCH)?;
        Ok(Level { fd, name: name.to_owned(), left })
    };
    let mut levels = vec![enter(dir, name)?];
    while let Some(level) = levels.last_mut() {
        let fd = level.fd.as_raw_fd();
        let Some(entry) = level.left.pop() else {
            let above = if levels.len() > 1 { levels[levels.len() - 2].fd.as_raw_fd() } else { dir };
            let Some(level) = levels.last_mut() else { break };
            match unlink(above, &level.name, libc::AT_REMOVEDIR) {
                Err(error) if error.raw_os_error() == Some(libc::ENOTEMPTY) => {
                    // More than one batch, or made meanwhile by somebody who can be outrun only so often.
                    level.left = names(sys::open_at(fd, c".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?, BATCH)?;
                    if level.left.is_empty() {
                        return Err(error);
                    }
                    continue;
                }
                done => done?,
            }
            levels.pop();
            continue;
        };
        match unlink(fd, &entry, 0) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EPERM)) => {
                if levels.len() >= MAX_LEVELS {
                    return Err(Error::from_raw_os_error(libc::ENAMETOOLONG));
                }
                levels.push(enter(fd, &entry).map_err(|_| error)?);
            }
            done => done?,
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
    let directory = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
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
