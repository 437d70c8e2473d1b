//! Named standard input: what was taken of it is told, and it goes on over another connection.

mod support;

use alcove_protocol::Kind;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::{Client, Outcome, TestAgent, error_code, eventually, exec_request};

/// Reads until the client was told that so much was taken; returns the output that came with it.
fn told(client: &mut Client, wanted: u64) -> Vec<u8> {
    let mut output = Vec::new();
    loop {
        match client.receive().expect("an open connection") {
            (Kind::Stdout, payload) => output.extend_from_slice(&payload[8..]),
            (Kind::Event, payload) => {
                let event: Value = serde_json::from_slice(&payload).expect("JSON");
                assert_eq!(event["event"], "input");
                if event["taken"] == wanted {
                    return output;
                }
            }
            (kind, _) => assert_eq!(kind, Kind::Reply),
        }
    }
}

fn attach(name: &str, from: usize) -> Value {
    json!({"op": "exec.attach", "exec_id": "e", "from": from, "follow": true, "lossless": true, "input": name})
}

fn reply(client: &mut Client, request: &Value) -> Value {
    client.request(request);
    let (kind, payload) = client.receive().expect("a reply");
    assert_eq!(kind, Kind::Reply, "{}", String::from_utf8_lossy(&payload));
    serde_json::from_slice(&payload).expect("JSON")
}

#[test]
fn a_client_hears_what_was_taken_and_goes_on_from_there() {
    let agent = TestAgent::start();
    let (mut first, mut second) = (agent.client(), agent.client());
    first.request(&exec_request("e", &["cat"], json!({"stdin": true, "input": "mine"})));
    first.send(Kind::Data, b"hello ");
    let mut output = told(&mut first, 6);
    // The first connection is still there, and says more behind the back of the second: that is not taken twice.
    let record = reply(&mut second, &attach("mine", output.len()));
    assert_eq!(record["input_taken"], 6);
    first.send(Kind::Data, b"world");
    second.send(Kind::Data, b"world");
    output.extend(told(&mut second, 11));
    second.send(Kind::Eof, &[]);
    let outcome = Outcome::new(second.rest());
    output.extend_from_slice(&outcome.stdout);
    assert_eq!(String::from_utf8_lossy(&output), "hello world");
    // Another name is another input.
    let mut third = agent.client();
    assert_eq!(reply(&mut third, &attach("other", 0))["input_taken"], 0);
    assert_eq!(agent.client().refusal(&attach("", 0)), "bad_request");
    assert_eq!(agent.client().refusal(&attach(&"x".repeat(65), 0)), "bad_request");
}

#[test]
fn input_for_a_closed_end_counts_as_taken_and_an_unnamed_one_is_told_nothing() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    client.request(&exec_request("e", &["sleep", "60"], json!({"stdin": true, "input": "mine"})));
    client.send(Kind::Data, b"abc");
    client.send(Kind::Eof, &[]);
    client.send(Kind::Data, b"de");
    told(&mut client, 5);
    let mut other = agent.client();
    let record = reply(&mut other, &json!({"op": "exec.attach", "exec_id": "e", "follow": true}));
    assert_eq!(record.get("input_taken"), None);
    agent.client().ask(&json!({"op": "exec.kill", "exec_id": "e", "reason": "cancelled"}));
    assert_eq!(Outcome::new(other.rest()).frames.len(), 2, "the exit and the end");
}

#[test]
fn input_that_is_sent_again_is_taken_once() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    client.ask(&exec_request("e", &["cat"], json!({"stdin": true, "follow": false})));
    let write = json!({"op": "exec.stdin", "exec_id": "e", "input": "w", "again": false});
    let again = json!({"op": "exec.stdin", "exec_id": "e", "input": "w", "again": true});
    // The first time breaks off in the middle.
    let mut broken = agent.client();
    broken.request(&write);
    broken.send(Kind::Data, b"one ");
    eventually("it arrives", || client.ask(&json!({"op": "exec.get", "exec_id": "e"}))["output_bytes"] == 4);
    drop(broken);
    for _ in 0..2 {
        let frames = client.run_with(&again, b"one two");
        assert_eq!(String::from_utf8_lossy(&frames[0].1), r#"{"written":7}"#);
    }
    client.ask(&json!({"op": "exec.stdin_close", "exec_id": "e"}));
    let follow = json!({"op": "exec.attach", "exec_id": "e", "follow": true, "lossless": true});
    assert_eq!(Outcome::new(client.run(&follow)).stdout_text(), "one two");
    // After the end, what was taken before is no refusal; more than that is.
    assert_eq!(client.run_with(&again, b"one two")[0].0, Kind::Reply);
    assert_eq!(error_code(&client.run_with(&again, b"one two three")), "conflict");
    assert_eq!(client.refusal(&json!({"op": "exec.stdin", "exec_id": "e", "input": "new"})), "conflict");
}

#[test]
fn input_goes_on_at_an_offset() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    client.ask(&exec_request("e", &["cat"], json!({"stdin": true, "follow": false})));
    let write = |offset: u64| json!({"op": "exec.stdin", "exec_id": "e", "input": "w", "offset": offset});
    let get = json!({"op": "exec.get", "exec_id": "e", "input": "w"});
    assert_eq!(client.ask(&get)["input_taken"], 0);
    assert_eq!(client.run_with(&write(0), b"one ")[0].0, Kind::Reply);
    // What begins before it is skipped, what begins after it is refused.
    assert_eq!(client.run_with(&write(2), b"e two")[0].0, Kind::Reply);
    assert_eq!(client.ask(&get)["input_taken"], 7);
    assert_eq!(client.run_with(&write(7), b" three")[0].0, Kind::Reply);
    assert_eq!(client.refusal(&write(14)), "conflict");
    assert_eq!(client.ask(&get)["input_taken"], 13);
    client.ask(&json!({"op": "exec.stdin_close", "exec_id": "e"}));
    let follow = json!({"op": "exec.attach", "exec_id": "e", "follow": true, "lossless": true});
    assert_eq!(Outcome::new(client.run(&follow)).stdout_text(), "one two three");
    // After the end, what was taken before is no refusal.
    assert_eq!(client.run_with(&write(4), b"two three")[0].0, Kind::Reply);
}

#[test]
fn a_client_that_does_not_read_is_told_little() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    client.request(&exec_request("e", &["sh", "-c", "cat > /dev/null"], json!({"stdin": true, "input": "mine"})));
    let mut bytes = Vec::new();
    for _ in 0..200_000 {
        alcove_protocol::frame::encode(&mut bytes, Kind::Data, b"x");
    }
    std::io::Write::write_all(&mut client.stream, &bytes).expect("sent");
    client.send(Kind::Eof, &[]);
    let frames = client.rest();
    let events = frames.iter().filter(|frame| frame.0 == Kind::Event).count();
    assert!(events < 100_000, "{events} events");
    let last = frames.iter().rev().filter(|frame| frame.0 == Kind::Event).nth(1).expect("an event");
    assert!(String::from_utf8_lossy(&last.1).contains("input"), "{frames:?}");
}

/// Bytes that do not repeat soon.
fn noise(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn a_command_that_reads_and_writes_ends_also_when_its_client_acknowledges_after_all_of_its_input() {
    let agent = TestAgent::start_with(&[], json!({"ring_bytes": 65536}));
    for (id, more) in [
        ("named", json!({"stdin": true, "acks": true, "input": "mine"})),
        ("unnamed", json!({"stdin": true, "acks": true})),
    ] {
        let mut client = agent.client();
        client.request(&exec_request(id, &["cat"], more));
        let input = noise(8 << 20);
        let mut writer = Client::of(client.stream.try_clone().expect("another handle"));
        let all = input.clone();
        let (count, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, done) = (count.clone(), over.clone());
        let writing = std::thread::spawn(move || {
            for piece in all.chunks(256 * 1024) {
                writer.send(Kind::Data, piece);
            }
            writer.send(Kind::Eof, &[]);
            while !done.load(Ordering::Relaxed) {
                writer.send(Kind::Ack, &counted.load(Ordering::Relaxed).to_be_bytes());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let (mut output, mut ended) = (Vec::new(), false);
        while !ended {
            let (kind, payload) = client.receive().expect("an open connection");
            if kind == Kind::Stdout {
                output.extend_from_slice(&payload[8..]);
                count.store(output.len() as u64, Ordering::Relaxed);
            }
            ended = kind == Kind::End;
        }
        over.store(true, Ordering::Relaxed);
        assert!(output == input, "{id}: {} bytes", output.len());
        writing.join().expect("the writer");
    }
}

#[test]
fn output_is_kept_until_it_is_acknowledged_while_input_waits() {
    let agent = TestAgent::start_with(&[], json!({"ring_bytes": 65536}));
    let mut client = agent.client();
    client.request(&exec_request("e", &["cat"], json!({"stdin": true, "acks": true, "input": "mine"})));
    let input = noise(4 << 20);
    // As much as is allowed is sent, and nothing acknowledged.
    let (mut sent, mut taken) = (0, 0);
    loop {
        while sent < taken + 512 * 1024 && sent < input.len() {
            client.send(Kind::Data, &input[sent..sent + 64 * 1024]);
            sent += 64 * 1024;
        }
        match client.receive_within(Duration::from_secs(2)) {
            Some((Kind::Event, payload)) => {
                let event: Value = serde_json::from_slice(&payload).expect("JSON");
                taken = event["taken"].as_u64().expect("a number") as usize;
            }
            Some(_) => {}
            None => break,
        }
    }
    assert!(sent > 1 << 20 && sent < input.len(), "{sent} bytes were sent");
    drop(client);
    let mut again = agent.client();
    let request = json!({"op": "exec.attach", "exec_id": "e", "from": 0, "follow": true, "lossless": true, "acks": true,
        "input": "mine"});
    let record = reply(&mut again, &request);
    assert_eq!((&record["from"], &record["input_taken"]), (&json!(0), &json!(sent)));
    // An acknowledgement is read behind all of the input that was allowed.
    let mut output = Vec::new();
    while output.len() < sent {
        if let (Kind::Stdout, payload) = again.receive().expect("an open connection") {
            output.extend_from_slice(&payload[8..]);
            again.send(Kind::Ack, &(output.len() as u64).to_be_bytes());
        }
    }
    assert!(output == input[..sent]);
    again.send(Kind::Eof, &[]);
    assert_eq!(Outcome::new(again.rest()).code(), 0);
}

#[test]
fn promised_input_is_told_until_its_end_and_a_kill_for_it_says_so() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let record = |client: &mut Client| client.ask(&json!({"op": "exec.get", "exec_id": "e"}));
    for id in ["e", "f"] {
        client.ask(&exec_request(id, &["cat"], json!({"stdin": true, "follow": false, "input_bytes": 8})));
    }
    assert_eq!(record(&mut client)["input_bytes"], 8);
    client.run_with(&json!({"op": "exec.stdin", "exec_id": "e", "input": "e"}), b"12345678");
    assert_eq!(record(&mut client)["input_bytes"], 8, "its end has not come");
    client.ask(&json!({"op": "exec.stdin_close", "exec_id": "e"}));
    assert_eq!(record(&mut client).get("input_bytes"), None);
    let mut follower = agent.client();
    follower.request(&json!({"op": "exec.attach", "exec_id": "f", "follow": true, "lossless": true}));
    let kill = json!({"op": "exec.kill", "exec_id": "f", "reason": "cancelled", "input_lost": 5});
    let killed = client.ask(&kill);
    assert_eq!((&killed["reason"], &killed["input_lost"]), (&json!("cancelled"), &json!(5)));
    assert_eq!(killed.get("input_bytes"), None);
    let exit = Outcome::new(follower.rest()).exit.expect("an exit");
    assert_eq!(exit["input_lost"], 5);
    // One that has ended keeps its record.
    let kill = json!({"op": "exec.kill", "exec_id": "f", "reason": "cancelled", "input_lost": 6});
    assert_eq!(client.ask(&kill)["input_lost"], 5);
}
