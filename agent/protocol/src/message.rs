//! The JSON payloads. Requests refuse unknown fields; replies and events may grow.

use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// Tells a field that was left out (`None`) from one that was given as null (`Some(None)`).
fn given<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    pub versions: Vec<u32>,
    pub token: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Welcome {
    pub version: u32,
    pub agent: String,
    pub features: Vec<String>,
}

/// Everything a client can ask for.
#[derive(Debug, Deserialize)]
#[serde(tag = "op")]
pub enum Request {
    #[serde(rename = "sandbox.configure")]
    SandboxConfigure(Configure),
    #[serde(rename = "sandbox.info")]
    SandboxInfo(Nothing),
    #[serde(rename = "sandbox.expiry")]
    SandboxExpiry(Expiry),
    #[serde(rename = "sandbox.stats")]
    SandboxStats(Nothing),
    #[serde(rename = "sandbox.events")]
    SandboxEvents(Nothing),
    #[serde(rename = "sandbox.shutdown")]
    SandboxShutdown(Nothing),
    #[serde(rename = "exec.start")]
    ExecStart(Box<ExecStart>),
    #[serde(rename = "exec.group")]
    ExecGroup(ExecGroup),
    #[serde(rename = "exec.attach")]
    ExecAttach(ExecAttach),
    #[serde(rename = "exec.get")]
    ExecGet(ExecName),
    #[serde(rename = "exec.list")]
    ExecList(ListExecs),
    #[serde(rename = "exec.stdin")]
    ExecStdin(ExecStdin),
    #[serde(rename = "exec.stdin_close")]
    ExecStdinClose(ExecName),
    #[serde(rename = "exec.resize")]
    ExecResize(ExecResize),
    #[serde(rename = "exec.signal")]
    ExecSignal(ExecSignal),
    #[serde(rename = "exec.kill")]
    ExecKill(ExecKill),
    #[serde(rename = "exec.grace")]
    ExecGrace(ExecGrace),
    #[serde(rename = "file.stat")]
    FileStat(FileStat),
    #[serde(rename = "file.list")]
    FileList(FileList),
    #[serde(rename = "file.read")]
    FileRead(FileRead),
    #[serde(rename = "file.write")]
    FileWrite(FileWrite),
    #[serde(rename = "file.mkdir")]
    FileMkdir(FileMkdir),
    #[serde(rename = "file.move")]
    FileMove(FileMove),
    #[serde(rename = "file.remove")]
    FileRemove(FileRemove),
    #[serde(rename = "file.chmod")]
    FileChmod(FileChmod),
    #[serde(rename = "file.glob")]
    FileGlob(FileGlob),
    #[serde(rename = "file.archive")]
    FileArchive(FileArchive),
    #[serde(rename = "file.unpack")]
    FileUnpack(FileUnpack),
    #[serde(rename = "file.watch")]
    FileWatch(FileWatch),
    #[serde(rename = "port.dial")]
    PortDial(PortDial),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configure {
    pub sandbox_id: String,
    pub token: String,
    pub hostname: Option<String>,
    pub env: Option<BTreeMap<String, String>>,
    pub user: Option<String>,
    pub workdir: Option<String>,
    #[serde(default, deserialize_with = "given")]
    pub expires_in_ms: Option<Option<u64>>,
    pub exec_caps: Option<Vec<String>>,
    pub ring_bytes: Option<u64>,
    pub journals_bytes: Option<u64>,
    pub entropy: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expiry {
    pub expires_in_ms: Option<u64>,
}

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
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecGroup {
    pub exec_id: String,
    pub join: usize,
    pub kills: usize,
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
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecGrace {
    pub exec_id: String,
    pub grace_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileStat {
    pub path: String,
    #[serde(default)]
    pub follow: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileList {
    pub path: String,
    pub depth: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRead {
    pub path: String,
    pub offset: Option<u64>,
    pub length: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileWrite {
    pub path: String,
    pub mode: Option<u32>,
    pub user: Option<String>,
    pub size: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileMkdir {
    pub path: String,
    pub mode: Option<u32>,
    pub user: Option<String>,
    #[serde(default)]
    pub parents: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileMove {
    pub from: String,
    pub to: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRemove {
    pub path: String,
    #[serde(default)]
    pub recursive: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileChmod {
    pub path: String,
    pub mode: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileGlob {
    pub pattern: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileArchive {
    pub path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileUnpack {
    pub path: String,
    pub user: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileWatch {
    pub path: String,
    #[serde(default)]
    pub recursive: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortDial {
    pub port: u16,
    pub host: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Info {
    pub version: String,
    pub agent: String,
    pub pid: i32,
    pub uptime_ms: u64,
    pub sandbox_id: Option<String>,
    pub execs_running: usize,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_usage_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids_limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_limit_bytes: Option<u64>,
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

/// An exec as `exec.get`, `exec.list`, `exec.kill` and `exec.attach` tell it; `from` and `input_taken` only in the reply of
/// an attach.
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
    /// Bytes taken of the input that an attach names; none when that is not known any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_taken: Option<u64>,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileType {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
    Unknown,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileInfo {
    pub name: String,
    pub path: String,
    #[serde(rename = "type")]
    pub kind: FileType,
    pub size: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeType {
    Create,
    Write,
    Remove,
    Rename,
    Chmod,
    Overflow,
}

/// Payload of every `event` frame.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    Exit(ExitEvent),
    /// Of the named input on this connection so many bytes were taken so far, over all its connections.
    Input {
        taken: u64,
    },
    Entries {
        entries: Vec<FileInfo>,
    },
    Paths {
        paths: Vec<String>,
    },
    Change {
        #[serde(rename = "type")]
        change: ChangeType,
        path: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Request, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn unknown_fields_and_operations_are_refused() {
        assert!(parse(r#"{"op":"sandbox.info"}"#).is_ok());
        assert!(parse(r#"{"op":"sandbox.info","x":1}"#).is_err());
        assert!(parse(r#"{"op":"sandbox.other"}"#).is_err());
        assert!(parse(r#"{"op":"file.stat","path":"/","follow":true}"#).is_ok());
        assert!(parse(r#"{"op":"file.stat","path":"/","folow":true}"#).is_err());
        assert!(
            parse(r#"{"op":"exec.start","exec_id":"e","command":"x","argv":["x"],"tty":{"cols":1,"rows":2,"z":3}}"#)
                .is_err()
        );
        assert!(serde_json::from_str::<Hello>(r#"{"versions":[1],"token":"t","more":1}"#).is_err());
    }

    #[test]
    fn an_expiry_given_as_null_differs_from_none_given() {
        let configure = |text: &str| match parse(text) {
            Ok(Request::SandboxConfigure(configure)) => configure.expires_in_ms,
            other => panic!("{other:?}"),
        };
        assert_eq!(configure(r#"{"op":"sandbox.configure","sandbox_id":"a","token":"t"}"#), None);
        assert_eq!(
            configure(r#"{"op":"sandbox.configure","sandbox_id":"a","token":"t","expires_in_ms":null}"#),
            Some(None)
        );
        assert_eq!(
            configure(r#"{"op":"sandbox.configure","sandbox_id":"a","token":"t","expires_in_ms":5}"#),
            Some(Some(5))
        );
    }
}
