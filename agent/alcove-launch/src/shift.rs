//! Copies a tree with every owner moved into a sandbox's range of ids, where a file system cannot be mounted that way.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::error::{AtStep, Result, StepError};
use crate::sys;

const STEP: &str = "copy";

/// `to` must not exist. Devices, sockets and pipes are left out, links between files become copies.
pub fn copy(from: &Path, to: &Path, base: u32, count: u32) -> Result<()> {
    let mut waiting: Vec<(PathBuf, PathBuf)> = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = waiting.pop() {
        let found = fs::symlink_metadata(&from).at(STEP, from.display())?;
        let kind = found.file_type();
        if kind.is_dir() {
            fs::create_dir(&to).at(STEP, to.display())?;
            for entry in fs::read_dir(&from).at(STEP, from.display())? {
                let name = entry.at(STEP, from.display())?.file_name();
                waiting.push((from.join(&name), to.join(&name)));
            }
        } else if kind.is_symlink() {
            let target = fs::read_link(&from).at(STEP, from.display())?;
            symlink(target, &to).at(STEP, to.display())?;
        } else if kind.is_file() {
            fs::copy(&from, &to).at(STEP, from.display())?;
        } else {
            continue;
        }
        let (uid, gid) = (shifted(found.uid(), base, count), shifted(found.gid(), base, count));
        let path = to.to_str().ok_or_else(|| StepError::new(STEP, format!("{} is no text", to.display())))?;
        sys::chown_at(libc::AT_FDCWD, path, uid, gid).at(STEP, path)?;
        if !kind.is_symlink() {
            // A change of owner takes these bits away.
            fs::set_permissions(&to, Permissions::from_mode(found.mode() & 0o7777)).at(STEP, path)?;
        }
    }
    Ok(())
}

/// Ids outside of the range become its last one, `nobody` in most images.
fn shifted(id: u32, base: u32, count: u32) -> u32 {
    base + id.min(count - 1)
}
