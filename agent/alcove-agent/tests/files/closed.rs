//! The folder of the agent's own socket.

use crate::support::{self, Client, Folder, TestAgent, error_code, eventually, is_root};
use crate::{tar_of, write};
use serde_json::json;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;

const OWNER: u32 = 1_879_000_001;

/// An agent that made its own socket in `run`, which is closed.
fn start() -> TestAgent {
    let folder = Folder::new();
    let run = folder.0.join("run");
    std::fs::create_dir(&run).expect("made");
    std::fs::set_permissions(&run, Permissions::from_mode(0o700)).expect("closed");
    std::os::unix::fs::chown(&run, Some(OWNER), Some(OWNER)).expect("given");
    let socket = run.join("agent.sock");
    let child = Command::new(support::binary())
        .args(["serve", "--close-folder", "--socket"])
        .arg(&socket)
        .spawn()
        .expect("the agent starts");
    let agent = TestAgent { child, folder, socket };
    eventually("the socket is there", || agent.socket.exists());
    agent.configure(json!({}));
    agent
}

#[test]
fn nothing_that_is_asked_for_reaches_the_folder_of_the_socket() {
    if !is_root() {
        eprintln!("SKIPPED: the folder can only be another user's as root");
        return;
    }
    let agent = start();
    let mut client = agent.client();
    let at = |name: &str| agent.path(name);
    write(&mut client, &at("ws/f"), b"1");
    symlink(at("run"), at("ws/link")).expect("a link");
    symlink(at("run/new"), at("ws/dangling")).expect("a link");
    let mut refused = |request: serde_json::Value, data: &[u8]| {
        let frames = client.run_with(&request, data);
        assert_eq!(error_code(&frames), "permission", "{request}");
    };
    for path in [at("run/f"), at("run/d/f"), at("ws/link/f"), at("ws/../run/f"), at("ws/dangling")] {
        refused(json!({"op": "file.write", "path": path}), b"x");
        refused(json!({"op": "file.write", "path": path, "user": "1000"}), b"x");
    }
    let archive = tar_of(&[("run/f", tar::EntryType::Regular, "x")]);
    refused(json!({"op": "file.unpack", "path": at("")}), &archive);
    refused(json!({"op": "file.unpack", "path": at("run")}), &tar_of(&[("f", tar::EntryType::Regular, "x")]));
    for name in ["run", "run/"] {
        refused(json!({"op": "file.unpack", "path": at("")}), &tar_of(&[(name, tar::EntryType::Directory, "")]));
    }
    let mut refused = |request: serde_json::Value| {
        let frames = client.run(&request);
        assert_eq!(error_code(&frames), "permission", "{request}");
    };
    for path in [at("run/d"), at("run/d/d")] {
        refused(json!({"op": "file.mkdir", "path": path, "parents": true}));
    }
    refused(json!({"op": "file.chmod", "path": at("run"), "mode": 0o777}));
    refused(json!({"op": "file.move", "from": at("ws/f"), "to": at("run/f")}));
    refused(json!({"op": "file.move", "from": at("run/agent.sock"), "to": at("ws/s")}));
    refused(json!({"op": "file.remove", "path": at("run/agent.sock")}));
    refused(json!({"op": "file.remove", "path": at("run"), "recursive": true}));
    refused(json!({"op": "file.list", "path": at("run")}));
    let names: Vec<_> = std::fs::read_dir(at("run")).expect("read").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["agent.sock"]);
    let folder = std::fs::metadata(at("run")).expect("read");
    assert_eq!((folder.uid(), folder.permissions().mode() & 0o7777), (OWNER, 0o700));
}

#[test]
fn nobody_runs_as_the_owner_of_the_folder_of_the_socket() {
    if !is_root() {
        eprintln!("SKIPPED: the folder can only be another user's as root");
        return;
    }
    let agent = start();
    let mut client: Client = agent.client();
    for user in ["1879000001", "01879000001", "1879000001:0"] {
        let frames = client.run(&support::exec_request("ex-1", &["/bin/true"], json!({"user": user})));
        assert_eq!(error_code(&frames), "bad_request", "{user}");
        let path = agent.path("ws/own");
        let frames = client.run_with(&json!({"op": "file.write", "path": path, "user": user}), b"1");
        assert_eq!(error_code(&frames), "bad_request", "{user}");
    }
    assert_eq!(client.exec("ex-2", &["/bin/true"], json!({"user": "1000"})).code(), 0);
}
