//! Directories as archives, out and in.

use crate::mount::Mount;
use crate::support::{TestAgent, error_code, eventually, is_root};
use crate::{data, reply, tar_of, write};
use alcove_protocol::Kind;
use serde_json::json;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, UNIX_EPOCH};

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

#[test]
fn the_times_of_an_archive_are_those_of_its_files_also_before_1970() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let source = agent.path("times");
    std::fs::create_dir(&source).expect("made");
    let times = [("before", -86_400), ("then", 0), ("after", 4_102_444_800)];
    for (name, seconds) in times {
        let file = std::fs::File::create(format!("{source}/{name}")).expect("a file");
        let far = Duration::from_secs(i64::unsigned_abs(seconds));
        let moment = if seconds < 0 { UNIX_EPOCH - far } else { UNIX_EPOCH + far };
        file.set_modified(moment).expect("its time");
    }
    let archive = data(&client.run(&json!({"op": "file.archive", "path": source})));
    client.run_with(&json!({"op": "file.unpack", "path": agent.path("again")}), &archive);
    // An extended header says it more exactly.
    for (name, said, expected) in [("part", "-1.25", (-2, 750_000_000)), ("least", "-1e-20", (-1, 999_999_999))] {
        let mut extended = tar::Builder::new(Vec::new());
        extended.append_pax_extensions([("mtime", said.as_bytes())]).expect("an extended header");
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_mode(0o644);
        extended.append_data(&mut header, name, std::io::empty()).expect("an entry");
        let exact = extended.into_inner().expect("an archive");
        client.run_with(&json!({"op": "file.unpack", "path": agent.path("exact")}), &exact);
        let found = std::fs::metadata(agent.path(&format!("exact/{name}"))).expect("there");
        assert_eq!((found.mtime(), found.mtime_nsec()), expected, "{said}");
    }
    // The machine's own tar reads them as well.
    std::fs::write(agent.path("times.tar"), &archive).expect("written");
    std::fs::create_dir(agent.path("tar")).expect("made");
    let status =
        std::process::Command::new("tar").args(["xf", &agent.path("times.tar"), "-C", &agent.path("tar")]).status();
    assert!(status.expect("tar").success());
    for (name, seconds) in times {
        for folder in ["again", "tar"] {
            let found = std::fs::metadata(agent.path(&format!("{folder}/{name}"))).expect("there");
            assert_eq!(found.mtime(), seconds, "{folder}/{name}");
        }
    }
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
        let left = std::fs::read(format!("{ws}/a")).map(|bytes| bytes.len()).unwrap_or(0);
        assert_eq!(left, if length < 512 + 2_000 { 0 } else { 2_000 }, "{length}");
    }
    // One block of zeros is an end, as are many.
    for length in [whole.len() - 512, whole.len()] {
        assert_eq!(reply(&client.run_with(&unpack, &whole[..length]))["entries"], 2);
    }
    let padded = [&whole[..], &[0; 20_000]].concat();
    assert_eq!(reply(&client.run_with(&unpack, &padded))["entries"], 2);
}

#[test]
fn an_archive_that_breaks_off_leaves_nothing_of_the_file_it_was_at() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ws = agent.path("ws");
    let whole = tar_of(&[("a", tar::EntryType::Regular, "x"), ("b", tar::EntryType::Regular, &"y".repeat(2_000))]);
    client.request(&json!({"op": "file.unpack", "path": ws}));
    client.send(Kind::Data, &whole[..512 + 512 + 512 + 700]);
    let there = |name: &str| std::fs::symlink_metadata(format!("{ws}/{name}")).is_ok();
    eventually("the second file is begun", || there("b"));
    drop(client);
    eventually("the second file is gone", || !there("b"));
    assert!(there("a"));
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
