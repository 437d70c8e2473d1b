//! Commands: how they start, what they say, how they end.

mod support;

use alcove_protocol::Kind;
use serde_json::{Value, json};
use support::{Client, Outcome, TestAgent, eventually, exec_request, is_root, runs};

#[test]
fn output_exit_code_and_environment_of_a_command() {
    let agent = TestAgent::start_with(&[], json!({"env": {"A": "sandbox", "B": "sandbox"}}));
    let mut client = agent.client();
    let outcome = client.exec(
        "e",
        &["/bin/sh", "-c", "echo out; echo err >&2; echo $A-$B; pwd; exit 3"],
        json!({"env": {"B": "own"}}),
    );
    assert_eq!(outcome.stdout_text(), format!("out\nsandbox-own\n{}\n", agent.path("ws")));
    assert_eq!(outcome.stderr, b"err\n");
    assert_eq!((outcome.code(), outcome.reason().as_str()), (3, "exited"));
    assert_eq!(outcome.frames[0].0, Kind::Reply);
    let mut next = 0;
    for (kind, payload) in &outcome.frames {
        if matches!(kind, Kind::Stdout | Kind::Stderr) {
            assert_eq!(u64::from_be_bytes(payload[..8].try_into().expect("eight")), next);
            next += payload.len() as u64 - 8;
        }
    }
    assert_eq!(outcome.exit.expect("exit")["output_bytes"], next);
}

#[test]
fn a_command_starts_clean() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let script = "ls /proc/self/fd | wc -l; umask; grep -E 'NoNewPrivs|SigBlk|SigIgn|CapEff|CapPrm|CapInh|CapAmb' /proc/self/status; \
                  ulimit -c; cat /proc/self/oom_score_adj";
    let text = client.shell("e", script);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "4", "standard streams and the listing itself: {text}");
    assert_eq!(lines[1], "0022");
    assert!(text.contains("NoNewPrivs:\t1"), "{text}");
    for set in ["SigBlk", "SigIgn", "CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert!(text.contains(&format!("{set}:\t0000000000000000")), "{set}: {text}");
    }
    assert_eq!(lines[lines.len() - 2], "0");
    assert!(lines[lines.len() - 1].parse::<i32>().is_ok_and(|score| score >= 500), "{text}");
}

#[test]
fn programs_that_cannot_run_end_at_once() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let missing = client.exec("a", &["no-such-program"], json!({}));
    assert_eq!(missing.code(), 127);
    assert_eq!(String::from_utf8_lossy(&missing.stderr), "no-such-program: not found\n");
    assert_eq!(missing.exit.expect("exit")["start_error"], "no-such-program: not found");
    assert_eq!(client.exec("b", &["/etc/passwd"], json!({})).code(), 126);
    assert_eq!(client.exec("c", &["/"], json!({})).code(), 126);
    let script = agent.path("ws/script");
    std::fs::write(&script, "echo from a script: $1\n").expect("written");
    std::process::Command::new("chmod").args(["755", &script]).status().expect("chmod");
    assert_eq!(client.exec("d", &[&script, "x"], json!({})).stdout_text(), "from a script: x\n");
}

#[test]
fn the_search_for_a_program_goes_on_where_a_place_cannot_be_looked_at() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let looped = agent.path("ws/loop");
    std::os::unix::fs::symlink(&looped, &looped).expect("a symlink to itself");
    let path = format!("{looped}:{}:/usr/bin:/bin", "long/".repeat(900));
    assert_eq!(client.exec("a", &["true"], json!({"env": {"PATH": path}})).code(), 0);
    let nowhere = client.exec("b", &["no-such-program"], json!({"env": {"PATH": looped}}));
    assert_eq!(nowhere.code(), 126);
    let text = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(text.contains("symbolic links"), "{text}");
}

#[test]
fn a_program_on_a_file_system_without_execution_is_told_as_such() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    let noexec = mounts.lines().any(|line| line.split(' ').nth(1) == Some("/proc") && line.contains("noexec"));
    if !noexec {
        println!("SKIPPED: /proc allows execution here");
        return;
    }
    let agent = TestAgent::start();
    let outcome = agent.client().exec("e", &["/proc/version"], json!({}));
    assert_eq!(outcome.code(), 126);
    assert!(outcome.exit.expect("exit")["start_error"].as_str().expect("text").contains("mounted noexec"));
}

#[test]
fn starts_that_are_refused_leave_no_record() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    for (id, more) in [
        ("cwd", json!({"cwd": "/no/such"})),
        ("file", json!({"cwd": "/etc/passwd"})),
        ("user", json!({"user": "no-such-user"})),
        ("env", json!({"env": {"A=B": "c"}})),
    ] {
        assert_eq!(client.refusal(&exec_request(id, &["true"], more)), "bad_request", "{id}");
    }
    assert_eq!(client.refusal(&json!({"op": "exec.start", "exec_id": "x", "command": "", "argv": []})), "bad_request");
    assert_eq!(client.ask(&json!({"op": "exec.list"}))["execs"], json!([]));
    assert_eq!(client.exec("once", &["true"], json!({})).code(), 0);
    assert_eq!(client.refusal(&exec_request("once", &["true"], json!({}))), "conflict");
    assert_eq!(client.refusal(&json!({"op": "exec.get", "exec_id": "never"})), "not_found");
}

#[test]
fn standard_input_reaches_the_command_and_ends() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let sent: Vec<u8> = (0..5_000_000u32).map(|n| (n * 7) as u8).collect();
    client.request(&exec_request("e", &["cat"], json!({"stdin": true})));
    let mut writer = client.stream.try_clone().expect("a clone");
    let expected = sent.clone();
    let thread = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        for piece in sent.chunks(100_000) {
            alcove_protocol::frame::encode(&mut bytes, Kind::Data, piece);
        }
        alcove_protocol::frame::encode(&mut bytes, Kind::Eof, &[]);
        std::io::Write::write_all(&mut writer, &bytes).expect("sent");
    });
    let outcome = Outcome::new(client.rest());
    thread.join().expect("the writer");
    assert!(outcome.stdout == expected, "{} of {} bytes", outcome.stdout.len(), expected.len());
    assert_eq!(outcome.code(), 0);
}

#[test]
fn input_of_its_own_operation_and_its_end() {
    let agent = TestAgent::start();
    let (mut client, mut other) = (agent.client(), agent.client());
    client.ask(&exec_request("e", &["cat"], json!({"stdin": true, "follow": false})));
    let frames = other.run_with(&json!({"op": "exec.stdin", "exec_id": "e"}), b"hello");
    assert_eq!(String::from_utf8_lossy(&frames[0].1), r#"{"written":5}"#);
    other.ask(&json!({"op": "exec.stdin_close", "exec_id": "e"}));
    let outcome =
        Outcome::new(client.run(&json!({"op": "exec.attach", "exec_id": "e", "follow": true, "lossless": false})));
    assert_eq!(outcome.stdout, b"hello");
    assert_eq!(other.refusal(&json!({"op": "exec.stdin_close", "exec_id": "e"})), "conflict");
    // Standard input that nobody reads is dropped, and the command's end frees who waits.
    let outcome = client.exec("f", &["sleep", "0.1"], json!({"stdin": true}));
    assert_eq!(outcome.code(), 0);
}

#[test]
fn input_above_its_bound_waits_until_the_command_ends() {
    let agent = TestAgent::start();
    let (mut client, mut other) = (agent.client(), agent.client());
    client.ask(&exec_request("e", &["sleep", "60"], json!({"stdin": true, "follow": false})));
    let socket = agent.socket.clone();
    let writer = std::thread::spawn(move || {
        let mut client = support::Client::connect(&socket);
        client.request(&json!({"op": "exec.stdin", "exec_id": "e"}));
        let mut bytes = Vec::new();
        for _ in 0..8 {
            alcove_protocol::frame::encode(&mut bytes, Kind::Data, &vec![7; 1 << 20]);
        }
        let _ = std::io::Write::write_all(&mut client.stream, &bytes);
        support::error_code(&client.rest())
    });
    eventually("the agent stops taking input", || {
        other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"] == "running"
    });
    other.ask(&json!({"op": "exec.kill", "exec_id": "e", "reason": "cancelled"}));
    assert_eq!(writer.join().expect("the writer"), "conflict");
}

#[test]
fn a_terminal_has_a_size_that_changes() {
    let agent = TestAgent::start();
    let (mut client, mut other) = (agent.client(), agent.client());
    let script = "stty size; echo $TERM; tty; trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.05; done";
    client.request(&exec_request("e", &["/bin/sh", "-c", script], json!({"tty": {"cols": 91, "rows": 33}})));
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("ready") {
        let (kind, payload) = client.receive().expect("output");
        if kind == Kind::Stdout {
            seen.extend_from_slice(&payload[8..]);
        }
    }
    other.ask(&json!({"op": "exec.resize", "exec_id": "e", "cols": 120, "rows": 40}));
    let outcome = Outcome::new(client.rest());
    seen.extend_from_slice(&outcome.stdout);
    let text = String::from_utf8_lossy(&seen).into_owned();
    assert!(text.starts_with("33 91\r\nxterm-256color\r\n/dev/pts/"), "{text}");
    assert!(text.contains("40 120\r\n"), "{text}");
    assert_eq!(outcome.code(), 4);
}

#[test]
fn a_terminal_is_typed_into_and_interrupted() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let script = "trap 'exit 9' INT; read line; echo got $line; while :; do sleep 0.05; done";
    let request =
        exec_request("e", &["/bin/sh", "-c", script], json!({"tty": {"cols": 80, "rows": 24}, "stdin": true}));
    client.request(&request);
    client.send(Kind::Data, b"this\n");
    let mut seen = String::new();
    while !seen.contains("got this\r\n") {
        let (_, payload) = client.receive().expect("output");
        seen.push_str(&String::from_utf8_lossy(payload.get(8..).unwrap_or_default()));
    }
    client.send(Kind::Data, b"\x03");
    assert_eq!(Outcome::new(client.rest()).code(), 9);
    // The end of standard input ends a shell.
    client.request(&exec_request("f", &["cat"], json!({"tty": {"cols": 80, "rows": 24}, "stdin": true})));
    client.send(Kind::Data, b"line\n");
    client.send(Kind::Eof, &[]);
    let outcome = Outcome::new(client.rest());
    assert_eq!(outcome.stdout_text(), "line\r\nline\r\n");
    assert_eq!(outcome.code(), 0);
}

#[test]
fn all_output_of_a_terminal_arrives_before_its_end() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    for round in 0..5 {
        let outcome = client.exec(
            &format!("e{round}"),
            &["/bin/sh", "-c", "seq 1 20000"],
            json!({"tty": {"cols": 80, "rows": 24}}),
        );
        let text = outcome.stdout_text();
        assert!(text.ends_with("\r\n20000\r\n"), "round {round}: {:?}", &text[text.len().saturating_sub(30)..]);
        assert_eq!(text.lines().count(), 20000);
    }
}

#[test]
fn an_attach_replays_and_follows() {
    let agent = TestAgent::start();
    let (mut client, mut other) = (agent.client(), agent.client());
    let script = "printf first; read line; printf second; exit 5";
    client.ask(&exec_request(
        "e",
        &["/bin/sh", "-c", script],
        json!({"stdin": true, "follow": false, "tag": "t", "detached": true}),
    ));
    eventually("the first output", || client.ask(&json!({"op": "exec.get", "exec_id": "e"}))["output_bytes"] == 5);
    let now =
        Outcome::new(other.run(&json!({"op": "exec.attach", "exec_id": "e", "follow": false, "lossless": false})));
    assert_eq!((now.stdout.as_slice(), now.exit.is_none()), (&b"first"[..], true));
    other.request(&json!({"op": "exec.attach", "exec_id": "e", "from": 2, "follow": true, "lossless": true}));
    let record: Value = serde_json::from_slice(&other.receive().expect("reply").1).expect("JSON");
    assert_eq!(
        (&record["from"], &record["tag"], &record["detached"], &record["state"]),
        (&json!(2), &json!("t"), &json!(true), &json!("running"))
    );
    other.send(Kind::Data, b"go\n");
    let outcome = Outcome::new(other.rest());
    assert_eq!(outcome.stdout, b"rstsecond");
    assert_eq!(outcome.code(), 5);
    let late = Outcome::new(
        client.run(&json!({"op": "exec.attach", "exec_id": "e", "from": 999, "follow": true, "lossless": false})),
    );
    assert_eq!((late.stdout.len(), late.code()), (0, 5));
    let record = client.ask(&json!({"op": "exec.get", "exec_id": "e"}));
    assert_eq!(
        (&record["state"], &record["exit_code"], &record["reason"]),
        (&json!("exited"), &json!(5), &json!("exited"))
    );
}

#[test]
fn a_full_ring_keeps_the_newest_output() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    client.ask(&exec_request("e", &["/bin/sh", "-c", "yes | head -c 5000000; printf end"], json!({"follow": false})));
    eventually("the end", || client.ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"] == "exited");
    let record = client.ask(&json!({"op": "exec.get", "exec_id": "e"}));
    assert_eq!((&record["output_bytes"], &record["first_offset"]), (&json!(5_000_003), &json!(5_000_003 - (1 << 20))));
    let outcome = Outcome::new(
        client.run(&json!({"op": "exec.attach", "exec_id": "e", "from": 0, "follow": true, "lossless": true})),
    );
    assert_eq!(outcome.stdout.len(), 1 << 20);
    assert!(outcome.stdout.ends_with(b"y\nend"));
}

#[test]
fn a_lossless_reader_slows_the_command_down_and_misses_nothing() {
    let agent = TestAgent::start_with(&[], json!({"ring_bytes": 65536}));
    let (mut client, mut other) = (agent.client(), agent.client());
    client.request(&exec_request("e", &["/bin/sh", "-c", "seq 1 2000000; echo done >&2"], json!({})));
    assert_eq!(client.receive().expect("reply").0, Kind::Reply);
    let written =
        |other: &mut support::Client| other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["output_bytes"].as_u64();
    let mut last = None;
    eventually("the command is held back", || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = written(&mut other);
        let same = now == last && now > Some(0);
        last = now;
        same
    });
    assert!(last < Some(3_000_000), "{last:?}");
    assert_eq!(other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"], "running");
    let outcome = Outcome::new(client.rest());
    let expected: String = (1..=2_000_000).map(|n| format!("{n}\n")).collect();
    assert!(outcome.stdout == expected.as_bytes(), "{} bytes of {}", outcome.stdout.len(), expected.len());
    assert_eq!((outcome.stderr.as_slice(), outcome.code()), (&b"done\n"[..], 0));
}

#[test]
fn a_lossless_reader_misses_nothing_when_journals_are_at_their_bound() {
    let agent = TestAgent::start_with(&[], json!({"journals_bytes": 65536, "ring_bytes": 65536}));
    let (mut reader, mut other) = (agent.client(), agent.client());
    // Commands that run and are not read take all of the memory there is.
    for number in 0..6 {
        let script = "seq 1 20000; exec sleep 600";
        other.ask(&exec_request(&format!("full{number}"), &["/bin/sh", "-c", script], json!({"follow": false})));
    }
    eventually("the journals are full", || {
        let list = other.ask(&json!({"op": "exec.list"}));
        list["execs"].as_array().expect("execs").iter().all(|exec| exec["output_bytes"] == 108_894)
    });
    // The writer is held back with its pipes full. A write of a block is whole or nothing.
    let counter = agent.path("written");
    let script = format!(
        "i=0; (while printf '%04000d' $i && printf '%04000d' $i >&2; do i=$((i+1)); echo $i > {counter}; done) & \
         read go; kill -9 $!; wait; exit 3"
    );
    reader.request(&exec_request("e", &["/bin/sh", "-c", &script], json!({"stdin": true})));
    let blocks = || std::fs::read_to_string(&counter).ok().and_then(|text| text.trim().parse::<usize>().ok());
    let (mut last, mut same) = (None, 0);
    eventually("the command is held back", || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let now = blocks();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        now.is_some() && same > 20
    });
    assert_eq!(other.run_with(&json!({"op": "exec.stdin", "exec_id": "e"}), b"go\n")[0].0, Kind::Reply);
    eventually("its end", || other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"] == "exited");
    let outcome = Outcome::new(reader.rest());
    assert_eq!(outcome.code(), 3);
    let blocks = blocks().expect("a number");
    for received in [outcome.stdout.len(), outcome.stderr.len()] {
        // The last one may have been written and not counted.
        assert!(received == 4000 * blocks || received == 4000 * (blocks + 1), "{received} bytes of {blocks} blocks");
    }
}

#[test]
fn a_lossy_reader_skips_and_a_stalled_one_does_not_hold_back_a_kill() {
    let agent = TestAgent::start_with(&[], json!({"ring_bytes": 65536}));
    let (mut lossy, mut stalled, mut other) = (agent.client(), agent.client(), agent.client());
    lossy.request(&exec_request("lossy", &["/bin/sh", "-c", "seq 1 1000000"], json!({"lossless": false})));
    assert_eq!(lossy.receive().expect("reply").0, Kind::Reply);
    eventually("the end", || other.ask(&json!({"op": "exec.get", "exec_id": "lossy"}))["state"] == "exited");
    let outcome = Outcome::new(lossy.rest());
    assert!(outcome.stdout.len() < 6_888_896 && outcome.stdout.ends_with(b"1000000\n"));
    stalled.request(&exec_request("stalled", &["yes"], json!({})));
    eventually("output", || {
        other.ask(&json!({"op": "exec.list"}))["execs"].as_array().is_some_and(|execs| execs.len() == 2)
    });
    let record = other.ask(&json!({"op": "exec.kill", "exec_id": "stalled", "reason": "timeout"}));
    assert_eq!((&record["reason"], &record["exit_code"]), (&json!("timeout"), &json!(137)));
    let outcome = Outcome::new(stalled.rest());
    assert_eq!(outcome.reason(), "timeout");
    assert_eq!(outcome.stdout.len() as u64, record["output_bytes"].as_u64().expect("a number"));
}

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
fn output_waits_for_a_reader_that_comes_back() {
    let agent = TestAgent::start_with(&[], json!({"ring_bytes": 65536}));
    let (mut reader, mut other) = (agent.client(), agent.client());
    reader.request(&exec_request("e", &["/bin/sh", "-c", "seq 1 2000000; exit 5"], json!({})));
    assert_eq!(reader.receive().expect("reply").0, Kind::Reply);
    let mut text = Vec::new();
    while text.len() < 100_000 {
        let (kind, payload) = reader.receive().expect("output");
        assert_eq!(kind, Kind::Stdout);
        text.extend_from_slice(&payload[8..]);
    }
    drop(reader);
    other.ask(&json!({"op": "exec.grace", "exec_id": "e", "grace_ms": 60_000}));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"], "running");
    // What was in its socket is gone with the connection; from there on nothing is.
    let mut again = agent.client();
    again.request(&json!({"op": "exec.attach", "exec_id": "e", "from": 0, "follow": true, "lossless": true}));
    let record: Value = serde_json::from_slice(&again.receive().expect("reply").1).expect("JSON");
    let from = record["from"].as_u64().expect("a number") as usize;
    let outcome = Outcome::new(again.rest());
    let expected: String = (1..=2_000_000).map(|n| format!("{n}\n")).collect();
    assert!(from < expected.len() / 2, "{from} of {}", expected.len());
    assert!(outcome.stdout == expected.as_bytes()[from..], "{} bytes from {from}", outcome.stdout.len());
    assert_eq!((outcome.code(), outcome.reason().as_str()), (5, "exited"));
}

/// Acknowledges what comes, as it does.
fn read_acknowledged(reader: &mut Client, text: &mut Vec<u8>, until: usize) {
    while text.len() < until {
        let (kind, payload) = reader.receive().expect("output");
        assert_eq!(kind, Kind::Stdout);
        text.extend_from_slice(&payload[8..]);
        reader.send(Kind::Ack, &(text.len() as u64).to_be_bytes());
    }
}

#[test]
fn what_a_reader_has_not_acknowledged_is_kept_for_the_next() {
    let agent = TestAgent::start_with(&[], json!({"ring_bytes": 65536}));
    let expected: String = (1..=500_000).map(|n| format!("{n}\n")).collect();
    let mut reader = agent.client();
    let acks = json!({"acks": true});
    reader.request(&exec_request("e", &["/bin/sh", "-c", "seq 1 500000; exit 5"], acks));
    assert_eq!(reader.receive().expect("reply").0, Kind::Reply);
    let mut text = Vec::new();
    read_acknowledged(&mut reader, &mut text, 300_000);
    // All that comes without a further word is lost with the connection, several times over.
    let mut other = agent.client();
    let mut from = text.len();
    for round in 0..5 {
        let mut sent = 0;
        let before = other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["output_bytes"].clone();
        while sent < 30_000 {
            sent += reader.receive().expect("output").1.len() - 8;
        }
        drop(reader);
        reader = agent.client();
        reader.request(&json!({"op": "exec.attach", "exec_id": "e", "from": from, "follow": true, "lossless": true,
            "acks": true}));
        let record: Value = serde_json::from_slice(&reader.receive().expect("reply").1).expect("JSON");
        assert_eq!(record["from"].as_u64(), Some(from as u64), "round {round}, {before} bytes were written");
        read_acknowledged(&mut reader, &mut text, from + 100_000);
        from = text.len();
    }
    // An offset beyond what was sent acknowledges no more than that.
    reader.send(Kind::Ack, &u64::MAX.to_be_bytes());
    while text.len() < expected.len() {
        let (_, payload) = reader.receive().expect("output");
        text.extend_from_slice(&payload[8..]);
        reader.send(Kind::Ack, &(text.len() as u64).to_be_bytes());
    }
    assert!(text == expected.as_bytes());
    assert_eq!(Outcome::new(reader.rest()).code(), 5);
}

#[test]
fn a_reader_that_acknowledges_nothing_is_sent_no_more_than_the_ring_keeps() {
    let agent = TestAgent::start_with(&[], json!({"ring_bytes": 65536}));
    // Each line of another stream: the order of the streams is kept as well, or waited for.
    let script = "for n in $(seq 1 4000); do echo $n; echo $n >&2; done";
    let mut reader = agent.client();
    reader.request(&exec_request("e", &["/bin/sh", "-c", script], json!({"acks": true})));
    assert_eq!(reader.receive().expect("reply").0, Kind::Reply);
    let mut other = agent.client();
    let written = |other: &mut Client| other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["output_bytes"].clone();
    let mut before = Value::Null;
    eventually("it stops", || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        let now = written(&mut other);
        let still = now == before;
        before = now;
        still
    });
    assert!(before.as_u64().expect("a number") <= 65536, "{before}");
    let (mut bytes, mut ended) = (0, false);
    while !ended {
        let (kind, payload) = reader.receive().expect("output");
        match kind {
            Kind::Stdout | Kind::Stderr => {
                bytes += payload.len() - 8;
                reader.send(Kind::Ack, &(bytes as u64).to_be_bytes());
            }
            _ => ended = kind == Kind::End,
        }
    }
    assert_eq!(bytes, 2 * (1..=4000).map(|n: u32| n.to_string().len() + 1).sum::<usize>());
    // A late one is dropped, and the connection can be used again.
    reader.send(Kind::Ack, &0u64.to_be_bytes());
    assert_eq!(reader.ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"], "exited");
}

#[test]
fn output_of_a_command_whose_starter_left_before_the_answer_waits_for_a_reader() {
    let agent = TestAgent::start_with(&[], json!({"ring_bytes": 65536}));
    for round in 0..10 {
        let id = format!("e{round}");
        let mut starter = agent.client();
        starter.request(&exec_request(&id, &["head", "-c", "4194304", "/dev/zero"], json!({})));
        drop(starter);
        let mut other = agent.client();
        eventually("it writes", || {
            let known = other.ask(&json!({"op": "exec.list"}));
            let execs = known["execs"].as_array().expect("records").clone();
            execs.iter().any(|exec| exec["exec_id"] == id && exec["output_bytes"].as_u64() > Some(0))
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        let request = json!({"op": "exec.attach", "exec_id": id, "from": 0, "follow": true, "lossless": true});
        let outcome = Outcome::new(other.run(&request));
        assert_eq!((outcome.stdout.len(), outcome.code()), (4 << 20, 0), "round {round}");
    }
}

#[test]
fn commands_that_wait_for_readers_do_not_hold_each_other_up_when_memory_is_short() {
    let agent = TestAgent::start_with(&[], json!({"journals_bytes": 65536, "ring_bytes": 65536}));
    let mut other = agent.client();
    for number in 0..8 {
        let mut reader = agent.client();
        let script = "head -c 3000000 /dev/zero; exit 6";
        reader.request(&exec_request(&format!("e{number}"), &["/bin/sh", "-c", script], json!({})));
        assert_eq!(reader.receive().expect("reply").0, Kind::Reply);
    }
    // One at most has the memory that it may have, and waits.
    eventually("the others end", || {
        let list = other.ask(&json!({"op": "exec.list"}));
        let ended = list["execs"].as_array().expect("execs").iter().filter(|exec| exec["exit_code"] == 6).count();
        ended >= 7
    });
}

#[test]
fn a_command_that_waits_for_a_reader_can_be_killed_and_a_detached_one_does_not_wait() {
    let agent = TestAgent::start_with(&[], json!({"ring_bytes": 4096}));
    let mut other = agent.client();
    for (id, detached) in [("waits", false), ("detached", true)] {
        let mut reader = agent.client();
        let script = "seq 1 300000; exit 5";
        reader.request(&exec_request(id, &["/bin/sh", "-c", script], json!({"detached": detached})));
        assert_eq!(reader.receive().expect("reply").0, Kind::Reply);
    }
    eventually("the detached one ends", || {
        other.ask(&json!({"op": "exec.get", "exec_id": "detached"}))["state"] == "exited"
    });
    assert_eq!(other.ask(&json!({"op": "exec.get", "exec_id": "waits"}))["state"], "running");
    other.ask(&json!({"op": "exec.grace", "exec_id": "waits", "grace_ms": 10}));
    eventually("the grace ends it", || {
        other.ask(&json!({"op": "exec.get", "exec_id": "waits"}))["reason"] == "cancelled"
    });
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
fn many_commands_at_once() {
    let agent = TestAgent::start();
    let threads: Vec<_> = (0..24)
        .map(|thread| {
            let socket = agent.socket.clone();
            std::thread::spawn(move || {
                let mut client = support::Client::connect(&socket);
                for n in 0..20 {
                    let outcome = client.exec(
                        &format!("e{thread}-{n}"),
                        &["/bin/sh", "-c", &format!("echo {thread}-{n}")],
                        json!({}),
                    );
                    assert_eq!(outcome.stdout_text(), format!("{thread}-{n}\n"));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("a client");
    }
    assert_eq!(agent.client().ask(&json!({"op": "sandbox.info"}))["execs_running"], 0);
}

#[test]
fn commands_run_as_users() {
    if !is_root() {
        eprintln!("SKIPPED: other users can only be used as root");
        return;
    }
    let agent = TestAgent::start();
    let mut client = agent.client();
    std::process::Command::new("chmod").args(["755", &agent.path("")]).status().expect("chmod");
    let script = "id -u; id -g; id -G; echo $USER $HOME; echo again > /dev/stdout; touch mine 2>/dev/null || echo no";
    let outcome = client.exec("a", &["/bin/sh", "-c", script], json!({"user": "daemon", "cwd": "/tmp"}));
    assert!(outcome.stdout_text().starts_with("1\n1\n1\ndaemon /usr/sbin\nagain\n"), "{}", outcome.stdout_text());
    let outcome =
        client.exec("b", &["/bin/sh", "-c", "id -u; id -g; echo $HOME"], json!({"user": "4321:77", "cwd": "/"}));
    assert_eq!(outcome.stdout_text(), format!("4321\n77\n{}\n", agent.path("ws")));
    // A user without rights can neither enter nor list what is root's.
    std::fs::create_dir(agent.path("secret")).expect("made");
    std::process::Command::new("chmod").args(["700", &agent.path("secret")]).status().expect("chmod");
    let request = exec_request("c", &["true"], json!({"user": "daemon", "cwd": agent.path("secret")}));
    assert_eq!(client.refusal(&request), "bad_request");
    // Nobody but the agent signals a monitor or the agent.
    let pid = client.ask(&json!({"op": "sandbox.info"}))["pid"].as_i64().expect("a pid");
    let script = format!(
        "kill -9 $PPID 2>/dev/null && echo killed monitor; kill -0 $PPID 2>/dev/null && echo sees; cat /proc/{pid}/environ 2>&1 >/dev/null | grep -c denied"
    );
    let text = client.shell("d", &script);
    assert_eq!(text, "1\n", "{text}");
}

#[test]
fn no_command_shares_the_user_of_the_agent_and_its_monitors() {
    if !is_root() {
        eprintln!("SKIPPED: other users can only be used as root");
        return;
    }
    let agent = TestAgent::start();
    let mut client = agent.client();
    let ids = |pid: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
        let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        [line("Uid:"), line("Gid:"), line("Groups:").trim().to_owned()]
    };
    let own = ["Uid:\t65533\t65533\t65533\t65533", "Gid:\t65533\t65533\t65533\t65533", "Groups:"];
    assert_eq!(ids(&agent.child.id().to_string()), own);
    let pid = agent.child.id();
    let script = format!(
        "for victim in {pid} $PPID; do
            prlimit --pid $victim --nofile=1:1 2>/dev/null && echo limits
            (echo 1000 > /proc/$victim/oom_score_adj) 2>/dev/null && echo score
            renice -n 19 $victim >/dev/null 2>&1 && echo nice
            taskset -p 1 $victim >/dev/null 2>&1 && echo processors
            for signal in 0 9 15 19; do kill -$signal $victim 2>/dev/null && echo signal; done
            cat /proc/$victim/environ /proc/$victim/maps /proc/$victim/fd/0 >/dev/null 2>&1 && echo look
        done
        cat /proc/self/oom_score_adj; ulimit -c; echo over"
    );
    assert_eq!(client.shell("a", &script), "500\n0\nover\n");
    let outcome = client.exec("b", &["/bin/sh", "-c", &script], json!({"user": "daemon", "cwd": "/"}));
    assert_eq!(outcome.stdout_text(), "500\n0\nover\n");
    for user in ["65533", "65533:0"] {
        assert_eq!(client.refusal(&exec_request("c", &["true"], json!({"user": user}))), "bad_request");
    }
}

#[test]
fn streams_and_terminals_belong_to_the_commands_user() {
    if !is_root() {
        eprintln!("SKIPPED: other users can only be used as root");
        return;
    }
    let agent = TestAgent::start();
    let mut client = agent.client();
    let script = "stat -Lc '%u %a' /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2; echo again > /dev/stderr";
    for (user, uid) in [("0", "0"), ("daemon", "1")] {
        let piped = client.exec(
            &format!("p{user}"),
            &["/bin/sh", "-c", script],
            json!({"user": user, "cwd": "/", "stdin": true}),
        );
        assert_eq!(piped.stdout_text(), format!("{uid} 600\n").repeat(3));
        assert_eq!(piped.stderr, b"again\n");
        let more = json!({"user": user, "cwd": "/", "tty": {"cols": 80, "rows": 24}});
        let script = "stat -c %u $(tty); stat -c %g $(tty) | grep -c 65533; echo again > $(tty)";
        let typed = client.exec(&format!("t{user}"), &["/bin/sh", "-c", script], more);
        assert_eq!(typed.stdout_text(), format!("{uid}\r\n0\r\nagain\r\n"));
    }
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

#[test]
fn text_is_utf8_and_a_user_without_an_entry_is_at_home_in_the_working_directory() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    assert_eq!(client.shell("l", "echo $LANG"), "C.UTF-8\n");
    let outcome = client.exec("o", &["/bin/sh", "-c", "echo $LANG"], json!({"env": {"LANG": "C"}}));
    assert_eq!(outcome.stdout_text(), "C\n");
    if is_root() {
        let more = json!({"user": "12345:12345", "env": {}});
        let outcome = client.exec("h", &["/bin/sh", "-c", "cd && pwd && touch mine && stat -c %u mine"], more);
        assert_eq!(outcome.stdout_text(), format!("{}\n12345\n", agent.path("ws")));
    }
}
