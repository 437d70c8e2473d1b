//! `exec.start`: from the request to a running command.

use crate::agent::{Agent, Monitor, Timer, busy};
use crate::config::{DEFAULT_PATH, environment};
use crate::connection::{Follow, Operation};
use crate::exec::{Ending, Exec, Output, Phase, Stdin, remembered};
use crate::inputs::Inputs;
use crate::journal::{Journal, Stream};
use crate::monitor::{self, Job, MAX_SENT_JOB, Stage};
use crate::own_group::OwnGroup;
use crate::poller::{READ, Source};
use crate::requests::{Answer, bad_request, check_env, check_input_name};
use crate::slab::Key;
use crate::users::{self, Ids, User};
use crate::{limits, shell_line, sys, terminal, tree};
use alcove_protocol::{ErrorBody, ErrorCode, ExecStart, ExitReason, Kind, Started};
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

const MAX_RUNNING: usize = 4096;
const MAX_ID: usize = 128;
const MAX_TAG: usize = 4096;
/// Characters of a path that a message tells.
const MAX_NAMED: usize = 1024;

/// The ends of the command's streams: the agent's, and those the command gets.
struct Streams {
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    theirs: [Rc<OwnedFd>; 3],
}

fn io(what: &str, error: &Error) -> ErrorBody {
    let reason = sys::reason(error);
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
            busy(format!("{what}: {reason}; the sandbox has used up its processes, memory or descriptors"))
        }
        _ => ErrorBody::new(ErrorCode::Io, format!("{what}: {reason}")),
    }
}

impl Agent {
    pub fn start_exec(&mut self, connection: Key, request: ExecStart) -> Answer<()> {
        if request.exec_id.is_empty() || request.exec_id.len() > MAX_ID {
            return Err(bad_request(format!("exec_id: 1 to {MAX_ID} bytes are wanted")));
        }
        if self.commands.by_id.contains_key(&request.exec_id) {
            return Err(ErrorBody::new(ErrorCode::Conflict, format!("exec {} exists already", request.exec_id)));
        }
        if request.argv.first().is_none_or(String::is_empty) || request.argv.iter().any(|arg| arg.contains('\0')) {
            return Err(bad_request("argv: the program's name is missing, or an argument holds a zero byte"));
        }
        if self.commands.running >= MAX_RUNNING {
            return Err(busy(format!("{MAX_RUNNING} commands run already")));
        }
        if request.tag.as_ref().is_some_and(|tag| tag.len() > MAX_TAG) {
            return Err(bad_request(format!("tag: at most {MAX_TAG} bytes are kept")));
        }
        check_env(&request.env)?;
        check_input_name(request.input.as_deref())?;
        let user = self.config.user(request.user.as_deref()).map_err(|error| bad_request(error.to_string()))?;
        let streams = match request.tty {
            Some(size) => terminal_streams(size.cols, size.rows, request.stdin, &user, self.config.ids)?,
            None => {
                let empty = if request.stdin { None } else { Some(self.empty_input()?) };
                pipe_streams(empty, &user, self.config.ids)?
            }
        };
        let cwd = request.cwd.clone().filter(|cwd| !cwd.is_empty()).unwrap_or_else(|| self.config.workdir.clone());
        let job = self.job(&request, &user, &cwd)?;
        let oom_before = self.oom.total();
        let limits = request.limits.unwrap_or_default();
        let group = if limits.own_group { Some(self.take_group(&request.exec_id)?) } else { None };
        let join = group.as_ref().map(OwnGroup::join).unwrap_or_default();
        let (monitor, ticks_before) = self.hand_over(&job.encode(), &streams.theirs, &join, limits.cpu_ms.is_some())?;
        drop(streams.theirs);

        self.commands.sequence += 1;
        let id = request.exec_id.clone();
        let (command, args) = remembered(request.command, request.args);
        let key = self.commands.execs.insert(Exec {
            sequence: self.commands.sequence,
            id: request.exec_id,
            command,
            args,
            program: request.argv[0].chars().take(MAX_NAMED).collect(),
            cwd: cwd.chars().take(MAX_NAMED).collect(),
            tty: request.tty.is_some(),
            tag: request.tag,
            detached: request.detached,
            timeout_ms: request.timeout_ms,
            started_at: sys::wall_ms(),
            started_boot: sys::boottime_ms(),
            pid: 0,
            phase: Phase::Starting,
            journal: Journal::new(self.config.ring_bytes),
            // Watched once the start has been told of: until then the pipes hold what a short command writes.
            stdout: Some(Output { fd: streams.stdout, watched: false, enlarged: false, deserted: false }),
            stderr: streams.stderr.map(|fd| Output { fd, watched: false, enlarged: false, deserted: false }),
            stdin: Stdin { fd: streams.stdin, ..Stdin::default() },
            inputs: Inputs::default(),
            input_bytes: request.input_bytes,
            monitor: Some(monitor),
            starter: Some(connection),
            followers: Vec::new(),
            stdin_writers: Vec::new(),
            kill_waiters: Vec::new(),
            unread_from: None,
            killed: None,
            input_lost: None,
            limits,
            exceeded: None,
            excess: false,
            ticks_before,
            cpu_timer: None,
            dying: false,
            survivors: None,
            timeout: None,
            grace: None,
            drain: None,
            oom_before,
            group,
        });
        self.commands.by_id.insert(id, key);
        self.commands.running += 1;
        if let Some(monitor) = self.monitors.list.get_mut(monitor) {
            monitor.exec = Some(key);
        }
        let Some(exec) = self.commands.execs.get_mut(key) else { return Ok(()) };
        // From now on, not from the news that the program runs: a monitor that gets no processor tells it late.
        exec.timeout = exec.timeout_ms.map(|after| self.timers.add(after, Timer::Timeout(key)));
        if let Some(connection_state) = self.connections.list.get_mut(connection) {
            connection_state.operation = if request.follow {
                exec.followers.push(connection);
                let told = request.input.as_deref().and_then(|name| exec.inputs.join(name, connection));
                let (lossless, input) = (request.lossless, request.stdin);
                Operation::Following(Follow {
                    exec: key,
                    cursor: 0,
                    until: None,
                    lossless,
                    acked: (lossless && request.acks).then_some(0),
                    holds: true,
                    replied: false,
                    input,
                    told,
                    frame_left: 0,
                })
            } else {
                Operation::Starting(key)
            };
        }
        Ok(())
    }

    fn job(&self, request: &ExecStart, user: &User, cwd: &str) -> Answer<Job> {
        if cwd.contains('\0') {
            return Err(bad_request("cwd holds a zero byte"));
        }
        let env = environment(&self.config, &request.env, user, request.tty.is_some());
        let program = &request.argv[0];
        let programs = if program.contains('/') {
            vec![program.clone().into_bytes()]
        } else {
            let path = env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
            path.split(':')
                .take(256)
                .map(|directory| match directory {
                    "" => format!("./{program}").into_bytes(),
                    directory => format!("{}/{program}", directory.trim_end_matches('/')).into_bytes(),
                })
                .collect()
        };
        let mut argv: Vec<Vec<u8>> = request.argv.iter().map(|arg| arg.clone().into_bytes()).collect();
        if let [shell, flag, line] = &request.argv[..] {
            let replaced = (shell == "/bin/sh" && flag == "-c").then(|| shell_line::replaced(line)).flatten();
            if let Some(line) = replaced.filter(|_| shell_line::stays()) {
                argv[2] = line.into_bytes();
            }
        }
        Ok(Job {
            argv,
            env: env.iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect(),
            programs,
            cwd: cwd.as_bytes().to_vec(),
            ids: match self.config.ids {
                Ids::Many { .. } => {
                    let passing = self.config.passing_group.filter(|_| user.uid != 0);
                    Some((user.uid, user.gid, user.groups.iter().copied().chain(passing).collect()))
                }
                Ids::Single { .. } => None,
            },
            tty: request.tty.is_some(),
            caps: self.config.exec_caps | if user.uid == 0 { self.config.root_caps } else { 0 },
            prompt: !request.follow || request.tty.is_some(),
        })
    }

    /// What commands without standard input read from: the null device, opened once, or where the sandbox has none, a
    /// pipe that nobody writes to.
    fn empty_input(&mut self) -> Answer<Rc<OwnedFd>> {
        if let Some(null) = &self.monitors.null {
            return Ok(null.clone());
        }
        let failed = |error: Error| io("no pipe can be made", &error);
        match null_device().map_err(failed)? {
            Some(null) => Ok(self.monitors.null.insert(Rc::new(null)).clone()),
            None => sys::pipe().map(|(read, _)| Rc::new(read)).map_err(failed),
        }
    }

    fn monitor_settings(&self) -> monitor::Settings {
        monitor::Settings {
            ids: self.config.ids,
            oom_score_adj: self.monitors.oom_score_adj,
            open_files: self.monitors.open_files,
        }
    }

    /// Gives the job to a spare monitor, else forks one. Tells what the monitor's earlier commands used of the processor,
    /// when that is `counted`.
    fn hand_over(
        &mut self,
        job: &[u8],
        theirs: &[Rc<OwnedFd>; 3],
        join: &[RawFd],
        counted: bool,
    ) -> Answer<(Key, u64)> {
        let fds = [theirs[0].as_raw_fd(), theirs[1].as_raw_fd(), theirs[2].as_raw_fd()];
        // What a command joins is inherited, and so not for a spare.
        while job.len() <= MAX_SENT_JOB && join.is_empty() {
            let spare = self
                .monitors
                .list
                .iter()
                .filter(|(_, monitor)| monitor.exec.is_none())
                .max_by_key(|(_, monitor)| monitor.spare_since);
            let Some((key, spare)) = spare else { break };
            let before = if counted { tree::ticks_of_children(spare.handle.pid) } else { 0 };
            if monitor::send(&spare.handle, job, fds).is_ok() {
                return Ok((key, before));
            }
            // It was killed, or is ending.
            self.dismiss(key);
        }
        let handle = monitor::fork(Some((job, fds, join)), self.monitor_settings())
            .map_err(|error| io("no process can be started", &error))?;
        let socket = handle.socket.as_raw_fd();
        let pid = handle.pid;
        let key = self.monitors.list.insert(Monitor { handle, exec: None, spare_since: 0 });
        if let Err(error) = self.poller.add(socket, Source::Monitor(key), READ) {
            // It has the job already, and must not be taken for a spare: it goes, and what it started with it.
            // SAFETY: plain kill of a child that has not been waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            self.monitors.list.remove(key);
            self.kill_orphans();
            return Err(io("the monitor cannot be watched", &error));
        }
        Ok((key, 0))
    }

    /// A monitor for the first command, which then has none to wait for. Without one that forks its own.
    pub fn fork_ahead(&mut self) {
        let Ok(handle) = monitor::fork(None, self.monitor_settings()) else { return };
        let socket = handle.socket.as_raw_fd();
        let spare_since = sys::boottime_ms();
        let key = self.monitors.list.insert(Monitor { handle, exec: None, spare_since });
        match self.poller.add(socket, Source::Monitor(key), READ) {
            Ok(()) => self.keep_spare(key),
            // Without work it ends as soon as its socket is closed.
            Err(_) => drop(self.monitors.list.remove(key)),
        }
    }

    /// The program runs.
    pub fn exec_started(&mut self, key: Key, pid: i32) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        exec.pid = pid;
        exec.phase = Phase::Running;
        if exec.limits.cpu_ms.is_some() || exec.group.is_some() {
            exec.cpu_timer = Some(self.timers.add(limits::FIRST_LOOK_MS, Timer::Processor(key)));
        }
        self.reply_started(key);
    }

    fn reply_started(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        let Some(starter) = exec.starter.take() else { return };
        let reply = Started { exec_id: exec.id.clone(), pid: exec.pid, started_at: exec.started_at };
        let Some(connection) = self.connections.list.get_mut(starter) else { return };
        if let Operation::Following(follow) = &mut connection.operation {
            follow.replied = true;
            connection.push_json(Kind::Reply, &reply);
            self.mark(starter);
        } else {
            self.reply(starter, &reply);
        }
    }

    /// The program does not run: some failures refuse the request, others are an exec that ended at once.
    pub fn exec_failed(&mut self, key: Key, stage: Stage, errno: i32, pid: i32) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        let error = Error::from_raw_os_error(errno);
        let refusal = match stage {
            Stage::Exec | Stage::NoExec => None,
            Stage::Cwd => Some(bad_request(match errno {
                libc::ENOENT => format!("working directory {} does not exist", exec.cwd),
                libc::ENOTDIR => format!("working directory {} is no directory", exec.cwd),
                libc::EACCES => format!("the user may not enter the working directory {}", exec.cwd),
                _ => format!("working directory {}: {}", exec.cwd, sys::reason(&error)),
            })),
            Stage::Fork => Some(io("no process can be started", &error)),
            Stage::Setup if errno == libc::EINVAL => Some(bad_request(users::NO_SUCH_ID)),
            Stage::Setup => Some(io("the command cannot be set up", &error)),
        };
        if let Some(refusal) = refusal {
            let starter = exec.starter;
            self.forget_exec(key);
            if let Some(starter) = starter {
                self.refuse(starter, &refusal);
            }
            return;
        }
        exec.pid = pid;
        let program = &exec.program;
        let (exit_code, text) = match errno {
            _ if stage == Stage::NoExec => (
                126,
                format!(
                    "{program}: permission denied: its file system is mounted noexec, nothing on it can be executed"
                ),
            ),
            libc::ENOENT => (127, format!("{program}: not found")),
            libc::EACCES => (126, format!("{program}: permission denied")),
            libc::ENOEXEC => (126, format!("{program}: not an executable format")),
            libc::E2BIG => (126, format!("{program}: the argument list is too long")),
            _ => (126, format!("{program}: {}", sys::reason(&error))),
        };
        let line = format!("{text}\n");
        let stream = if exec.tty { Stream::Stdout } else { Stream::Stderr };
        exec.phase = Phase::Running;
        let ending = Ending {
            ended_at: sys::wall_ms(),
            exit_code,
            signal: None,
            reason: ExitReason::Exited,
            duration_ms: sys::boottime_ms().saturating_sub(exec.started_boot),
            start_error: Some(text),
            usage: None,
            oom_kills: 0,
        };
        self.write_output(key, &line, stream);
        self.reply_started(key);
        self.conclude(key, ending);
    }
}

/// The command must be able to open its own `/dev/stdout` again, whoever it runs as.
fn give(fd: &OwnedFd, user: &User, ids: Ids) {
    if ids.many() && (user.uid != 0 || ids.own().is_some()) {
        // SAFETY: a live descriptor. A failure only costs that convenience.
        let _ = unsafe { libc::fchown(fd.as_raw_fd(), user.uid, user.gid) };
    }
}

/// As [`give`]; root's terminal stays in the group that the terminals' file system gave it, if it gave one.
fn give_terminal(fd: &OwnedFd, user: &User, ids: Ids) {
    let grouped = sys::fstat(fd.as_raw_fd()).is_ok_and(|stat| ids.own() != Some(stat.st_gid));
    let keep = user.uid == 0 && grouped;
    give(fd, &User { gid: if keep { u32::MAX } else { user.gid }, ..user.clone() }, ids);
}

/// `empty` is what a command without standard input reads from.
fn pipe_streams(empty: Option<Rc<OwnedFd>>, user: &User, ids: Ids) -> Answer<Streams> {
    let failed = |error: Error| io("no pipe can be made", &error);
    let (stdout, their_stdout) = sys::pipe().map_err(failed)?;
    let (stderr, their_stderr) = sys::pipe().map_err(failed)?;
    let (stdin, their_stdin) = match empty {
        Some(empty) => (None, empty),
        None => {
            let (theirs, ours) = sys::pipe().map_err(failed)?;
            sys::make_nonblocking(ours.as_raw_fd()).map_err(failed)?;
            give(&theirs, user, ids);
            (Some(ours), Rc::new(theirs))
        }
    };
    for ours in [&stdout, &stderr] {
        sys::make_nonblocking(ours.as_raw_fd()).map_err(failed)?;
    }
    for theirs in [&their_stdout, &their_stderr] {
        give(theirs, user, ids);
    }
    let theirs = [their_stdin, Rc::new(their_stdout), Rc::new(their_stderr)];
    Ok(Streams { stdin, stdout, stderr: Some(stderr), theirs })
}

/// `/dev/null`, if the sandbox has it.
fn null_device() -> std::io::Result<Option<OwnedFd>> {
    let Ok(fd) = sys::open(c"/dev/null", libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY, 0) else {
        return Ok(None);
    };
    let stat = sys::fstat(fd.as_raw_fd())?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFCHR || stat.st_rdev != libc::makedev(1, 3) {
        return Ok(None);
    }
    sys::set_nonblocking(fd.as_raw_fd(), false)?;
    Ok(Some(fd))
}

fn no_terminal(error: &Error) -> ErrorBody {
    let what = "no terminal can be opened";
    match error.raw_os_error() {
        // Of the kernel, where `max` of the mount is reached: nothing is said of disks.
        Some(libc::ENOSPC) => busy(format!("{what}: the sandbox, or all together, have used up theirs")),
        _ => io(what, error),
    }
}

fn terminal_streams(cols: u16, rows: u16, stdin: bool, user: &User, ids: Ids) -> Answer<Streams> {
    let failed = |error: Error| no_terminal(&error);
    let (master, slave) = terminal::open(cols, rows).map_err(failed)?;
    give_terminal(&slave, user, ids);
    let input = if stdin { Some(master.try_clone().map_err(failed)?) } else { None };
    let slave = Rc::new(slave);
    let theirs = [slave.clone(), slave.clone(), slave];
    Ok(Streams { stdin: input, stdout: master, stderr: None, theirs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_terminal_left_is_for_the_moment_and_no_full_disk() {
        let told = no_terminal(&Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(told.code, ErrorCode::Busy);
        assert_eq!(told.message, "no terminal can be opened: the sandbox, or all together, have used up theirs");
    }
}
