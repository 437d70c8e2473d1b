//! Undoes a launch, however far it got: kills, removes the cgroups, moves the directory out of sight and deletes it.
//! Idempotent, and all it needs to know is in the directory and the request.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{AtStep, Result, StepError};
use crate::spec::{DestroySpec, ProcessRecord};
use crate::{cgroup, network, remove, sys};

/// The whole of it, deletion apart.
const DEADLINE: Duration = Duration::from_millis(4_500);
/// What has not ended by then has too much to do, too little memory or too small a share of the processors for it.
const UNAIDED_MS: i32 = 20;

/// @returns what is left to delete, out of sight already.
pub fn destroy(spec: &DestroySpec) -> Result<Option<String>> {
    let deadline = Instant::now() + DEADLINE;
    kill(spec, deadline)?;
    network::end(&spec.dir, deadline)?;
    if let Some(group) = &spec.cgroup {
        cgroup::remove(group, deadline)?;
    }
    discard(spec)
}

fn kill(spec: &DestroySpec, deadline: Instant) -> Result<()> {
    const STEP: &str = "kill";
    let Some(handle) = recorded(&Path::new(&spec.dir).join("process.json"), STEP)? else {
        return Ok(());
    };
    end_process(&handle, STEP)?;
    // PID 1 is gone only when all of its namespace is.
    if sys::wait_readable(handle.as_raw_fd(), UNAIDED_MS).at(STEP, "wait")? {
        return Ok(());
    }
    if let Some(group) = &spec.cgroup {
        cgroup::end(group);
    }
    let left = deadline.saturating_duration_since(Instant::now()).as_millis() as i32;
    if sys::wait_readable(handle.as_raw_fd(), left.max(1)).at(STEP, "wait")? {
        return Ok(());
    }
    Err(StepError::new(STEP, format!("the sandbox did not end within {} ms", DEADLINE.as_millis())))
}

/// @returns nothing when the process that is written down there has ended. It was whole before the file had its name: one that is empty
/// was left by a machine that lost its power, and with that its processes.
pub fn recorded(path: &Path, step: &'static str) -> Result<Option<OwnedFd>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) if bytes.is_empty() => return Ok(None),
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StepError::io(step, path.display(), error)),
    };
    let record: ProcessRecord =
        serde_json::from_slice(&bytes).map_err(|error| StepError::new(step, format!("{}: {error}", path.display())))?;
    if sys::boot_id().at(step, "boot id")? != record.boot_id {
        return Ok(None);
    }
    // Opened first, compared after: from then on the descriptor cannot come to mean another process.
    let opened = sys::pidfd_open(record.pid);
    let refused = |error| StepError::io(step, format!("process {}", record.pid), error);
    if !is_there(sys::start_time(record.pid), record.start_time).map_err(refused)? {
        return Ok(None);
    }
    match opened {
        Ok(handle) => Ok(Some(handle)),
        Err(error) if sys::errno_is(&error, libc::ESRCH) => Ok(None),
        Err(error) => Err(refused(error)),
    }
}

/// Whether who has that number is who was written down. The number of a thread that began since is refused to be opened, not
/// unknown, and differently by release of the kernel. What cannot be told, for want of a descriptor, has not ended.
fn is_there(found: std::io::Result<u64>, written: u64) -> std::io::Result<bool> {
    match found {
        Ok(time) => Ok(time == written),
        Err(error) if sys::errno_is(&error, libc::ENOENT) || sys::errno_is(&error, libc::ESRCH) => Ok(false),
        Err(error) => Err(error),
    }
}

pub fn end_process(handle: &OwnedFd, step: &'static str) -> Result<()> {
    match sys::pidfd_kill(handle.as_raw_fd()) {
        Err(error) if !sys::errno_is(&error, libc::ESRCH) => Err(StepError::io(step, "a recorded process", error)),
        _ => Ok(()),
    }
}

fn discard(spec: &DestroySpec) -> Result<Option<String>> {
    const STEP: &str = "remove";
    // Put there before, by a process that was killed since, perhaps: it keeps its name.
    if Path::new(&spec.dir).parent() == Some(Path::new(&spec.trash)) {
        return Ok(Some(spec.dir.clone()));
    }
    let name = Path::new(&spec.dir).file_name().and_then(|name| name.to_str()).unwrap_or("runtime");
    let target = format!("{}/{name}.{}", spec.trash, std::process::id());
    match std::fs::rename(&spec.dir, &target) {
        Ok(()) => Ok(Some(target)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StepError::io(STEP, &spec.dir, error)),
    }
}

/// Deletes what `destroy` moved away.
pub fn delete(spec: &DestroySpec, target: &str) -> Result<()> {
    remove::tree(target, spec.ids.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_loss_of_power_left_empty_is_nobodys_and_what_cannot_be_read_is_told() {
        let path = std::env::temp_dir().join(format!("alcove-recorded-{}", std::process::id()));
        std::fs::write(&path, "").expect("written");
        assert!(recorded(&path, "kill").expect("told").is_none());
        std::fs::write(&path, "{").expect("written");
        assert!(recorded(&path, "kill").is_err());
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn what_lies_in_the_trash_already_keeps_its_name() {
        let discarded = |dir: &str| {
            let spec = serde_json::json!({ "dir": dir, "trash": "/nowhere/.trash", "cgroup": null, "ids": { "kind": "single" } });
            discard(&serde_json::from_value(spec).expect("a specification")).expect("told")
        };
        assert_eq!(discarded("/nowhere/.trash/rt.1").as_deref(), Some("/nowhere/.trash/rt.1"));
        assert_eq!(discarded("/nowhere/rt"), None);
    }

    #[test]
    fn a_process_has_ended_when_its_number_is_unknown_or_anothers_and_not_when_that_cannot_be_told() {
        let code = std::io::Error::from_raw_os_error;
        assert!(is_there(Ok(7), 7).expect("told"));
        assert!(!is_there(Ok(8), 7).expect("told"));
        for gone in [libc::ENOENT, libc::ESRCH] {
            assert!(!is_there(Err(code(gone)), 7).expect("told"));
        }
        for unknown in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert!(is_there(Err(code(unknown)), 7).is_err());
        }
    }
}
