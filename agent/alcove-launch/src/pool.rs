//! A few writable layers made ahead: a loop device and its mount take longer than all the rest of a launch. Each is made
//! by a process of its own, which hands the mount over as a descriptor.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::disk::{self, Ready};
use crate::error::{AtStep, Result, StepError};
use crate::sys;

const STEP: &str = "disk";
/// After a failure: what was missing, space for one, may be there again.
const PAUSE: Duration = Duration::from_secs(10);
/// Nothing was asked for so long: making one then takes no processor from who waits for an answer.
const QUIET: Duration = Duration::from_millis(25);

pub struct Pool {
    template: String,
    /// Where images wait; what a pool before this one left there is removed.
    dir: String,
    wanted: usize,
    ready: Vec<Ready>,
    /// The layer being made: its image, and where its mount arrives.
    coming: Option<(String, OwnedFd)>,
    made: u64,
    /// When making one failed: launches then make their own and report why, until it is tried again.
    failed: Option<Instant>,
    /// When something was asked of the launcher last.
    asked: Instant,
}

impl Pool {
    pub fn new(template: String, dir: String, wanted: usize) -> Self {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
        Self { template, dir, wanted, ready: Vec::new(), coming: None, made: 0, failed: None, asked: Instant::now() }
    }

    /// Something is asked of the launcher.
    pub fn disturb(&mut self) {
        self.asked = Instant::now();
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
        Some(if is_low { Duration::ZERO } else { QUIET.saturating_sub(self.asked.elapsed()) })
    }

    /// Starts making a layer when one is due.
    pub fn refill(&mut self) -> Result<()> {
        if self.due() != Some(Duration::ZERO) {
            return Ok(());
        }
        self.made += 1;
        let image = format!("{}/{}-{}.img", self.dir, std::process::id(), self.made);
        let (ours, theirs) = sys::message_pair().at(STEP, "socketpair")?;
        let parent = std::process::id() as i32;
        if sys::fork().at(STEP, "fork")? == 0 {
            drop(ours);
            // Nobody would take what it makes, and the next launcher's pool begins with an empty folder.
            sys::end_with(parent);
            sys::yield_to_others();
            let sent = disk::make(&self.template, &image).and_then(|ready| send(&theirs, &ready.mount));
            if let Err(error) = sent {
                eprintln!("alcove-launch: {error}");
                std::process::exit(1);
            }
            std::process::exit(0);
        }
        self.coming = Some((image, ours));
        Ok(())
    }

    pub fn collect(&mut self) {
        if let Some((image, socket)) = self.coming.take() {
            match receive(&socket) {
                Ok(mount) => {
                    self.failed = None;
                    self.ready.push(Ready { image, mount });
                }
                Err(_) => {
                    discard(&image);
                    self.failed = Some(Instant::now());
                }
            }
        }
    }
}

/// An image that nobody will mount, if it is there.
pub fn discard(image: &str) {
    let _ = std::fs::remove_file(image);
}

/// Room for one descriptor, aligned as control messages must be.
#[repr(align(8))]
struct Control([u8; 24]);

fn message(byte: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: an all-zero header is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = byte;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    header
}

fn send(socket: &OwnedFd, fd: &OwnedFd) -> Result<()> {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = Control([0; 24]);
    let header = message(&mut part, &mut control);
    // SAFETY: the control buffer has room for exactly this message.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(first).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        sys::check(libc::sendmsg(socket.as_raw_fd(), &raw const header, 0) as libc::c_long)
            .map(drop)
            .at(STEP, "sendmsg")
    }
}

fn receive(socket: &OwnedFd) -> Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = Control([0; 24]);
    let mut header = message(&mut part, &mut control);
    // SAFETY: the kernel fills the buffers within their sizes; a descriptor received is owned from here on.
    unsafe {
        let flags = libc::MSG_CMSG_CLOEXEC;
        sys::check(libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) as libc::c_long).at(STEP, "recvmsg")?;
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        if first.is_null() || (*first).cmsg_type != libc::SCM_RIGHTS {
            return Err(StepError::new(STEP, "no mount arrived"));
        }
        Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(first).cast::<RawFd>().read_unaligned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool_of(ready: usize) -> Pool {
        let mut pool = Pool::new("none".to_owned(), "/nowhere".to_owned(), 4);
        let layer = || Ready { image: String::new(), mount: std::fs::File::open("/dev/null").expect("null").into() };
        pool.ready.extend(std::iter::repeat_with(layer).take(ready));
        pool
    }

    #[test]
    fn layers_are_made_when_it_is_quiet_or_half_of_them_are_gone() {
        assert_eq!(pool_of(4).due(), None);
        assert_eq!(pool_of(1).due(), Some(Duration::ZERO));
        let mut pool = pool_of(3);
        pool.disturb();
        assert!(pool.due().is_some_and(|due| due > Duration::ZERO));
        pool.asked -= QUIET;
        assert_eq!(pool.due(), Some(Duration::ZERO));
        pool.failed = Some(Instant::now());
        assert_eq!(pool.due(), None);
    }
}
