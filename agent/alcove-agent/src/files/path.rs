//! Paths: from the text of a request to descriptors. Magic links of `/proc` are never followed where the kernel can be
//! told so; nothing is decided from a path's text that the kernel would decide differently.

use crate::users::{Ids, User};
use crate::workers::channel::{Stop, refused};
use crate::{closed_folder, identity, sys};
use alcove_protocol::ErrorCode;
use std::ffi::{CStr, CString};
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

pub const MAX_PATH: usize = 4095;
/// Of a name, which is what every file system of Linux takes at most.
const MAX_NAME: usize = 255;
const MAX_LINKS: usize = 40;

/// An absolute path, cut into its components; `.` and empty ones are left out.
#[derive(Clone, Debug)]
pub struct Path {
    pub components: Vec<Vec<u8>>,
}

impl Path {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for component in &self.components {
            bytes.push(b'/');
            bytes.extend_from_slice(component);
        }
        if bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes
    }

    pub fn name(&self) -> Option<&[u8]> {
        self.components.last().map(Vec::as_slice)
    }

    pub fn is_root(&self) -> bool {
        self.components.is_empty()
    }

    /// Whether its names say that it is below a directory; a `..` says nothing, nor what leads there through a link.
    pub fn is_below(&self, directory: &Path) -> bool {
        let plain = |path: &Path| path.components.iter().all(|name| name != b"..");
        self.components.len() > directory.components.len()
            && self.components.starts_with(&directory.components)
            && plain(self)
    }

    fn c_string(&self) -> Result<CString, Stop> {
        c_string(&self.bytes())
    }
}

pub fn c_string(bytes: &[u8]) -> Result<CString, Stop> {
    CString::new(bytes).map_err(|_| refused(ErrorCode::BadRequest, "a path holds a zero byte"))
}

pub fn parse(path: &str) -> Result<Path, Stop> {
    if !path.starts_with('/') {
        return Err(refused(ErrorCode::BadRequest, format!("path {path:?} is not absolute")));
    }
    if path.contains('\0') || path.len() > MAX_PATH {
        return Err(refused(
            ErrorCode::BadRequest,
            format!("a path holds a zero byte or has more than {MAX_PATH} bytes"),
        ));
    }
    Ok(Path { components: components(path.as_bytes()) })
}

fn components(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec).collect()
}

/// Tells an error of the kernel in the protocol's words.
pub fn failed(path: &str, error: &Error) -> Stop {
    let reason = || sys::reason(error);
    let (code, text) = match error.raw_os_error().unwrap_or(0) {
        libc::ENOENT => (ErrorCode::NotFound, format!("{path} does not exist")),
        libc::EACCES | libc::EPERM | libc::EROFS => (ErrorCode::Permission, format!("{path}: {}", reason())),
        libc::EBUSY => (ErrorCode::Permission, format!("{path} is mounted there, and stays")),
        libc::EEXIST => (ErrorCode::Exists, format!("{path} exists already")),
        libc::ENOTEMPTY => (ErrorCode::NotEmpty, format!("{path} is not empty")),
        libc::EISDIR => (ErrorCode::IsDirectory, format!("{path} is a directory")),
        libc::ENOTDIR => (ErrorCode::NotDirectory, format!("{path}: a part of the path is no directory")),
        libc::ENXIO | libc::ENODEV => (ErrorCode::NotRegular, format!("{path} is no regular file")),
        libc::ENOSPC | libc::EDQUOT => (ErrorCode::NoSpace, format!("{path}: the sandbox's disk is full")),
        libc::EFBIG => (ErrorCode::TooLarge, format!("{path}: the file is too large")),
        libc::ELOOP => (ErrorCode::Permission, format!("{path}: too many links, or one that leaves the file system")),
        libc::ENAMETOOLONG => (ErrorCode::BadRequest, format!("{path}: a name is too long")),
        libc::EINVAL => (ErrorCode::BadRequest, format!("{path}: {}", reason())),
        libc::EOPNOTSUPP | libc::ENOSYS => (ErrorCode::Unsupported, format!("{path}: {}", reason())),
        libc::ESTALE => (ErrorCode::Busy, format!("{path}: a directory was moved while it was walked through")),
        libc::E2BIG => (ErrorCode::TooLarge, format!("{path}: a directory holds too many names")),
        libc::EMFILE | libc::ENFILE | libc::ENOMEM => (ErrorCode::Busy, format!("{path}: {}", reason())),
        _ => (ErrorCode::Io, format!("{path}: {}", reason())),
    };
    refused(code, text)
}

static OLD_KERNEL: AtomicBool = AtomicBool::new(false);

/// `openat` that follows no magic link, and does not get into the closed folder.
pub fn open_at(dir: RawFd, path: &CStr, flags: libc::c_int) -> std::io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    if !sys::compat() && !OLD_KERNEL.load(Ordering::Relaxed) {
        // SAFETY: `how` is plain data for which zero means "nothing asked for"; the result is checked.
        let result = unsafe {
            let mut how: libc::open_how = std::mem::zeroed();
            how.flags = (flags | libc::O_CLOEXEC) as u64;
            how.resolve = libc::RESOLVE_NO_MAGICLINKS;
            libc::syscall(libc::SYS_openat2, dir, path.as_ptr(), &how, std::mem::size_of_val(&how))
        };
        match sys::check(result) {
            // SAFETY: the kernel just returned it to us.
            Ok(fd) => return closed_folder::unless_closed(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }),
            Err(error) => match error.raw_os_error() {
                // EPERM is how seccomp filters of old container engines refuse what they do not know; a true EPERM
                // comes again from the plain call.
                Some(libc::ENOSYS) => OLD_KERNEL.store(true, Ordering::Relaxed),
                Some(libc::EPERM) => {}
                _ => return Err(error),
            },
        }
    }
    sys::open_at(dir, path, flags, 0).and_then(closed_folder::unless_closed)
}

pub fn open(path: &Path, flags: libc::c_int) -> Result<OwnedFd, Stop> {
    open_at(libc::AT_FDCWD, &path.c_string()?, flags).map_err(|error| failed(&path.text(), &error))
}

/// A name in an open directory.
pub struct Place {
    pub dir: OwnedFd,
    pub name: CString,
}

impl Place {
    pub fn stat(&self) -> std::io::Result<libc::stat> {
        sys::stat_at(self.dir.as_raw_fd(), &self.name, libc::AT_SYMLINK_NOFOLLOW)
    }

    /// Whether it is a directory where another file system is mounted. What is no directory has a device of its own on some overlays.
    /// @param stat of the place.
    pub fn is_mounted(&self, stat: &libc::stat) -> bool {
        is_directory(stat) && sys::fstat(self.dir.as_raw_fd()).is_ok_and(|above| above.st_dev != stat.st_dev)
    }
}

pub fn is_directory(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFDIR
}

fn split_last(path: &Path) -> Result<(Path, &[u8]), Stop> {
    match path.name() {
        None => Err(refused(ErrorCode::BadRequest, "/ itself cannot be used here")),
        Some(b"..") => Err(refused(ErrorCode::BadRequest, format!("{} ends in ..", path.text()))),
        Some(name) => Ok((Path { components: path.components[..path.components.len() - 1].to_vec() }, name)),
    }
}

const DIRECTORY: libc::c_int = libc::O_PATH | libc::O_DIRECTORY;

/// The directory that holds the path's last name; a last symlink is not followed.
pub fn locate(path: &Path) -> Result<Place, Stop> {
    let (parent, name) = split_last(path)?;
    Ok(Place { dir: open(&parent, DIRECTORY)?, name: c_string(name)? })
}

/// As [`locate`], making missing directories on the way, which belong to `user`.
pub fn locate_making(path: &Path, user: &User, ids: Ids) -> Result<Place, Stop> {
    let (parent, name) = split_last(path)?;
    // Before anything is made on the way to a name that no file system takes.
    if path.components.iter().any(|name| name.len() > MAX_NAME) {
        return Err(failed(&path.text(), &Error::from_raw_os_error(libc::ENAMETOOLONG)));
    }
    Ok(Place { dir: make_directories(&parent, user, ids)?, name: c_string(name)? })
}

/// Goes on from a place that is a symlink to what it points to, until it is none.
pub fn follow(path: &Path, mut place: Place) -> Result<Place, Stop> {
    for _ in 0..MAX_LINKS {
        let Some(target) = read_link(place.dir.as_raw_fd(), &place.name) else { return Ok(place) };
        let mut parts = components(&target);
        let failure = |error: Error| failed(&path.text(), &error);
        let Some(name) = parts.pop() else {
            return Err(refused(ErrorCode::IsDirectory, format!("{} leads to a directory", path.text())));
        };
        let mut directory = if target.starts_with(b"/") { b"/".to_vec() } else { Vec::new() };
        directory.extend_from_slice(&parts.join(&b'/'));
        if name == b".." {
            return Err(refused(ErrorCode::IsDirectory, format!("{} leads to a directory", path.text())));
        }
        if !directory.is_empty() {
            place.dir = open_at(place.dir.as_raw_fd(), &c_string(&directory)?, DIRECTORY).map_err(failure)?;
        }
        place.name = c_string(&name)?;
    }
    Err(failed(&path.text(), &Error::from_raw_os_error(libc::ELOOP)))
}

/// The target of a symlink; None when it is something else, or nothing.
pub fn read_link(dir: RawFd, name: &CStr) -> Option<Vec<u8>> {
    let mut target = vec![0u8; 4096];
    // SAFETY: the buffer is valid for its length.
    let length = unsafe { libc::readlinkat(dir, name.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    target.truncate(usize::try_from(length).ok()?);
    Some(target)
}

/// A name itself, whatever it is but the closed folder, so that what is done next is done to what was looked at.
pub fn hold(dir: RawFd, name: &CStr) -> std::io::Result<OwnedFd> {
    sys::open_at(dir, name, libc::O_PATH | libc::O_NOFOLLOW, 0).and_then(closed_folder::unless_closed)
}

/// Gives what was just created to its owner. By now the name may lead to something else, so only what belongs to the
/// agent, as everything does that it creates, is given away.
pub fn give(dir: RawFd, name: &CStr, user: &User, ids: Ids) -> std::io::Result<()> {
    if !ids.many() {
        return Ok(());
    }
    if sys::compat() {
        // SAFETY: the name is a C string.
        let result = unsafe { libc::fchownat(dir, name.as_ptr(), user.uid, user.gid, libc::AT_SYMLINK_NOFOLLOW) };
        return sys::check(result).map(|_| ());
    }
    let held = hold(dir, name)?;
    let stat = sys::fstat(held.as_raw_fd())?;
    let linked = stat.st_mode & libc::S_IFMT != libc::S_IFDIR && stat.st_nlink > 1;
    if stat.st_uid != identity::file_user() || linked {
        return Err(Error::from_raw_os_error(libc::ESTALE));
    }
    give_open(held.as_raw_fd(), user.uid, user.gid)
}

/// Changes the owner of an open file, also of one that is only held.
pub fn give_open(fd: RawFd, uid: u32, gid: u32) -> std::io::Result<()> {
    // SAFETY: a live descriptor and an empty C string.
    match sys::check(unsafe { libc::fchownat(fd, c"".as_ptr(), uid, gid, libc::AT_EMPTY_PATH) }) {
        // gVisor changes nothing through what is only held, but through the name that it gives to descriptors.
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => {
            let link = sys::c_string(format!("/proc/self/fd/{fd}").as_bytes())?;
            // SAFETY: a C string.
            sys::check(unsafe { libc::chown(link.as_ptr(), uid, gid) }).map(|_| ())
        }
        result => result.map(|_| ()),
    }
}

/// Opens a directory, making what is missing of its path.
pub fn make_directories(path: &Path, user: &User, ids: Ids) -> Result<OwnedFd, Stop> {
    let whole = open_at(libc::AT_FDCWD, &path.c_string()?, DIRECTORY);
    match whole {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
        found => return found.map_err(|error| failed(&path.text(), &error)),
    }
    let failure = |error: Error| failed(&path.text(), &error);
    let mut dir = open_at(libc::AT_FDCWD, c"/", DIRECTORY).map_err(failure)?;
    for component in &path.components {
        let name = c_string(component)?;
        dir = match open_at(dir.as_raw_fd(), &name, DIRECTORY) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                // SAFETY: the name is a C string.
                match sys::check(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o755) }) {
                    Ok(_) => give(dir.as_raw_fd(), &name, user, ids).map_err(failure)?,
                    // Somebody else made it in between; a dangling symlink fails below.
                    Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                    Err(error) => return Err(failure(error)),
                }
                open_at(dir.as_raw_fd(), &name, DIRECTORY).map_err(failure)?
            }
            found => found.map_err(failure)?,
        };
    }
    Ok(dir)
}

const SET_GROUP_ID: u32 = libc::S_ISGID;

/// Sets the permission bits of a name, never through a symlink.
pub fn set_mode(dir: RawFd, name: &CStr, mode: u32) -> std::io::Result<()> {
    if sys::compat() {
        // SAFETY: a live descriptor and a C string.
        return sys::check(unsafe { libc::fchmodat(dir, name.as_ptr(), mode & 0o7777, 0) }).map(|_| ());
    }
    set_mode_open(hold(dir, name)?.as_raw_fd(), mode)
}

const SYS_FCHMODAT2: libc::c_long = 452;

/// Sets the permission bits of an open file, also of one that is only held. The kernel clears the set-group-id bit when
/// the caller is not in the file's group and lacks CAP_FSETID, so where the agent acts for itself this thread takes that
/// group meanwhile.
pub fn set_mode_open(fd: RawFd, mode: u32) -> std::io::Result<()> {
    let mode = mode & 0o7777;
    let stat = sys::fstat(fd)?;
    if stat.st_mode & libc::S_IFMT == libc::S_IFLNK {
        return Err(Error::from_raw_os_error(libc::ELOOP));
    }
    let change = || {
        // SAFETY: a live descriptor and C strings.
        unsafe {
            // By the system call: musl goes by the name at once, which a root may not have.
            if libc::syscall(libc::SYS_fchmod, fd, mode) == 0 {
                return Ok(());
            }
            let error = Error::last_os_error();
            // Only held: newer kernels change it all the same, others through the name that they give to descriptors.
            if error.raw_os_error() != Some(libc::EBADF) {
                return Err(error);
            }
            if libc::syscall(SYS_FCHMODAT2, fd, c"".as_ptr(), mode, libc::AT_EMPTY_PATH) == 0 {
                return Ok(());
            }
            let link = sys::c_string(format!("/proc/self/fd/{fd}").as_bytes())?;
            sys::check(libc::chmod(link.as_ptr(), mode)).map(|_| ())
        }
    };
    // SAFETY: cannot fail.
    let own = unsafe { libc::geteuid() } == identity::file_user();
    if mode & SET_GROUP_ID == 0 || sys::compat() || !own {
        return change();
    }
    identity::in_group(stat.st_gid, change)
}

const PROC_MAGIC: libc::c_long = 0x9fa0;

pub fn on_procfs(fd: RawFd) -> bool {
    // SAFETY: `fstatfs` fills the structure when it succeeds.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        libc::fstatfs(fd, &mut stat) == 0 && stat.f_type as libc::c_long == PROC_MAGIC
    }
}

/// File systems whose files have no size worth telling before they are read.
pub fn is_synthetic(fd: RawFd) -> bool {
    const MAGICS: [libc::c_long; 6] = [PROC_MAGIC, 0x6265_6572, 0x27e0eb, 0x6367_7270, 0x6462_6720, 0x7472_6163];
    // SAFETY: as in `on_procfs`.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        libc::fstatfs(fd, &mut stat) == 0 && MAGICS.contains(&(stat.f_type as libc::c_long))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_refuses_is_told_without_its_number() {
        let refusals = [libc::EROFS, libc::EINVAL, libc::EOPNOTSUPP, libc::EMFILE, libc::EIO];
        for number in refusals {
            let Stop::Refused(error) = failed("/usr/bin/x", &Error::from_raw_os_error(number)) else {
                panic!("{number} is a refusal")
            };
            assert!(
                error.message.starts_with("/usr/bin/x: ") && !error.message.contains("os error"),
                "{}",
                error.message
            );
        }
    }
}
