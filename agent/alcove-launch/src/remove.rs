//! Deletes trees that untrusted programs made: never follows a link, needs neither stack nor descriptors in proportion
//! to their depth, and copes with directories that their owner has locked.

use std::fs::{self, DirEntry, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{AtStep, Result, StepError};
use crate::spec::IdsSpec;
use crate::{idmap, sys};

const STEP: &str = "remove";

pub fn tree(path: &str, ids: Option<&IdsSpec>) -> Result<()> {
    match ids {
        // Files of the range belong to nobody this process may act for, except inside such a user namespace.
        Some(ids @ IdsSpec::Subids { .. }) => within_namespace(path, ids),
        _ => remove_all(Path::new(path)).at(STEP, path),
    }
}

fn within_namespace(path: &str, ids: &IdsSpec) -> Result<()> {
    let (go_reader, go_writer) = sys::pipe().at(STEP, "pipe")?;
    let pid = sys::clone_process(libc::CLONE_NEWUSER as u64, None).at(STEP, "user namespace")?;
    if pid == 0 {
        drop(go_writer);
        let mut go = [0u8; 1];
        let released = sys::read(std::os::fd::AsRawFd::as_raw_fd(&go_reader), &mut go).is_ok_and(|count| count == 1);
        // SAFETY: plain numbers.
        let root = unsafe { libc::setresgid(0, 0, 0) == 0 && libc::setresuid(0, 0, 0) == 0 };
        let done = released && root && remove_all(Path::new(path)).is_ok();
        std::process::exit(i32::from(!done));
    }
    let mapped = idmap::write(pid, ids);
    if mapped.is_ok() {
        sys::write_all(std::os::fd::AsRawFd::as_raw_fd(&go_writer), b"x").at(STEP, "release")?;
    }
    drop(go_writer);
    let mut status = 0;
    // SAFETY: our own child.
    sys::check(unsafe { libc::waitpid(pid, &raw mut status, 0) } as libc::c_long).at(STEP, "wait")?;
    mapped?;
    if status == 0 { Ok(()) } else { Err(StepError::new(STEP, format!("{path} could not be deleted in full"))) }
}

/// Deep trees are flattened: a directory that is not empty moves up below the top before it is read, so that no path
/// gets long and a directory's turn comes when nothing but moved directories is left.
fn remove_all(top: &Path) -> io::Result<()> {
    let mut waiting = vec![top.to_path_buf()];
    let mut moved = 0u64;
    while let Some(dir) = waiting.pop() {
        let mut children = Vec::new();
        match read_unlocked(&dir) {
            Ok(entries) => {
                for entry in entries {
                    children.extend(remove_entry(&entry?, top, &mut moved)?);
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        }
        if dir != top {
            ignore_missing(fs::remove_dir(&dir))?;
        }
        waiting.append(&mut children);
    }
    ignore_missing(fs::remove_dir(top))
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// @returns a directory that has to be emptied first, at its new place directly below `top`.
fn remove_entry(entry: &DirEntry, top: &Path, moved: &mut u64) -> io::Result<Option<PathBuf>> {
    let path = entry.path();
    if !entry.file_type()?.is_dir() {
        return ignore_missing(fs::remove_file(&path)).map(|()| None);
    }
    match fs::remove_dir(&path) {
        Ok(()) => return Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(_) => {}
    }
    if path.parent() == Some(top) {
        return Ok(Some(path));
    }
    // Moving a directory rewrites its `..`, which takes write permission on it.
    fs::set_permissions(&path, Permissions::from_mode(0o700))?;
    loop {
        *moved += 1;
        let target = top.join(format!(".moved-{moved}"));
        match fs::rename(&path, &target) {
            Ok(()) => return Ok(Some(target)),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty || error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

fn read_unlocked(dir: &Path) -> io::Result<fs::ReadDir> {
    // A directory whose owner took away its own rights can neither be read nor emptied.
    let mode = fs::symlink_metadata(dir)?.permissions().mode();
    if mode & 0o700 != 0o700 {
        fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    }
    fs::read_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("alcove-remove-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("scratch directory");
        path
    }

    #[test]
    fn a_tree_deeper_than_paths_may_be_long_is_removed() {
        let top = scratch("deep");
        let spare = scratch("spare");
        for _ in 0..3_000 {
            // Grows at its root, so that every path stays short: spare/deep holds what was below top.
            fs::rename(&top, spare.join("deep")).expect("move below");
            fs::write(spare.join("file"), "x").expect("write");
            fs::rename(&spare, &top).expect("move up");
            fs::create_dir(&spare).expect("create");
        }
        remove_all(&spare).expect("remove");
        remove_all(&top).expect("remove");
        assert!(!top.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let (top, other) = (scratch("links"), scratch("other"));
        fs::write(other.join("kept"), "x").expect("write");
        std::os::unix::fs::symlink(&other, top.join("link")).expect("link");
        fs::create_dir_all(top.join("a/b")).expect("create");
        std::os::unix::fs::symlink(&other, top.join("a/b/link")).expect("link");
        fs::set_permissions(top.join("a"), Permissions::from_mode(0o000)).expect("lock");
        remove_all(&top).expect("remove");
        assert!(!top.exists() && other.join("kept").exists());
        remove_all(&other).expect("remove");
    }
}
