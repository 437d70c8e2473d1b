//! What the outer half of a launch makes while the inner half is under way, handed over in parcels. The child has a table of
//! descriptors of its own, so that what either opens and closes meanwhile is open nowhere else.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::error::{AtStep, Result, StepError};
use crate::sys;

/// They come in this order, each of them once.
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Parcel {
    /// The ids are mapped.
    Ids = b'I',
    /// What can be used before there is a root.
    Furniture = b'F',
    /// The groups are made.
    Groups = b'G',
    Root = b'R',
    Network = b'N',
}

#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Thing {
    /// Who writes `0` to it joins a group.
    Join = b'j',
    /// The agent's file, the root and two directories in it, as detached mounts.
    Agent = b'a',
    Root = b'r',
    Proc = b'p',
    Dev = b'd',
    /// A namespace.
    Network = b'w',
    /// See `cgroup::Handles`.
    Oom = b'o',
    ExecPids = b'n',
    ExecQuota = b'q',
    ExecJoin = b'e',
}

/// As many descriptors are taken from one message.
const MOST: usize = 8;

pub struct Sender(OwnedFd);
pub struct Receiver(OwnedFd);

pub fn channel() -> io::Result<(Sender, Receiver)> {
    let (ours, theirs) = sys::message_pair()?;
    Ok((Sender(ours), Receiver(theirs)))
}

impl Sender {
    pub fn send(&self, parcel: Parcel, things: &[(Thing, &OwnedFd)]) -> Result<()> {
        if things.len() > MOST {
            return Err(StepError::new(
                "inside",
                format!("{} descriptors for the sandbox, of at most {MOST}", things.len()),
            ));
        }
        let mut label = vec![parcel as u8];
        label.extend(things.iter().map(|(thing, _)| *thing as u8));
        let fds: Vec<_> = things.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
        match sys::send_with(self.0.as_raw_fd(), &label, &fds) {
            Err(error) if sys::errno_is(&error, libc::EPIPE) || sys::errno_is(&error, libc::ECONNRESET) => {
                Err(StepError::new("inside", "the sandbox's first process ended before it began"))
            }
            other => other.map(drop).at("inside", "hand over"),
        }
    }
}

impl AsRawFd for Sender {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

impl Receiver {
    /// Waits for it.
    pub fn take(&self, parcel: Parcel) -> Result<Things> {
        const STEP: &str = "inside";
        let (mut label, mut given) = ([0u8; 1 + MOST], Vec::new());
        let count = loop {
            match sys::receive(self.0.as_raw_fd(), &mut label, &mut given, MOST) {
                Err(error) if sys::errno_is(&error, libc::EINTR) => {}
                other => break other.at(STEP, "hand over")?,
            }
        };
        match &label[..count] {
            [] => Err(StepError::new(STEP, "the launcher went away")),
            [first, kinds @ ..] if *first == parcel as u8 && kinds.len() == given.len() => {
                Ok(Things(kinds.iter().copied().zip(given).collect()))
            }
            _ => Err(StepError::new(
                STEP,
                format!("{count} bytes and {} descriptors are not what comes now", given.len()),
            )),
        }
    }
}

/// What was in a parcel.
pub struct Things(Vec<(u8, OwnedFd)>);

impl Things {
    pub fn one(&mut self, thing: Thing) -> Option<OwnedFd> {
        let place = self.0.iter().position(|(kind, _)| *kind == thing as u8)?;
        Some(self.0.remove(place).1)
    }

    /// In the order in which they were sent.
    pub fn all(&mut self, thing: Thing) -> Vec<OwnedFd> {
        let (found, rest): (Vec<_>, Vec<_>) = self.0.drain(..).partition(|(kind, _)| *kind == thing as u8);
        self.0 = rest;
        found.into_iter().map(|(_, fd)| fd).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> OwnedFd {
        std::fs::File::open(name).expect(name).into()
    }

    fn path_of(fd: &OwnedFd) -> String {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("a link");
        link.to_string_lossy().into_owned()
    }

    #[test]
    fn a_parcel_arrives_whole_with_what_each_thing_in_it_is() {
        let (sender, receiver) = channel().expect("a channel");
        let (null, zero, full) = (file("/dev/null"), file("/dev/zero"), file("/dev/full"));
        let things = [(Thing::ExecJoin, &null), (Thing::Root, &zero), (Thing::ExecJoin, &full)];
        sender.send(Parcel::Groups, &[]).expect("sent");
        sender.send(Parcel::Root, &things).expect("sent");
        assert!(receiver.take(Parcel::Groups).expect("a parcel").one(Thing::Root).is_none());
        let mut taken = receiver.take(Parcel::Root).expect("a parcel");
        assert_eq!(taken.one(Thing::Root).map(|fd| path_of(&fd)).as_deref(), Some("/dev/zero"));
        assert_eq!(taken.all(Thing::ExecJoin).iter().map(path_of).collect::<Vec<_>>(), ["/dev/null", "/dev/full"]);
        assert!(taken.one(Thing::Root).is_none());
    }

    #[test]
    fn another_parcel_one_without_its_descriptors_and_a_launcher_that_is_gone_are_told() {
        let (sender, receiver) = channel().expect("a channel");
        let told = |parcel| receiver.take(parcel).err().expect("a failure").to_string();
        sender.send(Parcel::Root, &[]).expect("sent");
        assert!(told(Parcel::Groups).contains("not what comes now"));
        sys::write_all(sender.as_raw_fd(), b"Rr").expect("sent");
        assert!(told(Parcel::Root).contains("not what comes now"));
        drop(sender);
        assert!(told(Parcel::Groups).contains("the launcher went away"));
    }

    #[test]
    fn a_child_that_is_gone_and_a_parcel_that_is_too_large_are_told() {
        let (sender, receiver) = channel().expect("a channel");
        let null = file("/dev/null");
        let many: Vec<_> = std::iter::repeat_n((Thing::Join, &null), MOST + 1).collect();
        let told = |things: &[_]| sender.send(Parcel::Groups, things).expect_err("a failure");
        assert!(told(&many).message.contains("9 descriptors"));
        sender.send(Parcel::Groups, &many[1..]).expect("sent");
        drop(receiver);
        let ended = told(&[]);
        // Namespaces that are refused the child tells itself: one that was killed lacks none.
        assert_eq!(ended.step, "inside");
        assert!(ended.message.contains("ended before it began"));
    }
}
