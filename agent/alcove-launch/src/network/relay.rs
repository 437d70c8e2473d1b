//! Carries frames between a sandbox's interface and its helper, as the filter allows, and tells the service how that goes.
//!
//! It waits for: the end of the sandbox, with which it ends; the end or silence of the helper, which it reports and ends
//! with; a service that connects, which hears a line at once and one every few seconds.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Instant;

use super::bucket::Bucket;
use super::filter::{Filter, Verdict};
use super::{control, frames};
use crate::sys;

const LARGEST_FRAME: usize = 65_550;
/// Frames of one direction before the other has its turn.
const BATCH: usize = 64;
/// A line to the service, and a question to the helper.
const BEAT_MS: u64 = 3_000;
const SILENT_MS: u64 = 9_000;
const LOOK_AGAIN_MS: u64 = 30_000;
/// What a limited sandbox may send at once: a tenth of a second's, and no less than a few frames.
const LEAST_BURST: f64 = 262_144.0;

pub struct Relay {
    /// PID 1 of the sandbox.
    pub sandbox: OwnedFd,
    pub helper: OwnedFd,
    pub tap: OwnedFd,
    pub packets: OwnedFd,
    /// While this is open the helper runs.
    pub _life: OwnedFd,
    pub listener: OwnedFd,
    pub filter: Filter,
    /// Bytes a second in each direction; 0: unlimited.
    pub rate: f64,
}

/// Returns when there is nothing to carry any more, and has told the service why.
pub fn run(relay: &mut Relay) {
    let begun = Instant::now();
    let now = || begun.elapsed().as_millis() as u64;
    let bucket = || (relay.rate > 0.0).then(|| Bucket::new((relay.rate / 10.0).max(LEAST_BURST), relay.rate));
    let (mut up, mut down) = (bucket(), bucket());
    let mut buffer = vec![0u8; LARGEST_FRAME];
    let mut service: Option<OwnedFd> = None;
    let (mut heard_ms, mut beat_ms, mut looked_ms) = (0, 0, 0);
    let mut is_up = false;
    loop {
        let now_ms = now();
        let waits = [&mut up, &mut down].map(|bucket| bucket.as_mut().map_or(0, |bucket| bucket.wait_ms(now_ms)));
        let mut entries = [
            entry(Some(&relay.sandbox)),
            entry(Some(&relay.helper)),
            entry(Some(&relay.listener)),
            entry(service.as_ref()),
            entry((waits[0] == 0).then_some(&relay.tap)),
            entry((waits[1] == 0).then_some(&relay.packets)),
        ];
        let next =
            [(beat_ms + BEAT_MS).saturating_sub(now_ms)].into_iter().chain(waits.into_iter().filter(|wait| *wait > 0));
        let timeout = next.min().unwrap_or(BEAT_MS).max(1);
        // SAFETY: all entries are alive through the call.
        let result = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout as i32) };
        if result < 0 && sys::errno() != libc::EINTR {
            return last_word(service.as_ref(), "the relay cannot wait");
        }
        let ready = entries.map(|entry| entry.revents != 0);
        let now_ms = now();
        if ready[0] {
            return;
        }
        if ready[1] {
            return last_word(service.as_ref(), "slirp4netns ended");
        }
        if ready[2] {
            if let Some(next) = control::accept(&relay.listener) {
                tell(service.insert(next), &state(is_up, &relay.filter));
            }
        } else if ready[3] && service.as_ref().is_some_and(|service| has_left(service, &mut buffer)) {
            service = None;
        }
        if ready[4] && !outgoing(relay, &mut up, &mut buffer, now_ms) {
            return last_word(service.as_ref(), "slirp4netns ended");
        }
        if ready[5] {
            match incoming(relay, &mut down, &mut buffer, now_ms) {
                Ok(0) => {}
                Ok(_) => {
                    heard_ms = now_ms;
                    if !is_up {
                        is_up = true;
                        if let Some(service) = &service {
                            tell(service, &state(is_up, &relay.filter));
                        }
                    }
                }
                Err(()) => return last_word(service.as_ref(), "slirp4netns ended"),
            }
        }
        // What waits for its turn may be the answer.
        if waits[1] > 0 {
            heard_ms = now_ms;
        }
        if now_ms >= beat_ms + BEAT_MS || beat_ms == 0 {
            // This process itself was stopped, or the machine slept: the helper has had no time to answer.
            if now_ms > beat_ms + 2 * BEAT_MS {
                heard_ms = now_ms;
            }
            beat_ms = now_ms.max(1);
            if now_ms > heard_ms + SILENT_MS {
                return last_word(service.as_ref(), "slirp4netns does not answer");
            }
            let _ = send(&relay.packets, &frames::probe());
            if service.as_ref().is_some_and(|service| !tell(service, &state(is_up, &relay.filter))) {
                service = None;
            }
            if now_ms >= looked_ms + LOOK_AGAIN_MS {
                looked_ms = now_ms;
                relay.filter.reach.look_again();
            }
        }
    }
}

/// From the sandbox. @returns false when the helper is gone.
fn outgoing(relay: &mut Relay, bucket: &mut Option<Bucket>, buffer: &mut [u8], now_ms: u64) -> bool {
    for _ in 0..BATCH {
        let Ok(count) = sys::read(relay.tap.as_raw_fd(), buffer) else {
            return true;
        };
        let frame = &buffer[..count];
        match relay.filter.outgoing(frame, now_ms) {
            Verdict::Drop => {}
            Verdict::Refuse => drop(sys::write(relay.tap.as_raw_fd(), &frames::refusal(frame))),
            Verdict::Pass => match send(&relay.packets, frame) {
                Ok(()) => {}
                // Like an interface whose queue is full: who sent it notices, and slows down.
                Err(libc::EAGAIN | libc::ENOBUFS | libc::EMSGSIZE) => {}
                Err(_) => return false,
            },
        }
        if owe(bucket, count, now_ms) {
            return true;
        }
    }
    true
}

/// To the sandbox. @returns how many frames, or that the helper is gone.
fn incoming(relay: &mut Relay, bucket: &mut Option<Bucket>, buffer: &mut [u8], now_ms: u64) -> Result<usize, ()> {
    for done in 0..BATCH {
        match sys::read(relay.packets.as_raw_fd(), buffer) {
            Ok(0) => return Err(()),
            Ok(count) => {
                relay.filter.incoming(&buffer[..count], now_ms);
                // An interface that is down takes nothing.
                let _ = sys::write(relay.tap.as_raw_fd(), &buffer[..count]);
                if owe(bucket, count, now_ms) {
                    return Ok(done + 1);
                }
            }
            Err(error) if sys::errno_is(&error, libc::EAGAIN) => return Ok(done),
            Err(_) => return Err(()),
        }
    }
    Ok(BATCH)
}

/// @returns whether this direction has to wait now.
fn owe(bucket: &mut Option<Bucket>, bytes: usize, now_ms: u64) -> bool {
    bucket.as_mut().is_some_and(|bucket| {
        bucket.owe(bytes as f64, now_ms);
        bucket.wait_ms(now_ms) > 0
    })
}

fn entry(fd: Option<&OwnedFd>) -> libc::pollfd {
    libc::pollfd { fd: fd.map_or(-1, AsRawFd::as_raw_fd), events: libc::POLLIN, revents: 0 }
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<(), i32> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: pointer and length belong together.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    if sent < 0 { Err(sys::errno()) } else { Ok(()) }
}

fn state(is_up: bool, filter: &Filter) -> String {
    let state = if is_up { "up" } else { "starting" };
    let counts = filter.counts;
    format!(
        "{{\"state\":\"{state}\",\"connections\":{},\"closed\":{},\"limited\":{}}}\n",
        filter.connections(),
        counts.closed,
        counts.limited
    )
}

/// @returns false when nobody listens any more, or does not read.
fn tell(service: &OwnedFd, line: &str) -> bool {
    send(service, line.as_bytes()).is_ok()
}

fn last_word(service: Option<&OwnedFd>, reason: &str) {
    if let Some(service) = service {
        tell(service, &format!("{{\"state\":\"lost\",\"reason\":\"{reason}\"}}\n"));
    }
}

/// The service has nothing to say here.
fn has_left(service: &OwnedFd, buffer: &mut [u8]) -> bool {
    let fd: RawFd = service.as_raw_fd();
    match sys::read(fd, &mut buffer[..64]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !sys::errno_is(&error, libc::EAGAIN),
    }
}
