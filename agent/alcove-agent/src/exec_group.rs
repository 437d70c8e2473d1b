//! The control group of the commands, where the sandbox has one beside the agent's own: what commands use up in it is
//! not taken from the agent.

use crate::sys;
use std::os::fd::RawFd;
use std::sync::OnceLock;

struct Group {
    join: Vec<RawFd>,
    pids: Option<Limit>,
    quota: Option<Limit>,
}

/// The file of a limit, and what stood in it.
struct Limit {
    file: RawFd,
    text: Vec<u8>,
}

impl Limit {
    fn read(file: RawFd) -> Option<Limit> {
        let mut text = [0; 32];
        let count = sys::read(file, &mut text).ok()?;
        Some(Limit { file, text: text[..count].to_vec() })
    }

    fn write(&self, text: &[u8]) {
        // The only failure is a group that is being removed, and the sandbox with it.
        let _ = sys::write(self.file, text);
    }
}

static GROUP: OnceLock<Group> = OnceLock::new();

/// `join` are open files of the group (one for each controller with v1) in which a process that writes `0` joins it;
/// `pids` and `quota` are those of its limits of processes and of processor time.
pub fn set(join: &[RawFd], pids: Option<RawFd>, quota: Option<RawFd>) {
    for fd in join.iter().copied().chain(pids).chain(quota) {
        // A number that is no descriptor fails at the first use, harmlessly.
        let _ = sys::set_cloexec(fd);
    }
    GROUP.get_or_init(|| Group {
        join: join.to_vec(),
        pids: pids.and_then(Limit::read),
        quota: quota.and_then(Limit::read),
    });
}

/// Whether commands may start further processes. Closed for as long as it takes to kill what forks without pause.
pub fn let_fork(allowed: bool) {
    if let Some(limit) = GROUP.get().and_then(|group| group.pids.as_ref()) {
        limit.write(if allowed { &limit.text } else { b"0" });
    }
}

/// Whether commands are limited in processor time, and it can be renewed.
pub fn has_quota() -> bool {
    GROUP.get().is_some_and(|group| group.quota.is_some())
}

/// Commands have the processor time of a period anew, whatever they used and owe: a killed process that waits for its
/// group's share cannot end.
pub fn renew_quota() {
    if let Some(limit) = GROUP.get().and_then(|group| group.quota.as_ref()) {
        limit.write(&limit.text);
    }
}

/// Moves this process, and whatever it starts from here on.
pub fn join() {
    for fd in GROUP.get().into_iter().flat_map(|group| &group.join) {
        // The only failure is a group that is being removed, and the sandbox with it.
        let _ = sys::write(*fd, b"0");
    }
}
