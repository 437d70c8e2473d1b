//! `file.read`: a regular file as a stream.

use super::inspect;
use super::path::{self, failed};
use crate::sys;
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ErrorCode, FileInfo, FileRead};
use serde::Serialize;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const CHUNK: usize = 256 * 1024;

#[derive(Serialize)]
struct Reply {
    info: FileInfo,
    offset: u64,
    length: Option<u64>,
}

/// Opens a regular file for reading. FIFOs, sockets and devices are recognised before they are opened.
pub fn open_regular(path: &path::Path) -> Result<(OwnedFd, libc::stat), Stop> {
    let text = path.text();
    let failure = |error: Error| failed(&text, &error);
    let look = path::open(path, libc::O_PATH)?;
    let seen = sys::fstat(look.as_raw_fd()).map_err(failure)?;
    check_regular(&text, &seen)?;
    let fd = path::open(path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY)?;
    let stat = sys::fstat(fd.as_raw_fd()).map_err(failure)?;
    check_regular(&text, &stat)?;
    if path::on_procfs(fd.as_raw_fd()) && is_own(fd.as_raw_fd()) {
        return Err(refused(ErrorCode::Permission, format!("{text} belongs to the agent")));
    }
    Ok((fd, stat))
}

pub fn check_regular(path: &str, stat: &libc::stat) -> Served {
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => Ok(()),
        libc::S_IFDIR => Err(refused(ErrorCode::IsDirectory, format!("{path} is a directory"))),
        _ => Err(refused(ErrorCode::NotRegular, format!("{path} is no regular file"))),
    }
}

/// Whether a file of procfs tells about the agent itself, whose memory holds the sandbox's token. One that cannot be
/// told apart counts as the agent's.
fn is_own(fd: RawFd) -> bool {
    let Ok(link) = sys::c_string(format!("/proc/self/fd/{fd}").as_bytes()) else { return true };
    let Some(target) = path::read_link(libc::AT_FDCWD, &link) else { return true };
    let own = std::process::id().to_string();
    let numbers =
        target.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit));
    for number in numbers {
        if number == own.as_bytes() {
            return true;
        }
        // A thread's number works as a process's would.
        let Ok(status) = sys::c_string(&[b"/proc/", number, b"/status"].concat()) else { return true };
        let status = sys::read_small(&status, 8192).unwrap_or_default();
        let text = String::from_utf8_lossy(&status);
        if text.lines().any(|line| line.strip_prefix("Tgid:").is_some_and(|group| group.trim() == own)) {
            return true;
        }
    }
    false
}

pub fn read(channel: &mut Channel, request: &FileRead) -> Served {
    let path = path::parse(&request.path)?;
    let text = path.text();
    let (fd, stat) = open_regular(&path)?;
    let offset = request.offset.unwrap_or(0);
    let unknown = path::is_synthetic(fd.as_raw_fd());
    let left = (stat.st_size.max(0) as u64).saturating_sub(offset);
    let length = (!unknown).then(|| request.length.unwrap_or(u64::MAX).min(left));
    channel.reply(&Reply { info: inspect::info(&path.bytes(), &stat, None), offset, length })?;
    let mut left = length.or(request.length).unwrap_or(u64::MAX);
    let mut position = offset;
    let mut buffer = vec![0; CHUNK.min(left.max(1) as usize)];
    while left > 0 {
        let wanted = buffer.len().min(left as usize);
        // SAFETY: the buffer is valid for its length.
        let count = unsafe { libc::pread(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), wanted, position as libc::off_t) };
        match sys::check(count) {
            // It became shorter meanwhile: the client sees fewer bytes than announced.
            Ok(0) => break,
            Ok(count) => {
                channel.data(&buffer[..count as usize])?;
                position += count as u64;
                left -= count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Files like /proc/kmsg would make a reader wait; there is nothing more now.
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(failed(&text, &error)),
        }
    }
    Ok(())
}
