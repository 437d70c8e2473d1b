//! The control group of the commands, where the sandbox has one beside the agent's own: what commands use up in it is
//! not taken from the agent.

use crate::sys;
use std::os::fd::RawFd;
use std::sync::OnceLock;

struct Group {
    join: Vec<RawFd>,
    /// The file of its process limit, and what stood in it.
    pids: Option<(RawFd, Vec<u8>)>,
}

static GROUP: OnceLock<Group> = OnceLock::new();

/// `join` are open files of the group (one for each controller with v1) in which a process that writes `0` joins it;
/// `pids` is that of its process limit.
pub fn set(join: &[RawFd], pids: Option<RawFd>) {
    for fd in join.iter().copied().chain(pids) {
        // A number that is no descriptor fails at the first use, harmlessly.
        let _ = sys::set_cloexec(fd);
    }
    let pids = pids.and_then(|fd| {
        let mut text = [0; 32];
        let count = sys::read(fd, &mut text).ok()?;
        Some((fd, text[..count].to_vec()))
    });
    GROUP.get_or_init(|| Group { join: join.to_vec(), pids });
}

/// Whether commands may start further processes. Closed for as long as it takes to kill what forks without pause.
pub fn let_fork(allowed: bool) {
    if let Some((fd, limit)) = GROUP.get().and_then(|group| group.pids.as_ref()) {
        // The only failure is a group that is being removed, and the sandbox with it.
        let _ = sys::write(*fd, if allowed { limit } else { b"0" });
    }
}

/// Moves this process, and whatever it starts from here on.
pub fn join() {
    for fd in GROUP.get().into_iter().flat_map(|group| &group.join) {
        // As above.
        let _ = sys::write(*fd, b"0");
    }
}
