//! The folder of the agent's own socket, where it is one of the machine's (`--close-folder`): what is put there lies on the
//! service's disk and counts for nobody, and whoever owns it gets at the socket. So nothing that is asked of the agent
//! reaches it, and nobody runs as its owner.

use crate::sys;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

/// Above the users of images. A service that is not root has a folder of its own user's, who may be one of an image's too.
const USERS_OF_IMAGES: u32 = 65_535;

struct Closed {
    device: u64,
    inode: u64,
    owner: u32,
}

static CLOSED: OnceLock<Closed> = OnceLock::new();

/// Closes the folder of a socket, for as long as the agent lives.
pub fn close_around(socket: &str) -> Result<()> {
    let folder = socket.rsplit_once('/').map_or(".", |(folder, _)| if folder.is_empty() { "/" } else { folder });
    let stat = sys::stat_at(libc::AT_FDCWD, &sys::c_string(folder.as_bytes())?, 0)?;
    let _ = CLOSED.set(Closed { device: stat.st_dev, inode: stat.st_ino, owner: stat.st_uid });
    Ok(())
}

/// What was opened, unless it is the closed folder.
pub fn unless_closed(fd: OwnedFd) -> Result<OwnedFd> {
    let Some(closed) = CLOSED.get() else { return Ok(fd) };
    let stat = sys::fstat(fd.as_raw_fd())?;
    if (stat.st_dev, stat.st_ino) == (closed.device, closed.inode) {
        return Err(Error::from_raw_os_error(libc::EACCES));
    }
    Ok(fd)
}

/// Whether a user is the closed folder's owner, whom the service chose because nobody is that.
pub fn is_owner(uid: u32) -> bool {
    CLOSED.get().is_some_and(|closed| closed.owner == uid && uid > USERS_OF_IMAGES)
}
