//! An agent that is started before anybody knows for whom. Whoever started it holds the other ends of two pipes: by one he
//! hears when it is ready, and when it has begun; by the other he tells whose it is. Until then it ends with him, serves
//! nobody, and has nothing of anybody.

use crate::sys;
use crate::sys::held::{BEGUN, READY};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A name is far shorter, and what is shorter than this goes through a pipe in one piece.
const LONGEST: usize = 4_096;

pub struct Held {
    owner: OwnedFd,
    told: OwnedFd,
}

impl Held {
    pub fn of(owner: Option<RawFd>, told: Option<RawFd>) -> Option<Held> {
        let (owner, told) = owner.zip(told)?;
        for fd in [owner, told] {
            // Whatever it is, it is of no use to commands.
            let _ = sys::set_cloexec(fd);
        }
        // SAFETY: whoever started the agent passed these descriptors for its use.
        unsafe { Some(Held { owner: OwnedFd::from_raw_fd(owner), told: OwnedFd::from_raw_fd(told) }) }
    }

    /// Resolves once it is somebody's, whose name is in the files that tell it.
    pub fn wait(self) -> Result<()> {
        sys::write_all(self.told.as_raw_fd(), &[READY])?;
        let mut told = [0u8; LONGEST];
        let count = sys::read(self.owner.as_raw_fd(), &mut told)?;
        let name = told[..count].strip_suffix(b"\n").and_then(|name| std::str::from_utf8(name).ok());
        match name {
            None => return Err(Error::new(ErrorKind::UnexpectedEof, "nobody is left whose this could be")),
            Some("") => {}
            Some(name) => sys::complete_etc(name).map_err(|(_, error)| error)?,
        }
        // From here on it outlives whoever started it.
        sys::set_death_signal(0)?;
        sys::write_all(self.told.as_raw_fd(), &[BEGUN])
    }
}
