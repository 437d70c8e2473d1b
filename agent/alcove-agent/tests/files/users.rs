//! Whose files are, and with whose rights things are done.

use crate::support::{TestAgent, error_code, is_root};
use crate::{reply, tar_of, write};
use serde_json::json;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

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
