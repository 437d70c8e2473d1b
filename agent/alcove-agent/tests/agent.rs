//! The agent as a whole: its connections, its configuration, its end, and the roots it runs in.

mod support;

use alcove_protocol::{Kind, frame};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use support::{
    Client, Folder, LISTEN_FD, Outcome, TOKEN, TestAgent, binary, error_code, eventually, exec_request, is_root, runs,
};

#[test]
fn nothing_but_configure_and_info_works_before_the_configuration() {
    let agent = TestAgent::launch(Command::new(binary()), &[]);
    let mut client = agent.client();
    let info = client.ask(&json!({"op": "sandbox.info"}));
    assert_eq!((&info["sandbox_id"], &info["pid"]), (&Value::Null, &json!(agent.child.id())));
    for request in
        [json!({"op": "exec.list"}), json!({"op": "file.stat", "path": "/"}), json!({"op": "sandbox.shutdown"})]
    {
        assert_eq!(client.refusal(&request), "unconfigured");
    }
    for (name, value) in
        [("token", json!("short")), ("user", json!("no-such-user")), ("exec_caps", json!(["SYS_NOTHING"]))]
    {
        let mut request =
            json!({"op": "sandbox.configure", "sandbox_id": "s", "token": TOKEN, "workdir": agent.path("ws")});
        request[name] = value;
        assert_eq!(client.refusal(&request), "bad_request", "{name}");
    }
    agent.configure(json!({"entropy": "00ff"}));
    assert_eq!(client.ask(&json!({"op": "exec.list"})), json!({"execs": []}));
}

#[test]
fn what_is_for_the_init_of_a_machine_is_refused_elsewhere_and_not_announced() {
    let agent = TestAgent::start();
    let mut client = Client::raw(&agent.socket);
    client.send(Kind::Hello, json!({"versions": [1], "token": TOKEN}).to_string().as_bytes());
    let (_, welcome) = client.receive().expect("welcome");
    let welcome: Value = serde_json::from_slice(&welcome).expect("JSON");
    let features: Vec<&str> =
        welcome["features"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(features.contains(&"exec_group"));
    assert!(!features.contains(&"renew") && !features.contains(&"own_groups"), "{features:?}");
    for request in [
        json!({"op": "sandbox.renew", "realtime": 0, "entropy": "00".repeat(32)}),
        json!({"op": "exec.group", "exec_id": "e", "pids": 5}),
    ] {
        assert_eq!(client.refusal(&request), "unsupported", "{request}");
    }
    let refused = |arguments: &[&str]| {
        let output = Command::new(binary()).args(arguments).output().expect("it runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&["init", "layer=/dev/vdb", "port=1024"]).contains("init is for process 1 of a machine"));
    assert!(refused(&["init", "port=1024"]).contains("layer is missing"));
    assert!(refused(&["serve", "--listen-vsock", "many"]).contains("\"many\" is no port"));
    assert!(refused(&["serve", "--listen-vsock", "1", "--socket", "s"]).contains("serve wants one of"));
    // Without the other one it would serve before it is anybody's.
    assert!(refused(&["serve", "--socket", "s", "--owner-fd", "3"]).contains("go together"));
}

#[test]
fn a_working_directory_that_is_a_symlink_to_nowhere_is_refused_and_nothing_is_made() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    std::os::unix::fs::symlink(agent.path("nowhere"), agent.path("link")).expect("link");
    std::os::unix::fs::symlink(agent.path("there"), agent.path("good")).expect("link");
    std::fs::create_dir(agent.path("there")).expect("folder");
    for (name, code) in [("link", "bad_request"), ("link/below", "bad_request")] {
        let request =
            json!({"op": "sandbox.configure", "sandbox_id": "s", "token": TOKEN, "workdir": agent.path(name)});
        assert_eq!(client.refusal(&request), code, "{name}");
    }
    assert!(!std::path::Path::new(&agent.path("nowhere")).exists());
    agent.configure(json!({"workdir": agent.path("good")}));
}

#[test]
fn only_the_token_opens_a_configured_agent() {
    let agent = TestAgent::start();
    for (hello, code) in [
        (json!({"versions": [1], "token": "f".repeat(64)}), "unauthorized"),
        (json!({"versions": [1], "token": ""}), "unauthorized"),
        (json!({"versions": [7], "token": TOKEN}), "version"),
        (json!({"versions": [1], "token": TOKEN, "more": 1}), "protocol"),
    ] {
        let mut client = Client::raw(&agent.socket);
        client.send(Kind::Hello, hello.to_string().as_bytes());
        assert_eq!(error_code(&client.rest()), code);
        assert!(client.receive().is_none());
    }
    // A second configuration replaces what it gives; connections that are open stay.
    let mut client = agent.client();
    let other = "f".repeat(64);
    let request = json!({"op": "sandbox.configure", "sandbox_id": "sb-2", "token": other, "env": {"X": "1"}, "workdir": agent.path("w2")});
    client.ask(&request);
    assert_eq!(client.ask(&json!({"op": "sandbox.info"}))["sandbox_id"], "sb-2");
    assert_eq!(client.shell("e", "echo $X; pwd"), format!("1\n{}\n", agent.path("w2")));
}

#[test]
fn a_hello_and_a_request_may_come_in_one_write() {
    let agent = TestAgent::start();
    let mut client = Client::raw(&agent.socket);
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, Kind::Hello, json!({"versions": [1], "token": TOKEN}).to_string().as_bytes());
    frame::encode(&mut bytes, Kind::Request, exec_request("e", &["echo", "at once"], json!({})).to_string().as_bytes());
    client.stream.write_all(&bytes).expect("sent");
    assert_eq!(client.receive().expect("welcome").0, Kind::Welcome);
    assert_eq!(Outcome::new(client.rest()).stdout, b"at once\n");
}

#[test]
fn what_the_protocol_forbids_closes_the_connection() {
    let agent = TestAgent::start();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("unknown field", {
            let mut bytes = Vec::new();
            frame::encode(&mut bytes, Kind::Request, br#"{"op":"sandbox.info","x":1}"#);
            bytes
        }),
        ("no JSON", {
            let mut bytes = Vec::new();
            frame::encode(&mut bytes, Kind::Request, b"{");
            bytes
        }),
        ("oversize", frame::encode_header(Kind::Request, (4 << 20) + 1).to_vec()),
        ("unknown kind", vec![0, 0, 0, 0, 0x77]),
        ("data out of turn", frame::encode_header(Kind::Data, 0).to_vec()),
        ("a second hello", {
            let mut bytes = Vec::new();
            frame::encode(&mut bytes, Kind::Hello, json!({"versions": [1], "token": TOKEN}).to_string().as_bytes());
            bytes
        }),
    ];
    for (name, bytes) in cases {
        let mut client = agent.client();
        client.stream.write_all(&bytes).expect("sent");
        assert_eq!(error_code(&client.rest()), "protocol", "{name}");
        assert!(client.receive().is_none(), "{name}");
    }
    // A request in the middle of an operation.
    let mut client = agent.client();
    client.request(&exec_request("e", &["sleep", "60"], json!({})));
    assert_eq!(client.receive().expect("reply").0, Kind::Reply);
    client.request(&json!({"op": "sandbox.info"}));
    assert_eq!(error_code(&client.rest()), "protocol");
    // The command goes on.
    assert_eq!(agent.client().ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"], "running");
}

#[test]
fn random_bytes_never_bring_the_agent_down() {
    let agent = TestAgent::start();
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..400 {
        let mut client = if round % 2 == 0 { Client::raw(&agent.socket) } else { agent.client() };
        let mut bytes: Vec<u8> = (0..next() % 600).map(|_| next() as u8).collect();
        if round % 3 == 0 && bytes.len() > 5 {
            // A valid header over garbage, so that the JSON is reached.
            let header =
                frame::encode_header(if round % 2 == 0 { Kind::Hello } else { Kind::Request }, bytes.len() - 5);
            bytes[..5].copy_from_slice(&header);
        }
        let _ = client.stream.write_all(&bytes);
        let _ = client.stream.shutdown(std::net::Shutdown::Write);
        let mut sink = Vec::new();
        let _ = client.stream.read_to_end(&mut sink);
    }
    assert_eq!(agent.client().exec("e", &["echo", "alive"], json!({})).stdout, b"alive\n");
}

#[test]
fn vanishing_clients_cost_nothing_and_end_no_command() {
    let agent = TestAgent::start();
    for n in 0..50 {
        let mut client = agent.client();
        client.request(&exec_request(
            &format!("e{n}"),
            &["/bin/sh", "-c", "yes | head -c 300000; sleep 0.1; exit 6"],
            json!({}),
        ));
        if n % 2 == 0 {
            let _ = client.receive();
        }
    }
    let mut client = agent.client();
    eventually("all have ended by themselves", || {
        let list = client.ask(&json!({"op": "exec.list"}));
        list["execs"]
            .as_array()
            .is_some_and(|execs| execs.iter().all(|exec| exec["state"] == "exited" && exec["exit_code"] == 6))
    });
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", agent.child.id())).map(Iterator::count).unwrap_or(0);
    eventually("no descriptor is left", || descriptors() < 40);
}

#[test]
fn an_idle_agent_is_small() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    client.exec("e", &["true"], json!({}));
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.child.id())).expect("status");
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).expect("a field");
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
    };
    // A debug build has more code; what it allocates is the same.
    assert!(field("RssAnon:") < 1024, "{} KiB", field("RssAnon:"));
}

#[test]
fn the_agent_keeps_six_capabilities_at_most_and_commands_none() {
    if !is_root() {
        eprintln!("SKIPPED: only root has capabilities to drop");
        return;
    }
    let agent = TestAgent::start();
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.child.id())).expect("status");
    assert!(status.contains("CapEff:\t00000000000000eb") && status.contains("CapPrm:\t00000000000000eb"), "{status}");
    assert!(status.contains("CapBnd:\t0000000000000000"), "{status}");
    let text = agent.client().shell("e", "grep CapBnd /proc/self/status");
    assert_eq!(text, "CapBnd:\t0000000000000000\n");
    let with = TestAgent::start_with(&[], json!({"exec_caps": ["NET_BIND_SERVICE", "cap_net_raw"]}));
    let mut client = with.client();
    assert_eq!(client.shell("e", "grep CapEff /proc/self/status"), "CapEff:\t0000000000002400\n");
    let outcome = client.exec("f", &["grep", "CapEff", "/proc/self/status"], json!({"user": "daemon"}));
    assert_eq!(outcome.stdout_text(), "CapEff:\t0000000000002400\n");
}

#[test]
fn the_dead_mans_switch_ends_everything() {
    let mut agent = TestAgent::start();
    let marker = format!("66{}", std::process::id());
    let mut client = agent.client();
    client.ask(&exec_request(
        "e",
        &["/bin/sh", "-c", &format!("setsid sleep {marker} & sleep {marker}")],
        json!({"follow": false}),
    ));
    eventually("it runs", || runs(&marker));
    client.ask(&json!({"op": "sandbox.expiry", "expires_in_ms": 60000}));
    client.ask(&json!({"op": "sandbox.expiry", "expires_in_ms": null}));
    client.ask(&json!({"op": "sandbox.expiry", "expires_in_ms": 50}));
    assert!(agent.wait_end().success());
    assert!(!runs(&marker));
    assert!(client.receive().is_none());
}

#[test]
fn a_shutdown_and_sigterm_end_everything() {
    for by_signal in [false, true] {
        let mut agent = TestAgent::start();
        let marker = format!("55{}{}", u8::from(by_signal), std::process::id());
        let mut client = agent.client();
        let script = format!("trap '' TERM; (setsid sleep {marker} &); sleep {marker}");
        client.ask(&exec_request("e", &["/bin/sh", "-c", &script], json!({"follow": false})));
        eventually("it runs", || runs(&marker));
        if by_signal {
            // SAFETY: the child has not been waited for.
            unsafe { libc::kill(agent.child.id() as i32, libc::SIGTERM) };
        } else {
            assert_eq!(client.ask(&json!({"op": "sandbox.shutdown"})), json!({}));
        }
        assert!(agent.wait_end().success());
        assert!(!runs(&marker), "by signal: {by_signal}");
    }
}

#[test]
fn an_agent_that_nobody_configures_ends_and_one_that_is_configured_goes_on() {
    let options = ["--unclaimed-ms", "300"];
    let mut unclaimed = TestAgent::launch(Command::new(binary()), &options);
    // To be asked how it is, is not to be told what it is for.
    unclaimed.client().ask(&json!({"op": "sandbox.info"}));
    assert!(unclaimed.wait_end().success());
    // Whoever is connected keeps it for somebody, as long as he is there.
    let mut kept = TestAgent::launch(Command::new(binary()), &options);
    let client = kept.client();
    std::thread::sleep(Duration::from_millis(900));
    kept.client().ask(&json!({"op": "sandbox.info"}));
    drop(client);
    assert!(kept.wait_end().success());
    let claimed = TestAgent::start_with(&options, json!({}));
    std::thread::sleep(Duration::from_millis(900));
    assert!(claimed.client().ask(&json!({"op": "sandbox.stats"}))["pids"].is_u64());
}

/// An agent that waits for its owner, and the ends of whoever started it: what it says, and where it is told. It reads the limit of its
/// commands' processes from a pipe that has nothing in it until it is told.
fn held() -> (TestAgent, File, impl FnOnce() + Send) {
    const OWNER: i32 = LISTEN_FD + 1;
    const TOLD: i32 = LISTEN_FD + 2;
    const PIDS: i32 = LISTEN_FD + 3;
    let (owner, tells) = pipe();
    let (says, told) = pipe();
    let (limit, limits) = pipe();
    let mut command = Command::new(binary());
    let given = [(owner.as_raw_fd(), OWNER), (told.as_raw_fd(), TOLD), (limit.as_raw_fd(), PIDS)];
    // SAFETY: only duplicates descriptors between fork and exec.
    unsafe {
        command.pre_exec(move || {
            for (fd, place) in given {
                if libc::dup2(fd, place) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let numbers = [OWNER, TOLD, PIDS].map(|number| number.to_string());
    let mut options = vec!["--unclaimed-ms", "300"];
    for (name, number) in ["--owner-fd", "--told-fd", "--exec-pids-fd"].into_iter().zip(&numbers) {
        options.extend([name, number]);
    }
    let agent = TestAgent::launch(command, &options);
    let mut entry = libc::pollfd { fd: says.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the entry is alive through the call.
    assert_eq!(unsafe { libc::poll(&raw mut entry, 1, 20_000) }, 1, "it does not wait for its owner");
    let mut says = File::from(says);
    let mut first = [0];
    drop((owner, told));
    says.read_exact(&mut first).expect("that it is ready");
    assert_eq!(&first, b"P");
    let tell = move || {
        File::from(limits).write_all(b"512\n").expect("a limit");
        File::from(tells).write_all(b"\n").expect("told");
        drop(limit);
    };
    (agent, says, tell)
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: two fresh descriptors; what is started closes them but for those that are put in a place.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        ends.map(|fd| OwnedFd::from_raw_fd(fd)).into()
    }
}

#[test]
fn an_agent_that_is_held_serves_nobody_until_it_has_an_owner_and_counts_from_then() {
    let (agent, mut says, tell) = held();
    let mut early = Client::raw(&agent.socket);
    early.send(Kind::Hello, json!({"versions": [1], "token": TOKEN}).to_string().as_bytes());
    // Longer than it would wait for a configuration: that time begins with the owner.
    std::thread::sleep(Duration::from_millis(600));
    assert!(!early.has_more());
    tell();
    let mut rest = Vec::new();
    says.read_to_end(&mut rest).expect("its word, and the end of the pipe");
    assert_eq!(rest, b"X");
    assert_eq!(early.receive().map(|(kind, _)| kind), Some(Kind::Welcome));
    drop(early);
    assert!(agent.client().ask(&json!({"op": "sandbox.info"}))["uptime_ms"].as_u64().is_some_and(|ms| ms < 500));
    assert_eq!(monitors_of(&agent), 0);
    agent.configure(json!({}));
    // Whoever waited for it is about to run a command: what that needs is there, and is what that uses.
    eventually("a monitor waits", || monitors_of(&agent) == 1);
    agent.client().run(&exec_request("e", &["/bin/true"], json!({})));
    assert_eq!(monitors_of(&agent), 1);
    std::thread::sleep(Duration::from_millis(600));
    assert!(agent.client().ask(&json!({"op": "sandbox.stats"}))["pids"].is_u64());
    let usual = TestAgent::start();
    usual.client().ask(&json!({"op": "sandbox.stats"}));
    assert_eq!(monitors_of(&usual), 0);
}

fn monitors_of(agent: &TestAgent) -> usize {
    let pid = agent.child.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("its children");
    let is_monitor = |pid: &&str| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "alcove-monitor")
    };
    children.split_whitespace().filter(is_monitor).count()
}

#[test]
fn an_agent_that_is_held_ends_with_whoever_holds_it() {
    let (mut agent, mut says, tell) = held();
    drop(tell);
    assert!(!agent.wait_end().success());
    let mut rest = Vec::new();
    says.read_to_end(&mut rest).expect("the end of the pipe");
    assert!(rest.is_empty());
}

#[test]
fn ports_are_dialled_both_ways() {
    let agent = TestAgent::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut echo = stream.try_clone().expect("a clone");
        std::io::copy(&mut stream, &mut echo).expect("echoed");
        echo.shutdown(std::net::Shutdown::Write).expect("shut");
    });
    let mut client = agent.client();
    client.request(&json!({"op": "port.dial", "port": port}));
    assert_eq!(client.receive().expect("reply").0, Kind::Reply);
    let sent: Vec<u8> = (0..8_000_000u32).map(|n| (n * 13) as u8).collect();
    // Everything is sent before anything is read: neither direction may wait for the other.
    let mut writer = client.stream.try_clone().expect("a clone");
    let to_send = sent.clone();
    let thread = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        for piece in to_send.chunks(500_000) {
            frame::encode(&mut bytes, Kind::Data, piece);
        }
        frame::encode(&mut bytes, Kind::Eof, &[]);
        writer.write_all(&bytes).expect("sent");
    });
    let mut received = Vec::new();
    let mut eof = false;
    while let Some((kind, payload)) = client.receive() {
        match kind {
            Kind::Data => received.extend_from_slice(&payload),
            Kind::Eof => eof = true,
            other => panic!("{other:?}"),
        }
    }
    thread.join().expect("the writer");
    server.join().expect("the server");
    assert!(eof && received == sent, "{} of {}", received.len(), sent.len());
    assert_eq!(agent.client().refusal(&json!({"op": "port.dial", "port": port})), "not_found");
    assert_eq!(agent.client().refusal(&json!({"op": "port.dial", "port": 1, "host": "name.example"})), "bad_request");
}

#[test]
fn a_program_that_answers_in_small_parts_is_not_kept_waiting() {
    let agent = TestAgent::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let program = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut asked = [0; 3];
        while stream.read_exact(&mut asked).is_ok() {
            stream.write_all(b"head").expect("answered");
            stream.write_all(b"body").expect("answered");
        }
    });
    let mut client = agent.client();
    client.request(&json!({"op": "port.dial", "port": port}));
    assert_eq!(client.receive().expect("reply").0, Kind::Reply);
    let started = Instant::now();
    for _ in 0..50 {
        client.send(Kind::Data, b"ask");
        let mut answer = Vec::new();
        while answer.len() < 8 {
            answer.extend_from_slice(&client.receive().expect("an answer").1);
        }
        assert_eq!(answer, b"headbody");
    }
    let took = started.elapsed();
    client.send(Kind::Eof, b"");
    program.join().expect("the program");
    // Each waits 40 ms for its second part otherwise.
    assert!(took < Duration::from_millis(1_000), "50 answers took {took:?}");
}

/// A program that says `answer` to who connects, and closes with more unread: without an end of its own before, that breaks the connection.
fn answering_port(answer: &'static [u8], breaks: bool) -> (u16, std::thread::JoinHandle<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let program = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.read_exact(&mut [0; 1]).expect("a first byte");
        stream.write_all(answer).expect("answered");
        if !breaks {
            stream.shutdown(std::net::Shutdown::Write).expect("ended");
        }
        // What is unread now makes the close a reset.
    });
    (port, program)
}

/// What a dialled port says until its client's connection is closed, and whether it said that this was all.
fn said(client: &mut support::Client) -> (Vec<u8>, bool) {
    let (mut received, mut eof) = (Vec::new(), false);
    while let Some((kind, payload)) = client.receive() {
        match kind {
            Kind::Data => received.extend_from_slice(&payload),
            Kind::Eof => eof = true,
            Kind::Reply => {}
            other => panic!("{other:?}"),
        }
    }
    (received, eof)
}

#[test]
fn a_port_that_breaks_does_not_end() {
    let agent = TestAgent::start();
    let (port, program) = answering_port(b"half of it", true);
    let mut client = agent.client();
    client.request(&json!({"op": "port.dial", "port": port}));
    client.send(Kind::Data, b"??");
    assert_eq!(said(&mut client), (b"half of it".to_vec(), false));
    program.join().expect("the program");
}

#[test]
fn a_port_that_reads_no_more_is_heard_and_its_client_may_go_on_writing() {
    let agent = TestAgent::start();
    let (port, program) = answering_port(b"too much", false);
    let mut client = agent.client();
    client.request(&json!({"op": "port.dial", "port": port}));
    let mut writer = client.stream.try_clone().expect("a clone");
    let mut piece = Vec::new();
    frame::encode(&mut piece, Kind::Data, &[0; 500_000]);
    for _ in 0..40 {
        writer.write_all(&piece).expect("all of it was taken");
    }
    program.join().expect("the program");
    assert_eq!(said(&mut client), (b"too much".to_vec(), true));
    // Still it may write, for as long as it takes it to close.
    writer.write_all(&piece).expect("the agent has not closed");
}

#[test]
fn stats_and_the_bridge_over_standard_streams() {
    let agent = TestAgent::start();
    let stats = agent.client().ask(&json!({"op": "sandbox.stats"}));
    for name in ["cpu_usage_ms", "memory_bytes", "pids", "disk_bytes", "disk_limit_bytes"] {
        assert!(stats[name].as_u64().is_some_and(|number| number > 0), "{name}: {stats}");
    }
    let mut bridge = Command::new(binary())
        .args(["stdio", "--socket", &agent.socket.to_string_lossy()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the bridge");
    let mut input = bridge.stdin.take().expect("a pipe");
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, Kind::Hello, json!({"versions": [1], "token": TOKEN}).to_string().as_bytes());
    frame::encode(&mut bytes, Kind::Request, exec_request("e", &["echo", "over"], json!({})).to_string().as_bytes());
    input.write_all(&bytes).expect("sent");
    let mut output = bridge.stdout.take().expect("a pipe");
    let mut seen = Vec::new();
    let mut chunk = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains("\"reason\":\"exited\"") {
        let count = output.read(&mut chunk).expect("read");
        assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&chunk[..count]);
    }
    drop(input);
    assert!(bridge.wait().expect("ended").success());
    assert!(String::from_utf8_lossy(&seen).contains("over\n"));
}

#[test]
fn compat_mode_does_the_same() {
    let agent = TestAgent::start_with(&["--compat"], json!({}));
    let mut client = agent.client();
    let path = agent.path("ws/d/f");
    client.run_with(&json!({"op": "file.write", "path": path}), b"content");
    assert_eq!(client.shell("e", &format!("cat {path}; ls /proc/self/fd | wc -l")), "content4\n");
    let outcome = client.exec("t", &["tty"], json!({"tty": {"cols": 80, "rows": 24}}));
    assert!(outcome.stdout_text().starts_with("/dev/pts/"));
    let outcome = client.exec("k", &["/bin/sh", "-c", "setsid sleep 60 & sleep 60"], json!({"timeout_ms": 50}));
    assert_eq!(outcome.reason(), "timeout");
}

/// Runs the agent as init of a PID namespace of its own, and looks at it from inside.
fn as_init(unshare: &[&str]) {
    let mut command = Command::new("unshare");
    command.args(unshare).args(["--fork", "--kill-child", "--pid", "--mount-proc", "--mount", binary()]);
    let mut agent = TestAgent::launch(command, &[]);
    agent.configure(json!({}));
    let mut client = agent.client();
    assert_eq!(client.ask(&json!({"op": "sandbox.info"}))["pid"], 1);
    let outcome = client.exec(
        "e",
        &["/bin/sh", "-c", "id -u; (setsid sleep 0.05 &); kill -9 1; kill -9 -1; echo done"],
        json!({}),
    );
    assert_eq!(outcome.stdout_text(), "0\ndone\n");
    assert_eq!(client.ask(&json!({"op": "sandbox.info"}))["pid"], 1);
    let outcome =
        client.exec("t", &["/bin/sh", "-c", "trap '' TERM; setsid sleep 60 & sleep 60"], json!({"timeout_ms": 50}));
    assert_eq!((outcome.reason().as_str(), outcome.code()), ("timeout", 137));
    client.ask(&exec_request(
        "orphans",
        &["/bin/sh", "-c", "for n in 1 2 3 4 5; do (setsid sleep 0.01 &); done"],
        json!({"follow": false}),
    ));
    let mut round = 0;
    eventually("no zombie is left", || {
        round += 1;
        client.shell(&format!("zombies{round}"), "cat /proc/[0-9]*/stat | grep -c ' Z '").trim() == "0"
    });
    client.ask(&json!({"op": "sandbox.shutdown"}));
    agent.wait_end();
}

#[test]
fn the_agent_is_a_good_init_as_root() {
    if !is_root() {
        eprintln!("SKIPPED: a PID namespace without a user namespace needs root");
        return;
    }
    as_init(&[]);
}

#[test]
fn the_agent_is_a_good_init_in_a_user_namespace() {
    let possible = Command::new("unshare").args(["--user", "--map-root-user", "--pid", "--fork", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: user namespaces are not allowed here");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--fork", "--kill-child", "--pid", "--mount-proc", "--mount", binary()]);
    let agent = TestAgent::launch(command, &[]);
    agent.configure(json!({}));
    let mut client = agent.client();
    assert_eq!(client.ask(&json!({"op": "sandbox.info"}))["pid"], 1);
    assert_eq!(client.shell("e", "id -u; grep CapEff /proc/self/status"), "0\nCapEff:\t0000000000000000\n");
    assert_eq!(client.refusal(&exec_request("u", &["true"], json!({"user": "daemon"}))), "bad_request");
    assert_eq!(client.exec("r", &["true"], json!({"user": "root"})).code(), 0);
    // With one user id alone a command can kill its monitor; that is told, and nothing stays.
    let outcome = client.exec("k", &["/bin/sh", "-c", "setsid sleep 60 & kill -9 -1; sleep 60"], json!({}));
    assert_eq!(outcome.reason(), "lost");
    let mut round = 0;
    eventually("nothing stays", || {
        round += 1;
        client.shell(&format!("s{round}"), "grep -l sleep /proc/[0-9]*/comm | wc -l") == "0\n"
    });
}

#[test]
fn the_agent_runs_in_a_root_that_holds_busybox_alone() {
    let Some(busybox) = ["/bin/busybox", "/usr/bin/busybox"].iter().find(|path| std::fs::metadata(path).is_ok()) else {
        eprintln!("SKIPPED: busybox-static is not installed");
        return;
    };
    if !is_root() {
        eprintln!("SKIPPED: changing the root needs root");
        return;
    }
    let root = Folder::new();
    let at = |name: &str| root.0.join(name);
    std::fs::create_dir(at("bin")).expect("made");
    for (from, to) in [(*busybox, "bin/busybox"), (binary(), "agent")] {
        std::fs::copy(from, at(to)).expect("copied");
    }
    std::os::unix::fs::symlink("busybox", at("bin/sh")).expect("a link");
    let mut command = Command::new("chroot");
    command.arg(&root.0).arg("/agent");
    let agent = TestAgent::launch(command, &[]);
    agent.configure(json!({"workdir": "/workspace"}));
    let mut client = agent.client();
    // No /proc, no /dev, no /etc.
    let text = client.shell("e", "pwd; echo $HOME $USER; busybox id -u; cat /etc/passwd 2>/dev/null || echo none");
    assert_eq!(text, "/workspace\n/root root\n0\nnone\n");
    client.run_with(&json!({"op": "file.write", "path": "/workspace/f"}), b"x");
    assert!(at("workspace/f").exists());
    let outcome = client.exec("t", &["/bin/sh", "-c", "busybox sleep 60"], json!({"timeout_ms": 50}));
    assert_eq!(outcome.reason(), "timeout");
    assert_eq!(client.exec("n", &["nothing"], json!({})).code(), 127);
}
