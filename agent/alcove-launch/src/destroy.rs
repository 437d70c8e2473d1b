//! Undoes a launch, however far it got: kills, removes the cgroups, moves the directory out of sight and deletes it.
//! Idempotent, and all it needs to know is in the directory and the request.

use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{AtStep, Result, StepError};
use crate::spec::{DestroySpec, ProcessRecord};
use crate::{cgroup, remove, sys};

/// The whole of it, deletion apart.
const DEADLINE: Duration = Duration::from_millis(4_500);
/// What has not ended by then has too much to do, too little memory or too small a share of the processors for it.
const UNAIDED_MS: i32 = 20;

/// @returns what is left to delete, out of sight already.
pub fn destroy(spec: &DestroySpec) -> Result<Option<String>> {
    let deadline = Instant::now() + DEADLINE;
    kill(spec, deadline)?;
    if let Some(group) = &spec.cgroup {
        cgroup::remove(group, deadline)?;
    }
    discard(spec)
}

fn kill(spec: &DestroySpec, deadline: Instant) -> Result<()> {
    const STEP: &str = "kill";
    let path = Path::new(&spec.dir).join("process.json");
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StepError::io(STEP, path.display(), error)),
    };
    let record: ProcessRecord =
        serde_json::from_slice(&bytes).map_err(|error| StepError::new(STEP, format!("{}: {error}", path.display())))?;
    if sys::boot_id().at(STEP, "boot id")? != record.boot_id {
        return Ok(());
    }
    // Opened first, compared after: from then on the descriptor cannot come to mean another process.
    let handle = match sys::pidfd_open(record.pid) {
        Ok(handle) => handle,
        Err(error) if sys::errno_is(&error, libc::ESRCH) => return Ok(()),
        Err(error) => {
            return Err(StepError::io(STEP, format!("process {}", record.pid), error));
        }
    };
    if sys::start_time(record.pid).ok() != Some(record.start_time) {
        return Ok(());
    }
    match sys::pidfd_kill(handle.as_raw_fd()) {
        Err(error) if !sys::errno_is(&error, libc::ESRCH) => {
            return Err(StepError::io(STEP, format!("process {}", record.pid), error));
        }
        _ => {}
    }
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
    Err(StepError::new(STEP, format!("process {} did not end within {} ms", record.pid, DEADLINE.as_millis())))
}

fn discard(spec: &DestroySpec) -> Result<Option<String>> {
    const STEP: &str = "remove";
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
