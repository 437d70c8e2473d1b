//! The launcher's own test: launches a sandbox, talks to the agent in it, tries its limits and destroys it. Run by
//! `tests/qemu/run.sh` on an older kernel with cgroup v2; it runs on any machine.
//!
//! `guest-check DIR LAUNCHER AGENT ROOTFS rooted|prepared|host|unprivileged|subids`: prints a line `ok …` or `FAIL …` for each check.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REQUEST: u8 = 3;
const REPLY: u8 = 4;
const EVENT: u8 = 6;
const END: u8 = 7;
const STDOUT: u8 = 0x12;
const STDERR: u8 = 0x13;
const MEMORY_MB: u64 = 64;
const PIDS: u64 = 64;
/// Ids of a rooted sandbox.
const BASE: u32 = 1_879_048_192;
const COUNT: u32 = 65_536;

struct Agent(UnixStream);

impl Agent {
    fn dial(socket: &Path, token: &str) -> Self {
        let stream = UnixStream::connect(socket).expect("connect to the agent");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("read timeout");
        let mut agent = Self(stream);
        agent.send(HELLO, &json!({"versions": [1], "token": token}));
        let (kind, payload) = agent.receive();
        assert_eq!(kind, WELCOME, "{}", String::from_utf8_lossy(&payload));
        agent
    }

    fn send(&mut self, kind: u8, message: &Value) {
        let payload = message.to_string();
        let mut frame = (payload.len() as u32).to_be_bytes().to_vec();
        frame.push(kind);
        frame.extend_from_slice(payload.as_bytes());
        self.0.write_all(&frame).expect("send");
    }

    fn receive(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0u8; 5];
        self.0.read_exact(&mut head).expect("frame");
        let mut payload = vec![0u8; u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize];
        self.0.read_exact(&mut payload).expect("payload");
        (head[4], payload)
    }

    fn call(&mut self, request: &Value) -> Value {
        self.send(REQUEST, request);
        let (kind, payload) = self.receive();
        assert_eq!(kind, REPLY, "{request}: {}", String::from_utf8_lossy(&payload));
        serde_json::from_slice(&payload).expect("reply")
    }

    /// @returns output and the exit event.
    fn shell(&mut self, name: &str, script: &str) -> (String, Value) {
        self.limited(name, script, &json!({}))
    }

    fn limited(&mut self, name: &str, script: &str, limits: &Value) -> (String, Value) {
        self.call(&json!({"op": "exec.start", "exec_id": exec_id(name), "command": script, "args": [],
            "argv": ["/bin/sh", "-c", script], "stdin": false, "timeout_ms": 50_000, "detached": false,
            "follow": true, "lossless": true, "limits": limits}));
        let (mut output, mut exit) = (String::new(), Value::Null);
        loop {
            let (kind, payload) = self.receive();
            match kind {
                STDOUT | STDERR => output.push_str(&String::from_utf8_lossy(&payload[8..])),
                EVENT => exit = serde_json::from_slice(&payload).expect("event"),
                END => return (output, exit),
                _ => panic!("frame {kind}: {}", String::from_utf8_lossy(&payload)),
            }
        }
    }
}

fn exec_id(name: &str) -> String {
    format!("ex-{name:a<12}")
}

fn ask(launcher: &str, request: &Value) -> Value {
    let mut child =
        Command::new(launcher).arg("one").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("launcher");
    child.stdin.take().expect("pipe").write_all(format!("{request}\n").as_bytes()).expect("request");
    let output = child.wait_with_output().expect("reply");
    serde_json::from_slice(&output.stdout).expect("JSON reply")
}

/// The same sandbox, made while it was nobody's.
fn prepare_and_claim(launcher: &str, spec: &Value) -> Value {
    let mut resident =
        Command::new(launcher).arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("launcher");
    let mut requests = resident.stdin.take().expect("pipe");
    let mut replies = BufReader::new(resident.stdout.take().expect("pipe")).lines();
    let mut ask = |request: &Value| -> Value {
        requests.write_all(format!("{request}\n").as_bytes()).expect("request");
        serde_json::from_str(&replies.next().expect("a reply").expect("a line")).expect("JSON reply")
    };
    let dir = spec["dir"].as_str().expect("a directory");
    let waiting = format!("{dir}-waiting");
    let mut early = spec.clone();
    (early["dir"], early["hostname"]) = (json!(waiting), json!("nobody"));
    let prepared = ask(&json!({"op": "prepare", "id": 1, "spec": early}));
    report("prepared waits", prepared["ok"] == true, &prepared);
    let mounts = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let maker = std::fs::read_to_string(format!("/proc/{}/stat", prepared["pid"]))
        .ok()
        .and_then(|stat| stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1).map(str::to_owned)));
    let held = maker.as_deref().map(mounts);
    report("prepared holds no mounts of the machine", held == Some(mounts("self")), (&maker, &held));
    let claimed = ask(&json!({"op": "claim", "id": 2, "spec": {"prepared": waiting, "dir": dir, "record": {},
        "owned": {"hostname": spec["hostname"], "limits": spec["limits"]}}}));
    drop(requests);
    let ended = resident.wait().is_ok_and(|status| status.success());
    report("prepared outlives its launcher", ended, ended);
    claimed
}

/// A copy that belongs to the sandbox's ids, as a service makes it where no overlay lies on an idmapped layer.
fn copied(launcher: &str, dir: &str, rootfs: &str) -> String {
    let to = format!("{dir}/shifted");
    let spec = json!({"from": rootfs, "to": to, "base": BASE, "count": COUNT});
    let shifted = ask(launcher, &json!({"op": "shift", "id": 9, "spec": spec}));
    report("copied root", shifted["ok"] == true, &shifted);
    to
}

/// Whether an overlay can lie on an idmapped mount: since Linux 5.19.
fn idmapped_layers() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (5, 19)
}

fn report(name: &str, good: bool, detail: impl std::fmt::Debug) {
    println!("{} {name} {detail:?}", if good { "ok" } else { "FAIL" });
}

/// A command in a group of its own, as the service makes it.
fn own_limit(agent: &mut Agent, launcher: &str, runtime: &str, token: &str, group: &str) {
    let own = format!("{group}/execs/{}", exec_id("own"));
    std::fs::create_dir(&own).expect("a group");
    std::fs::write(format!("{own}/memory.max"), (16 << 20).to_string()).expect("memory.max");
    std::fs::write(format!("{own}/pids.max"), "4").expect("pids.max");
    let events = format!("{own}/memory.events");
    let lent = ask(
        launcher,
        &json!({"op": "lend", "id": 3, "spec": {"dir": runtime, "token": token, "exec_id": exec_id("own"),
            "join": [format!("{own}/cgroup.procs")], "kills": [events], "met": [events]}}),
    );
    report("rooted a group is lent", lent["ok"] == true, &lent);
    let script = "cat /proc/self/cgroup; dd if=/dev/zero of=/dev/null bs=32M count=1; sleep 40";
    let (output, exit) = agent.limited("own", script, &json!({"own_group": true}));
    let inside = output.contains(&exec_id("own"));
    let told = exit["reason"] == "limit" && exit["limit"] == "memory_mb";
    report("rooted a command's own memory limit", inside && told, (&output, &exit));
}

fn become_user(id: u32) {
    // SAFETY: plain numbers and an empty list.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(id, id, id), 0);
        assert_eq!(libc::setresuid(id, id, id), 0);
    }
}

fn cgroup(mode: &str, name: &str) -> Value {
    let parent = "/sys/fs/cgroup/alcove-check";
    if !matches!(mode, "rooted" | "prepared" | "copied") || !Path::new("/sys/fs/cgroup/cgroup.subtree_control").exists()
    {
        return Value::Null;
    }
    std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu +memory +pids").expect("controllers");
    std::fs::create_dir_all(parent).expect("parent group");
    std::fs::write(format!("{parent}/cgroup.subtree_control"), "+cpu +memory +pids").expect("controllers");
    json!({"version": 2, "dirs": [{"controller": "unified", "path": format!("{parent}/{name}")}]})
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, dir, launcher, agent, rootfs, mode] = &arguments[..] else {
        panic!("usage: guest-check DIR LAUNCHER AGENT ROOTFS rooted|prepared|copied|host|unprivileged|subids");
    };
    let ids = match mode.as_str() {
        "rooted" | "prepared" | "copied" | "host" => json!({"kind": "range", "base": BASE, "count": COUNT}),
        "subids" => {
            json!({"kind": "subids", "uid_start": 200_000, "gid_start": 200_000, "count": 65_535})
        }
        _ => json!({"kind": "single"}),
    };
    let rooted = matches!(mode.as_str(), "rooted" | "prepared" | "copied" | "host");
    if !rooted {
        become_user(1000);
    }
    let name = format!("check-{mode}");
    let cgroup = cgroup(mode, &name);
    let runtime = format!("{dir}/{name}");
    let trash = format!("{dir}/trash-{mode}");
    std::fs::create_dir_all(&trash).expect("trash");
    // Image `host`: ROOTFS is the root that the machine's programs are mounted into.
    let root = match mode.as_str() {
        "host" => json!({"kind": "host", "skeleton": rootfs, "copy": !idmapped_layers()}),
        "copied" => json!({"kind": "image", "rootfs": copied(launcher, dir, rootfs), "shifted": true}),
        _ => json!({"kind": "image", "rootfs": rootfs}),
    };
    let spec = json!({
        "dir": runtime, "record": {}, "agent": agent, "root": root, "ids": ids,
        "hostname": "guest", "network": "none", "cgroup": cgroup,
        "limits": {"memory_mb": MEMORY_MB, "vcpus": 1, "pids": PIDS, "exec_group": !cgroup.is_null()}});
    let launched = match mode.as_str() {
        "prepared" => prepare_and_claim(launcher, &spec),
        _ => ask(launcher, &json!({"op": "launch", "id": 1, "spec": spec})),
    };
    report(&format!("{mode} launch"), launched["ok"] == true, &launched);
    if launched["ok"] != true {
        std::process::exit(1);
    }

    let token = "0".repeat(64);
    let mut agent = Agent::dial(&Path::new(&runtime).join("agent.sock"), &token);
    agent.call(&json!({"op": "sandbox.configure", "sandbox_id": "sb-guest", "token": token, "expires_in_ms": null}));
    agent.receive();
    if mode == "host" {
        mounted_later(&mut agent);
    } else {
        checks(&mut agent, mode, &cgroup);
        if let Some(group) = cgroup["dirs"][0]["path"].as_str() {
            own_limit(&mut agent, launcher, &runtime, &token, group);
        }
    }

    if !cgroup.is_null() {
        // Its processes never give way by themselves; nobody waits for its end.
        let spin = "i=0; while [ $i -lt 50 ]; do (while :; do :; done) & i=$((i+1)); done; wait";
        agent.call(&json!({"op": "exec.start", "exec_id": exec_id("spin"), "command": spin, "args": [],
            "argv": ["/bin/sh", "-c", spin], "stdin": false, "timeout_ms": 600_000, "detached": true,
            "follow": false, "lossless": false}));
    }
    let started = Instant::now();
    let destroyed = ask(
        launcher,
        &json!({"op": "destroy", "id": 2, "spec":
        {"dir": runtime, "trash": trash, "cgroup": cgroup, "ids": ids}}),
    );
    let pid = launched["pid"].as_i64().unwrap_or(0);
    let group_left = cgroup["dirs"][0]["path"].as_str().is_some_and(|path| Path::new(path).exists());
    let left = Path::new(&runtime).exists() || group_left || is_running(pid);
    report(&format!("{mode} destroy"), destroyed["ok"] == true && !left, (started.elapsed(), &destroyed));
    let rest = std::fs::read_dir(&trash).expect("trash").count();
    report(&format!("{mode} nothing left"), rest == 0, rest);
}

/// What the machine mounts while a sandbox runs, below a directory that the sandbox shows, stays the machine's.
fn mounted_later(agent: &mut Agent) {
    const PLACE: &str = "/usr/later";
    let mount = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).status().is_ok_and(|status| status.success())
    };
    let mounted = mount("mount", &["-t", "tmpfs", "later", PLACE])
        && std::fs::write(format!("{PLACE}/planted"), "x").is_ok()
        && std::fs::read_to_string("/proc/self/mountinfo").is_ok_and(|text| text.contains(" shared:"));
    let (output, exit) = agent.shell("later", "ls /usr/later; grep later /proc/self/mountinfo; echo looked");
    report("host later mounts stay outside", mounted && output == "looked\n", (mounted, &output, &exit));
    mount("umount", &[PLACE]);
}

fn is_running(pid: i64) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
}

fn checks(agent: &mut Agent, mode: &str, cgroup: &Value) {
    let (output, exit) = agent.shell("hello", "echo hello; id -u; hostname; cat /sys/kernel/x 2>/dev/null; ls /");
    report(
        &format!("{mode} exec"),
        output.starts_with("hello\n0\nguest\n") && exit["exit_code"] == 0,
        (&output, &exit),
    );
    let (output, _) = agent.shell("caps", "grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status");
    let bare = output.contains("CapEff:\t0000000000000000")
        && output.contains("NoNewPrivs:\t1")
        && output.contains("Seccomp:\t2");
    report(&format!("{mode} rights"), bare, &output);
    let (output, exit) =
        agent.shell("mount", "mount -t tmpfs x /tmp; echo x > /proc/sys/kernel/core_pattern; unshare -r true");
    report(&format!("{mode} refusals"), exit["exit_code"] != 0, &output);
    let (output, _) =
        agent.shell("files", "echo data > /root/f && cat /root/f && rm /bin/ls && [ ! -e /bin/ls ] && echo removed");
    report(&format!("{mode} writable root"), output == "data\nremoved\n", &output);
    let (output, _) = agent.shell("net", "ifconfig lo | grep -c UP; ifconfig -a | grep -c Link");
    report(&format!("{mode} network"), output == "1\n1\n", &output);
    let script = "i=0; while [ $i -lt 200 ]; do sleep 20 & i=$((i+1)); done; wait";
    let (output, exit) = agent.shell("forks", script);
    report(
        &format!("{mode} process limit"),
        output.contains("can't fork"),
        (&output.chars().take(80).collect::<String>(), &exit),
    );
    // What the command left running holds the processes that the next ones need.
    agent.call(&json!({"op": "exec.kill", "exec_id": exec_id("forks"), "reason": "cancelled"}));
    agent.receive();
    if let Some(dir) = cgroup["dirs"][0]["path"].as_str() {
        let read = |name: &str| std::fs::read_to_string(format!("{dir}/{name}")).unwrap_or_default();
        let (output, _) = agent.shell("group", "cat /proc/self/cgroup");
        let apart = read("agent/cgroup.procs").lines().count() == 1
            && read("execs/pids.max").trim() == PIDS.to_string()
            && read("execs/memory.max").trim() == (MEMORY_MB << 20).to_string()
            && output.trim().ends_with("execs/shared");
        report(&format!("{mode} commands apart from the agent"), apart, (&output, read("agent/cgroup.procs")));
        let quotas = ["cpu.max", "execs/cpu.max", "agent/cpu.max"].map(|name| read(name).trim().to_owned());
        let own = quotas == ["max 100000", "100000 100000", "75000 100000"];
        report(&format!("{mode} processor time apart from the agent"), own, quotas);
        let (output, exit) = agent.shell("memory", "dd if=/dev/zero of=/dev/null bs=200M count=1");
        report(&format!("{mode} memory limit"), exit["reason"] == "oom", (&output, &exit));
    }
    let (output, _) = agent.shell("after", "echo still here");
    report(&format!("{mode} alive after"), output == "still here\n", &output);
}
