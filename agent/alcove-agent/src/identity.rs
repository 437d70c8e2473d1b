//! Who the agent is: at its start the sandbox's root, from the first configuration on a user of its own.

use crate::users::{Ids, User};
use crate::{caps, sys};
use std::io::{Error, Result};

/// Gives up every capability that neither the agent nor commands need, and with it the identity of the sandbox's root,
/// before the first command runs. Monitors are forked later and share both. Only the calling thread changes: there must
/// be no other yet. Where root's commands get capabilities of their own (`root_caps`) the sandbox is a machine, and all of
/// these are kept for them.
pub fn settle(ids: Ids, exec_caps: u64, root_caps: u64) -> Result<()> {
    let kept = match root_caps {
        0 => caps::drop_all_but(caps::KEPT | exec_caps)?,
        all => all,
    };
    let Some(own) = ids.own() else { return Ok(()) };
    // SAFETY: system calls with plain numbers, by number: the library's versions would also ask other threads.
    unsafe {
        if libc::geteuid() == own {
            return Ok(());
        }
        sys::check(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0))?;
        sys::check(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))?;
        sys::check(libc::syscall(libc::SYS_setresgid, own, own, own))?;
        sys::check(libc::syscall(libc::SYS_setresuid, own, own, own))?;
        sys::check(libc::prctl(libc::PR_SET_KEEPCAPS, 0, 0, 0, 0))?;
    }
    // A crash must leave the token nowhere.
    sys::limit_cores()?;
    caps::set(kept, kept, kept)?;
    open_to_own_user();
    Ok(())
}

/// Whether no command can run as the user that this process runs as.
pub fn alone(ids: Ids) -> bool {
    // SAFETY: cannot fail.
    ids.own().is_some_and(|own| unsafe { libc::geteuid() == own })
}

/// The files that `/proc` shows of a process belong to its user, or to root when it is closed to all. Here the user is
/// the safer owner: the sandbox's root could write to some of root's, `oom_score_adj` above all. The kernel closes a
/// process whenever it changes ids.
pub fn open_to_own_user() {
    // SAFETY: plain prctl.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
}

pub fn close_to_all() {
    // SAFETY: plain prctl. Async-signal-safe.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

/// Does something with this thread in another group as far as files are concerned. Where that is refused, without it.
pub fn in_group<T>(gid: u32, action: impl FnOnce() -> T) -> T {
    // SAFETY: concerns this thread alone; answers with the group before, whether or not it changed anything.
    let before = unsafe { libc::syscall(libc::SYS_setfsgid, gid) };
    reopen();
    let result = action();
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_setfsgid, before) };
    reopen();
    result
}

/// Whom this thread is as far as files are concerned.
pub fn file_user() -> u32 {
    // SAFETY: an id that nobody has changes nothing and is answered with the one that is set.
    let answer = unsafe { libc::syscall(libc::SYS_setfsuid, -1i32) };
    // gVisor knows no ids for files alone: the effective ones count there.
    // SAFETY: cannot fail.
    u32::try_from(answer).unwrap_or_else(|_| unsafe { libc::geteuid() })
}

/// Makes this thread a user and a group as far as files are concerned; where there is no such thing, altogether.
/// Whether it worked shows in [`file_user`]. By number, because the library's versions would change every thread.
unsafe fn become_for_files(uid: u32, gid: u32) {
    // SAFETY: system calls that concern this thread alone, with plain numbers.
    unsafe {
        if libc::syscall(libc::SYS_setfsgid, gid) < 0 {
            libc::syscall(libc::SYS_setresgid, -1i32, gid, -1i32);
        }
        if libc::syscall(libc::SYS_setfsuid, uid) < 0 {
            libc::syscall(libc::SYS_setresuid, -1i32, uid, -1i32);
        }
    }
}

/// Whether operations on files can be done with a user's own rights; root's are those of the agent.
fn is_someone_else(user: &User, ids: Ids) -> bool {
    ids.many() && user.uid != 0
}

/// Does something with the rights that a user has over files, and no others: what a program of another user puts in the way
/// of a path leads no further than it would lead the user.
pub fn as_user<T>(user: &User, ids: Ids, action: impl FnOnce() -> T) -> Result<T> {
    if !is_someone_else(user, ids) {
        return Ok(action());
    }
    let _back = Back;
    let held = caps::permitted();
    // SAFETY: system calls that concern this thread alone, with plain numbers and a list that outlives them.
    unsafe {
        sys::check(libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()))?;
        become_for_files(user.uid, user.gid);
    }
    if file_user() != user.uid {
        return Err(Error::from_raw_os_error(libc::EPERM));
    }
    caps::set(held & !caps::OVER_FILES, held, held)?;
    reopen();
    Ok(action())
}

/// Makes this thread the agent again, however it stopped being it.
struct Back;

impl Drop for Back {
    fn drop(&mut self) {
        let held = caps::permitted();
        // SAFETY: as in `as_user`.
        let restored = unsafe {
            let (mut real, mut effective, mut saved) = (0, 0, 0);
            libc::getresuid(&mut real, &mut effective, &mut saved);
            let (mut real_group, mut effective_group, mut saved_group) = (0, 0, 0);
            libc::getresgid(&mut real_group, &mut effective_group, &mut saved_group);
            become_for_files(saved, saved_group);
            libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) == 0
        };
        // A thread that may do less than it should fails operations; one that may do more must not be.
        let _ = caps::set(held, held, held);
        debug_assert!(restored);
        reopen();
    }
}

/// The kernel closes a process whenever ids change, those of one thread too, and its files in `/proc` are then the sandbox's
/// root's: not to be left so while anything else is done.
fn reopen() {
    // SAFETY: plain calls.
    unsafe {
        // Closed is 0 or 2, as the machine is set. A translator reads the paths of one that is open to it.
        if libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) != 1
            && (sys::compat() || libc::geteuid() == crate::users::OWN_ID)
        {
            open_to_own_user();
        }
    }
}
