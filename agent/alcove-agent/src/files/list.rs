//! `file.list`: a directory's entries, sorted, some levels deep.

use super::inspect;
use super::path::{self, failed};
use super::walk::{HELD, Visit, Walk};
use crate::sys;
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ErrorCode, Event, FileInfo, FileList, FileType};
use std::ffi::{CStr, CString};
use std::io::{Error, Result};
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};

const MAX_ENTRIES: usize = 100_000;
const BATCH: usize = 1_000;
/// What one answer of names may take as text: whoever asked holds it whole.
pub const MAX_ANSWER: usize = 32 * 1024 * 1024;
/// A batch is sent when it has this much text.
pub const BATCH_BYTES: usize = 256 * 1024;
/// What an entry takes beside its names.
const FIELDS: usize = 150;

/// What a directory holds, but `.` and `..`.
pub struct Names {
    /// Sorted by their bytes.
    pub names: Vec<CString>,
    /// About how much memory they take.
    pub held: usize,
    /// Whether these are all.
    pub complete: bool,
}

/// A name takes about this much memory beside its text.
const OVERHEAD: usize = 40;

/// Reads a directory until `bound` is reached, at least one name.
pub fn names(dir: RawFd, bound: usize) -> Result<Names> {
    let (mut names, mut held, mut complete) = (Vec::new(), 0, false);
    let reader = open_directory(dir, c".")?;
    // SAFETY: the stream owns the descriptor from here on and is closed on every way out.
    unsafe {
        let raw = reader.into_raw_fd();
        let stream = libc::fdopendir(raw);
        if stream.is_null() {
            let error = Error::last_os_error();
            libc::close(raw);
            return Err(error);
        }
        while held <= bound {
            let entry = libc::readdir64(stream);
            if entry.is_null() {
                complete = true;
                break;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr());
            if name != c"." && name != c".." {
                held += name.to_bytes().len() + OVERHEAD;
                names.push(name.to_owned());
            }
        }
        libc::closedir(stream);
    }
    names.sort_unstable();
    Ok(Names { names, held, complete })
}

/// Opens a directory for reading, never through a symlink.
pub fn open_directory(dir: RawFd, name: &CStr) -> Result<OwnedFd> {
    sys::open_at(dir, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK, 0)
}

struct Listing<'a> {
    channel: &'a mut Channel,
    batch: Vec<FileInfo>,
    batch_bytes: usize,
    total: usize,
    total_bytes: usize,
    root: String,
}

impl Listing<'_> {
    fn add(&mut self, info: FileInfo) -> Served {
        let target = info.symlink_target.as_ref().map_or(0, String::len);
        let bytes = FIELDS + info.path.len() + info.name.len() + target;
        self.total += 1;
        self.total_bytes += bytes;
        if self.total > MAX_ENTRIES {
            return Err(refused(ErrorCode::TooLarge, format!("{} has more than {MAX_ENTRIES} entries", self.root)));
        }
        if self.total_bytes > MAX_ANSWER {
            let text = format!("the entries of {} have more than {MAX_ANSWER} bytes of names", self.root);
            return Err(refused(ErrorCode::TooLarge, text));
        }
        self.batch.push(info);
        self.batch_bytes += bytes;
        if self.batch.len() == BATCH || self.batch_bytes > BATCH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Served {
        let entries = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        if entries.is_empty() {
            return Ok(());
        }
        self.channel.event(&Event::Entries { entries })
    }

    fn walk(&mut self, mut walk: Walk, depth: usize) -> Served {
        let root = self.root.clone();
        let failure = |error: Error| match error.raw_os_error() {
            Some(libc::E2BIG) => refused(ErrorCode::TooLarge, format!("{root} has more than {MAX_ENTRIES} entries")),
            _ => failed(&root, &error),
        };
        while let Some(visit) = walk.advance().map_err(failure)? {
            let Visit::Entry(name) = visit else { continue };
            let path = walk.path_of(&name);
            if path.len() > path::MAX_PATH {
                continue;
            }
            // What vanishes meanwhile is not there.
            let Ok(info) = inspect::info_at(walk.dir(), &name, &path) else { continue };
            let descend = info.kind == FileType::Dir && walk.depth() + 1 < depth;
            self.add(info)?;
            if descend {
                match walk.enter(&name) {
                    Err(error) if error.raw_os_error() == Some(libc::E2BIG) => return Err(failure(error)),
                    // What cannot be read, or is no directory any more, is listed without what is below it.
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Entries whose path no request could name are left out.
pub fn list(channel: &mut Channel, request: &FileList) -> Served {
    let path = path::parse(&request.path)?;
    let text = path.text();
    let dir = path::open(&path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK)?;
    let walk = Walk::new(dir, &path.bytes(), HELD).map_err(|error| failed(&text, &error))?;
    let mut listing = Listing { channel, batch: Vec::new(), batch_bytes: 0, total: 0, total_bytes: 0, root: text };
    listing.walk(walk, request.depth.unwrap_or(1).max(1) as usize)?;
    listing.flush().map_err(|_| Stop::Gone)
}
