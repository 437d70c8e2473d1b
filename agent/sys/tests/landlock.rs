//! What programs that confine themselves are refused is not the machine's to record.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const AUDIT_GET: u16 = 1000;
const AUDIT_NLGRP_READLOG: u32 = 1;

/// A socket that hears of every record, where the machine makes any.
fn records() -> Option<OwnedFd> {
    // SAFETY: plain numbers and structs that outlive the calls; the descriptor is owned from here on.
    unsafe {
        let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_AUDIT);
        let socket = (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))?;
        let mut own: libc::sockaddr_nl = std::mem::zeroed();
        own.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        own.nl_groups = AUDIT_NLGRP_READLOG;
        let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        if libc::bind(fd, (&raw const own).cast(), length) < 0 {
            return None;
        }
        let wait = libc::timeval { tv_sec: 0, tv_usec: 300_000 };
        let size = size_of::<libc::timeval>() as libc::socklen_t;
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const wait).cast(), size);
        let question = libc::nlmsghdr {
            nlmsg_len: 16,
            nlmsg_type: AUDIT_GET,
            nlmsg_flags: libc::NLM_F_REQUEST as u16,
            nlmsg_seq: 1,
            nlmsg_pid: 0,
        };
        libc::send(fd, (&raw const question).cast(), 16, 0);
        // Records may come before the answer.
        while let Some(message) = next(&socket) {
            if message[4..6] == AUDIT_GET.to_ne_bytes() {
                return (message[20..24] != [0; 4]).then_some(socket);
            }
        }
        None
    }
}

fn next(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut message = vec![0; 16 * 1024];
    // SAFETY: the buffer outlives the call.
    let count = unsafe { libc::recv(socket.as_raw_fd(), message.as_mut_ptr().cast(), message.len(), 0) };
    message.truncate(usize::try_from(count).ok()?);
    (message.len() >= 24).then_some(message)
}

/// Confines this thread to no file at all. Whether the kernel can.
fn confine() -> bool {
    let attributes: u64 = (1 << 13) - 1;
    // SAFETY: the attributes outlive the call.
    unsafe {
        let ruleset = libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, 8, 0);
        ruleset >= 0 && libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) == 0
    }
}

/// Whether a file that a program refuses itself is told of.
fn is_recorded(quiet: bool, heard: &OwnedFd) -> bool {
    let path = std::env::temp_dir().join(format!("alcove-landlock-{quiet}-{}", std::process::id()));
    File::create(&path).expect("a file");
    let opened = path.clone();
    let thread = std::thread::spawn(move || {
        // SAFETY: plain setting of this thread.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        if quiet {
            alcove_sys::keep_landlock_quiet().expect("a kernel that records it can be told not to");
        }
        confine() && File::open(opened).is_err()
    });
    let refused = thread.join().expect("the thread ends");
    std::fs::remove_file(&path).expect("removed");
    let until = Instant::now() + Duration::from_secs(2);
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    while let Some(message) = next(heard).filter(|_| Instant::now() < until) {
        if String::from_utf8_lossy(&message).contains(&name) {
            return true;
        }
    }
    assert!(refused);
    false
}

#[test]
fn what_a_program_refuses_itself_is_recorded_nowhere() {
    let Some(heard) = records() else {
        eprintln!(
            "SKIPPED: what Landlock refuses is not recorded: this machine makes no records, or tells nobody of them"
        );
        return;
    };
    if !is_recorded(false, &heard) {
        eprintln!("SKIPPED: what Landlock refuses is not recorded: this kernel does not (before Linux 6.15)");
        return;
    }
    assert!(!is_recorded(true, &heard));
}
