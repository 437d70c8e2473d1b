//! Descriptors, files and clocks.

use std::ffi::{CStr, CString};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Only system calls that old path translators know.
static COMPAT: AtomicBool = AtomicBool::new(false);

pub fn set_compat(compat: bool) {
    COMPAT.store(compat, Ordering::Relaxed);
}

pub fn compat() -> bool {
    COMPAT.load(Ordering::Relaxed)
}

/// Turns the -1 of a system call into its error.
pub fn check<T: PartialOrd + Default>(value: T) -> Result<T> {
    if value < T::default() { Err(Error::last_os_error()) } else { Ok(value) }
}

pub fn errno() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

pub(crate) fn owned(value: libc::c_long) -> Result<OwnedFd> {
    // SAFETY: a descriptor that a system call just returned belongs to nobody else.
    check(value).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

pub fn boottime_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

pub fn wall_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

pub fn c_string(text: &[u8]) -> Result<CString> {
    CString::new(text).map_err(|_| Error::from_raw_os_error(libc::EINVAL))
}

pub fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: `fds` has room for both ends; they are ours alone afterwards.
    unsafe {
        check(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

pub fn socket_pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: as in `pipe`.
    unsafe {
        check(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// A pair that takes messages whole.
pub fn message_pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: as in `pipe`.
    unsafe {
        check(libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

pub fn set_nonblocking(fd: RawFd, on: bool) -> Result<()> {
    // SAFETY: plain descriptor flags.
    unsafe {
        let flags = check(libc::fcntl(fd, libc::F_GETFL))?;
        let wanted = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
        if wanted != flags {
            check(libc::fcntl(fd, libc::F_SETFL, wanted))?;
        }
    }
    Ok(())
}

/// For a descriptor that was just made and has no flags yet.
pub fn make_nonblocking(fd: RawFd) -> Result<()> {
    // SAFETY: plain descriptor flags.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }).map(|_| ())
}

pub fn set_cloexec(fd: RawFd) -> Result<()> {
    // SAFETY: plain descriptor flags.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) }).map(|_| ())
}

pub fn read(fd: RawFd, buffer: &mut [u8]) -> Result<usize> {
    loop {
        // SAFETY: the buffer is valid for its length.
        match check(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) }) {
            Ok(count) => return Ok(count as usize),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            Err(error) => return Err(error),
        }
    }
}

pub fn write(fd: RawFd, buffer: &[u8]) -> Result<usize> {
    loop {
        // SAFETY: the buffer is valid for its length.
        match check(unsafe { libc::write(fd, buffer.as_ptr().cast(), buffer.len()) }) {
            Ok(count) => return Ok(count as usize),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            Err(error) => return Err(error),
        }
    }
}

pub fn write_all(fd: RawFd, mut buffer: &[u8]) -> Result<()> {
    while !buffer.is_empty() {
        let count = write(fd, buffer)?;
        buffer = &buffer[count..];
    }
    Ok(())
}

/// Sends on a socket without raising SIGPIPE.
pub fn send_vectored(fd: RawFd, parts: &[&[u8]]) -> Result<usize> {
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 4];
    let mut used = 0;
    for part in parts.iter().filter(|part| !part.is_empty()).take(4) {
        vectors[used] = libc::iovec { iov_base: part.as_ptr() as *mut libc::c_void, iov_len: part.len() };
        used += 1;
    }
    loop {
        // SAFETY: every vector points into a live slice; the kernel only reads.
        let result = check(unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = vectors.as_mut_ptr();
            message.msg_iovlen = used as _;
            libc::sendmsg(fd, &message, libc::MSG_NOSIGNAL)
        });
        match result {
            Ok(count) => return Ok(count as usize),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            Err(error) => return Err(error),
        }
    }
}

/// Sends what a socket takes at this moment, even if it is a blocking one.
pub fn send_now(fd: RawFd, buffer: &[u8]) -> Result<usize> {
    // SAFETY: the buffer is valid for its length.
    check(unsafe { libc::send(fd, buffer.as_ptr().cast(), buffer.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) })
        .map(|count| count as usize)
}

/// Tells the other end of a TCP connection at once what has arrived of it, instead of with what is sent next or 40 ms later.
pub fn acknowledge_now(fd: RawFd) {
    let on: libc::c_int = 1;
    // SAFETY: one int is read. On anything but TCP it fails, and nothing is lost.
    unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_QUICKACK,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// How many bytes a pipe or socket holds.
pub fn readable_bytes(fd: RawFd) -> usize {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int.
    if unsafe { libc::ioctl(fd, libc::FIONREAD, &mut count) } < 0 {
        return 0;
    }
    count.max(0) as usize
}

pub fn open(path: &CStr, flags: libc::c_int, mode: libc::mode_t) -> Result<OwnedFd> {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

pub fn open_at(dir: RawFd, path: &CStr, flags: libc::c_int, mode: libc::mode_t) -> Result<OwnedFd> {
    loop {
        // SAFETY: the path is a C string; the result is checked.
        match owned(unsafe { libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC, mode as libc::c_uint) }.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            result => return result,
        }
    }
}

pub fn fstat(fd: RawFd) -> Result<libc::stat> {
    // SAFETY: `fstat` fills the structure when it succeeds.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        check(libc::fstat(fd, &mut stat))?;
        Ok(stat)
    }
}

pub fn stat_at(dir: RawFd, path: &CStr, flags: libc::c_int) -> Result<libc::stat> {
    // SAFETY: `fstatat` fills the structure when it succeeds.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        check(libc::fstatat(dir, path.as_ptr(), &mut stat, flags))?;
        Ok(stat)
    }
}

/// Reads a small regular file, at most `limit` bytes, without ever waiting for what the sandbox may have put there.
pub fn read_small(path: &CStr, limit: usize) -> Result<Vec<u8>> {
    let fd = open(path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY, 0)?;
    if fstat(fd.as_raw_fd())?.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Error::from_raw_os_error(libc::EINVAL));
    }
    let mut bytes = Vec::new();
    let mut chunk = [0u8; 4096];
    while bytes.len() < limit {
        let wanted = chunk.len().min(limit - bytes.len());
        let count = read(fd.as_raw_fd(), &mut chunk[..wanted])?;
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&chunk[..count]);
    }
    Ok(bytes)
}

/// Closes every descriptor from 3 up but those in `keep`.
/// A small file from its beginning, whatever was read of it before.
pub fn read_again(fd: RawFd, text: &mut [u8]) -> Option<&str> {
    // SAFETY: the buffer is valid for its length.
    let length = unsafe { libc::pread(fd, text.as_mut_ptr().cast(), text.len(), 0) };
    std::str::from_utf8(text.get(..usize::try_from(length).ok()?)?).ok()
}

/// As `read`, for a socket: descriptors that came along are added to `given`, and closed from `most` on.
pub fn receive(fd: RawFd, buffer: &mut [u8], given: &mut Vec<OwnedFd>, most: usize) -> Result<usize> {
    const MOST_AT_ONCE: usize = 8;
    let mut control = [0u64; 8];
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the buffers outlive the call; descriptors that the kernel names in the control buffer are ours from here on.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE((MOST_AT_ONCE * 4) as u32) as _;
        let count = libc::recvmsg(fd, &mut message, libc::MSG_CMSG_CLOEXEC);
        if count < 0 {
            return Err(Error::last_os_error());
        }
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let first: *const RawFd = libc::CMSG_DATA(header).cast();
                for index in 0..bytes / 4 {
                    let fd = OwnedFd::from_raw_fd(first.add(index).read_unaligned());
                    if given.len() < most {
                        given.push(fd);
                    }
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
        Ok(count as usize)
    }
}

pub fn close_all_but(keep: &mut [RawFd]) {
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep.iter().copied().filter(|fd| *fd >= 3) {
        if fd > from {
            close_range(from, fd - 1);
        }
        from = fd + 1;
    }
    close_range(from, RawFd::MAX);
}

fn close_range(first: RawFd, last: RawFd) {
    // SAFETY: closes by number in a process that owns all of its descriptors.
    unsafe {
        if !compat() && libc::syscall(libc::SYS_close_range, first, last, 0) == 0 {
            return;
        }
        let highest = last.min(highest_descriptor());
        for fd in first..=highest {
            libc::close(fd);
        }
    }
}

fn highest_descriptor() -> RawFd {
    // SAFETY: reads the process's own directory of descriptors.
    unsafe {
        let directory = libc::opendir(c"/proc/self/fd".as_ptr());
        if directory.is_null() {
            return 4096;
        }
        let mut highest = 2;
        loop {
            let entry = libc::readdir64(directory);
            if entry.is_null() {
                break;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr());
            if let Some(number) = name.to_str().ok().and_then(|text| text.parse::<RawFd>().ok()) {
                highest = highest.max(number);
            }
        }
        libc::closedir(directory);
        highest
    }
}
