//! What clients and commands can make the agent hold, and how it goes on when something is used up.

mod support;

use alcove_protocol::Kind;
use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::process::Command;
use support::{Client, TOKEN, TestAgent, eventually, exec_request};

/// All records, batch by batch.
fn list(client: &mut Client) -> Vec<Vec<Value>> {
    let mut batches = Vec::new();
    let mut reply = client.ask(&json!({"op": "exec.list"}));
    loop {
        batches.push(reply["execs"].as_array().expect("a list").clone());
        match &reply["next"] {
            Value::Null => return batches,
            next => reply = client.ask(&json!({"op": "exec.list", "after": next})),
        }
    }
}

fn resident_kib(agent: &TestAgent) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.child.id())).expect("its status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_ascii_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// Runs `count` commands whose records are as long as records get.
fn run_with_long_lines(client: &mut Client, count: usize) {
    let long = "ä".repeat(17_000);
    for number in 0..count {
        let outcome = client.exec(&format!("e{number}"), &["true", &long], json!({}));
        assert_eq!(outcome.code(), 0);
    }
}

#[test]
fn records_come_in_batches_and_keep_the_beginning_of_a_long_command_line() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    run_with_long_lines(&mut client, 60);
    let batches = list(&mut client);
    assert!(batches.len() > 1, "all of it in one batch");
    let records = batches.concat();
    let ids: Vec<String> = records.iter().map(|record| record["exec_id"].as_str().expect("id").to_owned()).collect();
    assert_eq!(ids, (0..60).map(|number| format!("e{number}")).collect::<Vec<_>>());
    for record in &records {
        let kept = record["args"][0].as_str().expect("an argument");
        assert!(kept.len() < 40_000 && kept.starts_with("ää") && kept.ends_with("ä…"), "{} bytes", kept.len());
    }
    // However many commands there are, what is remembered of them is bounded: the oldest give way.
    let mut other = agent.client();
    let long = "x".repeat(33_000);
    for number in 0..210 {
        other.exec(&format!("more{number}"), &["true", &long], json!({}));
    }
    assert_eq!(other.refusal(&json!({"op": "exec.get", "exec_id": "e0"})), "not_found");
    assert_eq!(other.ask(&json!({"op": "exec.get", "exec_id": "more209"}))["exit_code"], 0);
}

#[test]
fn answers_that_nobody_reads_do_not_pile_up() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    run_with_long_lines(&mut client, 30);
    let before = resident_kib(&agent);
    let requests = 24;
    for _ in 0..requests {
        client.request(&json!({"op": "exec.list"}));
    }
    // Another client's answer tells that the agent has seen them.
    agent.client().ask(&json!({"op": "sandbox.info"}));
    std::thread::sleep(std::time::Duration::from_millis(300));
    let grown = resident_kib(&agent).saturating_sub(before);
    assert!(grown < 12 * 1024, "{grown} KiB more for {requests} answers");
    for _ in 0..requests {
        let frames = client.rest();
        assert_eq!(frames.iter().map(|frame| frame.0).collect::<Vec<_>>(), [Kind::Reply, Kind::End]);
    }
}

#[test]
fn thousands_of_requests_in_one_write_are_answered() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let mut bytes = Vec::new();
    let requests = 20_000;
    for _ in 0..requests {
        alcove_protocol::frame::encode(&mut bytes, Kind::Request, br#"{"op":"exec.list"}"#);
    }
    let mut writer = client.stream.try_clone().expect("a clone");
    let thread = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &bytes).expect("sent"));
    for _ in 0..requests {
        let frames = client.rest();
        assert_eq!(frames.first().map(|frame| frame.0), Some(Kind::Reply));
    }
    thread.join().expect("all was sent");
}

#[test]
fn connections_are_accepted_again_once_descriptors_are_free() {
    let mut command = Command::new(support::binary());
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let limit = support::LISTEN_FD as u64 + 1;
            let files = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &files) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let agent = TestAgent::launch(command, &[]);
    agent.configure(json!({}));
    let mut client = agent.client();
    let mut started = 0;
    loop {
        client.request(&exec_request(&format!("e{started}"), &["sleep", "600"], json!({"follow": false})));
        if client.rest().first().expect("a frame").0 != Kind::Reply {
            break;
        }
        started += 1;
    }
    assert!(started > 2, "{started}");
    // Whatever is left after that, ten connections take it.
    let mut waiting: Vec<Client> = (0..10).map(|_| Client::raw(&agent.socket)).collect();
    for other in &mut waiting {
        other.send(Kind::Hello, json!({"versions": [1], "token": TOKEN}).to_string().as_bytes());
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    // What is freed here is no connection's.
    for number in 0..started {
        client.ask(&json!({"op": "exec.signal", "exec_id": format!("e{number}"), "signal": 9}));
    }
    for other in &mut waiting {
        assert_eq!(other.receive().map(|frame| frame.0), Some(Kind::Welcome));
    }
    eventually("a command runs again", || {
        started += 1;
        client.request(&exec_request(&format!("e{started}"), &["true"], json!({"follow": false})));
        client.rest().first().expect("a frame").0 == Kind::Reply
    });
}
