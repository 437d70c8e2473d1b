//! What a file is: `file.stat`, and the FileInfo of every other reply.

use super::path::{self, failed};
use crate::sys;
use crate::workers::channel::{Channel, Served, Stop};
use alcove_protocol::{FileInfo, FileStat, FileType};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};

pub fn kind(mode: libc::mode_t) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFREG => FileType::File,
        libc::S_IFDIR => FileType::Dir,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::Fifo,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::Unknown,
    }
}

/// `path` as it was asked for; `target` where a symlink points to.
pub fn info(path: &[u8], stat: &libc::stat, target: Option<Vec<u8>>) -> FileInfo {
    let name = path.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty()).unwrap_or(b"/");
    FileInfo {
        name: String::from_utf8_lossy(name).into_owned(),
        path: String::from_utf8_lossy(path).into_owned(),
        kind: kind(stat.st_mode),
        size: stat.st_size.max(0) as u64,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime_ms: milliseconds(stat),
        symlink_target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
    }
}

/// Programs give files any time. What does not fit is told as the farthest that does, which a reader of JSON can still
/// hold exactly.
fn milliseconds(stat: &libc::stat) -> i64 {
    const FARTHEST: i64 = 8_640_000_000_000_000;
    stat.st_mtime.saturating_mul(1000).saturating_add(stat.st_mtime_nsec / 1_000_000).clamp(-FARTHEST, FARTHEST)
}

/// FileInfo of a name in an open directory, a symlink's own when it is one.
pub fn info_at(dir: RawFd, name: &CStr, path: &[u8]) -> std::io::Result<FileInfo> {
    let stat = sys::stat_at(dir, name, libc::AT_SYMLINK_NOFOLLOW)?;
    let link = stat.st_mode & libc::S_IFMT == libc::S_IFLNK;
    Ok(info(path, &stat, if link { path::read_link(dir, name) } else { None }))
}

pub fn stat(channel: &mut Channel, request: &FileStat) -> Served {
    let path = path::parse(&request.path)?;
    let text = path.text();
    let info = if path.is_root() || request.follow || path.name() == Some(b"..") {
        let fd = path::open(&path, libc::O_PATH)?;
        info(&path.bytes(), &sys::fstat(fd.as_raw_fd()).map_err(|error| failed(&text, &error))?, None)
    } else {
        let place = path::locate(&path)?;
        info_at(place.dir.as_raw_fd(), &place.name, &path.bytes()).map_err(|error| failed(&text, &error))?
    };
    channel.reply(&info).map_err(|_| Stop::Gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_of_a_file_can_be_told() {
        for (seconds, expected) in [
            (0, 7),
            (1_700_000_000, 1_700_000_000_007),
            (i64::MAX, 8_640_000_000_000_000),
            (i64::MIN, -8_640_000_000_000_000),
        ] {
            // SAFETY: plain data.
            let mut stat: libc::stat = unsafe { std::mem::zeroed() };
            (stat.st_mtime, stat.st_mtime_nsec) = (seconds, 7_000_000);
            assert_eq!(info(b"/f", &stat, None).mtime_ms, expected, "{seconds}");
        }
    }
}
