//! Counts the memory kills of the sandbox's control group, to tell them from other kills.

use crate::sys;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub struct OomCounters {
    files: Vec<OwnedFd>,
}

impl OomCounters {
    /// `given` are open `memory.events` (v2) or `memory.oom_control` (v1) files; without any, those visible inside.
    pub fn new(given: &[RawFd]) -> Self {
        let mut files: Vec<OwnedFd> = Vec::new();
        for fd in given {
            if sys::set_cloexec(*fd).is_ok() {
                // SAFETY: whoever started the agent passed this descriptor for its use.
                files.push(unsafe { OwnedFd::from_raw_fd(*fd) });
            }
        }
        if files.is_empty() {
            for path in [c"/sys/fs/cgroup/memory.events", c"/sys/fs/cgroup/memory/memory.oom_control"] {
                files.extend(sys::open(path, libc::O_RDONLY | libc::O_NONBLOCK, 0));
            }
        }
        Self { files }
    }

    pub fn of(files: Vec<OwnedFd>) -> Self {
        Self { files }
    }

    pub fn any(&self) -> bool {
        !self.files.is_empty()
    }

    /// How many processes were killed for memory so far.
    pub fn total(&self) -> u64 {
        self.files.iter().filter_map(count).sum()
    }
}

fn count(file: &OwnedFd) -> Option<u64> {
    let mut text = [0; 1024];
    let text = sys::read_again(file.as_raw_fd(), &mut text)?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}
