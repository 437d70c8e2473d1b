//! `file.write`: a new content appears whole, or not at all.

use super::context::Context;
use super::inspect;
use super::path::{self, Place, failed};
use super::read::check_regular;
use crate::sys;
use crate::users::{Ids, User};
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ErrorCode, FileWrite};
use std::ffi::CString;
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

const CHUNK: usize = 256 * 1024;
const NEW_MODE: u32 = 0o644;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A name beside another that nothing else has.
pub fn temporary_name() -> std::io::Result<CString> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let text = format!(".alcove-{}-{:x}-{number:x}.tmp", std::process::id(), sys::boottime_ms());
    sys::c_string(text.as_bytes())
}

/// A file beside its later name, removed unless it is put in place.
pub struct Temporary<'a> {
    place: &'a Place,
    name: CString,
    pub fd: OwnedFd,
    done: bool,
}

impl<'a> Temporary<'a> {
    pub fn create(place: &'a Place) -> std::io::Result<Temporary<'a>> {
        loop {
            let name = temporary_name()?;
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
            match sys::open_at(place.dir.as_raw_fd(), &name, flags, 0o600) {
                Ok(fd) => return Ok(Temporary { place, name, fd, done: false }),
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn finish(&mut self, mode: u32, owner: Option<(u32, u32)>) -> std::io::Result<()> {
        // SAFETY: live descriptors and C strings.
        unsafe {
            if let Some((uid, gid)) = owner {
                sys::check(libc::fchown(self.fd.as_raw_fd(), uid, gid))?;
            }
            path::set_mode_open(self.fd.as_raw_fd(), mode)?;
            let dir = self.place.dir.as_raw_fd();
            sys::check(libc::renameat(dir, self.name.as_ptr(), dir, self.place.name.as_ptr()))?;
        }
        self.done = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.done {
            // SAFETY: as above. What cannot be removed now cannot be removed at all.
            unsafe { libc::unlinkat(self.place.dir.as_raw_fd(), self.name.as_ptr(), 0) };
        }
    }
}

fn owner_of(existing: Option<&libc::stat>, user: &User, ids: Ids) -> Option<(u32, u32)> {
    match (ids, existing) {
        (Ids::Single { .. }, _) => None,
        (Ids::Many { .. }, Some(stat)) => Some((stat.st_uid, stat.st_gid)),
        (Ids::Many { .. }, None) => Some((user.uid, user.gid)),
    }
}

pub fn write(channel: &mut Channel, context: &Context, request: &FileWrite) -> Served {
    context.acting(request.user.as_deref(), |user| write_for(user, channel, context, request))
}

/// A file is replaced, not written to, so whether it may be written to has to be asked.
fn check_writable(place: &Place) -> std::io::Result<()> {
    let flags = libc::O_WRONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    match sys::open_at(place.dir.as_raw_fd(), &place.name, flags, 0) {
        // It runs as a program; what replaces it is another file.
        Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => Ok(()),
        opened => opened.map(drop),
    }
}

fn write_for(user: &User, channel: &mut Channel, context: &Context, request: &FileWrite) -> Served {
    let path = path::parse(&request.path)?;
    let text = path.text();
    let for_user = request.user.as_deref().is_some_and(|name| !name.is_empty()) && user.uid != 0;
    if path.is_root() {
        return Err(refused(ErrorCode::IsDirectory, "/ is a directory"));
    }
    let place = path::follow(&path, path::locate_making(&path, user, context.ids)?)?;
    if path::on_procfs(place.dir.as_raw_fd()) {
        return Err(refused(ErrorCode::Permission, format!("{text} is in procfs, which is not written to")));
    }
    let failure = |error: Error| failed(&text, &error);
    let existing = match place.stat() {
        Ok(stat) => {
            check_regular(&text, &stat)?;
            if for_user {
                check_writable(&place).map_err(failure)?;
            }
            Some(stat)
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
        Err(error) => return Err(failure(error)),
    };
    let mut temporary = Temporary::create(&place).map_err(failure)?;
    let mut received: u64 = 0;
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = channel.receive(&mut buffer)?;
        if count == 0 {
            break;
        }
        sys::write_all(temporary.fd.as_raw_fd(), &buffer[..count]).map_err(failure)?;
        received += count as u64;
    }
    if let Some(size) = request.size.filter(|size| *size != received) {
        return Err(refused(ErrorCode::BadRequest, format!("{text}: {size} bytes were announced and {received} came")));
    }
    let mut mode = request.mode.or(existing.map(|stat| stat.st_mode & 0o7777)).unwrap_or(NEW_MODE);
    let mut owner = owner_of(existing.as_ref(), user, context.ids);
    if for_user && owner.is_some_and(|(uid, _)| uid != user.uid) {
        // Only root gives files away, so what this user replaces becomes this user's, and runs as nobody else.
        owner = None;
        mode &= 0o1777;
    }
    temporary.finish(mode, owner).map_err(failure)?;
    let stat = sys::fstat(temporary.fd.as_raw_fd()).map_err(failure)?;
    channel.reply(&inspect::info(&path.bytes(), &stat, None)).map_err(|_| Stop::Gone)
}
