//! Requests in, replies out.

use std::io::BufRead;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::debts::{Debt, Debts};
use crate::error::{AtStep, Result, StepError};
use crate::folder::{self, Ready};
use crate::launch::{Launched, Stages};
use crate::park::{self, Parked};
use crate::pool::Pool;
use crate::quiet::Quiet;
use crate::spec::{LaunchSpec, Reply, Request, ShiftSpec};
use crate::{destroy, launch, lend, naming, network, range, remove, shift, sys};

/// A request that takes longer has hung; its process ends and what it made is undone by a later `destroy`.
const REQUEST_SECONDS: u32 = 20;
const LONGEST_REQUEST: usize = 1 << 20;
/// What is kept of a request that is too long, and looked at for the id of one that cannot be read.
const HEAD: usize = 256;
const LAST_REQUESTS_MS: i32 = 5_000;
/// Of what went wrong: six times it, as JSON may spell it out, is within what a pipe takes in one piece. An agent that was
/// taken over may say more, and would cut what other requests are answered in pieces.
const LONGEST_MESSAGE: usize = 600;

pub fn serve(arguments: &[String]) -> Result<()> {
    // Orphans of finished launches come to this process and vanish: nobody collects them where PID 1 does not.
    // SAFETY: plain numbers.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        sys::check(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) as libc::c_long).at("serve", "subreaper")?;
        // The service's thread is a hop of every command, and has no call to ask for itself.
        sys::ask_for_short_slices(libc::getppid());
    }
    let quiet = Quiet::new().at("serve", "shared memory")?;
    quiet.disturb();
    let mut pool = pool_of(arguments, quiet)?;
    let mut parked = Parked::default();
    let mut debts = Debts::default();
    // Every request's process holds the writing end; reading it ends when none is left.
    let (idle, busy) = sys::pipe().at("serve", "pipe")?;
    let mut input = Lines::default();
    let mut buffer = vec![0u8; 64 * 1024];
    // Once, instead of in each sandbox while its launch waits.
    alcove_filter::make_ready();
    loop {
        if let Some(pool) = &mut pool {
            if let Err(error) = pool.refill(&mut parked) {
                eprintln!("alcove-launch: {error}");
            }
        }
        if !wait_for_input(pool.as_mut(), &mut parked, &mut debts)? {
            continue;
        }
        let count = sys::read(libc::STDIN_FILENO, &mut buffer).at("serve", "standard input")?;
        if count == 0 {
            drop(busy);
            parked.forget();
            // Deletions under way; what is not done by then is deleted at the service's next start.
            sys::wait_readable(idle.as_raw_fd(), LAST_REQUESTS_MS).at("serve", "wait")?;
            return Ok(());
        }
        quiet.disturb();
        input.take(&buffer[..count], |line| match line {
            Line::Whole(line) => begin(line, pool.as_mut(), &mut parked, &mut debts, quiet),
            Line::TooLong(head) => fail(
                leading_id(head),
                &StepError::new("request", format!("a request is longer than {LONGEST_REQUEST} bytes")),
            ),
        });
    }
}

enum Line<'a> {
    Whole(&'a [u8]),
    /// Its beginning; the rest was skipped. One request never ends the launcher of all the others.
    TooLong(&'a [u8]),
}

/// Cuts what arrives into lines and keeps no more of one than a request may have.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    skipping: bool,
}

impl Lines {
    fn take(&mut self, mut bytes: &[u8], mut each: impl FnMut(Line<'_>)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.keep(&bytes[..end]);
            each(if self.skipping { Line::TooLong(&self.line) } else { Line::Whole(&self.line) });
            self.line.clear();
            self.skipping = false;
            bytes = &bytes[end + 1..];
        }
        self.keep(bytes);
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.skipping {
            return;
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() > LONGEST_REQUEST {
            self.skipping = true;
            self.line = self.line[..HEAD].to_vec();
        }
    }
}

fn pool_of(arguments: &[String], quiet: Quiet) -> Result<Option<Pool>> {
    match arguments {
        [] => Ok(None),
        [template, dir, count] => {
            let count = count.parse().map_err(|_| StepError::new("serve", format!("{count} is no number")))?;
            Ok(Some(Pool::new(template.clone(), dir.clone(), count, quiet)))
        }
        _ => Err(StepError::new("serve", "takes no arguments, or a template, a directory and a number")),
    }
}

/// @returns false when only the pool or those who owe an answer had something to say, or nothing at all.
fn wait_for_input(mut pool: Option<&mut Pool>, parked: &mut Parked, debts: &mut Debts) -> Result<bool> {
    let arrival = pool.as_ref().and_then(|pool| pool.arrival()).unwrap_or(-1);
    let fds = [libc::STDIN_FILENO, arrival].into_iter().chain(parked.owing()).chain(debts.owing());
    let mut entries: Vec<_> = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let due = pool.as_ref().and_then(|pool| pool.due()).into_iter().chain(parked.due()).min();
    // Rounded up, or the last part of a millisecond would be waited for without sleep.
    let wait_ms = due.map_or(-1, |due| due.as_millis() as i32 + 1);
    // SAFETY: the entries are alive through the call; a negative descriptor is passed over.
    let result =
        sys::check(unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, wait_ms) } as libc::c_long);
    match result {
        Err(error) if sys::errno_is(&error, libc::EINTR) => return Ok(false),
        other => other.map(drop).at("serve", "poll")?,
    }
    if let Some(pool) = pool.as_mut().filter(|_| entries[1].revents != 0) {
        pool.collect();
    }
    for (id, error) in parked.collect() {
        fail(id, &error);
    }
    for (id, error) in debts.collect() {
        send(&Reply { unanswered: true, ..refusal(id, &error) });
    }
    // Last: an answer that came while this process had no time is one.
    parked.end_silent();
    Ok(entries[0].revents != 0)
}

/// What this process lacks to answer a request it may have for the next one: nothing here ends it.
fn begin(line: &[u8], mut pool: Option<&mut Pool>, parked: &mut Parked, debts: &mut Debts, quiet: Quiet) {
    let asked = Instant::now();
    let request = serde_json::from_slice::<Request>(line);
    let mut place = None;
    match &request {
        Ok(Request::Claim { id, spec }) => {
            if let Err(error) = parked.hand_over(*id, &spec.prepared, line) {
                fail(*id, &error);
            }
            return;
        }
        Ok(Request::Prepare { id, spec }) => match parked.add(&spec.dir) {
            Ok(socket) => place = Some(socket),
            Err(error) => return fail(*id, &error),
        },
        _ => {}
    }
    let wants_disk = match &request {
        Ok(Request::Launch { spec, .. } | Request::Prepare { spec, .. }) => spec.disk.template.is_some(),
        _ => false,
    };
    let ready = if wants_disk { pool.as_mut().and_then(|pool| pool.take()) } else { None };
    let parent = std::process::id() as i32;
    // A shift lifts its limit itself.
    let most = (!matches!(request, Ok(Request::Shift { .. }))).then(|| Duration::from_secs(REQUEST_SECONDS.into()));
    let debt = debts.add(leading_id(line), most);
    match sys::fork() {
        Ok(0) => {
            parked.forget();
            debts.forget();
            if let Some(pool) = pool {
                pool.forget();
            }
            begin_request(parent);
            quiet.keep_from_children();
            match (request, place) {
                (Ok(Request::Prepare { id, spec }), Some(place)) => prepare(id, &spec, ready, place, parent, debt),
                (Ok(request), _) => handle(request, asked, ready, send_listening, debt, Some(quiet)),
                (Err(error), _) => {
                    fail(leading_id(line), &StepError::new("request", error.to_string()));
                    debt.settle();
                }
            }
            std::process::exit(0);
        }
        Ok(pid) => {
            // On this processor, in two of three cases, and behind this process: it begins at once.
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
            if place.is_some() {
                parked.made_by(pid);
            }
        }
        Err(error) => {
            debt.settle();
            if let Some(ready) = ready {
                // Its mount goes with its descriptor; nobody else knows of the folder.
                folder::discard(&ready.path);
            }
            fail(leading_id(line), &StepError::io("fork", "a process for the request", error));
        }
    }
}

/// Answers twice: when it is prepared, and when it has been claimed.
fn prepare(id: u64, spec: &LaunchSpec, ready: Option<Ready>, socket: OwnedFd, launcher: i32, debt: Debt) {
    let mut place = match park::prepare(spec, ready.as_ref(), socket, launcher) {
        Ok(place) => place,
        Err(error) => {
            fail_launch(id, &error, ready);
            return debt.settle();
        }
    };
    // Its folder is the runtime's now, and its mount the sandbox's.
    drop(ready);
    let stages = place.begun.stages.take();
    send(&Reply { pid: Some(place.begun.pid), start_time: Some(place.begun.start_time), stages, ..plain(id, true) });
    debt.settle();
    // SAFETY: plain number. It waits for as long as it takes.
    unsafe { libc::alarm(0) };
    match place.wait() {
        Ok(Some((id, spec))) => {
            // SAFETY: plain number.
            unsafe { libc::alarm(REQUEST_SECONDS) };
            let (claimed, debt) = place.claim(&spec);
            match claimed {
                Ok(launched) => send_launched(id, launched),
                Err(error) => fail(id, &error),
            }
            debt.settle();
            // It may wait for a disk, and nobody for it.
            folder::drop_former_record();
            if let Some(link) = &spec.range {
                range::drop_former(link);
            }
        }
        Ok(None) => {}
        Err(error) => eprintln!("alcove-launch: {error}"),
    }
}

/// A request's process does not outlive the service, and does not wait for ever.
fn begin_request(parent: i32) {
    // SAFETY: plain numbers. SIGCHLD is needed again for waiting.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::alarm(REQUEST_SECONDS);
    }
    sys::end_with(parent);
}

pub fn one() -> Result<()> {
    let mut line = Vec::new();
    std::io::stdin().lock().read_until(b'\n', &mut line).at("serve", "standard input")?;
    let asked = Instant::now();
    match serde_json::from_slice(&line) {
        Ok(request) => handle(request, asked, None, |_| (), Debt::none(), None),
        Err(error) => fail(leading_id(&line), &StepError::new("request", error.to_string())),
    }
    Ok(())
}

/// @param on_socket of a launch with this number: see `launch`. A single request has one answer.
/// @param quiet of a launcher that stays.
fn handle(
    request: Request,
    asked: Instant,
    ready: Option<Ready>,
    on_socket: fn(u64),
    debt: Debt,
    quiet: Option<Quiet>,
) {
    match request {
        Request::Launch { id, spec } => {
            match launch::launch(&spec, ready.as_ref(), Stages::of_request(asked), || on_socket(id)) {
                Ok(launched) => send_launched(id, launched),
                Err(error) => fail_launch(id, &error, ready),
            }
        }
        Request::Prepare { id, .. } | Request::Claim { id, .. } => {
            fail(id, &StepError::new("request", "only a launcher that stays can prepare"));
        }
        Request::Lend { id, spec } => match lend::lend(&spec) {
            Ok(()) => send(&plain(id, true)),
            Err(error) => fail(id, &error),
        },
        Request::Attach { id, spec } => match network::attach(&spec) {
            Ok(()) => send(&plain(id, true)),
            Err(error) => fail(id, &error),
        },
        Request::Detach { id, spec } => match network::detach(&spec) {
            Ok(()) => send(&plain(id, true)),
            Err(error) => fail(id, &error),
        },
        Request::Name { id, spec } => match naming::name(&spec) {
            Ok(()) => send(&plain(id, true)),
            Err(error) => fail(id, &error),
        },
        Request::Shift { id, spec } => {
            // SAFETY: plain number. Images may be large, and the service waits no longer than it wants to.
            unsafe { libc::alarm(0) };
            match shift(&spec) {
                Ok(()) => send(&plain(id, true)),
                Err(error) => fail(id, &error),
            }
        }
        Request::Destroy { id, spec } => match destroy::destroy(&spec) {
            Ok(rest) => {
                send(&plain(id, true));
                debt.settle();
                if let Some(target) = rest {
                    // SAFETY: plain number. Large trees may take their time now that nobody waits.
                    unsafe { libc::alarm(0) };
                    sys::yield_to_others();
                    if let Some(quiet) = quiet {
                        quiet.wait();
                    }
                    if let Err(error) = destroy::delete(&spec, &target) {
                        eprintln!("alcove-launch: {error}");
                    }
                }
                return;
            }
            Err(error) => fail(id, &error),
        },
    }
    debt.settle();
}

/// Comes before the answer itself.
fn send_listening(id: u64) {
    send(&Reply { listening: true, ..plain(id, true) });
}

fn send_launched(id: u64, launched: Launched) {
    let Launched { used, .. } = launched;
    send(&Reply {
        pid: Some(launched.pid),
        start_time: Some(launched.start_time),
        stages: launched.stages,
        ..plain(id, true)
    });
    drop(used);
}

fn fail_launch(id: u64, error: &StepError, ready: Option<Ready>) {
    fail(id, error);
    // Still there when the launch did not get as far as using it.
    if let Some(ready) = ready {
        folder::discard(&ready.path);
    }
}

fn shift(spec: &ShiftSpec) -> Result<()> {
    let draft = format!("{}.{}", spec.to, std::process::id());
    let (from, partial) = (Path::new(&spec.from), Path::new(&draft));
    let copied = shift::copy(from, partial, spec.base, spec.count)
        .and_then(|()| std::fs::rename(partial, &spec.to).at("copy", &spec.to));
    if copied.is_err() {
        let _ = remove::tree(&draft, None);
    }
    copied
}

/// The id of a request that cannot be read, whatever is wrong with it: the service writes it before everything that others
/// have a say in, so that a sender never waits for an answer in vain.
fn leading_id(line: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(&line[..line.len().min(HEAD)]);
    let digits = text.split_once("\"id\":").map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect());
    digits.and_then(|digits: String| digits.parse().ok()).unwrap_or(0)
}

fn plain<'a>(id: u64, ok: bool) -> Reply<'a> {
    Reply {
        id,
        ok,
        listening: false,
        unanswered: false,
        pid: None,
        start_time: None,
        step: None,
        message: None,
        errno: None,
        stages: vec![],
    }
}

fn fail(id: u64, error: &StepError) {
    send(&refusal(id, error));
}

fn refusal(id: u64, error: &StepError) -> Reply<'_> {
    let message = beginning(&error.message, LONGEST_MESSAGE);
    Reply { step: Some(&error.step), message: Some(message), errno: error.errno, ..plain(id, false) }
}

/// What of a text has at most so many bytes.
fn beginning(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// One write: lines of several processes share the pipe and stay whole up to its atomic size.
fn send(reply: &Reply<'_>) {
    let Ok(mut bytes) = serde_json::to_vec(reply) else {
        return;
    };
    bytes.push(b'\n');
    if sys::write_all(std::io::stdout().as_raw_fd(), &bytes).is_err() {
        std::process::exit(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(parts: &[&[u8]]) -> Vec<(bool, Vec<u8>)> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for part in parts {
            lines.take(part, |line| {
                found.push(match line {
                    Line::Whole(line) => (true, line.to_vec()),
                    Line::TooLong(head) => (false, head.to_vec()),
                })
            });
        }
        found
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_taken() {
        let mut long = br#"{"op":"launch","id":71,"spec":""#.to_vec();
        long.resize(LONGEST_REQUEST + 1, b'x');
        let found = lines_of(&[b"one\ntw", b"o\n", &long, &vec![b'y'; 3 * LONGEST_REQUEST], b"\nthree\n"]);
        assert_eq!(found.len(), 4);
        assert_eq!(found[0], (true, b"one".to_vec()));
        assert_eq!(found[1], (true, b"two".to_vec()));
        assert!(!found[2].0);
        assert_eq!(leading_id(&found[2].1), 71);
        assert_eq!(found[3], (true, b"three".to_vec()));
    }

    #[test]
    fn a_request_that_cannot_be_read_has_its_id_at_its_beginning() {
        for rest in
            [&br#""spec":{"dir":"\ud800"}}"#[..], br#""spec":{"id":9}}"#, b"\"spec\":\xff", b"", &[b' '; 2 * HEAD]]
        {
            let line = [&br#"{"op":"launch","id":71,"#[..], rest].concat();
            assert!(serde_json::from_slice::<Request>(&line).is_err());
            assert_eq!(leading_id(&line), 71, "{}", String::from_utf8_lossy(&line));
        }
    }

    #[test]
    fn what_went_wrong_is_told_within_what_a_pipe_takes_in_one_piece() {
        let said = "\u{1}".repeat(64 * 1024);
        let message = Some(beginning(&said, LONGEST_MESSAGE));
        let reply = Reply { step: Some("lend"), message, errno: Some(i32::MIN), ..plain(u64::MAX, false) };
        let line = serde_json::to_vec(&reply).expect("JSON");
        assert!(line.len() < libc::PIPE_BUF, "{} bytes", line.len());
        assert_eq!(beginning("zwölf", 3), "zw");
        assert_eq!(beginning("zwölf", 4), "zwö");
        assert_eq!(beginning("", 4), "");
    }

    #[test]
    fn the_longest_request_is_taken_whole() {
        let mut line = vec![b'x'; LONGEST_REQUEST];
        line.push(b'\n');
        assert_eq!(lines_of(&[&line]), vec![(true, vec![b'x'; LONGEST_REQUEST])]);
        assert_eq!(leading_id(b"no request"), 0);
    }
}
