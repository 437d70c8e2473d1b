//! The inner half of a launch: the first process of the sandbox, from its clone to the agent's exec.
//!
//! It starts with a copy of the service's mounts, all capabilities inside its own user namespace and none outside, and
//! gives up the rest step by step. Until the last step it dies with its parent.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use crate::error::{AtStep, Result, StepError};
use crate::spec::{IdsSpec, LaunchSpec, Network, Owned, RootSpec};
use crate::{harden, inside, overlay, sys};

/// Sent once the child no longer shares its parent's descriptor table.
pub const OWN_TABLE: u8 = b'U';
/// Sent by an agent that runs before it is somebody's: the rest then comes the other way.
pub const PARKED: u8 = sys::held::READY;
/// Sent right before the agent's exec, which closes the pipe: without it the pipe was closed by an end. Of one that was parked the
/// agent says it itself, and closes the pipe then.
pub const STARTING: u8 = sys::held::BEGUN;
/// Heard once the sandbox has its limits, by one that is somebody's from the beginning.
pub const LIMITED: u8 = b'L';

pub struct Plan<'a> {
    pub spec: &'a LaunchSpec,
    /// None: its agent waits until it is told.
    pub owned: Option<Owned>,
    pub go: RawFd,
    pub status: RawFd,
    /// The parent's process.
    pub parent: RawFd,
    /// The parent's ends of both.
    pub parents: [RawFd; 2],
    pub listener: RawFd,
    pub console: RawFd,
    pub oom: Option<RawFd>,
    pub exec_join: Vec<RawFd>,
    pub exec_pids: Option<RawFd>,
    pub exec_quota: Option<RawFd>,
    /// The agent's file as a detached mount, when the parent made it.
    pub agent: Option<RawFd>,
    /// The root as a detached mount, when the parent made it.
    pub root: Option<RawFd>,
    /// /proc as a detached mount, when the parent made it.
    pub proc: Option<RawFd>,
    /// /dev as a detached mount, when the parent made it.
    pub dev: Option<RawFd>,
}

#[derive(Serialize, Deserialize)]
pub struct Failure {
    pub step: String,
    pub message: String,
    pub errno: Option<i32>,
}

/// Never returns: execs the agent, or reports and ends.
pub fn run(plan: &mut Plan<'_>) -> ! {
    let status = plan.status;
    let Err(error) = start(plan);
    let failure = Failure { step: error.step, message: error.message, errno: error.errno };
    if let Ok(report) = serde_json::to_vec(&failure) {
        // Nobody is left to tell when this fails; the parent then names the exit itself.
        let _ = sys::write_all(status, &report);
    }
    std::process::exit(1)
}

fn start(plan: &mut Plan<'_>) -> Result<std::convert::Infallible> {
    sys::set_death_signal(libc::SIGKILL).at("inside", "death signal")?;
    // One that died before that has left its end of the pipe open: in the table that this process shares.
    let released = sys::wait_readable_of(plan.go, plan.parent).at("inside", "release")?;
    let mut numbers = [0u8; 12];
    let count = if released { sys::read(plan.go, &mut numbers) } else { Ok(0) }.at("inside", "release")?;
    if count != numbers.len() {
        return Err(StepError::new("inside", "the launcher went away"));
    }
    let mut mounts = numbers.chunks_exact(4).map(|number| {
        let number = i32::from_ne_bytes([number[0], number[1], number[2], number[3]]);
        (number >= 0).then_some(number)
    });
    [plan.root, plan.proc, plan.dev] = [(); 3].map(|()| mounts.next().flatten());
    // SAFETY: plain number. From here on closing a descriptor does not touch the parent's.
    sys::check(unsafe { libc::unshare(libc::CLONE_FILES) } as libc::c_long).at("inside", "own descriptors")?;
    for fd in plan.parents {
        // SAFETY: the parent's ends of the pipes, which nothing here uses.
        unsafe { libc::close(fd) };
    }
    sys::write_all(plan.status, &[OWN_TABLE]).at("inside", "status")?;

    become_root(&plan.spec.ids)?;
    // The kernel forgets the signal when ids change. A launcher that died meanwhile has closed its end of the pipe, which is read once more:
    // below, or by the agent where the sandbox is nobody's yet.
    sys::set_death_signal(libc::SIGKILL).at("inside", "death signal")?;
    // What is mounted outside from here on stays outside.
    sys::cut_propagation().at("mount", "private mounts")?;
    // SAFETY: plain numbers.
    sys::check(unsafe { libc::setsid() } as libc::c_long).at("inside", "session")?;
    let carried = inside::Carried::collect(&plan.spec.root, plan.dev.is_some())?;
    let agent: OwnedFd;
    let agent_fd = match plan.agent {
        Some(fd) => fd,
        None => {
            agent = overlay::read_only_clone(&plan.spec.agent, true)?;
            agent.as_raw_fd()
        }
    };
    enter_root(plan)?;
    inside::furnish(plan.spec, carried, plan.proc, plan.dev)?;
    if plan.spec.network != Network::Host {
        inside::loopback_up()?;
    }
    if let Some(owned) = &plan.owned {
        introduce(plan, owned)?;
        inside::set_hostname(&owned.hostname)?;
    }
    harden::limit(&plan.spec.limits, plan.spec.cgroup.is_some())?;

    let mut arguments = inherit_descriptors(plan)?;
    if let Some(listener) = harden::drop_rights(plan.spec)? {
        let fd = listener.into_raw_fd();
        // SAFETY: a descriptor of ours, for the agent to inherit.
        sys::check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } as libc::c_long).at("seccomp", "listener")?;
        let datagrams = harden::datagram_sockets(&plan.spec.limits);
        arguments.extend(["--sockets-fd".to_owned(), fd.to_string()]);
        arguments.extend(["--datagram-sockets".to_owned(), datagrams.to_string()]);
    }
    if plan.owned.is_some() {
        let mut limited = [0u8; 1];
        if sys::read(plan.go, &mut limited).at("inside", "limits")? != 1 || limited[0] != LIMITED {
            return Err(StepError::new("inside", "the launcher went away"));
        }
        sys::set_death_signal(0).at("inside", "death signal")?;
        sys::write_all(plan.status, &[STARTING]).at("inside", "status")?;
    } else {
        // The agent keeps it until it is somebody's; the kernel may have forgotten it. Where a launcher died meanwhile the agent
        // finds the pipe closed.
        sys::set_death_signal(libc::SIGKILL).at("inside", "death signal")?;
    }
    inside::exec(agent_fd, &arguments)
}

/// What the sandbox's own files say of whose it is.
fn introduce(plan: &Plan<'_>, owned: &Owned) -> Result<()> {
    match plan.spec.root {
        RootSpec::Image { .. } => {
            sys::complete_etc(&owned.hostname).map_err(|(path, error)| StepError::io(inside::FILES, path, error))
        }
        RootSpec::Host { .. } => Ok(()),
    }
}

fn become_root(ids: &IdsSpec) -> Result<()> {
    // With a single id the kernel forbids setgroups for good.
    if !matches!(ids, IdsSpec::Single) {
        // SAFETY: an empty list.
        sys::check(unsafe { libc::setgroups(0, std::ptr::null()) } as libc::c_long).at("inside", "setgroups")?;
    }
    // SAFETY: plain numbers.
    unsafe {
        sys::check(libc::setresgid(0, 0, 0) as libc::c_long).at("inside", "setresgid")?;
        sys::check(libc::setresuid(0, 0, 0) as libc::c_long).at("inside", "setresuid")?;
    }
    Ok(())
}

/// Makes the sandbox's root the root, with the old one still mounted over it: `furnish` takes it away.
fn enter_root(plan: &Plan<'_>) -> Result<()> {
    const STEP: &str = "root";
    match plan.root {
        Some(root) => {
            // Any directory serves as the place: /etc is always there and nothing below it is needed any more.
            sys::move_mount(root, libc::AT_FDCWD, "/etc").at(STEP, "attach the root")?;
            // SAFETY: a descriptor of ours.
            sys::check(unsafe { libc::fchdir(root) } as libc::c_long).at(STEP, "enter the root")?;
        }
        None => make_own_root(plan.spec)?,
    }
    // SAFETY: constant strings.
    unsafe {
        sys::check(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr())).at(STEP, "pivot_root")?;
    }
    Ok(())
}

fn make_own_root(spec: &LaunchSpec) -> Result<()> {
    const STEP: &str = "root";
    // By path: the inherited working directory belongs to the parent's mount namespace.
    std::env::set_current_dir(&spec.dir).at(STEP, &spec.dir)?;
    overlay::make_writable(&spec.disk)?;
    sys::make_dir(libc::AT_FDCWD, "merged", 0o700).at(STEP, "merged")?;
    let lower = match &spec.root {
        RootSpec::Host { skeleton, .. } => skeleton,
        RootSpec::Image { rootfs, .. } => rootfs,
    };
    overlay::unprivileged(lower, "merged")?;
    std::env::set_current_dir("merged").at(STEP, "merged")
}

/// Standard streams and what the agent is told about by number; everything else closes at its exec.
fn inherit_descriptors(plan: &Plan<'_>) -> Result<Vec<String>> {
    const STEP: &str = "descriptors";
    let null = sys::open_path_at(libc::AT_FDCWD, "/dev/null", libc::O_RDWR, 0).at(STEP, "/dev/null")?;
    let mut arguments = vec!["alcove-agent".to_owned(), "serve".to_owned()];
    let mut wanted = vec![null.as_raw_fd(), plan.console, plan.console];
    let parked = [("--owner-fd", plan.go), ("--told-fd", plan.status)];
    let given = [("--listen-fd", plan.listener)]
        .into_iter()
        .chain(parked.into_iter().filter(|_| plan.owned.is_none()))
        .chain(plan.oom.map(|fd| ("--oom-fd", fd)))
        .chain(plan.exec_pids.map(|fd| ("--exec-pids-fd", fd)))
        .chain(plan.exec_quota.map(|fd| ("--exec-quota-fd", fd)))
        .chain(plan.exec_join.iter().map(|fd| ("--exec-cgroup-fd", *fd)));
    for (flag, fd) in given {
        arguments.extend([flag.to_owned(), wanted.len().to_string()]);
        wanted.push(fd);
    }
    // Out of the way first: a source may have a number that is some other one's place.
    let mut moved = Vec::new();
    for fd in wanted {
        // SAFETY: a descriptor of ours.
        moved.push(sys::check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 100) } as libc::c_long).at(STEP, "dup")?);
    }
    for (place, fd) in moved.iter().enumerate() {
        // SAFETY: nothing owned by a Rust value has these numbers that is used after this.
        sys::check(unsafe { libc::dup2(*fd as RawFd, place as RawFd) } as libc::c_long).at(STEP, "dup2")?;
    }
    // SAFETY: plain numbers.
    sys::check(unsafe { libc::syscall(libc::SYS_close_range, moved.len(), u32::MAX, libc::CLOSE_RANGE_CLOEXEC) })
        .at(STEP, "close_range (needs Linux 5.11)")?;
    std::mem::forget(null);
    Ok(arguments)
}
