//! The agent's one thread: an epoll loop that never blocks. Connections, execs, journals, timers and the reaping of
//! orphans live here; what may block (files, archives, dialled ports) is lent to worker threads.

use crate::config::Config;
use crate::connection::{Connection, Operation};
use crate::exec::Exec;
use crate::killing::Killing;
use crate::limits::Looks;
use crate::machine::Machine;
use crate::monitor;
use crate::oom::OomCounters;
use crate::own_group::OwnGroup;
use crate::poller::{HANG_UP, PEER_GONE, Poller, READ, Source, WRITE};
use crate::slab::{Key, Slab};
use crate::socket_grants::{self, SocketGrants};
use crate::timers::{TimerId, Timers};
use crate::users::Ids;
use crate::workers::Workers;
use crate::{console, sys, tree};
use alcove_protocol::ErrorBody;
use alcove_protocol::ErrorCode;
use std::collections::{HashMap, VecDeque};
use std::io::Result;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

const MAX_CONNECTIONS: usize = 1024;
const GREETING_MS: u64 = 10_000;
/// Until a listener that could not accept tries again.
const ACCEPT_AGAIN_MS: u64 = 100;
/// How long the end of a command that somebody follows may wait for others before it is told to those who listen to all ends.
const FEED_MS: u64 = 20;
const SPARE_MS: u64 = 5_000;
const MAX_SPARES: usize = 16;
/// How long the end of everything may take when the agent is not the init of its sandbox.
const END_MS: u64 = 3_000;

#[derive(Clone, Copy, Debug)]
pub enum Timer {
    Greeting(Key),
    Timeout(Key),
    Grace(Key),
    Processor(Key),
    Drain(Key),
    Survivors(Key),
    Terminal(Key),
    Spares,
    Killing,
    Accept,
    Feed,
    SocketGrants,
    Expiry,
}

/// A monitor process and the exec it serves; None while it is a spare.
pub struct Monitor {
    pub handle: monitor::Handle,
    pub exec: Option<Key>,
    pub spare_since: u64,
}

/// How long an agent waits to be told what it is for, milliseconds. Whoever started it may have died over that, and have nobody who comes
/// after him: nothing else would end it.
pub const UNCLAIMED_MS: u64 = 600_000;

pub struct Options {
    pub listener: OwnedFd,
    pub oom: OomCounters,
    pub ids: Ids,
    /// Soft and hard limit of open files to give to commands.
    pub open_files: (u64, u64),
    pub socket_grants: Option<SocketGrants>,
    /// Where this is its process 1.
    pub machine: Option<Machine>,
    /// It ends unless it is configured within these, or somebody is connected then and waits for that.
    pub unclaimed_ms: u64,
    /// A group that commands of other users than root have beside their own: it lets them through the folders above the root
    /// file system where that is only a folder of the host's.
    pub passing_group: Option<u32>,
}

/// Commands that run, and those that have ended and are remembered.
pub struct Commands {
    pub execs: Slab<Exec>,
    pub by_id: HashMap<String, Key>,
    pub ended: VecDeque<Key>,
    /// Bytes of text in their records.
    pub ended_text: usize,
    pub looks: Looks,
    pub sequence: u64,
    pub running: usize,
    pub journal_bytes: usize,
}

/// The processes that supervise commands, and what each is started with.
pub struct Monitors {
    pub list: Slab<Monitor>,
    pub open_files: (u64, u64),
    /// Of monitors, and of commands.
    pub oom_score_adj: (i32, i32),
    pub spares_timer: Option<TimerId>,
    /// The null device, once a command has needed it.
    pub null: Option<Rc<OwnedFd>>,
}

/// The listener, and who has come in by it.
pub struct Connections {
    pub listener: OwnedFd,
    pub listening: bool,
    pub list: Slab<Connection>,
    pub dirty: Vec<Key>,
    pub followers: Vec<Key>,
    pub token: Option<String>,
    pub accept_timer: Option<TimerId>,
    /// Until what the followers have waiting is sent.
    pub feed_timer: Option<TimerId>,
}

pub struct Agent {
    pub poller: Poller,
    pub signals: OwnedFd,
    pub timers: Timers<Timer>,
    pub workers: Workers,
    pub connections: Connections,
    pub commands: Commands,
    pub monitors: Monitors,
    /// Lent to commands that have not been started yet, by their ids.
    pub groups: VecDeque<(String, OwnGroup)>,
    pub killing: Killing,
    pub config: Rc<Config>,
    pub oom: OomCounters,
    pub started: u64,
    pub expiry: Option<TimerId>,
    unclaimed_ms: u64,
    /// It was held until it was somebody's, who is about to run a command: with its configuration it has a monitor for that.
    was_held: bool,
    pub stopping: bool,
    pub scratch: Vec<u8>,
    pub machine: Option<Machine>,
    socket_grants: Option<SocketGrants>,
}

pub fn busy(message: impl Into<String>) -> ErrorBody {
    ErrorBody::new(ErrorCode::Busy, message)
}

impl Agent {
    pub fn new(options: Options) -> Result<Agent> {
        let poller = Poller::new()?;
        let mut timers = Timers::new()?;
        let expiry = timers.add(options.unclaimed_ms, Timer::Expiry);
        let workers = Workers::new()?;
        let signals = watch_signals()?;
        sys::set_nonblocking(options.listener.as_raw_fd(), true)?;
        poller.add(options.listener.as_raw_fd(), Source::Listener, READ)?;
        poller.add(signals.as_raw_fd(), Source::Signals, READ)?;
        poller.add(timers.fd(), Source::Timers, READ)?;
        poller.add(workers.fd(), Source::Workers, READ)?;
        if let Some(sockets) = &options.socket_grants {
            poller.add(sockets.fd(), Source::SocketGrants, READ)?;
        }
        let own_score: i32 = sys::read_small(c"/proc/self/oom_score_adj", 64)
            .ok()
            .and_then(|bytes| String::from_utf8_lossy(&bytes).trim().parse().ok())
            .unwrap_or(0);
        Ok(Agent {
            poller,
            signals,
            timers,
            workers,
            connections: Connections {
                listener: options.listener,
                listening: true,
                list: Slab::new(),
                dirty: Vec::new(),
                followers: Vec::new(),
                token: None,
                accept_timer: None,
                feed_timer: None,
            },
            commands: Commands {
                execs: Slab::new(),
                by_id: HashMap::new(),
                ended: VecDeque::new(),
                ended_text: 0,
                looks: Looks::default(),
                sequence: 0,
                running: 0,
                journal_bytes: 0,
            },
            monitors: Monitors {
                list: Slab::new(),
                open_files: options.open_files,
                oom_score_adj: (own_score, (own_score + 500).min(1000)),
                spares_timer: None,
                null: None,
            },
            groups: VecDeque::new(),
            killing: Killing::default(),
            config: Rc::new(Config {
                root_caps: options.machine.as_ref().map_or(0, |machine| machine.root_caps),
                passing_group: options.passing_group,
                ..Config::new(options.ids)
            }),
            oom: options.oom,
            started: sys::boottime_ms(),
            expiry: Some(expiry),
            unclaimed_ms: options.unclaimed_ms,
            was_held: false,
            stopping: false,
            scratch: Vec::new(),
            machine: options.machine,
            socket_grants: options.socket_grants,
        })
    }

    /// As if it had started now: it was held until it was somebody's.
    pub fn begin_now(&mut self) {
        self.started = sys::boottime_ms();
        self.was_held = true;
        if let Some(timer) = self.expiry.replace(self.timers.add(self.unclaimed_ms, Timer::Expiry)) {
            self.timers.cancel(timer);
        }
    }

    /// Serves until a shutdown, SIGTERM or the expiry; then nothing that was started here is left.
    pub fn run(&mut self) -> Result<()> {
        let mut ready = Vec::new();
        while !self.stopping {
            self.poller.wait(&mut ready, !self.killing.is_due())?;
            for (source, events) in ready.drain(..) {
                self.handle(source, events);
            }
            while let Some(key) = self.connections.dirty.pop() {
                self.pump(key);
            }
            if self.killing.is_due() {
                self.kill_on();
            }
            // Whoever waits for the answer has it by now.
            if self.was_held && self.connections.token.is_some() {
                self.was_held = false;
                if self.commands.running == 0 {
                    self.fork_ahead();
                }
            }
        }
        self.send_feed();
        while let Some(key) = self.connections.dirty.pop() {
            self.flush(key);
        }
        self.end_everything();
        Ok(())
    }

    fn handle(&mut self, source: Source, events: u32) {
        match source {
            Source::Listener => self.accept(),
            Source::Signals => self.read_signals(),
            Source::Timers => self.run_timers(),
            Source::Workers => self.take_back(),
            Source::Connection(key) => self.connection_ready(key, events),
            Source::ExecStdout(key) => self.output_ready(key, crate::journal::Stream::Stdout),
            Source::ExecStderr(key) => self.output_ready(key, crate::journal::Stream::Stderr),
            Source::ExecStdin(key) => self.feed(key),
            Source::Monitor(key) => self.monitor_ready(key),
            Source::SocketGrants => {
                // Who asked may be gone; whoever asks next is told again.
                if self.socket_grants.as_mut().is_some_and(|sockets| sockets.take().unwrap_or(false)) {
                    self.timers.add(socket_grants::AGAIN_MS, Timer::SocketGrants);
                }
            }
        }
    }

    fn accept(&mut self) {
        loop {
            if self.connections.list.len() >= MAX_CONNECTIONS {
                return self.stop_listening();
            }
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: no address is asked for; the descriptor returned is ours.
            let accepted = unsafe {
                let fd = libc::accept4(
                    self.connections.listener.as_raw_fd(),
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    flags,
                );
                sys::check(fd).map(|fd| OwnedFd::from_raw_fd(fd))
            };
            let fd = match accepted {
                Ok(fd) => fd,
                Err(error) => match error.raw_os_error() {
                    Some(libc::ECONNABORTED | libc::EINTR) => continue,
                    Some(libc::EAGAIN) => return,
                    _ => {
                        // Descriptors or memory are used up. What frees them may be anything.
                        self.stop_listening();
                        return self.listen_later();
                    }
                },
            };
            let size: libc::c_int = 512 * 1024;
            // SAFETY: the option takes an int. A smaller buffer only costs speed.
            unsafe {
                let length = std::mem::size_of_val(&size) as libc::socklen_t;
                let value = std::ptr::from_ref(&size).cast();
                libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, value, length);
            }
            let raw = fd.as_raw_fd();
            let interest = READ | PEER_GONE;
            let key = self.connections.list.insert(Connection::new(fd, TimerId::NONE, interest));
            let timer = self.timers.add(GREETING_MS, Timer::Greeting(key));
            if let Some(connection) = self.connections.list.get_mut(key) {
                connection.operation = Operation::Greeting(Some(timer));
            }
            if self.poller.add(raw, Source::Connection(key), interest).is_err() {
                self.close(key);
            }
        }
    }

    /// The backlog waits until a connection ends or a timer tries again.
    fn stop_listening(&mut self) {
        if self.connections.listening {
            self.poller.remove(self.connections.listener.as_raw_fd());
            self.connections.listening = false;
        }
    }

    fn listen_later(&mut self) {
        if self.connections.accept_timer.is_none() {
            self.connections.accept_timer = Some(self.timers.add(ACCEPT_AGAIN_MS, Timer::Accept));
        }
    }

    fn listen_again(&mut self) {
        if let Some(timer) = self.connections.accept_timer.take() {
            self.timers.cancel(timer);
        }
        if self.connections.listening {
            return;
        }
        self.connections.listening =
            self.poller.add(self.connections.listener.as_raw_fd(), Source::Listener, READ).is_ok();
        if !self.connections.listening {
            self.listen_later();
        }
    }

    fn read_signals(&mut self) {
        let mut info = [0u8; std::mem::size_of::<libc::signalfd_siginfo>()];
        while let Ok(count) = sys::read(self.signals.as_raw_fd(), &mut info) {
            if count < info.len() {
                break;
            }
            let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]) as i32;
            let sender = u32::from_ne_bytes([info[12], info[13], info[14], info[15]]);
            // As the first process of a sandbox it heeds only senders outside of it, which have no pid here: a command
            // that runs as root may send signals too.
            let heeded = sender == 0 || std::process::id() != 1;
            if heeded && (number == libc::SIGTERM || number == libc::SIGINT) {
                self.stopping = true;
            }
        }
        // Monitors tell about commands; everything else that ends here is an orphan and only has to be reaped.
        // SAFETY: plain waits.
        while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) } > 0 {}
    }

    fn run_timers(&mut self) {
        self.timers.acknowledge();
        let now = sys::boottime_ms();
        while let Some(timer) = self.timers.due(now) {
            match timer {
                Timer::Greeting(key) => self.close(key),
                Timer::Timeout(key) => self.kill_tree(key, alcove_protocol::ExitReason::Timeout),
                Timer::Grace(key) => self.end_grace(key),
                Timer::Processor(key) => self.check_processor(key),
                Timer::Drain(key) => self.finish_draining(key),
                Timer::Survivors(key) => self.end_kept(key),
                Timer::Terminal(key) => self.look_at_terminal(key),
                Timer::Spares => self.retire_spares(),
                Timer::Accept => self.listen_again(),
                Timer::Feed => self.send_feed(),
                Timer::Killing => self.resume_killing(),
                Timer::SocketGrants => {
                    if self.socket_grants.as_mut().is_some_and(SocketGrants::again) {
                        self.timers.add(socket_grants::AGAIN_MS, Timer::SocketGrants);
                    }
                }
                // Whoever keeps it ready for somebody holds a connection, which ends with him.
                Timer::Expiry if self.connections.token.is_none() && self.connections.list.len() > 0 => {
                    self.expiry = Some(self.timers.add(self.unclaimed_ms, Timer::Expiry));
                }
                Timer::Expiry => {
                    console::say(format_args!(
                        "{}",
                        match self.connections.token {
                            Some(_) => "the sandbox's time is over and nobody extended it: everything ends",
                            None => "nobody has said what this is for, and it waits no longer",
                        }
                    ));
                    self.stopping = true;
                }
            }
        }
        self.timers.arm();
    }

    /// What is for those who listen to all ends may wait for more of it, in one write. Whoever follows a command has its end from
    /// its own connection, and is not to wait until everybody was told.
    pub fn feed_soon(&mut self) {
        if self.connections.feed_timer.is_none() {
            self.connections.feed_timer = Some(self.timers.add(FEED_MS, Timer::Feed));
        }
    }

    fn send_feed(&mut self) {
        self.connections.feed_timer = None;
        for listener in self.connections.followers.clone() {
            self.mark(listener);
        }
    }

    pub fn mark(&mut self, key: Key) {
        if let Some(connection) = self.connections.list.get_mut(key) {
            if !connection.dirty {
                connection.dirty = true;
                self.connections.dirty.push(key);
            }
        }
    }

    /// Watches the connection for what it waits for now.
    pub fn update_interest(&mut self, key: Key) {
        let Some(connection) = self.connections.list.get_mut(key) else { return };
        let mut interest = PEER_GONE;
        let reads = !matches!(connection.operation, Operation::Killing(_) | Operation::Closing);
        if reads && !connection.stalled && !connection.behind() {
            interest |= READ;
        }
        if connection.full {
            interest |= WRITE;
        }
        if interest != connection.interest {
            connection.interest = interest;
            // The descriptor is watched, so this cannot fail.
            let _ = self.poller.change(connection.fd.as_raw_fd(), Source::Connection(key), interest);
        }
    }

    fn connection_ready(&mut self, key: Key, events: u32) {
        if events & WRITE != 0 {
            self.mark(key);
        }
        if events & READ != 0 {
            self.receive(key);
        }
        if events & HANG_UP != 0 || (events & PEER_GONE != 0 && events & READ == 0) {
            self.close(key);
        }
    }

    /// Ends a connection and what hangs on it. Commands go on.
    pub fn close(&mut self, key: Key) {
        if matches!(self.connections.list.get(key).map(|connection| &connection.operation), Some(Operation::Lent)) {
            return;
        }
        let Some(connection) = self.connections.list.remove(key) else { return };
        self.poller.remove(connection.fd.as_raw_fd());
        if let Operation::Greeting(Some(timer)) = connection.operation {
            self.timers.cancel(timer);
        }
        self.detach(key, &connection.operation);
        self.listen_again();
    }

    /// Takes a connection out of the lists it is in.
    pub fn detach(&mut self, key: Key, operation: &Operation) {
        let exec_key = match operation {
            Operation::Starting(exec) | Operation::Killing(exec) | Operation::Feeding { exec, .. } => *exec,
            Operation::Following(follow) => follow.exec,
            Operation::Listening => {
                self.connections.followers.retain(|other| *other != key);
                return;
            }
            _ => return,
        };
        if let Some(exec) = self.commands.execs.get_mut(exec_key) {
            exec.followers.retain(|other| *other != key);
            exec.kill_waiters.retain(|other| *other != key);
            exec.stdin_writers.retain(|other| *other != key);
            exec.inputs.leave(key);
            if exec.starter == Some(key) {
                exec.starter = None;
            }
        }
        match operation {
            Operation::Following(follow) if follow.lossless && follow.until.is_none() => {
                self.keep_unread(exec_key, follow.acked.unwrap_or(follow.cursor));
            }
            _ => {}
        }
        // A lossless reader may have held the command back.
        self.resume_output(exec_key);
    }

    fn retire_spares(&mut self) {
        self.monitors.spares_timer = None;
        let now = sys::boottime_ms();
        let spares: Vec<(Key, u64)> = self
            .monitors
            .list
            .iter()
            .filter(|(_, monitor)| monitor.exec.is_none())
            .map(|(key, monitor)| (key, monitor.spare_since))
            .collect();
        for (key, since) in &spares {
            if now.saturating_sub(*since) >= SPARE_MS {
                self.dismiss(*key);
            }
        }
        if spares.iter().any(|(_, since)| now.saturating_sub(*since) < SPARE_MS) {
            self.monitors.spares_timer = Some(self.timers.add(SPARE_MS, Timer::Spares));
        }
    }

    /// A monitor without work ends by itself once its socket is closed.
    pub fn dismiss(&mut self, key: Key) {
        if let Some(monitor) = self.monitors.list.remove(key) {
            self.poller.remove(monitor.handle.socket.as_raw_fd());
        }
    }

    pub fn keep_spare(&mut self, key: Key) {
        if self.monitors.list.iter().filter(|(_, monitor)| monitor.exec.is_none()).count() > MAX_SPARES {
            self.dismiss(key);
        } else if self.monitors.spares_timer.is_none() {
            self.monitors.spares_timer = Some(self.timers.add(SPARE_MS, Timer::Spares));
        }
    }

    fn end_everything(&mut self) {
        if std::process::id() == 1 {
            // The kernel ends the whole namespace with its init.
            return;
        }
        let own = std::process::id() as i32;
        let until = sys::boottime_ms() + END_MS;
        while tree::kill_all_below(own) > 0 && sys::boottime_ms() < until {
            // SAFETY: reaps what has just been killed.
            while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) } > 0 {}
        }
    }
}

fn watch_signals() -> Result<OwnedFd> {
    // SAFETY: the set is initialised before it is used; the descriptor returned is ours.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT] {
            libc::sigaddset(&mut set, signal);
        }
        sys::check(libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()))?;
        let fd = sys::check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}
