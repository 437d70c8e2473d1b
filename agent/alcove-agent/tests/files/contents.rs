//! Contents of single files: read, written, refused.

use crate::mount::Mount;
use crate::support::{self, TestAgent, error_code, is_root};
use crate::{data, reply, write};
use alcove_protocol::Kind;
use serde_json::{Value, json};
use std::ffi::CString;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn a_file_is_written_whole_and_read_back_in_parts() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let path = agent.path("ws/deep/er/file");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 253) as u8).collect();
    let info = write(&mut client, &path, &bytes);
    assert_eq!((&info["type"], &info["size"], &info["mode"]), (&json!("file"), &json!(3_000_000), &json!(0o644)));
    let frames = client.run(&json!({"op": "file.read", "path": path}));
    assert_eq!(reply(&frames)["length"], 3_000_000);
    assert!(data(&frames) == bytes);
    let frames = client.run(&json!({"op": "file.read", "path": path, "offset": 2_999_990, "length": 50}));
    assert_eq!((reply(&frames)["length"].clone(), data(&frames)), (json!(10), bytes[2_999_990..].to_vec()));
    let frames = client.run(&json!({"op": "file.read", "path": path, "offset": 4_000_000}));
    assert_eq!((reply(&frames)["length"].clone(), data(&frames).len()), (json!(0), 0));
}

#[test]
fn a_write_keeps_the_mode_and_follows_a_last_symlink() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let (target, link) = (agent.path("ws/target"), agent.path("ws/link"));
    write(&mut client, &target, b"old");
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o750)).expect("chmod");
    symlink("target", &link).expect("a link");
    assert_eq!(write(&mut client, &link, b"new")["mode"], 0o750);
    assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink());
    assert_eq!(std::fs::read(&target).expect("read"), b"new");
    let frames = client.run_with(&json!({"op": "file.write", "path": target, "mode": 0o600}), b"x");
    assert_eq!(reply(&frames)["mode"], 0o600);
    symlink("loop-b", agent.path("ws/loop-a")).expect("a link");
    symlink("loop-a", agent.path("ws/loop-b")).expect("a link");
    let frames = client.run_with(&json!({"op": "file.write", "path": agent.path("ws/loop-a")}), b"x");
    assert_eq!(error_code(&frames), "permission");
    // A symlink to nothing makes the file it points to.
    symlink(agent.path("ws/made"), agent.path("ws/dangling")).expect("a link");
    write(&mut client, &agent.path("ws/dangling"), b"made");
    assert_eq!(std::fs::read(agent.path("ws/made")).expect("read"), b"made");
}

#[test]
fn an_upload_that_breaks_off_leaves_nothing_behind() {
    let agent = TestAgent::start();
    let path = agent.path("ws/file");
    std::fs::write(&path, "before").expect("written");
    {
        let mut client = agent.client();
        client.request(&json!({"op": "file.write", "path": path}));
        // Far more than sockets hold, so most of it is in a file by now.
        client.send(Kind::Data, &vec![1; 1 << 20]);
        client.send(Kind::Data, &vec![1; 1 << 20]);
    }
    support::eventually("the rest is removed", || std::fs::read_dir(agent.path("ws")).expect("list").count() == 1);
    assert_eq!(std::fs::read(&path).expect("read"), b"before");
    let mut client = agent.client();
    let frames = client.run_with(&json!({"op": "file.write", "path": path, "size": 4}), b"three");
    assert_eq!(error_code(&frames), "bad_request");
    assert_eq!(std::fs::read(&path).expect("read"), b"before");
}

#[test]
fn a_killed_agent_leaves_no_half_written_file() {
    let mut agent = TestAgent::start();
    let flags = libc::O_TMPFILE | libc::O_WRONLY;
    let folder = CString::new(agent.path("ws")).expect("a name");
    // SAFETY: a C string.
    let able = unsafe { libc::open(folder.as_ptr(), flags, 0o600) };
    if able < 0 {
        eprintln!("SKIPPED: the file system of {} has no files without a name", agent.path("ws"));
        return;
    }
    // SAFETY: just opened.
    unsafe { libc::close(able) };
    let mut client = agent.client();
    client.request(&json!({"op": "file.write", "path": agent.path("ws/file")}));
    client.send(Kind::Data, &vec![1; 1 << 20]);
    client.send(Kind::Data, &vec![1; 1 << 20]);
    agent.child.kill().expect("killed");
    agent.wait_end();
    assert_eq!(std::fs::read_dir(agent.path("ws")).expect("list").count(), 0);
}

#[test]
fn a_refused_upload_leaves_the_connection_usable() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let frames = client.run_with(&json!({"op": "file.write", "path": agent.path("ws")}), &vec![0; 3 << 20]);
    assert_eq!(error_code(&frames), "is_directory");
    assert_eq!(client.ask(&json!({"op": "sandbox.info"}))["sandbox_id"], "sb-test");
}

#[test]
fn what_is_no_regular_file_is_never_opened() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let fifo = agent.path("ws/fifo");
    let name = CString::new(fifo.clone()).expect("a name");
    // SAFETY: the name is a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
    let socket = agent.path("ws/socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    symlink(&fifo, agent.path("ws/to-fifo")).expect("a link");
    for path in [fifo.clone(), socket.clone(), agent.path("ws/to-fifo"), "/dev/null".into(), "/dev/tty".into()] {
        assert_eq!(client.refusal(&json!({"op": "file.read", "path": path})), "not_regular", "{path}");
        let frames = client.run_with(&json!({"op": "file.write", "path": path}), b"x");
        assert_eq!(error_code(&frames), "not_regular", "{path}");
    }
    assert_eq!(client.ask(&json!({"op": "file.stat", "path": fifo}))["type"], "fifo");
    assert_eq!(client.ask(&json!({"op": "file.stat", "path": socket}))["type"], "socket");
    assert_eq!(client.ask(&json!({"op": "file.stat", "path": "/dev/null"}))["type"], "char_device");
    assert_eq!(client.refusal(&json!({"op": "file.read", "path": agent.path("ws")})), "is_directory");
}

#[test]
fn procfs_is_read_with_care_and_never_written() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let frames = client.run(&json!({"op": "file.read", "path": "/proc/version"}));
    assert_eq!(reply(&frames)["length"], Value::Null);
    assert!(data(&frames).starts_with(b"Linux version"));
    let pid = agent.child.id();
    for name in ["self/environ", "thread-self/environ", "self/maps", "self/mem"] {
        let request = json!({"op": "file.read", "path": format!("/proc/{name}")});
        assert_eq!(client.refusal(&request), "permission", "{name}");
    }
    for name in ["environ", "mem", "maps", "cmdline"] {
        assert_eq!(client.refusal(&json!({"op": "file.read", "path": format!("/proc/{pid}/{name}")})), "permission");
    }
    symlink(format!("/proc/{pid}/mem"), agent.path("ws/mem")).expect("a link");
    assert_eq!(client.refusal(&json!({"op": "file.read", "path": agent.path("ws/mem")})), "permission");
    // Magic links lead nowhere.
    for path in [format!("/proc/{pid}/root/etc/passwd"), format!("/proc/{pid}/cwd/x"), format!("/proc/{pid}/exe")] {
        assert_eq!(client.refusal(&json!({"op": "file.read", "path": path})), "permission", "{path}");
    }
    let frames = client.run_with(&json!({"op": "file.write", "path": "/proc/sys/kernel/hostname"}), b"x");
    assert_eq!(error_code(&frames), "permission");
    assert_eq!(client.refusal(&json!({"op": "file.chmod", "path": "/proc/version", "mode": 0o777})), "permission");
}

#[test]
fn a_full_disk_is_told_as_such() {
    if !is_root() {
        eprintln!("SKIPPED: a small file system can only be mounted as root");
        return;
    }
    let agent = TestAgent::start();
    let small = agent.path("ws/small");
    let mount = Mount::tmpfs(&small, c"size=64k");
    let mut client = agent.client();
    let frames = client.run_with(&json!({"op": "file.write", "path": format!("{small}/f")}), &vec![1; 300_000]);
    let left = std::fs::read_dir(&small).expect("list").count();
    // Another file system: a move becomes a copy.
    write(&mut client, &agent.path("ws/tree/f"), b"moved");
    let moved = client.run(&json!({"op": "file.move", "from": agent.path("ws/tree"), "to": format!("{small}/tree")}));
    let content = std::fs::read(format!("{small}/tree/f"));
    drop(mount);
    assert_eq!((error_code(&frames).as_str(), left), ("no_space", 0));
    assert_eq!(moved.last().map(|frame| frame.0), Some(Kind::End), "{moved:?}");
    assert_eq!(content.expect("read"), b"moved");
    assert!(std::fs::metadata(agent.path("ws/tree")).is_err());
}
