//! One exec: its record, its output, its standard input, and who waits for what. The agent drives it.
//!
//! States: `Starting` until the monitor has told whether the program runs, then `Running`; `Dying` when it was killed and
//! its first process is gone before the rest of its tree; `Draining` when a terminal's last output is awaited after the end;
//! then `Ended`, for good. What it left running in the background still belongs to it: `monitor` stays set until nothing is
//! left.

use crate::inputs::Inputs;
use crate::journal::Journal;
use crate::own_group::OwnGroup;
use crate::slab::Key;
use crate::timers::TimerId;
use alcove_protocol::{ExecLimits, ExecRecord, ExecState, ExitEvent, ExitReason, LimitName, Usage};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Most standard input that is on its way to a command.
pub const MAX_STDIN: usize = 1 << 20;

/// An end of a pipe, or the terminal, that the command writes to.
pub struct Output {
    pub fd: OwnedFd,
    /// Whether epoll watches it; not while a lossless reader is behind.
    pub watched: bool,
    /// Whether the pipe was made larger, after it was found full.
    pub enlarged: bool,
    /// A terminal that nobody inside has open at the moment.
    pub deserted: bool,
}

/// The way into the command.
#[derive(Default)]
pub struct Stdin {
    pub fd: Option<OwnedFd>,
    pub queue: VecDeque<u8>,
    /// No more is taken; the descriptor is closed once the queue is empty.
    pub closing: bool,
    pub watched: bool,
}

impl Stdin {
    pub fn open(&self) -> bool {
        self.fd.is_some() && !self.closing
    }

    pub fn room(&self) -> usize {
        MAX_STDIN.saturating_sub(self.queue.len())
    }
}

#[derive(Clone, Debug)]
pub struct Ending {
    pub ended_at: u64,
    pub exit_code: i32,
    pub signal: Option<String>,
    pub reason: ExitReason,
    pub duration_ms: u64,
    pub start_error: Option<String>,
    pub usage: Option<Usage>,
    /// Memory kills in the sandbox while the command ran.
    pub oom_kills: u64,
}

/// Most bytes of its command line that a record keeps.
const MAX_COMMAND_LINE: usize = 32 * 1024;

/// What a record keeps of a command line: a long one is cut, and ends in an ellipsis then.
pub fn remembered(mut command: String, args: Vec<String>) -> (String, Vec<String>) {
    let mut left = MAX_COMMAND_LINE;
    let mut cut = shorten(&mut command, &mut left);
    let mut kept = Vec::new();
    for mut arg in args {
        if cut {
            break;
        }
        cut = shorten(&mut arg, &mut left);
        kept.push(arg);
    }
    (command, kept)
}

/// Takes what `text` needs off `left`. Returns whether it had to be cut.
fn shorten(text: &mut String, left: &mut usize) -> bool {
    // An empty argument takes memory too.
    const EACH: usize = 24;
    if text.len() + EACH <= *left {
        *left -= text.len() + EACH;
        return false;
    }
    let end = (0..=*left).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.truncate(end);
    text.push('…');
    text.shrink_to_fit();
    *left = 0;
    true
}

/// Nobody follows the command: it is killed when that lasts.
pub struct Grace {
    pub timer: TimerId,
    pub length_ms: u64,
}

pub enum Phase {
    Starting,
    Running,
    Dying(Ending),
    Draining(Ending),
    Ended(Ending),
}

pub struct Exec {
    pub sequence: u64,
    pub id: String,
    pub command: String,
    pub args: Vec<String>,
    pub program: String,
    pub cwd: String,
    pub tty: bool,
    pub tag: Option<String>,
    pub detached: bool,
    pub timeout_ms: Option<u64>,
    pub started_at: u64,
    pub started_boot: u64,
    pub pid: i32,
    pub phase: Phase,
    pub journal: Journal,
    pub stdout: Option<Output>,
    pub stderr: Option<Output>,
    pub stdin: Stdin,
    pub inputs: Inputs,
    /// What was promised of its standard input.
    pub input_bytes: Option<u64>,
    pub monitor: Option<Key>,
    /// The connection whose `exec.start` waits for its reply.
    pub starter: Option<Key>,
    pub followers: Vec<Key>,
    pub stdin_writers: Vec<Key>,
    pub kill_waiters: Vec<Key>,
    /// From where on output is kept although nobody follows: the last lossless reader left, and is expected back.
    pub unread_from: Option<u64>,
    /// Why the tree was killed; the first cause stays.
    pub killed: Option<ExitReason>,
    /// It was killed for what is missing of its input.
    pub input_lost: Option<u64>,
    pub limits: ExecLimits,
    /// The limit that was exceeded first.
    pub exceeded: Option<LimitName>,
    /// It wrote more than it may; that is not in the journal.
    pub excess: bool,
    /// Processor time that its monitor's earlier commands used, in ticks.
    pub ticks_before: u64,
    pub cpu_timer: Option<TimerId>,
    /// Its tree is being killed.
    pub dying: bool,
    /// Runs while a kill waits for its first process, then for the rest of its tree.
    pub survivors: Option<TimerId>,
    pub timeout: Option<TimerId>,
    pub grace: Option<Grace>,
    pub drain: Option<TimerId>,
    /// Memory kills counted when it started.
    pub oom_before: u64,
    /// Until it has ended.
    pub group: Option<OwnGroup>,
}

impl Exec {
    /// What its texts take.
    pub fn text_bytes(&self) -> usize {
        let args: usize = self.args.iter().map(|arg| arg.len() + size_of::<String>()).sum();
        let error = self.ending().and_then(|ending| ending.start_error.as_ref()).map_or(0, String::len);
        self.id.len() + self.command.len() + args + self.tag.as_ref().map_or(0, String::len) + error
    }

    pub fn ending(&self) -> Option<&Ending> {
        match &self.phase {
            Phase::Ended(ending) => Some(ending),
            _ => None,
        }
    }

    pub fn ended(&self) -> bool {
        self.ending().is_some()
    }

    /// Which limit it exceeded that no kill was for.
    pub fn over_limit(&self, ending: &Ending) -> Option<LimitName> {
        let by_itself = matches!(ending.reason, ExitReason::Exited | ExitReason::Signaled | ExitReason::Oom);
        if by_itself && self.group.as_ref().is_some_and(OwnGroup::exceeded) {
            return Some(LimitName::MemoryMb);
        }
        if !matches!(ending.reason, ExitReason::Exited | ExitReason::Signaled) {
            return None;
        }
        let used = ending.usage.map_or(0, |usage| usage.cpu_ms);
        if self.excess {
            Some(LimitName::OutputBytes)
        } else if self.limits.cpu_ms.is_some_and(|limit| used > limit) {
            Some(LimitName::CpuTime)
        } else {
            None
        }
    }

    fn exceeded_in(&self, ending: &Ending) -> Option<LimitName> {
        self.exceeded.filter(|_| ending.reason == ExitReason::Limit)
    }

    fn input_lost_in(&self, ending: &Ending) -> Option<u64> {
        self.input_lost.filter(|_| ending.reason == ExitReason::Cancelled)
    }

    pub fn record(&self, from: Option<u64>) -> ExecRecord {
        let ending = self.ending();
        ExecRecord {
            exec_id: self.id.clone(),
            pid: self.pid,
            state: if ending.is_some() { ExecState::Exited } else { ExecState::Running },
            command: self.command.clone(),
            args: self.args.clone(),
            tty: self.tty,
            tag: self.tag.clone(),
            detached: self.detached,
            started_at: self.started_at,
            output_bytes: self.journal.end(),
            first_offset: self.journal.start(),
            ended_at: ending.map(|ending| ending.ended_at),
            exit_code: ending.map(|ending| ending.exit_code),
            signal: ending.and_then(|ending| ending.signal.clone()),
            reason: ending.map(|ending| ending.reason),
            duration_ms: ending.map(|ending| ending.duration_ms),
            start_error: ending.and_then(|ending| ending.start_error.clone()),
            limit: ending.and_then(|ending| self.exceeded_in(ending)),
            usage: ending.and_then(|ending| ending.usage),
            oom_kills: ending.map(|ending| ending.oom_kills).filter(|count| *count > 0),
            from,
            input_taken: None,
            input_bytes: self.input_bytes.filter(|_| ending.is_none() && self.stdin.open()),
            input_lost: ending.and_then(|ending| self.input_lost_in(ending)),
        }
    }

    pub fn exit_event(&self) -> Option<ExitEvent> {
        let ending = self.ending()?;
        Some(ExitEvent {
            exec_id: self.id.clone(),
            exit_code: ending.exit_code,
            signal: ending.signal.clone(),
            reason: ending.reason,
            started_at: self.started_at,
            ended_at: ending.ended_at,
            duration_ms: ending.duration_ms,
            output_bytes: self.journal.end(),
            start_error: ending.start_error.clone(),
            limit: self.exceeded_in(ending),
            usage: ending.usage,
            oom_kills: Some(ending.oom_kills).filter(|count| *count > 0),
            input_lost: self.input_lost_in(ending),
        })
    }
}

/// The name of a signal, as `SIGTERM`.
pub fn signal_name(number: i32) -> String {
    const NAMES: [&str; 32] = [
        "", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(number).ok().and_then(|index| NAMES.get(index)).filter(|name| !name.is_empty()) {
        Some(name) => format!("SIG{name}"),
        None if number >= 34 => format!("SIGRTMIN+{}", number - 34),
        None => format!("SIG{number}"),
    }
}
