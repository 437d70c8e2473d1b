//! Requests in, replies out.

use std::io::BufRead;
use std::os::fd::AsRawFd;

use crate::error::{AtStep, Result, StepError};
use crate::spec::{Reply, Request};
use crate::{destroy, launch, sys};

/// A request that takes longer has hung; its process ends and what it made is undone by a later `destroy`.
const REQUEST_SECONDS: u32 = 20;
const LONGEST_REQUEST: usize = 1 << 20;
const LAST_REQUESTS_MS: i32 = 5_000;

pub fn serve() -> Result<()> {
    // Orphans of finished launches come to this process and vanish: nobody collects them where PID 1 does not.
    // SAFETY: plain numbers.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        sys::check(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) as libc::c_long).at("serve", "subreaper")?;
    }
    // Every request's process holds the writing end; reading it ends when none is left.
    let (idle, busy) = sys::pipe().at("serve", "pipe")?;
    let stdin = std::io::stdin().lock();
    let mut reader = std::io::BufReader::new(stdin);
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = std::io::Read::take(&mut reader, LONGEST_REQUEST as u64)
            .read_until(b'\n', &mut line)
            .at("serve", "standard input")?;
        if count == 0 {
            drop(busy);
            // Deletions under way; what is not done by then is deleted at the service's next start.
            sys::wait_readable(idle.as_raw_fd(), LAST_REQUESTS_MS).at("serve", "wait")?;
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            return Err(StepError::new("serve", "a request was cut off or longer than 1 MiB"));
        }
        let parent = std::process::id() as i32;
        if sys::fork().at("serve", "fork")? == 0 {
            begin_request(parent);
            handle(&line);
            std::process::exit(0);
        }
    }
}

/// A request's process does not outlive the service, and does not wait for ever.
fn begin_request(parent: i32) {
    // SAFETY: plain numbers. SIGCHLD is needed again for waiting.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if libc::getppid() != parent {
            std::process::exit(1);
        }
        libc::alarm(REQUEST_SECONDS);
    }
}

pub fn one() -> Result<()> {
    let mut line = Vec::new();
    std::io::stdin().lock().read_until(b'\n', &mut line).at("serve", "standard input")?;
    handle(&line);
    Ok(())
}

fn handle(line: &[u8]) {
    let request: Request = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => return fail(request_id(line), &StepError::new("request", error.to_string())),
    };
    match request {
        Request::Launch { id, spec } => match launch::launch(&spec) {
            Ok(launched) => send(&Reply {
                pid: Some(launched.pid),
                start_time: Some(launched.start_time),
                stages: launched.stages,
                notes: launched.notes,
                ..plain(id, true)
            }),
            Err(error) => fail(id, &error),
        },
        Request::Destroy { id, spec } => match destroy::destroy(&spec) {
            Ok(rest) => {
                send(&plain(id, true));
                if let Some(target) = rest {
                    // SAFETY: plain number. Large trees may take their time now that nobody waits.
                    unsafe { libc::alarm(0) };
                    if let Err(error) = destroy::delete(&spec, &target) {
                        eprintln!("alcove-launch: {error}");
                    }
                }
            }
            Err(error) => fail(id, &error),
        },
    }
}

/// The id of a request that is otherwise unreadable, so that its sender learns why.
fn request_id(line: &[u8]) -> u64 {
    serde_json::from_slice::<serde_json::Value>(line)
        .ok()
        .and_then(|value| value.get("id").and_then(serde_json::Value::as_u64))
        .unwrap_or(0)
}

fn plain<'a>(id: u64, ok: bool) -> Reply<'a> {
    Reply { id, ok, pid: None, start_time: None, step: None, message: None, errno: None, stages: vec![], notes: vec![] }
}

fn fail(id: u64, error: &StepError) {
    send(&Reply { step: Some(&error.step), message: Some(&error.message), errno: error.errno, ..plain(id, false) });
}

/// One write: lines of several processes share the pipe and stay whole up to its atomic size.
fn send(reply: &Reply<'_>) {
    let Ok(mut bytes) = serde_json::to_vec(reply) else { return };
    bytes.push(b'\n');
    if sys::write_all(std::io::stdout().as_raw_fd(), &bytes).is_err() {
        std::process::exit(1);
    }
}
