//! The JSON payloads. Requests refuse unknown fields; replies and events may grow.

use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

mod execs;
mod files;

pub use execs::*;
pub use files::*;

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
    /// Only for agents with the feature `renew`.
    #[serde(rename = "sandbox.renew")]
    SandboxRenew(Renew),
    #[serde(rename = "exec.start")]
    ExecStart(Box<ExecStart>),
    #[serde(rename = "exec.group")]
    ExecGroup(ExecGroup),
    #[serde(rename = "exec.attach")]
    ExecAttach(ExecAttach),
    #[serde(rename = "exec.get")]
    ExecGet(ExecGet),
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// Milliseconds since 1970 UTC.
    pub realtime: u64,
    /// Hexadecimal digits of 32 to 256 secret bytes.
    pub entropy: String,
    pub hostname: Option<String>,
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
