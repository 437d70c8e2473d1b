//! The inner half of a launch: the first process of the sandbox, from its clone to the agent's exec.
//!
//! It starts with a copy of the service's mounts, all capabilities inside its own user namespace and none outside, and
//! gives up the rest step by step. Until the last step it dies with its parent.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use crate::error::{AtStep, Result, StepError};
use crate::parcels::{Parcel, Receiver, Thing, Things};
use crate::spec::{IdsSpec, LaunchSpec, Owned, RootSpec};
use crate::{cgroup, harden, inside, overlay, sys};

/// Sent by an agent that runs before it is somebody's: the rest then comes the other way.
pub const PARKED: u8 = sys::held::READY;
/// Sent right before the agent's exec, which closes the pipe: without it the pipe was closed by an end. Of one that was parked the
/// agent says it itself, and closes the pipe then.
pub const STARTING: u8 = sys::held::BEGUN;
/// Heard once the sandbox has its limits, by one that is somebody's from the beginning.
pub const LIMITED: u8 = b'L';

/// What is told of namespaces that are refused, to whoever makes them.
pub const NAMESPACES: &str = "new namespaces";

/// Namespaces that the child makes by itself, as flags: at once, when it is in its groups, and where its parent could not make it.
#[derive(Clone, Copy, Default)]
pub struct Taken {
    pub at_once: libc::c_int,
    pub in_groups: libc::c_int,
    pub at_last: libc::c_int,
}

/// An agent is told about fewer.
const FIRST_OUT_OF_THE_WAY: libc::c_int = 100;

pub struct Plan<'a> {
    pub spec: &'a LaunchSpec,
    /// The processor of the parent when it made this one, and what whoever leaves it is given back.
    pub maker_at: Option<(usize, sys::Processors)>,
    /// None: its agent waits until it is told.
    pub owned: Option<Owned>,
    pub taken: Taken,
    pub go: RawFd,
    pub status: RawFd,
    pub parcels: Receiver,
    /// The parent's ends of these three.
    pub parents: [RawFd; 3],
    pub listener: RawFd,
    pub console: RawFd,
}

#[derive(Serialize, Deserialize)]
pub struct Failure {
    pub step: String,
    pub message: String,
    pub errno: Option<i32>,
}

/// Never returns: execs the agent, or reports and ends.
pub fn run(plan: &mut Plan<'_>) -> ! {
    let Err(error) = start(plan);
    let failure = Failure { step: error.step, message: error.message, errno: error.errno };
    if let Ok(report) = serde_json::to_vec(&failure) {
        // Nobody is left to tell when this fails; the parent then names the exit itself.
        let _ = sys::write_all(plan.status, &report);
    }
    std::process::exit(1)
}

fn start(plan: &mut Plan<'_>) -> Result<std::convert::Infallible> {
    let rooted = matches!(plan.spec.ids, IdsSpec::Range { .. });
    for fd in plan.parents {
        // SAFETY: the parent's ends, which nothing here uses. With them closed a parent that dies is seen by these channels.
        unsafe { libc::close(fd) };
    }
    sys::set_death_signal(libc::SIGKILL).at("inside", "death signal")?;
    // The parent goes on meanwhile. Where it is refused it does so later.
    if let Some((processor, all)) = plan.maker_at.filter(|(at, _)| sys::processor().is_ok_and(|here| here == *at)) {
        let _ = sys::leave_processor(0, processor, &all);
    }
    take(plan.taken.at_once)?;

    plan.parcels.take(Parcel::Ids)?;
    become_root(&plan.spec.ids)?;
    // The kernel forgets the signal when ids change. A launcher that died meanwhile has closed its end of what is read next.
    sys::set_death_signal(libc::SIGKILL).at("inside", "death signal")?;
    // What is mounted outside from here on stays outside.
    sys::cut_propagation().at("mount", "private mounts")?;
    // SAFETY: plain numbers.
    sys::check(unsafe { libc::setsid() } as libc::c_long).at("inside", "session")?;
    if let Some(owned) = &plan.owned {
        inside::set_hostname(&owned.hostname)?;
    }

    let mut furniture = plan.parcels.take(Parcel::Furniture)?;
    let (proc, dev) = (furniture.one(Thing::Proc), furniture.one(Thing::Dev));
    let carried = inside::Carried::collect(&plan.spec.root, dev.is_some())?;
    let agent = match furniture.one(Thing::Agent) {
        Some(agent) => agent,
        None => overlay::read_only_clone(&plan.spec.agent, true)?,
    };
    if !rooted {
        // Before anything covers the way to it.
        make_own_root(plan.spec)?;
    }
    let home = inside::assemble(plan.spec, carried, proc, dev)?;

    let mut groups = plan.parcels.take(Parcel::Groups)?;
    join_groups(plan.spec, &groups.all(Thing::Join))?;
    take(plan.taken.in_groups)?;

    let mut given = plan.parcels.take(Parcel::Root)?;
    enter_root(given.one(Thing::Root))?;
    inside::furnish(plan.spec, home)?;
    if let Some(owned) = &plan.owned {
        introduce(plan, owned)?;
    }

    enter_network(plan.parcels.take(Parcel::Network)?.one(Thing::Network), plan.taken.at_last)?;
    inside::settle_network(plan.spec)?;
    inside::close_kernel_settings()?;
    harden::limit(&plan.spec.limits, plan.spec.cgroup.is_some())?;

    // Used to the end, and not where descriptors for the agent come to be.
    let agent = out_of_the_way(agent.as_raw_fd())?;
    (plan.go, plan.status) = (out_of_the_way(plan.go)?, out_of_the_way(plan.status)?);
    let mut arguments = inherit_descriptors(plan, &mut given)?;
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
    inside::exec(agent, &arguments)
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

/// Makes namespaces, none or some: they belong to the sandbox's user namespace, as those that it was cloned with.
fn take(flags: libc::c_int) -> Result<()> {
    if flags == 0 {
        return Ok(());
    }
    // SAFETY: plain number.
    sys::check(unsafe { libc::unshare(flags) } as libc::c_long).at("clone", NAMESPACES).map(drop)
}

/// @param made by the parent; none: it is made here, where `flags` are those of one.
fn enter_network(made: Option<OwnedFd>, flags: libc::c_int) -> Result<()> {
    let Some(namespace) = made else {
        return take(flags);
    };
    // SAFETY: a descriptor of ours.
    let entered = sys::check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } as libc::c_long);
    entered.map(drop).at("clone", "the network that was made for it")
}

/// Those that its parent did not join for it. The kernel asks who opened the files.
fn join_groups(spec: &LaunchSpec, files: &[OwnedFd]) -> Result<()> {
    let paths = spec.cgroup.iter().flat_map(cgroup::joined_later);
    files.iter().zip(paths).try_for_each(|(file, path)| cgroup::join(file, &path))
}

/// Makes the sandbox's root the root, with the old one still mounted over it: `furnish` takes it away.
/// @param root none: the working directory is it.
fn enter_root(root: Option<OwnedFd>) -> Result<()> {
    const STEP: &str = "root";
    if let Some(root) = root {
        // Any directory serves as the place: /etc is always there and nothing below it is needed any more.
        sys::move_mount(root.as_raw_fd(), libc::AT_FDCWD, "/etc").at(STEP, "attach the root")?;
        // SAFETY: a descriptor of ours.
        sys::check(unsafe { libc::fchdir(root.as_raw_fd()) } as libc::c_long).at(STEP, "enter the root")?;
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

/// A copy that closes at an exec, with a number beyond all that an agent is told about.
fn out_of_the_way(fd: RawFd) -> Result<RawFd> {
    // SAFETY: a descriptor of ours.
    let moved = sys::check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST_OUT_OF_THE_WAY) } as libc::c_long);
    moved.map(|fd| fd as RawFd).at("descriptors", "dup")
}

/// Standard streams and what the agent is told about by number; everything else closes at its exec.
fn inherit_descriptors(plan: &Plan<'_>, given: &mut Things) -> Result<Vec<String>> {
    const STEP: &str = "descriptors";
    let null = sys::open_path_at(libc::AT_FDCWD, "/dev/null", libc::O_RDWR, 0).at(STEP, "/dev/null")?;
    let mut arguments = vec!["alcove-agent".to_owned(), "serve".to_owned()];
    let mut wanted = vec![null.into_raw_fd(), plan.console, plan.console];
    let parked = [("--owner-fd", plan.go), ("--told-fd", plan.status)];
    let groups = [
        ("--oom-fd", Thing::Oom),
        ("--exec-pids-fd", Thing::ExecPids),
        ("--exec-quota-fd", Thing::ExecQuota),
        ("--exec-cgroup-fd", Thing::ExecJoin),
    ];
    let taken: Vec<_> = [("--listen-fd", plan.listener)]
        .into_iter()
        .chain(parked.into_iter().filter(|_| plan.owned.is_none()))
        .chain(
            groups
                .into_iter()
                .flat_map(|(flag, thing)| given.all(thing).into_iter().map(move |fd| (flag, fd.into_raw_fd()))),
        )
        .collect();
    for (flag, fd) in taken {
        arguments.extend([flag.to_owned(), wanted.len().to_string()]);
        wanted.push(fd);
    }
    // First: a source may have a number that is some other one's place.
    let moved = wanted.into_iter().map(out_of_the_way).collect::<Result<Vec<_>>>()?;
    for (place, fd) in moved.iter().enumerate() {
        // SAFETY: nothing owned by a Rust value has these numbers that is used after this.
        sys::check(unsafe { libc::dup2(*fd, place as RawFd) } as libc::c_long).at(STEP, "dup2")?;
    }
    // SAFETY: plain numbers.
    sys::check(unsafe { libc::syscall(libc::SYS_close_range, moved.len(), u32::MAX, libc::CLOSE_RANGE_CLOEXEC) })
        .at(STEP, "close_range (needs Linux 5.11)")?;
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::take;

    #[test]
    fn namespaces_that_are_refused_are_told_as_those_of_the_clone() {
        assert!(take(0).is_ok());
        // No kernel makes this by `unshare`, and nothing is made.
        let refused = take(libc::CLONE_PTRACE).expect_err("a refusal");
        assert_eq!((refused.step.as_str(), refused.errno), ("clone", Some(libc::EINVAL)));
        assert!(refused.message.starts_with("new namespaces: "), "{refused}");
    }
}
