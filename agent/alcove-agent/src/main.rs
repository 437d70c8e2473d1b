//! `alcove-agent` runs inside every sandbox: it starts commands, keeps their output, and serves files, for the service
//! that dials its socket. `docs/agent-protocol.md` is the contract.

mod account_files;
mod agent;
mod bridge;
mod caps;
mod closed_folder;
mod commands;
mod compat;
mod config;
mod connection;
mod console;
mod dial;
mod exec;
mod exec_group;
mod feeding;
mod files;
mod held;
mod identity;
mod init;
mod input;
mod inputs;
mod journal;
mod killing;
mod launch;
mod lend;
mod limits;
mod machine;
mod monitor;
mod names;
mod oom;
mod output;
mod own_group;
mod poller;
mod pump;
mod requests;
mod shell_line;
mod slab;
mod socket_grants;
mod stats;
mod supervise;
mod terminal;
mod timers;
mod tree;
mod users;
mod workers;

use agent::{Agent, Options};
use alcove_sys as sys;
use held::Held;
use init::InitOptions;
use machine::Machine;
use oom::OomCounters;
use socket_grants::SocketGrants;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::process::ExitCode;

const USAGE: &str =
    "usage: alcove-agent serve (--listen-fd N | --listen-vsock PORT | --socket PATH) [--oom-fd N]... [--exec-cgroup-fd N]... [--exec-pids-fd N] [--exec-quota-fd N] [--sockets-fd N] [--datagram-sockets N] [--unclaimed-ms N] [--compat] [--filter] [--namespaces] [--close-folder] [--passing-group GID] [--owner-fd N --told-fd N]
       alcove-agent stdio --socket PATH
       alcove-agent init layer=/dev/NAME port=N [hostname=NAME] [pids=N] [address=IP/LENGTH [gateway=IP] [dns=IP]]
       alcove-agent --version";

enum Command {
    Serve { listener: Endpoint, oom: Vec<RawFd>, groups: Groups, filters: Filters, terms: Terms },
    Stdio { socket: String },
    Init(InitOptions),
    Version,
}

/// Descriptors of the commands' control group.
#[derive(Default)]
struct Groups {
    join: Vec<RawFd>,
    pids: Option<RawFd>,
    quota: Option<RawFd>,
}

/// What the agent takes from itself and from all it starts.
#[derive(Default)]
struct Filters {
    /// Life under a path translator.
    compat: bool,
    /// What reaches tables and disks of the whole machine, where nobody else took it.
    shared: bool,
    /// Commands may make namespaces of their own all the same.
    namespaces: bool,
    /// Where this process is asked for sockets whose memory is counted for nobody, when whoever started it filters.
    sockets: Option<RawFd>,
    most_datagrams: Option<usize>,
}

/// What whoever starts the agent decides about its commands and its end.
struct Terms {
    /// See `Options`.
    unclaimed_ms: u64,
    passing_group: Option<u32>,
    /// See `closed_folder`.
    close_folder: bool,
    /// Where it is nobody's yet: see `held`.
    owner: Option<RawFd>,
    told: Option<RawFd>,
}

impl Default for Terms {
    fn default() -> Self {
        Self { unclaimed_ms: agent::UNCLAIMED_MS, passing_group: None, close_folder: false, owner: None, told: None }
    }
}

enum Endpoint {
    Descriptor(RawFd),
    Path(String),
    Vsock(u32),
    Open(OwnedFd),
}

fn parse(arguments: &[String]) -> Result<Command, String> {
    let mut rest = arguments.iter();
    let name = rest.next().map(String::as_str);
    if matches!(name, Some("--version" | "-V")) {
        return Ok(Command::Version);
    }
    if name == Some("init") {
        return InitOptions::parse(&arguments[1..]).map(Command::Init);
    }
    let (mut endpoints, mut filters) = (Vec::new(), Filters::default());
    let (mut oom, mut groups) = (Vec::new(), Groups::default());
    let mut terms = Terms::default();
    while let Some(option) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| format!("{option} wants a value"));
        let number = |text: &String| text.parse::<RawFd>().map_err(|_| format!("{option}: {text:?} is no descriptor"));
        match option.as_str() {
            "--listen-fd" => endpoints.push(Endpoint::Descriptor(number(value()?)?)),
            "--listen-vsock" => {
                let text = value()?;
                let port = text.parse().map_err(|_| format!("{option}: {text:?} is no port"))?;
                endpoints.push(Endpoint::Vsock(port));
            }
            "--socket" => endpoints.push(Endpoint::Path(value()?.clone())),
            "--oom-fd" => oom.push(number(value()?)?),
            "--exec-cgroup-fd" => groups.join.push(number(value()?)?),
            "--exec-pids-fd" => groups.pids = Some(number(value()?)?),
            "--exec-quota-fd" => groups.quota = Some(number(value()?)?),
            "--sockets-fd" => filters.sockets = Some(number(value()?)?),
            "--datagram-sockets" => {
                let text = value()?;
                let count = text.parse().map_err(|_| format!("{option}: {text:?} is no number"))?;
                filters.most_datagrams = Some(count);
            }
            "--unclaimed-ms" => {
                let text = value()?;
                terms.unclaimed_ms = text.parse().map_err(|_| format!("{option}: {text:?} is no number"))?;
            }
            "--passing-group" => {
                let text = value()?;
                let group = text.parse().map_err(|_| format!("{option}: {text:?} is no group id"))?;
                terms.passing_group = Some(group);
            }
            "--owner-fd" => terms.owner = Some(number(value()?)?),
            "--told-fd" => terms.told = Some(number(value()?)?),
            "--close-folder" => terms.close_folder = true,
            "--compat" => filters.compat = true,
            "--filter" => filters.shared = true,
            "--namespaces" => filters.namespaces = true,
            _ => return Err(format!("option {option} is unknown")),
        }
    }
    if terms.owner.is_some() != terms.told.is_some() {
        return Err("--owner-fd and --told-fd go together".into());
    }
    let endpoint = endpoints.pop().filter(|_| endpoints.is_empty());
    match (name, endpoint) {
        (Some("serve"), Some(listener)) => Ok(Command::Serve { listener, oom, groups, filters, terms }),
        (Some("serve"), None) => Err("serve wants one of --listen-fd, --listen-vsock and --socket".into()),
        (Some("stdio"), Some(Endpoint::Path(socket)))
            if oom.is_empty() && groups.join.is_empty() && !filters.compat =>
        {
            Ok(Command::Stdio { socket })
        }
        (Some("stdio"), _) => Err("stdio wants --socket alone".into()),
        (Some(other), _) => Err(format!("command {other} is unknown")),
        (None, _) => Err("a command is wanted".into()),
    }
}

fn main() -> ExitCode {
    sys::close_relocations();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match parse(&arguments) {
        Ok(Command::Version) => {
            let (version, protocols) = (env!("CARGO_PKG_VERSION"), alcove_protocol::VERSIONS);
            println!("alcove-agent {version} protocol {protocols:?} {}", sys::C_LIBRARY);
            Ok(())
        }
        Ok(Command::Stdio { socket }) => bridge::run(&socket).map_err(|error| format!("{socket}: {error}")),
        Ok(Command::Serve { listener, oom, groups, filters, terms }) => {
            serve(listener, &oom, Some(groups), &filters, None, terms)
        }
        Ok(Command::Init(options)) => run_machine(options),
        // The first process of a machine ends it with itself; nobody would read a usage there.
        Err(error) if std::process::id() == 1 && arguments.first().is_some_and(|name| name == "init") => {
            init::end(Some(&error))
        }
        Err(error) => {
            eprintln!("alcove-agent: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("alcove-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves as process 1 of a machine, which ends with it.
fn run_machine(options: InitOptions) -> Result<(), String> {
    if std::process::id() != 1 {
        return Err(format!("init is for process 1 of a machine, and this is process {}", std::process::id()));
    }
    let served = init::prepare(&options).and_then(|ready| {
        let mut kills = Vec::new();
        if let Some(groups) = &ready.groups {
            exec_group::set(&[groups.join.as_raw_fd()], Some(groups.pids.as_raw_fd()), None);
            kills.push(groups.kills.as_raw_fd());
        }
        let own_groups = ready.groups.is_some();
        // Used by their numbers from here on, until the machine ends.
        std::mem::forget(ready.groups);
        let machine = Machine::new(options.hostname, own_groups);
        serve(Endpoint::Open(ready.listener), &kills, None, &Filters::default(), Some(machine), Terms::default())
    });
    init::end(served.err().as_deref())
}

/// @param groups where nobody has set them yet.
fn serve(
    endpoint: Endpoint,
    oom: &[RawFd],
    groups: Option<Groups>,
    filters: &Filters,
    machine: Option<Machine>,
    terms: Terms,
) -> Result<(), String> {
    sys::set_compat(filters.compat);
    if filters.compat {
        compat::install().map_err(|error| format!("--compat: {error}"))?;
    }
    let open_files = prepare_process();
    let mut asked = filters.sockets.map(|fd| {
        // Whatever it is, it is of no use to commands.
        let _ = sys::set_cloexec(fd);
        // SAFETY: whoever started the agent passed this descriptor for its use.
        unsafe { OwnedFd::from_raw_fd(fd) }
    });
    if filters.shared {
        asked = install_filter(filters.most_datagrams.is_some(), filters.namespaces)
            .map_err(|error| format!("--filter: {error}"))?;
    }
    let listener = match endpoint {
        Endpoint::Descriptor(fd) => {
            sys::set_cloexec(fd).map_err(|error| format!("--listen-fd {fd}: {error}"))?;
            // SAFETY: whoever started the agent passed this descriptor for its use.
            unsafe { OwnedFd::from_raw_fd(fd) }
        }
        Endpoint::Vsock(port) => sys::listen_vsock(port).map_err(|error| format!("--listen-vsock {port}: {error}"))?,
        Endpoint::Open(listener) => listener,
        Endpoint::Path(path) => {
            // A socket left by an agent that is gone; one in use could not be told apart, and is its starter's fault.
            if let Ok(name) = sys::c_string(path.as_bytes()) {
                let socket = sys::stat_at(libc::AT_FDCWD, &name, libc::AT_SYMLINK_NOFOLLOW)
                    .is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFSOCK);
                if socket {
                    // SAFETY: the name is a C string; a failure shows in the bind.
                    unsafe { libc::unlink(name.as_ptr()) };
                }
            }
            let listener = UnixListener::bind(&path).map_err(|error| format!("--socket {path}: {error}"))?;
            if terms.close_folder {
                closed_folder::close_around(&path).map_err(|error| format!("--close-folder: {path}: {error}"))?;
            }
            listener.into()
        }
    };
    console::say(format_args!("version {} started as process {}", env!("CARGO_PKG_VERSION"), std::process::id()));
    let most_datagrams = filters.most_datagrams.unwrap_or(socket_grants::MOST_DATAGRAMS);
    let socket_grants = asked.map(|fd| SocketGrants::new(fd, most_datagrams));
    let oom = OomCounters::new(oom);
    let held = Held::of(terms.owner, terms.told);
    let Terms { unclaimed_ms, passing_group, .. } = terms;
    let ids = users::detect_ids();
    let options = Options { listener, oom, ids, open_files, socket_grants, machine, unclaimed_ms, passing_group };
    sys::ask_for_short_slices(0);
    let mut agent = Agent::new(options).map_err(|error| error.to_string())?;
    if let Some(held) = held {
        held.wait().map_err(|error| format!("--owner-fd: {error}"))?;
        agent.begin_now();
    }
    // Only now: what is held has its name when it is somebody's.
    sys::complete_shared_etc().map_err(|error| format!("/etc/hosts: {error}"))?;
    // Only now: what is held gets its limits when it is somebody's, and they are what is written there again.
    if let Some(Groups { join, pids, quota }) = groups {
        exec_group::set(&join, pids, quota);
    }
    agent.run().map_err(|error| error.to_string())
}

/// Returns where this process is asked for sockets, if it is. It makes none of these kinds itself.
fn install_filter(asking: bool, namespaces: bool) -> std::io::Result<Option<OwnedFd>> {
    // SAFETY: plain setting of this process. Commands never gain anything by an exec, with or without it.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // Refused by kernels that record nothing, and by profiles without Landlock.
    let _ = sys::keep_landlock_quiet();
    // Refused where somebody above has a listener already.
    if asking {
        if let Ok(listener) = alcove_filter::install_shared_asking(namespaces) {
            return Ok(Some(listener));
        }
    }
    alcove_filter::install_shared(namespaces).map(|()| None)
}

/// Makes this process fit to hold a secret among programs that are not trusted, and to stay small. Returns the limit of
/// open files that commands are to have.
fn prepare_process() -> (u64, u64) {
    // SAFETY: plain settings of this process, before any thread exists.
    unsafe {
        // Descriptors 0 to 2 must be taken, or a pipe could land there.
        loop {
            let fd = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            if !(0..=2).contains(&fd) {
                if fd > 2 {
                    libc::close(fd);
                }
                break;
            }
            libc::fcntl(fd, libc::F_SETFD, 0);
        }
        // A translator that is not root could no longer read the paths of one that is closed to it.
        if !sys::compat() {
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        }
        // What escapes its monitor comes here, also when the agent is not the init of its sandbox.
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        // musl gives back what is free at once, and keeps no arenas.
        #[cfg(target_env = "gnu")]
        {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_MMAP_THRESHOLD, 64 * 1024);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 128 * 1024);
            // What is taken from room of the heap is cleared, and thereby there, also where it was never used; a mapping is there page by
            // page as it is. So the heap keeps no room that a large buffer would fit into.
            libc::mallopt(libc::M_TOP_PAD, 16 * 1024);
            libc::malloc_trim(0);
        }
        // By the system call: the library hides two signals from its users, and whoever started the agent may have
        // ignored those too. All zero means the default action.
        let default = [0u64; 4];
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null_mut::<u64>(), 8);
        }
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::umask(0o022);
        let mut files = libc::rlimit { rlim_cur: 1024, rlim_max: 4096 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut files);
        let given = (files.rlim_cur, files.rlim_max);
        files.rlim_cur = files.rlim_max.min(65_536);
        libc::setrlimit(libc::RLIMIT_NOFILE, &files);
        given
    }
}
