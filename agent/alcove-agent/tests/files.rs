//! Files: reading, writing, changing, listing, archives and watches.

mod support;

use alcove_protocol::Kind;
use serde_json::{Value, json};
use std::ffi::CString;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Duration;
use support::{Client, Frame, TestAgent, error_code, eventually, is_root};

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

/// A file system that is unmounted at the end.
struct Mount(CString);

impl Mount {
    fn tmpfs(path: &str, options: &std::ffi::CStr) -> Mount {
        std::fs::create_dir(path).expect("made");
        let target = CString::new(path).expect("a name");
        // SAFETY: C strings.
        let mounted =
            unsafe { libc::mount(c"t".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast()) };
        assert_eq!(mounted, 0);
        Mount(target)
    }

    fn make_read_only(&self) {
        // SAFETY: a C string.
        let flags = libc::MS_REMOUNT | libc::MS_RDONLY;
        // SAFETY: every pointer is a string that outlives the call.
        let done = unsafe { libc::mount(c"t".as_ptr(), self.0.as_ptr(), c"tmpfs".as_ptr(), flags, std::ptr::null()) };
        assert_eq!(done, 0);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // SAFETY: a C string.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn what_is_done_for_a_user_is_done_with_that_users_rights() {
    if !is_root() {
        eprintln!("SKIPPED: other users can only be used as root");
        return;
    }
    let agent = TestAgent::start();
    let mut client = agent.client();
    let at = |name: &str| agent.path(&format!("ws/{name}"));
    let mut write =
        |path: &str, user: &str| client.run_with(&json!({"op": "file.write", "path": path, "user": user}), b"mine");
    // A place of its own, and a secret of root's beside it.
    assert_eq!(reply(&write(&at("own/deep/f"), "1000"))["uid"], 1000);
    std::fs::create_dir(at("root")).expect("made");
    std::fs::write(at("root/secret"), "secret").expect("written");
    std::fs::set_permissions(at("root/secret"), std::fs::Permissions::from_mode(0o600)).expect("chmod");
    symlink(at("root/secret"), at("own/link")).expect("a link");
    symlink(at("root"), at("own/dir")).expect("a link");
    for path in [at("own/link"), at("own/dir/new"), at("root/secret"), at("root/new/f")] {
        assert_eq!(error_code(&write(&path, "1000")), "permission", "{path}");
    }
    assert_eq!(std::fs::read(at("root/secret")).expect("read"), b"secret");
    // What others may write to is replaced by a file of the user's own, which is nobody's program.
    std::fs::write(at("own/shared"), "x").expect("written");
    std::fs::set_permissions(at("own/shared"), std::fs::Permissions::from_mode(0o6777)).expect("chmod");
    let replaced = reply(&write(&at("own/shared"), "1000"));
    assert_eq!((&replaced["uid"], &replaced["mode"]), (&json!(1000), &json!(0o777)));
    for (op, name) in [("file.mkdir", "root/d"), ("file.mkdir", "own/dir/d"), ("file.unpack", "own/dir")] {
        let request = json!({"op": op, "path": at(name), "user": "1000", "parents": true});
        let request = if op == "file.unpack" { json!({"op": op, "path": at(name), "user": "1000"}) } else { request };
        let archive = tar_of(&[("f", tar::EntryType::Regular, "x")]);
        let frames = if op == "file.unpack" { client.run_with(&request, &archive) } else { client.run(&request) };
        assert_eq!(error_code(&frames), "permission", "{op} {name}");
    }
    assert_eq!(std::fs::read_dir(at("root")).expect("list").count(), 1);
    // A group that the user is in counts; the agent has its own rights back in between, on the same thread.
    let frames = client.run_with(&json!({"op": "file.write", "path": at("root/by-agent")}), b"x");
    assert_eq!(reply(&frames)["uid"], 0);
    let frames =
        client.run_with(&json!({"op": "file.write", "path": at("own/g"), "user": "1000:55", "mode": 0o2750}), b"");
    assert_eq!((&reply(&frames)["gid"], &reply(&frames)["mode"]), (&json!(55), &json!(0o2750)));
    client.ask(&json!({"op": "file.chmod", "path": at("root/secret"), "mode": 0o640}));
    assert_eq!(client.ask(&json!({"op": "file.stat", "path": at("root/secret")}))["mode"], 0o640);
}

#[test]
fn a_swapped_name_is_neither_given_away_nor_changed() {
    if !is_root() {
        eprintln!("SKIPPED: owners can only be changed as root");
        return;
    }
    let agent = TestAgent::start();
    let ws = agent.path("ws");
    let secret = agent.path("ws/secret");
    std::fs::write(&secret, "secret").expect("written");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    std::fs::create_dir(format!("{ws}/d")).expect("made");
    // Somebody swaps what is unpacked for a symlink to the secret, as fast as they can.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swapped = format!("{ws}/d/f");
        let (stop, secret) = (&stop, &secret);
        scope.spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let other = format!("{swapped}.link");
                let _ = symlink(secret, &other);
                let _ = std::fs::rename(&other, &swapped);
            }
        });
        let mut client = agent.client();
        for _ in 0..300 {
            let archive = tar_of(&[("d/f", tar::EntryType::Regular, "x"), ("d/f", tar::EntryType::Fifo, "")]);
            let mut archive = archive;
            // Mode 0666 in every header.
            for header in [0, 1024] {
                let mut entry = tar::Header::new_gnu();
                entry.as_mut_bytes().copy_from_slice(&archive[header..header + 512]);
                entry.set_mode(0o666);
                entry.set_cksum();
                archive[header..header + 512].copy_from_slice(entry.as_bytes());
            }
            client.run_with(&json!({"op": "file.unpack", "path": ws}), &archive);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let found = std::fs::symlink_metadata(&secret).expect("there");
    assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o600));
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
fn globs_that_find_nothing_end_with_their_clients() {
    let agent = TestAgent::start();
    let ws = agent.path("ws");
    // The last of so many names would be looked at after minutes.
    for number in 0..3_000 {
        std::fs::File::create(format!("{ws}/{number:0200}")).expect("a file");
    }
    let alternatives: Vec<String> = (0..1_000).map(|number| format!("*0*x{number}")).collect();
    let pattern = format!("{ws}/{{{}}}", alternatives.join(","));
    // As many as there is room for.
    let left: Vec<Client> = (0..16)
        .map(|_| {
            let mut client = agent.client();
            client.request(&json!({"op": "file.glob", "pattern": pattern}));
            client
        })
        .collect();
    let mut client = agent.client();
    let mut is_answered = || matches!(client.run(&json!({"op": "file.stat", "path": ws}))[..], [(Kind::Reply, _), ..]);
    eventually("all of them run", || !is_answered());
    drop(left);
    eventually("others have room again", is_answered);
}

#[test]
fn globs_with_many_alternatives_look_at_fewer_names() {
    let agent = TestAgent::start();
    let ws = agent.path("ws");
    for number in 0..1_000 {
        std::fs::create_dir(format!("{ws}/{number}")).expect("a directory");
    }
    // Each is looked for in each directory, and held against all.
    let alternatives: Vec<String> = (0..400).map(|number| format!("none{number}")).collect();
    let pattern = format!("{ws}/**/{{{}}}", alternatives.join(","));
    let mut client = agent.client();
    client.stream.set_read_timeout(Some(Duration::from_secs(100))).expect("a timeout");
    assert_eq!(client.refusal(&json!({"op": "file.glob", "pattern": pattern})), "too_large");
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

#[test]
fn an_archive_stays_on_its_file_system() {
    if !is_root() {
        eprintln!("SKIPPED: another file system can only be mounted as root");
        return;
    }
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    write(&mut client, &format!("{ws}/own"), b"1");
    let _mount = Mount::tmpfs(&format!("{ws}/other"), c"size=64k");
    write(&mut client, &format!("{ws}/other/hidden"), b"1");
    let archive = data(&client.run(&json!({"op": "file.archive", "path": ws})));
    let names: Vec<String> = tar::Archive::new(&archive[..])
        .entries()
        .expect("a tar")
        .map(|entry| String::from_utf8_lossy(&entry.expect("an entry").path_bytes()).into_owned())
        .collect();
    assert_eq!(names, ["other/", "own"]);
    let archive = data(&client.run(&json!({"op": "file.archive", "path": format!("{ws}/other")})));
    assert_eq!(tar::Archive::new(&archive[..]).entries().expect("a tar").count(), 1);
}

#[test]
fn answers_are_bounded_by_bytes_as_well() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    // Nine thousand entries, each with a path of almost as many bytes as there can be.
    let mut deep = ws.clone();
    while deep.len() < 3_600 {
        deep.push_str(&format!("/{}", "d".repeat(240)));
        std::fs::create_dir(&deep).expect("made");
    }
    for number in 0..9_000 {
        std::fs::write(format!("{deep}/{number:0240}"), "").expect("written");
    }
    let frames = client.run(&json!({"op": "file.list", "path": deep}));
    assert_eq!(error_code(&frames), "too_large");
    // No frame before that is larger than a batch may be.
    assert!(frames.iter().all(|(_, payload)| payload.len() < 1 << 20));
    for pattern in [format!("{deep}/*"), format!("{ws}/**")] {
        let frames = client.run(&json!({"op": "file.glob", "pattern": pattern}));
        assert_eq!(error_code(&frames), "too_large", "{pattern}");
        assert!(frames.iter().all(|(_, payload)| payload.len() < 1 << 20));
    }
    let found = entries(&client.run(&json!({"op": "file.glob", "pattern": format!("{deep}/*[0-4]")})), "paths");
    assert_eq!(found.len(), 4_500);
}

#[test]
fn names_of_a_large_directory_take_little_of_the_agent_and_none_is_left_out() {
    const NAMES: usize = 30_000;
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    let mut expected: Vec<String> = (0..NAMES).map(|number| format!("{ws}/{:0240}", number * 7 % NAMES)).collect();
    for path in &expected {
        std::fs::write(path, "").expect("written");
    }
    expected.sort();
    let most = || -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", agent.child.id())).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its memory");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    };
    let before = most();
    // The second one names a file that is there, one that is not, and all of them again.
    for pattern in [format!("{ws}/*"), format!("{ws}/{{*,{:0240},none,[0-9]*}}", NAMES - 1)] {
        let found = entries(&client.run(&json!({"op": "file.glob", "pattern": pattern})), "paths");
        let mut found: Vec<String> = found.iter().map(|path| path.as_str().expect("a path").to_owned()).collect();
        found.sort();
        assert!(found == expected, "{pattern}: {}", found.len());
    }
    let listed = entries(&client.run(&json!({"op": "file.list", "path": ws})), "entries");
    let paths: Vec<&str> = listed.iter().filter_map(|entry| entry["path"].as_str()).collect();
    assert!(paths == expected);
    let grown = most() - before;
    // As text they are 8 MB, in the memory of a process more.
    assert!(grown < 7_000, "{grown} kB");
    client.ask(&json!({"op": "file.remove", "path": ws, "recursive": true}));
    assert!(!std::path::Path::new(&ws).exists());
}

#[test]
fn a_cut_archive_is_told_as_one() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    let whole = tar_of(&[("a", tar::EntryType::Regular, &"x".repeat(2_000)), ("b", tar::EntryType::Regular, "y")]);
    let unpack = json!({"op": "file.unpack", "path": ws});
    // Within a header, within a content, within its padding, between two entries, before the mark of the end.
    for length in [0, 100, 700, 512 + 2_000, 512 + 2_048, whole.len() - 1024] {
        let frames = client.run_with(&unpack, &whole[..length]);
        assert_eq!(error_code(&frames), "bad_request", "{length}");
    }
    // One block of zeros is an end, as are many.
    for length in [whole.len() - 512, whole.len()] {
        assert_eq!(reply(&client.run_with(&unpack, &whole[..length]))["entries"], 2);
    }
    let padded = [&whole[..], &[0; 20_000]].concat();
    assert_eq!(reply(&client.run_with(&unpack, &padded))["entries"], 2);
}

#[test]
fn names_in_an_archive_are_bounded() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let unpack = json!({"op": "file.unpack", "path": agent.path("ws")});
    for kind in [tar::EntryType::GNULongName, tar::EntryType::GNULongLink, tar::EntryType::XHeader] {
        let content = "n".repeat(8 << 20);
        let archive = tar_of(&[("long", kind, content.as_str()), ("a", tar::EntryType::Regular, "x")]);
        client.request(&unpack);
        for piece in archive.chunks(1 << 16) {
            client.send(Kind::Data, piece);
        }
        client.send(Kind::Eof, &[]);
        let frames = client.rest();
        assert_eq!(error_code(&frames), "bad_request", "{kind:?}");
        let Some((_, payload)) = frames.last() else { panic!("no answer") };
        assert!(String::from_utf8_lossy(payload).contains("bytes of names"), "{kind:?}");
    }
    // The largest content is no name.
    let archive = tar_of(&[("a", tar::EntryType::Char, &"x".repeat(3 << 20)), ("b", tar::EntryType::Regular, "y")]);
    assert_eq!(reply(&client.run_with(&unpack, &archive))["entries"], 1);
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

#[test]
fn a_watch_tells_of_written_files_by_their_names_alone() {
    let agent = TestAgent::start();
    let (mut watcher, mut client) = (agent.client(), agent.client());
    let ws = agent.path("ws");
    write(&mut client, &format!("{ws}/there"), b"1");
    watcher.request(&json!({"op": "file.watch", "path": ws, "recursive": true}));
    assert_eq!(watcher.receive().expect("reply").0, Kind::Reply);
    write(&mut client, &format!("{ws}/new"), b"2");
    write(&mut client, &format!("{ws}/there"), b"3");
    // As an agent does where files cannot be without a name, and moves from another file system.
    std::fs::write(format!("{ws}/.alcove-7-1f-0.tmp"), "4").expect("written");
    std::fs::rename(format!("{ws}/.alcove-7-1f-0.tmp"), format!("{ws}/there")).expect("renamed");
    std::fs::create_dir(format!("{ws}/.alcove-7-1f-1.tmp")).expect("made");
    std::fs::write(format!("{ws}/.alcove-7-1f-1.tmp/in"), "5").expect("written");
    std::fs::rename(format!("{ws}/.alcove-7-1f-1.tmp"), format!("{ws}/moved")).expect("renamed");
    std::fs::write(format!("{ws}/#1"), "6").expect("written");
    std::fs::create_dir(format!("{ws}/end")).expect("made");
    let mut seen = Vec::new();
    while !seen.iter().any(|told: &String| told == "create end") {
        let (_, payload) = watcher.receive().expect("an event");
        let event: Value = serde_json::from_slice(&payload).expect("JSON");
        let path = event["path"].as_str().expect("path").strip_prefix(&format!("{ws}/")).expect("below").to_owned();
        seen.push(format!("{} {path}", event["type"].as_str().expect("type")));
    }
    let expected = [
        "create new",
        "write there",
        "write there",
        "create moved",
        "create moved/in",
        "create #1",
        "write #1",
        "create end",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn what_cannot_be_listed_or_unpacked_is_said_in_words() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    write(&mut client, &format!("{ws}/f"), b"1");
    let message = |frames: &[Frame]| {
        assert_eq!(frames.last().map(|frame| frame.0), Some(Kind::Error), "{frames:?}");
        let error: Value = serde_json::from_slice(&frames.last().expect("a frame").1).expect("JSON");
        error["message"].as_str().expect("a message").to_owned()
    };
    assert_eq!(
        message(&client.run(&json!({"op": "file.list", "path": format!("{ws}/f")}))),
        format!("{ws}/f is a file, not a directory")
    );
    let below = message(&client.run(&json!({"op": "file.list", "path": format!("{ws}/f/x")})));
    assert!(below.contains("a part of the path is no directory"), "{below}");
    let unpack = |bytes: &[u8]| {
        message(&agent.client().run_with(&json!({"op": "file.unpack", "path": format!("{ws}/d")}), bytes))
    };
    let noise = |head: &[u8], size: usize| [head, &vec![0xfe; size]].concat();
    for size in [20, 2_000] {
        for head in [&[0x1f, 0x8b, 8, 0][..], &[0x28, 0xb5, 0x2f, 0xfd], b"BZh9"] {
            let told = unpack(&noise(head, size));
            assert_eq!(told, "the archive cannot be read: it is compressed, and must be an uncompressed tar");
        }
    }
    let told = unpack(&[1; 2_000]);
    assert!(told.starts_with("the archive cannot be read: ") && !told.contains(char::is_control), "{told:?}");
}
