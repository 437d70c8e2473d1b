//! `alcove-floor http PORT CLIENTS COUNT [MILLISECONDS]` calls a service on the loopback from one thread that does next to nothing itself, so that the figures are the
//! service's. Its standard input has a request on each line, `METHOD PATH BODY`, which each of CLIENTS kept connections sends one after the other, COUNT times or until
//! MILLISECONDS have passed; `{id}` in a path is the last `id` that an answer on the connection had. Prints a line for each time through: the nanoseconds of each request.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// What has no answer by then never has one.
const ANSWER_MS: i32 = 60_000;
/// Bytes of an answer: those of these calls are some hundred.
const LONGEST: usize = 1 << 20;
/// Until the service has accepted the connections, which are there when the first call is made.
const SETTLES: Duration = Duration::from_millis(30);

struct Request {
    method: String,
    path: String,
    body: String,
}

impl Request {
    fn read(line: &str) -> Request {
        let mut words = line.splitn(3, ' ').map(str::to_owned);
        let mut word = || words.next().unwrap_or_default();
        Request { method: word(), path: word(), body: word() }
    }

    fn bytes(&self, port: u16, id: &str) -> Vec<u8> {
        let Request { method, path, body } = self;
        let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
        let path = path.replace("{id}", id);
        let length = body.len();
        format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{kind}Content-Length: {length}\r\n\r\n{body}")
            .into_bytes()
    }
}

/// What all connections are to do.
struct Plan {
    requests: Vec<Request>,
    port: u16,
    count: u32,
    until: Option<Instant>,
}

struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    began: Instant,
    id: String,
    /// Of the requests of this time through, those that have their answers.
    taken: Vec<u128>,
    through: u32,
}

impl Client {
    fn connect(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the service listens");
        stream.set_nodelay(true).expect("a socket");
        Client { stream, received: Vec::new(), began: Instant::now(), id: String::new(), taken: Vec::new(), through: 0 }
    }

    fn ask(&mut self, plan: &Plan) {
        let request = plan.requests[self.taken.len()].bytes(plan.port, &self.id);
        self.received.clear();
        self.began = Instant::now();
        self.stream.write_all(&request).expect("the request can be sent");
    }

    /// Takes what has come. Returns whether the answer is whole.
    fn hear(&mut self) -> bool {
        let mut piece = [0; 16 * 1024];
        let count = self.stream.read(&mut piece).expect("the connection lasts");
        let now = Instant::now();
        assert!(count > 0, "the service closed the connection");
        self.received.extend_from_slice(&piece[..count]);
        assert!(self.received.len() <= LONGEST, "an answer of more than {LONGEST} bytes");
        let answer = String::from_utf8_lossy(&self.received);
        let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
        let succeeded = head.starts_with("HTTP/1.1 2");
        let head = head.to_ascii_lowercase();
        let length = head.split("\r\ncontent-length: ").nth(1).and_then(|rest| rest.lines().next());
        let length: usize = length.and_then(|digits| digits.parse().ok()).expect("a Content-Length");
        if body.len() < length {
            return false;
        }
        assert!(succeeded, "{answer:?}");
        assert!(body.len() == length, "more than the answer came: {answer:?}");
        self.taken.push((now - self.began).as_nanos());
        if let Some(id) = body.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()) {
            assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "no id: {id:?}");
            self.id = id.to_owned();
        }
        true
    }

    /// Sends the next request. Returns false where there is none.
    fn goes_on(&mut self, plan: &Plan, report: &mut Vec<String>) -> bool {
        if self.taken.len() == plan.requests.len() {
            let figures: Vec<String> = self.taken.drain(..).map(|taken| taken.to_string()).collect();
            report.push(figures.join(" "));
            self.through += 1;
            if self.through >= plan.count || plan.until.is_some_and(|until| Instant::now() >= until) {
                return false;
            }
        }
        self.ask(plan);
        true
    }
}

pub fn run(port: u16, clients: u32, count: u32, milliseconds: Option<u64>) -> Vec<String> {
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).expect("requests");
    let requests: Vec<Request> = input.lines().map(Request::read).collect();
    assert!(!requests.is_empty() && count > 0, "nothing to ask for");
    let mut clients: Vec<Client> = (0..clients).map(|_| Client::connect(port)).collect();
    std::thread::sleep(SETTLES);
    let until = milliseconds.map(|milliseconds| Instant::now() + Duration::from_millis(milliseconds));
    let plan = Plan { requests, port, count, until };
    for client in &mut clients {
        client.ask(&plan);
    }
    let mut busy = clients.len();
    let mut polled: Vec<libc::pollfd> = clients
        .iter()
        .map(|client| libc::pollfd { fd: client.stream.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let mut report = Vec::new();
    while busy > 0 {
        // SAFETY: polled is an array of as many entries as are told.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, ANSWER_MS) };
        assert!(ready > 0, "no answer within {ANSWER_MS} ms");
        for (client, entry) in clients.iter_mut().zip(&mut polled) {
            if entry.revents != 0 && client.hear() && !client.goes_on(&plan, &mut report) {
                entry.fd = -1;
                busy -= 1;
            }
        }
    }
    report
}
