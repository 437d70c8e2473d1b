//! Commands: what is asked of them, and what is told.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TtySize {
    pub cols: u16,
    pub rows: u16,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecStart {
    pub exec_id: String,
    pub command: String,
    #[serde(default)]
    pub args: Vec<String>,
    pub argv: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub user: Option<String>,
    #[serde(default)]
    pub tty: Option<TtySize>,
    #[serde(default)]
    pub stdin: bool,
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub detached: bool,
    pub tag: Option<String>,
    #[serde(default)]
    pub follow: bool,
    #[serde(default)]
    pub lossless: bool,
    /// Only for agents with the feature `limits`.
    pub limits: Option<ExecLimits>,
    /// The name of the input that comes on this connection. Only for agents with the feature `input`.
    pub input: Option<String>,
    /// So many bytes of input will come, and then its end: until then the record tells them. Only for agents with the feature
    /// `input_bytes`.
    pub input_bytes: Option<u64>,
    /// The follower acknowledges output. Only for agents with the feature `output_ack`.
    #[serde(default)]
    pub acks: bool,
}

/// What a command may use; one that uses more is ended with reason `limit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecLimits {
    /// Processor time of all its processes, milliseconds.
    pub cpu_ms: Option<u64>,
    /// Bytes of both output streams.
    pub output_bytes: Option<u64>,
    /// It starts in the control group that `exec.group` lent to its id. Only for agents with the feature `exec_group`.
    #[serde(default)]
    pub own_group: bool,
}

/// Lends a control group to the command that is started next with this id. Its open files come on the connection before
/// the end of the request: `join` of those to join it by, then those that count its memory kills, then those that tell
/// whether its own limit of memory was met: with v2 `memory.events`, with v1 the most that was used, and the limit.
///
/// Agents with the feature `own_groups` make the group themselves when limits come in place of descriptors.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecGroup {
    pub exec_id: String,
    #[serde(default)]
    pub join: usize,
    #[serde(default)]
    pub kills: usize,
    pub memory_bytes: Option<u64>,
    pub pids: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecAttach {
    pub exec_id: String,
    pub from: Option<u64>,
    #[serde(default)]
    pub follow: bool,
    #[serde(default)]
    pub lossless: bool,
    #[serde(default)]
    pub keep_grace: bool,
    /// The name of the input that comes on this connection. Only for agents with the feature `input`.
    pub input: Option<String>,
    /// The follower acknowledges output. Only for agents with the feature `output_ack`.
    #[serde(default)]
    pub acks: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecStdin {
    pub exec_id: String,
    /// The name of this input: what was taken of it before is skipped. Only for agents with the feature `input`.
    pub input: Option<String>,
    /// It may have been sent before.
    #[serde(default)]
    pub again: bool,
    /// Of the first byte that is sent, in the input; the first one's when left out. Only for agents with the feature `input_offset`.
    pub offset: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecGet {
    pub exec_id: String,
    /// An input whose `input_taken` is wanted. Only for agents with the feature `input_offset`.
    pub input: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecName {
    pub exec_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListExecs {
    /// The `next` of an earlier reply.
    pub after: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecResize {
    pub exec_id: String,
    pub cols: u16,
    pub rows: u16,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSignal {
    pub exec_id: String,
    pub signal: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KillReason {
    Cancelled,
    Timeout,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecKill {
    pub exec_id: String,
    pub reason: KillReason,
    /// It is killed because so many bytes of its input will not come. Only for agents with the feature `input_bytes`.
    pub input_lost: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecGrace {
    pub exec_id: String,
    pub grace_ms: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Started {
    pub exec_id: String,
    pub pid: i32,
    pub started_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecState {
    Running,
    Exited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExitReason {
    Exited,
    Signaled,
    Timeout,
    Cancelled,
    Oom,
    Lost,
    Limit,
}

impl ExitReason {
    /// As it is spelled on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Signaled => "signaled",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Oom => "oom",
            Self::Lost => "lost",
            Self::Limit => "limit",
        }
    }
}

/// Which of its limits a command exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitName {
    CpuTime,
    OutputBytes,
    MemoryMb,
}

/// What a command's first process used, and all that had ended before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub cpu_ms: u64,
    /// The most that one process had in memory at a time.
    pub max_memory_bytes: u64,
}

/// An exec as `exec.get`, `exec.list`, `exec.kill` and `exec.attach` tell it; `from` only in the reply of
/// an attach, `input_taken` there and in that of a get.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExecRecord {
    pub exec_id: String,
    pub pid: i32,
    pub state: ExecState,
    pub command: String,
    pub args: Vec<String>,
    pub tty: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    pub detached: bool,
    pub started_at: u64,
    pub output_bytes: u64,
    pub first_offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<ExitReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Processes of the sandbox that were killed for memory while it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// Bytes taken of the input that an attach or a get names; none when that is not known any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_taken: Option<u64>,
    /// What was promised of its input when it was started, while the end of that has not come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_bytes: Option<u64>,
    /// It was killed because so many bytes of its input were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_lost: Option<u64>,
}

/// A batch of records; `next` when there are more.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExecList {
    pub execs: Vec<ExecRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExitEvent {
    pub exec_id: String,
    pub exit_code: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    pub reason: ExitReason,
    pub started_at: u64,
    pub ended_at: u64,
    pub duration_ms: u64,
    pub output_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Processes of the sandbox that were killed for memory while it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// It was killed because so many bytes of its input were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_lost: Option<u64>,
}
