//! What commands say, and readers that come, lag and leave.

use crate::support::{self, Client, Outcome, TestAgent, eventually, exec_request};
use alcove_protocol::Kind;
use serde_json::{Value, json};

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
