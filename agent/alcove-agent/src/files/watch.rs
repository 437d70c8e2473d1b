//! `file.watch`: changes below a path, through inotify, until the connection closes.

use super::list::open_directory;
use super::path::{self, failed};
use super::walk::{Visit, Walk};
use super::write::is_temporary;
use crate::sys;
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ChangeType, ErrorCode, Event, FileWatch};
use serde::Serialize;
use std::collections::HashMap;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const MAX_WATCHES: usize = 8192;
const EVENTS: u32 = libc::IN_CREATE
    | libc::IN_MODIFY
    | libc::IN_DELETE
    | libc::IN_DELETE_SELF
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_MOVE_SELF
    | libc::IN_ATTRIB;

#[derive(Serialize)]
struct Empty {}

struct Watch<'a> {
    channel: &'a mut Channel,
    inotify: OwnedFd,
    paths: HashMap<i32, Vec<u8>>,
    recursive: bool,
    /// The rename by which a file or a directory of the agent's own is put in its place.
    placed: Option<u32>,
}

impl Watch<'_> {
    fn add(&mut self, path: &[u8], flags: u32) -> std::io::Result<()> {
        if self.paths.len() >= MAX_WATCHES {
            return Err(Error::from_raw_os_error(libc::ENOSPC));
        }
        let name = sys::c_string(path)?;
        // SAFETY: the path is a C string.
        let watch =
            sys::check(unsafe { libc::inotify_add_watch(self.inotify.as_raw_fd(), name.as_ptr(), EVENTS | flags) })?;
        self.paths.insert(watch, path.to_vec());
        Ok(())
    }

    /// Watches the directories below. With `announce` their contents are told as created: they may have been there
    /// before the watch was.
    fn add_below(&mut self, path: &[u8], announce: bool) -> Served {
        // What vanished meanwhile, or cannot be read, is not watched.
        let opened = sys::c_string(path).and_then(|path| open_directory(libc::AT_FDCWD, &path));
        let Ok(mut walk) = opened.and_then(|root| Walk::new(root, path)) else { return Ok(()) };
        loop {
            let name = match walk.advance() {
                Ok(Some(Visit::Entry(name))) => name,
                Ok(Some(Visit::Left(_))) => continue,
                Ok(None) => return Ok(()),
                // Moved while it was walked through.
                Err(_) => return self.tell(ChangeType::Overflow, path),
            };
            if is_temporary(name.to_bytes()) {
                continue;
            }
            let inner = walk.path_of(&name);
            if announce {
                self.tell(ChangeType::Create, &inner)?;
            }
            let directory = sys::stat_at(walk.dir(), &name, libc::AT_SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFDIR);
            if !directory {
                continue;
            }
            match self.add(&inner, libc::IN_ONLYDIR | libc::IN_DONT_FOLLOW) {
                Ok(()) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => continue,
                // More directories than can be watched, or deeper ones: the client has to look for itself.
                Err(_) => return self.tell(ChangeType::Overflow, walk.path()),
            }
            if walk.enter(&name).is_err_and(|error| error.raw_os_error() == Some(libc::E2BIG)) {
                return self.tell(ChangeType::Overflow, &inner);
            }
        }
    }

    fn tell(&mut self, change: ChangeType, path: &[u8]) -> Served {
        self.channel.event(&Event::Change { change, path: String::from_utf8_lossy(path).into_owned() })
    }

    fn handle(&mut self, watch: i32, mask: u32, cookie: u32, name: &[u8]) -> Served {
        if mask & libc::IN_Q_OVERFLOW != 0 {
            return self.tell(ChangeType::Overflow, b"");
        }
        let Some(base) = self.paths.get(&watch).cloned() else { return Ok(()) };
        if mask & libc::IN_IGNORED != 0 {
            self.paths.remove(&watch);
            return Ok(());
        }
        if is_temporary(name) {
            if mask & libc::IN_MOVED_FROM != 0 {
                self.placed = Some(cookie);
            }
            return Ok(());
        }
        let placed = mask & libc::IN_MOVED_TO != 0 && self.placed == Some(cookie);
        // A watched directory below tells of its own end through its parent already.
        let own = name.is_empty();
        let path = if own { base } else { [&base[..], if base.ends_with(b"/") { b"" } else { b"/" }, name].concat() };
        let nested =
            own && mask & (libc::IN_DELETE_SELF | libc::IN_MOVE_SELF | libc::IN_ATTRIB) != 0 && self.is_nested(&path);
        let touched = mask & (libc::IN_MODIFY | libc::IN_ATTRIB) != 0;
        if nested || touched && is_unnamed(name, &path) {
            return Ok(());
        }
        let directory = mask & libc::IN_ISDIR != 0;
        let change = match mask {
            _ if placed && directory => ChangeType::Create,
            _ if placed => ChangeType::Write,
            mask if mask & libc::IN_CREATE != 0 => ChangeType::Create,
            mask if mask & libc::IN_MODIFY != 0 => ChangeType::Write,
            mask if mask & (libc::IN_DELETE | libc::IN_DELETE_SELF) != 0 => ChangeType::Remove,
            mask if mask & (libc::IN_MOVED_FROM | libc::IN_MOVED_TO | libc::IN_MOVE_SELF) != 0 => ChangeType::Rename,
            _ => ChangeType::Chmod,
        };
        self.tell(change, &path)?;
        if self.recursive && directory && mask & (libc::IN_CREATE | libc::IN_MOVED_TO) != 0 {
            if self.add(&path, libc::IN_ONLYDIR | libc::IN_DONT_FOLLOW).is_ok() {
                self.add_below(&path, placed || mask & libc::IN_CREATE != 0)?;
            } else {
                self.tell(ChangeType::Overflow, &path)?;
            }
        }
        Ok(())
    }

    fn is_nested(&self, path: &[u8]) -> bool {
        let parent = path.iter().rposition(|byte| *byte == b'/').map(|at| &path[..at.max(1)]);
        parent.is_some_and(|parent| self.paths.values().any(|watched| watched == parent))
    }
}

/// A file without a name is called `#` and its number until it has one.
fn is_unnamed(name: &[u8], path: &[u8]) -> bool {
    name.strip_prefix(b"#").is_some_and(|rest| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit))
        && sys::c_string(path)
            .and_then(|path| sys::stat_at(libc::AT_FDCWD, &path, libc::AT_SYMLINK_NOFOLLOW))
            .is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
}

pub fn watch(channel: &mut Channel, request: &FileWatch) -> Served {
    let path = path::parse(&request.path)?;
    let text = path.text();
    let failure = |error: Error| match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EMFILE) => refused(ErrorCode::Busy, format!("{text}: no more watches can be had")),
        _ => failed(&text, &error),
    };
    // Follows no magic link, and tells what is missing in the usual words.
    drop(path::open(&path, libc::O_PATH)?);
    // SAFETY: a fresh descriptor.
    let inotify = unsafe {
        let fd = libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK);
        OwnedFd::from_raw_fd(sys::check(fd).map_err(failure)?)
    };
    let connection = channel.fd();
    let mut watch = Watch { channel, inotify, paths: HashMap::new(), recursive: request.recursive, placed: None };
    watch.add(&path.bytes(), 0).map_err(failure)?;
    watch.channel.reply(&Empty {})?;
    if request.recursive {
        watch.add_below(&path.bytes(), false)?;
    }
    watch.channel.flush()?;
    let mut buffer = vec![0u8; 16 * 1024];
    loop {
        let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut polls =
            [entry(watch.inotify.as_raw_fd(), libc::POLLIN), entry(connection, libc::POLLIN | libc::POLLRDHUP)];
        // SAFETY: two valid entries.
        match sys::check(unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) }) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            Err(error) => return Err(failure(error)),
            Ok(_) => {}
        }
        if polls[1].revents != 0 {
            // Nothing may be sent during a watch, so this is the end, or a client that speaks out of turn.
            return Err(Stop::Gone);
        }
        let count = sys::read(watch.inotify.as_raw_fd(), &mut buffer).unwrap_or(0);
        let mut rest = &buffer[..count];
        while rest.len() >= 16 {
            let word = |at: usize| u32::from_ne_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
            let (id, mask, cookie, length) = (word(0) as i32, word(4), word(8), word(12) as usize);
            let end = (16 + length).min(rest.len());
            let name = rest[16..end].split(|byte| *byte == 0).next().unwrap_or_default();
            watch.handle(id, mask, cookie, name)?;
            rest = &rest[end..];
        }
        watch.channel.flush()?;
    }
}
