//! Changes that are told.

use crate::support::{Client, TestAgent};
use crate::write;
use alcove_protocol::Kind;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

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
