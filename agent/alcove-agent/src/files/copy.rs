//! Moving between file systems: a copy, then the removal of the source.

use super::list::{MAX_DEPTH, names, open_directory};
use super::path::{self, Place, failed};
use super::remove::remove_tree;
use super::write::Temporary;
use crate::sys;
use crate::workers::channel::{Served, refused};
use alcove_protocol::ErrorCode;
use std::ffi::CStr;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, RawFd};

const CHUNK: usize = 256 * 1024;
const MAX_NAMES: usize = 1_000_000;

pub fn move_across(source: &Place, target: &Place, from: &str, to: &str) -> Served {
    let failure = |error: Error| failed(to, &error);
    let stat = source.stat().map_err(|error| failed(from, &error))?;
    let directory = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
    if let Ok(existing) = target.stat() {
        let existing_directory = existing.st_mode & libc::S_IFMT == libc::S_IFDIR;
        match (directory, existing_directory) {
            (false, true) => return Err(refused(ErrorCode::IsDirectory, format!("{to} is a directory"))),
            (true, false) => return Err(refused(ErrorCode::NotDirectory, format!("{to} is no directory"))),
            // SAFETY: the name is a C string. Succeeds only when it is empty.
            (true, true) => unsafe {
                sys::check(libc::unlinkat(target.dir.as_raw_fd(), target.name.as_ptr(), libc::AT_REMOVEDIR))
                    .map_err(failure)?;
            },
            (false, false) => {}
        }
    }
    if let Err(error) = copy(source.dir.as_raw_fd(), &source.name, target.dir.as_raw_fd(), &target.name, 0) {
        // Half a copy is of no use to anybody.
        let _ = remove_tree(target.dir.as_raw_fd(), &target.name);
        return Err(failure(error));
    }
    remove_tree(source.dir.as_raw_fd(), &source.name).map_err(|error| failed(from, &error))
}

fn copy(from_dir: RawFd, from: &CStr, to_dir: RawFd, to: &CStr, depth: u32) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    let stat = sys::stat_at(from_dir, from, libc::AT_SYMLINK_NOFOLLOW)?;
    // SAFETY: names are C strings and descriptors live; every result is checked.
    unsafe {
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFDIR => {
                sys::check(libc::mkdirat(to_dir, to.as_ptr(), 0o700))?;
                let source = open_directory(from_dir, from)?;
                let target = open_directory(to_dir, to)?;
                for name in names(source.try_clone()?, MAX_NAMES)? {
                    copy(source.as_raw_fd(), &name, target.as_raw_fd(), &name, depth + 1)?;
                }
            }
            libc::S_IFLNK => {
                let target = path::read_link(from_dir, from).ok_or_else(Error::last_os_error)?;
                libc::unlinkat(to_dir, to.as_ptr(), 0);
                sys::check(libc::symlinkat(sys::c_string(&target)?.as_ptr(), to_dir, to.as_ptr()))?;
            }
            libc::S_IFREG => copy_file(from_dir, from, to_dir, to, &stat)?,
            _ => {
                libc::unlinkat(to_dir, to.as_ptr(), 0);
                sys::check(libc::mknodat(to_dir, to.as_ptr(), stat.st_mode, stat.st_rdev))?;
            }
        }
        let owned = libc::fchownat(to_dir, to.as_ptr(), stat.st_uid, stat.st_gid, libc::AT_SYMLINK_NOFOLLOW);
        // Where one user id exists there is nothing to give.
        if owned < 0 && sys::errno() != libc::EPERM && sys::errno() != libc::EINVAL {
            return Err(Error::last_os_error());
        }
        if stat.st_mode & libc::S_IFMT != libc::S_IFLNK {
            path::set_mode(to_dir, to, stat.st_mode)?;
        }
        let times = [
            libc::timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec },
            libc::timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec },
        ];
        sys::check(libc::utimensat(to_dir, to.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW))?;
    }
    Ok(())
}

fn copy_file(from_dir: RawFd, from: &CStr, to_dir: RawFd, to: &CStr, stat: &libc::stat) -> Result<()> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let source = sys::open_at(from_dir, from, flags, 0)?;
    // SAFETY: duplicates a live descriptor.
    let dir = unsafe { std::os::fd::BorrowedFd::borrow_raw(to_dir) }.try_clone_to_owned()?;
    let place = Place { dir, name: to.to_owned() };
    let mut temporary = Temporary::create(&place)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = sys::read(source.as_raw_fd(), &mut buffer)?;
        if count == 0 {
            break;
        }
        sys::write_all(temporary.fd.as_raw_fd(), &buffer[..count])?;
    }
    temporary.finish(stat.st_mode & 0o7777, None)
}
