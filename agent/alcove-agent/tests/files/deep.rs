//! Directories deeper than any path, and moves.

use crate::mount::Mount;
use crate::support::{self, TestAgent, is_root};
use crate::{data, entries, reply, write};
use alcove_protocol::Kind;
use serde_json::json;
use std::ffi::CString;

/// A directory some levels deep, deeper than any path can say, with a file and a symlink in the innermost one.
fn lay_out_deep(root: &str, levels: usize) {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    std::fs::create_dir(root).expect("made");
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let root = CString::new(root).expect("a name");
    // SAFETY: C strings, and descriptors that are owned as soon as they are opened.
    unsafe {
        let mut dir = OwnedFd::from_raw_fd(libc::open(root.as_ptr(), flags));
        for _ in 0..levels {
            assert_eq!(libc::mkdirat(dir.as_raw_fd(), c"d".as_ptr(), 0o755), 0);
            dir = OwnedFd::from_raw_fd(libc::openat(dir.as_raw_fd(), c"d".as_ptr(), flags));
            assert!(dir.as_raw_fd() >= 0);
        }
        assert_eq!(libc::symlinkat(c"file".as_ptr(), dir.as_raw_fd(), c"link".as_ptr()), 0);
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC;
        let file = OwnedFd::from_raw_fd(libc::openat(dir.as_raw_fd(), c"file".as_ptr(), flags, 0o644));
        assert_eq!(libc::write(file.as_raw_fd(), c"deep".as_ptr().cast(), 4), 4);
    }
}

const DEEP: usize = 2_200;

#[test]
fn every_operation_survives_a_directory_deeper_than_any_path() {
    // Far fewer descriptors than levels: a walk may not hold all of its way open.
    let mut limited = std::process::Command::new("/bin/sh");
    limited.args(["-c", "ulimit -n 100 && exec \"$@\"", "sh", support::binary()]);
    let agent = TestAgent::launch(limited, &[]);
    agent.configure(json!({}));
    let mut client = agent.client();
    let ws = agent.path("ws");
    let deep = format!("{ws}/deep");
    lay_out_deep(&deep, DEEP);

    let archive = data(&client.run(&json!({"op": "file.archive", "path": deep})));
    let names: Vec<usize> = tar::Archive::new(&archive[..])
        .entries()
        .expect("a tar")
        .map(|entry| entry.expect("an entry").path_bytes().iter().filter(|byte| **byte == b'/').count())
        .collect();
    // Every directory's name ends in a slash; the two names in the last one follow.
    assert_eq!(names, (1..=DEEP).chain([DEEP, DEEP]).collect::<Vec<_>>());

    // What has a path is found; what is deeper is left out.
    let list = entries(&client.run(&json!({"op": "file.list", "path": deep, "depth": 1_000_000})), "entries");
    let expected = (4095 - deep.len()) / 2;
    assert_eq!(list.len(), expected);
    let found = entries(&client.run(&json!({"op": "file.glob", "pattern": format!("{deep}/**")})), "paths");
    assert_eq!(found.len(), expected);
    let found = entries(&client.run(&json!({"op": "file.glob", "pattern": format!("{deep}/**/**/d/**/d")})), "paths");
    assert_eq!(found.len(), expected - 1);
    let innermost = list[expected - 1]["path"].as_str().expect("a path");
    assert_eq!(client.ask(&json!({"op": "file.stat", "path": innermost}))["type"], "dir");
    client.ask(&json!({"op": "file.chmod", "path": innermost, "mode": 0o700}));
    client.ask(&json!({"op": "file.mkdir", "path": &innermost[..innermost.len() - 2], "parents": true}));
    let place = &innermost[..innermost.len() - 8];
    write(&mut client, &format!("{place}/new"), b"new");
    assert_eq!(data(&client.run(&json!({"op": "file.read", "path": format!("{place}/new")}))), b"new");
    client.ask(&json!({"op": "file.remove", "path": format!("{place}/new")}));

    let mut watcher = agent.client();
    watcher.request(&json!({"op": "file.watch", "path": deep, "recursive": true}));
    assert_eq!(watcher.receive().expect("reply").0, Kind::Reply);
    drop(watcher);

    let frames = client.run_with(&json!({"op": "file.unpack", "path": format!("{ws}/copy")}), &archive);
    assert_eq!(reply(&frames)["entries"], DEEP + 2);
    let again = data(&client.run(&json!({"op": "file.archive", "path": format!("{ws}/copy")})));
    assert!(again.len() == archive.len());
    client.ask(&json!({"op": "file.move", "from": deep, "to": format!("{ws}/moved")}));
    for name in ["moved", "copy"] {
        client.ask(&json!({"op": "file.remove", "path": format!("{ws}/{name}"), "recursive": true}));
    }
    assert_eq!(std::fs::read_dir(&ws).expect("list").count(), 0);
}

#[test]
fn a_deep_directory_moves_to_another_file_system() {
    if !is_root() {
        eprintln!("SKIPPED: another file system can only be mounted as root");
        return;
    }
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    let mount = Mount::tmpfs(&agent.path("ws/other"), c"size=64m");
    lay_out_deep(&format!("{ws}/deep"), DEEP);
    let before = data(&client.run(&json!({"op": "file.archive", "path": format!("{ws}/deep")})));
    client.ask(&json!({"op": "file.move", "from": format!("{ws}/deep"), "to": format!("{ws}/other/deep")}));
    let after = data(&client.run(&json!({"op": "file.archive", "path": format!("{ws}/other/deep")})));
    // Owners, modes and times are the same as well.
    assert!(before == after && !before.is_empty());
    assert_eq!(std::fs::read_dir(&ws).expect("list").count(), 1);
    drop(mount);
}

#[test]
fn a_move_that_fails_leaves_what_was_there() {
    if !is_root() {
        eprintln!("SKIPPED: other file systems can only be mounted as root");
        return;
    }
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    let at = |name: &str| format!("{ws}/{name}");
    let _small = Mount::tmpfs(&at("small"), c"size=64k");
    for (from, bytes) in [("big", 300_000), ("tree/inner/big", 300_000), ("file", 4)] {
        write(&mut client, &at(from), &vec![b'n'; bytes]);
    }
    write(&mut client, &at("small/target"), b"before");
    write(&mut client, &at("small/full/f"), b"before");
    std::fs::create_dir(at("small/empty")).expect("made");
    let mut refused = |from: &str, to: &str, code: &str| {
        assert_eq!(client.refusal(&json!({"op": "file.move", "from": at(from), "to": at(to)})), code, "{from} to {to}");
        assert!(std::fs::symlink_metadata(at(from)).is_ok(), "{from}");
        assert_eq!(std::fs::read(at("small/target")).expect("read"), b"before");
        assert_eq!(std::fs::read(at("small/full/f")).expect("read"), b"before");
        assert_eq!(std::fs::read_dir(at("small")).expect("list").count(), 3, "{from} to {to}");
    };
    refused("big", "small/target", "no_space");
    refused("tree", "small/empty", "no_space");
    refused("tree", "small/full", "not_empty");
    refused("tree", "small/target", "not_directory");
    refused("file", "small/full", "is_directory");
    // A source that cannot be removed is not moved either, and costs the target nothing.
    let fixed = Mount::tmpfs(&at("fixed"), c"size=64k");
    std::fs::write(at("fixed/f"), "new").expect("written");
    std::fs::create_dir_all(at("fixed/d/e")).expect("made");
    fixed.make_read_only();
    refused("fixed/f", "small/target", "permission");
    refused("fixed/d", "small/empty", "permission");
    client.ask(&json!({"op": "file.move", "from": at("file"), "to": at("small/target")}));
    assert_eq!(std::fs::read(at("small/target")).expect("read"), b"nnnn");
    assert!(std::fs::metadata(at("file")).is_err());
}
