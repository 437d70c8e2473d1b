//! `/etc/passwd` and `/etc/group` of the sandbox, read once for as long as they stay as they are: every command asks.
//! They are kept as text: what a sandbox writes there takes no more of the agent than it is long.

use crate::sys;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

/// The lines of a file.
pub type Entries = Arc<str>;

/// Of a larger file the lines up to here count: no honest one comes near.
const MAX_FILE: usize = 256 << 10;
/// A file changed less than this before it was read may be changed again without its times showing it.
const SETTLED_MS: u64 = 100;

/// What tells one version of a file from another.
type Version = (u64, u64, i64, [i64; 4]);

struct Cached {
    version: Version,
    entries: Entries,
}

static PASSWD: Mutex<Option<Cached>> = Mutex::new(None);
static GROUP: Mutex<Option<Cached>> = Mutex::new(None);

/// The entries of both files; none of a file that is missing.
pub fn read() -> (Entries, Entries) {
    (cached(&PASSWD, c"/etc/passwd"), cached(&GROUP, c"/etc/group"))
}

fn cached(place: &Mutex<Option<Cached>>, path: &CStr) -> Entries {
    let Ok(stat) = sys::stat_at(libc::AT_FDCWD, path, 0) else { return none() };
    let times = [stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec];
    let version = (stat.st_dev, stat.st_ino, stat.st_size, times);
    // The program aborts on a panic, so a poisoned lock is never seen.
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cached) = place.as_ref().filter(|cached| cached.version == version) {
        return cached.entries.clone();
    }
    let read_at = sys::wall_ms();
    let Ok(bytes) = sys::read_small(path, MAX_FILE) else { return none() };
    let entries = Entries::from(whole_lines(&String::from_utf8_lossy(&bytes)));
    let changed_at = stat.st_ctime.max(0) as u64 * 1000 + stat.st_ctime_nsec as u64 / 1_000_000;
    let settled = changed_at + SETTLED_MS < read_at;
    *place = settled.then(|| Cached { version, entries: entries.clone() });
    entries
}

fn none() -> Entries {
    Entries::from("")
}

/// A line that was cut may say something else than it did.
fn whole_lines(text: &str) -> &str {
    if text.len() < MAX_FILE { text } else { text.rsplit_once('\n').map_or("", |(whole, _)| whole) }
}

/// The fields of each line.
pub fn accounts(text: &str) -> impl Iterator<Item = Account<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).map(Account)
}

/// A line of either file.
#[derive(Clone, Copy)]
pub struct Account<'a>(&'a str);

impl<'a> Account<'a> {
    /// One field; an empty one where the line has fewer.
    pub fn field(self, index: usize) -> &'a str {
        self.0.split(':').nth(index).unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_changed_or_replaced_is_read_again() {
        let path = std::env::temp_dir().join(format!("alcove-accounts-{}", std::process::id()));
        let name = sys::c_string(path.to_string_lossy().as_bytes()).expect("a name");
        let place = Mutex::new(None);
        for text in ["a:1", "b:1", "c:1\nd:2"] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(&*cached(&place, &name), text);
            assert_eq!(&*cached(&place, &name), text);
        }
        std::fs::remove_file(&path).expect("removed");
        assert!(cached(&place, &name).is_empty());
    }

    #[test]
    fn of_a_large_file_whole_lines_are_taken_and_no_more_memory_than_they_are_long() {
        let colons = format!("root:x:0:0::/root:/bin/sh\n{}", ":".repeat(4 << 20));
        let cut = &colons[..MAX_FILE];
        assert_eq!(whole_lines(cut), "root:x:0:0::/root:/bin/sh");
        assert_eq!(accounts(cut).map(|account| account.field(2)).next(), Some("0"));
        assert_eq!(whole_lines("a:1\nb:2"), "a:1\nb:2");
    }
}
