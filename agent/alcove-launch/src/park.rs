//! Sandboxes that are nobody's yet. Each is a launch that stopped before its end: namespaces, groups, disk, mounts and network are
//! made, nothing of anybody has run in it, and its agent, which has the rights of every agent, waits with the process that
//! made it for who it is for.
//!
//! States: being made; parked, from its answer on; claimed, from the moment that the request is handed to it; running, which is
//! a launch that has come to its end. Until then the agent dies with the one that made it, and that with the launcher: a
//! death at any point leaves a directory that says what to undo, and no process. One that is claimed and says nothing for
//! `SILENCE` is killed by the launcher: then its claim comes to nothing, now and later.
//! `docs/decisions/native-prepared.md` has what becomes of each.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::error::{AtStep, Result, StepError};
use crate::folder::{self, Ready};
use crate::launch::{self, Begun, Launched, Stages};
use crate::spec::{ClaimSpec, LaunchSpec, Request, RootSpec};
use crate::{cgroup, range, sys};

const STEP: &str = "claim";

/// Sent by who has answered a claim.
const ANSWERED: u8 = b'A';

/// A claim takes milliseconds. Who has not answered for so long is stopped, or gets nothing of the machine, and a launch from the
/// beginning is under way sooner than it is back.
const SILENCE: Duration = Duration::from_secs(3);

/// The launcher's side: whom to hand a claim to, and who owes an answer.
#[derive(Default)]
pub struct Parked {
    waiting: Vec<(String, Maker)>,
    claimed: Vec<Claimed>,
}

/// A process that prepares, or has prepared.
struct Maker {
    socket: OwnedFd,
    /// None where it could not be had: such a one is given all the time that a request has.
    process: Option<OwnedFd>,
}

struct Claimed {
    /// Of its request.
    id: u64,
    maker: Maker,
    since: Instant,
    killed: bool,
}

impl Claimed {
    /// How long from now its patience is at its end; none where there is nothing to be done then.
    fn due(&self) -> Option<Duration> {
        let may_be = self.maker.process.is_some() && !self.killed;
        may_be.then(|| SILENCE.saturating_sub(self.since.elapsed()))
    }
}

impl Parked {
    /// @returns where the process that prepares it listens.
    pub fn add(&mut self, dir: &str) -> Result<OwnedFd> {
        self.waiting.retain(|(_, maker)| !ended(maker.socket.as_raw_fd()));
        let (ours, theirs) = sys::message_pair().at(STEP, "socketpair")?;
        self.waiting.push((dir.to_owned(), Maker { socket: ours, process: None }));
        Ok(theirs)
    }

    /// Who prepares what was added last, just begun.
    pub fn made_by(&mut self, pid: i32) {
        if let Some((_, maker)) = self.waiting.last_mut() {
            maker.process = sys::pidfd_open(pid).ok();
        }
    }

    /// Hands a request over whole, or not at all, without waiting for anybody. Whom it was for is nobody else's from then on.
    pub fn hand_over(&mut self, id: u64, dir: &str, line: &[u8]) -> Result<()> {
        let place = self.waiting.iter().position(|(known, _)| known == dir);
        let found = place.map(|place| self.waiting.swap_remove(place));
        let (_, maker) = found.ok_or_else(|| StepError::new(STEP, format!("{dir} is not prepared")))?;
        match sys::send_now(maker.socket.as_raw_fd(), line).at(STEP, dir)? {
            count if count == line.len() => {
                self.claimed.push(Claimed { id, maker, since: Instant::now(), killed: false });
                Ok(())
            }
            count => Err(StepError::new(STEP, format!("{dir} took {count} bytes of {}", line.len()))),
        }
    }

    /// Readable when who owes an answer gave it, or has ended.
    pub fn owing(&self) -> impl Iterator<Item = RawFd> {
        self.claimed.iter().map(|claimed| claimed.maker.socket.as_raw_fd())
    }

    /// How long from now somebody who owes an answer is to be killed.
    pub fn due(&self) -> Option<Duration> {
        self.claimed.iter().filter_map(Claimed::due).min()
    }

    /// Kills who owes an answer for too long. `collect` tells of that once it is gone: what it was about to do would else be done
    /// to what comes in its place.
    pub fn end_silent(&mut self) {
        for claimed in &mut self.claimed {
            if claimed.due() != Some(Duration::ZERO) {
                continue;
            }
            if let Some(process) = &claimed.maker.process {
                // One that has ended meanwhile is told by its socket as well.
                let _ = sys::pidfd_kill(process.as_raw_fd());
                claimed.killed = true;
            }
        }
    }

    /// @returns the numbers of claims that nobody will answer, and why not.
    pub fn collect(&mut self) -> Vec<(u64, StepError)> {
        let mut lost = Vec::new();
        self.claimed.retain(|Claimed { id, maker, killed, .. }| {
            if !ended(maker.socket.as_raw_fd()) {
                return true;
            }
            if receive(maker.socket.as_raw_fd()).ok().as_deref() != Some(&[ANSWERED]) {
                let why = if *killed {
                    format!("who prepared the sandbox said nothing for {} ms", SILENCE.as_millis())
                } else {
                    "who prepared the sandbox ended over it".to_owned()
                };
                lost.push((*id, StepError::new(STEP, why)));
            }
            false
        });
        lost
    }

    /// For processes of other requests: none holds the way to a sandbox that is not its own.
    pub fn forget(&mut self) {
        self.waiting.clear();
        self.claimed.clear();
    }
}

/// What is parked, and what it was made from.
pub struct Place<'a> {
    pub spec: &'a LaunchSpec,
    pub begun: Begun,
    socket: OwnedFd,
}

/// Of one that is claimed: dropped before it is done, it tells that nobody answers.
pub struct Debt(OwnedFd);

impl Debt {
    pub fn settle(self) {
        // The launcher is gone where this fails, and with it everybody who waits.
        let _ = sys::send_now(self.0.as_raw_fd(), &[ANSWERED]);
    }
}

/// Makes a sandbox up to where it becomes somebody's.
/// @param launcher it does not outlive this process.
pub fn prepare<'a>(spec: &'a LaunchSpec, ready: Option<&Ready>, socket: OwnedFd, launcher: i32) -> Result<Place<'a>> {
    let mut begun = launch::begin(spec, ready, None, Stages::of_request(Instant::now()), || ())?;
    begun.parked()?;
    // For the record of whose it is.
    sys::prepare_file(libc::AT_FDCWD, folder::RECORD).at("directory", folder::RECORD)?;
    // It waits for long now: once more, whatever the kernel has forgotten meanwhile.
    sys::end_with(launcher);
    // Some kernels want layers at a path, which is made in mounts of this process's own: copies of all of the machine's, and
    // what the machine unmounts while this waits would stay in use.
    sys::share_mounts_of(launcher).at(STEP, "mount namespace")?;
    Ok(Place { spec, begun, socket })
}

impl Place<'_> {
    /// @returns nothing when it has ended, or nobody is left who could claim it.
    pub fn wait(&self) -> Result<Option<(u64, ClaimSpec)>> {
        let sandbox = sys::pidfd_open(self.begun.pid).at(STEP, "the sandbox")?;
        let mut entries = [self.socket.as_raw_fd(), sandbox.as_raw_fd()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        loop {
            // SAFETY: both entries are alive through the call.
            match sys::check(unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) } as libc::c_long) {
                Err(error) if sys::errno_is(&error, libc::EINTR) => continue,
                other => other.map(drop).at(STEP, "poll")?,
            }
            if entries[1].revents != 0 {
                return Ok(None);
            }
            let line = receive(self.socket.as_raw_fd()).at(STEP, "the request")?;
            if line.is_empty() {
                return Ok(None);
            }
            return match serde_json::from_slice(&line) {
                Ok(Request::Claim { id, spec }) => Ok(Some((id, spec))),
                _ => Err(StepError::new(STEP, "what was handed over is no claim")),
            };
        }
    }

    pub fn claim(self, spec: &ClaimSpec) -> (Result<Launched>, Debt) {
        let Self { spec: made, begun, socket } = self;
        (claim(made, begun, spec), Debt(socket))
    }
}

/// Limits first, so that nothing of anybody's runs without; then the ids, before a directory says whose they are; the record, which undoes either; then the name, by which it is
/// somebody's; the agent hears of it last.
fn claim(prepared: &LaunchSpec, mut begun: Begun, spec: &ClaimSpec) -> Result<Launched> {
    let owned = &spec.owned;
    // What it says of itself in /proc and /dev/shm, and what its agent is told, was made for these.
    if prepared.limits != owned.limits {
        return Err(StepError::new(STEP, "it was prepared for another size"));
    }
    let names = begun.names.take().ok_or_else(|| StepError::new(STEP, "only a rooted sandbox is prepared"))?;
    begun.stages.take();
    if let Some(group) = &prepared.cgroup {
        cgroup::limit(group, &owned.limits, prepared.outbound.is_some())?;
    }
    begun.stages.end("cgroup");
    if let Some(link) = &spec.range {
        range::give(link)?;
    }
    folder::exchange_record(&spec.record)?;
    folder::move_to(&prepared.dir, &spec.dir).at("directory", &spec.dir)?;
    begun.stages.end("record");
    sys::set_hostname_in(names.as_raw_fd(), &owned.hostname).at("inside", "hostname")?;
    begun.release(matches!(prepared.root, RootSpec::Image { .. }).then_some(owned.hostname.as_str()))
}

/// Whether something came from the other end, or whoever held that is gone.
fn ended(socket: RawFd) -> bool {
    let mut entry = libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 };
    // SAFETY: the entry is alive through the call.
    unsafe { libc::poll(&raw mut entry, 1, 0) > 0 }
}

/// @returns nothing when nobody holds the other end any more.
fn receive(socket: RawFd) -> io::Result<Vec<u8>> {
    let looked = libc::MSG_PEEK | libc::MSG_TRUNC;
    // SAFETY: asks for the size alone.
    let size = sys::check(unsafe { libc::recv(socket, std::ptr::null_mut(), 0, looked) } as libc::c_long)?;
    let mut line = vec![0u8; size as usize];
    // SAFETY: the buffer is valid for its length.
    let count = sys::check(unsafe { libc::recv(socket, line.as_mut_ptr().cast(), line.len(), 0) } as libc::c_long)?;
    line.truncate(count as usize);
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(lost: Vec<(u64, StepError)>) -> Vec<u64> {
        lost.into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn who_says_nothing_to_a_claim_is_killed_and_only_then_is_that_told() {
        let mut parked = Parked::default();
        let (still, lively) = (parked.add("/a").expect("a place"), parked.add("/b").expect("a place"));
        // With the other end, as the process that prepares has it.
        let mut process = std::process::Command::new("sleep").arg("60").stdin(still).spawn().expect("sleep");
        parked.waiting.swap(0, 1);
        parked.made_by(process.id() as i32);
        assert_eq!(parked.due(), None);
        for (id, dir) in [(7, "/a"), (8, "/b")] {
            parked.hand_over(id, dir, b"claim").expect("handed over");
        }
        assert!(parked.due().is_some_and(|due| due > SILENCE / 2));
        parked.end_silent();
        assert!(process.try_wait().expect("its state").is_none());

        parked.claimed[0].since -= SILENCE;
        assert_eq!(parked.due(), Some(Duration::ZERO));
        parked.end_silent();
        assert_eq!(parked.due(), None);
        process.wait().expect("its end");
        let lost = parked.collect();
        assert!(lost[0].1.message.contains("said nothing"), "{}", lost[0].1);
        assert_eq!(numbers(lost), [7]);
        // Of which no process is known.
        parked.claimed[0].since -= SILENCE;
        assert_eq!(parked.due(), None);
        drop(lively);
        assert_eq!(numbers(parked.collect()), [8]);
    }

    #[test]
    fn a_claim_goes_to_whom_it_is_for_whole_and_once() {
        let mut parked = Parked::default();
        let first = parked.add("/a").expect("a place");
        let second = parked.add("/b").expect("a place");
        let line = vec![b'x'; 100_000];
        parked.hand_over(7, "/b", &line).expect("handed over");
        assert_eq!(receive(second.as_raw_fd()).expect("a request"), line);
        assert!(parked.hand_over(7, "/b", &line).is_err());
        assert!(parked.collect().is_empty());
        drop(second);
        assert_eq!(numbers(parked.collect()), [7]);
        drop(first);
        assert!(parked.hand_over(8, "/a", &line).is_err());
    }

    #[test]
    fn a_claim_that_was_answered_is_not_answered_again() {
        let mut parked = Parked::default();
        let place = parked.add("/a").expect("a place");
        parked.hand_over(7, "/a", b"claim").expect("handed over");
        receive(place.as_raw_fd()).expect("a request");
        Debt(place).settle();
        assert!(parked.collect().is_empty());
        assert_eq!(parked.owing().count(), 0);
    }

    #[test]
    fn a_claim_that_is_too_long_is_refused_and_waits_for_nobody() {
        let mut parked = Parked::default();
        let place = parked.add("/a").expect("a place");
        assert!(parked.hand_over(9, "/a", &vec![b'x'; 1 << 20]).is_err());
        assert!(receive(place.as_raw_fd()).expect("the end").is_empty());
    }

    #[test]
    fn what_has_ended_is_forgotten() {
        let mut parked = Parked::default();
        drop(parked.add("/a").expect("a place"));
        let _kept = parked.add("/b").expect("a place");
        let _more = parked.add("/c").expect("a place");
        assert_eq!(parked.waiting.iter().map(|(dir, _)| dir.as_str()).collect::<Vec<_>>(), ["/b", "/c"]);
    }
}
