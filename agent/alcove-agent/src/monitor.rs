//! The monitor of an exec: a process of its own between the agent and a command. It is a subreaper, so everything the
//! command starts stays below it whatever it does, and it reaps until nothing is left. Then it waits for its next job.
//!
//! The agent speaks to it over a socket pair: jobs (with descriptors) one way, fixed-size reports the other way.

mod command;
mod job;
mod report;

pub use job::Job;
pub use report::{REPORT_LENGTH, Report, Stage, Usage};

use crate::users::{Ids, OWN_ID};
use crate::{caps, exec_group, identity, sys};
use job::Plan;
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

/// A monitor as the agent sees it.
pub struct Handle {
    pub pid: i32,
    pub socket: OwnedFd,
}

/// What a monitor starts with: a job, its descriptors, and the files by which its command joins groups.
pub type First<'a> = (&'a [u8], [RawFd; MAX_FDS], &'a [RawFd]);

/// Forks a monitor, which waits for its first job where it has none.
pub fn fork(first: Option<First<'_>>, settings: Settings) -> Result<Handle> {
    let (ours, theirs) = sys::socket_pair()?;
    sys::set_nonblocking(ours.as_raw_fd(), true)?;
    // SAFETY: only the main thread forks. The child uses no lock but malloc's, which the library's fork leaves usable (musl's since 1.2.2).
    let pid = sys::check(unsafe { libc::fork() })?;
    if pid == 0 {
        run(theirs, first, settings);
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
    /// What it and its commands may use, where it keeps to one of them for each start.
    processors: Option<sys::Processors>,
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

fn run(socket: OwnedFd, first: Option<First<'_>>, settings: Settings) -> ! {
    let given = first.map_or_else(Vec::new, |(_, fds, join)| [&fds[..], join].concat());
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
        sys::ask_for_short_slices(0);
        // Whatever is opened from here on is closed on exec.
        sys::close_all_but(&mut [&[socket], &given[..]].concat());
        // The effective id stays, and with it the capabilities. Where the id does not exist nothing changes.
        // A path translator that shows its user as root only pretends to change it, to commands too.
        if !alone && caps::permitted() & 1 << caps::SETUID != 0 {
            libc::syscall(libc::SYS_setresuid, OWN_ID, u32::MAX, OWN_ID);
        }
        if !alone && !sys::compat() {
            identity::close_to_all();
        }
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if sys::limit_cores().is_err() {
            // What its commands leave behind would be somebody else's to read.
            libc::_exit(1);
        }
        let files = libc::rlimit { rlim_cur: settings.open_files.0, rlim_max: settings.open_files.1 };
        libc::setrlimit(libc::RLIMIT_NOFILE, &files);
        // The ends of children are only to be waited for with a limit. Of others, those of a file's owner can be had of any
        // process by the machine's root, which a container's is. The child unblocks them for the command.
        // By the system call: libraries leave out signals that they use for themselves, two or three.
        let all = u64::MAX;
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            ptr::null_mut::<u64>(),
            size_of_val(&all),
        );
    }
    let mut monitor = Monitor {
        socket,
        score: sys::open(c"/proc/self/oom_score_adj", libc::O_WRONLY, 0).ok(),
        scores: [settings.oom_score_adj.1, settings.oom_score_adj.0].map(|score| score.to_string().into_bytes()),
        stack: vec![0; command::STACK_WORDS],
        buffer: Vec::new(),
        alone,
        // Below a path translator each call is a stop of its own.
        processors: if sys::compat() { None } else { sys::Processors::to_give_back().ok() },
    };
    if let Some((job, fds, join)) = first {
        monitor.supervise(job, fds, join);
    }
    while let Some((length, fds)) = monitor.receive() {
        let buffer = std::mem::take(&mut monitor.buffer);
        monitor.supervise(&buffer[4..4 + length], fds, &[]);
        monitor.buffer = buffer;
    }
    // SAFETY: ends this process without running the agent's exit handlers.
    unsafe { libc::_exit(0) }
}

impl Monitor {
    /// Starts one command and reaps until nothing descends from this process.
    fn supervise(&mut self, job: &[u8], fds: [RawFd; MAX_FDS], join: &[RawFd]) {
        let (started, prompt) = Plan::decode(job, fds, join).map_or(
            (Report::Failed { stage: Stage::Setup, errno: libc::EINVAL, pid: 0 }, true),
            |mut plan| {
                self.write_score(&self.scores[0]);
                (command::start(&mut plan, self.processors, &mut self.stack), plan.prompt)
            },
        );
        // The child changed its ids in memory that it shared, which decides who may look into it.
        if self.alone {
            identity::open_to_own_user();
        } else if !sys::compat() {
            identity::close_to_all();
        }
        // After that, because for a moment the sandbox's root could have written there too.
        self.write_score(&self.scores[1]);
        let came = [&fds[..], join].concat();
        for (index, fd) in came.iter().enumerate() {
            if !came[..index].contains(fd) {
                // SAFETY: these descriptors came with the job and are used by nobody else here.
                unsafe { libc::close(*fd) };
            }
        }
        let main = match started {
            Report::Started { pid } => pid,
            _ => 0,
        };
        let mut usage = Usage::default();
        let patience = if sys::compat() { TRANSLATED_PATIENCE } else { PATIENCE };
        match if main > 0 && !prompt { end_within(main, patience) } else { None } {
            Some((status, used)) => {
                usage.add(&used);
                let reports = [started, Report::Ended { status, usage }, Report::Idle];
                let alone = has_no_child();
                self.report(if alone { &reports } else { &reports[..2] });
                if alone {
                    return;
                }
            }
            None => self.report(&[started]),
        }
        while let Some((pid, status, used)) = next_ended() {
            usage.add(&used);
            if pid == main {
                // Before it is reaped: until then nobody else can have its process id, which signals are sent to.
                self.report(&[Report::Ended { status, usage }]);
            }
            // SAFETY: plain wait for a child that has ended.
            unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) };
        }
        self.report(&[Report::Idle]);
    }
}

/// Waits until some child has ended and leaves it to be reaped: its pid and wait status, and what it used. None when there
/// is no child.
fn next_ended() -> Option<(i32, i32, libc::rusage)> {
    loop {
        // SAFETY: the structures outlive the call, which fills them when it succeeds.
        let (pid, code, status, used) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let mut used: libc::rusage = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOWAIT | libc::__WALL;
            // The library's version leaves the last argument out.
            if libc::syscall(libc::SYS_waitid, libc::P_ALL, 0, &raw mut info, flags, &raw mut used) < 0 {
                if sys::errno() == libc::EINTR {
                    continue;
                }
                return None;
            }
            (info.si_pid(), info.si_code, info.si_status(), used)
        };
        let status = match code {
            libc::CLD_EXITED => (status & 0xff) << 8,
            libc::CLD_DUMPED => status | 0x80,
            _ => status,
        };
        return Some((pid, status, used));
    }
}

/// How long the news of a start waits for the news of the end: one message and one wake-up then tell of both.
const PATIENCE: Duration = Duration::from_millis(2);
/// Below a path translator each call of each process is a stop of its own, and the least command takes longer.
const TRANSLATED_PATIENCE: Duration = Duration::from_millis(6);

fn ends_of_children() -> libc::sigset_t {
    // SAFETY: the set is initialised before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        set
    }
}

/// The wait status of a child that ends in time, and what it used; None when it goes on.
fn end_within(pid: i32, patience: Duration) -> Option<(i32, libc::rusage)> {
    let ends = ends_of_children();
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let limit = libc::timespec { tv_sec: 0, tv_nsec: libc::c_long::from(left.subsec_nanos()) };
        let mut status = 0;
        // SAFETY: plain waits. The signal may be of an earlier child, so that only the second wait tells.
        let (signalled, ended, used) = unsafe {
            let mut used: libc::rusage = std::mem::zeroed();
            let signalled = libc::sigtimedwait(&ends, ptr::null_mut(), &limit) > 0;
            (signalled, libc::wait4(pid, &mut status, libc::WNOHANG | libc::__WALL, &mut used), used)
        };
        if ended == pid {
            return Some((status, used));
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
