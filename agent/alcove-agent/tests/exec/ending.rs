//! How commands end: by themselves, by signals, deadlines and limits.

use crate::support::{self, Client, Outcome, TestAgent, eventually, exec_request, runs};
use alcove_protocol::Kind;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[test]
fn a_kill_reaches_sessions_double_forks_and_ignored_signals() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let marker = format!("77{}", std::process::id());
    let script = format!(
        "trap '' TERM HUP INT; setsid sleep {marker}1 & (setsid sh -c 'sleep {marker}2 & sleep {marker}3' &); \
         (while :; do (sleep {marker}4 &); sleep 0.01; done) & echo up; sleep {marker}5"
    );
    client.request(&exec_request("e", &["/bin/sh", "-c", &script], json!({})));
    eventually("the tree is up", || ["1", "2", "3", "4", "5"].iter().all(|n| runs(&format!("{marker}{n}"))));
    let mut other = agent.client();
    let record = other.ask(&json!({"op": "exec.kill", "exec_id": "e", "reason": "cancelled"}));
    assert_eq!(
        (&record["reason"], &record["signal"], &record["exit_code"]),
        (&json!("cancelled"), &json!("SIGKILL"), &json!(137))
    );
    assert!(!runs(&marker), "something survived the kill");
    assert_eq!(Outcome::new(client.rest()).reason(), "cancelled");
    // Killing what has ended changes nothing.
    assert_eq!(other.ask(&json!({"op": "exec.kill", "exec_id": "e", "reason": "timeout"}))["reason"], "cancelled");
}

#[test]
fn a_monitor_heeds_no_signal_but_those_that_nothing_can_block() {
    let agent = TestAgent::start();
    let script = "grep SigBlk /proc/$PPID/status; grep SigBlk /proc/self/status";
    let outcome = agent.client().exec("b", &["/bin/sh", "-c", script], json!({}));
    let masks: Vec<u64> = outcome
        .stdout_text()
        .lines()
        .map(|line| u64::from_str_radix(line.trim_start_matches("SigBlk:").trim(), 16).expect("a mask"))
        .collect();
    // Also those that libraries keep for themselves; while the end of a child is waited for that one is let through.
    let others = [libc::SIGKILL, libc::SIGSTOP, libc::SIGCHLD].iter().fold(0, |mask, signal| mask | 1 << (signal - 1));
    assert_eq!(masks.len(), 2);
    assert_eq!(masks[0] | others, u64::MAX, "{masks:x?}");
    // And none of it is the command's.
    assert_eq!(masks[1], 0);
}

#[test]
fn background_processes_outlive_the_exec_until_they_are_killed() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let marker = format!("88{}", std::process::id());
    let script = format!("(yes background & sleep {marker}) & echo done");
    let outcome = client.exec("e", &["/bin/sh", "-c", &script], json!({"lossless": false}));
    assert_eq!((outcome.code(), outcome.reason().as_str()), (0, "exited"));
    let mut alive = 0;
    eventually("the background goes on", || {
        alive += usize::from(runs(&marker));
        alive > 20
    });
    let record = client.ask(&json!({"op": "exec.kill", "exec_id": "e", "reason": "cancelled"}));
    assert_eq!((&record["reason"], &record["exit_code"]), (&json!("exited"), &json!(0)));
    assert!(!runs(&marker));
}

#[test]
fn timeouts_and_graces_are_kept_by_the_agent() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let outcome = client.exec("t", &["/bin/sh", "-c", "trap '' TERM; sleep 60 & sleep 60"], json!({"timeout_ms": 100}));
    assert_eq!((outcome.code(), outcome.reason().as_str()), (137, "timeout"));
    let mut other = agent.client();
    for (id, keep) in [("g", false), ("h", true)] {
        client.ask(&exec_request(id, &["sleep", "2"], json!({"follow": false})));
        client.ask(&json!({"op": "exec.grace", "exec_id": id, "grace_ms": 100}));
        let request =
            json!({"op": "exec.attach", "exec_id": id, "follow": true, "lossless": false, "keep_grace": keep});
        let outcome = Outcome::new(other.run(&request));
        assert_eq!(outcome.reason(), if keep { "cancelled" } else { "exited" }, "{id}");
    }
    client.ask(&json!({"op": "exec.grace", "exec_id": "g", "grace_ms": 5}));
}

#[test]
fn a_grace_waits_until_nobody_follows() {
    let agent = TestAgent::start();
    let (mut reader, mut other) = (agent.client(), agent.client());
    let script = "echo up; read line; echo got $line; sleep 600";
    reader.request(&exec_request("e", &["/bin/sh", "-c", script], json!({"stdin": true})));
    assert_eq!(reader.receive().expect("reply").0, Kind::Reply);
    other.ask(&json!({"op": "exec.grace", "exec_id": "e", "grace_ms": 50}));
    std::thread::sleep(std::time::Duration::from_millis(400));
    // The reader is still there, so it is served on.
    reader.send(Kind::Data, b"it\n");
    let mut text = Vec::new();
    while !text.ends_with(b"got it\n") {
        let (kind, payload) = reader.receive().expect("output");
        assert_eq!(kind, Kind::Stdout);
        text.extend_from_slice(&payload[8..]);
    }
    assert_eq!(other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"], "running");
    drop(reader);
    eventually("the end", || other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"] == "exited");
    assert_eq!(other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["reason"], "cancelled");
}

#[test]
fn an_agent_that_stood_still_loses_no_output_and_keeps_deadlines() {
    let agent = TestAgent::start();
    let (mut reader, mut overdue) = (agent.client(), agent.client());
    let script = "for n in 1 2 3 4 5 6 7 8; do echo line $n; sleep 0.1; done; exit 7";
    reader.request(&exec_request("e", &["/bin/sh", "-c", script], json!({})));
    overdue.request(&exec_request("late", &["sleep", "600"], json!({"timeout_ms": 300})));
    for client in [&mut reader, &mut overdue] {
        assert_eq!(client.receive().expect("reply").0, Kind::Reply);
    }
    let pid = agent.child.id() as i32;
    // SAFETY: plain signals to a child that has not been waited for.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    let outcome = Outcome::new(reader.rest());
    assert_eq!(outcome.stdout_text(), (1..=8).map(|n| format!("line {n}\n")).collect::<String>());
    assert_eq!((outcome.code(), outcome.reason().as_str()), (7, "exited"));
    assert_eq!(outcome.frames.iter().filter(|frame| frame.0 == Kind::Event).count(), 1);
    assert_eq!(Outcome::new(overdue.rest()).reason(), "timeout");
}

#[test]
fn signals_go_to_the_commands_group() {
    let agent = TestAgent::start();
    let (mut client, mut other) = (agent.client(), agent.client());
    client.request(&exec_request("e", &["sleep", "60"], json!({})));
    assert_eq!(client.receive().expect("reply").0, Kind::Reply);
    other.ask(&json!({"op": "exec.signal", "exec_id": "e", "signal": 15}));
    let outcome = Outcome::new(client.rest());
    assert_eq!((outcome.code(), outcome.reason().as_str()), (143, "signaled"));
    assert_eq!(outcome.exit.expect("exit")["signal"], "SIGTERM");
    assert_eq!(other.refusal(&json!({"op": "exec.signal", "exec_id": "e", "signal": 15})), "conflict");
}

#[test]
fn a_thousand_ended_records_are_kept_and_listeners_hear_every_end() {
    let agent = TestAgent::start();
    let (mut client, mut listener) = (agent.client(), agent.client());
    listener.request(&json!({"op": "sandbox.events"}));
    assert_eq!(listener.receive().expect("reply").0, Kind::Reply);
    for n in 0..1010 {
        client.exec(&format!("e{n}"), &["/bin/true"], json!({}));
    }
    let list = client.ask(&json!({"op": "exec.list"}));
    let execs = list["execs"].as_array().expect("a list");
    assert_eq!((execs.len(), &execs[999]["exec_id"]), (1000, &json!("e1009")));
    assert_eq!(client.refusal(&json!({"op": "exec.get", "exec_id": "e0"})), "not_found");
    for n in 0..1010 {
        let event: Value = serde_json::from_slice(&listener.receive().expect("an event").1).expect("JSON");
        assert_eq!((&event["event"], &event["exec_id"]), (&json!("exit"), &json!(format!("e{n}"))));
    }
}

#[test]
fn the_end_is_told_to_its_follower_first_and_of_a_detached_command_to_listeners_at_once() {
    let agent = TestAgent::start();
    let (mut client, mut listener) = (agent.client(), agent.client());
    listener.request(&json!({"op": "sandbox.events"}));
    assert_eq!(listener.receive().expect("reply").0, Kind::Reply);
    let told = |listener: &mut Client, id: &str| {
        let event: Value = serde_json::from_slice(&listener.receive().expect("an event").1).expect("JSON");
        assert_eq!((&event["event"], &event["exec_id"]), (&json!("exit"), &json!(id)));
    };
    let mut first = 0;
    let mut fastest = Duration::MAX;
    for n in 0..20 {
        client.exec(&format!("f{n}"), &["/bin/true"], json!({}));
        first += u32::from(!listener.has_more());
        told(&mut listener, &format!("f{n}"));
        // What waits goes along, in its order.
        client.exec(&format!("g{n}"), &["/bin/true"], json!({}));
        let began = Instant::now();
        let detached = json!({"follow": false, "detached": true});
        client.ask(&exec_request(&format!("d{n}"), &["/bin/true"], detached));
        told(&mut listener, &format!("g{n}"));
        told(&mut listener, &format!("d{n}"));
        fastest = fastest.min(began.elapsed());
    }
    // Both are a matter of milliseconds, which a busy machine may take away.
    assert!(first > 0, "listeners heard of every end before its follower");
    assert!(fastest < Duration::from_millis(15), "{fastest:?}");
}

#[test]
fn a_command_that_kills_its_monitor_ends_as_lost_and_leaves_nothing() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let marker = format!("99{}", std::process::id());
    let script = format!("setsid sleep {marker}1 & echo $PPID; sleep {marker}2");
    client.request(&exec_request("e", &["/bin/sh", "-c", &script], json!({})));
    let mut monitor = String::new();
    while !monitor.ends_with('\n') {
        let (kind, payload) = client.receive().expect("output");
        if kind == Kind::Stdout {
            monitor.push_str(&String::from_utf8_lossy(&payload[8..]));
        }
    }
    eventually("both run", || runs(&format!("{marker}1")) && runs(&format!("{marker}2")));
    // SAFETY: the monitor of the agent that this test started.
    assert_eq!(unsafe { libc::kill(monitor.trim().parse().expect("a pid"), libc::SIGKILL) }, 0);
    let outcome = Outcome::new(client.rest());
    assert_eq!((outcome.reason().as_str(), outcome.code()), ("lost", 137));
    eventually("nothing is left", || !runs(&marker));
    assert_eq!(client.exec("f", &["true"], json!({})).code(), 0);
}

#[test]
fn a_kill_while_the_memory_limit_was_hit_is_told_as_such() {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    let folder = support::Folder::new();
    let events = folder.0.join("memory.events");
    std::fs::write(&events, "low 0\noom 0\noom_kill 4\n").expect("written");
    let file = std::fs::File::open(&events).expect("opened");
    let fd = file.as_raw_fd();
    let mut command = std::process::Command::new(support::binary());
    // SAFETY: only duplicates a descriptor between fork and exec.
    unsafe {
        command.pre_exec(move || if libc::dup2(fd, 10) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) });
    }
    let agent = TestAgent::launch(command, &["--oom-fd", "10"]);
    agent.configure(json!({}));
    let mut client = agent.client();
    assert_eq!(client.exec("plain", &["/bin/sh", "-c", "kill -9 $$"], json!({})).reason(), "signaled");
    let script = format!("printf 'oom_kill 5\\n' > {}; kill -9 $$", events.display());
    let outcome = client.exec("memory", &["/bin/sh", "-c", &script], json!({}));
    assert_eq!((outcome.reason().as_str(), outcome.code()), ("oom", 137));
}

#[test]
fn what_a_command_used_is_told_with_its_end_and_in_its_record() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    // Half a second of two processes, one of them in the background of its session, and forty megabytes.
    let script = "import os, time\nx = bytearray(40 << 20)\nif os.fork() == 0:\n os.setsid()\n\
                  until = time.process_time() + 0.25\nwhile time.process_time() < until: pass\n\
                  try: os.wait()\nexcept ChildProcessError: pass\n";
    if std::process::Command::new("python3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: python3 is missing");
        return;
    }
    let outcome = client.exec("u", &["python3", "-c", script], json!({}));
    assert_eq!(outcome.code(), 0);
    let exit = outcome.exit.expect("an exit");
    let (cpu, memory) = (exit["usage"]["cpu_ms"].as_u64(), exit["usage"]["max_memory_bytes"].as_u64());
    assert!(cpu.is_some_and(|cpu| (450..20_000).contains(&cpu)), "{exit}");
    assert!(memory.is_some_and(|memory| (40 << 20..400 << 20).contains(&memory)), "{exit}");
    assert_eq!(client.ask(&json!({"op": "exec.get", "exec_id": "u"}))["usage"], exit["usage"]);
    assert_eq!((&exit["limit"], &exit["oom_kills"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_command_that_uses_more_than_it_may_ends_with_the_limit_it_exceeded() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    // Children in sessions of their own count, and what a monitor's earlier command used does not.
    let burn = "for i in 1 2 3; do setsid sh -c 'while :; do :; done' & done; wait";
    for round in 0..2 {
        let limits = json!({"limits": {"cpu_ms": 300}, "timeout_ms": 60_000});
        let outcome = client.exec(&format!("c{round}"), &["/bin/sh", "-c", burn], limits);
        assert_eq!(
            (outcome.reason().as_str(), outcome.exit.as_ref().expect("an exit")["limit"].as_str()),
            ("limit", Some("cpu_time"))
        );
    }
    let outcome = client.exec("quick", &["/bin/sh", "-c", "echo quick"], json!({"limits": {"cpu_ms": 300}}));
    assert_eq!((outcome.reason().as_str(), outcome.code()), ("exited", 0));

    for (id, script, ends) in [
        ("endless", "yes", "limit"),
        ("quick-out", "head -c 5000 /dev/zero", "limit"),
        ("both", "yes >&2 & yes", "limit"),
        ("fits", "head -c 4096 /dev/zero", "exited"),
    ] {
        let limits = json!({"limits": {"output_bytes": 4096}, "timeout_ms": 60_000});
        let outcome = client.exec(id, &["/bin/sh", "-c", script], limits);
        assert_eq!(outcome.reason(), ends, "{id}");
        assert_eq!(outcome.stdout.len() + outcome.stderr.len(), 4096, "{id}");
        let limit = outcome.exit.as_ref().expect("an exit")["limit"].clone();
        assert_eq!(limit, if ends == "limit" { json!("output_bytes") } else { Value::Null }, "{id}");
    }
    assert_eq!(client.refusal(&exec_request("bad", &["true"], json!({"limits": {"memory_bytes": 1}}))), "protocol");
}

#[test]
fn a_signal_is_a_signal_through_a_shell_as_well() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    if std::process::Command::new("python3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: python3 is missing");
        return;
    }
    let abort = "python3 -c 'import os; os.kill(os.getpid(), 9)'";
    for (round, line) in [abort.to_owned(), format!("cd /tmp && {abort}")].iter().enumerate() {
        let outcome = client.exec(&format!("s{round}"), &["/bin/sh", "-c", line], json!({}));
        let exit = outcome.exit.as_ref().expect("an exit");
        assert_eq!((outcome.reason().as_str(), &exit["signal"]), ("signaled", &json!("SIGKILL")), "{line}");
        assert_eq!(outcome.code(), 137);
    }
    let outcome = client.exec("e", &["/bin/sh", "-c", "exit 137"], json!({}));
    assert_eq!((outcome.reason().as_str(), outcome.code()), ("exited", 137));
}
