//! The fixtures that the service's tests read too.

use alcove_protocol::{
    Decoder, ErrorBody, Event, ExecList, ExecRecord, FileInfo, FrameError, Hello, Info, Kind, Request, Started, Stats,
    Welcome, frame,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;

fn load(name: &str) -> Value {
    let path = format!("{}/../fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).expect("fixtures are JSON")
}

fn list<'a>(fixtures: &'a Value, name: &str) -> &'a Vec<Value> {
    fixtures[name].as_array().expect("a list")
}

fn bytes(value: &Value) -> Vec<u8> {
    let hex = value.as_str().expect("hexadecimal text");
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits")).collect()
}

fn kind(name: &str) -> Kind {
    Kind::ALL.into_iter().find(|kind| format!("{kind:?}").to_lowercase() == name).expect("a known kind")
}

#[test]
fn every_frame_means_what_its_fixture_says() {
    for fixture in list(&load("frames.json"), "frames") {
        let name = &fixture["name"];
        let mut decoder = Decoder::new();
        decoder.extend(&bytes(&fixture["hex"]));
        let (found, payload) = decoder.next_frame().expect("valid").expect("whole");
        let (found, payload) = (found, payload.to_vec());
        assert_eq!(found, kind(fixture["kind"].as_str().expect("kind")), "{name}");
        assert_eq!(decoder.buffered(), 0, "{name}");
        let mut encoded = Vec::new();
        frame::encode(&mut encoded, found, &payload);
        assert_eq!(encoded, bytes(&fixture["hex"]), "{name}");
        if let Some(json) = fixture.get("json") {
            assert_eq!(&serde_json::from_slice::<Value>(&payload).expect("JSON"), json, "{name}");
            match found {
                Kind::Hello => drop(serde_json::from_slice::<Hello>(&payload).expect("hello")),
                Kind::Request => drop(serde_json::from_slice::<Request>(&payload).expect("request")),
                Kind::Error => drop(serde_json::from_slice::<ErrorBody>(&payload).expect("error")),
                Kind::Event => {
                    let event: Event = serde_json::from_slice(&payload).expect("event");
                    assert_eq!(&serde_json::to_value(event).expect("JSON"), json, "{name}");
                }
                _ => {}
            }
            continue;
        }
        let raw = match fixture.get("offset") {
            None => &payload[..],
            Some(offset) => {
                let expected: u64 = offset.as_str().expect("decimal text").parse().expect("a number");
                assert_eq!(u64::from_be_bytes(payload[..8].try_into().expect("eight bytes")), expected, "{name}");
                &payload[8..]
            }
        };
        assert_eq!(raw, bytes(&fixture["bytes"]), "{name}");
    }
}

#[test]
fn refused_frames_are_refused_by_their_header() {
    for fixture in list(&load("frames.json"), "refused") {
        let mut decoder = Decoder::new();
        decoder.extend(&bytes(&fixture["hex"]));
        let reason = match decoder.next_frame() {
            Err(FrameError::UnknownKind(_)) => "unknown_kind",
            Err(FrameError::TooLong { .. }) => "too_long",
            Ok(_) => "none",
        };
        assert_eq!(fixture["reason"], reason, "{}", fixture["name"]);
    }
}

#[test]
fn requests_are_taken_and_refused_as_the_fixtures_say() {
    let fixtures = load("requests.json");
    for request in list(&fixtures, "accepted") {
        assert!(Request::deserialize_value(request).is_ok(), "{request}");
    }
    for request in list(&fixtures, "refused") {
        assert!(Request::deserialize_value(request).is_err(), "{request}");
    }
}

/// Reads what a fixture says into the type and writes it again: nothing may be lost or spelled otherwise.
fn same<T: DeserializeOwned + Serialize>(name: &str, value: &Value) {
    let read: T = serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(&serde_json::to_value(read).expect("JSON"), value, "{name}");
}

#[test]
fn every_operation_is_spelled_as_the_fixtures_say() {
    let fixtures = load("operations.json");
    same::<Hello>("hello", &fixtures["hello"]);
    same::<Welcome>("welcome", &fixtures["welcome"]);
    for error in list(&fixtures, "errors") {
        same::<ErrorBody>("errors", error);
    }
    let mut told = BTreeSet::new();
    for operation in list(&fixtures, "operations") {
        let name = operation["name"].as_str().expect("a name");
        let request = &operation["request"];
        if let Err(error) = Request::deserialize_value(request) {
            panic!("{name}: {error}");
        }
        let op = request["op"].as_str().expect("an operation");
        told.insert(op.to_owned());
        for event in operation.get("events").and_then(Value::as_array).into_iter().flatten() {
            same::<Event>(name, event);
        }
        let Some(reply) = operation.get("reply") else { continue };
        match op {
            "sandbox.info" => same::<Info>(name, reply),
            "sandbox.stats" => same::<Stats>(name, reply),
            "exec.start" => same::<Started>(name, reply),
            "exec.attach" | "exec.get" | "exec.kill" => same::<ExecRecord>(name, reply),
            "exec.list" => same::<ExecList>(name, reply),
            "file.stat" | "file.write" | "file.mkdir" => same::<FileInfo>(name, reply),
            "file.read" => same::<FileInfo>(name, &reply["info"]),
            _ => {}
        }
    }
    assert_eq!(told, operations(), "every operation has a fixture");
}

/// The names of all operations, as the refusal of an unknown one lists them.
fn operations() -> BTreeSet<String> {
    let refusal = Request::deserialize_value(&serde_json::json!({"op": "?"})).expect_err("no operation").to_string();
    let names = refusal.split('`').skip(3).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    assert!(names.len() > 20, "{refusal}");
    names
}

trait DeserializeValue: Sized {
    fn deserialize_value(value: &Value) -> Result<Self, serde_json::Error>;
}

impl DeserializeValue for Request {
    fn deserialize_value(value: &Value) -> Result<Self, serde_json::Error> {
        serde_json::from_str(&value.to_string())
    }
}
