//! A way out for sandboxes: an interface in the sandbox, a helper that makes connections of its packets, and between them
//! a relay of ours that decides what may pass. Relay and helper are one pair of processes for each sandbox, outlive the
//! service, end with the sandbox, and end with each other; the service starts another pair then.
//!
//! The relay needs rights only to begin with: it enters the sandbox's network for a moment, starts the helper, and then
//! gives up what it has.

mod addresses;
mod bucket;
mod container;
mod control;
mod filter;
mod frames;
pub mod namespace;
mod relay;
mod routes;
mod slirp;
mod tap;

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::error::{AtStep, Result, StepError};
use crate::spec::{AttachSpec, CgroupSpec, DetachSpec, IdsSpec, ProcessRecord};
use crate::{cgroup, destroy, harden, sys};

pub use addresses::DNS;
pub use container::process as container_process;

const STEP: &str = "network";
/// In the runtime's directory: where the service connects, who the relay is, and the helper's own directory.
const SOCKET: &str = "network.sock";
const RECORD: &str = "network.json";
const DIRECTORY: &str = "network";
/// For a relay to end where no removal of a whole runtime has its own: what is killed ends at once, unless the machine has no
/// time for it. The same for the group of a container's network to become empty.
const DEADLINE: Duration = Duration::from_secs(4);
const BYTES_PER_MBIT: f64 = 125_000.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutboundSpec {
    /// The program `slirp4netns`.
    pub slirp: String,
    /// Networks that are open although they belong to those that are closed.
    pub allow: Vec<String>,
    pub connections: u32,
    /// Megabits a second in each direction; 0: unlimited.
    pub mbit: u32,
}

/// Who the helper is on the machine, where the service may choose: the last of the sandbox's own range of ids.
fn helper_id(ids: &IdsSpec) -> u32 {
    match ids {
        IdsSpec::Range { base, count } => base + count - 1,
        // SAFETY: no arguments.
        _ => unsafe { libc::geteuid() },
    }
}

/// Gives the sandbox whose first process is `pid` a network. Runs in the runtime's directory.
/// @param sandbox that process itself: its number may be another's by the time that it is looked at.
/// @returns a relay that is starting: the sandbox has its interface when that has been waited for; the helper may still be
/// starting then, and what is sent waits for it.
pub fn begin(
    spec: &OutboundSpec,
    ids: &IdsSpec,
    group: Option<&CgroupSpec>,
    pid: i32,
    sandbox: OwnedFd,
) -> Result<Beginning> {
    let (reader, writer) = sys::pipe().at(STEP, "pipe")?;
    if sys::fork().at(STEP, "fork")? == 0 {
        drop(reader);
        run(spec, ids, group, pid, sandbox, writer);
    }
    Ok(Beginning { answer: reader })
}

/// Gives a sandbox that runs its network again, or a container its first; a relay that is still there ends before.
pub fn attach(spec: &AttachSpec) -> Result<()> {
    std::env::set_current_dir(&spec.dir).at(STEP, &spec.dir)?;
    let (pid, sandbox) = match &spec.container {
        Some(container) => (container.pid, container::process(container)?),
        None => launched()?,
    };
    end(".", Instant::now() + DEADLINE)?;
    if let (Some(group), true) = (&spec.cgroup, spec.container.is_some()) {
        cgroup::make_for_network(group)?;
    }
    begin(&spec.outbound, &spec.ids, spec.cgroup.as_ref(), pid, sandbox)?.wait()
}

/// The first process of the sandbox that was launched in this directory.
fn launched() -> Result<(i32, OwnedFd)> {
    let path = Path::new("process.json");
    let sandbox = destroy::recorded(path, STEP)?.ok_or_else(|| StepError::new(STEP, "the sandbox does not run"))?;
    let bytes = std::fs::read(path).at(STEP, path.display())?;
    let record: ProcessRecord =
        serde_json::from_slice(&bytes).map_err(|error| StepError::new(STEP, error.to_string()))?;
    Ok((record.pid, sandbox))
}

/// Ends what carries the network of a container, and removes its group. Idempotent.
pub fn detach(spec: &DetachSpec) -> Result<()> {
    end(&spec.dir, Instant::now() + DEADLINE)?;
    spec.cgroup.as_ref().map_or(Ok(()), |group| cgroup::remove(group, Instant::now() + DEADLINE))
}

/// Ends the relay of a runtime, and with it the helper.
/// @param deadline of the whole removal, four seconds away at least: a service repeats one that used up its time, and takes one
/// that gives up before for refused.
pub fn end(dir: &str, deadline: Instant) -> Result<()> {
    let Some(relay) = destroy::recorded(&Path::new(dir).join(RECORD), STEP)? else {
        return Ok(());
    };
    destroy::end_process(&relay, STEP)?;
    let left = deadline.saturating_duration_since(Instant::now()).as_millis() as i32;
    if sys::wait_readable(relay.as_raw_fd(), left.max(1)).at(STEP, "wait")? {
        return Ok(());
    }
    Err(StepError::new(STEP, "the relay did not end in its time: the machine has too little for it"))
}

/// A relay that has been started.
pub struct Beginning {
    answer: OwnedFd,
}

impl Beginning {
    pub fn wait(self) -> Result<()> {
        let mut text = Vec::new();
        let mut buffer = [0u8; 1024];
        loop {
            let count = sys::read(self.answer.as_raw_fd(), &mut buffer).at(STEP, "relay")?;
            text.extend_from_slice(&buffer[..count]);
            if count == 0 || text.ends_with(b"\n") {
                break;
            }
        }
        match String::from_utf8_lossy(&text).trim_end_matches('\n').split_once('\t') {
            Some(("0", "")) => Ok(()),
            Some((errno, message)) => Err(StepError {
                step: STEP.to_owned(),
                message: message.to_owned(),
                errno: errno.parse().ok().filter(|errno| *errno != 0),
            }),
            None => Err(StepError::new(STEP, "the relay ended before it began")),
        }
    }
}

/// The relay's process, from its fork to its end.
fn run(
    spec: &OutboundSpec,
    ids: &IdsSpec,
    group: Option<&CgroupSpec>,
    pid: i32,
    sandbox: OwnedFd,
    answer: OwnedFd,
) -> ! {
    match prepare(spec, ids, group, pid, sandbox, &answer) {
        Ok(mut relay) => {
            drop(answer);
            relay::run(&mut relay);
        }
        // After its first answer nobody waits; the end of the process says it.
        Err(error) => drop(sys::write_all(
            answer.as_raw_fd(),
            format!("{}\t{}\n", error.errno.unwrap_or(0), error.message.replace(['\t', '\n'], " ")).as_bytes(),
        )),
    }
    std::process::exit(0)
}

fn prepare(
    spec: &OutboundSpec,
    ids: &IdsSpec,
    group: Option<&CgroupSpec>,
    pid: i32,
    sandbox: OwnedFd,
    answer: &OwnedFd,
) -> Result<relay::Relay> {
    leave_the_launcher([&sandbox, answer])?;
    // First, so that whatever happens after it is known whose process this is.
    let own = std::process::id() as i32;
    let record = ProcessRecord {
        pid: own,
        start_time: sys::start_time(own).at(STEP, "start time")?,
        boot_id: sys::boot_id().at(STEP, "boot id")?,
    };
    let bytes = serde_json::to_vec(&record).map_err(|error| StepError::new(STEP, error.to_string()))?;
    sys::write_file_atomically(libc::AT_FDCWD, RECORD, &bytes).at(STEP, RECORD)?;
    if let Some(group) = group {
        cgroup::join_network(group)?;
    }
    let rooted = matches!(ids, IdsSpec::Range { .. });
    let filter = filter::Filter::new(addresses::Reach::new(&spec.allow)?, spec.connections);
    for stale in [SOCKET, "network/slirp.sock"] {
        let _ = std::fs::remove_file(stale);
    }
    let listener = control::listen(SOCKET).at(STEP, SOCKET)?;
    if !Path::new(DIRECTORY).is_dir() {
        sys::make_dir(libc::AT_FDCWD, DIRECTORY, 0o700).at(STEP, DIRECTORY)?;
    }
    if rooted {
        sys::chown_at(libc::AT_FDCWD, DIRECTORY, helper_id(ids), helper_id(ids)).at(STEP, DIRECTORY)?;
    }
    let tap = tap::open(pid, !rooted)?;
    // While it lives its number is its own, and so were the namespaces just entered.
    if sys::wait_readable(sandbox.as_raw_fd(), 0).at(STEP, "the sandbox")? {
        return Err(StepError::new(STEP, "the sandbox ended"));
    }
    sys::write_all(answer.as_raw_fd(), b"0\t\n").at(STEP, "answer")?;
    let helper = slirp::start(spec, ids, group.is_some())?;
    let handle = sys::pidfd_open(helper.pid).at(STEP, "slirp4netns")?;
    harden::confine_relay(rooted.then(|| helper_id(ids)))?;
    Ok(relay::Relay {
        sandbox,
        helper: handle,
        tap,
        packets: helper.packets,
        _life: helper.life,
        listener,
        filter,
        rate: f64::from(spec.mbit) * BYTES_PER_MBIT,
    })
}

/// Nothing of the launcher's stays open, nor its terminal or its streams, and its signals do not reach here.
fn leave_the_launcher(kept: [&OwnedFd; 2]) -> Result<()> {
    // SAFETY: plain numbers.
    unsafe {
        libc::setsid();
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGINT, libc::SIG_DFL);
    }
    sys::close_all_but(&mut kept.map(AsRawFd::as_raw_fd));
    let null =
        sys::open_path_at(libc::AT_FDCWD, "/dev/null", libc::O_RDWR | libc::O_CLOEXEC, 0).at(STEP, "/dev/null")?;
    for place in 0..3 {
        // SAFETY: the standard streams, which nothing here uses.
        sys::check(unsafe { libc::dup2(null.as_raw_fd(), place) } as libc::c_long).at(STEP, "standard streams")?;
    }
    Ok(())
}
