//! `file.list`: a directory's entries, sorted, some levels deep.

use super::inspect;
use super::path::{self, failed};
use super::walk::{Visit, Walk};
use crate::sys;
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ErrorCode, Event, FileInfo, FileList, FileType};
use std::collections::BinaryHeap;
use std::ffi::{CStr, CString};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

const MAX_ENTRIES: usize = 100_000;
const BATCH: usize = 1_000;
/// What one answer of names may take as text: whoever asked holds it whole.
pub const MAX_ANSWER: usize = 32 * 1024 * 1024;
/// A batch is sent when it has this much text.
pub const BATCH_BYTES: usize = 256 * 1024;
/// What an entry takes beside its names.
const FIELDS: usize = 150;

/// Names of a directory, but `.` and `..`.
pub struct Names {
    /// Sorted by their bytes.
    pub names: Vec<CString>,
    pub held: Held,
    /// The last of these, when there are more after it.
    pub more: Option<CString>,
}

/// What names that wait may take in all, whoever waits for them: commands can fill all of the memory but what the agent
/// has for itself.
const HELD: usize = 4 * 1024 * 1024;
/// What may be held when there is no room left, or walks that have all of it would not go on.
const LEAST: usize = 2 * 1024;
/// A name takes about this much memory beside its text.
const OVERHEAD: usize = 40;

static HELD_NOW: AtomicUsize = AtomicUsize::new(0);

/// About how much memory some names take, counted until it is dropped.
#[derive(Default)]
pub struct Held(usize);

impl Held {
    fn of(bytes: usize) -> Self {
        HELD_NOW.fetch_add(bytes, Relaxed);
        Self(bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD_NOW.fetch_sub(self.0, Relaxed);
    }
}

/// The names of a directory after `after`, as many as there is room for, at least one. Whoever wants them all asks again:
/// the directory is read as often as it has room for its names.
pub fn names(dir: RawFd, after: Option<&CStr>) -> Result<Names> {
    let room = (HELD.saturating_sub(HELD_NOW.load(Relaxed)) / 2).max(LEAST);
    let (mut first, mut held, mut complete) = (BinaryHeap::<CString>::new(), 0, true);
    let size = |name: &CStr| name.to_bytes().len() + OVERHEAD;
    each_name(dir, |name| {
        if after.is_some_and(|after| name <= after) {
            return;
        }
        if !complete && first.peek().is_some_and(|last| name >= last.as_c_str()) {
            return;
        }
        held += size(name);
        first.push(name.to_owned());
        while held > room && first.len() > 1 {
            held -= first.pop().map_or(0, |last| size(&last));
            complete = false;
        }
    })?;
    let names = first.into_sorted_vec();
    let more = names.last().filter(|_| !complete).cloned();
    Ok(Names { names, held: Held::of(held), more })
}

/// Whether a directory has no names.
pub fn is_empty(dir: RawFd) -> Result<bool> {
    let mut empty = true;
    each_name(dir, |_| empty = false)?;
    Ok(empty)
}

/// By the system call: a library may ask for a few names at a time, and end without a word where there is an error.
fn each_name(dir: RawFd, mut take: impl FnMut(&CStr)) -> Result<()> {
    let reader = open_directory(dir, c".")?;
    let mut buffer = [0u8; 32 * 1024];
    loop {
        // SAFETY: the kernel fills no more of the buffer than it is told, with whole records.
        let filled = sys::check(unsafe {
            libc::syscall(libc::SYS_getdents64, reader.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
        });
        let mut records = match filled {
            // It was removed meanwhile.
            Err(error) if sys::errno_is(&error, libc::ENOENT) => return Ok(()),
            filled => &buffer[..filled? as usize],
        };
        if records.is_empty() {
            return Ok(());
        }
        while let Some((name, others)) = first_name(records) {
            if name != c"." && name != c".." {
                take(name);
            }
            records = others;
        }
    }
}

/// Of records as the kernel writes them: a number and a place of eight bytes each, the record's length in two, a kind in one, the name.
fn first_name(records: &[u8]) -> Option<(&CStr, &[u8])> {
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let length = records.get(LENGTH..LENGTH + 2).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]))?;
    let (record, others) = records.split_at_checked(length.into())?;
    Some((CStr::from_bytes_until_nul(record.get(NAME..)?).ok()?, others))
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
        let failure = |error: Error| failed(&root, &error);
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
                // What cannot be read, or is no directory any more, is listed without what is below it.
                let _ = walk.enter(&name);
            }
        }
        Ok(())
    }
}

fn is_file(path: &path::Path) -> bool {
    let stat = path::open(path, libc::O_PATH).and_then(|fd| sys::fstat(fd.as_raw_fd()).map_err(|_| Stop::Gone));
    stat.is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG)
}

fn not_a_directory(path: &str) -> Stop {
    refused(ErrorCode::NotDirectory, format!("{path} is a file, not a directory"))
}

/// Entries whose path no request could name are left out.
pub fn list(channel: &mut Channel, request: &FileList) -> Served {
    let path = path::parse(&request.path)?;
    let text = path.text();
    let dir = path::open(&path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK)
        .map_err(|refusal| if is_file(&path) { not_a_directory(&text) } else { refusal })?;
    let walk = Walk::new(dir, &path.bytes()).map_err(|error| failed(&text, &error))?;
    let mut listing = Listing { channel, batch: Vec::new(), batch_bytes: 0, total: 0, total_bytes: 0, root: text };
    listing.walk(walk, request.depth.unwrap_or(1).max(1) as usize)?;
    listing.flush().map_err(|_| Stop::Gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_removed_meanwhile_has_no_names_and_what_is_none_is_told() {
        let path = std::env::temp_dir().join(format!("alcove-removed-{}", std::process::id()));
        std::fs::create_dir(&path).expect("made");
        let open = |path: &std::path::Path| std::fs::File::open(path).expect("opened");
        let removed = open(&path);
        std::fs::remove_dir(&path).expect("removed");
        assert!(is_empty(removed.as_raw_fd()).expect("read"));
        assert!(is_empty(open(std::path::Path::new("/proc/self/status")).as_raw_fd()).is_err());
    }

    #[test]
    fn names_are_cut_out_of_records_and_nothing_out_of_what_is_none() {
        let mut record = [0u8; 24];
        record[16..18].copy_from_slice(&24u16.to_ne_bytes());
        record[19..21].copy_from_slice(b"ab");
        let two = [record, record].concat();
        let (name, others) = first_name(&two).expect("a name");
        assert_eq!((name, others.len()), (c"ab", 24));
        for broken in [&record[..0], &record[..17], &record[..23], &[0xff; 24], &[0; 24]] {
            assert!(first_name(broken).is_none(), "{broken:?}");
        }
    }
}
