//! Run inside a sandbox by the attack tests: tries what a sandbox must not be able to do, each in a process of its own,
//! and prints one line for each attempt: its name, then `refused <errno>`, `allowed` or `killed <signal>`.

use std::ffi::CString;
use std::io::Write;

type Attempt = (&'static str, fn() -> libc::c_long);

/// Argument that makes a call fail for another reason (EFAULT, EBADF, EINVAL) once it got past the filter.
const NOWHERE: usize = 0;

fn call(number: libc::c_long, arguments: [usize; 5]) -> libc::c_long {
    let [a, b, c, d, e] = arguments;
    // SAFETY: every pointer passed is null or alive; the kernel checks the rest.
    unsafe { libc::syscall(number, a, b, c, d, e) }
}

fn simple(number: libc::c_long) -> libc::c_long {
    call(number, [NOWHERE; 5])
}

fn in_new_namespaces(flags: libc::c_int) -> libc::c_long {
    // SAFETY: without CLONE_VM the child is a copy; it ends at once.
    unsafe {
        let pid = libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0);
        if pid == 0 {
            libc::_exit(0);
        }
        pid
    }
}

fn open(path: &str, flags: libc::c_int) -> libc::c_long {
    let path = CString::new(path).expect("no NUL");
    // SAFETY: the path is alive.
    unsafe { libc::open(path.as_ptr(), flags) as libc::c_long }
}

fn socket(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> libc::c_long {
    // SAFETY: plain numbers.
    unsafe { libc::socket(family, kind, protocol) as libc::c_long }
}

fn make_device() -> libc::c_long {
    let path = c"/tmp/attack-device";
    // SAFETY: the path is alive. 1:1 is /dev/mem.
    unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 1)) as libc::c_long }
}

/// Calls through the 32-bit table: `getpid` there is number 20.
#[cfg(target_arch = "x86_64")]
fn int80() -> libc::c_long {
    let result: i64;
    // SAFETY: a call without arguments; rbx is not touched.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") 20i64 => result, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    from_raw(result as i32 as i64)
}

#[cfg(target_arch = "x86_64")]
fn x32() -> libc::c_long {
    simple(libc::SYS_getpid | 0x4000_0000)
}

#[cfg(target_arch = "x86_64")]
fn from_raw(result: i64) -> libc::c_long {
    if (-4095..0).contains(&result) {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = -result as i32 };
        return -1;
    }
    result
}

fn kill_first() -> libc::c_long {
    // SAFETY: plain numbers. A signal PID 1 does not handle is dropped silently; the test looks whether it lives.
    unsafe { libc::kill(1, libc::SIGKILL) as libc::c_long }
}

fn ptrace_first() -> libc::c_long {
    // SAFETY: plain numbers.
    unsafe { libc::ptrace(libc::PTRACE_SEIZE, 1, 0, 0) as libc::c_long }
}

fn inject_terminal() -> libc::c_long {
    let byte = b'x';
    // SAFETY: the byte is alive.
    unsafe { libc::ioctl(0, libc::TIOCSTI, &raw const byte) as libc::c_long }
}

fn gain_root() -> libc::c_long {
    // Only from another user does this say anything; root stays root and stays without capabilities.
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_capset, &[0x2008_0522u32, 0] as *const u32, &[!0u32; 6] as *const u32) }
}

fn raw_memory() -> libc::c_long {
    open("/dev/mem", libc::O_RDWR)
}

const ATTEMPTS: &[Attempt] = &[
    ("unshare-user", || call(libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0])),
    ("unshare-mount", || call(libc::SYS_unshare, [libc::CLONE_NEWNS as usize, 0, 0, 0, 0])),
    ("clone-user", || in_new_namespaces(libc::CLONE_NEWUSER)),
    ("clone-net", || in_new_namespaces(libc::CLONE_NEWNET)),
    ("clone3", || simple(libc::SYS_clone3)),
    ("setns", || {
        let fd = open("/proc/1/ns/mnt", libc::O_RDONLY);
        call(libc::SYS_setns, [if fd < 0 { 0 } else { fd as usize }, 0, 0, 0, 0])
    }),
    ("mount", || simple(libc::SYS_mount)),
    ("umount", || call(libc::SYS_umount2, [c"/proc/sys".as_ptr() as usize, 2, 0, 0, 0])),
    ("pivot-root", || simple(libc::SYS_pivot_root)),
    ("chroot", || call(libc::SYS_chroot, [c"/".as_ptr() as usize, 0, 0, 0, 0])),
    ("open-tree", || call(libc::SYS_open_tree, [libc::AT_FDCWD as usize, c"/".as_ptr() as usize, 1, 0, 0])),
    ("fsopen", || call(libc::SYS_fsopen, [c"tmpfs".as_ptr() as usize, 0, 0, 0, 0])),
    ("move-mount", || simple(libc::SYS_move_mount)),
    ("mount-setattr", || simple(libc::SYS_mount_setattr)),
    ("bpf", || simple(libc::SYS_bpf)),
    ("io-uring", || call(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0])),
    ("keyctl", || call(libc::SYS_keyctl, [0, -3isize as usize, 0, 0, 0])),
    ("add-key", || simple(libc::SYS_add_key)),
    ("request-key", || simple(libc::SYS_request_key)),
    ("perf", || simple(libc::SYS_perf_event_open)),
    ("userfaultfd", || call(libc::SYS_userfaultfd, [1, 0, 0, 0, 0])),
    ("init-module", || simple(libc::SYS_init_module)),
    ("finit-module", || simple(libc::SYS_finit_module)),
    ("kexec", || simple(libc::SYS_kexec_load)),
    ("reboot", || simple(libc::SYS_reboot)),
    ("swapon", || simple(libc::SYS_swapon)),
    ("settime", || simple(libc::SYS_clock_settime)),
    ("syslog", || call(libc::SYS_syslog, [3, 0, 0, 0, 0])),
    ("handle", || simple(libc::SYS_open_by_handle_at)),
    ("process-vm", || call(libc::SYS_process_vm_readv, [1, 0, 0, 0, 0])),
    ("pidfd-getfd", || simple(libc::SYS_pidfd_getfd)),
    ("quotactl", || simple(libc::SYS_quotactl)),
    ("acct", || simple(libc::SYS_acct)),
    ("fanotify", || simple(libc::SYS_fanotify_init)),
    ("personality", || call(libc::SYS_personality, [0x0100_0000, 0, 0, 0, 0])),
    ("tiocsti", inject_terminal),
    ("line-discipline", || {
        let discipline = 2i32;
        // SAFETY: the number is alive.
        unsafe { libc::ioctl(0, libc::TIOCSETD, &raw const discipline) as libc::c_long }
    }),
    ("aio", || call(libc::SYS_io_setup, [1, NOWHERE, 0, 0, 0])),
    ("socket-mptcp", || socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP)),
    ("socket-udplite", || socket(libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE)),
    ("socket-seqpacket", || socket(libc::AF_INET, libc::SOCK_SEQPACKET, 0)),
    ("socket-vsock", || socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    ("socket-alg", || socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
    ("socket-packet", || socket(libc::AF_PACKET, libc::SOCK_RAW, 0)),
    ("socket-raw", || socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)),
    ("socket-audit", || socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT)),
    ("ptrace-agent", ptrace_first),
    ("agent-memory", || open("/proc/1/mem", libc::O_RDWR)),
    ("agent-environment", || {
        // Opening is allowed to its own user; reading asks for the rights of a tracer.
        let fd = open("/proc/1/environ", libc::O_RDONLY);
        let mut byte = 0u8;
        // SAFETY: one byte of room.
        if fd < 0 { fd } else { unsafe { libc::read(fd as i32, (&raw mut byte).cast(), 1) as libc::c_long } }
    }),
    ("agent-root", || open("/proc/1/root/etc", libc::O_RDONLY)),
    ("agent-descriptors", || open("/proc/1/fd/1", libc::O_WRONLY)),
    ("agent-program", || open("/proc/1/exe", libc::O_RDWR)),
    ("device", make_device),
    ("raw-memory", raw_memory),
    ("kernel-memory", || open("/proc/kcore", libc::O_RDWR)),
    ("sysctl", || open("/proc/sys/kernel/core_pattern", libc::O_WRONLY)),
    ("sysrq", || open("/proc/sysrq-trigger", libc::O_WRONLY)),
    ("capabilities", gain_root),
    #[cfg(target_arch = "x86_64")]
    ("int80", int80),
    #[cfg(target_arch = "x86_64")]
    ("x32", x32),
    #[cfg(target_arch = "x86_64")]
    ("iopl", || call(libc::SYS_iopl, [3, 0, 0, 0, 0])),
    // Last: it has to be survived, not refused.
    ("kill-agent", kill_first),
];

/// Forks for ever; each process takes `kilobytes` of memory of its own and spins. The kernel takes these first when
/// memory is short, so that whoever started the bomb sees its own end.
fn fork_bomb(kilobytes: usize) -> ! {
    std::fs::write("/proc/self/oom_score_adj", "1000").expect("a worse score is always allowed");
    loop {
        // SAFETY: single-threaded; parent and child go on alike.
        if unsafe { libc::fork() } == 0 {
            std::hint::black_box(vec![1u8; kilobytes << 10].leak());
        }
    }
}

/// How often `make` succeeds; what it makes stays until this process ends.
fn count(limit: usize, make: impl Fn() -> libc::c_long) -> usize {
    (0..limit).take_while(|_| make() >= 0).count()
}

/// Opens connections to itself and fills the queues of both ends. @returns how many bytes wait in them.
fn fill_streams(connections: usize) -> usize {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listener");
    let address = listener.local_addr().expect("address");
    let mut queued = 0;
    for _ in 0..connections {
        let Ok(near) = std::net::TcpStream::connect(address) else { break };
        let Ok((far, _)) = listener.accept() else { break };
        for mut end in [near, far] {
            end.set_nonblocking(true).expect("mode");
            while let Ok(count) = end.write(&[1; 65_536]) {
                queued += count;
            }
            std::mem::forget(end);
        }
    }
    queued
}

/// The same with datagrams, which are lost where no room is left: what is received in the end had waited.
fn fill_datagrams(sockets: usize) -> usize {
    let any = || std::net::UdpSocket::bind("127.0.0.1:0");
    let mut ends = Vec::new();
    for _ in 0..sockets {
        let (Ok(near), Ok(far)) = (any(), any()) else { break };
        let address = far.local_addr().expect("address");
        for _ in 0..400 {
            let _ = near.send_to(&[1; 1_024], address);
        }
        far.set_nonblocking(true).expect("mode");
        ends.push(far);
    }
    let mut buffer = [0; 2_048];
    ends.iter().map(|end| std::iter::from_fn(|| end.recv(&mut buffer).ok()).sum::<usize>()).sum()
}

/// Takes what it can get of something, and says how much that was.
fn take(what: &str, number: usize) -> usize {
    match what {
        "fork-bomb" => fork_bomb(number),
        "terminals" => count(number, || open("/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY)),
        "inotify" => count(number, || simple(libc::SYS_inotify_init1)),
        "streams" => fill_streams(number),
        "datagrams" => fill_datagrams(number),
        other => panic!("{other} is unknown"),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [what, number, hold] = &arguments[..] {
        println!("{}", take(what, number.parse().expect("a number")));
        std::thread::sleep(std::time::Duration::from_secs(hold.parse().expect("seconds")));
        return;
    }
    for (name, attempt) in ATTEMPTS {
        // SAFETY: single-threaded; the child makes one call and ends.
        let status = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                let result = attempt();
                libc::_exit(if result >= 0 { 0 } else { *libc::__errno_location() });
            }
            let mut status = 0;
            libc::waitpid(pid, &raw mut status, 0);
            status
        };
        let outcome = if libc::WIFSIGNALED(status) {
            format!("killed {}", libc::WTERMSIG(status))
        } else if libc::WEXITSTATUS(status) == 0 {
            "allowed".to_owned()
        } else {
            format!("refused {}", libc::WEXITSTATUS(status))
        };
        println!("{name} {outcome}");
    }
}
