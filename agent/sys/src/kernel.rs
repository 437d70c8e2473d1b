//! Mounts, processes and names: calls without a wrapper in libc, mostly. Paths are texts of our own making.

use crate::descriptors::{check, owned, write_all};
use crate::processors::{Processors, processor};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

pub const OPEN_TREE_CLONE: u32 = 1;
pub const OPEN_TREE_CLOEXEC: u32 = libc::O_CLOEXEC as u32;
pub const MOVE_MOUNT_F_EMPTY_PATH: u32 = 0x4;
pub const MOVE_MOUNT_T_EMPTY_PATH: u32 = 0x40;
pub const MOUNT_ATTR_RDONLY: u64 = 0x1;
pub const MOUNT_ATTR_NOSUID: u64 = 0x2;
pub const MOUNT_ATTR_NODEV: u64 = 0x4;
pub const MOUNT_ATTR_NOEXEC: u64 = 0x8;
pub const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
/// What is mounted on the original later does not show in the clone.
pub const PRIVATE: u64 = libc::MS_PRIVATE as u64;
const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_SET_FD: u32 = 5;
const FSCONFIG_CMD_CREATE: u32 = 6;
const FSOPEN_CLOEXEC: u32 = 1;
const FSMOUNT_CLOEXEC: u32 = 1;

/// How a C library names what `setrlimit` limits.
#[cfg(target_env = "gnu")]
pub type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
pub type Resource = libc::c_int;

#[repr(C)]
#[derive(Default)]
pub struct MountAttr {
    pub set: u64,
    pub clear: u64,
    pub propagation: u64,
    pub userns_fd: u64,
}

#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Without what no such text can hold.
pub fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

pub fn errno_is(error: &io::Error, code: i32) -> bool {
    error.raw_os_error() == Some(code)
}

/// What an error says to people: the kernel's words, without the number that the standard library appends.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let number = error.raw_os_error().map(|code| format!(" (os error {code})"));
    match number.and_then(|suffix| text.strip_suffix(&suffix)) {
        Some(words) => words.to_owned(),
        None => text,
    }
}

pub fn open_path_at(dir: RawFd, path: &str, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    let path = c_text(path);
    // SAFETY: `path` lives through the call.
    owned(unsafe { libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC, mode) } as libc::c_long)
}

pub fn open_tree(dir: RawFd, path: &str, flags: u32) -> io::Result<OwnedFd> {
    let path = c_text(path);
    // SAFETY: `path` lives through the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, dir, path.as_ptr(), flags | OPEN_TREE_CLOEXEC) })
}

pub fn mount_setattr(fd: RawFd, flags: i32, attr: &MountAttr) -> io::Result<()> {
    // SAFETY: `attr` lives through the call and its size is given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | flags,
            attr as *const MountAttr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Mounts what `from` stands for onto what `to` stands for, or onto `path` below it.
pub fn move_mount(from: RawFd, to: RawFd, path: &str) -> io::Result<()> {
    let path = c_text(path);
    let mut flags = MOVE_MOUNT_F_EMPTY_PATH;
    if path.is_empty() {
        flags |= MOVE_MOUNT_T_EMPTY_PATH;
    }
    // SAFETY: both paths live through the call.
    check(unsafe { libc::syscall(libc::SYS_move_mount, from, c"".as_ptr(), to, path.as_ptr(), flags) }).map(drop)
}

pub fn fsopen(kind: &str) -> io::Result<OwnedFd> {
    let kind = c_text(kind);
    // SAFETY: `kind` lives through the call.
    owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) })
}

fn fsconfig(fd: RawFd, command: u32, key: Option<&str>, value: Option<&CStr>, aux: RawFd) -> io::Result<()> {
    let key = key.map(c_text);
    // SAFETY: key and value live through the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            fd,
            command,
            key.as_ref().map_or(std::ptr::null(), |key| key.as_ptr()),
            value.map_or(std::ptr::null(), CStr::as_ptr),
            aux,
        )
    })
    .map(drop)
}

pub fn fs_flag(fd: RawFd, key: &str) -> io::Result<()> {
    fsconfig(fd, FSCONFIG_SET_FLAG, Some(key), None, 0)
}

pub fn fs_string(fd: RawFd, key: &str, value: &str) -> io::Result<()> {
    fsconfig(fd, FSCONFIG_SET_STRING, Some(key), Some(&c_text(value)), 0)
}

pub fn fs_fd(fd: RawFd, key: &str, value: RawFd) -> io::Result<()> {
    fsconfig(fd, FSCONFIG_SET_FD, Some(key), None, value)
}

pub fn fs_create(fd: RawFd) -> io::Result<()> {
    fsconfig(fd, FSCONFIG_CMD_CREATE, None, None, 0)
}

pub fn fsmount(fd: RawFd, attributes: u64) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, fd, FSMOUNT_CLOEXEC, attributes as u32) })
}

pub fn mount(source: &str, target: &str, kind: &str, flags: libc::c_ulong, data: &str) -> io::Result<()> {
    let (source, target, kind, data) = (c_text(source), c_text(target), c_text(kind), c_text(data));
    // SAFETY: all strings live through the call.
    check(unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) }
        as libc::c_long)
    .map(drop)
}

/// `fork` with new namespaces. @returns 0 in the child.
pub fn clone_process(flags: u64, cgroup: Option<RawFd>) -> io::Result<i32> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut arguments = CloneArgs { flags, exit_signal: libc::SIGCHLD as u64, ..CloneArgs::default() };
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = cgroup as u64;
    }
    // SAFETY: without CLONE_VM the child has its own copy of this single-threaded process.
    check(unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArgs>()) })
        .map(|pid| pid as i32)
}

/// Runs `act` in a process that borrows this one's memory and descriptors, and waits for its end: nothing is copied, and what it changes of
/// itself it changes of nobody else. It is on the processor that this one leaves to it.
///
/// # Safety
/// `act` only makes system calls, without what locks or allocates.
pub unsafe fn in_passing<T>(act: extern "C" fn(&T), given: &T, all: Option<&Processors>) -> io::Result<()> {
    const STACK_WORDS: usize = 16 * 1024 / 8;
    struct Call<'a, T>(extern "C" fn(&T), &'a T);
    extern "C" fn run<T>(call: *mut libc::c_void) -> libc::c_int {
        // SAFETY: whoever passed it waits.
        let Call(act, given) = unsafe { &*call.cast::<Call<'_, T>>() };
        act(given);
        0
    }
    let mut stack = vec![0u64; STACK_WORDS];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::SIGCHLD;
    if all.is_some() {
        // Refused: it may begin anywhere.
        let _ = processor().and_then(|here| Processors::only(here).give_to(0));
    }
    let call = Call(act, given);
    // SAFETY: it has a stack of its own, and this process stands still until it has ended. Until it is waited for its number is its own.
    let ended = unsafe {
        let top = stack.as_mut_ptr_range().end.cast();
        check(libc::clone(run::<T>, top, flags, (&raw const call).cast_mut().cast()) as libc::c_long)
            .and_then(|pid| check(libc::waitpid(pid as i32, std::ptr::null_mut(), libc::__WALL) as libc::c_long))
    };
    if let Some(all) = all {
        let _ = all.give_back_to(0);
    }
    ended.map(drop)
}

pub fn fork() -> io::Result<i32> {
    // SAFETY: the process is single-threaded.
    check(unsafe { libc::fork() } as libc::c_long).map(|pid| pid as i32)
}

pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

pub fn pidfd_kill(fd: RawFd) -> io::Result<()> {
    // SAFETY: no siginfo is passed.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, std::ptr::null::<u8>(), 0) }).map(drop)
}

/// Waits until `fd` is readable (or its other end closed). @returns false when the time passed first.
pub fn wait_readable(fd: RawFd, timeout_ms: i32) -> io::Result<bool> {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one entry, alive through the call.
        match check(unsafe { libc::poll(&raw mut entry, 1, timeout_ms) } as libc::c_long) {
            Ok(count) => return Ok(count > 0),
            Err(error) if errno_is(&error, libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sends descriptors along with the first of the bytes. @returns how many bytes went.
pub fn send_with(socket: RawFd, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    let size = size_of_val(fds) as u32;
    let mut control = [0u64; 16];
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the control buffer is aligned and longer than the few descriptors need; everything outlives the call.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = (libc::CMSG_SPACE(size) as usize).min(size_of_val(&control)) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), size as usize);
        check(libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) as libc::c_long)?
    };
    Ok(sent as usize)
}

pub fn make_dir(dir: RawFd, path: &str, mode: u32) -> io::Result<()> {
    let path = c_text(path);
    // SAFETY: `path` lives through the call.
    check(unsafe { libc::mkdirat(dir, path.as_ptr(), mode) } as libc::c_long).map(drop)
}

pub fn make_device(dir: RawFd, path: &str, mode: u32, device: libc::dev_t) -> io::Result<()> {
    let path = c_text(path);
    // SAFETY: `path` lives through both calls.
    unsafe {
        check(libc::mknodat(dir, path.as_ptr(), libc::S_IFCHR | mode, device) as libc::c_long)?;
        // Whatever the mask of this process is.
        check(libc::fchmodat(dir, path.as_ptr(), mode, 0) as libc::c_long).map(drop)
    }
}

pub fn chown_at(dir: RawFd, path: &str, uid: u32, gid: u32) -> io::Result<()> {
    let path = c_text(path);
    // SAFETY: `path` lives through the call.
    check(unsafe { libc::fchownat(dir, path.as_ptr(), uid, gid, libc::AT_SYMLINK_NOFOLLOW) } as libc::c_long).map(drop)
}

pub fn rename_at(dir: RawFd, from: &str, to: &str) -> io::Result<()> {
    let (from, to) = (c_text(from), c_text(to));
    // SAFETY: both paths live through the call.
    check(unsafe { libc::renameat(dir, from.as_ptr(), dir, to.as_ptr()) } as libc::c_long).map(drop)
}

/// Names the machine that processes of a namespace see, told by a descriptor of it, or of a process that is in it. This process
/// sees that one as well from then on.
pub fn set_hostname_in(namespace: RawFd, name: &str) -> io::Result<()> {
    // SAFETY: a descriptor of the caller's.
    check(unsafe { libc::setns(namespace, libc::CLONE_NEWUTS) } as libc::c_long)?;
    crate::set_hostname(name)
}

/// Waits until no writer of a pipe is left, whatever can be read of it.
pub fn wait_ended(fd: RawFd) -> io::Result<()> {
    let mut entry = libc::pollfd { fd, events: 0, revents: 0 };
    loop {
        // SAFETY: the entry is alive through the call.
        match check(unsafe { libc::poll(&raw mut entry, 1, -1) } as libc::c_long) {
            Err(error) if errno_is(&error, libc::EINTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Waits until there is something to read, or who would write it has ended: for a pipe whose other end is open elsewhere too.
/// @param process its descriptor.
/// @returns whether there is something to read.
pub fn wait_readable_of(fd: RawFd, process: RawFd) -> io::Result<bool> {
    // The process first: what it says before its end is there when that is seen.
    let mut entries = [process, fd].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: both entries are alive through the call.
        match check(unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) } as libc::c_long) {
            Err(error) if errno_is(&error, libc::EINTR) => {}
            other => return other.map(|_| entries[1].revents & libc::POLLIN != 0),
        }
    }
}

/// Renames what is at an absolute path, and nothing that is there already gives way to it.
pub fn rename_new(from: &str, to: &str) -> io::Result<()> {
    rename_by(libc::AT_FDCWD, from, to, libc::RENAME_NOREPLACE)
}

fn rename_by(dir: RawFd, from: &str, to: &str, flags: libc::c_uint) -> io::Result<()> {
    let (from, to) = (c_text(from), c_text(to));
    // SAFETY: both paths live through the call.
    check(unsafe { libc::syscall(libc::SYS_renameat2, dir, from.as_ptr(), dir, to.as_ptr(), flags) }).map(drop)
}

/// Writes a file whole: readers see the old one or the new one.
pub fn write_file_atomically(dir: RawFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let file = prepare_file(dir, name)?;
    write_all(file.as_raw_fd(), bytes)?;
    rename_at(dir, &partial(name), name)
}

/// As `write_file_atomically`, in place of one that is there: that keeps a name until `drop_former`, where the file system lets two change
/// their names. The end of a file waits for its disk where the file system tells that at once which blocks are free.
pub fn exchange_file(dir: RawFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let file = prepare_file(dir, name)?;
    write_all(file.as_raw_fd(), bytes)?;
    exchange(dir, &partial(name), name)
}

/// Gives each the other's name, where the file system can and both are there; else `from` takes the place of `to`.
pub fn rename_exchange(from: &str, to: &str) -> io::Result<()> {
    exchange(libc::AT_FDCWD, from, to)
}

fn exchange(dir: RawFd, from: &str, to: &str) -> io::Result<()> {
    match rename_by(dir, from, to, libc::RENAME_EXCHANGE) {
        Err(error) if errno_is(&error, libc::EINVAL) || errno_is(&error, libc::ENOENT) => rename_at(dir, from, to),
        other => other,
    }
}

/// What the file was before `exchange_file`, if that is still there.
pub fn drop_former(dir: RawFd, name: &str) -> io::Result<()> {
    let former = c_text(&partial(name));
    // SAFETY: the path lives through the call.
    match check(unsafe { libc::unlinkat(dir, former.as_ptr(), 0) } as libc::c_long) {
        Err(error) if !errno_is(&error, libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

/// Makes what the next `write_file_atomically` of this name fills: nothing is left to make then. One that is empty already is opened as it is:
/// what empties a file, an empty one too, makes ext4 give it blocks as soon as it is closed, which must be freed when it goes.
pub fn prepare_file(dir: RawFd, name: &str) -> io::Result<OwnedFd> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_NOFOLLOW;
    let file = File::from(open_path_at(dir, &partial(name), flags, 0o600)?);
    if file.metadata()?.len() > 0 {
        file.set_len(0)?;
    }
    Ok(file.into())
}

fn partial(name: &str) -> String {
    format!("{name}.new")
}

/// Field 22 of /proc/<pid>/stat. The command's name, field 2, is whatever bytes the command likes: blanks, brackets, half a character.
pub fn start_time(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    String::from_utf8_lossy(&stat)
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19))
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has no start time")))
}

pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

pub fn set_death_signal(signal: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) } as libc::c_long).map(drop)
}

/// The signal that this process gets with the end of its parent; 0: none.
pub fn death_signal() -> io::Result<i32> {
    let mut signal = 0;
    // SAFETY: the number is alive through the call.
    check(unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal, 0, 0, 0) } as libc::c_long)?;
    Ok(signal)
}

/// Does something as another user and group of a rooted process: see `act_as`. The kernel forgets with each change of ids that the
/// process is to end with its parent.
pub fn acting_as<T>(id: u32, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let signal = death_signal()?;
    // SAFETY: no arguments.
    let parent = unsafe { libc::getppid() };
    act_as(id)?;
    let done = act();
    act_as(0)?;
    set_death_signal(signal)?;
    // SAFETY: no arguments.
    if signal != 0 && unsafe { libc::getppid() } != parent {
        return Err(io::Error::other("who asked for it has ended"));
    }
    done
}

/// Gives this process mounts of its own, which end with it and with those that share them.
pub fn private_mounts() -> io::Result<()> {
    // SAFETY: plain number; the process is single-threaded.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) } as libc::c_long)?;
    cut_propagation()?;
    // The working directory is still that of the namespace left behind.
    let here = std::env::current_dir()?;
    std::env::set_current_dir(here)
}

/// Goes back from a mount namespace of this process's own, where it has one, to that of another process, into the same working directory.
pub fn share_mounts_of(pid: i32) -> io::Result<()> {
    let theirs = format!("/proc/{pid}/ns/mnt");
    if std::fs::read_link(&theirs)? == std::fs::read_link("/proc/self/ns/mnt")? {
        return Ok(());
    }
    let here = std::env::current_dir()?;
    let namespace = open_path_at(libc::AT_FDCWD, &theirs, libc::O_RDONLY, 0)?;
    // SAFETY: a descriptor of ours.
    match check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) } as libc::c_long) {
        // It takes the right to change roots too, which a service in a container has not got. It stays with its copy there, of few mounts.
        Err(error) if errno_is(&error, libc::EPERM) => return Ok(()),
        other => other.map(drop)?,
    }
    std::env::set_current_dir(here)
}

/// Cuts every mount of this process's namespace off from those it was copied from.
pub fn cut_propagation() -> io::Result<()> {
    mount("", "/", "", libc::MS_REC | libc::MS_PRIVATE, "")
}

/// Changes the effective user and group of a rooted process, which keeps its capabilities. Async-signal-safe.
pub fn act_as(id: u32) -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    // For each half: effective, permitted, inheritable.
    let mut sets = [0u32; 6];
    // SAFETY: plain numbers; the kernel reads and fills two sets of three words. By system call: a library would change
    // other threads too, of which there are none.
    unsafe {
        let keep = libc::c_long::from(-1i32);
        if id != 0 {
            check(libc::syscall(libc::SYS_setresgid, keep, id, keep))?;
        }
        check(libc::syscall(libc::SYS_setresuid, keep, id, keep))?;
        if id == 0 {
            check(libc::syscall(libc::SYS_setresgid, keep, id, keep))?;
        }
        check(libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()))?;
        (sets[0], sets[3]) = (sets[1], sets[4]);
        check(libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()))?;
        // A change of user closes this process's own files in /proc to it.
        check(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) as libc::c_long).map(drop)
    }
}

/// This process, a child of `parent`, does not outlive it.
pub fn end_with(parent: i32) {
    // SAFETY: plain numbers.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if libc::getppid() != parent {
            libc::_exit(1);
        }
    }
}

/// For work that nobody waits for: launches and commands go first.
pub fn yield_to_others() {
    // SAFETY: plain numbers. A process may always lower its own priority.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
}

/// The first version of it, which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// A seventh to a fourteenth of what the scheduler gives by itself: about what one hop of a command takes.
const SHORT_SLICE_NS: u64 = 200_000;
const RESET_ON_FORK: u64 = 1;

/// For a thread (0: this one) that others wait for and that mostly waits itself: beside programs that use all their processor it runs
/// soon once it is woken, for less at a time. Any program may ask for that; its share stays the same. What it starts has usual slices, and
/// no more than the usual priority. Before Linux 6.12 its slices stay as they are, and those of a thread of which somebody has decided that
/// the ordinary scheduler is not for it.
pub fn ask_for_short_slices(thread: i32) {
    // SAFETY: plain numbers and a struct that outlives the call.
    unsafe {
        // By the system call: musl knows no schedulers of threads and answers that by itself.
        if libc::syscall(libc::SYS_sched_getscheduler, thread) != libc::c_long::from(libc::SCHED_OTHER) {
            return;
        }
        let asked = SchedAttr {
            size: size_of::<SchedAttr>() as u32,
            flags: RESET_ON_FORK,
            nice: libc::getpriority(libc::PRIO_PROCESS, thread as libc::id_t),
            runtime: SHORT_SLICE_NS,
            ..SchedAttr::default()
        };
        libc::syscall(libc::SYS_sched_setattr, thread, &raw const asked, 0);
    }
}

/// What Landlock refuses to this thread and all it starts is recorded in no log of the machine: programs may confine themselves,
/// and each file they are refused then would be a record there. An error where the kernel records nothing of it (before Linux 6.15).
/// Needs no_new_privs to be set already.
pub fn keep_landlock_quiet() -> io::Result<()> {
    const LOG_SUBDOMAINS_OFF: u32 = 1 << 2;
    // SAFETY: plain numbers; without a ruleset nothing is confined.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, -1, LOG_SUBDOMAINS_OFF) }).map(drop)
}

/// No crash leaves a dump, neither in a file nor, with a limit of exactly 1, with a program of the host's. A lower hard limit stays.
pub fn limit_cores() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is alive through both calls.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit))?;
        limit.rlim_max = limit.rlim_max.min(1);
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_CORE, &raw const limit))?;
    }
    Ok(())
}
