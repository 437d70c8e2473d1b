//! A few folders for runtimes made ahead, each with a writable layer: a loop device and its mount take longer than all the rest of a
//! launch. Each is made by a process of its own, which hands over its mount and its socket as descriptors.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::error::{AtStep, Result, StepError};
use crate::folder::{self, Ready};
use crate::park::Parked;
use crate::quiet::Quiet;
use crate::sys;

const STEP: &str = "disk";
/// After a failure: what was missing, space for one, may be there again.
const PAUSE: Duration = Duration::from_secs(10);

pub struct Pool {
    template: String,
    /// Where folders wait; what a pool before this one left there is removed.
    dir: String,
    wanted: usize,
    ready: Vec<Ready>,
    /// The one being made: its folder, and where its descriptors arrive.
    coming: Option<(String, OwnedFd)>,
    made: u64,
    /// When making one failed: launches then make their own and report why, until it is tried again.
    failed: Option<Instant>,
    quiet: Quiet,
}

impl Pool {
    pub fn new(template: String, dir: String, wanted: usize, quiet: Quiet) -> Self {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folder::discard(&entry.path().to_string_lossy()),
                // Nothing of ours.
                _ => drop(std::fs::remove_file(entry.path())),
            }
        }
        Self { template, dir, wanted, ready: Vec::new(), coming: None, made: 0, failed: None, quiet }
    }

    /// For processes of other requests: what somebody else's sandbox has open is open nowhere else, or its end would not be seen.
    pub fn forget(&mut self) {
        self.ready.clear();
        self.coming = None;
    }

    pub fn take(&mut self) -> Option<Ready> {
        self.ready.pop()
    }

    /// Readable when a layer has been made, or its making has failed.
    pub fn arrival(&self) -> Option<RawFd> {
        self.coming.as_ref().map(|(_, socket)| socket.as_raw_fd())
    }

    /// How long from now a layer is to be made; none when none is missing, or one is being made.
    pub fn due(&self) -> Option<Duration> {
        let pausing = self.failed.is_some_and(|at| at.elapsed() < PAUSE);
        if pausing || self.coming.is_some() || self.ready.len() >= self.wanted {
            return None;
        }
        let is_low = self.ready.len() < self.wanted.div_ceil(2);
        Some(if is_low { Duration::ZERO } else { self.quiet.left() })
    }

    /// Starts making a layer when one is due; what fails is tried again after a pause.
    pub fn refill(&mut self, parked: &mut Parked) -> Result<()> {
        if self.due() != Some(Duration::ZERO) {
            return Ok(());
        }
        let begun = self.begin(parked);
        if begun.is_err() {
            self.failed = Some(Instant::now());
        }
        begun
    }

    fn begin(&mut self, parked: &mut Parked) -> Result<()> {
        self.made += 1;
        let path = format!("{}/{}-{}", self.dir, std::process::id(), self.made);
        let (ours, theirs) = sys::message_pair().at(STEP, "socketpair")?;
        let parent = std::process::id() as i32;
        if sys::fork().at(STEP, "fork")? == 0 {
            drop(ours);
            self.forget();
            parked.forget();
            // Nobody would take what it makes, and the next launcher's pool begins with an empty folder.
            sys::end_with(parent);
            sys::yield_to_others();
            let sent = folder::make_ahead(&self.template, &path)
                .and_then(|ready| send(&theirs, [&ready.mount, &ready.listener]));
            if let Err(error) = sent {
                eprintln!("alcove-launch: {error}");
                std::process::exit(1);
            }
            std::process::exit(0);
        }
        self.coming = Some((path, ours));
        Ok(())
    }

    pub fn collect(&mut self) {
        if let Some((path, socket)) = self.coming.take() {
            match receive(&socket) {
                Ok([mount, listener]) => {
                    self.failed = None;
                    self.ready.push(Ready { path, mount, listener });
                }
                Err(_) => {
                    folder::discard(&path);
                    self.failed = Some(Instant::now());
                }
            }
        }
    }
}

/// The mount of a layer, and the socket that an agent will listen on.
const SENT: usize = 2;

fn send(socket: &OwnedFd, fds: [&OwnedFd; SENT]) -> Result<()> {
    sys::send_with(socket.as_raw_fd(), &[0], &fds.map(AsRawFd::as_raw_fd)).map(drop).at(STEP, "sendmsg")
}

fn receive(socket: &OwnedFd) -> Result<[OwnedFd; SENT]> {
    let mut given = Vec::new();
    sys::receive(socket.as_raw_fd(), &mut [0], &mut given, SENT).at(STEP, "recvmsg")?;
    given.try_into().map_err(|_| StepError::new(STEP, "no folder arrived"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool_of(ready: usize) -> Pool {
        let quiet = Quiet::new().expect("a page");
        quiet.disturb();
        let mut pool = Pool::new("none".to_owned(), "/nowhere".to_owned(), 4, quiet);
        let null = || std::fs::File::open("/dev/null").expect("null").into();
        let folder = || Ready { path: String::new(), mount: null(), listener: null() };
        pool.ready.extend(std::iter::repeat_with(folder).take(ready));
        pool
    }

    #[test]
    fn layers_are_made_when_it_is_quiet_or_half_of_them_are_gone() {
        assert_eq!(pool_of(4).due(), None);
        assert_eq!(pool_of(1).due(), Some(Duration::ZERO));
        let mut pool = pool_of(3);
        assert!(pool.due().is_some_and(|due| due > Duration::ZERO));
        std::thread::sleep(pool.quiet.left());
        assert_eq!(pool.due(), Some(Duration::ZERO));
        pool.failed = Some(Instant::now());
        assert_eq!(pool.due(), None);
    }
}
