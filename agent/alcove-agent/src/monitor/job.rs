//! A job: as the agent sends it, and as its monitor lays it out for the child.

use super::MAX_FDS;
use super::report::Stage;
use crate::sys;
use std::cell::Cell;
use std::os::fd::RawFd;
use std::ptr;

/// What to run. The descriptors (standard input, output and error; one and the same for a terminal) travel beside it.
pub struct Job {
    pub argv: Vec<Vec<u8>>,
    pub env: Vec<Vec<u8>>,
    /// Paths to try in turn.
    pub programs: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    /// None where only one user id exists.
    pub ids: Option<(u32, u32, Vec<u32>)>,
    pub tty: bool,
    pub caps: u64,
    /// The start is told of at once; else a short command's start is told of with its end.
    pub prompt: bool,
}

impl Job {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        let list = |out: &mut Vec<u8>, items: &[Vec<u8>]| {
            out.extend_from_slice(&(items.len() as u32).to_ne_bytes());
            for item in items {
                out.extend_from_slice(&(item.len() as u32).to_ne_bytes());
                out.extend_from_slice(item);
                out.push(0);
            }
        };
        list(&mut out, &self.argv);
        list(&mut out, &self.env);
        list(&mut out, &self.programs);
        list(&mut out, std::slice::from_ref(&self.cwd));
        let (uid, gid, groups) = self.ids.clone().unwrap_or((u32::MAX, u32::MAX, Vec::new()));
        for number in [uid, gid, groups.len() as u32].into_iter().chain(groups) {
            out.extend_from_slice(&number.to_ne_bytes());
        }
        out.extend_from_slice(&u32::from(self.tty).to_ne_bytes());
        out.extend_from_slice(&self.caps.to_ne_bytes());
        out.extend_from_slice(&u32::from(self.prompt).to_ne_bytes());
        out
    }
}

/// A job with everything the child needs laid out as the kernel wants it: after the clone nothing is allocated.
pub struct Plan {
    pub argv: Vec<*const libc::c_char>,
    pub env: Vec<*const libc::c_char>,
    pub programs: Vec<*const libc::c_char>,
    /// `/bin/sh`, the script, its arguments: for text files without an interpreter line.
    pub script: Vec<Cell<*const libc::c_char>>,
    pub cwd: *const libc::c_char,
    pub ids: Option<(u32, u32, Vec<u32>)>,
    pub tty: bool,
    pub caps: u64,
    pub prompt: bool,
    pub fds: [RawFd; MAX_FDS],
    /// Files to join control groups by.
    pub join: Vec<RawFd>,
    /// What the command may use, where its monitor keeps to fewer for the start.
    pub processors: Option<sys::Processors>,
    /// What went wrong in the child, which writes here while this process stands still.
    pub failure: Cell<(Stage, i32)>,
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.0.get(..count)?;
        self.0 = &self.0[count..];
        Some(taken)
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }
    fn strings(&mut self) -> Option<Vec<*const libc::c_char>> {
        let count = self.u32()?;
        let mut pointers = Vec::with_capacity(count as usize + 1);
        for _ in 0..count {
            let length = self.u32()? as usize;
            pointers.push(self.take(length + 1)?.as_ptr().cast());
        }
        pointers.push(ptr::null());
        Some(pointers)
    }
}

impl Plan {
    /// The pointers refer into `job`, which must outlive the plan.
    pub fn decode(job: &[u8], fds: [RawFd; MAX_FDS], join: &[RawFd]) -> Option<Plan> {
        let mut cursor = Cursor(job);
        let argv = cursor.strings()?;
        let env = cursor.strings()?;
        let programs = cursor.strings()?;
        let cwd = cursor.strings()?[0];
        let (uid, gid, count) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
        let groups = (0..count).map(|_| cursor.u32()).collect::<Option<Vec<u32>>>()?;
        let tty = cursor.u32()? != 0;
        let caps = cursor.u64()?;
        let prompt = cursor.u32()? != 0;
        // The second place is the script's, known once it was tried.
        let mut script = vec![Cell::new(c"/bin/sh".as_ptr()), Cell::new(ptr::null())];
        script.extend(argv.iter().skip(1).map(|arg| Cell::new(*arg)));
        let ids = (uid != u32::MAX).then_some((uid, gid, groups));
        let failure = Cell::new((Stage::Setup, 0));
        Some(Plan {
            argv,
            env,
            programs,
            script,
            cwd,
            ids,
            tty,
            caps,
            prompt,
            fds,
            join: join.to_vec(),
            processors: None,
            failure,
        })
    }
}
