//! Run inside a sandbox by the attack tests: tries what a sandbox must not be able to do, each in a process of its own,
//! and prints one line for each attempt: its name, then `refused <errno>`, `allowed` or `killed <signal>`.

use std::ffi::CString;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

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

/// Attaches to a process. Gives 0, or the error's number.
fn trace(pid: usize) -> usize {
    // SAFETY: plain numbers.
    if unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid as libc::pid_t, 0, 0) } >= 0 {
        return 0;
    }
    std::io::Error::last_os_error().raw_os_error().map_or(usize::MAX, |errno| errno as usize)
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

/// IPV6_2292PKTOPTIONS, which the library does not name.
const PACKET_OPTIONS: libc::c_int = 6;
/// Of what is sent, with what was sent.
const SOFTWARE_TIMESTAMPS: u32 = 1 << 1 | 1 << 4 | 1 << 7;
const RECEIVE_QUEUE: u32 = 1 << 23;

/// 225.0.0.1, at any address, on the first interface.
const LOOPBACK_GROUP: [u8; 12] = [225, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0];

/// A program for the kernel's packet filter, with what it points to.
struct SocketFilter(Vec<libc::sock_filter>);

impl SocketFilter {
    /// Of divisions, which compile to the most.
    fn compiled(steps: usize) -> Self {
        let mut program = vec![libc::sock_filter { code: 0x34, jt: 0, jf: 0, k: 7 }; steps - 1];
        program.push(libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 });
        Self(program)
    }

    fn program(&self) -> Box<libc::sock_fprog> {
        Box::new(libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_ptr().cast_mut() })
    }
}

fn set_option<T: ?Sized>(socket: libc::c_long, level: libc::c_int, name: libc::c_int, value: &T) -> libc::c_long {
    let size = size_of_val(value) as libc::socklen_t;
    // SAFETY: the value is alive and its size given.
    unsafe { libc::setsockopt(socket as i32, level, name, (&raw const *value).cast(), size) as libc::c_long }
}

fn option<T: ?Sized>(family: libc::c_int, level: libc::c_int, name: libc::c_int, value: &T) -> libc::c_long {
    let kind = if level == libc::IPPROTO_TCP { libc::SOCK_STREAM } else { libc::SOCK_DGRAM };
    set_option(socket(family, kind, 0), level, name, value)
}

fn raw_memory() -> libc::c_long {
    open("/dev/mem", libc::O_RDWR)
}

const PAGE: usize = 4_096;
const HUGE_PAGE: usize = 2 << 20;

/// A page of its own, that is there.
fn own_page() -> usize {
    map(PAGE, 0)
}

fn map(size: usize, flags: libc::c_int) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: new memory; where there is some, it is written to within its size.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if memory == libc::MAP_FAILED {
            return usize::MAX;
        }
        *memory.cast::<usize>() = memory as usize;
        memory as usize
    }
}

fn byte_in_pipe() -> (usize, usize) {
    let mut ends = [0i32; 2];
    // SAFETY: room for both ends, and one byte.
    unsafe {
        libc::pipe(ends.as_mut_ptr());
        libc::write(ends[1], b"x".as_ptr().cast(), 1);
    }
    (ends[0] as usize, ends[1] as usize)
}

fn move_page() -> libc::c_long {
    let (page, node, mut status) = (own_page(), 0i32, 0i32);
    // SAFETY: all of it is alive.
    unsafe { libc::syscall(libc::SYS_move_pages, 0, 1, page, &raw const node, &raw mut status, 2) }
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
    ("splice", || {
        // SAFETY: plain numbers.
        unsafe { libc::syscall(libc::SYS_splice, byte_in_pipe().0, 0, byte_in_pipe().1, 0, 1, 0) }
    }),
    ("sendfile-anything", || {
        let program = open("/proc/self/exe", libc::O_RDONLY);
        call(libc::SYS_sendfile, [byte_in_pipe().1, program as usize, NOWHERE, 1, 0])
    }),
    ("secret-memory", || simple(libc::SYS_memfd_secret)),
    ("move-pages", move_page),
    ("migrate-pages", || {
        let nodes = 1usize;
        call(libc::SYS_migrate_pages, [0, 64, &raw const nodes as usize, &raw const nodes as usize, 0])
    }),
    ("bind-memory", || {
        let nodes = 1usize;
        // SAFETY: the page and the nodes are alive.
        unsafe { libc::syscall(libc::SYS_mbind, own_page(), PAGE, 2, &raw const nodes, 8, 0) }
    }),
    ("collapse", || call(libc::SYS_madvise, [map(2 * HUGE_PAGE, 0).next_multiple_of(HUGE_PAGE), HUGE_PAGE, 25, 0, 0])),
    ("mergeable", || call(libc::SYS_madvise, [own_page(), PAGE, 12, 0, 0])),
    ("merge-all", || call(libc::SYS_prctl, [67, 1, 0, 0, 0])),
    ("huge-mapping", || map(HUGE_PAGE, libc::MAP_HUGETLB) as libc::c_long),
    ("huge-file", || call(libc::SYS_memfd_create, [c"huge".as_ptr() as usize, libc::MFD_HUGETLB as usize, 0, 0, 0])),
    ("huge-segment", || {
        call(libc::SYS_shmget, [libc::IPC_PRIVATE as usize, HUGE_PAGE, libc::SHM_HUGETLB as usize | 0o1600, 0, 0])
    }),
    ("core-scheduling", || call(libc::SYS_prctl, [62, 1, 0, 0, 0])),
    ("aio", || call(libc::SYS_io_setup, [1, NOWHERE, 0, 0, 0])),
    ("socket-mptcp", || socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP)),
    ("socket-udplite", || socket(libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE)),
    ("socket-seqpacket", || socket(libc::AF_INET, libc::SOCK_SEQPACKET, 0)),
    ("socket-vsock", || socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    ("socket-alg", || socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
    ("socket-packet", || socket(libc::AF_PACKET, libc::SOCK_RAW, 0)),
    ("socket-raw", || socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)),
    ("socket-filter", || {
        option(libc::AF_UNIX, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &*SocketFilter::compiled(8).program())
    }),
    ("reuseport-filter", || {
        option(libc::AF_INET, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &*SocketFilter::compiled(8).program())
    }),
    ("timestamps", || option(libc::AF_INET, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &SOFTWARE_TIMESTAMPS)),
    ("received-timestamps", || option(libc::AF_INET, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1u32)),
    ("gathered-datagrams", || option(libc::AF_INET, libc::SOL_UDP, libc::UDP_GRO, &1u32)),
    ("zerocopy", || option(libc::AF_INET, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &1u32)),
    ("packet-options", || option(libc::AF_INET6, libc::IPPROTO_IPV6, PACKET_OPTIONS, &[0u8; 32])),
    ("multicast", || option(libc::AF_INET, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &LOOPBACK_GROUP)),
    ("multicast-leave", || option(libc::AF_INET, libc::IPPROTO_IP, libc::IP_DROP_MEMBERSHIP, &LOOPBACK_GROUP)),
    ("multicast-v6", || option(libc::AF_INET6, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &[0u8; 20])),
    ("upper-protocol", || option(libc::AF_INET, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls")),
    ("seccomp-filter", || {
        let filter = SocketFilter::compiled(8);
        call(libc::SYS_seccomp, [1, 0, &raw const *filter.program() as usize, 0, 0])
    }),
    ("prctl-filter", || {
        let filter = SocketFilter::compiled(8);
        call(libc::SYS_prctl, [libc::PR_SET_SECCOMP as usize, 2, &raw const *filter.program() as usize, 0, 0])
    }),
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
fn count(limit: usize, mut make: impl FnMut() -> libc::c_long) -> usize {
    (0..limit).take_while(|_| make() >= 0).count()
}

/// Fills the queues of pairs of sockets that reach nobody else, whose memory is counted. @returns how many bytes wait.
fn fill_pairs(pairs: usize) -> usize {
    let mut queued = 0;
    for _ in 0..pairs {
        let Ok((near, far)) = std::os::unix::net::UnixStream::pair() else { break };
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

fn send(socket: libc::c_long, bytes: &[u8]) -> libc::c_long {
    // SAFETY: the bytes are alive and their number given.
    unsafe { libc::send(socket as i32, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) as libc::c_long }
}

/// Begins a datagram in each socket, as long as one can be, and finishes none. @returns how many kilobytes wait in them.
fn begin_datagrams(sockets: usize) -> usize {
    let closed: std::net::SocketAddr = "127.0.0.1:9".parse().expect("an address");
    let mut held = 0;
    for _ in 0..sockets {
        let Ok(socket) = std::net::UdpSocket::bind("127.0.0.1:0") else { break };
        socket.connect(closed).expect("connected");
        let socket = std::os::fd::IntoRawFd::into_raw_fd(socket);
        let flags = libc::MSG_MORE | libc::MSG_DONTWAIT;
        // SAFETY: the bytes are alive and their number given.
        held += count(60, || unsafe { libc::send(socket, [1u8; 1_024].as_ptr().cast(), 1_024, flags) as libc::c_long });
    }
    held
}

/// Pieces of one byte in datagrams that are never finished, each in memory of its own: what is sent between two of them uses
/// up the 32 KB that they would share. @returns how many such pieces are held.
fn hold_fragments(pieces: usize) -> usize {
    const ROOM: usize = 1_232;
    let closed: std::net::SocketAddr = "127.0.0.1:9".parse().expect("an address");
    let closed_v6: std::net::SocketAddr = "[::1]:9".parse().expect("an address");
    let between = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let mut held = 0;
    while held < pieces {
        let Ok(socket) = std::net::UdpSocket::bind("[::1]:0") else { break };
        socket.connect(closed_v6).expect("connected");
        let socket = libc::c_long::from(std::os::fd::IntoRawFd::into_raw_fd(socket));
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU, &1_280u32);
        // The first piece of a buffer is part of it, and the last one fills it where the option was taken.
        for index in 0..50 * 17 {
            let _ = between.send_to(&[1; 60_000], closed);
            let size = if index % 17 == 16 { ROOM - 16 - if index / 17 == 1 { 8 } else { 0 } } else { 1 };
            let flags = libc::MSG_MORE | libc::MSG_DONTWAIT;
            // SAFETY: the bytes are alive and their number given.
            if unsafe { libc::send(socket as i32, [1u8; ROOM].as_ptr().cast(), size, flags) } < 0 {
                break;
            }
            held += usize::from(index % 17 > 0);
        }
    }
    held
}

/// The same in connections, whose bytes nobody takes: each is sent by itself.
fn hold_stream_fragments(pieces: usize) -> usize {
    let closed: std::net::SocketAddr = "127.0.0.1:9".parse().expect("an address");
    let between = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listener");
    let address = listener.local_addr().expect("address");
    let mut held = 0;
    while held < pieces {
        let Ok(mut near) = std::net::TcpStream::connect(address) else { break };
        let Ok((far, _)) = listener.accept() else { break };
        near.set_nodelay(true).expect("mode");
        near.set_nonblocking(true).expect("mode");
        while held < pieces && near.write(&[1]).is_ok() {
            let _ = between.send_to(&[1; 60_000], closed);
            held += 1;
        }
        std::mem::forget((near, far));
    }
    held
}

/// Asks for the table of interfaces again and again, and never takes an answer.
fn ask_for_routes(sockets: usize) -> usize {
    const GET_LINKS: [u8; 32] = {
        let mut request = [0; 32];
        (request[0], request[4], request[6], request[7], request[8]) = (32, 18, 1, 3, 1);
        request
    };
    let ask = || {
        let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE);
        set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &(1u32 << 30));
        count(2_000, || send(socket, &GET_LINKS))
    };
    (0..sockets).map(|_| ask()).sum()
}

/// Has everything that is sent come back to queues that nobody reads.
fn queue_errors(sockets: usize) -> usize {
    let closed: std::net::SocketAddr = "127.0.0.1:9".parse().expect("an address");
    for _ in 0..sockets {
        let Ok(socket) = std::net::UdpSocket::bind("127.0.0.1:0") else { break };
        socket.connect(closed).expect("connected");
        let socket = libc::c_long::from(std::os::fd::IntoRawFd::into_raw_fd(socket));
        set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_QUEUE);
        set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &SOFTWARE_TIMESTAMPS);
        set_option(socket, libc::IPPROTO_IP, libc::IP_RECVERR, &1u32);
        for _ in 0..2_000 {
            send(socket, &[1; 1_400]);
        }
    }
    sockets
}

/// Connections to itself, each with the two ends of a pipe of sockets beside it.
fn connect(connections: usize) -> usize {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listener");
    let address = listener.local_addr().expect("address");
    let make =
        || Ok((std::net::TcpStream::connect(address)?, listener.accept()?, std::os::unix::net::UnixStream::pair()?));
    (0..connections).map_while(|_| make().map_err(|_: std::io::Error| ()).ok().map(std::mem::forget)).count()
}

/// Connections that are closed at one end and that nobody accepts at the other, with the wish to wait for two minutes.
fn orphan(connections: usize) -> usize {
    let mut listeners = Vec::new();
    let made = count(connections, || {
        // Each takes 128 that nobody accepts.
        if listeners.last().is_none_or(|(_, taken)| *taken == 100) {
            listeners.push((std::net::TcpListener::bind("127.0.0.1:0").expect("listener"), 0));
        }
        let (listener, taken) = listeners.last_mut().expect("just made");
        *taken += 1;
        let near = std::net::TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
        set_option(libc::c_long::from(near.as_raw_fd()), libc::IPPROTO_TCP, libc::TCP_LINGER2, &120i32)
    });
    std::mem::forget(listeners);
    made
}

/// Opens one socket after another and closes it. @returns how many were to be had.
fn open_in_turn(sockets: usize) -> usize {
    count(sockets, || {
        let fd = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE);
        // SAFETY: a descriptor of its own, or none.
        unsafe { libc::close(fd as i32) };
        fd
    })
}

fn keep_packet_options(sockets: usize) -> usize {
    // One ancillary message of a level that nobody looks at.
    let mut options = [0u8; 100_000];
    options[..8].copy_from_slice(&100_000u64.to_ne_bytes());
    options[8] = 77;
    count(sockets, || option(libc::AF_INET6, libc::IPPROTO_IPV6, PACKET_OPTIONS, &options))
}

fn filter_sockets(sockets: usize) -> usize {
    let filter = SocketFilter::compiled(4_096);
    count(sockets, || option(libc::AF_UNIX, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &*filter.program()))
}

/// Connections that nobody accepts and whose client is gone.
fn leave_unaccepted(connections: usize) -> usize {
    let mut listeners = Vec::new();
    let mut taken = 0;
    let made = count(connections, || {
        if taken % 4_000 == 0 {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listener");
            // SAFETY: a descriptor of its own.
            unsafe { libc::listen(listener.as_raw_fd(), 4_096) };
            listeners.push(listener);
        }
        taken += 1;
        let address = listeners.last().expect("just made").local_addr().expect("address");
        std::net::TcpStream::connect(address).map_or(-1, |_| 0)
    });
    std::mem::forget(listeners);
    made
}

/// Locks bytes of files that have no more than 1,000 locks each: the kernel looks through those of the file. @returns how many.
fn lock_bytes(open: fn() -> libc::c_long, command: libc::c_int, locks: usize, leave: fn(libc::c_long)) -> usize {
    let (mut file, mut taken) = (-1, 0);
    count(locks, || {
        if taken % 1_000 == 0 {
            leave(file);
            file = open();
        }
        // SAFETY: all zeroes is a lock of nothing; the fields that matter are set.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_whence, lock.l_start, lock.l_len) =
            (libc::F_WRLCK as _, libc::SEEK_SET as _, taken * 2, 1);
        taken += 1;
        // SAFETY: the lock is alive.
        unsafe { libc::fcntl(file as i32, command, &raw const lock) as libc::c_long }
    })
}

/// What is mapped needs no descriptor to keep its locks.
fn map_and_close(file: libc::c_long) {
    if file >= 0 {
        // SAFETY: memory of its own, which nobody reads; the descriptor is used no more.
        unsafe {
            libc::mmap(std::ptr::null_mut(), 4_096, libc::PROT_READ, libc::MAP_SHARED, file as i32, 0);
            libc::close(file as i32);
        }
    }
}

/// Without a name, so that it is in no file system of the sandbox's.
fn memory_file() -> libc::c_long {
    call(libc::SYS_memfd_create, [c"locked".as_ptr() as usize, 0, 0, 0, 0])
}

fn named_file() -> libc::c_long {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    open(&format!("/tmp/locked-{number}"), libc::O_RDWR | libc::O_CREAT)
}

/// Lists a directory of the image again and again, which has got as many long names as are wanted and one more each time.
/// @returns how many lists are kept.
fn keep_lists(lists: usize, names: usize, leave: fn(libc::c_long)) -> usize {
    let name = |index: usize| format!("/etc/{index:0>200}");
    std::fs::write(name(0), "").expect("a file");
    for index in 1..names {
        std::fs::hard_link(name(0), name(index)).expect("a name");
    }
    count(lists, || {
        std::fs::hard_link(name(0), name(names)).expect("a name");
        let fd = open("/etc", libc::O_RDONLY | libc::O_DIRECTORY);
        let mut room = [0u8; 1_024];
        call(libc::SYS_getdents64, [fd as usize, room.as_mut_ptr() as usize, room.len(), 0, 0]);
        std::fs::remove_file(name(names)).expect("removed");
        leave(fd);
        fd
    })
}

/// A call that waits has its file, whatever becomes of the descriptor.
fn close_while(fd: libc::c_long, wait: fn(libc::c_long)) {
    std::thread::spawn(move || wait(fd));
    std::thread::sleep(std::time::Duration::from_millis(50));
    call(libc::SYS_close, [fd as usize, 0, 0, 0, 0]);
}

/// For a lock that another one has.
fn wait_for_lock(directory: libc::c_long) {
    static OTHER: std::sync::OnceLock<()> = std::sync::OnceLock::new();
    OTHER.get_or_init(|| {
        call(libc::SYS_flock, [open("/etc", libc::O_RDONLY) as usize, libc::LOCK_EX as usize, 0, 0, 0]);
    });
    call(libc::SYS_flock, [directory as usize, libc::LOCK_EX as usize, 0, 0, 0]);
}

/// To a socket that has no room left.
fn wait_to_send(file: libc::c_long) {
    static FULL: std::sync::OnceLock<std::os::unix::net::UnixStream> = std::sync::OnceLock::new();
    let socket = FULL.get_or_init(|| {
        let (mut near, far) = std::os::unix::net::UnixStream::pair().expect("sockets");
        near.set_nonblocking(true).expect("mode");
        while near.write(&[1; 4_096]).is_ok() {}
        near.set_nonblocking(false).expect("mode");
        std::mem::forget(far);
        near
    });
    send_files(socket.as_raw_fd(), &[file as libc::c_int], 4_096);
}

/// As many files as one message takes.
const MOST_FILES: usize = 253;

#[repr(C)]
struct Rights(libc::cmsghdr, [libc::c_int; MOST_FILES]);

/// Waits where there is no room for them.
/// @param size of the bytes beside them, which take room of the socket.
fn send_files(socket: libc::c_int, files: &[libc::c_int], size: usize) {
    // SAFETY: all zeroes are an empty header.
    let mut rights: Rights = unsafe { std::mem::zeroed() };
    rights.1[..files.len()].copy_from_slice(files);
    rights.0.cmsg_len = (size_of::<libc::cmsghdr>() + size_of_val(files)) as _;
    (rights.0.cmsg_level, rights.0.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    let length = (rights.0.cmsg_len as usize).next_multiple_of(size_of::<usize>());
    let mut bytes = [1u8; 4_096];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: size };
    // SAFETY: as above.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    (message.msg_control, message.msg_controllen) = ((&raw mut rights).cast(), length as _);
    // SAFETY: all that it refers to is alive.
    unsafe { libc::sendmsg(socket, &raw const message, 0) };
}

/// @returns the files that come next, after whatever comes before them.
fn receive_files(socket: libc::c_int) -> Vec<libc::c_int> {
    loop {
        // SAFETY: all zeroes are an empty header.
        let mut rights: Rights = unsafe { std::mem::zeroed() };
        let mut bytes = [0u8; 4_096];
        let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: as above.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
        (message.msg_control, message.msg_controllen) = ((&raw mut rights).cast(), size_of::<Rights>() as _);
        // SAFETY: all that it refers to is alive.
        assert!(unsafe { libc::recvmsg(socket, &raw mut message, 0) } > 0);
        let length = rights.0.cmsg_len as usize;
        if length > 0 {
            return rights.1[..(length - size_of::<libc::cmsghdr>()) / size_of::<libc::c_int>()].to_vec();
        }
    }
}

/// Files are sent to a full socket, taken with those that have come since, and sent anew, by another thread each time.
fn send_in_turn(file: libc::c_long) {
    use std::sync::{Mutex, OnceLock};
    static PAIR: OnceLock<(libc::c_int, libc::c_int)> = OnceLock::new();
    static SENDER: Mutex<Option<std::thread::JoinHandle<()>>> = Mutex::new(None);
    let turn = |more: &[libc::c_int]| {
        let (near, far) = *PAIR.get().expect("made");
        let mut sender = SENDER.lock().expect("whole");
        let mut files = more.to_vec();
        if let Some(sender) = sender.take() {
            files.extend(receive_files(far));
            sender.join().expect("sent");
        }
        while send(libc::c_long::from(near), &[1; 4_096]) > 0 {}
        let given = files.clone();
        let (tell, told) = std::sync::mpsc::channel();
        *sender = Some(std::thread::spawn(move || {
            tell.send(call(libc::SYS_gettid, [0; 5])).expect("told");
            send_files(near, &given, 4_096);
        }));
        until_it_waits(told.recv().expect("a thread"));
        for file in files {
            call(libc::SYS_close, [file as usize, 0, 0, 0, 0]);
        }
    };
    PAIR.get_or_init(|| {
        use std::os::fd::IntoRawFd;
        let (near, far) = std::os::unix::net::UnixStream::pair().expect("sockets");
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(std::time::Duration::from_millis(700));
                turn(&[]);
            }
        });
        (near.into_raw_fd(), far.into_raw_fd())
    });
    turn(&[file as libc::c_int]);
}

/// In the queue of a socket that only a call has which waits.
fn leave_in_polled(file: libc::c_long) {
    use std::os::fd::IntoRawFd;
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let ends = [near.into_raw_fd(), far.into_raw_fd()];
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut waits = ends.map(|fd| libc::pollfd { fd, events: 0, revents: 0 });
        tell.send(call(libc::SYS_gettid, [0; 5])).expect("told");
        // SAFETY: two of them.
        unsafe { libc::poll(waits.as_mut_ptr(), 2, -1) };
    });
    until_it_waits(told.recv().expect("a thread"));
    send_files(ends[0], &[file as libc::c_int], 1);
    for fd in [file as libc::c_int, ends[0], ends[1]] {
        call(libc::SYS_close, [fd as usize, 0, 0, 0, 0]);
    }
}

fn until_it_waits(thread: libc::c_long) {
    let state = format!("/proc/self/task/{thread}/stat");
    while !std::fs::read_to_string(&state).expect("its state").contains(") S ") {
        std::thread::yield_now();
    }
}

/// Goes on in a child: the process is gone before anybody has looked at what it has open.
fn hop() {
    // SAFETY: single-threaded; parent and child go on alike, but that one ends.
    if unsafe { libc::fork() } != 0 {
        // SAFETY: nothing of it is needed any more.
        unsafe { libc::_exit(0) };
    }
}

fn hop_on(made: usize) -> ! {
    println!("{made}");
    loop {
        std::thread::sleep(std::time::Duration::from_millis(1));
        hop();
    }
}

/// Another thread ends while it is traced by a process that does not want to know, and stays in the list of threads, without a file.
fn leave_ended_thread() {
    let (mut near, mut far) = std::os::unix::net::UnixStream::pair().expect("sockets");
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::MAX, 0, 0, 0) };
    // SAFETY: single-threaded as yet; the child makes few calls.
    if unsafe { libc::fork() } == 0 {
        let mut thread = [0; 4];
        far.read_exact(&mut thread).expect("a thread");
        assert_eq!(trace(i32::from_ne_bytes(thread) as usize), 0);
        far.write_all(&[1]).expect("told");
        loop {
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
    }
    std::thread::spawn(move || {
        // Behind the one that has the files.
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::thread::spawn(move || {
            near.write_all(&(call(libc::SYS_gettid, [0; 5]) as i32).to_ne_bytes()).expect("told");
            near.read_exact(&mut [0]).expect("an answer");
            call(libc::SYS_exit, [0; 5]);
        });
    });
}

/// Asks for files that are not there, which the kernel knows from then on.
fn look_for_absent(names: usize) -> usize {
    (0..names).filter(|index| std::fs::symlink_metadata(format!("/tmp/absent-{index}")).is_err()).count()
}

/// Takes what it can get of something, and says how much that was.
fn take(what: &str, number: usize) -> usize {
    match what {
        "fork-bomb" => fork_bomb(number),
        "terminals" => count(number, || open("/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY)),
        "inotify" => count(number, || simple(libc::SYS_inotify_init1)),
        "pairs" => fill_pairs(number),
        "streams" => fill_streams(number),
        "datagrams" => fill_datagrams(number),
        "unfinished" => begin_datagrams(number),
        "fragments" => hold_fragments(number),
        "stream-fragments" => hold_stream_fragments(number),
        "datagram-sockets" => count(number, || socket(libc::AF_INET, libc::SOCK_DGRAM, 0)),
        "stream-sockets" => count(number, || socket(libc::AF_INET, libc::SOCK_STREAM, 0)),
        "routes" => ask_for_routes(number),
        "route-sockets" => count(number, || socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)),
        "routes-in-turn" => open_in_turn(number),
        "connections" => connect(number),
        "orphans" => orphan(number),
        "errors" => queue_errors(number),
        "packet-options" => keep_packet_options(number),
        "filters" => filter_sockets(number),
        "trace" => trace(number),
        "locks" => lock_bytes(named_file, libc::F_SETLK, number, |_| ()),
        "locks-of-files" => lock_bytes(memory_file, libc::F_OFD_SETLK, number, |_| ()),
        "locks-of-mapped-files" => lock_bytes(memory_file, libc::F_OFD_SETLK, number, map_and_close),
        "absent" => look_for_absent(number),
        "unaccepted" => leave_unaccepted(number),
        "lists" => keep_lists(60, number, |_| ()),
        "lists-in-polled-sockets" => keep_lists(200, number, leave_in_polled),
        "lists-of-who-is-gone" => hop_on(keep_lists(3_500, number, |_| hop())),
        "lists-sent-in-turn" => keep_lists(200, number, send_in_turn),
        "lists-being-sent" => keep_lists(200, number, |fd| close_while(fd, wait_to_send)),
        "lists-of-who-waits" => keep_lists(200, number, |fd| close_while(fd, wait_for_lock)),
        "files" => count(number, || open("/dev/null", libc::O_RDONLY)),
        other => panic!("{other} is unknown"),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [what, number, hold] = &arguments[..] {
        let (what, number) = (what.clone(), number.parse().expect("a number"));
        let hold = std::time::Duration::from_secs(hold.parse().expect("seconds"));
        let take_and_hold = move |what: &str| {
            println!("{}", take(what, number));
            std::thread::sleep(hold);
        };
        let what = what.strip_prefix("ended-").inspect(|_| leave_ended_thread()).unwrap_or(&what).to_owned();
        let Some(what) = what.strip_prefix("thread-").map(str::to_owned) else {
            return take_and_hold(&what);
        };
        std::thread::spawn(move || {
            take_and_hold(&what);
            std::process::exit(0);
        });
        // Of this thread alone.
        call(libc::SYS_exit, [0; 5]);
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
