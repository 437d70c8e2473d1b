//! The child that becomes the command.

use super::job::Plan;
use super::report::{Report, Stage};
use crate::{caps, identity, sys};
use std::ptr;

/// The child's stack, in words.
pub const STACK_WORDS: usize = 64 * 1024 / 8;

/// Starts the command as `vfork` would: the child borrows this process's memory until it executes the program, so nothing
/// is copied, and its failures are simply left in the plan.
/// @param all what both may use afterwards; none where it is to begin anywhere.
pub fn start(plan: &mut Plan, all: Option<sys::Processors>, stack: &mut [u64]) -> Report {
    plan.processors = all;
    if all.is_some() {
        // Where it fails it may keep to one all the same, while what its groups allow is being changed.
        let _ = stay();
    }
    let pid = clone(plan, stack);
    let report = match (pid, plan.failure.get()) {
        (-1, _) => Report::Failed { stage: Stage::Fork, errno: sys::errno(), pid: 0 },
        (_, (_, 0)) => Report::Started { pid },
        (_, (stage, errno)) => Report::Failed { stage, errno, pid },
    };
    if let Some(all) = &plan.processors {
        let _ = all.give_back_to(0);
    }
    report
}

/// Has what this process starts begin on its own processor, which is free from then on: the kernel looks for the one with the least to do, and
/// beside programs that use all of theirs the child waits there for its turn, three milliseconds of a command of one.
fn stay() -> std::io::Result<()> {
    sys::Processors::only(sys::processor()?).give_to(0)
}

fn clone(plan: &Plan, stack: &mut [u64]) -> i32 {
    // SAFETY: the child runs on its own stack, calls nothing but system calls, and this process stands still until it has
    // executed its program or ended. What it writes of the plan is in cells.
    unsafe {
        let top = stack.as_mut_ptr_range().end.cast();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(child, top, flags, ptr::from_ref(plan).cast_mut().cast())
    }
}

extern "C" fn child(plan: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start` passes a live plan and waits.
    let plan = unsafe { &*plan.cast::<Plan>() };
    // SAFETY: this is the child.
    let failure = unsafe { become_command(plan) };
    plan.failure.set(failure);
    // SAFETY: ends the child alone.
    unsafe { libc::_exit(127) }
}

/// The errors that say nothing but that a program is not in this place: the search goes on, as a shell's does.
const ELSEWHERE: [i32; 7] =
    [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::ESTALE, libc::ENAMETOOLONG, libc::ENODEV, libc::ETIMEDOUT];

/// Turns this process into the command; returns only when that failed. Async-signal-safe.
///
/// # Safety
/// Only in the child of `start`: it gives up what this process has.
unsafe fn become_command(plan: &Plan) -> (Stage, i32) {
    macro_rules! must {
        ($call:expr) => {
            // SAFETY: system calls with values of the plan, which outlives them.
            if unsafe { $call } < 0 {
                return (Stage::Setup, sys::errno());
            }
        };
    }
    // A program asks at its beginning how many there are.
    if plan.processors.is_some_and(|all| all.give_back_to(0).is_err()) {
        // What its groups allow changes without pause: nothing is wrong with what was asked for.
        let refused = sys::errno();
        return (Stage::Setup, if refused == libc::EINVAL { libc::EAGAIN } else { refused });
    }
    // Before it is anything else, and not without: whatever it starts is in there too.
    for fd in &plan.join {
        must!(libc::write(*fd, b"0".as_ptr().cast(), 1) as libc::c_int);
    }
    // SAFETY: as above; it fails only for the leader of a group, which a fresh process is not.
    unsafe { libc::setsid() };
    if plan.tty {
        must!(libc::ioctl(plan.fds[0], libc::TIOCSCTTY, 0));
    }
    for (target, fd) in plan.fds.iter().enumerate() {
        must!(libc::dup2(*fd, target as i32));
    }
    let root = plan.ids.as_ref().is_none_or(|(uid, _, _)| *uid == 0);
    if let Some((uid, gid, groups)) = &plan.ids {
        // From here on this memory must not be open to the command's user, whatever the kernel's setting says.
        if !sys::compat() {
            identity::close_to_all();
        }
        if plan.caps != 0 {
            // SAFETY: a plain setting; without it the capabilities are refused below.
            unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) };
        }
        must!(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()));
        must!(libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid));
        must!(libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid));
    }
    // SAFETY: the path is a C string of the plan.
    let enters = || unsafe { libc::chdir(plan.cwd) } == 0;
    // Root goes anywhere, though it holds no capability later; others where their own rights let them.
    if root && !enters() {
        return (Stage::Cwd, sys::errno());
    }
    if caps::set(plan.caps, plan.caps, plan.caps).is_err() {
        return (Stage::Setup, sys::errno());
    }
    caps::raise_ambient(plan.caps);
    if !root && !enters() {
        return (Stage::Cwd, sys::errno());
    }
    // SAFETY: the set is initialised before it is used.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
    }
    execute(plan)
}

/// Tries one place after the other. Returns why the program does not run.
fn execute(plan: &Plan) -> (Stage, i32) {
    let mut failure = (Stage::Exec, libc::ENOENT);
    for program in plan.programs.iter().filter(|program| !program.is_null()) {
        // SAFETY: the lists are ended by null and made of C strings of the plan.
        unsafe { libc::execve(*program, plan.argv.as_ptr(), plan.env.as_ptr()) };
        match sys::errno() {
            libc::EACCES => {
                failure = (if forbids_execution(*program) { Stage::NoExec } else { Stage::Exec }, libc::EACCES)
            }
            // A place that cannot be looked at is told of only when no other has the program.
            errno if ELSEWHERE.contains(&errno) => {
                if failure.1 == libc::ENOENT && errno != libc::ENOTDIR {
                    failure = (Stage::Exec, errno);
                }
            }
            libc::ENOEXEC => {
                plan.script[1].set(*program);
                // SAFETY: as above; a cell is laid out as what it holds.
                unsafe { libc::execve(c"/bin/sh".as_ptr(), plan.script.as_ptr().cast(), plan.env.as_ptr()) };
                return (Stage::Exec, libc::ENOEXEC);
            }
            errno => return (Stage::Exec, errno),
        }
    }
    failure
}

/// Whether the file system of a program is mounted `noexec`.
fn forbids_execution(program: *const libc::c_char) -> bool {
    // SAFETY: the path is a C string, the structure outlives the call.
    unsafe {
        let mut about: libc::statvfs = std::mem::zeroed();
        libc::statvfs(program, &mut about) == 0 && about.f_flag & libc::ST_NOEXEC != 0
    }
}
