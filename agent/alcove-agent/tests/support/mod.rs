//! A real agent on a socket of its own, and a small client of the protocol.
#![allow(dead_code)]

use alcove_protocol::{Decoder, Kind, frame};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const PATIENCE: Duration = Duration::from_secs(20);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A folder that is removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        let name = format!("alcove-agent-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn is_root() -> bool {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Above what a test program has open: were the listener itself this number, dup2 would leave it to close at exec.
pub const LISTEN_FD: i32 = 200;

pub struct TestAgent {
    pub child: Child,
    pub folder: Folder,
    pub socket: PathBuf,
}

pub fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_alcove-agent")
}

impl TestAgent {
    /// A configured agent.
    pub fn start() -> TestAgent {
        TestAgent::start_with(&[], json!({}))
    }

    pub fn start_with(options: &[&str], configure: Value) -> TestAgent {
        let agent = TestAgent::launch(Command::new(binary()), options);
        agent.configure(configure);
        agent
    }

    /// Runs `command serve --listen-fd N …`; the socket is bound here, so nobody waits for it.
    pub fn launch(mut command: Command, options: &[&str]) -> TestAgent {
        let folder = Folder::new();
        let socket = folder.0.join("agent.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let fd = listener.as_raw_fd();
        command.arg("serve").arg("--listen-fd").arg(LISTEN_FD.to_string()).args(options);
        // SAFETY: only duplicates a descriptor between fork and exec.
        unsafe {
            command.pre_exec(
                move || if libc::dup2(fd, LISTEN_FD) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) },
            );
        }
        let child = command.spawn().expect("the agent starts");
        TestAgent { child, folder, socket }
    }

    pub fn configure(&self, more: Value) {
        let mut request = json!({"op": "sandbox.configure", "sandbox_id": "sb-test", "token": TOKEN});
        request["workdir"] = json!(self.path("ws"));
        for (name, value) in more.as_object().expect("an object") {
            request[name] = value.clone();
        }
        let mut client = self.client();
        let frames = client.run(&request);
        assert_eq!(frames.last().map(|frame| frame.0), Some(Kind::End), "{frames:?}");
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket)
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.0.join(name).to_string_lossy().into_owned()
    }

    /// Waits for the agent's end.
    pub fn wait_end(&mut self) -> std::process::ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < until, "the agent did not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        // SIGTERM lets it end what it started; SIGKILL if it does not.
        // SAFETY: the child has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        for _ in 0..2000 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub type Frame = (Kind, Vec<u8>);

pub struct Client {
    pub stream: UnixStream,
    decoder: Decoder,
}

impl Client {
    pub fn connect(socket: &Path) -> Client {
        let mut client = Client::raw(socket);
        client.send(Kind::Hello, json!({"versions": [1], "token": TOKEN}).to_string().as_bytes());
        let (kind, _) = client.receive().expect("an answer to the hello");
        assert_eq!(kind, Kind::Welcome);
        client
    }

    pub fn raw(socket: &Path) -> Client {
        let stream = UnixStream::connect(socket).expect("the agent's socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Client::of(stream)
    }

    pub fn of(stream: UnixStream) -> Client {
        Client { stream, decoder: Decoder::new() }
    }

    pub fn send(&mut self, kind: Kind, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::encode(&mut bytes, kind, payload);
        self.stream.write_all(&bytes).expect("sent");
    }

    pub fn request(&mut self, request: &Value) {
        self.send(Kind::Request, request.to_string().as_bytes());
    }

    /// The next frame; None when the agent closed.
    pub fn receive(&mut self) -> Option<Frame> {
        let mut chunk = vec![0; 256 * 1024];
        loop {
            if let Some((kind, payload)) = self.decoder.next_frame().expect("valid frames") {
                return Some((kind, payload.to_vec()));
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.decoder.extend(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the agent does not answer: {error}"),
            }
        }
    }

    /// Whether something has come that was not read. To be asked when everything received before was whole frames.
    pub fn has_more(&self) -> bool {
        let mut byte = 0u8;
        // SAFETY: a live descriptor, and room for the byte.
        unsafe {
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            libc::recv(self.stream.as_raw_fd(), std::ptr::from_mut(&mut byte).cast(), 1, flags) > 0
        }
    }

    /// The next frame; None when none begins within that time.
    pub fn receive_within(&mut self, time: Duration) -> Option<Frame> {
        let until = Instant::now() + time;
        self.stream.set_nonblocking(true).expect("no blocking");
        let mut frame = None;
        let mut chunk = vec![0; 256 * 1024];
        while frame.is_none() && Instant::now() < until {
            if let Some((kind, payload)) = self.decoder.next_frame().expect("valid frames") {
                frame = Some((kind, payload.to_vec()));
                continue;
            }
            match self.stream.read(&mut chunk) {
                Ok(count) => self.decoder.extend(&chunk[..count]),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        self.stream.set_nonblocking(false).expect("blocking");
        frame
    }

    /// The rest of an operation, until its end or error.
    pub fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.receive() {
            let last = matches!(frame.0, Kind::End | Kind::Error);
            frames.push(frame);
            if last {
                break;
            }
        }
        frames
    }

    pub fn run(&mut self, request: &Value) -> Vec<Frame> {
        self.request(request);
        self.rest()
    }

    /// With data that follows the request.
    pub fn run_with(&mut self, request: &Value, data: &[u8]) -> Vec<Frame> {
        self.request(request);
        for piece in data.chunks(1 << 20) {
            self.send(Kind::Data, piece);
        }
        self.send(Kind::Eof, &[]);
        self.rest()
    }

    /// The reply of an operation that succeeds.
    pub fn ask(&mut self, request: &Value) -> Value {
        let frames = self.run(request);
        match frames.first() {
            Some((Kind::Reply, payload)) => serde_json::from_slice(payload).expect("JSON"),
            other => panic!("{request}: {other:?}"),
        }
    }

    /// The code of an operation that is refused.
    pub fn refusal(&mut self, request: &Value) -> String {
        error_code(&self.run(request))
    }

    pub fn exec(&mut self, id: &str, argv: &[&str], more: Value) -> Outcome {
        self.request(&exec_request(id, argv, more));
        Outcome::new(self.rest())
    }

    /// Runs a shell command; its standard output.
    pub fn shell(&mut self, id: &str, script: &str) -> String {
        self.exec(id, &["/bin/sh", "-c", script], json!({})).stdout_text()
    }
}

pub fn exec_request(id: &str, argv: &[&str], more: Value) -> Value {
    let mut request = json!({"op": "exec.start", "exec_id": id, "command": argv[0], "args": &argv[1..], "argv": argv,
        "stdin": false, "detached": false, "follow": true, "lossless": true});
    for (name, value) in more.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

pub fn error_code(frames: &[Frame]) -> String {
    match frames.last() {
        Some((Kind::Error, payload)) => {
            let error: Value = serde_json::from_slice(payload).expect("JSON");
            error["code"].as_str().expect("a code").to_owned()
        }
        other => panic!("no error: {other:?}"),
    }
}

pub struct Outcome {
    pub frames: Vec<Frame>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit: Option<Value>,
}

impl Outcome {
    pub fn new(frames: Vec<Frame>) -> Outcome {
        let mut outcome = Outcome { frames, stdout: Vec::new(), stderr: Vec::new(), exit: None };
        for (kind, payload) in &outcome.frames {
            match kind {
                Kind::Stdout => outcome.stdout.extend_from_slice(&payload[8..]),
                Kind::Stderr => outcome.stderr.extend_from_slice(&payload[8..]),
                Kind::Event => outcome.exit = serde_json::from_slice(payload).ok(),
                _ => {}
            }
        }
        outcome
    }

    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn code(&self) -> i64 {
        self.exit.as_ref().unwrap_or_else(|| panic!("no exit: {:?}", self.frames))["exit_code"]
            .as_i64()
            .expect("a code")
    }

    pub fn reason(&self) -> String {
        self.exit.as_ref().unwrap_or_else(|| panic!("no exit: {:?}", self.frames))["reason"]
            .as_str()
            .expect("a reason")
            .to_owned()
    }
}

/// Whether any process has this text in its arguments.
pub fn runs(marker: &str) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else { return false };
    entries.flatten().any(|entry| {
        let number = entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit());
        let own = entry.file_name().to_string_lossy() == std::process::id().to_string();
        number
            && !own
            && std::fs::read(entry.path().join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(marker))
    })
}

/// Waits for a condition that something else brings about.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
