//! What there is: lists, stat, globs, and names made, moved and removed.

use crate::mount::Mount;
use crate::support::{Client, Frame, TestAgent, error_code, eventually, is_root};
use crate::{data, entries, write};
use alcove_protocol::Kind;
use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::Duration;

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
    // What is refused has made nothing on the way.
    assert_eq!(client.refusal(&json!({"op": "file.move", "from": at("a"), "to": at("a/on/the/way")})), "bad_request");
    let long = "z".repeat(256);
    let too_long = json!({"op": "file.move", "from": at("c"), "to": at(&format!("on/{long}"))});
    assert_eq!(client.refusal(&too_long), "bad_request");
    assert_eq!(
        client.refusal(&json!({"op": "file.mkdir", "path": at(&format!("on/{long}")), "parents": true})),
        "bad_request"
    );
    assert!(std::fs::metadata(at("a/on")).is_err() && std::fs::metadata(at("on")).is_err());
    assert_eq!(client.refusal(&json!({"op": "file.move", "from": at("none"), "to": at("x")})), "not_found");
    client.ask(&json!({"op": "file.move", "from": at("c/g"), "to": at("a/b/f")}));
    // By its names alone it is below itself.
    symlink(at("new2"), at("c/link")).expect("a link");
    client.ask(&json!({"op": "file.mkdir", "path": at("new2")}));
    client.ask(&json!({"op": "file.move", "from": at("c"), "to": at("c/link/c")}));
    client.ask(&json!({"op": "file.move", "from": at("new2/c"), "to": at("c")}));
    client.ask(&json!({"op": "file.move", "from": at("c"), "to": at("c/../c2")}));
    client.ask(&json!({"op": "file.move", "from": at("c2"), "to": at("c")}));
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
fn what_is_mounted_is_not_removed_nor_emptied() {
    if !is_root() {
        return eprintln!("skipped: needs root");
    }
    let agent = TestAgent::start();
    let mut client = agent.client();
    let place = agent.path("ws/mounted");
    let _mount = Mount::tmpfs(&place, c"size=1m");
    write(&mut client, &format!("{place}/kept"), b"x");
    for recursive in [false, true] {
        let remove = json!({"op": "file.remove", "path": place, "recursive": recursive});
        assert_eq!(client.refusal(&remove), "permission");
    }
    assert!(std::fs::metadata(format!("{place}/kept")).is_ok());
    let moved = client.run(&json!({"op": "file.move", "from": place, "to": agent.path("ws/away")}));
    let (_, payload) = moved.last().expect("an answer");
    assert!(String::from_utf8_lossy(payload).contains(&format!("{place} is mounted there")));
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
        for head in [&[0x1f, 0x8b, 8, 0][..], &[0x28, 0xb5, 0x2f, 0xfd], b"BZh9", b"PK\x03\x04"] {
            let told = unpack(&noise(head, size));
            assert_eq!(told, "the archive cannot be read: it is compressed, and must be an uncompressed tar");
        }
    }
    for what in [&[1; 2_000][..], "text\n".repeat(400).as_bytes()] {
        assert_eq!(unpack(what), "the archive cannot be read: it is no tar, or damaged");
    }
    assert_eq!(
        unpack(b"no tar at all"),
        "the archive cannot be read: it is no tar, or cut off before the end of its first header"
    );
    assert!(unpack(b"").starts_with("the archive is cut off"));
}
