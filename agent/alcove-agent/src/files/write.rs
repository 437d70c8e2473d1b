//! `file.write`: a new content appears whole, or not at all.

use super::context::Context;
use super::inspect;
use super::path::{self, Place, failed};
use super::read::check_regular;
use crate::sys;
use crate::users::{Ids, User};
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ErrorCode, FileWrite};
use std::ffi::{CStr, CString};
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

/// Whether it is such a name.
pub fn is_temporary(name: &[u8]) -> bool {
    let numbers = name.strip_prefix(b".alcove-").and_then(|rest| rest.strip_suffix(b".tmp"));
    numbers.is_some_and(|text| {
        let mut numbers = text.split(|byte| *byte == b'-');
        let hexadecimal = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_hexdigit);
        numbers.by_ref().take(3).filter(|text| hexadecimal(text)).count() == 3 && numbers.next().is_none()
    })
}

/// A file on its way to its name. Where the file system can, it has none until then, so that nothing is left of it when
/// the agent is killed; else it is beside its later name, and is removed unless it is put in place.
pub struct Temporary<'a> {
    place: &'a Place,
    /// None while it has no name.
    name: Option<CString>,
    pub fd: OwnedFd,
}

impl<'a> Temporary<'a> {
    pub fn create(place: &'a Place) -> std::io::Result<Temporary<'a>> {
        let dir = place.dir.as_raw_fd();
        // Without procfs there would be no way to a name.
        if !sys::compat() && sys::open(c"/proc/self/fd", libc::O_PATH, 0).is_ok() {
            if let Ok(fd) = sys::open_at(dir, c".", libc::O_TMPFILE | libc::O_WRONLY, 0o600) {
                return Ok(Temporary { place, name: None, fd });
            }
        }
        loop {
            let name = temporary_name()?;
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
            match sys::open_at(dir, &name, flags, 0o600) {
                Ok(fd) => return Ok(Temporary { place, name: Some(name), fd }),
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn finish(&mut self, mode: u32, owner: Option<(u32, u32)>) -> std::io::Result<()> {
        if let Some((uid, gid)) = owner {
            // SAFETY: a live descriptor.
            sys::check(unsafe { libc::fchown(self.fd.as_raw_fd(), uid, gid) })?;
        }
        path::set_mode_open(self.fd.as_raw_fd(), mode)?;
        let dir = self.place.dir.as_raw_fd();
        let name = match &self.name {
            // To who watches, a second name is a new file, which a rename is not. Dropped, this loses its first.
            Some(name) if !sys::compat() && self.put(name).is_ok() => return Ok(()),
            Some(name) => name.clone(),
            None => match self.link(&self.place.name) {
                // There is something to replace, which only a rename does.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                    let name = temporary_name()?;
                    self.link(&name)?;
                    self.name = Some(name.clone());
                    name
                }
                done => return done,
            },
        };
        // SAFETY: C strings.
        sys::check(unsafe { libc::renameat(dir, name.as_ptr(), dir, self.place.name.as_ptr()) })?;
        self.name = None;
        Ok(())
    }

    /// Fails where there is something to replace.
    fn put(&self, name: &CStr) -> std::io::Result<()> {
        let dir = self.place.dir.as_raw_fd();
        // SAFETY: C strings.
        let done = unsafe { libc::linkat(dir, name.as_ptr(), dir, self.place.name.as_ptr(), 0) };
        sys::check(done).map(|_| ())
    }

    fn link(&self, name: &CStr) -> std::io::Result<()> {
        let own = sys::c_string(format!("/proc/self/fd/{}", self.fd.as_raw_fd()).as_bytes())?;
        let (from, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
        // SAFETY: C strings.
        let done = unsafe { libc::linkat(from, own.as_ptr(), self.place.dir.as_raw_fd(), name.as_ptr(), flags) };
        sys::check(done).map(|_| ())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // SAFETY: a C string. What cannot be removed now cannot be removed at all.
            unsafe { libc::unlinkat(self.place.dir.as_raw_fd(), name.as_ptr(), 0) };
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
    drop(temporary);
    channel.reply(&inspect::info(&path.bytes(), &stat, None)).map_err(|_| Stop::Gone)
}
