//! Who commands are.

use crate::support::{TestAgent, exec_request, is_root};
use serde_json::json;

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
