//! Kills: many at once, and of processes that look dead.

mod support;

use serde_json::{Value, json};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use support::{TestAgent, eventually, exec_request};

#[test]
fn many_commands_with_one_deadline_end_while_requests_are_answered() {
    // Half of them leave processes behind as well, which makes twice the work.
    let commands: u64 = std::env::var("MANY_COMMANDS").map_or(150, |text| text.parse().expect("a number"));
    let agent = TestAgent::start();
    let (mut client, mut events, mut others) = (agent.client(), agent.client(), agent.client());
    assert_eq!(client.ask(&json!({"op": "sandbox.info"}))["execs_running"], 0);
    events.request(&json!({"op": "sandbox.events"}));
    events.receive().expect("a reply");
    let began = Instant::now();
    let deadline = Duration::from_millis(1_000 + 20 * commands);
    for number in 0..commands {
        let left = deadline.saturating_sub(began.elapsed()).as_millis().max(1) as u64;
        let script = if number % 2 == 0 { "exec sleep 600" } else { "sleep 600 & sleep 600" };
        client.ask(&exec_request(
            &format!("e{number}"),
            &["/bin/sh", "-c", script],
            json!({"follow": false, "detached": true, "timeout_ms": left}),
        ));
    }
    let started = began.elapsed();
    let told = std::thread::spawn(move || {
        for _ in 0..commands {
            let (_, payload) = events.receive().expect("an event");
            let event: Value = serde_json::from_slice(&payload).expect("JSON");
            assert_eq!(event["reason"], "timeout", "{event}");
        }
    });
    let mut longest = Duration::ZERO;
    let mut answers = 0;
    while !told.is_finished() {
        let asked = Instant::now();
        others.ask(&json!({"op": "exec.get", "exec_id": "e0"}));
        longest = longest.max(asked.elapsed());
        answers += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    told.join().expect("every end is told");
    let late = began.elapsed().saturating_sub(deadline.max(started));
    println!("{commands} commands: over {late:?} after their deadline; longest answer {longest:?} of {answers}");
    assert!(late < Duration::from_secs(5), "{late:?}");
    assert!(longest < Duration::from_secs(2), "{longest:?}");
}

#[test]
fn a_process_whose_first_thread_has_ended_is_killed() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let program = std::env::current_exe().expect("this program").to_string_lossy().into_owned();
    // In a session of its own, out of the reach of a signal to the command's group.
    let script = format!("{}=1 setsid '{program}' & echo $!; wait", first_thread::WISH);
    client.ask(&exec_request("e", &["/bin/sh", "-c", &script], json!({"follow": false})));
    let mut other = agent.client();
    let mut pid = String::new();
    eventually("its pid", || {
        let attach = json!({"op": "exec.attach", "exec_id": "e", "follow": false, "lossless": false});
        pid = support::Outcome::new(other.run(&attach)).stdout_text().trim().to_owned();
        !pid.is_empty()
    });
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    eventually("only other threads are left", || state().contains(") Z "));
    assert_eq!(client.ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"], "running");
    let record = client.ask(&json!({"op": "exec.kill", "exec_id": "e", "reason": "cancelled"}));
    assert_eq!((&record["reason"], &record["signal"]), (&json!("cancelled"), &json!("SIGKILL")));
    assert_eq!(state(), "");
}

#[test]
fn a_deadline_holds_for_a_program_that_does_not_get_to_run() {
    let agent = TestAgent::start();
    let program = std::env::temp_dir().join(format!("alcove-leased-{}", std::process::id()));
    std::fs::write(&program, "#!/bin/sh\n").expect("a program");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let held = std::fs::File::open(&program).expect("the program");
    // Who opens it, to execute it for one, waits until the lease is given up, or 45 s. A signal would ask for that.
    // SAFETY: plain numbers, and a live descriptor.
    let leased = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(held.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
    };
    if !leased {
        eprintln!("SKIPPED: a deadline of what cannot be executed: {}", std::io::Error::last_os_error());
        return;
    }
    let began = Instant::now();
    let path = program.to_string_lossy();
    let outcome = support::Outcome::new(agent.client().run(&exec_request("e", &[&path], json!({"timeout_ms": 500}))));
    std::fs::remove_file(&program).expect("removed");
    let exit = outcome.exit.expect("an exit");
    assert_eq!(exit["reason"], "timeout", "{exit}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_deadline_is_told_though_the_commands_monitor_was_stopped() {
    let agent = TestAgent::start();
    let (mut client, mut other) = (agent.client(), agent.client());
    let began = Instant::now();
    client.ask(&exec_request("e", &["/bin/sleep", "600"], json!({"follow": false, "timeout_ms": 1_000})));
    let pid = other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["pid"].as_i64().expect("its pid");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its line in /proc");
    let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)).expect("its parent");
    let monitor = parent.parse().expect("a number");
    // As its command can where both are one user to the kernel.
    // SAFETY: plain kill.
    assert_eq!(unsafe { libc::kill(monitor, libc::SIGSTOP) }, 0);
    eventually("the end", || other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"] == "exited");
    let record = other.ask(&json!({"op": "exec.get", "exec_id": "e"}));
    assert_eq!(record["reason"], "timeout", "{record}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// Who traces a process keeps it for the one that waits for it, also when it was killed: as one that cannot be killed at the moment.
struct Kept {
    pid: i32,
}

impl Kept {
    fn new(pid: i32) -> Option<Kept> {
        // SAFETY: plain numbers; the calls for it come from this thread alone.
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) } == 0;
        if !seized {
            eprintln!("SKIPPED: what outlives a deadline: {}", std::io::Error::last_os_error());
        }
        seized.then_some(Kept { pid })
    }

    fn let_go(self) {
        let mut status = 0;
        // It stops before it is killed.
        // SAFETY: the status outlives the call.
        while unsafe { libc::waitpid(self.pid, &mut status, libc::__WALL) } == self.pid && libc::WIFSTOPPED(status) {}
        assert!(libc::WIFSIGNALED(status), "{status:x}");
    }
}

/// A command with a deadline and a process in the background, which is kept. Returns when that deadline is.
fn with_one_kept(client: &mut support::Client) -> Option<(Kept, Instant)> {
    let deadline = Instant::now() + Duration::from_millis(700);
    let script = "sleep 600 & echo $!; exec sleep 600";
    client.request(&exec_request("e", &["/bin/sh", "-c", script], json!({"timeout_ms": 700})));
    client.receive().expect("a reply");
    let (_, told) = client.receive().expect("its pid");
    // Behind the offset.
    let pid = String::from_utf8_lossy(&told[8..]).trim().parse().expect("a pid");
    Some((Kept::new(pid)?, deadline))
}

#[test]
fn the_end_of_a_deadline_is_told_when_nothing_of_its_tree_is_left() {
    let agent = TestAgent::start();
    let (mut client, mut other) = (agent.client(), agent.client());
    let Some((kept, deadline)) = with_one_kept(&mut client) else { return };
    std::thread::sleep(deadline + Duration::from_millis(600) - Instant::now());
    assert_eq!(other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"], "running");
    // Its process id may be another's by now.
    assert_eq!(other.refusal(&json!({"op": "exec.signal", "exec_id": "e", "signal": 15})), "conflict");
    kept.let_go();
    let outcome = support::Outcome::new(client.rest());
    let late = deadline.elapsed();
    assert!(late < Duration::from_millis(1_800), "{late:?}");
    let exit = outcome.exit.expect("an exit");
    assert_eq!((&exit["reason"], &exit["signal"]), (&json!("timeout"), &json!("SIGKILL")));
    // It says how long the command ran.
    assert!(exit["duration_ms"].as_u64().is_some_and(|ms| (700..1_300).contains(&ms)), "{exit}");
}

#[test]
fn the_end_of_a_deadline_does_not_wait_for_ever_for_what_cannot_be_killed() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    let Some((kept, deadline)) = with_one_kept(&mut client) else { return };
    let outcome = support::Outcome::new(client.rest());
    let late = deadline.elapsed();
    assert_eq!(outcome.exit.expect("an exit")["reason"], "timeout");
    assert!((1_900..4_000).contains(&late.as_millis()), "{late:?}");
    // Whoever asks for a kill hears of it when it is gone all the same.
    let mut other = agent.client();
    other.request(&json!({"op": "exec.kill", "exec_id": "e", "reason": "cancelled"}));
    assert!(other.receive_within(Duration::from_millis(300)).is_none());
    kept.let_go();
    other.receive().expect("a reply");
}

#[test]
fn a_deadline_is_told_though_somebody_keeps_the_first_process() {
    let agent = TestAgent::start();
    let (mut client, mut other) = (agent.client(), agent.client());
    let began = Instant::now();
    client.ask(&exec_request("e", &["/bin/sleep", "600"], json!({"follow": false, "timeout_ms": 700})));
    let pid = other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["pid"].as_i64().expect("its pid");
    let Some(kept) = Kept::new(i32::try_from(pid).expect("a pid")) else { return };
    eventually("the end", || other.ask(&json!({"op": "exec.get", "exec_id": "e"}))["state"] == "exited");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let record = other.ask(&json!({"op": "exec.get", "exec_id": "e"}));
    assert_eq!((&record["reason"], &record["exit_code"]), (&json!("timeout"), &json!(137)), "{record}");
    kept.let_go();
    // Told once.
    other.ask(&json!({"op": "exec.kill", "exec_id": "e", "reason": "cancelled"}));
    assert_eq!(other.ask(&json!({"op": "sandbox.info"}))["execs_running"], 0);
    assert_eq!(other.ask(&json!({"op": "exec.get", "exec_id": "e"})), record);
}

/// This program, started with [`WISH`] in its environment, becomes one whose first thread has ended and another goes on.
mod first_thread {
    pub const WISH: &str = "ALCOVE_TEST_END_FIRST_THREAD";

    // Before `main`, because the test harness keeps the first thread for itself.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static END: extern "C" fn() = end_if_wished;

    extern "C" fn end_if_wished() {
        if std::env::var_os(WISH).is_none() {
            return;
        }
        std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(600)));
        // SAFETY: ends this thread alone; nothing it owns is needed by the other.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}
