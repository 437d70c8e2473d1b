//! The helper that makes connections of packets: `slirp4netns`, which gets the packets over a socket instead of an
//! interface, so that it needs nothing of the sandbox. It runs as nobody: in a namespace of users of its own, whose only
//! user is one that owns nothing, without processes of others in sight, and behind its own file and call restrictions.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use super::addresses::OWN_NETWORK;
use super::tap::MTU;
use super::{DIRECTORY, OutboundSpec};
use crate::error::{AtStep, Result, StepError};
use crate::inside::EMPTY;
use crate::spec::IdsSpec;
use crate::{idmap, sys};

const STEP: &str = "network";
const SOCKET: &str = "slirp.sock";
const START: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(1);
/// Descriptors beyond one for each connection: its own, and one for each question for a name (`MOST_QUESTIONS`).
const MORE_FILES: u64 = 1_500;
/// Where programs, their libraries and settings are.
const SEEN: [&str; 10] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix", "gnu", "etc"];
/// Where no group limits its memory.
const DATA_BYTES: u64 = 128 << 20;

pub struct Slirp {
    pub pid: i32,
    /// Where packets go and come from.
    pub packets: OwnedFd,
    /// While this is open it runs.
    pub life: OwnedFd,
}

/// Resolves when it can be spoken to. Runs in the runtime's directory.
pub fn start(spec: &OutboundSpec, ids: &IdsSpec, limited: bool) -> Result<Slirp> {
    let home =
        sys::open_path_at(libc::AT_FDCWD, DIRECTORY, libc::O_RDONLY | libc::O_DIRECTORY, 0).at(STEP, DIRECTORY)?;
    let (go_reader, go_writer) = sys::pipe().at(STEP, "pipe")?;
    let (life_reader, life_writer) = sys::pipe().at(STEP, "pipe")?;
    let flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    let pid = sys::clone_process(flags as u64, None).at(STEP, "new namespaces")?;
    if pid == 0 {
        drop((go_writer, life_writer));
        let Err(error) = become_slirp(spec, ids, limited, &home, &go_reader, &life_reader);
        eprintln!("alcove-launch: {error}");
        std::process::exit(1);
    }
    let own = match ids {
        IdsSpec::Range { .. } => IdsSpec::Range { base: super::helper_id(ids), count: 1 },
        _ => IdsSpec::Single,
    };
    idmap::write(pid, &own)?;
    sys::write_all(go_writer.as_raw_fd(), b"x").at(STEP, "release")?;
    drop((go_reader, life_reader));
    let packets = connect(pid)?;
    Ok(Slirp { pid, packets, life: life_writer })
}

/// It makes its socket itself, which takes it a few milliseconds.
fn connect(pid: i32) -> Result<OwnedFd> {
    let path = format!("{DIRECTORY}/{SOCKET}");
    let begun = Instant::now();
    loop {
        match super::control::seqpacket_to(&path) {
            Ok(packets) => {
                sys::make_nonblocking(packets.as_raw_fd()).at(STEP, &path)?;
                return Ok(packets);
            }
            Err(error) if begun.elapsed() > START => {
                return Err(StepError::io(STEP, "slirp4netns does not answer", error));
            }
            Err(_) => {}
        }
        // SAFETY: our own child, whose end is only looked at.
        let ended = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) } == pid;
        if ended {
            return Err(StepError::new(STEP, "slirp4netns ended at its start; 1.2.0 or newer is needed"));
        }
        std::thread::sleep(POLL);
    }
}

fn become_slirp(
    spec: &OutboundSpec,
    ids: &IdsSpec,
    limited: bool,
    home: &OwnedFd,
    go: &OwnedFd,
    life: &OwnedFd,
) -> Result<std::convert::Infallible> {
    sys::set_death_signal(libc::SIGKILL).at(STEP, "death signal")?;
    let mut byte = [0u8; 1];
    if sys::read(go.as_raw_fd(), &mut byte).at(STEP, "release")? != 1 {
        return Err(StepError::new(STEP, "the helper's parent went away"));
    }
    // SAFETY: plain numbers and an empty list.
    unsafe {
        if matches!(ids, IdsSpec::Range { .. }) {
            sys::check(libc::setgroups(0, std::ptr::null()) as libc::c_long).at(STEP, "setgroups")?;
        }
        sys::check(libc::setresgid(0, 0, 0) as libc::c_long).at(STEP, "setresgid")?;
        sys::check(libc::setresuid(0, 0, 0) as libc::c_long).at(STEP, "setresuid")?;
        libc::setsid();
    }
    // Forgotten when ids change.
    sys::set_death_signal(libc::SIGKILL).at(STEP, "death signal")?;
    sys::cut_propagation().at(STEP, "private mounts")?;
    own_root(&spec.slirp)?;
    // SAFETY: a descriptor of ours.
    sys::check(unsafe { libc::fchdir(home.as_raw_fd()) } as libc::c_long).at(STEP, DIRECTORY)?;
    limit(libc::RLIMIT_CORE, 0)?;
    limit(libc::RLIMIT_NOFILE, u64::from(spec.connections) + MORE_FILES)?;
    if !limited {
        limit(libc::RLIMIT_DATA, DATA_BYTES)?;
    }
    let life = keep_at(3, life.as_raw_fd())?;
    sys::close_all_but(&mut [life]);
    let arguments = [
        "slirp4netns".to_owned(),
        "--target-type=bess".to_owned(),
        "--disable-host-loopback".to_owned(),
        "--enable-sandbox".to_owned(),
        "--enable-seccomp".to_owned(),
        format!("--mtu={MTU}"),
        format!("--cidr={OWN_NETWORK}"),
        format!("--exit-fd={life}"),
        SOCKET.to_owned(),
    ];
    let program = sys::c_text(&spec.slirp);
    let arguments: Vec<CString> = arguments.iter().map(|argument| sys::c_text(argument)).collect();
    let mut argv: Vec<*const libc::c_char> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    argv.push(std::ptr::null());
    let environment = [std::ptr::null::<libc::c_char>()];
    // SAFETY: both lists end with a null pointer and everything they point to is alive.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), environment.as_ptr()) };
    Err(StepError::io(STEP, &spec.slirp, std::io::Error::last_os_error()))
}

/// Gives it a root with what it is made of and what it reads, and nothing else: not /run, where services listen that answer
/// every user. Its own `--enable-sandbox` comes on top of that: mounts that were copied along with a namespace of users stay tied
/// to the root they are below, and its program lies there, so that each disk of the machine was busy for as long as it ran.
fn own_root(program: &str) -> Result<()> {
    const ROOT: &str = "its root";
    let resolvers = std::fs::canonicalize("/etc/resolv.conf").unwrap_or_default();
    let real = std::fs::canonicalize(program).unwrap_or_default();
    let mut names: Vec<String> = [Path::new(program), &real].into_iter().filter_map(top).collect();
    // Often a folder of /run, and of that no more.
    if top(&resolvers).is_some_and(|name| !SEEN.contains(&name.as_str())) {
        let folder = resolvers.parent().and_then(|folder| folder.strip_prefix("/").ok()?.to_str());
        names.extend(folder.filter(|name| !name.is_empty()).map(str::to_owned));
    }
    names.extend(SEEN.map(str::to_owned));
    names.sort();
    names.dedup();
    let mut links = Vec::new();
    let mut mounts = Vec::new();
    for name in names {
        let path = format!("/{name}");
        if let Ok(target) = std::fs::read_link(&path) {
            links.push((name, target));
        } else if Path::new(&path).is_dir() {
            let flags = sys::OPEN_TREE_CLONE | libc::AT_RECURSIVE as u32;
            mounts.push((name, sys::open_tree(libc::AT_FDCWD, &path, flags).at(STEP, &path)?));
        }
    }
    let random = sys::open_tree(libc::AT_FDCWD, "/dev/urandom", sys::OPEN_TREE_CLONE).at(STEP, "/dev/urandom")?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    sys::mount("root", EMPTY, "tmpfs", flags, "size=16k,nr_inodes=64,mode=755").at(STEP, ROOT)?;
    std::env::set_current_dir(EMPTY).at(STEP, ROOT)?;
    for (name, target) in links {
        std::os::unix::fs::symlink(target, name).at(STEP, ROOT)?;
    }
    // It makes a root of its own in /tmp, and takes /run along there.
    for name in ["tmp", "run", "dev"].into_iter().chain(mounts.iter().map(|(name, _)| name.as_str())) {
        std::fs::create_dir_all(name).at(STEP, ROOT)?;
    }
    for (name, mount) in &mounts {
        sys::move_mount(mount.as_raw_fd(), libc::AT_FDCWD, name).at(STEP, name)?;
    }
    std::fs::write("dev/urandom", "").at(STEP, ROOT)?;
    sys::move_mount(random.as_raw_fd(), libc::AT_FDCWD, "dev/urandom").at(STEP, "/dev/urandom")?;
    // SAFETY: constant strings. The old root lies over the new one until it is taken away.
    unsafe {
        sys::check(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr())).at(STEP, "pivot_root")?;
        sys::check(libc::umount2(c".".as_ptr(), libc::MNT_DETACH) as libc::c_long).at(STEP, "old root")
    }
    .map(drop)
}

/// The first name of an absolute path.
fn top(path: &Path) -> Option<String> {
    let first = path.components().nth(1)?.as_os_str().to_str()?;
    path.is_absolute().then(|| first.to_owned())
}

fn keep_at(place: RawFd, fd: RawFd) -> Result<RawFd> {
    if fd != place {
        // SAFETY: what has this number is not used after this.
        sys::check(unsafe { libc::dup2(fd, place) } as libc::c_long).at(STEP, "dup2")?;
    }
    // SAFETY: a descriptor of ours, for the helper to inherit.
    sys::check(unsafe { libc::fcntl(place, libc::F_SETFD, 0) } as libc::c_long).at(STEP, "descriptor")?;
    Ok(place)
}

fn limit(resource: sys::Resource, wanted: u64) -> Result<()> {
    // SAFETY: the struct is alive through both calls.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        sys::check(libc::getrlimit(resource, &raw mut limit) as libc::c_long).at(STEP, "getrlimit")?;
        limit.rlim_max = limit.rlim_max.min(wanted as libc::rlim_t);
        limit.rlim_cur = limit.rlim_max;
        sys::check(libc::setrlimit(resource, &raw const limit) as libc::c_long).map(drop).at(STEP, "setrlimit")
    }
}
