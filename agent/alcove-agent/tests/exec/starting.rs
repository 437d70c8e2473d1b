//! How commands start, and what is refused.

use crate::support::{self, TestAgent, exec_request, is_root};
use alcove_protocol::Kind;
use serde_json::json;

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
fn commands_may_use_every_processor_that_the_agent_may() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let own = std::fs::read_to_string("/proc/self/status").expect("own status");
    let allowed = |text: &str| text.lines().find(|line| line.starts_with("Cpus_allowed:")).map(str::to_owned);
    // Of one monitor, which keeps to one processor for each start.
    for id in ["a", "b", "c"] {
        let text = client.shell(id, "cat /proc/self/status");
        assert_eq!(allowed(&text), allowed(&own));
    }
    // The monitor is given its own back while the command begins.
    let text = client.shell("d", "sleep 0.5; cat /proc/$PPID/status");
    assert_eq!(allowed(&text), allowed(&own), "its monitor");
}

#[test]
fn commands_may_use_processors_that_are_allowed_later() {
    std::thread::spawn(|| {
        let group = format!("/sys/fs/cgroup/cpuset/alcove-test-{}", std::process::id());
        let of_all = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/cpuset/{name}")).unwrap_or_default();
        let (all, memory) = (of_all("cpuset.cpus"), of_all("cpuset.mems"));
        let write = |name: &str, text: &str| std::fs::write(format!("{group}/{name}"), text);
        if !all.starts_with('0') || all.trim() == "0" || std::fs::create_dir(&group).is_err() {
            eprintln!("skipped: no group of processors can be made here, or there is one alone");
            return;
        }
        // The agent begins in it, as this thread's child.
        let entered =
            write("cpuset.mems", &memory).and_then(|()| write("cpuset.cpus", "0")).and_then(|()| write("tasks", "0"));
        let agent = TestAgent::start();
        let mut client = agent.client();
        let allowed = "sleep 0.5; sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status /proc/$PPID/status";
        let few = client.shell("few", allowed);
        let widened = write("cpuset.cpus", &all);
        let more = client.shell("more", allowed);
        drop((client, agent));
        let left = std::fs::write("/sys/fs/cgroup/cpuset/tasks", "0");
        // Until the last of the agent's is gone.
        let removed = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            std::fs::remove_dir(&group).is_ok()
        });
        entered.and(widened).and(left).expect("a group");
        assert!(removed, "{group} is left");
        assert_eq!([few, more], ["0\n0\n".to_owned(), format!("{0}\n{0}\n", all.trim())]);
    })
    .join()
    .expect("joined");
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
    assert!(text.to_lowercase().contains("symbolic link") && !text.contains("os error"), "{text}");
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
