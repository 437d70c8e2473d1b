//! The monitor of an exec: a process of its own between the agent and a command. It is a subreaper, so everything the
//! command starts stays below it whatever it does, and it reaps until nothing is left. Then it waits for its next job.
//!
//! The agent speaks to it over a socket pair: jobs (with descriptors) one way, fixed-size reports the other way.

use crate::users::{Ids, OWN_ID};
use crate::{caps, exec_group, identity, sys};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

/// Jobs above this do not travel through the socket, which must never make the agent wait: a fresh monitor inherits them.
pub const MAX_SENT_JOB: usize = 32 * 1024;
const MAX_FDS: usize = 3;

/// What is the same for every command; a monitor sets itself up with it once, and commands inherit it.
#[derive(Clone, Copy)]
pub struct Settings {
    pub ids: Ids,
    /// Of monitors, and of commands.
    pub oom_score_adj: (i32, i32),
    /// Soft and hard limit of open files.
    pub open_files: (u64, u64),
}

/// What to run. The descriptors (standard input, output and error; one and the same for a terminal) travel beside it.
pub struct Job {
    pub argv: Vec<Vec<u8>>,
    pub env: Vec<Vec<u8>>,
    /// Paths to try in turn.
    pub programs: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    /// None where only one user id exists.
    pub ids: Option<(u32, u32, Vec<u32>)>,
    pub tty: bool,
    pub caps: u64,
    /// The start is told of at once; else a short command's start is told of with its end.
    pub prompt: bool,
}

impl Job {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        let list = |out: &mut Vec<u8>, items: &[Vec<u8>]| {
            out.extend_from_slice(&(items.len() as u32).to_ne_bytes());
            for item in items {
                out.extend_from_slice(&(item.len() as u32).to_ne_bytes());
                out.extend_from_slice(item);
                out.push(0);
            }
        };
        list(&mut out, &self.argv);
        list(&mut out, &self.env);
        list(&mut out, &self.programs);
        list(&mut out, std::slice::from_ref(&self.cwd));
        let (uid, gid, groups) = self.ids.clone().unwrap_or((u32::MAX, u32::MAX, Vec::new()));
        for number in [uid, gid, groups.len() as u32].into_iter().chain(groups) {
            out.extend_from_slice(&number.to_ne_bytes());
        }
        out.extend_from_slice(&u32::from(self.tty).to_ne_bytes());
        out.extend_from_slice(&self.caps.to_ne_bytes());
        out.extend_from_slice(&u32::from(self.prompt).to_ne_bytes());
        out
    }
}

/// Where a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    Fork = 1,
    Setup = 2,
    Cwd = 3,
    Exec = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    Started {
        pid: i32,
    },
    Failed {
        stage: Stage,
        errno: i32,
        pid: i32,
    },
    /// Wait status of the command's first process.
    Ended {
        status: i32,
    },
    /// Nothing descends from the monitor any more.
    Idle,
}

pub const REPORT_LENGTH: usize = 16;

impl Report {
    fn encode(self) -> [u8; REPORT_LENGTH] {
        let words: [i32; 4] = match self {
            Report::Started { pid } => [1, pid, 0, 0],
            Report::Failed { stage, errno, pid } => [2, stage as i32, errno, pid],
            Report::Ended { status } => [3, status, 0, 0],
            Report::Idle => [4, 0, 0, 0],
        };
        let mut bytes = [0; REPORT_LENGTH];
        for (index, word) in words.iter().enumerate() {
            bytes[index * 4..index * 4 + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Report> {
        let word = |index: usize| -> Option<i32> {
            Some(i32::from_ne_bytes(bytes.get(index * 4..index * 4 + 4)?.try_into().ok()?))
        };
        Some(match word(0)? {
            1 => Report::Started { pid: word(1)? },
            2 => Report::Failed {
                stage: match word(1)? {
                    1 => Stage::Fork,
                    3 => Stage::Cwd,
                    4 => Stage::Exec,
                    _ => Stage::Setup,
                },
                errno: word(2)?,
                pid: word(3)?,
            },
            3 => Report::Ended { status: word(1)? },
            4 => Report::Idle,
            _ => return None,
        })
    }
}

/// A monitor as the agent sees it.
pub struct Handle {
    pub pid: i32,
    pub socket: OwnedFd,
}

/// Forks a monitor that starts with `job`.
pub fn fork(job: &[u8], fds: [RawFd; MAX_FDS], settings: Settings) -> Result<Handle> {
    let (ours, theirs) = sys::socket_pair()?;
    sys::set_nonblocking(ours.as_raw_fd(), true)?;
    // SAFETY: only the main thread forks. The child uses no lock but malloc's, which glibc's fork leaves usable.
    let pid = sys::check(unsafe { libc::fork() })?;
    if pid == 0 {
        run(theirs, job, fds, settings);
    }
    Ok(Handle { pid, socket: ours })
}

/// Hands a job to a monitor that has nothing left to reap.
pub fn send(handle: &Handle, job: &[u8], fds: [RawFd; MAX_FDS]) -> Result<()> {
    let length = (job.len() as u32).to_ne_bytes();
    let mut control = [0u64; 8];
    let mut vectors = [
        libc::iovec { iov_base: length.as_ptr() as *mut _, iov_len: length.len() },
        libc::iovec { iov_base: job.as_ptr() as *mut _, iov_len: job.len() },
    ];
    // SAFETY: the control buffer is aligned and large enough for three descriptors; everything outlives the call.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = 2;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE((MAX_FDS * 4) as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN((MAX_FDS * 4) as u32) as _;
        ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(header).cast(), MAX_FDS);
        sys::check(libc::sendmsg(handle.socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL))?
    };
    if sent as usize != length.len() + job.len() {
        return Err(Error::from_raw_os_error(libc::EMSGSIZE));
    }
    Ok(())
}

/// What a monitor keeps from one command to the next.
struct Monitor {
    socket: RawFd,
    /// Its own `oom_score_adj`, and what to write there for commands and for itself.
    score: Option<OwnedFd>,
    scores: [Vec<u8>; 2],
    /// Stack of the child that becomes the command.
    stack: Vec<u64>,
    /// Where jobs arrive.
    buffer: Vec<u8>,
    /// Nobody else has its user id.
    alone: bool,
}

const FIRST_BUFFER: usize = 8 * 1024;

impl Monitor {
    /// Waits for the next job: its length in the buffer, after four bytes. None when the agent has closed its end.
    fn receive(&mut self) -> Option<(usize, [RawFd; MAX_FDS])> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; FIRST_BUFFER];
        }
        let mut control = [0u64; 8];
        let mut vector = libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
        let mut fds = [-1; MAX_FDS];
        // SAFETY: as in `send`.
        let mut filled = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut vector;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = std::mem::size_of_val(&control) as _;
            let count = loop {
                let count = libc::recvmsg(self.socket, &mut message, libc::MSG_CMSG_CLOEXEC);
                if count >= 0 || sys::errno() != libc::EINTR {
                    break count;
                }
            };
            let header = libc::CMSG_FIRSTHDR(&message);
            if count <= 0 || header.is_null() || (*header).cmsg_len < libc::CMSG_LEN((MAX_FDS * 4) as u32) as _ {
                return None;
            }
            ptr::copy_nonoverlapping(libc::CMSG_DATA(header).cast(), fds.as_mut_ptr(), MAX_FDS);
            count as usize
        };
        let mut wanted = 4;
        loop {
            if filled >= 4 {
                let length = [self.buffer[0], self.buffer[1], self.buffer[2], self.buffer[3]];
                wanted = 4 + (u32::from_ne_bytes(length) as usize).min(MAX_SENT_JOB);
                if wanted > self.buffer.len() {
                    self.buffer.resize(wanted, 0);
                }
            }
            if filled >= wanted {
                return Some((wanted - 4, fds));
            }
            match sys::read(self.socket, &mut self.buffer[filled..wanted]) {
                Ok(count) if count > 0 => filled += count,
                _ => return None,
            }
        }
    }

    fn report(&self, reports: &[Report]) {
        let mut bytes = [0; 3 * REPORT_LENGTH];
        for (place, report) in bytes.chunks_mut(REPORT_LENGTH).zip(reports) {
            place.copy_from_slice(&report.encode());
        }
        // A failure means that the agent is gone; the parent-death signal ends this process then.
        let _ = sys::write(self.socket, &bytes[..reports.len() * REPORT_LENGTH]);
    }

    fn write_score(&self, score: &[u8]) {
        if let Some(file) = &self.score {
            // A score that cannot be set only makes another victim likelier.
            let _ = sys::write(file.as_raw_fd(), score);
        }
    }
}

fn run(socket: OwnedFd, first: &[u8], fds: [RawFd; MAX_FDS], settings: Settings) -> ! {
    let socket = socket.as_raw_fd();
    let alone = identity::alone(settings.ids);
    exec_group::join();
    // SAFETY: a process of its own; nothing here touches the agent.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"alcove-monitor".as_ptr());
        libc::setsid();
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        // Whatever is opened from here on is closed on exec.
        sys::close_all_but(&mut [socket, fds[0], fds[1], fds[2]]);
        // The effective id stays, and with it the capabilities. Where the id does not exist nothing changes.
        // A path translator that shows its user as root only pretends to change it, to commands too.
        if !alone && caps::permitted() & 1 << caps::SETUID != 0 {
            libc::syscall(libc::SYS_setresuid, OWN_ID, u32::MAX, OWN_ID);
        }
        if !alone && !sys::compat() {
            identity::close_to_all();
        }
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let no_core = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        libc::setrlimit(libc::RLIMIT_CORE, &no_core);
        let files = libc::rlimit { rlim_cur: settings.open_files.0, rlim_max: settings.open_files.1 };
        libc::setrlimit(libc::RLIMIT_NOFILE, &files);
        // Only to be waited for with a limit; the child unblocks it for the command.
        libc::sigprocmask(libc::SIG_SETMASK, &ends_of_children(), ptr::null_mut());
    }
    let mut monitor = Monitor {
        socket,
        score: sys::open(c"/proc/self/oom_score_adj", libc::O_WRONLY, 0).ok(),
        scores: [settings.oom_score_adj.1, settings.oom_score_adj.0].map(|score| score.to_string().into_bytes()),
        stack: vec![0; CHILD_STACK / 8],
        buffer: Vec::new(),
        alone,
    };
    monitor.supervise(first, fds);
    while let Some((length, fds)) = monitor.receive() {
        let buffer = std::mem::take(&mut monitor.buffer);
        monitor.supervise(&buffer[4..4 + length], fds);
        monitor.buffer = buffer;
    }
    // SAFETY: ends this process without running the agent's exit handlers.
    unsafe { libc::_exit(0) }
}

impl Monitor {
    /// Starts one command and reaps until nothing descends from this process.
    fn supervise(&mut self, job: &[u8], fds: [RawFd; MAX_FDS]) {
        let (started, prompt) = Plan::decode(job, fds)
            .map_or((Report::Failed { stage: Stage::Setup, errno: libc::EINVAL, pid: 0 }, true), |plan| {
                (self.start(&plan), plan.prompt)
            });
        // The child changed its ids in memory that it shared, which decides who may look into it.
        if self.alone {
            identity::open_to_own_user();
        } else if !sys::compat() {
            identity::close_to_all();
        }
        // After that, because for a moment the sandbox's root could have written there too.
        self.write_score(&self.scores[1]);
        for (index, fd) in fds.iter().enumerate() {
            if !fds[..index].contains(fd) {
                // SAFETY: these descriptors came with the job and are used by nobody else here.
                unsafe { libc::close(*fd) };
            }
        }
        let main = match started {
            Report::Started { pid } => pid,
            _ => 0,
        };
        match if main > 0 && !prompt { end_within(main, PATIENCE) } else { None } {
            Some(status) => {
                let reports = [started, Report::Ended { status }, Report::Idle];
                let alone = has_no_child();
                self.report(if alone { &reports } else { &reports[..2] });
                if alone {
                    return;
                }
            }
            None => self.report(&[started]),
        }
        loop {
            let mut status = 0;
            // SAFETY: plain waits.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL) };
            if pid < 0 {
                if sys::errno() == libc::EINTR {
                    continue;
                }
                self.report(&[Report::Idle]);
                return;
            }
            if pid == main {
                let ended = Report::Ended { status };
                if has_no_child() {
                    self.report(&[ended, Report::Idle]);
                    return;
                }
                self.report(&[ended]);
            }
        }
    }
}

/// How long the news of a start waits for the news of the end: one message and one wake-up then tell of both.
const PATIENCE: Duration = Duration::from_millis(2);

fn ends_of_children() -> libc::sigset_t {
    // SAFETY: the set is initialised before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        set
    }
}

/// The wait status of a child that ends in time; None when it goes on.
fn end_within(pid: i32, patience: Duration) -> Option<i32> {
    let ends = ends_of_children();
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let limit = libc::timespec { tv_sec: 0, tv_nsec: libc::c_long::from(left.subsec_nanos()) };
        let mut status = 0;
        // SAFETY: plain waits. The signal may be of an earlier child, so that only the second wait tells.
        let (signalled, ended) = unsafe {
            let signalled = libc::sigtimedwait(&ends, ptr::null_mut(), &limit) > 0;
            (signalled, libc::waitpid(pid, &mut status, libc::WNOHANG | libc::__WALL))
        };
        if ended == pid {
            return Some(status);
        }
        if !signalled || left.is_zero() {
            return None;
        }
    }
}

/// Looks whether any child is left without reaping it.
fn has_no_child() -> bool {
    // SAFETY: fills a structure that is not looked at.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
        libc::waitid(libc::P_ALL, 0, &mut info, flags) < 0 && sys::errno() == libc::ECHILD
    }
}

/// A job with everything the child needs laid out as the kernel wants it: after the clone nothing is allocated.
struct Plan {
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    programs: Vec<*const libc::c_char>,
    /// `/bin/sh`, the script, its arguments: for text files without an interpreter line.
    script: Vec<*const libc::c_char>,
    cwd: *const libc::c_char,
    ids: Option<(u32, u32, Vec<u32>)>,
    tty: bool,
    caps: u64,
    prompt: bool,
    fds: [RawFd; MAX_FDS],
    failure: (Stage, i32),
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.0.get(..count)?;
        self.0 = &self.0[count..];
        Some(taken)
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }
    fn strings(&mut self) -> Option<Vec<*const libc::c_char>> {
        let count = self.u32()?;
        let mut pointers = Vec::with_capacity(count as usize + 1);
        for _ in 0..count {
            let length = self.u32()? as usize;
            pointers.push(self.take(length + 1)?.as_ptr().cast());
        }
        pointers.push(ptr::null());
        Some(pointers)
    }
}

impl Plan {
    /// The pointers refer into `job`, which must outlive the plan.
    fn decode(job: &[u8], fds: [RawFd; MAX_FDS]) -> Option<Plan> {
        let mut cursor = Cursor(job);
        let argv = cursor.strings()?;
        let env = cursor.strings()?;
        let programs = cursor.strings()?;
        let cwd = cursor.strings()?[0];
        let (uid, gid, count) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
        let groups = (0..count).map(|_| cursor.u32()).collect::<Option<Vec<u32>>>()?;
        let tty = cursor.u32()? != 0;
        let caps = cursor.u64()?;
        let prompt = cursor.u32()? != 0;
        let mut script = vec![c"/bin/sh".as_ptr(), ptr::null()];
        script.extend(argv.iter().skip(1));
        let ids = (uid != u32::MAX).then_some((uid, gid, groups));
        let failure = (Stage::Setup, 0);
        Some(Plan { argv, env, programs, script, cwd, ids, tty, caps, prompt, fds, failure })
    }
}

const CHILD_STACK: usize = 64 * 1024;

impl Monitor {
    /// Starts the command as `vfork` would: the child borrows this process's memory until it executes the program, so
    /// nothing is copied, and its failures are simply left in the plan.
    fn start(&mut self, plan: &Plan) -> Report {
        self.write_score(&self.scores[0]);
        // SAFETY: the child runs on its own stack, calls nothing but system calls, and this process stands still until
        // it has executed its program or ended.
        let pid = unsafe {
            let top = self.stack.as_mut_ptr().add(self.stack.len()).cast();
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            libc::clone(child, top, flags, ptr::from_ref(plan).cast_mut().cast())
        };
        if pid < 0 {
            return Report::Failed { stage: Stage::Fork, errno: sys::errno(), pid: 0 };
        }
        // SAFETY: the child wrote here, through the memory it shared; the compiler cannot know.
        let (stage, errno) = unsafe { ptr::read_volatile(&plan.failure) };
        if errno != 0 {
            return Report::Failed { stage, errno, pid };
        }
        Report::Started { pid }
    }
}

extern "C" fn child(plan: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start` passes a live plan and waits.
    unsafe {
        let plan: *mut Plan = plan.cast();
        let failure = become_command(&*plan);
        ptr::write_volatile(&raw mut (*plan).failure, failure);
        libc::_exit(127)
    }
}

/// Turns this process into the command; returns only when that failed. Async-signal-safe.
#[allow(unsafe_op_in_unsafe_fn)]
unsafe fn become_command(plan: &Plan) -> (Stage, i32) {
    macro_rules! must {
        ($call:expr) => {
            if ($call as i64) < 0 {
                return (Stage::Setup, sys::errno());
            }
        };
    }
    libc::setsid();
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
            libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0);
        }
        must!(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()));
        must!(libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid));
        must!(libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid));
    }
    // Root goes anywhere, though it holds no capability later; others where their own rights let them.
    if root && libc::chdir(plan.cwd) < 0 {
        return (Stage::Cwd, sys::errno());
    }
    if caps::set(plan.caps, plan.caps, plan.caps).is_err() {
        return (Stage::Setup, sys::errno());
    }
    caps::raise_ambient(plan.caps);
    if !root && libc::chdir(plan.cwd) < 0 {
        return (Stage::Cwd, sys::errno());
    }
    let mut none: libc::sigset_t = std::mem::zeroed();
    libc::sigemptyset(&mut none);
    libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
    let mut errno = libc::ENOENT;
    for program in plan.programs.iter().filter(|program| !program.is_null()) {
        libc::execve(*program, plan.argv.as_ptr(), plan.env.as_ptr());
        match sys::errno() {
            libc::ENOENT | libc::ENOTDIR => continue,
            libc::EACCES => errno = libc::EACCES,
            libc::ENOEXEC => {
                // The slot was reserved when the plan was laid out.
                let script = plan.script.as_ptr().cast_mut();
                ptr::write_volatile(script.add(1), *program);
                libc::execve(c"/bin/sh".as_ptr(), plan.script.as_ptr(), plan.env.as_ptr());
                errno = libc::ENOEXEC;
                break;
            }
            other => {
                errno = other;
                break;
            }
        }
    }
    (Stage::Exec, errno)
}
