//! Walks through directory trees without recursion. Any program inside can lay out a tree deeper than a thread's stack
//! and wider than a table of descriptors, so a walk keeps its way in memory, with a bound, and few directories open.

use super::list::{Held, Names, names};
use crate::sys;
use std::ffi::{CStr, CString};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Directories that one walk holds open: the root and the innermost ones.
const OPEN: usize = 16;

const SEARCH: libc::c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;

struct Step {
    /// None while it is closed; it is opened again on the way back.
    fd: Option<OwnedFd>,
    id: (u64, u64),
}

impl Step {
    fn new(fd: OwnedFd) -> Result<Step> {
        let stat = sys::fstat(fd.as_raw_fd())?;
        Ok(Step { fd: Some(fd), id: identity(&stat) })
    }
}

fn identity(stat: &libc::stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// The directories from a root down to where a walk is.
pub struct Trail {
    steps: Vec<Step>,
}

impl Trail {
    pub fn new(root: OwnedFd) -> Result<Trail> {
        Ok(Trail { steps: vec![Step::new(root)?] })
    }

    /// The innermost directory.
    pub fn dir(&self) -> RawFd {
        // The innermost step is open, and there is always one.
        self.steps.last().and_then(|step| step.fd.as_ref()).map_or(-1, AsRawFd::as_raw_fd)
    }

    pub fn device(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.id.0)
    }

    /// Levels below the root.
    pub fn depth(&self) -> usize {
        self.steps.len() - 1
    }

    /// Goes down into a directory, never through a symlink.
    pub fn enter(&mut self, name: &CStr) -> Result<()> {
        self.enter_opened(sys::open_at(self.dir(), name, SEARCH, 0)?)
    }

    pub fn enter_opened(&mut self, fd: OwnedFd) -> Result<()> {
        self.steps.push(Step::new(fd)?);
        if let Some(closed) = self.steps.len().checked_sub(OPEN).filter(|index| *index > 0) {
            self.steps[closed].fd = None;
        }
        Ok(())
    }

    /// Goes up one level. `again` opens the directory when going through `..` leads elsewhere.
    pub fn leave(&mut self, again: impl FnOnce() -> Result<OwnedFd>) -> Result<()> {
        let Some(left) = self.steps.pop() else { return Ok(()) };
        let Some(step) = self.steps.last_mut() else { return Ok(()) };
        if step.fd.is_some() {
            return Ok(());
        }
        let same = |fd: OwnedFd| {
            let found = identity(&sys::fstat(fd.as_raw_fd())?);
            // The directory was moved while it was walked through: what is above it now is nobody's business here.
            if found == step.id { Ok(fd) } else { Err(Error::from_raw_os_error(libc::ESTALE)) }
        };
        let inner = left.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let fd = match sys::open_at(inner, c"..", SEARCH, 0).and_then(same) {
            Ok(fd) => fd,
            Err(_) => again().and_then(same)?,
        };
        step.fd = Some(fd);
        Ok(())
    }
}

/// Where a walk has come to.
pub enum Visit {
    /// A name in the directory that the walk is in.
    Entry(CString),
    /// Everything below this name, again in the directory that the walk is in, was visited.
    Left(CString),
}

struct Waiting {
    names: Vec<CString>,
    _held: Held,
    /// The last name read, when the directory has more after it.
    more: Option<CString>,
    /// Length of the path of the directory above.
    above: usize,
}

/// Visits the names below a directory in the order of their bytes. Directories are entered only when the caller says so.
pub struct Walk {
    trail: Trail,
    levels: Vec<Waiting>,
    /// Path of the directory that the walk is in.
    path: Vec<u8>,
}

impl Walk {
    /// `path` is what names are appended to.
    pub fn new(root: OwnedFd, path: &[u8]) -> Result<Walk> {
        let mut walk = Walk { trail: Trail::new(root)?, levels: Vec::new(), path: path.to_vec() };
        walk.read(path.len(), false)?;
        Ok(walk)
    }

    /// Visits one name in a directory, and what is below it.
    pub fn only(root: OwnedFd, name: &CStr) -> Result<Walk> {
        let waiting = Waiting { names: vec![name.to_owned()], _held: Held::default(), more: None, above: 0 };
        Ok(Walk { trail: Trail::new(root)?, levels: vec![waiting], path: Vec::new() })
    }

    pub fn dir(&self) -> RawFd {
        self.trail.dir()
    }

    pub fn device(&self) -> u64 {
        self.trail.device()
    }

    pub fn depth(&self) -> usize {
        self.trail.depth()
    }

    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Path of a name in the directory that the walk is in.
    pub fn path_of(&self, name: &CStr) -> Vec<u8> {
        join(&self.path, name.to_bytes())
    }

    fn read(&mut self, above: usize, in_part: bool) -> Result<usize> {
        let Names { mut names, held, more } = names(self.dir(), None)?;
        let count = names.len();
        names.reverse();
        self.levels.push(Waiting { names, _held: held, more: more.filter(|_| !in_part), above });
        Ok(count)
    }

    /// The next name; None when all were visited.
    pub fn advance(&mut self) -> Result<Option<Visit>> {
        let dir = self.dir();
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        if let Some(name) = level.names.pop() {
            return Ok(Some(Visit::Entry(name)));
        }
        if let Some(last) = level.more.take() {
            // Those before have gone: their room is free for these.
            level._held = Held::default();
            let Names { mut names, held, more } = names(dir, Some(&last))?;
            names.reverse();
            (level.names, level._held, level.more) = (names, held, more);
            return self.advance();
        }
        let above = level.above;
        self.levels.pop();
        if self.levels.is_empty() {
            return Ok(None);
        }
        self.trail.leave(|| Err(Error::from_raw_os_error(libc::ESTALE)))?;
        let name = sys::c_string(self.path[above..].strip_prefix(b"/").unwrap_or(&self.path[above..]))?;
        self.path.truncate(above);
        Ok(Some(Visit::Left(name)))
    }

    /// Goes down into a directory, never through a symlink; how many names were read of it.
    pub fn enter(&mut self, name: &CStr) -> Result<usize> {
        self.go(name, |walk, above| walk.read(above, false))
    }

    /// As [`Walk::enter`], for as many names as there is room for; the others are left out.
    pub fn enter_in_part(&mut self, name: &CStr) -> Result<usize> {
        self.go(name, |walk, above| walk.read(above, true))
    }

    /// As [`Walk::enter`], but not into another file system.
    pub fn enter_on(&mut self, name: &CStr, device: u64) -> Result<usize> {
        self.go(name, |walk, above| match walk.device() == device {
            true => walk.read(above, false),
            false => Err(Error::from_raw_os_error(libc::EXDEV)),
        })
    }

    fn go(&mut self, name: &CStr, read: impl FnOnce(&mut Self, usize) -> Result<usize>) -> Result<usize> {
        self.trail.enter(name)?;
        let above = self.path.len();
        match read(self, above) {
            Ok(count) => {
                if !self.path.is_empty() && !self.path.ends_with(b"/") {
                    self.path.push(b'/');
                }
                self.path.extend_from_slice(name.to_bytes());
                Ok(count)
            }
            Err(error) => {
                self.trail.leave(|| Err(Error::from_raw_os_error(libc::ESTALE)))?;
                Err(error)
            }
        }
    }
}

pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    [path, if path.is_empty() || path.ends_with(b"/") { b"" } else { b"/" }, name].concat()
}
