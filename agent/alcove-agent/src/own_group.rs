//! A control group that one command has to itself, because it has a limit of its own of memory or processes. The service
//! makes it, sets its limits and removes it; its open files are lent to the agent, which cannot reach the group otherwise.
//! In a machine of its own the agent does all that itself.

use crate::agent::Agent;
use crate::init::groups;
use crate::oom::OomCounters;
use crate::requests::{Answer, bad_request};
use crate::slab::Key;
use crate::sys;
use alcove_protocol::{ErrorBody, ErrorCode, ExecGroup};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Groups that may wait for their commands; the oldest is given up for a further one.
const MAX_WAITING: usize = 64;
/// Descriptors that one connection may have sent and not used.
pub const MAX_GIVEN: usize = 8;

pub struct OwnGroup {
    join: Vec<OwnedFd>,
    kills: OomCounters,
    /// None where there is no limit of memory.
    met: Vec<OwnedFd>,
}

impl OwnGroup {
    /// `met` is empty where there is no limit of memory.
    pub fn of(join: Vec<OwnedFd>, kills: Vec<OwnedFd>, met: Vec<OwnedFd>) -> OwnGroup {
        OwnGroup { join, kills: OomCounters::of(kills), met }
    }

    /// A process that writes `0` to each of these joins it.
    pub fn join(&self) -> Vec<RawFd> {
        self.join.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// How many of its processes were killed for memory; None when it does not count them.
    pub fn kills(&self) -> Option<u64> {
        self.kills.any().then(|| self.kills.total())
    }

    /// Whether processes were killed for its own limit of memory, and not for the sandbox's.
    pub fn exceeded(&self) -> bool {
        let met = match &self.met[..] {
            [] => false,
            // v2: `memory.events` counts it.
            [events] => number_in(events, "oom ").is_some_and(|times| times > 0),
            // v1: the most that was used, and the limit. What is asked for at once may not fit into the last of it.
            [most, limit, ..] => match (number_in(most, ""), number_in(limit, "")) {
                (Some(most), Some(limit)) => most >= limit - limit / 16,
                _ => false,
            },
        };
        met && self.kills.total() > 0
    }
}

/// The number of the line that begins so.
fn number_in(file: &OwnedFd, name: &str) -> Option<u64> {
    let mut text = [0; 1024];
    let text = sys::read_again(file.as_raw_fd(), &mut text)?;
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

impl Agent {
    pub fn lend_group(&mut self, key: Key, request: ExecGroup) -> Answer<()> {
        if request.memory_bytes.is_some() || request.pids.is_some() {
            return self.make_group(request);
        }
        let given = self.connections.list.get_mut(key).map(|connection| std::mem::take(&mut connection.given));
        let mut given = given.unwrap_or_default();
        let counted = request.join.checked_add(request.kills).filter(|count| *count <= given.len());
        if request.join == 0 || counted.is_none() {
            return Err(bad_request("exec.group: its descriptors did not come with it"));
        }
        let met = given.split_off(request.join + request.kills);
        let kills = given.split_off(request.join);
        self.keep_group(request.exec_id, OwnGroup::of(given, kills, met));
        Ok(())
    }

    fn make_group(&mut self, request: ExecGroup) -> Answer<()> {
        let own_groups = self.machine.as_ref().is_some_and(|machine| machine.own_groups);
        if !own_groups {
            let message = "exec.group: the agent makes no control groups here";
            return Err(ErrorBody::new(ErrorCode::Unsupported, message));
        }
        // What ended commands have left goes first: nobody else removes it.
        let waiting = self.groups.iter().map(|(id, _)| id.as_str());
        let running = self.commands.execs.iter().filter(|(_, exec)| exec.group.is_some());
        let used: Vec<&str> = waiting.chain(running.map(|(_, exec)| exec.id.as_str())).collect();
        groups::sweep(&used);
        let group = groups::make_one(&request.exec_id, request.memory_bytes, request.pids).map_err(|error| {
            ErrorBody::new(ErrorCode::Io, format!("no control group for {}: {error}", request.exec_id))
        })?;
        self.keep_group(request.exec_id, group);
        Ok(())
    }

    fn keep_group(&mut self, exec_id: String, group: OwnGroup) {
        self.groups.retain(|(id, _)| *id != exec_id);
        if self.groups.len() >= MAX_WAITING {
            self.groups.pop_front();
        }
        self.groups.push_back((exec_id, group));
    }

    /// The group that was lent to a command, for its start.
    pub fn take_group(&mut self, id: &str) -> Answer<OwnGroup> {
        let index = self.groups.iter().position(|(lent_to, _)| lent_to == id);
        index
            .and_then(|index| self.groups.remove(index))
            .map(|(_, group)| group)
            .ok_or_else(|| bad_request(format!("no control group was lent to exec {id}")))
    }
}
