//! `file.unpack`: a tar into a directory. No entry gets out of it: names are walked one by one from the directory's
//! descriptor, and a symlink on the way is refused, wherever it came from.

use super::context::Context;
use super::path::{self, c_string, failed};
use super::remove::remove_tree;
use crate::users::{Ids, User};
use crate::workers::channel::{Channel, Incoming, Served, Stop, refused};
use crate::{closed_folder, sys};
use alcove_protocol::{ErrorCode, FileUnpack};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::io::{self, Error, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use tar::EntryType;

const CHUNK: usize = 256 * 1024;
const DIRECTORY: libc::c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;

#[derive(Serialize)]
struct Reply {
    entries: u64,
}

struct Target<'a> {
    root: OwnedFd,
    /// The directory that the last entry went to: the next one mostly goes there too, or below.
    last: RefCell<(Vec<CString>, Option<OwnedFd>)>,
    user: &'a User,
    ids: Ids,
}

/// An entry's name as components below the root. None for the root itself.
fn inside(name: &[u8]) -> Result<Option<Vec<CString>>, Stop> {
    let shown = String::from_utf8_lossy(name).into_owned();
    if name.starts_with(b"/") {
        return Err(refused(ErrorCode::BadRequest, format!("the archive holds the absolute name {shown}")));
    }
    let mut parts = Vec::new();
    for part in name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if part == b".." {
            return Err(refused(ErrorCode::BadRequest, format!("the archive's name {shown} leaves its directory")));
        }
        parts.push(c_string(part)?);
    }
    Ok((!parts.is_empty()).then_some(parts))
}

/// When an entry's contents changed last: by an extended header where there is one, which has parts of seconds too.
fn time_of<R: Read>(entry: &mut tar::Entry<R>) -> libc::timespec {
    // Before 1970 they are negative, and read as the large numbers with the same bits.
    let plain = entry.header().mtime().unwrap_or(0) as i64;
    let extended = entry.pax_extensions().ok().flatten().and_then(|mut fields| {
        let field = fields.find_map(|field| field.ok().filter(|field| field.key_bytes() == b"mtime"))?;
        field.value().ok()?.parse::<f64>().ok().filter(|seconds| seconds.is_finite())
    });
    let (seconds, part) = extended.map_or((plain, 0.0), |exact| (exact.floor() as i64, exact - exact.floor()));
    // Just below a whole second it may be rounded to one.
    libc::timespec { tv_sec: seconds as _, tv_nsec: (part * 1e9).min(999_999_999.0) as _ }
}

impl Target<'_> {
    /// The directory that holds the last component, made when missing.
    fn parent(&self, parts: &[CString]) -> Result<OwnedFd, Stop> {
        let above = &parts[..parts.len() - 1];
        let mut last = self.last.borrow_mut();
        let (known, from) = match &last.1 {
            Some(dir) if above.starts_with(&last.0) => (last.0.len(), dir),
            _ => (0, &self.root),
        };
        let mut dir = from.try_clone().map_err(|error| failed("/", &error))?;
        for (index, part) in above.iter().enumerate().skip(known) {
            let failure = |error: Error| {
                let shown: String =
                    parts[..=index].iter().flat_map(|part| ["/".into(), part.to_string_lossy()]).collect();
                match error.raw_os_error() {
                    Some(libc::ENOTDIR | libc::ELOOP) => refused(
                        ErrorCode::BadRequest,
                        format!("the archive's path {shown} leads through what is no directory"),
                    ),
                    _ => failed(&shown, &error),
                }
            };
            let open = |dir: &OwnedFd| {
                sys::open_at(dir.as_raw_fd(), part, DIRECTORY, 0).and_then(closed_folder::unless_closed)
            };
            dir = match open(&dir) {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    // SAFETY: the name is a C string.
                    sys::check(unsafe { libc::mkdirat(dir.as_raw_fd(), part.as_ptr(), 0o755) }).map_err(failure)?;
                    path::give(dir.as_raw_fd(), part, self.user, self.ids).map_err(failure)?;
                    open(&dir).map_err(failure)?
                }
                found => found.map_err(failure)?,
            };
        }
        if above.len() > known || known < last.0.len() {
            *last = (above.to_vec(), dir.try_clone().ok());
        }
        Ok(dir)
    }

    /// Makes way for a new entry; a directory stays when the entry is one.
    fn clear(&self, dir: RawFd, name: &CString, directory: bool) -> io::Result<bool> {
        match sys::stat_at(dir, name, libc::AT_SYMLINK_NOFOLLOW) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
            Ok(stat) if stat.st_mode & libc::S_IFMT == libc::S_IFDIR => {
                if directory {
                    return Ok(true);
                }
                Err(Error::from_raw_os_error(libc::EISDIR))
            }
            Ok(_) => remove_tree(dir, name).map(|()| false),
        }
    }

    fn place<R: Read>(
        &self,
        dir: RawFd,
        name: &CString,
        entry: &mut tar::Entry<R>,
        buffer: &mut [u8],
    ) -> io::Result<bool> {
        let kind = entry.header().entry_type();
        let mode = entry.header().mode().unwrap_or(0o644) & 0o7777;
        let existing = self.clear(dir, name, kind == EntryType::Directory)?;
        let times = [time_of(entry); 2];
        // SAFETY: names are C strings and descriptors live; every result is checked, but for times: one that the file
        // system cannot keep is no reason to refuse the file.
        unsafe {
            match kind {
                EntryType::Directory => {
                    if !existing {
                        sys::check(libc::mkdirat(dir, name.as_ptr(), 0o755))?;
                        path::give(dir, name, self.user, self.ids)?;
                    }
                    path::set_mode(dir, name, mode)?;
                    return Ok(true);
                }
                EntryType::Symlink => {
                    let target = entry.link_name_bytes().ok_or_else(|| Error::from_raw_os_error(libc::EINVAL))?;
                    sys::check(libc::symlinkat(sys::c_string(&target)?.as_ptr(), dir, name.as_ptr()))?;
                    path::give(dir, name, self.user, self.ids)?;
                }
                EntryType::Fifo => {
                    sys::check(libc::mknodat(dir, name.as_ptr(), libc::S_IFIFO | 0o600, 0))?;
                    path::give(dir, name, self.user, self.ids)?;
                    path::set_mode(dir, name, mode)?;
                }
                _ => {
                    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
                    let file = sys::open_at(dir, name, flags, 0o600)?;
                    if let Err(error) = self.fill(&file, entry, buffer, mode) {
                        // Half of a file would pass for one, and is still the agent's: not even root inside may read it.
                        libc::unlinkat(dir, name.as_ptr(), 0);
                        return Err(error);
                    }
                    libc::futimens(file.as_raw_fd(), times.as_ptr());
                    return Ok(true);
                }
            }
            libc::utimensat(dir, name.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
        }
        Ok(true)
    }

    fn fill<R: Read>(&self, file: &OwnedFd, entry: &mut tar::Entry<R>, buffer: &mut [u8], mode: u32) -> io::Result<()> {
        let mut left = entry.size();
        loop {
            let count = entry.read(buffer)?;
            if count == 0 {
                break;
            }
            sys::write_all(file.as_raw_fd(), &buffer[..count])?;
            left = left.saturating_sub(count as u64);
        }
        if left > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.ids.many() {
            // SAFETY: a live descriptor.
            sys::check(unsafe { libc::fchown(file.as_raw_fd(), self.user.uid, self.user.gid) })?;
        }
        path::set_mode_open(file.as_raw_fd(), mode)
    }

    /// A hard link to an entry unpacked before.
    fn link(&self, dir: RawFd, name: &CString, target: &[u8]) -> Served {
        let shown = String::from_utf8_lossy(target).into_owned();
        let parts = inside(target)?
            .ok_or_else(|| refused(ErrorCode::BadRequest, "a hard link leads to the directory itself"))?;
        let Some(last) = parts.last() else { return Ok(()) };
        let source = self.parent(&parts)?;
        self.clear(dir, name, false).map_err(|error| failed(&shown, &error))?;
        // SAFETY: names are C strings. Without flags a symlink is linked itself, not followed.
        sys::check(unsafe { libc::linkat(source.as_raw_fd(), last.as_ptr(), dir, name.as_ptr(), 0) })
            .map(|_| ())
            .map_err(|error| failed(&shown, &error))
    }
}

/// What the tar library reads from. It takes names of entries whole into memory, so between the contents of two entries
/// only so much comes through.
struct Bounded<'a, 'b> {
    incoming: &'a mut Incoming<'b>,
    left: &'a Cell<u64>,
    ended: &'a Cell<bool>,
    /// What the archive begins with.
    head: &'a Cell<Option<[u8; 4]>>,
}

/// gzip, zstd, xz, bzip2 and zip.
fn is_compressed(head: [u8; 4]) -> bool {
    let magic: [&[u8]; 5] =
        [&[0x1f, 0x8b], &[0x28, 0xb5, 0x2f, 0xfd], &[0xfd, b'7', b'z', b'X'], b"BZh", b"PK\x03\x04"];
    magic.iter().any(|magic| head.starts_with(magic))
}

/// Headers of one entry: its own, and those that hold its name, the name it links to and its extended attributes.
const MAX_HEADERS: u64 = 1024 * 1024;

impl Read for Bounded<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left.get()).unwrap_or(usize::MAX));
        if wanted == 0 && !buffer.is_empty() {
            return Err(Error::other(format!("an entry has more than {MAX_HEADERS} bytes of names")));
        }
        let count = self.incoming.read(&mut buffer[..wanted])?;
        self.left.set(self.left.get() - count as u64);
        if let (None, Some(head)) = (self.head.get(), buffer[..count].first_chunk()) {
            self.head.set(Some(*head));
        }
        self.ended.set(count == 0);
        Ok(count)
    }
}

fn unpack_all(incoming: &mut Incoming, target: &Target) -> Result<u64, Stop> {
    let (left, ended, head) = (Cell::new(MAX_HEADERS), Cell::new(false), Cell::new(None));
    let compressed = || head.get().is_some_and(is_compressed);
    let unread = |text: String| {
        let text = if compressed() { "it is compressed, and must be an uncompressed tar".to_owned() } else { text };
        refused(ErrorCode::BadRequest, format!("the archive cannot be read: {text}"))
    };
    let broken = |error: Error| match error.raw_os_error() {
        Some(_) => failed("the archive", &error),
        None => {
            let text: String = error.to_string().chars().filter(|char| !char.is_control()).collect();
            // The library repeats what it took for a sum and a name.
            unread(if text.contains("when getting cksum") { "it is no tar, or damaged".to_owned() } else { text })
        }
    };
    let cut = |count: u64| match count {
        0 if compressed() => unread(String::new()),
        0 if head.get().is_some() => unread("it is no tar, or cut off before the end of its first header".to_owned()),
        _ => {
            let text = format!("the archive is cut off: it ends without an end after {count} entries");
            refused(ErrorCode::BadRequest, text)
        }
    };
    let mut archive = tar::Archive::new(Bounded { incoming, left: &left, ended: &ended, head: &head });
    let mut buffer = vec![0; CHUNK];
    let mut count = 0;
    let mut entries = archive.entries().map_err(broken)?;
    loop {
        left.set(MAX_HEADERS);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(|error| if ended.get() { cut(count) } else { broken(error) })?;
        left.set(u64::MAX);
        let name = entry.path_bytes().into_owned();
        let shown = String::from_utf8_lossy(&name).into_owned();
        let kind = entry.header().entry_type();
        let skipped = matches!(kind, EntryType::Char | EntryType::Block | EntryType::XGlobalHeader);
        if let Some(parts) = inside(&name)?.filter(|_| !skipped) {
            let Some(last) = parts.last() else { continue };
            let dir = target.parent(&parts)?;
            if kind == EntryType::Link {
                let link = entry.link_name_bytes().map(|name| name.into_owned()).unwrap_or_default();
                target.link(dir.as_raw_fd(), last, &link)?;
            } else {
                target.place(dir.as_raw_fd(), last, &mut entry, &mut buffer).map_err(|error| {
                    match error.raw_os_error() {
                        Some(_) => failed(&shown, &error),
                        None if ended.get() => cut(count),
                        None => broken(error),
                    }
                })?;
            }
            count += 1;
        }
        // What nobody wanted of an entry does not count as its name.
        while entry.read(&mut buffer).map_err(broken)? > 0 {}
        if ended.get() {
            return Err(cut(count));
        }
    }
    // The library takes the end of the bytes for the end of the archive, which has a mark of its own.
    if ended.get() { Err(cut(count)) } else { Ok(count) }
}

pub fn unpack(channel: &mut Channel, context: &Context, request: &FileUnpack) -> Served {
    context.acting(request.user.as_deref(), |user| unpack_for(user, channel, context, request))
}

fn unpack_for(user: &User, channel: &mut Channel, context: &Context, request: &FileUnpack) -> Served {
    let path = path::parse(&request.path)?;
    let root = path::make_directories(&path, user, context.ids)?;
    if path::on_procfs(root.as_raw_fd()) {
        return Err(refused(ErrorCode::Permission, format!("{} is in procfs, which is not written to", path.text())));
    }
    let target = Target { root, last: RefCell::default(), user, ids: context.ids };
    let mut incoming = Incoming { channel, gone: false };
    let result = unpack_all(&mut incoming, &target);
    if incoming.gone {
        return Err(Stop::Gone);
    }
    let entries = result?;
    // What follows the end of the archive is padding.
    let mut padding = vec![0; 4096];
    while channel.receive(&mut padding)? > 0 {}
    channel.reply(&Reply { entries })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_directory() {
        let parts = |name: &[u8]| inside(name).ok().map(|parts| parts.map(|parts| parts.len()));
        assert_eq!(parts(b"./a//b/./c"), Some(Some(3)));
        assert_eq!(parts(b"./"), Some(None));
        for bad in [&b"/etc/passwd"[..], b"../x", b"a/../../x", b"a/..", b".."] {
            assert_eq!(parts(bad), None);
        }
    }
}
