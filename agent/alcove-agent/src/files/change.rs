//! `file.mkdir`, `file.move` and `file.chmod`.

use super::context::Context;
use super::inspect;
use super::path::{self, failed};
use crate::sys;
use crate::users::User;
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ErrorCode, FileChmod, FileMkdir, FileMove};
use serde::Serialize;
use std::io::Error;
use std::os::fd::AsRawFd;

#[derive(Serialize)]
struct Empty {}

pub fn mkdir(channel: &mut Channel, context: &Context, request: &FileMkdir) -> Served {
    context.acting(request.user.as_deref(), |user| mkdir_for(user, channel, context, request))
}

fn mkdir_for(user: &User, channel: &mut Channel, context: &Context, request: &FileMkdir) -> Served {
    let path = path::parse(&request.path)?;
    let text = path.text();
    let failure = |error: Error| failed(&text, &error);
    if path.is_root() {
        if !request.parents {
            return Err(refused(ErrorCode::Exists, "/ exists already"));
        }
        let fd = path::open(&path, libc::O_PATH)?;
        return channel.reply(&inspect::info(b"/", &sys::fstat(fd.as_raw_fd()).map_err(failure)?, None));
    }
    let place = if request.parents { path::locate_making(&path, user, context.ids)? } else { path::locate(&path)? };
    let dir = place.dir.as_raw_fd();
    // SAFETY: the name is a C string.
    match sys::check(unsafe { libc::mkdirat(dir, place.name.as_ptr(), 0o755) }) {
        Ok(_) => {
            path::give(dir, &place.name, user, context.ids).map_err(failure)?;
            if let Some(mode) = request.mode {
                path::set_mode(dir, &place.name, mode).map_err(failure)?;
            }
        }
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) && request.parents => {
            let existing = path::open(&path, libc::O_PATH)?;
            let stat = sys::fstat(existing.as_raw_fd()).map_err(failure)?;
            if stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
                return Err(refused(ErrorCode::Exists, format!("{text} exists already and is no directory")));
            }
            return channel.reply(&inspect::info(&path.bytes(), &stat, None));
        }
        Err(error) => return Err(failure(error)),
    }
    channel.reply(&inspect::info_at(dir, &place.name, &path.bytes()).map_err(failure)?).map_err(|_| Stop::Gone)
}

pub fn rename(channel: &mut Channel, context: &Context, request: &FileMove) -> Served {
    let (from, to) = (path::parse(&request.from)?, path::parse(&request.to)?);
    let user = context.owner(None)?;
    let source = path::locate(&from)?;
    let stat = source.stat().map_err(|error| failed(&from.text(), &error))?;
    let below_itself = || refused(ErrorCode::BadRequest, format!("{} cannot be moved below itself", from.text()));
    // The kernel says both too, when the directories on the way are made.
    if source.is_mounted(&stat) {
        return Err(failed(&from.text(), &Error::from_raw_os_error(libc::EBUSY)));
    }
    if path::is_directory(&stat) && to.is_below(&from) && path::locate(&to).is_err() {
        return Err(below_itself());
    }
    let target = path::locate_making(&to, &user, context.ids)?;
    let (from_dir, to_dir) = (source.dir.as_raw_fd(), target.dir.as_raw_fd());
    if path::on_procfs(from_dir) || path::on_procfs(to_dir) {
        return Err(refused(ErrorCode::Permission, "procfs is not written to"));
    }
    // SAFETY: the names are C strings.
    match sys::check(unsafe { libc::renameat(from_dir, source.name.as_ptr(), to_dir, target.name.as_ptr()) }) {
        Ok(_) => {}
        Err(error) => match error.raw_os_error() {
            // Another file system, or a directory of an overlay's lower layer.
            Some(libc::EXDEV) => super::copy::move_across(&source, &target, &request.from, &request.to)?,
            Some(libc::EEXIST) => return Err(refused(ErrorCode::NotEmpty, format!("{} is not empty", to.text()))),
            Some(libc::EINVAL) => return Err(below_itself()),
            _ => return Err(failed(&to.text(), &error)),
        },
    }
    channel.reply(&Empty {})
}

pub fn chmod(channel: &mut Channel, request: &FileChmod) -> Served {
    let path = path::parse(&request.path)?;
    let failure = |error: Error| failed(&path.text(), &error);
    if request.mode > 0o7777 {
        return Err(refused(ErrorCode::BadRequest, format!("mode {:o} has more than permission bits", request.mode)));
    }
    let look = path::open(&path, libc::O_PATH)?;
    if path::on_procfs(look.as_raw_fd()) {
        return Err(refused(ErrorCode::Permission, format!("{} is in procfs, which is not changed", path.text())));
    }
    if sys::compat() && !path.is_root() && path.name() != Some(b"..") {
        let place = path::follow(&path, path::locate(&path)?)?;
        path::set_mode(place.dir.as_raw_fd(), &place.name, request.mode).map_err(failure)?;
    } else {
        // What was looked at is what is changed.
        path::set_mode_open(look.as_raw_fd(), request.mode).map_err(failure)?;
    }
    channel.reply(&Empty {})
}
