//! `file.archive`: a directory, or a single file, as a tar.

use super::path::{self, failed};
use super::walk::{Visit, Walk};
use crate::sys;
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ErrorCode, FileArchive};
use serde::Serialize;
use std::ffi::CStr;
use std::io::{self, BufWriter, Error, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path as FilePath;

const CHUNK: usize = 256 * 1024;
/// The longest name that an archive holds; unpacking takes them up to the same length.
pub const MAX_NAME: usize = 256 * 1024;

#[derive(Serialize)]
struct Empty {}

/// The client as a writer of data frames.
struct Outgoing<'a>(&'a mut Channel);

impl Write for Outgoing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.data(bytes).map_err(|_| Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Exactly as many bytes as the header announced: a file that shrinks is filled up with zeros, one that grows is cut.
struct Exactly {
    fd: OwnedFd,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(self.left as usize);
        if wanted == 0 {
            return Ok(0);
        }
        let count = match sys::read(self.fd.as_raw_fd(), &mut buffer[..wanted])? {
            0 => {
                buffer[..wanted].fill(0);
                wanted
            }
            count => count,
        };
        self.left -= count as u64;
        Ok(count)
    }
}

type Builder<'a> = tar::Builder<BufWriter<Outgoing<'a>>>;

fn header(stat: &libc::stat, kind: tar::EntryType, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(u64::from(stat.st_uid));
    header.set_gid(u64::from(stat.st_gid));
    set_time(&mut header, stat.st_mtime);
    header.set_size(size);
    header
}

/// Before 1970 as GNU tar has it: no digits, but the number's own bytes, which the library only writes of others.
fn set_time(header: &mut tar::Header, seconds: i64) {
    match (u64::try_from(seconds), header.as_gnu_mut()) {
        (Err(_), Some(gnu)) => {
            gnu.mtime = [u8::MAX; 12];
            gnu.mtime[4..].copy_from_slice(&seconds.to_be_bytes());
        }
        (seconds, _) => header.set_mtime(seconds.unwrap_or(0)),
    }
}

fn as_path(bytes: &[u8]) -> &FilePath {
    FilePath::new(std::ffi::OsStr::from_bytes(bytes))
}

/// Adds one name; whether it is a directory to go down into. Sockets are left out: an archive cannot hold them.
fn add(builder: &mut Builder, dir: RawFd, name: &CStr, inner: &[u8]) -> io::Result<bool> {
    let stat = sys::stat_at(dir, name, libc::AT_SYMLINK_NOFOLLOW)?;
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFDIR => {
            let with_slash = [inner, b"/"].concat();
            builder.append_data(&mut header(&stat, tar::EntryType::Directory, 0), as_path(&with_slash), io::empty())?;
            return Ok(true);
        }
        libc::S_IFREG => {
            let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
            let fd = sys::open_at(dir, name, flags, 0)?;
            let stat = sys::fstat(fd.as_raw_fd())?;
            let size = stat.st_size.max(0) as u64;
            let content = Exactly { fd, left: size };
            builder.append_data(&mut header(&stat, tar::EntryType::Regular, size), as_path(inner), content)?;
        }
        libc::S_IFLNK => {
            let target = path::read_link(dir, name).ok_or_else(Error::last_os_error)?;
            let mut header = header(&stat, tar::EntryType::Symlink, 0);
            builder.append_link(&mut header, as_path(inner), as_path(&target))?;
        }
        libc::S_IFIFO => {
            builder.append_data(&mut header(&stat, tar::EntryType::Fifo, 0), as_path(inner), io::empty())?;
        }
        _ => {}
    }
    Ok(false)
}

/// Adds what is below a directory, as far as it is on the same file system: others are archived as empty directories.
fn add_all(builder: &mut Builder, root: OwnedFd) -> io::Result<()> {
    let mut walk = Walk::new(root, b"")?;
    let device = walk.device();
    while let Some(visit) = walk.advance()? {
        let Visit::Entry(name) = visit else { continue };
        let inner = walk.path_of(&name);
        if inner.len() > MAX_NAME {
            return Err(Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        match add(builder, walk.dir(), &name, &inner) {
            Ok(true) => match walk.enter_on(&name, device) {
                // A mount point, or removed since it was seen.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EXDEV | libc::ENOENT | libc::ENOTDIR)) => {}
                entered => drop(entered?),
            },
            Ok(false) => {}
            // Removed since the directory was read.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub fn archive(channel: &mut Channel, request: &FileArchive) -> Served {
    let path = path::parse(&request.path)?;
    let text = path.text();
    let look = path::open(&path, libc::O_PATH)?;
    let stat = sys::fstat(look.as_raw_fd()).map_err(|error| failed(&text, &error))?;
    if path::on_procfs(look.as_raw_fd()) {
        return Err(refused(ErrorCode::Permission, format!("{text} is in procfs, which is not archived")));
    }
    drop(look);
    let directory = match stat.st_mode & libc::S_IFMT {
        libc::S_IFDIR => Some(path::open(&path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK)?),
        libc::S_IFREG => None,
        _ => return Err(refused(ErrorCode::NotRegular, format!("{text} is neither a directory nor a regular file"))),
    };
    channel.reply(&Empty {})?;
    let mut builder = tar::Builder::new(BufWriter::with_capacity(CHUNK, Outgoing(channel)));
    let added = match directory {
        Some(directory) => add_all(&mut builder, directory),
        None => {
            let place = path::follow(&path, path::locate(&path)?)?;
            let name = path.name().unwrap_or(b"file").to_vec();
            add(&mut builder, place.dir.as_raw_fd(), &place.name, &name).map(|_| ())
        }
    };
    let written = added.and_then(|()| builder.into_inner()).and_then(|mut writer| writer.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Stop::Gone,
        _ => failed(&text, &error),
    })
}
