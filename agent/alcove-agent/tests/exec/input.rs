//! What commands are given: standard input and terminals.

use crate::support::{self, Outcome, TestAgent, eventually, exec_request};
use alcove_protocol::Kind;
use serde_json::json;

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
