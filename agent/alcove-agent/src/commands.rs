//! The exec operations but the start: attach, input, signals, kills.

use crate::agent::{Agent, Timer};
use crate::connection::{Follow, Operation};
use crate::exec::{Exec, Grace, Phase};
use crate::requests::{Answer, check_input_name};
use crate::slab::Key;
use crate::terminal;
use alcove_protocol::{
    ErrorBody, ErrorCode, ExecAttach, ExecGrace, ExecKill, ExecList, ExecResize, ExecSignal, ExecStdin, ExitReason,
    KillReason, Kind,
};
use serde::Serialize;
use std::os::fd::AsRawFd;

/// Between two looks whether a command is followed.
const LEAST_GRACE_MS: u64 = 100;

/// Bytes of one batch of records: well within a frame.
const LIST_BATCH: usize = 1 << 20;

#[derive(Serialize)]
struct Written {
    written: u64,
}

fn conflict(message: String) -> ErrorBody {
    ErrorBody::new(ErrorCode::Conflict, message)
}

impl Agent {
    pub fn find_exec(&mut self, id: &str) -> Answer<(Key, &mut Exec)> {
        let missing =
            || ErrorBody::new(ErrorCode::NotFound, format!("exec {id} is unknown; the last 1000 ended ones are kept"));
        let key = *self.commands.by_id.get(id).ok_or_else(missing)?;
        self.commands.execs.get_mut(key).map(|exec| (key, exec)).ok_or_else(missing)
    }

    /// The records after the one that an earlier batch ended with, oldest first: as many as are read at one go.
    pub fn list_execs(&self, after: Option<u64>) -> ExecList {
        let mut left: Vec<_> = self.commands.execs.iter().map(|(_, exec)| exec).collect();
        left.retain(|exec| after.is_none_or(|after| exec.sequence > after));
        left.sort_unstable_by_key(|exec| exec.sequence);
        let (mut execs, mut bytes, mut last) = (Vec::new(), 0, None);
        for exec in left {
            let record = exec.record(None);
            bytes += serde_json::to_vec(&record).map_or(0, |text| text.len());
            if bytes > LIST_BATCH && last.is_some() {
                return ExecList { execs, next: last };
            }
            execs.push(record);
            last = Some(exec.sequence);
        }
        ExecList { execs, next: None }
    }

    pub fn attach(&mut self, connection: Key, request: &ExecAttach) -> Answer<()> {
        check_input_name(request.input.as_deref())?;
        let (key, exec) = self.find_exec(&request.exec_id)?;
        let from = request.from.unwrap_or(0).clamp(exec.journal.start(), exec.journal.end());
        let mut record = exec.record(Some(from));
        let named = request.input.as_deref();
        record.input_taken = named.and_then(|name| exec.inputs.join(name, connection));
        let told = named.and_then(|_| exec.inputs.taken(connection));
        let until = (!request.follow).then(|| exec.journal.end());
        let holds = request.follow && !request.keep_grace;
        // What comes of a named input is counted also when it has nowhere to go.
        let input = exec.stdin.open() || told.is_some();
        exec.followers.push(connection);
        if holds && request.lossless {
            exec.unread_from = None;
        }
        if holds {
            if let Some(grace) = exec.grace.take() {
                self.timers.cancel(grace.timer);
            }
        }
        if let Some(connection_state) = self.connections.list.get_mut(connection) {
            connection_state.push_json(Kind::Reply, &record);
            let lossless = request.lossless;
            connection_state.operation = Operation::Following(Follow {
                exec: key,
                cursor: from,
                until,
                lossless,
                acked: (lossless && holds && request.acks).then_some(from),
                holds,
                replied: true,
                input,
                told,
                frame_left: 0,
            });
            self.mark(connection);
        }
        Ok(())
    }

    pub fn begin_stdin(&mut self, connection: Key, request: &ExecStdin) -> Answer<()> {
        check_input_name(request.input.as_deref())?;
        let (key, exec) = self.find_exec(&request.exec_id)?;
        match request.input.as_deref() {
            Some(name) if request.again && !exec.inputs.is_certain(name) => {
                return Err(conflict(format!("how much of input {name} was taken is not known any more")));
            }
            // All of it may have been taken, and only the answer was lost.
            Some(name) if exec.inputs.knows(name) => {}
            _ => check_open(exec)?,
        }
        let offset = request.offset.unwrap_or(0);
        if let Some(name) = &request.input {
            let taken = exec.inputs.told(name).unwrap_or(0);
            if offset > taken {
                return Err(conflict(format!("input {name} goes on at byte {taken}, not at {offset}")));
            }
            exec.inputs.join(name, connection);
        }
        exec.stdin_writers.push(connection);
        if let Some(connection) = self.connections.list.get_mut(connection) {
            connection.operation = Operation::Feeding { exec: key, written: offset, named: request.input.is_some() };
        }
        Ok(())
    }

    /// What an `exec.stdin` sends.
    pub fn take_stdin(&mut self, connection: Key, exec_key: Key, kind: Kind, payload: &[u8]) {
        let Some(Operation::Feeding { written, named, .. }) =
            self.connections.list.get_mut(connection).map(|connection| &mut connection.operation)
        else {
            return;
        };
        let (begin, named) = (*written, *named);
        *written += payload.len() as u64;
        let mut payload = payload;
        if named {
            let Some(taken) = self.commands.execs.get(exec_key).and_then(|exec| exec.inputs.taken(connection)) else {
                return self.refuse(connection, &conflict("this input comes on another connection by now".into()));
            };
            let known = taken.saturating_sub(begin).min(payload.len() as u64) as usize;
            payload = &payload[known..];
        }
        if kind == Kind::Eof {
            return self.reply(connection, &Written { written: begin });
        }
        if payload.is_empty() {
            return;
        }
        let open = self.commands.execs.get(exec_key).is_some_and(|exec| exec.stdin.open());
        if !open {
            return self.stdin_gone(connection);
        }
        if let Some(exec) = self.commands.execs.get_mut(exec_key) {
            exec.stdin.queue.extend(payload);
            exec.inputs.took(connection, payload.len());
            let full = exec.stdin.room() == 0;
            self.feed_or_stall(connection, exec_key, full);
        }
    }

    /// The command ended, or closed its standard input, while somebody was still writing to it.
    pub fn stdin_gone(&mut self, connection: Key) {
        if let Some(state) = self.connections.list.get_mut(connection) {
            state.stalled = false;
            self.refuse(connection, &conflict("standard input was closed before all of it was taken".into()));
            self.update_interest(connection);
        }
    }

    pub fn close_stdin(&mut self, id: &str) -> Answer<()> {
        let (key, exec) = self.find_exec(id)?;
        check_open(exec)?;
        self.shut_stdin(key);
        Ok(())
    }

    pub fn resize(&mut self, request: &ExecResize) -> Answer<()> {
        let (_, exec) = self.find_exec(&request.exec_id)?;
        if let Some(master) = exec.stdout.as_ref().filter(|_| exec.tty) {
            terminal::resize(master.fd.as_raw_fd(), request.cols, request.rows)
                .map_err(|error| ErrorBody::new(ErrorCode::Io, format!("the terminal cannot be resized: {error}")))?;
        }
        Ok(())
    }

    pub fn signal(&mut self, request: &ExecSignal) -> Answer<()> {
        // The news of its end may have come: a process id is another's soon after it.
        if let Some(monitor) = self.find_exec(&request.exec_id)?.1.monitor {
            self.monitor_ready(monitor);
        }
        let (_, exec) = self.find_exec(&request.exec_id)?;
        if !matches!(exec.phase, Phase::Running) || exec.pid <= 0 {
            return Err(conflict(format!("exec {} does not run", exec.id)));
        }
        if !(1..=64).contains(&request.signal) {
            return Err(ErrorBody::new(
                ErrorCode::BadRequest,
                format!("signal {} does not exist: 1 to 64 do", request.signal),
            ));
        }
        // SAFETY: plain kill. The group is the command's own: its leader has not been reported as reaped.
        if unsafe { libc::kill(-exec.pid, request.signal) } < 0 {
            let error = std::io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::ESRCH) => conflict(format!("exec {} does not run", exec.id)),
                _ => {
                    let reason = crate::sys::reason(&error);
                    ErrorBody::new(ErrorCode::Io, format!("exec {} cannot be signalled: {reason}", exec.id))
                }
            });
        }
        Ok(())
    }

    pub fn kill(&mut self, connection: Key, request: &ExecKill) -> Answer<()> {
        let reason = match request.reason {
            KillReason::Cancelled => ExitReason::Cancelled,
            KillReason::Timeout => ExitReason::Timeout,
        };
        let (key, exec) = self.find_exec(&request.exec_id)?;
        if exec.killed.is_none() && !exec.ended() {
            exec.input_lost = request.input_lost;
        }
        exec.kill_waiters.push(connection);
        if let Some(connection) = self.connections.list.get_mut(connection) {
            connection.operation = Operation::Killing(key);
        }
        self.update_interest(connection);
        self.kill_tree(key, reason);
        self.answer_kills(key);
        Ok(())
    }

    pub fn set_grace(&mut self, request: &ExecGrace) -> Answer<()> {
        let key = self.find_exec(&request.exec_id)?.0;
        let Some(exec) = self.commands.execs.get_mut(key) else { return Ok(()) };
        if let Some(grace) = exec.grace.take() {
            self.timers.cancel(grace.timer);
        }
        if let Some(length_ms) = request.grace_ms.filter(|_| !exec.ended()) {
            exec.grace = Some(Grace { timer: self.timers.add(length_ms, Timer::Grace(key)), length_ms });
        }
        Ok(())
    }

    /// A grace is over. While the command is followed it begins anew: it measures how long nobody does, and whoever set it
    /// may not have known of the follower.
    pub fn end_grace(&mut self, key: Key) {
        let Some(exec) = self.commands.execs.get_mut(key) else { return };
        let Some(grace) = exec.grace.take() else { return };
        if exec.ended() {
            return;
        }
        let held = exec.followers.iter().any(|follower| {
            matches!(
                self.connections.list.get(*follower).map(|connection| &connection.operation),
                Some(Operation::Following(follow)) if follow.holds
            )
        });
        if held {
            let timer = self.timers.add(grace.length_ms.max(LEAST_GRACE_MS), Timer::Grace(key));
            exec.grace = Some(Grace { timer, ..grace });
        } else {
            self.kill_tree(key, ExitReason::Cancelled);
        }
    }
}

fn check_open(exec: &Exec) -> Answer<()> {
    if exec.ended() {
        return Err(conflict(format!("exec {} has ended", exec.id)));
    }
    if !exec.stdin.open() {
        return Err(conflict(format!("standard input of exec {} is closed", exec.id)));
    }
    Ok(())
}
