//! `file.list`: a directory's entries, sorted, some levels deep.

use super::inspect;
use super::path::{self, failed};
use crate::sys;
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ErrorCode, Event, FileInfo, FileList, FileType};
use std::ffi::{CStr, CString};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

const MAX_ENTRIES: usize = 100_000;
const BATCH: usize = 1_000;
/// Levels that a walk holds open; deeper ones are left out of a listing.
pub const MAX_DEPTH: u32 = 512;

/// The names in a directory but `.` and `..`, sorted by their bytes. `limit` bounds the memory this takes.
pub fn names(dir: OwnedFd, limit: usize) -> Result<Vec<CString>> {
    let mut names = Vec::new();
    // SAFETY: the stream owns the descriptor from here on and is closed on every way out.
    unsafe {
        let raw = dir.into_raw_fd();
        let stream = libc::fdopendir(raw);
        if stream.is_null() {
            let error = Error::last_os_error();
            libc::close(raw);
            return Err(error);
        }
        while names.len() <= limit {
            let entry = libc::readdir64(stream);
            if entry.is_null() {
                break;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr());
            if name != c"." && name != c".." {
                names.push(name.to_owned());
            }
        }
        libc::closedir(stream);
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens a directory for reading, never through a symlink.
pub fn open_directory(dir: RawFd, name: &CStr) -> Result<OwnedFd> {
    sys::open_at(dir, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK, 0)
}

struct Listing<'a> {
    channel: &'a mut Channel,
    batch: Vec<FileInfo>,
    total: usize,
    root: String,
}

impl Listing<'_> {
    fn add(&mut self, info: FileInfo) -> Served {
        self.total += 1;
        if self.total > MAX_ENTRIES {
            return Err(refused(ErrorCode::TooLarge, format!("{} has more than {MAX_ENTRIES} entries", self.root)));
        }
        self.batch.push(info);
        if self.batch.len() == BATCH {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Served {
        let entries = std::mem::take(&mut self.batch);
        if entries.is_empty() {
            return Ok(());
        }
        self.channel.event(&Event::Entries { entries })
    }

    fn walk(&mut self, dir: &OwnedFd, path: &[u8], depth: u32) -> Served {
        let failure = |error: Error| failed(&String::from_utf8_lossy(path), &error);
        let reader = open_directory(dir.as_raw_fd(), c".").map_err(failure)?;
        for name in names(reader, MAX_ENTRIES).map_err(failure)? {
            let mut inner = path.to_vec();
            if inner != b"/" {
                inner.push(b'/');
            }
            inner.extend_from_slice(name.as_bytes());
            // What vanishes meanwhile is not there.
            let Ok(info) = inspect::info_at(dir.as_raw_fd(), &name, &inner) else { continue };
            let descend = info.kind == FileType::Dir && depth > 1;
            self.add(info)?;
            if descend {
                if let Ok(below) = open_directory(dir.as_raw_fd(), &name) {
                    self.walk(&below, &inner, depth - 1)?;
                }
            }
        }
        Ok(())
    }
}

pub fn list(channel: &mut Channel, request: &FileList) -> Served {
    let path = path::parse(&request.path)?;
    let dir = path::open(&path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK)?;
    let mut listing = Listing { channel, batch: Vec::new(), total: 0, root: path.text() };
    let depth = request.depth.unwrap_or(1).clamp(1, MAX_DEPTH);
    listing.walk(&dir, &path.bytes(), depth)?;
    listing.flush().map_err(|_| Stop::Gone)
}
