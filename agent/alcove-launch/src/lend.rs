//! Hands open files of a control group to the agent of a sandbox, which cannot reach the group itself:
//! `docs/agent-protocol.md`, `exec.group`.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::{AtStep, Result, StepError};
use crate::spec::LendSpec;
use crate::sys;

const STEP: &str = "lend";
const PATIENCE: Duration = Duration::from_secs(10);
const MOST: usize = 8;
const LONGEST_FRAME: usize = 64 * 1024;
const HELLO: u8 = 0x01;
const REQUEST: u8 = 0x03;
const REPLY: u8 = 0x04;
const ERROR: u8 = 0x05;

pub fn lend(spec: &LendSpec) -> Result<()> {
    let mut files: Vec<OwnedFd> = Vec::new();
    for path in &spec.join {
        files.push(OpenOptions::new().write(true).open(path).at(STEP, path)?.into());
    }
    for path in spec.kills.iter().chain(&spec.met) {
        files.push(OpenOptions::new().read(true).open(path).at(STEP, path)?.into());
    }
    if files.len() > MOST {
        return Err(StepError::new(STEP, "more files than can be handed over"));
    }
    // The path from the root may be longer than an address.
    std::env::set_current_dir(&spec.dir).at(STEP, &spec.dir)?;
    let mut agent = UnixStream::connect("agent.sock").at(STEP, "agent.sock")?;
    agent.set_read_timeout(Some(PATIENCE)).at(STEP, "agent.sock")?;
    agent.set_write_timeout(Some(PATIENCE)).at(STEP, "agent.sock")?;
    let mut bytes = frame(HELLO, &json!({"versions": [1], "token": spec.token}));
    bytes.extend(frame(REQUEST, &request(&spec.exec_id, spec.join.len(), spec.kills.len())));
    let numbers: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let sent = sys::send_with(agent.as_raw_fd(), &bytes, &numbers).at(STEP, "agent.sock")?;
    sys::write_all(agent.as_raw_fd(), &bytes[sent..]).at(STEP, "agent.sock")?;
    loop {
        match receive(&mut agent)? {
            (REPLY, _) => return Ok(()),
            (ERROR, text) => return Err(StepError::new(STEP, String::from_utf8_lossy(&text))),
            _ => {}
        }
    }
}

fn request(exec_id: &str, join: usize, kills: usize) -> Value {
    json!({"op": "exec.group", "exec_id": exec_id, "join": join, "kills": kills})
}

fn frame(kind: u8, message: &Value) -> Vec<u8> {
    let payload = message.to_string();
    let mut frame = (payload.len() as u32).to_be_bytes().to_vec();
    frame.push(kind);
    frame.extend_from_slice(payload.as_bytes());
    frame
}

fn receive(agent: &mut UnixStream) -> Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    agent.read_exact(&mut head).at(STEP, "the agent's answer")?;
    let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
    if length > LONGEST_FRAME {
        return Err(StepError::new(STEP, "the agent's answer is too long"));
    }
    let mut payload = vec![0; length];
    agent.read_exact(&mut payload).at(STEP, "the agent's answer")?;
    Ok((head[4], payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_asked_as_the_fixtures_say() {
        let text = include_str!("../../fixtures/operations.json");
        let fixtures: Value = serde_json::from_str(text).expect("JSON");
        let all = fixtures["operations"].as_array().expect("a list");
        let ours: Vec<&Value> = all.iter().filter(|one| one["from"] == "launcher").map(|one| &one["request"]).collect();
        assert_eq!(ours, [&request("ex-abc123def456", 3, 1)]);
    }
}
