//! Moving between file systems: a copy beside the target, two renames, then the removal of the source. Until the copy is
//! complete nothing that was there before is touched.

use super::list::is_empty;
use super::path::{self, Place, failed};
use super::remove::remove_tree;
use super::walk::{Trail, Visit, Walk};
use super::write::temporary_name;
use crate::sys;
use crate::workers::channel::{Served, refused};
use alcove_protocol::ErrorCode;
use std::ffi::CStr;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const CHUNK: usize = 256 * 1024;
const DIRECTORY: libc::c_int = libc::O_PATH | libc::O_DIRECTORY;

pub fn move_across(source: &Place, target: &Place, from: &str, to: &str) -> Served {
    let from_failed = |error: Error| failed(from, &error);
    let to_failed = |error: Error| failed(to, &error);
    let (from_dir, to_dir) = (source.dir.as_raw_fd(), target.dir.as_raw_fd());
    let directory = is_directory(&source.stat().map_err(from_failed)?);
    match target.stat().map(|existing| (directory, is_directory(&existing))) {
        Ok((false, true)) => return Err(refused(ErrorCode::IsDirectory, format!("{to} is a directory"))),
        Ok((true, false)) => return Err(refused(ErrorCode::NotDirectory, format!("{to} is no directory"))),
        Ok((true, true)) => {
            let existing = sys::open_at(to_dir, &target.name, DIRECTORY | libc::O_NOFOLLOW, 0).map_err(to_failed)?;
            if !is_empty(existing.as_raw_fd()).map_err(to_failed)? {
                return Err(refused(ErrorCode::NotEmpty, format!("{to} is not empty")));
            }
        }
        Ok((false, false)) | Err(_) => {}
    }
    let copied = temporary_name().map_err(to_failed)?;
    let undone = |error: Error| {
        // Half a copy is of no use to anybody.
        let _ = remove_tree(to_dir, &copied);
        error
    };
    copy(source, to_dir, &copied).map_err(undone).map_err(to_failed)?;
    // The source steps aside first: where it cannot, it could not be removed either.
    let aside = temporary_name().map_err(undone).map_err(to_failed)?;
    let left = match rename(from_dir, &source.name, from_dir, &aside) {
        Ok(()) => &aside,
        // A directory of an overlay's lower layer is no more renamed than it is moved.
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => &source.name,
        Err(error) => return Err(from_failed(undone(error))),
    };
    if let Err(error) = rename(to_dir, &copied, to_dir, &target.name) {
        if left == &aside {
            let _ = rename(from_dir, &aside, from_dir, &source.name);
        }
        return Err(to_failed(undone(error)));
    }
    remove_tree(from_dir, left).map_err(|error| {
        let (shown, reason) = (left.to_string_lossy(), sys::reason(&error));
        let text = format!("{from} is now at {to}, but its remains beside it ({shown}) cannot be removed: {reason}");
        refused(ErrorCode::Io, text)
    })
}

fn is_directory(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFDIR
}

fn rename(from_dir: RawFd, from: &CStr, to_dir: RawFd, to: &CStr) -> Result<()> {
    // SAFETY: the names are C strings.
    sys::check(unsafe { libc::renameat(from_dir, from.as_ptr(), to_dir, to.as_ptr()) }).map(|_| ())
}

/// Copies a name and what is below it to a name that nothing has yet.
fn copy(source: &Place, to_dir: RawFd, to: &CStr) -> Result<()> {
    let again = |dir: RawFd| -> Result<OwnedFd> { sys::open_at(dir, c".", DIRECTORY, 0) };
    let mut walk = Walk::only(again(source.dir.as_raw_fd())?, &source.name)?;
    let mut trail = Trail::new(again(to_dir)?)?;
    while let Some(visit) = walk.advance()? {
        let (name, left) = match visit {
            Visit::Entry(name) => (name, false),
            Visit::Left(name) => (name, true),
        };
        if left {
            trail.leave(|| Err(Error::from_raw_os_error(libc::ESTALE)))?;
        }
        let target: &CStr = if walk.depth() == 0 { to } else { &name };
        let stat = sys::stat_at(walk.dir(), &name, libc::AT_SYMLINK_NOFOLLOW)?;
        if is_directory(&stat) && !left {
            // SAFETY: the name is a C string.
            sys::check(unsafe { libc::mkdirat(trail.dir(), target.as_ptr(), 0o700) })?;
            walk.enter(&name)?;
            trail.enter(target)?;
            continue;
        }
        if !left {
            copy_one(walk.dir(), &name, trail.dir(), target, &stat)?;
        }
        take_over(trail.dir(), target, &stat)?;
    }
    Ok(())
}

/// Makes a name what another one is, unless that is a directory.
fn copy_one(from_dir: RawFd, from: &CStr, to_dir: RawFd, to: &CStr, stat: &libc::stat) -> Result<()> {
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFLNK => {
            let target = path::read_link(from_dir, from).ok_or_else(Error::last_os_error)?;
            let target = sys::c_string(&target)?;
            // SAFETY: both are C strings.
            sys::check(unsafe { libc::symlinkat(target.as_ptr(), to_dir, to.as_ptr()) }).map(|_| ())
        }
        libc::S_IFREG => copy_file(from_dir, from, to_dir, to),
        // SAFETY: the name is a C string.
        _ => sys::check(unsafe { libc::mknodat(to_dir, to.as_ptr(), stat.st_mode, stat.st_rdev) }).map(|_| ()),
    }
}

fn copy_file(from_dir: RawFd, from: &CStr, to_dir: RawFd, to: &CStr) -> Result<()> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let source = sys::open_at(from_dir, from, flags, 0)?;
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let target = sys::open_at(to_dir, to, flags, 0o600)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = sys::read(source.as_raw_fd(), &mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        sys::write_all(target.as_raw_fd(), &buffer[..count])?;
    }
}

/// Gives a copy the owner, the permission bits and the times of what it was made from.
fn take_over(dir: RawFd, name: &CStr, stat: &libc::stat) -> Result<()> {
    // SAFETY: the name is a C string and the descriptor lives; every result is checked.
    unsafe {
        let owned = libc::fchownat(dir, name.as_ptr(), stat.st_uid, stat.st_gid, libc::AT_SYMLINK_NOFOLLOW);
        // Where one user id exists there is nothing to give.
        if owned < 0 && sys::errno() != libc::EPERM && sys::errno() != libc::EINVAL {
            return Err(Error::last_os_error());
        }
        if stat.st_mode & libc::S_IFMT != libc::S_IFLNK {
            path::set_mode(dir, name, stat.st_mode)?;
        }
        let times = [
            libc::timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec },
            libc::timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec },
        ];
        sys::check(libc::utimensat(dir, name.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW))?;
    }
    Ok(())
}
