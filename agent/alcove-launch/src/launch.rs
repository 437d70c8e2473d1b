//! The outer half of a launch: everything that needs the service's own rights. `child.rs` is the inner half.
//!
//! Order: a directory with its record on disk, the group that counts memory, clone. From then on both halves work side by side. The child
//! furnishes itself; id maps, then what the root is furnished with, then the other groups, the root and its network are made meanwhile
//! and handed over, see `parcels`. While it settles there: pid on disk and limits; its last step waits for those. A death at any
//! point leaves a directory that says what to undo, and no process: until that last step the child dies with us.

use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Instant;

use crate::child::{self, Plan, Taken};
use crate::error::{AtStep, Result, StepError};
use crate::folder::{self, Opened, Ready};
use crate::parcels::{self, Parcel, Thing};
use crate::spec::{IdsSpec, LaunchSpec, Network, Owned, ProcessRecord, RootSpec};
use crate::{cgroup, disk, idmap, inside, network, overlay, sys};

pub struct Launched {
    pub pid: i32,
    pub start_time: u64,
    pub stages: Vec<(&'static str, u64)>,
    /// See `Begun`.
    pub used: Vec<OwnedFd>,
}

/// Microseconds of each stage.
pub struct Stages {
    since: Instant,
    done: Vec<(&'static str, u64)>,
}

impl Stages {
    /// @param asked when the request came: until now a process was made for it.
    pub fn of_request(asked: Instant) -> Self {
        let mut stages = Self { since: asked, done: Vec::new() };
        stages.end("request");
        stages
    }

    pub fn end(&mut self, name: &'static str) {
        self.done.push((name, self.since.elapsed().as_micros() as u64));
        self.since = Instant::now();
    }

    /// What comes is told apart from what was.
    pub fn take(&mut self) -> Vec<(&'static str, u64)> {
        self.since = Instant::now();
        std::mem::take(&mut self.done)
    }
}

/// What a child is given, and by which way.
struct Provision<'a> {
    spec: &'a LaunchSpec,
    ready: Option<&'a Ready>,
    sender: parcels::Sender,
    /// It gets one that it was not cloned with.
    network_to_make: bool,
    /// It gets them, and is told so.
    limits: bool,
    processors: Option<sys::Processors>,
}

/// A sandbox whose first process has begun: it ends when this is dropped before `finish` is done.
pub struct Begun {
    pub pid: i32,
    pub start_time: u64,
    pub stages: Stages,
    /// Of one that is nobody's yet: where its host name is set, which nobody inside has the right to.
    pub names: Option<OwnedFd>,
    go: OwnedFd,
    status: OwnedFd,
    ends: bool,
    /// The mounts that the sandbox was made of. Whoever is the last to close one that is attached nowhere waits for every processor: not
    /// who starts the agent, and not before the launch is told.
    used: Vec<OwnedFd>,
}

impl Begun {
    /// Waits until the agent runs.
    pub fn finish(mut self) -> Result<Launched> {
        read_outcome(self.status.as_raw_fd(), self.pid, Vec::new())?;
        self.stages.end("inside");
        self.ends = false;
        let used = std::mem::take(&mut self.used);
        Ok(Launched { pid: self.pid, start_time: self.start_time, stages: self.stages.take(), used })
    }

    /// Makes what the child waits for, parcel by parcel, and accompanies it.
    fn provide(&mut self, provision: &Provision<'_>, outside: Option<Outside>, on_socket: impl FnOnce()) -> Result<()> {
        let Provision { spec, ready, sender, processors, .. } = provision;
        // None where the child makes its own, without rights.
        let base = match spec.ids {
            IdsSpec::Range { base, .. } => Some(base),
            _ => None,
        };
        idmap::write(self.pid, &spec.ids)?;
        sender.send(Parcel::Ids, &[])?;
        self.stages.end("id_map");

        let agent = base.map(|_| overlay::read_only_clone(&spec.agent, true)).transpose()?;
        let proc =
            outside.as_ref().and_then(|outside| outside.processes.as_ref()).map(proc_from_outside).transpose()?;
        // Where none can be made, as in containers, the machine's are shared.
        let dev = base.and_then(|base| inside::own_devices(base).ok());
        sender.send(Parcel::Furniture, &there(&[(Thing::Agent, &agent), (Thing::Proc, &proc), (Thing::Dev, &dev)]))?;
        self.stages.end("furniture");

        let joined = if base.is_some() { complete_groups(spec)? } else { Vec::new() };
        sender.send(Parcel::Groups, &joined.iter().map(|(file, _)| (Thing::Join, file)).collect::<Vec<_>>())?;
        drop(joined);
        self.stages.end("groups");

        // Made while the root is.
        let relay = match &spec.outbound {
            Some(outbound) => {
                let sandbox = sys::pidfd_open(self.pid).at("network", "the sandbox")?;
                Some(network::begin(outbound, &spec.ids, spec.cgroup.as_ref(), self.pid, sandbox)?)
            }
            None => None,
        };
        // A machine may not let us; the sandbox is none the worse for it.
        let _ = leave_protection(self.pid);
        let handles = match &spec.cgroup {
            Some(group) => cgroup::handles(group, spec.limits.exec_group)?,
            None => cgroup::Handles::default(),
        };
        let root = match &outside {
            Some(outside) => Some(make_root(spec, *ready, &outside.users, &mut self.used)?),
            None => None,
        };
        let mut things = there(&[
            (Thing::Root, &root),
            (Thing::Oom, &handles.oom),
            (Thing::ExecPids, &handles.exec_pids),
            (Thing::ExecQuota, &handles.exec_quota),
        ]);
        things.extend(handles.exec_join.iter().map(|file| (Thing::ExecJoin, file)));
        sender.send(Parcel::Root, &things)?;
        self.used.extend([agent, proc, dev, root].into_iter().flatten());
        self.stages.end("overlay");

        let owner = outside.as_ref().map(|outside| &outside.users).zip(base).filter(|_| provision.network_to_make);
        // Where it cannot be made from here the child makes it, and says why not.
        let made = owner.and_then(|owner| network::namespace::make(owner, processors.as_ref()).ok());
        sender.send(Parcel::Network, &there(&[(Thing::Network, &made)]))?;
        if made.is_some() {
            self.stages.end("network");
        }
        self.names = outside.and_then(|outside| outside.names);
        self.accompany(spec, relay, provision.limits)?;
        // Whoever hears of it may get this processor at once: from here on the child alone has something to do.
        on_socket();
        Ok(())
    }

    /// What is done while the child settles.
    fn accompany(&mut self, spec: &LaunchSpec, relay: Option<network::Beginning>, limits: bool) -> Result<()> {
        self.start_time = sys::start_time(self.pid).at("record", "start time")?;
        let boot_id = sys::boot_id().at("record", "boot id")?;
        let record = ProcessRecord { pid: self.pid, start_time: self.start_time, boot_id };
        let bytes = serde_json::to_vec(&record).map_err(|error| StepError::new("record", error.to_string()))?;
        sys::write_file_atomically(libc::AT_FDCWD, folder::PROCESS, &bytes).at("record", folder::PROCESS)?;
        self.stages.end("record");
        if let Some(relay) = relay {
            relay.wait()?;
            self.stages.end("relay");
        }
        if limits { self.limit(spec) } else { Ok(()) }
    }

    /// What was done for a child that has failed fails by that: the child has said why, before it ended. Its end of the pipe may be open
    /// for longer, in what carries the network.
    fn cause_of(&self, error: StepError) -> StepError {
        let status = self.status.as_raw_fd();
        if !sys::wait_readable(status, 0).unwrap_or(false) {
            return error;
        }
        let mut report = [0u8; libc::PIPE_BUF];
        sys::read(status, &mut report).ok().and_then(|count| told_in(&report[..count])).unwrap_or(error)
    }

    /// Sets the limits and tells the child, which starts nothing without them.
    fn limit(&self, spec: &LaunchSpec) -> Result<()> {
        if let Some(group) = &spec.cgroup {
            cgroup::limit(group, &spec.limits, spec.outbound.is_some())?;
        }
        // One that is gone has said why, or is missed.
        let _ = sys::write_all(self.go.as_raw_fd(), &[child::LIMITED]);
        Ok(())
    }

    /// Waits until nothing is left to do before it is somebody's.
    pub fn parked(&mut self) -> Result<()> {
        let mut first = [0u8; 1];
        let count = sys::read(self.status.as_raw_fd(), &mut first).at("inside", "status")?;
        if count == 1 && first[0] == child::PARKED {
            self.used.clear();
            self.stages.end("inside");
            return Ok(());
        }
        let begun = first[..count].to_vec();
        read_outcome(self.status.as_raw_fd(), self.pid, begun)
            .and_then(|()| Err(StepError::new("inside", "the sandbox's first process ended before it was ready")))
    }

    /// Tells a parked agent whose it is, and waits until it has heard that.
    /// @param named what files of the sandbox's own are to say, where they say it.
    pub fn release(self, named: Option<&str>) -> Result<Launched> {
        let told = format!("{}\n", named.unwrap_or_default());
        sys::write_all(self.go.as_raw_fd(), told.as_bytes()).at("inside", "owner")?;
        self.finish()
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.ends {
            // SAFETY: our own child, not yet waited for: the number is still its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
    }
}

/// @param on_socket once the child has the rest of the way to itself: what is said at the agent's socket waits there for it.
pub fn launch(spec: &LaunchSpec, ready: Option<&Ready>, stages: Stages, on_socket: impl FnOnce()) -> Result<Launched> {
    let owned = Owned { hostname: spec.hostname.clone(), limits: spec.limits.clone() };
    begin(spec, ready, Some(owned), stages, on_socket)?.finish()
}

/// @param owned none: it is nobody's yet, its groups have no limits and its agent waits: see `park`.
pub fn begin(
    spec: &LaunchSpec,
    ready: Option<&Ready>,
    owned: Option<Owned>,
    mut stages: Stages,
    on_socket: impl FnOnce(),
) -> Result<Begun> {
    let limits = owned.is_some();
    let rooted = matches!(spec.ids, IdsSpec::Range { .. });

    let Opened { listener, console } = folder::enter(&spec.dir, &spec.record, ready)?;
    stages.end("directory");

    let (exec_group, has_network) = (spec.limits.exec_group, spec.outbound.is_some());
    let born_in = match &spec.cgroup {
        Some(group) => cgroup::begin(group, exec_group, has_network)?,
        None => None,
    };
    if !rooted {
        // Such a child may not be able to join them.
        for (file, path) in complete_groups(spec)? {
            cgroup::join(&file, &path)?;
        }
    }
    stages.end("cgroup");

    let (go_reader, go_writer) = sys::pipe().at("clone", "pipe")?;
    let (status_reader, status_writer) = sys::pipe().at("clone", "pipe")?;
    let (sender, receiver) = parcels::channel().at("clone", "socketpair")?;
    let namespaces = Namespaces::of(spec);
    let here = sys::Processors::to_give_back().and_then(|all| Ok((sys::processor()?, all))).ok();
    let mut plan = Plan {
        spec,
        maker_at: here,
        owned,
        taken: namespaces.taken,
        go: go_reader.as_raw_fd(),
        status: status_writer.as_raw_fd(),
        parcels: receiver,
        parents: [go_writer.as_raw_fd(), status_reader.as_raw_fd(), sender.as_raw_fd()],
        listener: listener.as_raw_fd(),
        console: console.as_raw_fd(),
    };
    let (network_to_make, processors) = (plan.taken.at_last != 0, here.map(|(_, all)| all));
    let provision = Provision { spec, ready, sender, network_to_make, limits, processors };
    let group = born_in.as_ref().map(AsRawFd::as_raw_fd);
    let mut clone = || match sys::clone_process(namespaces.cloned as u64, group)? {
        0 => child::run(&mut plan),
        pid => Ok(pid),
    };
    // What the kernel counts by user, inotify instances for one, is then counted for each sandbox by itself.
    let cloned = match spec.ids {
        IdsSpec::Range { base, .. } => {
            sys::acting_as(base, || clone().map(|pid| (pid, Outside::of(pid, spec.proc_outside, !limits).map(Some))))
        }
        _ => clone().map(|pid| (pid, Ok(None))),
    };
    let (pid, outside) = cloned.at("clone", child::NAMESPACES)?;
    // Both halves try, since either may run first; where it is refused one waits for the other, as long as that works.
    if let Some((here, all)) = here {
        let _ = sys::leave_processor(pid, here, &all);
    }
    // Only the child's are left: its end is seen by theirs.
    drop((plan, go_reader, status_writer));
    stages.end("clone");
    let (go, status) = (go_writer, status_reader);
    let mut begun = Begun { pid, start_time: 0, stages, names: None, go, status, ends: true, used: Vec::new() };
    outside.and_then(|outside| begun.provide(&provision, outside, on_socket)).map_err(|error| begun.cause_of(error))?;
    Ok(begun)
}

/// Namespaces of the child that something is made in from outside.
struct Outside {
    users: OwnedFd,
    processes: Option<OwnedFd>,
    names: Option<OwnedFd>,
}

impl Outside {
    /// As the user that its namespaces belong to, and before it changes its ids: later, and for root too, it takes the right to look into
    /// others' processes, which a service in a container has not got.
    fn of(pid: i32, with_processes: bool, with_names: bool) -> Result<Self> {
        let opened = |kind: &str, what: &str| {
            sys::open_path_at(libc::AT_FDCWD, &format!("/proc/{pid}/ns/{kind}"), libc::O_RDONLY, 0).at("clone", what)
        };
        let processes = with_processes.then(|| opened("pid", "its namespace of processes")).transpose()?;
        let names = with_names.then(|| opened("uts", "its namespace of names")).transpose()?;
        Ok(Self { users: opened("user", "its namespace of users")?, processes, names })
    }
}

/// Of a child, as flags: those that it is cloned with, and those that are made while it is under way. A network takes longer than all others.
struct Namespaces {
    cloned: libc::c_int,
    taken: Taken,
}

impl Namespaces {
    fn of(spec: &LaunchSpec) -> Self {
        let mut cloned = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWUTS;
        let mut taken = Taken { at_once: libc::CLONE_NEWIPC, in_groups: 0, at_last: 0 };
        match spec.network {
            Network::Host => {}
            // Looked for before the child is waited for.
            _ if spec.outbound.is_some() => cloned |= libc::CLONE_NEWNET,
            _ => taken.at_last = libc::CLONE_NEWNET,
        }
        // The groups that it shows as their roots are those that its maker is in.
        match &spec.cgroup {
            Some(group) if group.version == 1 => taken.in_groups = libc::CLONE_NEWCGROUP,
            _ => cloned |= libc::CLONE_NEWCGROUP,
        }
        if !matches!(spec.ids, IdsSpec::Range { .. }) {
            cloned |= taken.at_once | taken.in_groups | taken.at_last;
            taken = Taken::default();
        }
        Self { cloned, taken }
    }
}

/// Of what may be there, what is.
fn there<'a>(things: &[(Thing, &'a Option<OwnedFd>)]) -> Vec<(Thing, &'a OwnedFd)> {
    things.iter().filter_map(|(thing, fd)| fd.as_ref().map(|fd| (*thing, fd))).collect()
}

/// @returns by which files the sandbox's first process joins them, with their paths.
fn complete_groups(spec: &LaunchSpec) -> Result<Vec<(OwnedFd, String)>> {
    let Some(group) = &spec.cgroup else {
        return Ok(Vec::new());
    };
    let files = cgroup::complete(group, spec.limits.exec_group, spec.outbound.is_some())?;
    Ok(files.into_iter().zip(cgroup::joined_later(group)).collect())
}

/// The service may be one of the last that the kernel ends for want of memory: its sandboxes are not. A writer with
/// CAP_SYS_RESOURCE also makes this the least that processes of the sandbox can choose for themselves.
fn leave_protection(pid: i32) -> std::io::Result<()> {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj")?;
    std::fs::write(format!("/proc/{pid}/oom_score_adj"), unprotected(&own))
}

fn unprotected(score: &str) -> &str {
    let score = score.trim();
    if score.starts_with('-') { "0" } else { score }
}

fn make_root(spec: &LaunchSpec, ready: Option<&Ready>, users: &OwnedFd, used: &mut Vec<OwnedFd>) -> Result<OwnedFd> {
    let IdsSpec::Range { base, count } = spec.ids else {
        return Err(StepError::new("overlay", "only a rooted launch mounts from outside"));
    };
    let record = std::env::current_dir().at("disk", "current directory")?;
    if let Some(template) = &spec.disk.template {
        let disk = match ready {
            Some(ready) => ready.mount.try_clone().at("disk", "descriptor")?,
            None => disk::make(template, disk::IMAGE)?,
        };
        if let Some(root) = layered_on(&disk, &spec.root, base, users, used)? {
            return Ok(root);
        }
        disk::enter(&disk)?;
    } else if let Some(size_mb) = spec.disk.tmpfs_mb {
        sys::private_mounts().at("disk", "mount namespace")?;
        overlay::enter_tmpfs(size_mb)?;
    }
    let root = match &spec.root {
        RootSpec::Host { skeleton, copy: true } => overlay::copied(skeleton, base, count)?,
        RootSpec::Host { skeleton: lower, copy: false } => layered(lower, base, users, false, used)?,
        RootSpec::Image { rootfs: lower, shifted } => layered(lower, base, users, *shifted, used)?,
    };
    std::env::set_current_dir(&record).at("disk", record.display())?;
    Ok(root)
}

fn layered(lower: &str, base: u32, users: &OwnedFd, shifted: bool, used: &mut Vec<OwnedFd>) -> Result<OwnedFd> {
    overlay::make_layers(libc::AT_FDCWD, Some(base))?;
    overlay::rooted(lower, users, shifted, used)
}

/// The shortest way, where the kernel has it: nothing is attached, and nobody needs a mount namespace for it.
fn layered_on(
    disk: &OwnedFd,
    root: &RootSpec,
    base: u32,
    users: &OwnedFd,
    used: &mut Vec<OwnedFd>,
) -> Result<Option<OwnedFd>> {
    let (lower, shifted) = match root {
        RootSpec::Host { copy: true, .. } => return Ok(None),
        RootSpec::Host { skeleton, copy: false } => (skeleton, false),
        RootSpec::Image { rootfs, shifted } => (rootfs, *shifted),
    };
    overlay::make_layers(disk.as_raw_fd(), Some(base))?;
    overlay::rooted_on(disk, lower, users, shifted, used)
}

/// A detached procfs of the sandbox's process namespace, made from outside of its user namespace: by a process that
/// enters only the former, and shares our descriptors.
fn proc_from_outside(namespace: &OwnedFd) -> Result<OwnedFd> {
    const STEP: &str = "proc";
    let (reader, writer) = sys::pipe().at(STEP, "pipe")?;
    let shared = libc::CLONE_FILES as u64;
    let helper = sys::clone_process(shared, None).at(STEP, "clone")?;
    if helper == 0 {
        let made = (|| {
            // SAFETY: a descriptor of ours.
            sys::check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWPID) } as libc::c_long)?;
            // Only children are in the namespace.
            let inner = sys::clone_process(shared, None)?;
            if inner == 0 {
                let answer = match mount_proc() {
                    Ok(mount) => mount.into_raw_fd(),
                    Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
                };
                let _ = sys::write_all(writer.as_raw_fd(), &answer.to_ne_bytes());
                end_sharing();
            }
            // SAFETY: our own child.
            sys::check(unsafe { libc::waitpid(inner, std::ptr::null_mut(), 0) } as libc::c_long).map(drop)
        })();
        if let Err(error) = made {
            let answer = -error.raw_os_error().unwrap_or(libc::EIO);
            let _ = sys::write_all(writer.as_raw_fd(), &answer.to_ne_bytes());
        }
        end_sharing();
    }
    mount_told(&reader, helper)
}

/// What a helper that shares our descriptors has made. We hold the pipe's other end too: that of one that is killed does not close it, as
/// the child's end kills what is in its namespace.
fn mount_told(reader: &OwnedFd, helper: i32) -> Result<OwnedFd> {
    const STEP: &str = "proc";
    let process = sys::pidfd_open(helper).at(STEP, "helper")?;
    if !sys::wait_readable_of(reader.as_raw_fd(), process.as_raw_fd()).at(STEP, "answer")? {
        return Err(StepError::new("inside", "the sandbox's first process ended before it began"));
    }
    let mut answer = [0u8; 4];
    let count = sys::read(reader.as_raw_fd(), &mut answer).at(STEP, "answer")?;
    match i32::from_ne_bytes(answer) {
        // SAFETY: the descriptor was made for us in the table we share.
        fd if count == 4 && fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(StepError::io(STEP, "procfs from outside", std::io::Error::from_raw_os_error(-error))),
    }
}

/// Ends a process that shares its descriptors with the one that goes on: nothing of it may be closed or flushed.
fn end_sharing() -> ! {
    // SAFETY: plain number.
    unsafe { libc::_exit(0) }
}

fn mount_proc() -> std::io::Result<OwnedFd> {
    let context = sys::fsopen("proc")?;
    sys::fs_create(context.as_raw_fd())?;
    sys::fsmount(context.as_raw_fd(), sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NODEV | sys::MOUNT_ATTR_NOEXEC)
}

/// Waits for what closes the pipe, the child's exec or the word of an agent that was parked, or for a report of what failed.
/// @param report what has been read of that.
fn read_outcome(status: RawFd, pid: i32, report: Vec<u8>) -> Result<()> {
    // Woken once, by its end: what is written before is read then.
    sys::wait_ended(status).at("inside", "status")?;
    outcome_of(&read_all(status, report)?, pid)
}

fn read_all(status: RawFd, mut report: Vec<u8>) -> Result<Vec<u8>> {
    let mut buffer = [0u8; 1024];
    loop {
        match sys::read(status, &mut buffer).at("inside", "status")? {
            0 => return Ok(report),
            count => report.extend_from_slice(&buffer[..count]),
        }
    }
}

fn outcome_of(report: &[u8], pid: i32) -> Result<()> {
    match report {
        [] => Err(StepError::new("inside", format!("process {pid} ended before the agent began"))),
        [child::STARTING] => Ok(()),
        [child::STARTING, failure @ ..] | failure => Err(told_in(failure).unwrap_or_else(|| {
            StepError::new("inside", format!("process {pid} reported {} unreadable bytes", failure.len()))
        })),
    }
}

/// The child's own words.
fn told_in(failure: &[u8]) -> Option<StepError> {
    let failure: child::Failure = serde_json::from_slice(failure).ok()?;
    Some(StepError { step: failure.step, message: failure.message, errno: failure.errno })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    use super::{Begun, Namespaces, Stages, mount_told, outcome_of, unprotected};
    use crate::error::StepError;
    use crate::spec::LaunchSpec;
    use crate::sys;

    const ALL: libc::c_int = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWNET;

    /// A rooted one with groups of v1, apart from what is changed.
    fn namespaces(change: &serde_json::Value) -> [libc::c_int; 4] {
        let mut spec = serde_json::json!({
            "dir": "", "record": null, "agent": "", "root": { "kind": "image", "rootfs": "" }, "hostname": "",
            "ids": { "kind": "range", "base": 1, "count": 1 }, "network": "none", "cgroup": { "version": 1, "dirs": [] },
            "limits": { "memory_mb": 1, "vcpus": 1, "pids": 1 },
        });
        let changes = change.as_object().expect("an object").clone();
        spec.as_object_mut().expect("an object").extend(changes);
        let spec: LaunchSpec = serde_json::from_value(spec).expect("a specification");
        let Namespaces { cloned, taken } = Namespaces::of(&spec);
        [cloned, taken.at_once, taken.in_groups, taken.at_last]
    }

    #[test]
    fn each_namespace_is_made_once_and_that_of_groups_in_them() {
        let outbound = serde_json::json!({ "slirp": "", "allow": [], "connections": 1, "mbit": 0 });
        let v2 = serde_json::json!({ "version": 2, "dirs": [] });
        let (net, group) = (libc::CLONE_NEWNET, libc::CLONE_NEWCGROUP);
        let small = libc::CLONE_NEWIPC;
        for (change, all, in_groups, at_last) in [
            (serde_json::json!({}), ALL, group, net),
            (serde_json::json!({ "network": "host" }), ALL & !net, group, 0),
            // Its network is looked for at once.
            (serde_json::json!({ "network": "outbound", "outbound": outbound }), ALL, group, 0),
            (serde_json::json!({ "cgroup": v2 }), ALL, 0, net),
            (serde_json::json!({ "cgroup": null }), ALL, 0, net),
        ] {
            let cloned = all & !small & !in_groups & !at_last;
            assert_eq!(namespaces(&change), [cloned, small, in_groups, at_last], "{change}");
        }
        assert_eq!(namespaces(&serde_json::json!({ "ids": { "kind": "single" } })), [ALL, 0, 0, 0]);
    }

    #[test]
    fn what_failed_beside_a_child_that_failed_is_told_in_the_childs_words() {
        let network = || StepError::new("network", "the sandbox ended");
        let failed = r#"{"step":"proc","message":"no","errno":1}"#;
        // Still under way; ended and said nothing; parked before; failed, and its end of the pipe closed or open elsewhere.
        for (said, ended, step) in [
            ("", false, "network"),
            ("", true, "network"),
            ("P", true, "network"),
            (failed, true, "proc"),
            (failed, false, "proc"),
        ] {
            let (go, status) = (sys::pipe().expect("a pipe"), sys::pipe().expect("a pipe"));
            sys::write_all(status.1.as_raw_fd(), said.as_bytes()).expect("written");
            let stages = Stages::of_request(Instant::now());
            let begun = Begun {
                pid: 0,
                start_time: 0,
                stages,
                names: None,
                go: go.1,
                status: status.0,
                ends: false,
                used: Vec::new(),
            };
            let writer = Some(status.1).filter(|_| !ended);
            assert_eq!(begun.cause_of(network()).step, step, "{said}");
            drop(writer);
        }
    }

    #[test]
    fn who_is_killed_before_it_has_made_a_procfs_is_not_waited_for() {
        let (reader, _ours) = sys::pipe().expect("a pipe");
        let mut helper = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        helper.kill().expect("killed");
        let ended = mount_told(&reader, helper.id() as i32).expect_err("a failure");
        helper.wait().expect("its end");
        assert!(ended.message.contains("ended before it began"), "{ended}");
    }

    #[test]
    fn a_launch_has_come_to_its_end_only_with_the_agents_exec() {
        let failed = br#"{"step":"exec","message":"no","errno":13}"#;
        assert!(outcome_of(b"X", 1).is_ok());
        assert!(outcome_of(b"", 1).is_err_and(|error| error.message.contains("ended")));
        for report in [failed.to_vec(), [b"X", &failed[..]].concat()] {
            assert!(outcome_of(&report, 1).is_err_and(|error| error.errno == Some(13)));
        }
        assert!(outcome_of(b"P", 1).is_err());
    }

    #[test]
    fn a_sandbox_has_no_protection_of_its_service_and_keeps_a_worse_score() {
        for (own, sandbox) in [("-500\n", "0"), ("-1000\n", "0"), ("0\n", "0"), ("250\n", "250")] {
            assert_eq!(unprotected(own), sandbox);
        }
    }
}
