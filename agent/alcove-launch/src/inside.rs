//! What a sandbox's root is furnished with: /proc, /dev, the machine's programs for image `host`.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::error::{AtStep, Result};
use crate::overlay::{self, read_only_clone};
use crate::spec::{IdsSpec, LaunchSpec, Network, RootSpec};
use crate::sys::{self, MountAttr};

/// With their numbers.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const DEV_SIZE: [(&str, &str); 3] = [("mode", "755"), ("size", "64k"), ("nr_inodes", "256")];
/// Where programs and their libraries live; links among them are in the skeleton.
const PROGRAM_DIRS: [&str; 8] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store"];
/// Any directory serves: /etc is always there and nothing below it is needed any more.
pub const EMPTY: &str = "/etc";
/// Of a file system without entries. There is one in a sandbox for all that has to be empty: for each file system that is mounted
/// anywhere the kernel keeps 16 bytes in every memory group of the machine, and does so from then on, so that with a thousand
/// sandboxes one more for each is 32 KB for each of them.
const EMPTY_OPTIONS: &str = "size=4k,nr_inodes=2,mode=555";
const EMPTY_FLAGS: libc::c_ulong = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
const READ_ONLY_PROC: [&str; 2] = ["sys", "sysrq-trigger"];
/// Bytes of a table of mounts that is read at one go.
const USUAL_MOUNTS: usize = 16 * 1024;
/// Terminals of one sandbox; the machine has about three thousand for all.
const TERMINALS: u32 = 64;
/// What programs need of /proc besides processes. Everything else is hidden, what a newer kernel or a module adds too: such
/// files tell of the machine, and reading some of them holds a lock of all of it, as `locks` and `fs/ext4/*/es_shrinker_info` do.
const SHOWN_PROC: [&str; 14] = [
    "cgroups",
    "cpuinfo",
    "devices",
    "filesystems",
    "loadavg",
    "meminfo",
    "stat",
    "sys",
    "sysrq-trigger",
    "sysvipc",
    "tty",
    "uptime",
    "version",
    "vmstat",
];

/// A detached /dev with device nodes of its own: watches and locks on the machine's reach beyond the sandbox. For a rooted
/// service, where the machine lets it make any.
pub fn own_devices(owner: u32) -> std::io::Result<OwnedFd> {
    let context = sys::fsopen("tmpfs")?;
    for (key, value) in DEV_SIZE {
        sys::fs_string(context.as_raw_fd(), key, value)?;
    }
    for key in ["uid", "gid"] {
        sys::fs_string(context.as_raw_fd(), key, &owner.to_string())?;
    }
    sys::fs_create(context.as_raw_fd())?;
    let dev = sys::fsmount(context.as_raw_fd(), sys::MOUNT_ATTR_NOSUID | sys::MOUNT_ATTR_NOEXEC)?;
    for (name, major, minor) in DEVICES {
        sys::make_device(dev.as_raw_fd(), name, 0o666, libc::makedev(major, minor))?;
        sys::chown_at(dev.as_raw_fd(), name, owner, owner)?;
    }
    // Somebody may refuse the use of devices who lets them be made.
    sys::open_path_at(dev.as_raw_fd(), "null", libc::O_RDWR, 0)?;
    Ok(dev)
}

/// Clones of the machine's mounts, taken while they can still be reached.
pub struct Carried {
    devices: Vec<(&'static str, OwnedFd)>,
    /// By path; what lies below another one comes after it.
    programs: Vec<(String, OwnedFd)>,
    /// The file system without entries, where one was made for those.
    empty: Option<OwnedFd>,
}

impl Carried {
    pub fn collect(root: &RootSpec, own_devices: bool) -> Result<Self> {
        let mut devices = Vec::new();
        for (name, _, _) in DEVICES.into_iter().filter(|_| !own_devices) {
            let path = format!("/dev/{name}");
            devices.push((name, sys::open_tree(libc::AT_FDCWD, &path, sys::OPEN_TREE_CLONE).at("dev", path)?));
        }
        let mut programs = Vec::new();
        let mut empty = None;
        if matches!(root, RootSpec::Host { .. }) {
            // Nothing below is needed any more, and an overlay without a writable layer wants a second one.
            sys::mount("empty", EMPTY, "tmpfs", EMPTY_FLAGS, EMPTY_OPTIONS).at("mount", EMPTY)?;
            empty = Some(sys::open_tree(libc::AT_FDCWD, EMPTY, sys::OPEN_TREE_CLONE).at("mount", EMPTY)?);
            for path in program_mounts()? {
                let mount = overlay::read_only_view(&path, EMPTY).or_else(|_| read_only_clone(&path, true))?;
                programs.push((path, mount));
            }
        }
        Ok(Self { devices, programs, empty })
    }
}

/// The directories of programs, and what is mounted below them.
fn program_mounts() -> Result<Vec<String>> {
    // Whatever somebody has called a mount anywhere on the machine; programs are in none whose name is no UTF-8.
    let mut table = Vec::with_capacity(USUAL_MOUNTS);
    let read = File::open("/proc/self/mountinfo").and_then(|mut file| file.read_to_end(&mut table));
    read.at("mount", "/proc/self/mountinfo")?;
    let table = String::from_utf8_lossy(&table);
    let places: Vec<&str> = table.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    let mut found = Vec::new();
    for name in PROGRAM_DIRS {
        let path = format!("/{name}");
        if !std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            continue;
        }
        let mut below: Vec<String> = places
            .iter()
            .filter(|place| place.strip_prefix(&path).is_some_and(|rest| rest.starts_with('/')))
            // Names with blanks are written with escapes; programs have none.
            .filter(|place| !place.contains('\\') && overlay::exists(place))
            .map(|place| (*place).to_owned())
            .collect();
        below.sort();
        below.dedup();
        found.push(path);
        found.append(&mut below);
    }
    Ok(found)
}

/// What is put together before there is a root: /proc and /dev, each with what is mounted below it, and programs.
pub struct Home {
    proc: OwnedFd,
    dev: OwnedFd,
    programs: Vec<(String, OwnedFd)>,
}

/// Puts /proc and /dev together over the machine's, in this process's own copy of its mounts. A new /proc may only be mounted while an old one
/// is in sight.
/// @param proc and `dev`: detached mounts, when the parent made them.
pub fn assemble(spec: &LaunchSpec, carried: Carried, proc: Option<OwnedFd>, dev: Option<OwnedFd>) -> Result<Home> {
    let quiet = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    match proc {
        Some(proc) => sys::move_mount(proc.as_raw_fd(), libc::AT_FDCWD, "/proc").at("proc", "/proc")?,
        None => sys::mount("proc", "/proc", "proc", quiet, "").at("proc", "/proc")?,
    }
    furnish_dev(spec, dev, &carried.devices)?;
    forbid_namespaces()?;
    hide_proc(carried.empty)?;
    crate::figures::show(&spec.limits)?;
    let made = |path| sys::open_path_at(libc::AT_FDCWD, path, libc::O_PATH | libc::O_DIRECTORY, 0).at("root", path);
    Ok(Home { proc: made("/proc")?, dev: made("/dev")?, programs: carried.programs })
}

/// Runs right after `pivot_root`: paths lead into the sandbox, and the old root still lies over its root directory.
pub fn furnish(spec: &LaunchSpec, home: Home) -> Result<()> {
    if matches!(spec.root, RootSpec::Image { .. }) {
        for (path, mode) in
            [("/proc", 0o555), ("/dev", 0o755), ("/sys", 0o555), ("/run", 0o755), ("/tmp", 0o1777), ("/etc", 0o755)]
        {
            ensure_dir(path, mode)?;
        }
    }
    sys::move_mount(home.proc.as_raw_fd(), libc::AT_FDCWD, "/proc").at("proc", "/proc")?;
    sys::move_mount(home.dev.as_raw_fd(), libc::AT_FDCWD, "/dev").at("dev", "/dev")?;
    for (path, mount) in &home.programs {
        sys::move_mount(mount.as_raw_fd(), libc::AT_FDCWD, path).at("mount", path)?;
    }
    // SAFETY: a constant string. `.` is the old root, which pivot_root put over the new one.
    sys::check(unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) } as libc::c_long).at("root", "old root")?;
    std::env::set_current_dir("/").at("root", "/")?;
    if spec.network == Network::Outbound {
        name_resolver()?;
    }
    Ok(())
}

/// The step of what is written among the files of an image.
pub const FILES: &str = "files";

/// An image may have anything at these names, links too.
fn ensure_dir(path: &str, mode: u32) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => std::fs::remove_file(path).at(FILES, path)?,
        Err(_) => {}
    }
    std::fs::create_dir(path).at(FILES, path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).at(FILES, path)
}

fn furnish_dev(spec: &LaunchSpec, dev: Option<OwnedFd>, devices: &[(&str, OwnedFd)]) -> Result<()> {
    const STEP: &str = "dev";
    match dev {
        Some(dev) => sys::move_mount(dev.as_raw_fd(), libc::AT_FDCWD, "/dev").at(STEP, "/dev")?,
        None => {
            let options = DEV_SIZE.map(|(key, value)| format!("{key}={value}")).join(",");
            sys::mount("tmpfs", "/dev", "tmpfs", libc::MS_NOSUID | libc::MS_NOEXEC, &options).at(STEP, "/dev")?;
        }
    }
    for (name, device) in devices {
        let path = format!("/dev/{name}");
        File::create(&path).at(STEP, &path)?;
        sys::move_mount(device.as_raw_fd(), libc::AT_FDCWD, &path).at(STEP, &path)?;
    }
    for (target, name) in [
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
        ("pts/ptmx", "ptmx"),
    ] {
        symlink(target, format!("/dev/{name}")).at(STEP, name)?;
    }
    let quiet = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    for path in ["/dev/pts", "/dev/shm"] {
        std::fs::create_dir(path).at(STEP, path)?;
    }
    // Group 5 is `tty` everywhere; with a single id it does not exist.
    let group = if matches!(spec.ids, IdsSpec::Single) { "" } else { ",gid=5" };
    let options = format!("newinstance,ptmxmode=0666,mode=620,max={TERMINALS}{group}");
    sys::mount("devpts", "/dev/pts", "devpts", libc::MS_NOSUID | libc::MS_NOEXEC, &options).at(STEP, "/dev/pts")?;
    let options = format!("mode=1777,size={}m", spec.limits.memory_mb.max(1));
    sys::mount("shm", "/dev/shm", "tmpfs", quiet, &options).at(STEP, "/dev/shm")
}

/// Commands hold no capability, and a sandbox has its ports to itself.
fn open_low_ports() -> Result<()> {
    let path = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    if overlay::exists(path) { std::fs::write(path, "0").at("network", path) } else { Ok(()) }
}

/// Smallest, first and largest size of a connection's queues.
fn bound_queues() -> Result<()> {
    for name in ["tcp_rmem", "tcp_wmem"] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        if overlay::exists(&path) {
            std::fs::write(&path, "4096 16384 65536").at("network", path)?;
        }
    }
    Ok(())
}

/// The system call filter refuses namespaces first.
fn forbid_namespaces() -> Result<()> {
    let path = "/proc/sys/user/max_user_namespaces";
    if overlay::exists(path) { std::fs::write(path, "0").at("proc", path) } else { Ok(()) }
}

/// Sets up the network that this process is in, where that is the sandbox's own: through the kernel's settings, among others.
pub fn settle_network(spec: &LaunchSpec) -> Result<()> {
    if spec.network != Network::Host {
        sys::loopback_up().at("network", "loopback")?;
        open_low_ports()?;
        // With v1 the bytes that wait in a socket are not among the sandbox's memory.
        if spec.cgroup.as_ref().is_none_or(|group| group.version == 1) {
            bound_queues()?;
        }
    }
    Ok(())
}

/// From here on nobody in the sandbox changes them.
pub fn close_kernel_settings() -> Result<()> {
    for name in READ_ONLY_PROC {
        let path = format!("/proc/{name}");
        if overlay::exists(&path) {
            let clone = read_only_clone(&path, false)?;
            sys::move_mount(clone.as_raw_fd(), libc::AT_FDCWD, &path).at("proc", &path)?;
        }
    }
    Ok(())
}

fn hide_proc(mut empty: Option<OwnedFd>) -> Result<()> {
    const STEP: &str = "proc";
    // The first is made from the null device; the others are clones of it, read-only as it is, by one call each: there are forty.
    let mut source: Option<String> = None;
    let hidden = hidden_proc()?;
    let mut dirs = hidden.iter().filter(|(_, is_dir)| *is_dir).count();
    for (path, is_dir) in hidden {
        if is_dir {
            match empty {
                Some(mount) => sys::move_mount(mount.as_raw_fd(), libc::AT_FDCWD, &path).at(STEP, &path)?,
                None => sys::mount("empty", &path, "tmpfs", EMPTY_FLAGS, EMPTY_OPTIONS).at(STEP, &path)?,
            }
            dirs -= 1;
            // For the next one: to close one that nobody attached waits for every processor.
            empty = match dirs {
                0 => None,
                _ => Some(sys::open_tree(libc::AT_FDCWD, &path, sys::OPEN_TREE_CLONE).at(STEP, &path)?),
            };
        } else if let Some(source) = &source {
            sys::mount(source, &path, "", libc::MS_BIND, "").at(STEP, &path)?;
        } else {
            let null = sys::open_tree(libc::AT_FDCWD, "/dev/null", sys::OPEN_TREE_CLONE).at(STEP, "/dev/null")?;
            let attributes = MountAttr { set: sys::MOUNT_ATTR_RDONLY, ..MountAttr::default() };
            sys::mount_setattr(null.as_raw_fd(), 0, &attributes).at(STEP, &path)?;
            sys::move_mount(null.as_raw_fd(), libc::AT_FDCWD, &path).at(STEP, &path)?;
            source = Some(path);
        }
    }
    Ok(())
}

/// What is no process and not shown, and whether it is a directory. Links, to a process's own or into /sys, hold nothing.
fn hidden_proc() -> Result<Vec<(String, bool)>> {
    const STEP: &str = "proc";
    let mut hidden = Vec::new();
    for entry in std::fs::read_dir("/proc").at(STEP, "/proc")? {
        let entry = entry.at(STEP, "/proc")?;
        let kind = entry.file_type().at(STEP, "/proc")?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_process = name.bytes().all(|byte| byte.is_ascii_digit());
        if !is_process && !kind.is_symlink() && !SHOWN_PROC.contains(&name.as_str()) {
            hidden.push((format!("/proc/{name}"), kind.is_dir()));
        }
    }
    Ok(hidden)
}

/// In place of whatever an image has there, a link into nowhere often.
fn name_resolver() -> Result<()> {
    let path = "/etc/resolv.conf";
    let contents = format!("nameserver {}\n", crate::network::DNS);
    let written = match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => std::fs::write(path, contents),
    };
    match written {
        // A root file system that belongs to somebody else cannot be added to; nothing depends on this one.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        other => other.at(FILES, path),
    }
}

pub fn set_hostname(name: &str) -> Result<()> {
    sys::set_hostname(name).at("inside", "hostname")
}

/// Starts the agent in place of this process.
pub fn exec(agent: i32, arguments: &[String]) -> Result<std::convert::Infallible> {
    let arguments: Vec<CString> = arguments.iter().map(|argument| sys::c_text(argument)).collect();
    let mut argv: Vec<*const libc::c_char> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    argv.push(std::ptr::null());
    let path = c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let environment = [path.as_ptr(), std::ptr::null()];
    // SAFETY: both lists end with a null pointer and everything they point to is alive.
    let result = sys::check(unsafe {
        libc::syscall(libc::SYS_execveat, agent, c"".as_ptr(), argv.as_ptr(), environment.as_ptr(), libc::AT_EMPTY_PATH)
    });
    match result {
        Err(error) => Err(crate::error::StepError::io("exec", "alcove-agent", error)),
        Ok(_) => Err(crate::error::StepError::new("exec", "execveat returned")),
    }
}
