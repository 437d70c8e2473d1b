//! A few threads for what may block. A connection's socket is lent to a worker for one operation and comes back after.

use crate::files::context::Context;
use crate::{dial, files, stats, sys};
use alcove_protocol::*;
use std::collections::VecDeque;
use std::io::Result;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::slab::Key;
use channel::Channel;

pub mod channel;

/// What a worker does with the connection it is lent.
pub enum Task {
    Stats { whole_machine: bool },
    Stat(FileStat),
    List(FileList),
    Read(FileRead),
    Write(FileWrite),
    Mkdir(FileMkdir),
    Move(FileMove),
    Remove(FileRemove),
    Chmod(FileChmod),
    Glob(FileGlob),
    Archive(FileArchive),
    Unpack(FileUnpack),
    Watch(FileWatch),
    Dial(PortDial),
}

/// Kinds of work with bounds of their own: slow downloads and long watches must not keep a stat waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Short,
    Stream,
    Watch,
    Dial,
}

impl Class {
    fn bound(self) -> usize {
        match self {
            Class::Short => 16,
            Class::Stream => 16,
            Class::Watch => 16,
            // Half the processes of a sandbox that has the usual number of them.
            Class::Dial => 256,
        }
    }
}

pub struct Job {
    pub connection: Key,
    pub class: Class,
    pub task: Task,
    pub fd: RawFd,
    pub decoder: Decoder,
    /// Earlier replies that the socket has not taken yet.
    pub unsent: Vec<u8>,
    pub context: Context,
}

/// What becomes of the connection.
pub enum Outcome {
    /// It carries the next request.
    Return(Decoder),
    Close,
}

pub struct Done {
    pub connection: Key,
    pub class: Class,
    pub outcome: Outcome,
}

const STACK: usize = 256 * 1024;
const IDLE: Duration = Duration::from_millis(1000);

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    done: Vec<Done>,
    idle: usize,
    threads: usize,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    wake: OwnedFd,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The program aborts on a panic, so a poisoned lock is never seen.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Workers {
    shared: Arc<Shared>,
    lent: [usize; 4],
}

impl Workers {
    pub fn new() -> Result<Self> {
        // SAFETY: a fresh descriptor.
        let wake =
            unsafe { OwnedFd::from_raw_fd(sys::check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?) };
        let shared = Shared { state: Mutex::new(State::default()), work: Condvar::new(), wake };
        Ok(Self { shared: Arc::new(shared), lent: [0; 4] })
    }

    /// Readable when an operation is over.
    pub fn fd(&self) -> RawFd {
        self.shared.wake.as_raw_fd()
    }

    /// Whether one more job of this class is within its bound.
    pub fn has_room(&self, class: Class) -> bool {
        self.lent[class as usize] < class.bound()
    }

    /// Gives the job back when no thread can be had: the sandbox may have used up its processes.
    pub fn start(&mut self, job: Job) -> std::result::Result<(), Box<Job>> {
        let class = job.class;
        let mut state = self.shared.lock();
        if state.idle <= state.jobs.len() {
            let shared = self.shared.clone();
            let spawned = std::thread::Builder::new().stack_size(STACK).spawn(move || work(&shared));
            match spawned {
                Ok(_) => state.threads += 1,
                Err(_) => return Err(Box::new(job)),
            }
        }
        state.jobs.push_back(job);
        drop(state);
        self.shared.work.notify_one();
        self.lent[class as usize] += 1;
        Ok(())
    }

    pub fn finished(&mut self) -> Vec<Done> {
        let mut count = [0; 8];
        // Nothing to read is fine: what is done is looked at all the same.
        let _ = sys::read(self.fd(), &mut count);
        let done = std::mem::take(&mut self.shared.lock().done);
        for one in &done {
            self.lent[one.class as usize] -= 1;
        }
        done
    }
}

fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            let done = perform(job);
            state = shared.lock();
            state.done.push(done);
            // Only a counter that is full could refuse this, and then the loop is awake anyway.
            let _ = sys::write(shared.wake.as_raw_fd(), &1u64.to_ne_bytes());
            continue;
        }
        state.idle += 1;
        let (guard, timeout) = shared.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
        state = guard;
        state.idle -= 1;
        if timeout.timed_out() && state.jobs.is_empty() {
            state.threads -= 1;
            return;
        }
    }
}

fn perform(job: Job) -> Done {
    let Job { connection, class, task, fd, decoder, unsent, context } = job;
    let mut channel = Channel::new(fd, decoder, unsent);
    let result = match task {
        Task::Stats { whole_machine } => stats::serve(&mut channel, whole_machine),
        Task::Stat(request) => files::inspect::stat(&mut channel, &request),
        Task::List(request) => files::list::list(&mut channel, &request),
        Task::Read(request) => files::read::read(&mut channel, &request),
        Task::Write(request) => files::write::write(&mut channel, &context, &request),
        Task::Mkdir(request) => files::change::mkdir(&mut channel, &context, &request),
        Task::Move(request) => files::change::rename(&mut channel, &context, &request),
        Task::Remove(request) => files::remove::remove(&mut channel, &request),
        Task::Chmod(request) => files::change::chmod(&mut channel, &request),
        Task::Glob(request) => files::glob::glob(&mut channel, &request),
        Task::Archive(request) => files::archive::archive(&mut channel, &request),
        Task::Unpack(request) => files::unpack::unpack(&mut channel, &context, &request),
        Task::Watch(request) => files::watch::watch(&mut channel, &request),
        Task::Dial(request) => dial::dial(&mut channel, &request),
    };
    Done { connection, class, outcome: channel.finish(result) }
}
