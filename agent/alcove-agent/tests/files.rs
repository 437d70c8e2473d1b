//! Files: reading, writing, changing, listing, archives and watches.

mod support;

use alcove_protocol::Kind;
use serde_json::{Value, json};
use std::ffi::CString;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use support::{Client, Frame, TestAgent, error_code, is_root};

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
        client.send(Kind::Data, &vec![1; 700_000]);
        support::eventually("the upload began", || std::fs::read_dir(agent.path("ws")).expect("list").count() == 2);
    }
    support::eventually("the rest is removed", || std::fs::read_dir(agent.path("ws")).expect("list").count() == 1);
    assert_eq!(std::fs::read(&path).expect("read"), b"before");
    let mut client = agent.client();
    let frames = client.run_with(&json!({"op": "file.write", "path": path, "size": 4}), b"three");
    assert_eq!(error_code(&frames), "bad_request");
    assert_eq!(std::fs::read(&path).expect("read"), b"before");
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
fn names_of_every_kind_are_listed_in_order() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    for name in ["b", "a b", "new\nline", "ünï", "-dash", "d/inner/deep"] {
        write(&mut client, &format!("{ws}/{name}"), b"1");
    }
    use std::os::unix::ffi::OsStrExt;
    std::fs::write(std::path::Path::new(&ws).join(std::ffi::OsStr::from_bytes(b"bad\xff")), "x").expect("written");
    symlink("nowhere", format!("{ws}/link")).expect("a link");
    let list = entries(&client.run(&json!({"op": "file.list", "path": ws})), "entries");
    let names: Vec<&str> = list.iter().map(|entry| entry["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["-dash", "a b", "b", "bad\u{fffd}", "d", "link", "new\nline", "ünï"]);
    assert_eq!(list[5]["symlink_target"], "nowhere");
    let deep = entries(&client.run(&json!({"op": "file.list", "path": format!("{ws}/d"), "depth": 2})), "entries");
    let paths: Vec<&str> = deep.iter().map(|entry| entry["path"].as_str().expect("a path")).collect();
    assert_eq!(paths, [format!("{ws}/d/inner"), format!("{ws}/d/inner/deep")]);
    let frames = client.run(&json!({"op": "file.read", "path": format!("{ws}/new\nline")}));
    assert_eq!(data(&frames), b"1");
    assert_eq!(client.refusal(&json!({"op": "file.list", "path": format!("{ws}/b")})), "not_directory");
    assert_eq!(client.refusal(&json!({"op": "file.list", "path": format!("{ws}/none")})), "not_found");
    for number in 0..2500 {
        std::fs::write(format!("{ws}/d/inner/{number}"), "").expect("written");
    }
    assert_eq!(
        entries(&client.run(&json!({"op": "file.list", "path": format!("{ws}/d/inner")})), "entries").len(),
        2501
    );
}

#[test]
fn stat_tells_links_from_what_they_lead_to() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    write(&mut client, &format!("{ws}/f"), b"four");
    symlink("f", format!("{ws}/l")).expect("a link");
    let link = client.ask(&json!({"op": "file.stat", "path": format!("{ws}/l")}));
    assert_eq!((&link["type"], &link["symlink_target"]), (&json!("symlink"), &json!("f")));
    let file = client.ask(&json!({"op": "file.stat", "path": format!("{ws}/l"), "follow": true}));
    assert_eq!((&file["type"], &file["size"]), (&json!("file"), &json!(4)));
    assert_eq!(client.ask(&json!({"op": "file.stat", "path": "/"}))["name"], "/");
    assert_eq!(client.ask(&json!({"op": "file.stat", "path": format!("{ws}/./")}))["type"], "dir");
    for bad in ["relative", "", "nul\0"] {
        assert_eq!(client.refusal(&json!({"op": "file.stat", "path": bad})), "bad_request");
    }
    assert_eq!(client.refusal(&json!({"op": "file.stat", "path": format!("{ws}/f/x")})), "not_directory");
}

#[test]
fn directories_are_made_moved_and_removed() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    let at = |name: &str| format!("{ws}/{name}");
    assert_eq!(client.refusal(&json!({"op": "file.mkdir", "path": at("a/b")})), "not_found");
    let made = client.ask(&json!({"op": "file.mkdir", "path": at("a/b"), "parents": true, "mode": 0o700}));
    assert_eq!((&made["type"], &made["mode"]), (&json!("dir"), &json!(0o700)));
    assert_eq!(client.refusal(&json!({"op": "file.mkdir", "path": at("a/b")})), "exists");
    client.ask(&json!({"op": "file.mkdir", "path": at("a/b"), "parents": true}));
    write(&mut client, &at("a/b/f"), b"1");
    write(&mut client, &at("c/g"), b"2");
    assert_eq!(client.refusal(&json!({"op": "file.move", "from": at("c"), "to": at("a/b")})), "not_empty");
    assert_eq!(client.refusal(&json!({"op": "file.move", "from": at("a"), "to": at("a/b/x")})), "bad_request");
    assert_eq!(client.refusal(&json!({"op": "file.move", "from": at("none"), "to": at("x")})), "not_found");
    client.ask(&json!({"op": "file.move", "from": at("c/g"), "to": at("a/b/f")}));
    client.ask(&json!({"op": "file.move", "from": at("a"), "to": at("new/parent/a")}));
    assert_eq!(std::fs::read(at("new/parent/a/b/f")).expect("read"), b"2");
    client.ask(&json!({"op": "file.chmod", "path": at("new/parent/a/b/f"), "mode": 0o4711}));
    assert_eq!(std::fs::metadata(at("new/parent/a/b/f")).expect("there").mode() & 0o7777, 0o4711);
    assert_eq!(client.refusal(&json!({"op": "file.remove", "path": at("new")})), "not_empty");
    symlink("/etc", at("new/etc")).expect("a link");
    client.ask(&json!({"op": "file.remove", "path": at("new"), "recursive": true}));
    assert!(std::fs::symlink_metadata(at("new")).is_err() && std::fs::metadata("/etc/passwd").is_ok());
    assert_eq!(client.refusal(&json!({"op": "file.remove", "path": at("new")})), "not_found");
    assert_eq!(client.refusal(&json!({"op": "file.remove", "path": "/", "recursive": true})), "bad_request");
    let mut deep = at("deep");
    for _ in 0..300 {
        deep.push_str("/d");
    }
    std::fs::create_dir_all(&deep).expect("made");
    client.ask(&json!({"op": "file.remove", "path": at("deep"), "recursive": true}));
}

#[test]
fn files_belong_to_their_user() {
    if !is_root() {
        eprintln!("SKIPPED: other users can only be used as root");
        return;
    }
    let agent = TestAgent::start_with(&[], json!({"user": "1234:55"}));
    let mut client = agent.client();
    assert_eq!(std::fs::metadata(agent.path("ws")).map(|found| (found.uid(), found.gid())).ok(), Some((1234, 55)));
    write(&mut client, &agent.path("ws/p/f"), b"1");
    for name in ["ws/p", "ws/p/f"] {
        assert_eq!(std::fs::metadata(agent.path(name)).map(|found| (found.uid(), found.gid())).ok(), Some((1234, 55)));
    }
    let frames = client.run_with(&json!({"op": "file.write", "path": agent.path("ws/q"), "user": "daemon"}), b"1");
    assert_eq!((&reply(&frames)["uid"], &reply(&frames)["gid"]), (&json!(1), &json!(1)));
    // Set-group-id bits stay, whoever's group it is; capabilities that would keep them are not needed.
    for (path, user) in [("ws/g", "0"), ("ws/h", "4321:77")] {
        let path = agent.path(path);
        reply(&client.run(&json!({"op": "file.mkdir", "path": path, "user": user, "mode": 0o2775})));
        assert_eq!(std::fs::metadata(&path).expect("made").mode() & 0o7777, 0o2775);
        let file = format!("{path}/f");
        let frames = client.run_with(&json!({"op": "file.write", "path": file, "user": user, "mode": 0o2755}), b"1");
        assert_eq!(reply(&frames)["mode"], 0o2755);
        client.ask(&json!({"op": "file.chmod", "path": file, "mode": 0o6755}));
        assert_eq!(std::fs::metadata(&file).expect("there").mode() & 0o7777, 0o6755);
        // An existing file keeps its owner.
        let frames = client.run_with(&json!({"op": "file.write", "path": file}), b"2");
        assert_eq!(
            (&reply(&frames)["uid"], &reply(&frames)["mode"]),
            (&json!(user.split(':').next().and_then(|uid| uid.parse::<u32>().ok())), &json!(0o6755))
        );
    }
    let frames = client.run_with(&json!({"op": "file.write", "path": agent.path("ws/own"), "user": "65533"}), b"1");
    assert_eq!(error_code(&frames), "bad_request");
    let frames =
        client.run_with(&json!({"op": "file.write", "path": agent.path("ws/r"), "user": "no-one-like-this"}), b"1");
    assert_eq!(error_code(&frames), "bad_request");
}

#[test]
fn a_full_disk_is_told_as_such() {
    if !is_root() {
        eprintln!("SKIPPED: a small file system can only be mounted as root");
        return;
    }
    let agent = TestAgent::start();
    let small = agent.path("ws/small");
    std::fs::create_dir(&small).expect("made");
    let target = CString::new(small.clone()).expect("a name");
    // SAFETY: C strings; the mount is undone below.
    let mounted =
        unsafe { libc::mount(c"t".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, c"size=64k".as_ptr().cast()) };
    assert_eq!(mounted, 0);
    let mut client = agent.client();
    let frames = client.run_with(&json!({"op": "file.write", "path": format!("{small}/f")}), &vec![1; 300_000]);
    let left = std::fs::read_dir(&small).expect("list").count();
    // Another file system: a move becomes a copy.
    write(&mut client, &agent.path("ws/tree/f"), b"moved");
    let moved = client.run(&json!({"op": "file.move", "from": agent.path("ws/tree"), "to": format!("{small}/tree")}));
    let content = std::fs::read(format!("{small}/tree/f"));
    // SAFETY: as above.
    unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    assert_eq!((error_code(&frames).as_str(), left), ("no_space", 0));
    assert_eq!(moved.last().map(|frame| frame.0), Some(Kind::End), "{moved:?}");
    assert_eq!(content.expect("read"), b"moved");
    assert!(std::fs::metadata(agent.path("ws/tree")).is_err());
}

#[test]
fn globs_find_sorted_paths() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    for name in ["a.txt", "b.md", "d/c.txt", "d/e/f.txt", "d/.hidden/g.txt", "d/[x].txt"] {
        write(&mut client, &format!("{ws}/{name}"), b"");
    }
    symlink(format!("{ws}/d"), format!("{ws}/link")).expect("a link");
    let mut glob = |pattern: &str| -> Vec<String> {
        let found = entries(&client.run(&json!({"op": "file.glob", "pattern": format!("{ws}/{pattern}")})), "paths");
        found.iter().map(|path| path.as_str().expect("text")[ws.len() + 1..].to_owned()).collect()
    };
    assert_eq!(glob("*.txt"), ["a.txt"]);
    assert_eq!(glob("**/*.txt"), ["a.txt", "d/[x].txt", "d/c.txt", "d/e/f.txt"]);
    assert_eq!(glob("*.{md,txt}"), ["a.txt", "b.md"]);
    assert_eq!(glob("d/?.txt"), ["d/c.txt"]);
    assert_eq!(glob("link/c*"), ["link/c.txt"]);
    assert_eq!(glob("d/**"), ["d/[x].txt", "d/c.txt", "d/e", "d/e/f.txt"]);
    assert_eq!(glob("none/*"), Vec::<String>::new());
    assert_eq!(client.refusal(&json!({"op": "file.glob", "pattern": "*.txt"})), "bad_request");
}

#[test]
fn a_tar_goes_out_and_comes_back() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    let long = "n".repeat(180);
    write(&mut client, &format!("{ws}/src/{long}/{long}"), b"long");
    let big: Vec<u8> = (0..2_000_000u32).map(|n| (n * 31) as u8).collect();
    write(&mut client, &format!("{ws}/src/big"), &big);
    symlink("big", format!("{ws}/src/link")).expect("a link");
    std::fs::set_permissions(format!("{ws}/src/big"), std::fs::Permissions::from_mode(0o711)).expect("chmod");
    let archive = data(&client.run(&json!({"op": "file.archive", "path": format!("{ws}/src")})));
    let frames = client.run_with(&json!({"op": "file.unpack", "path": format!("{ws}/dst/here")}), &archive);
    assert_eq!(reply(&frames)["entries"], 4);
    assert!(std::fs::read(format!("{ws}/dst/here/big")).expect("read") == big);
    assert_eq!(std::fs::read(format!("{ws}/dst/here/{long}/{long}")).expect("read"), b"long");
    assert_eq!(std::fs::read_link(format!("{ws}/dst/here/link")).expect("a link").to_string_lossy(), "big");
    assert_eq!(std::fs::metadata(format!("{ws}/dst/here/big")).expect("there").mode() & 0o777, 0o711);
    // The machine's own tar reads it too, and a second unpacking replaces what is there.
    std::fs::write(agent.path("out.tar"), &archive).expect("written");
    let listed = std::process::Command::new("tar").args(["tf", &agent.path("out.tar")]).output().expect("tar");
    assert!(String::from_utf8_lossy(&listed.stdout).lines().any(|line| line == "big"), "{listed:?}");
    let frames = client.run_with(&json!({"op": "file.unpack", "path": format!("{ws}/dst/here")}), &archive);
    assert_eq!(reply(&frames)["entries"], 4);
    let single = data(&client.run(&json!({"op": "file.archive", "path": format!("{ws}/src/link")})));
    client.run_with(&json!({"op": "file.unpack", "path": format!("{ws}/single")}), &single);
    assert!(std::fs::read(format!("{ws}/single/link")).expect("read") == big);
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

#[test]
fn no_archive_gets_out_of_its_directory() {
    use tar::EntryType::{Char, Link, Regular, Symlink};
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    std::fs::create_dir(agent.path("outside")).expect("made");
    std::fs::write(agent.path("outside/secret"), "secret").expect("written");
    let outside = agent.path("outside");
    for entries in [
        vec![("../out", Regular, "x")],
        vec![("/tmp/alcove-out", Regular, "x")],
        vec![("a/../../out", Regular, "x")],
        vec![("l", Symlink, outside.as_str()), ("l/out", Regular, "x")],
        vec![("l", Symlink, ".."), ("l/outside/out", Regular, "x")],
        vec![("h", Link, "../outside/secret")],
        vec![("l2", Symlink, outside.as_str()), ("h", Link, "l2/secret")],
    ] {
        let frames = client.run_with(&json!({"op": "file.unpack", "path": ws}), &tar_of(&entries));
        assert_eq!(error_code(&frames), "bad_request", "{entries:?}");
    }
    assert_eq!(std::fs::read_dir(&outside).expect("list").count(), 1);
    // An existing symlink is replaced, not written through; devices are skipped.
    symlink(format!("{outside}/secret"), format!("{ws}/replaced")).expect("a link");
    let frames = client.run_with(
        &json!({"op": "file.unpack", "path": ws}),
        &tar_of(&[("replaced", Regular, "own"), ("device", Char, ""), ("twin", Link, "replaced")]),
    );
    assert_eq!(reply(&frames)["entries"], 2);
    assert_eq!(std::fs::read(format!("{outside}/secret")).expect("read"), b"secret");
    assert_eq!(std::fs::read(format!("{ws}/twin")).expect("read"), b"own");
    let frames = client.run_with(&json!({"op": "file.unpack", "path": ws}), &vec![b'x'; 5000]);
    assert_eq!(error_code(&frames), "bad_request");
    assert_eq!(client.ask(&json!({"op": "sandbox.info"}))["execs_running"], 0);
}

#[test]
fn a_watch_tells_of_changes_in_new_directories_too() {
    let agent = TestAgent::start();
    let (mut watcher, mut client) = (agent.client(), agent.client());
    let ws = agent.path("ws");
    write(&mut client, &format!("{ws}/old"), b"1");
    watcher.request(&json!({"op": "file.watch", "path": ws, "recursive": true}));
    assert_eq!(watcher.receive().expect("reply").0, Kind::Reply);
    std::fs::create_dir_all(format!("{ws}/new/inner")).expect("made");
    let mut seen = Vec::new();
    let mut wait_for = |watcher: &mut Client, change: &str, path: String| {
        while !seen.contains(&(change.to_owned(), path.clone())) {
            let (_, payload) = watcher.receive().expect("an event");
            let event: Value = serde_json::from_slice(&payload).expect("JSON");
            seen.push((
                event["type"].as_str().expect("type").to_owned(),
                event["path"].as_str().expect("path").to_owned(),
            ));
        }
    };
    wait_for(&mut watcher, "create", format!("{ws}/new"));
    wait_for(&mut watcher, "create", format!("{ws}/new/inner"));
    std::fs::write(format!("{ws}/new/inner/f"), "x").expect("written");
    wait_for(&mut watcher, "create", format!("{ws}/new/inner/f"));
    wait_for(&mut watcher, "write", format!("{ws}/new/inner/f"));
    std::fs::rename(format!("{ws}/old"), format!("{ws}/renamed")).expect("renamed");
    wait_for(&mut watcher, "rename", format!("{ws}/renamed"));
    std::fs::set_permissions(format!("{ws}/renamed"), std::fs::Permissions::from_mode(0o600)).expect("chmod");
    wait_for(&mut watcher, "chmod", format!("{ws}/renamed"));
    std::fs::remove_file(format!("{ws}/renamed")).expect("removed");
    wait_for(&mut watcher, "remove", format!("{ws}/renamed"));
    assert_eq!(client.refusal(&json!({"op": "file.watch", "path": format!("{ws}/none")})), "not_found");
}
