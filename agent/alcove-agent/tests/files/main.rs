//! Files: reading, writing, changing, listing, archives and watches.

#[path = "../support/mod.rs"]
mod support;

mod archives;
mod closed;
mod contents;
mod deep;
mod directories;
mod mount;
mod users;
mod watches;

use alcove_protocol::Kind;
use serde_json::{Value, json};
use support::{Client, Frame};

fn data(frames: &[Frame]) -> Vec<u8> {
    frames.iter().filter(|(kind, _)| *kind == Kind::Data).flat_map(|(_, payload)| payload.clone()).collect()
}

fn entries(frames: &[Frame], field: &str) -> Vec<Value> {
    assert_eq!(frames.last().map(|frame| frame.0), Some(Kind::End), "{frames:?}");
    frames
        .iter()
        .filter(|(kind, _)| *kind == Kind::Event)
        .flat_map(|(_, payload)| {
            let event: Value = serde_json::from_slice(payload).expect("JSON");
            event[field].as_array().expect("a list").clone()
        })
        .collect()
}

fn reply(frames: &[Frame]) -> Value {
    match frames.first() {
        Some((Kind::Reply, payload)) => serde_json::from_slice(payload).expect("JSON"),
        other => panic!("no reply: {other:?}"),
    }
}

fn write(client: &mut Client, path: &str, bytes: &[u8]) -> Value {
    reply(&client.run_with(&json!({"op": "file.write", "path": path}), bytes))
}

/// A tar with one entry whose name is taken as it is.
fn tar_of(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        let links = matches!(kind, tar::EntryType::Symlink | tar::EntryType::Link);
        if links {
            header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
        }
        header.set_size(if links { 0 } else { content.len() as u64 });
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        if !links {
            bytes.extend_from_slice(content.as_bytes());
            bytes.resize(bytes.len().div_ceil(512) * 512, 0);
        }
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}
