//! The system calls a sandbox may not make. A list of refusals: programs nobody here knows must run, and the rest of
//! the walls (namespaces, no capabilities) stand without it. What it takes away is kernel surface that needs no
//! privilege, and every way to gain capabilities in a namespace of one's own.
//!
//! `ptrace` stays: debuggers and strace are everyday tools, it needs the same user *and* no capability the tracer
//! lacks, so that the agent and its monitors are out of reach; and a tracer cannot get around this filter, which is
//! applied after its changes.

use crate::bpf::{
    AND, ARCH, AUDIT_ARCH, Calls, JUMP_ANY_BIT, JUMP_EQUAL, JUMP_GREATER_EQUAL, NUMBER, Program, RET_ALLOW, RET_ASK,
    RET_ERRNO, argument, argument_high,
};
use crate::{shared_answers, socket_options};
use std::io::Result;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

/// Numbers above the tables of the libc crate.
const SYS_OPEN_TREE_ATTR: libc::c_long = 467;
const SYS_SETXATTRAT: libc::c_long = 463;

/// Answered ENOSYS: programs have a fallback for kernels without these.
const UNKNOWN: &[libc::c_long] = &[libc::SYS_clone3, libc::SYS_userfaultfd];

/// Answered ENOSYS too. What a ring is told to do no filter sees: it makes sockets, sets attributes and gives advice about files, and
/// waits for descriptors, whatever of that the calls for it are refused. Engines before 25 let containers have them.
const RINGS: &[libc::c_long] = &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Bytes of an extended attribute. Lists of who may use a file are kept beside files that are in memory alone, where they are
/// counted for nobody; of this size they take no more than such a file does, which is counted.
const LONGEST_ATTRIBUTE: u32 = 992;

/// Descriptors that one call waits for, as many as `select` is made for. Each end of each takes 64 bytes, counted for nobody, for as
/// long as the call waits, and of `poll` a descriptor may be named as often as the caller likes.
const MOST_WAITED_FOR: u32 = 1_024;
const WAITS: &[(libc::c_long, u32)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_poll, 1),
    (libc::SYS_ppoll, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_select, 0),
    (libc::SYS_pselect6, 0),
];

/// Asynchronous I/O of the kernel has one table of contexts for the whole machine. Answered ENOSYS.
const ASYNCHRONOUS_IO: &[libc::c_long] =
    &[libc::SYS_io_setup, libc::SYS_io_destroy, libc::SYS_io_submit, libc::SYS_io_cancel, libc::SYS_io_getevents];

/// Answered as done: they would flush the disks of the host, and nothing of a sandbox has to survive its machine.
const PRETENDED: &[libc::c_long] = &[libc::SYS_sync, libc::SYS_syncfs];
/// Advice that gives up what the kernel keeps of a file: files of images, and the machine's programs, are everybody's.
const POSIX_FADV_DONTNEED: u32 = 4;

const FORBIDDEN: &[libc::c_long] = &[
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    // Kernel interfaces.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_fanotify_init,
    // Clocks.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    // Other processes' insides, files without their paths.
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
];

/// MAP_HUGETLB, MFD_HUGETLB, SHM_HUGETLB: these pages come from one pool of the whole machine, which no limit of memory counts.
const HUGE_MAPPING: u32 = 0x4_0000;
const HUGE_FILE: u32 = 4;
const HUGE_SEGMENT: u32 = 0o4000;
const MADV_COLLAPSE: u32 = 25;
/// Where the machine looks for pages with the same contents, it tells in `/proc` who has one that somebody else has, a virtual
/// machine for one, and does so on nobody's time.
const MADV_MERGEABLE: u32 = 12;
const PR_SET_MEMORY_MERGE: u32 = 67;
/// MADV_COLD and MADV_PAGEOUT, which give up what the kernel keeps of a file as POSIX_FADV_DONTNEED does.
const GIVING_UP: [u32; 2] = [20, 21];
const PR_SCHED_CORE: u32 = 62;

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// Typing into somebody else's terminal; line disciplines, which are drivers for modems and the like.
const FORBIDDEN_IOCTLS: [u32; 3] = [0x5412 /* TIOCSTI */, 0x541c /* TIOCLINUX */, 0x5423 /* TIOCSETD */];
/// SIOCGSTAMP and SIOCGSTAMPNS, old and new, which ask for time stamps as the options do. Answered as where there is none.
const TIME_STAMPS: [u32; 4] = [0x8906, 0x8907, 0x8010_8906, 0x8010_8907];
/// Protocols of the internet families, by the socket's type. Raw sockets take a capability.
const STREAM_PROTOCOLS: [i32; 2] = [0, libc::IPPROTO_TCP];
const DATAGRAM_PROTOCOLS: [i32; 4] = [0, libc::IPPROTO_UDP, libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6];
/// The type without its flags.
const SOCKET_TYPE: u32 = 0xf;
/// PER_LINUX, PER_LINUX32, each also with UNAME26, no address randomisation (debuggers), and asking.
const PERSONALITIES: [u32; 6] = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];

/// The call returns 0 and was not made.
pub const DONE: u32 = RET_ERRNO;

pub const fn refuse(errno: i32) -> u32 {
    RET_ERRNO | errno as u32
}

/// Everything a sandbox may not do. `uncounted` is for sockets in which memory waits that is counted for nobody.
fn all(uncounted: u32) -> Program {
    shared_answers::share(refusing(&all_calls(uncounted)))
}

fn all_calls(uncounted: u32) -> Calls {
    let mut calls = Calls::default();
    machines_memory(&mut calls);
    namespaces_and_kernel(&mut calls);
    out_of_sight(&mut calls);
    shared(&mut calls, uncounted, false);
    calls
}

/// What reaches the tables and disks that sandboxes share with their host, and what an engine may allow that gives capabilities.
/// `namespaces`: commands may make some of their own, as the operator gave them the capability for it.
fn only_shared(uncounted: u32, namespaces: bool) -> Program {
    shared_answers::share(refusing(&only_shared_calls(uncounted, namespaces)))
}

fn only_shared_calls(uncounted: u32, namespaces: bool) -> Calls {
    let mut calls = Calls::default();
    machines_memory(&mut calls);
    decided_by_user(&mut calls);
    allowed_by_some_engines(&mut calls, namespaces);
    shared(&mut calls, uncounted, true);
    calls
}

/// What has no rules is allowed.
fn refusing(calls: &Calls) -> Program {
    let mut program = Program::default();
    program.load(ARCH);
    // The 32-bit table, reached with `int 0x80`, has calls that this list does not name.
    program.put(JUMP_EQUAL, AUDIT_ARCH, 1, 0);
    program.give(refuse(libc::ENOSYS));
    program.load(NUMBER);
    if cfg!(target_arch = "x86_64") {
        const X32_BIT: u32 = 0x4000_0000;
        program.put(JUMP_GREATER_EQUAL, X32_BIT, 0, 1);
        program.give(refuse(libc::ENOSYS));
    }
    program.go_by(calls, RET_ALLOW);
    program
}

/// What takes pages from where no sandbox has any, or interrupts every processor of the machine, once a page, for memory of
/// the caller's own: each has all processors flush what they know of it or hold back.
fn machines_memory(calls: &mut Calls) {
    for (call, flags, huge, errno) in [
        // As where the pool is empty, and as by kernels before these flags.
        (libc::SYS_mmap, 3, HUGE_MAPPING, libc::ENOMEM),
        (libc::SYS_memfd_create, 1, HUGE_FILE, libc::EINVAL),
        (libc::SYS_shmget, 2, HUGE_SEGMENT, libc::ENOMEM),
    ] {
        calls.only_for(call, |rules| {
            rules.load(argument(flags));
            rules.put(JUMP_ANY_BIT, huge, 0, 1);
            rules.give(refuse(errno));
            rules.give(RET_ALLOW);
        });
    }
    calls.only_for(libc::SYS_madvise, |rules| {
        rules.load(argument(2));
        rules.when_any(&[MADV_COLLAPSE, MADV_MERGEABLE], refuse(libc::EINVAL));
        rules.when_any(&GIVING_UP, DONE);
        rules.give(RET_ALLOW);
    });
    // The same advice, for any process.
    calls.when(libc::SYS_process_madvise, refuse(libc::EPERM));
    calls.only_for(libc::SYS_move_pages, |rules| {
        // Without nodes it only says where pages are.
        for half in [argument(3), argument_high(3)] {
            rules.load(half);
            rules.put(JUMP_EQUAL, 0, 1, 0);
            rules.give(refuse(libc::EPERM));
        }
        rules.give(RET_ALLOW);
    });
    calls.when(libc::SYS_migrate_pages, refuse(libc::EPERM));
    // A policy for a part of a shared mapping stays with the file, in memory that is counted for nobody and has no bound. As by
    // container engines; the policy of a process stays, which numactl and runtimes set.
    calls.when(libc::SYS_mbind, refuse(libc::EPERM));
    calls.when(libc::SYS_memfd_secret, refuse(libc::ENOSYS));
    for (call, number) in WAITS {
        calls.only_for(*call, |rules| {
            rules.load(argument(*number));
            rules.put(JUMP_GREATER_EQUAL, MOST_WAITED_FOR + 1, 0, 1);
            // As where the kernel has no memory for its tables.
            rules.give(refuse(libc::ENOMEM));
            rules.give(RET_ALLOW);
        });
    }
}

/// What the kernel counts for each user id, or decides by them, where no namespace gives the sandbox ids of its own: its root is
/// the host's, and a user of one sandbox is the same user of another.
fn decided_by_user(calls: &mut Calls) {
    const F_SETPIPE_SZ: u32 = 1031;
    const F_SETSIG: u32 = 10;
    // As by a kernel without queues of POSIX messages, whose bytes are few for each user.
    calls.when(libc::SYS_mq_open, refuse(libc::ENOSYS));
    calls.only_for(libc::SYS_fcntl, |rules| {
        rules.load(argument(1));
        // As where the user's share of pipes is used up; pipes keep the size they have.
        rules.when(F_SETPIPE_SZ, refuse(libc::EPERM));
        // As for a number that is no signal's. Whoever is named as the owner of a file (`F_SETOWN`) gets its signals from the
        // machine's root whatever rights that has: the agent and its monitors too, to whom SIGIO, which remains, does nothing.
        rules.when(F_SETSIG, refuse(libc::EINVAL));
        rules.give(RET_ALLOW);
    });
}

/// What Docker's profile refuses to whoever has no capability, and Podman's does not: namespaces of one's own, in which one has all of
/// them, and keys, which the kernel keeps for each user.
fn allowed_by_some_engines(calls: &mut Calls, namespaces: bool) {
    if !namespaces {
        // Its flags are in memory, where no filter sees them; programs have a fallback.
        calls.when(libc::SYS_clone3, refuse(libc::ENOSYS));
        for call in [libc::SYS_clone, libc::SYS_unshare] {
            calls.only_for(call, |rules| {
                rules.load(argument(0));
                rules.put(JUMP_ANY_BIT, NEW_NAMESPACES, 0, 1);
                rules.give(refuse(libc::EPERM));
                rules.give(RET_ALLOW);
            });
        }
    }
    calls.when_any(&[libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key], refuse(libc::EPERM));
}

/// Threads have the open files of their process: a table of a thread's own would hide from the service what the kernel keeps for it.
fn namespaces_and_kernel(calls: &mut Calls) {
    calls.when_any(UNKNOWN, refuse(libc::ENOSYS));
    calls.when_any(FORBIDDEN, refuse(libc::EPERM));
    calls.only_for(libc::SYS_clone, |rules| {
        rules.load(argument(0));
        rules.put(JUMP_ANY_BIT, NEW_NAMESPACES, 0, 1);
        rules.give(refuse(libc::EPERM));
        rules.put(JUMP_ANY_BIT, libc::CLONE_THREAD as u32, 0, 2);
        rules.put(JUMP_ANY_BIT, libc::CLONE_FILES as u32, 1, 0);
        rules.give(refuse(libc::EINVAL));
        rules.give(RET_ALLOW);
    });
    calls.only_for(libc::SYS_close_range, |rules| {
        rules.load(argument(2));
        rules.put(JUMP_ANY_BIT, libc::CLOSE_RANGE_UNSHARE, 0, 1);
        rules.give(refuse(libc::ENOSYS));
        rules.give(RET_ALLOW);
    });
    calls.only_for(libc::SYS_personality, |rules| {
        rules.load(argument(0));
        for persona in PERSONALITIES {
            rules.when(persona, RET_ALLOW);
        }
        rules.give(refuse(libc::EPERM));
    });
}

/// What takes a connection's bytes together with the memory they lie in, 32 KB for each that is counted for nobody, to where the
/// service cannot see them: pipes, from there queues of Unix sockets, and the caller's own memory. Answered as for
/// descriptors that cannot do it, on which programs read and write.
fn out_of_sight(calls: &mut Calls) {
    const TCP_ZEROCOPY_RECEIVE: u32 = 35;
    calls.when(libc::SYS_splice, refuse(libc::EINVAL));
    calls.only_for(libc::SYS_sendfile, |rules| {
        // With an offset it reads files alone.
        for half in [argument(2), argument_high(2)] {
            rules.load(half);
            rules.put(JUMP_EQUAL, 0, 1, 0);
            rules.give(RET_ALLOW);
        }
        rules.give(refuse(libc::EINVAL));
    });
    calls.only_for(libc::SYS_getsockopt, |rules| {
        rules.load(argument(1));
        rules.block(libc::IPPROTO_TCP as u32, |rules| {
            rules.load(argument(2));
            rules.when(TCP_ZEROCOPY_RECEIVE, refuse(libc::ENOPROTOOPT));
            rules.give(RET_ALLOW);
        });
        rules.give(RET_ALLOW);
    });
}

/// `packets`: packet sockets stay, which take a capability.
fn shared(calls: &mut Calls, uncounted: u32, packets: bool) {
    calls.when_any(ASYNCHRONOUS_IO, refuse(libc::ENOSYS));
    calls.when_any(RINGS, refuse(libc::ENOSYS));
    calls.when_any(PRETENDED, DONE);
    // As by file systems without room for it; the call that says the size in memory as by kernels before it.
    for call in [libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr] {
        calls.only_for(call, |rules| {
            rules.load(argument(3));
            rules.put(JUMP_GREATER_EQUAL, LONGEST_ATTRIBUTE + 1, 0, 1);
            rules.give(refuse(libc::ENOSPC));
            rules.give(RET_ALLOW);
        });
    }
    calls.when(SYS_SETXATTRAT, refuse(libc::ENOSYS));
    // Answered as done too: what of it is the sandbox's own is given up when its memory is short.
    calls.only_for(libc::SYS_fadvise64, |rules| {
        rules.load(argument(3));
        rules.when(POSIX_FADV_DONTNEED, DONE);
        rules.give(RET_ALLOW);
    });
    calls.only_for(libc::SYS_ioctl, |rules| {
        rules.load(argument(1));
        for request in FORBIDDEN_IOCTLS {
            rules.when(request, refuse(libc::EPERM));
        }
        rules.when_any(&TIME_STAMPS, refuse(libc::ENOENT));
        rules.give(RET_ALLOW);
    });
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        calls.only_for(call, |rules| common_sockets(rules, uncounted, packets));
    }
    calls.only_for(libc::SYS_setsockopt, |rules| socket_options::rules(rules, packets));
    own_filters(calls);
    // A limit of 1 keeps dumps from the host's handler, a limit of 0 would not; changing it succeeds without effect.
    calls.only_for(libc::SYS_setrlimit, |rules| {
        rules.load(argument(0));
        rules.when(libc::RLIMIT_CORE as u32, DONE);
        rules.give(RET_ALLOW);
    });
    calls.only_for(libc::SYS_prlimit64, |rules| {
        rules.load(argument(1));
        rules.block(libc::RLIMIT_CORE as u32, |rules| {
            // Asking passes no new value.
            for half in [argument(2), argument_high(2)] {
                rules.load(half);
                rules.put(JUMP_EQUAL, 0, 1, 0);
                rules.give(DONE);
            }
            rules.give(RET_ALLOW);
        });
        rules.give(RET_ALLOW);
    });
}

/// The memory for compiled filters is one for the whole machine, counted for nobody; without it no sandbox starts.
/// Answered as by a kernel without filters. The strict mode takes none.
fn own_filters(calls: &mut Calls) {
    const SET_MODE_FILTER: u32 = 1;
    calls.only_for(libc::SYS_seccomp, |rules| {
        rules.load(argument(0));
        rules.when(SET_MODE_FILTER, refuse(libc::EINVAL));
        rules.give(RET_ALLOW);
    });
    calls.only_for(libc::SYS_prctl, |rules| {
        rules.load(argument(0));
        rules.block(libc::PR_SET_SECCOMP as u32, |rules| {
            rules.load(argument(1));
            rules.when(libc::SECCOMP_MODE_FILTER, refuse(libc::EINVAL));
            rules.give(RET_ALLOW);
        });
        // Switches the scheduler of all processors, and keeps siblings of those it runs on idle.
        rules.when(PR_SCHED_CORE, refuse(libc::EINVAL));
        // As by a kernel that merges no pages.
        rules.when(PR_SET_MEMORY_MERGE, refuse(libc::EINVAL));
        rules.give(RET_ALLOW);
    });
}

fn common_sockets(rules: &mut Program, uncounted: u32, packets: bool) {
    rules.load(argument(0));
    rules.when(libc::AF_UNIX as u32, RET_ALLOW);
    if packets {
        rules.when(libc::AF_PACKET as u32, RET_ALLOW);
    }
    rules.block(libc::AF_NETLINK as u32, |rules| {
        rules.load(argument(2));
        rules.when(libc::NETLINK_ROUTE as u32, uncounted);
        rules.give(refuse(libc::EPROTONOSUPPORT));
    });
    // One of the two internet families, or none.
    rules.put(JUMP_EQUAL, libc::AF_INET as u32, 2, 0);
    rules.put(JUMP_EQUAL, libc::AF_INET6 as u32, 1, 0);
    rules.give(refuse(libc::EAFNOSUPPORT));
    rules.load(argument(1));
    rules.put(AND, SOCKET_TYPE, 0, 0);
    rules.when(libc::SOCK_RAW as u32, RET_ALLOW);
    for (kind, protocols, answer) in
        [(libc::SOCK_STREAM, &STREAM_PROTOCOLS[..], RET_ALLOW), (libc::SOCK_DGRAM, &DATAGRAM_PROTOCOLS[..], uncounted)]
    {
        rules.block(kind as u32, |rules| {
            rules.load(argument(2));
            for protocol in protocols {
                rules.when(*protocol as u32, answer);
            }
            rules.give(refuse(libc::EPROTONOSUPPORT));
        });
    }
    rules.give(refuse(libc::ESOCKTNOSUPPORT));
}

/// Needs no_new_privs to be set already.
pub fn install() -> Result<()> {
    all(RET_ALLOW).install()
}

/// The same; whoever holds the descriptor is asked for each socket in which memory can wait that is counted for nobody: those
/// that tell of interfaces and routes hold answers that nobody takes, those of datagrams one that is never finished
/// (`MSG_MORE`, a flag that connections use as well).
pub fn install_asking() -> Result<OwnedFd> {
    asking().install_with_listener()
}

/// Makes the filter of `install_asking`, for all processes that are forked from then on.
pub fn make_ready() {
    asking();
}

fn asking() -> &'static Program {
    static ASKING: OnceLock<Program> = OnceLock::new();
    ASKING.get_or_init(|| all(RET_ASK))
}

/// What no profile of an engine refuses, or not that of every one: calls that reach the tables and disks which sandboxes share with
/// their host, namespaces, keys. Needs no_new_privs to be set already; comes on top of the filters that are there.
pub fn install_shared(namespaces: bool) -> Result<()> {
    only_shared(RET_ALLOW, namespaces).install()
}

/// The same, asking as [`install_asking`] does.
pub fn install_shared_asking(namespaces: bool) -> Result<OwnedFd> {
    only_shared(RET_ASK, namespaces).install_with_listener()
}

/// Each filter that there is, as it is thought of and as it is installed.
#[cfg(test)]
pub fn both_ways() -> Vec<(Program, Program)> {
    let kinds = [all_calls(RET_ASK), only_shared_calls(RET_ASK, false), only_shared_calls(RET_ALLOW, true)];
    let installed = [all(RET_ASK), only_shared(RET_ASK, false), only_shared(RET_ALLOW, true)];
    kinds.iter().map(refusing).zip(installed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::run;

    fn decide(call: libc::c_long, arch: u32, arguments: [u64; 6]) -> u32 {
        run(&all(RET_ALLOW), call, arch, arguments)
    }

    fn plain(call: libc::c_long, first: u64) -> u32 {
        decide(call, AUDIT_ARCH, [first, 0, 0, 0, 0, 0])
    }

    #[test]
    fn everyday_calls_are_allowed() {
        for call in [libc::SYS_read, libc::SYS_execve, libc::SYS_ptrace, libc::SYS_openat2, libc::SYS_futex] {
            assert_eq!(plain(call, 0), RET_ALLOW);
        }
    }

    #[test]
    fn other_call_tables_are_unknown() {
        assert_eq!(decide(libc::SYS_read, 0x4000_0003, [0; 6]), refuse(libc::ENOSYS));
        assert_eq!(plain(libc::SYS_read | 0x4000_0000, 0), refuse(libc::ENOSYS));
    }

    #[test]
    fn threads_are_allowed_and_namespaces_are_not() {
        let thread = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
        assert_eq!(plain(libc::SYS_clone, (thread | libc::CLONE_FILES) as u64), RET_ALLOW);
        assert_eq!(plain(libc::SYS_clone, thread as u64), refuse(libc::EINVAL));
        assert_eq!(plain(libc::SYS_clone, (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as u64), RET_ALLOW);
        let close = |flags: u64| decide(libc::SYS_close_range, AUDIT_ARCH, [3, u32::MAX.into(), flags, 0, 0, 0]);
        assert_eq!((close(0), close(4), close(2)), (RET_ALLOW, RET_ALLOW, refuse(libc::ENOSYS)));
        assert_eq!(plain(libc::SYS_clone, libc::CLONE_NEWUSER as u64), refuse(libc::EPERM));
        assert_eq!(plain(libc::SYS_clone3, 0), refuse(libc::ENOSYS));
        assert_eq!(plain(libc::SYS_unshare, 0), refuse(libc::EPERM));
    }

    fn socket(family: i32, kind: i32, protocol: i32) -> u32 {
        decide(libc::SYS_socket, AUDIT_ARCH, [family as u64, kind as u64, protocol as u64, 0, 0, 0])
    }

    #[test]
    fn only_common_sockets_are_allowed() {
        let cloexec = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        for family in [libc::AF_INET, libc::AF_INET6] {
            assert_eq!(socket(family, libc::SOCK_STREAM | cloexec, 0), RET_ALLOW);
            assert_eq!(socket(family, libc::SOCK_STREAM, libc::IPPROTO_TCP), RET_ALLOW);
            assert_eq!(socket(family, libc::SOCK_DGRAM | cloexec, libc::IPPROTO_UDP), RET_ALLOW);
            for protocol in [libc::IPPROTO_MPTCP, libc::IPPROTO_SCTP] {
                assert_eq!(socket(family, libc::SOCK_STREAM, protocol), refuse(libc::EPROTONOSUPPORT));
            }
            assert_eq!(socket(family, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE), refuse(libc::EPROTONOSUPPORT));
            assert_eq!(socket(family, libc::SOCK_SEQPACKET, 0), refuse(libc::ESOCKTNOSUPPORT));
        }
        assert_eq!(socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0), RET_ALLOW);
        for family in [libc::AF_VSOCK, libc::AF_ALG, libc::AF_PACKET, libc::AF_INET | 0x100] {
            assert_eq!(socket(family, libc::SOCK_DGRAM, 0), refuse(libc::EAFNOSUPPORT));
        }
        assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE), RET_ALLOW);
        assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT), refuse(libc::EPROTONOSUPPORT));
        let route = [libc::AF_NETLINK as u64, libc::SOCK_RAW as u64, libc::NETLINK_ROUTE as u64, 0, 0, 0];
        let datagrams = [libc::AF_INET6 as u64, (libc::SOCK_DGRAM | cloexec) as u64, 0, 0, 0, 0];
        let streams = [libc::AF_INET as u64, (libc::SOCK_STREAM | cloexec) as u64, 0, 0, 0, 0];
        for program in [all(RET_ASK), only_shared(RET_ASK, false)] {
            for (arguments, answer) in [(route, RET_ASK), (datagrams, RET_ASK), (streams, RET_ALLOW)] {
                assert_eq!(run(&program, libc::SYS_socket, AUDIT_ARCH, arguments), answer);
            }
        }
    }

    fn option(program: &Program, level: i32, name: i32) -> u32 {
        run(program, libc::SYS_setsockopt, AUDIT_ARCH, [3, level as u64, name as u64, 0, 0, 0])
    }

    #[test]
    fn socket_options_are_those_that_programs_use() {
        const MCAST_JOIN_SOURCE_GROUP: i32 = 46;
        let v6_pktoptions = 6;
        for program in [all(RET_ALLOW), only_shared(RET_ALLOW, false)] {
            for (level, name, answer) in [
                (libc::SOL_SOCKET, libc::SO_REUSEADDR, RET_ALLOW),
                (libc::SOL_SOCKET, libc::SO_KEEPALIVE, RET_ALLOW),
                (libc::SOL_SOCKET, libc::SO_LINGER, RET_ALLOW),
                (libc::SOL_SOCKET, libc::SO_REUSEPORT, RET_ALLOW),
                (libc::SOL_SOCKET, libc::SO_RCVTIMEO, RET_ALLOW),
                (libc::SOL_SOCKET, libc::SO_RCVBUF, DONE),
                (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, DONE),
                (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, refuse(libc::ENOPROTOOPT)),
                (libc::SOL_SOCKET, libc::SO_ATTACH_BPF, refuse(libc::ENOPROTOOPT)),
                (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, refuse(libc::ENOPROTOOPT)),
                (libc::SOL_SOCKET, libc::SO_TIMESTAMP, refuse(libc::ENOPROTOOPT)),
                (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, refuse(libc::ENOPROTOOPT)),
                (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, refuse(libc::ENOPROTOOPT)),
                (libc::SOL_UDP, libc::UDP_SEGMENT, RET_ALLOW),
                (libc::SOL_UDP, libc::UDP_GRO, refuse(libc::ENOPROTOOPT)),
                (libc::SOL_SOCKET, libc::SO_ZEROCOPY, refuse(libc::ENOPROTOOPT)),
                (libc::IPPROTO_TCP, libc::TCP_NODELAY, RET_ALLOW),
                (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, RET_ALLOW),
                (libc::IPPROTO_TCP, libc::TCP_FASTOPEN, RET_ALLOW),
                (libc::IPPROTO_TCP, libc::TCP_INQ, RET_ALLOW),
                (libc::IPPROTO_TCP, libc::TCP_LINGER2, DONE),
                (libc::IPPROTO_TCP, libc::TCP_MD5SIG, refuse(libc::ENOPROTOOPT)),
                (libc::IPPROTO_TCP, libc::TCP_ULP, refuse(libc::ENOPROTOOPT)),
                (libc::IPPROTO_IP, libc::IP_TOS, RET_ALLOW),
                (libc::IPPROTO_IP, libc::IP_RECVERR, DONE),
                (libc::IPPROTO_IP, libc::IP_OPTIONS, refuse(libc::ENOPROTOOPT)),
                (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, RET_ALLOW),
                (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, refuse(libc::ENODEV)),
                (libc::IPPROTO_IP, libc::IP_ADD_SOURCE_MEMBERSHIP, refuse(libc::ENODEV)),
                (libc::IPPROTO_IP, libc::MCAST_JOIN_GROUP, refuse(libc::ENODEV)),
                (libc::IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, refuse(libc::ENODEV)),
                (libc::IPPROTO_IP, libc::IP_DROP_MEMBERSHIP, refuse(libc::EADDRNOTAVAIL)),
                (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, RET_ALLOW),
                (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, DONE),
                (libc::IPPROTO_IPV6, libc::IPV6_MTU, DONE),
                (libc::IPPROTO_IP, libc::IP_MTU, refuse(libc::ENOPROTOOPT)),
                (libc::IPPROTO_IPV6, v6_pktoptions, refuse(libc::ENOPROTOOPT)),
                (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, refuse(libc::ENODEV)),
                (libc::IPPROTO_IPV6, libc::IPV6_DROP_MEMBERSHIP, refuse(libc::EADDRNOTAVAIL)),
                (libc::SOL_TLS, 1, refuse(libc::ENOPROTOOPT)),
            ] {
                assert_eq!(option(&program, level, name), answer, "{level} {name}");
            }
        }
        assert_eq!(option(&all(RET_ALLOW), libc::SOL_NETLINK, 1), RET_ALLOW);
        assert_eq!(option(&only_shared(RET_ALLOW, false), libc::SOL_PACKET, 1), RET_ALLOW);
    }

    #[test]
    fn nobody_inside_adds_filters_of_their_own() {
        for program in [all(RET_ALLOW), only_shared(RET_ALLOW, false)] {
            let call = |number, arguments| run(&program, number, AUDIT_ARCH, arguments);
            let prctl = |option: i32, mode: u64| call(libc::SYS_prctl, [option as u64, mode, 0, 0, 0, 0]);
            assert_eq!(call(libc::SYS_seccomp, [1, 0, 0, 0, 0, 0]), refuse(libc::EINVAL));
            assert_eq!(call(libc::SYS_seccomp, [0; 6]), RET_ALLOW);
            assert_eq!(prctl(libc::PR_SET_SECCOMP, 2), refuse(libc::EINVAL));
            assert_eq!(prctl(libc::PR_SET_SECCOMP, 1), RET_ALLOW);
            assert_eq!(prctl(libc::PR_SET_NAME, 2), RET_ALLOW);
            assert_eq!(prctl(62, 1), refuse(libc::EINVAL));
        }
    }

    #[test]
    fn what_reaches_the_whole_machine_is_unknown_or_pretended() {
        assert_eq!(plain(libc::SYS_io_setup, 1), refuse(libc::ENOSYS));
        for call in [libc::SYS_sync, libc::SYS_syncfs] {
            assert_eq!(plain(call, 3), DONE);
        }
        assert_eq!(plain(libc::SYS_fsync, 3), RET_ALLOW);
        for program in [all(RET_ALLOW), only_shared(RET_ALLOW, false)] {
            let advise = |advice: i32| run(&program, libc::SYS_fadvise64, AUDIT_ARCH, [3, 0, 0, advice as u64, 0, 0]);
            assert_eq!(advise(libc::POSIX_FADV_DONTNEED), DONE);
            assert_eq!(advise(libc::POSIX_FADV_SEQUENTIAL), RET_ALLOW);
            assert_eq!(advise(libc::POSIX_FADV_WILLNEED), RET_ALLOW);
        }
    }

    #[test]
    fn memory_takes_neither_the_machines_huge_pages_nor_interrupts_its_processors() {
        for program in [all(RET_ALLOW), only_shared(RET_ALLOW, false)] {
            let call = |number, arguments| run(&program, number, AUDIT_ARCH, arguments);
            let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
            let mmap = |flags: u64| call(libc::SYS_mmap, [0, 4_096, 3, flags, u64::MAX, 0]);
            assert_eq!(mmap(private), RET_ALLOW);
            assert_eq!(mmap(private | libc::MAP_NORESERVE as u64 | libc::MAP_POPULATE as u64), RET_ALLOW);
            assert_eq!(mmap(private | libc::MAP_HUGETLB as u64), refuse(libc::ENOMEM));
            assert_eq!(mmap(private | libc::MAP_HUGETLB as u64 | 30 << 26), refuse(libc::ENOMEM));
            let memfd = |flags: u32| call(libc::SYS_memfd_create, [0x1000, flags as u64, 0, 0, 0, 0]);
            assert_eq!(memfd(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING), RET_ALLOW);
            assert_eq!(memfd(libc::MFD_CLOEXEC | libc::MFD_HUGETLB), refuse(libc::EINVAL));
            let shmget = |flags: i32| call(libc::SYS_shmget, [0, 4_096, flags as u64, 0, 0, 0]);
            assert_eq!(shmget(libc::IPC_CREAT | 0o600), RET_ALLOW);
            assert_eq!(shmget(libc::IPC_CREAT | libc::SHM_HUGETLB | 0o600), refuse(libc::ENOMEM));
            for flags in [0, 2] {
                assert_eq!(call(libc::SYS_mbind, [0x1000, 4_096, 2, 0x2000, 8, flags]), refuse(libc::EPERM));
            }
            let moves = |nodes: u64| call(libc::SYS_move_pages, [0, 1, 0x1000, nodes, 0x2000, 0]);
            for (nodes, answer) in
                [(0, RET_ALLOW), (0x1000, refuse(libc::EPERM)), (0x7fff_0000_0000, refuse(libc::EPERM))]
            {
                assert_eq!(moves(nodes), answer);
            }
            assert_eq!(call(libc::SYS_migrate_pages, [0; 6]), refuse(libc::EPERM));
            assert_eq!(call(libc::SYS_memfd_secret, [0; 6]), refuse(libc::ENOSYS));
            for (advice, answer) in [
                (libc::MADV_DONTNEED, RET_ALLOW),
                (libc::MADV_HUGEPAGE, RET_ALLOW),
                (libc::MADV_FREE, RET_ALLOW),
                (MADV_COLLAPSE as libc::c_int, refuse(libc::EINVAL)),
                (libc::MADV_MERGEABLE, refuse(libc::EINVAL)),
                (libc::MADV_COLD, DONE),
                (libc::MADV_PAGEOUT, DONE),
            ] {
                assert_eq!(call(libc::SYS_madvise, [0x1000, 4_096, advice as u64, 0, 0, 0]), answer);
            }
            assert_eq!(call(libc::SYS_set_mempolicy, [0; 6]), RET_ALLOW);
            assert_eq!(call(libc::SYS_prctl, [PR_SET_MEMORY_MERGE.into(), 1, 0, 0, 0, 0]), refuse(libc::EINVAL));
        }
    }

    #[test]
    fn nothing_is_done_past_the_filter() {
        for program in [all(RET_ALLOW), only_shared(RET_ALLOW, false)] {
            for call in RINGS {
                assert_eq!(run(&program, *call, AUDIT_ARCH, [0; 6]), refuse(libc::ENOSYS));
            }
            assert_eq!(run(&program, libc::SYS_process_madvise, AUDIT_ARCH, [0; 6]), refuse(libc::EPERM));
        }
    }

    #[test]
    fn attributes_of_files_take_no_more_than_files() {
        for program in [all(RET_ALLOW), only_shared(RET_ALLOW, false)] {
            for number in [libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr] {
                let set = |size: u64| run(&program, number, AUDIT_ARCH, [3, 0x1000, 0x2000, size, 0, 0]);
                assert_eq!((set(0), set(992)), (RET_ALLOW, RET_ALLOW));
                assert_eq!((set(993), set(65_536)), (refuse(libc::ENOSPC), refuse(libc::ENOSPC)));
            }
            assert_eq!(run(&program, SYS_SETXATTRAT, AUDIT_ARCH, [0; 6]), refuse(libc::ENOSYS));
        }
    }

    #[test]
    fn no_call_waits_for_more_descriptors_than_select_is_made_for() {
        for program in [all(RET_ALLOW), only_shared(RET_ALLOW, false)] {
            for (call, number) in WAITS {
                let wait = |most: u64| {
                    let mut arguments = [0x1000; 6];
                    arguments[*number as usize] = most;
                    run(&program, *call, AUDIT_ARCH, arguments)
                };
                assert_eq!((wait(0), wait(1_024)), (RET_ALLOW, RET_ALLOW));
                assert_eq!((wait(1_025), wait(4_096)), (refuse(libc::ENOMEM), refuse(libc::ENOMEM)));
            }
        }
    }

    #[test]
    fn bytes_of_connections_stay_where_they_are_seen() {
        let call = |number, arguments| decide(number, AUDIT_ARCH, arguments);
        assert_eq!(call(libc::SYS_splice, [3, 0, 4, 0, 1, 0]), refuse(libc::EINVAL));
        let sendfile = |offset: u64| call(libc::SYS_sendfile, [3, 4, offset, 1, 0, 0]);
        assert_eq!(sendfile(0), refuse(libc::EINVAL));
        for offset in [0x1000, 0x7fff_0000_0000] {
            assert_eq!(sendfile(offset), RET_ALLOW);
        }
        let getsockopt = |level: i32, name: u64| call(libc::SYS_getsockopt, [3, level as u64, name, 0x1000, 0x2000, 0]);
        assert_eq!(getsockopt(libc::IPPROTO_TCP, 35), refuse(libc::ENOPROTOOPT));
        assert_eq!(getsockopt(libc::IPPROTO_TCP, libc::TCP_INFO as u64), RET_ALLOW);
        assert_eq!(getsockopt(libc::SOL_SOCKET, 35), RET_ALLOW);
    }

    #[test]
    fn the_core_limit_can_be_asked_for_and_not_changed() {
        let core = libc::RLIMIT_CORE as u64;
        let prlimit = |resource: u64, new: u64| decide(libc::SYS_prlimit64, AUDIT_ARCH, [0, resource, new, 0, 0, 0]);
        assert_eq!(plain(libc::SYS_setrlimit, core), DONE);
        assert_eq!(plain(libc::SYS_setrlimit, libc::RLIMIT_NOFILE as u64), RET_ALLOW);
        assert_eq!(prlimit(core, 0), RET_ALLOW);
        assert_eq!(prlimit(core, 0x7fff_0000_0000), DONE);
        assert_eq!(prlimit(core, 0x1000), DONE);
        assert_eq!(prlimit(libc::RLIMIT_NOFILE as u64, 0x1000), RET_ALLOW);
    }

    #[test]
    fn the_shared_part_refuses_what_reaches_the_machine_and_leaves_the_rest_to_the_engine() {
        let shared = |call, arguments| run(&only_shared(RET_ALLOW, false), call, AUDIT_ARCH, arguments);
        assert_eq!(shared(libc::SYS_io_setup, [1, 0, 0, 0, 0, 0]), refuse(libc::ENOSYS));
        assert_eq!(shared(libc::SYS_sync, [0; 6]), DONE);
        assert_eq!(shared(libc::SYS_setrlimit, [libc::RLIMIT_CORE as u64, 0, 0, 0, 0, 0]), DONE);
        let mptcp = [libc::AF_INET as u64, libc::SOCK_STREAM as u64, libc::IPPROTO_MPTCP as u64, 0, 0, 0];
        assert_eq!(shared(libc::SYS_socket, mptcp), refuse(libc::EPROTONOSUPPORT));
        assert_eq!(run(&only_shared(RET_ALLOW, false), libc::SYS_io_setup, 0x4000_0003, [0; 6]), refuse(libc::ENOSYS));
        for call in [libc::SYS_mount, libc::SYS_ptrace, libc::SYS_process_vm_readv] {
            assert_eq!(shared(call, [0; 6]), RET_ALLOW);
        }
    }

    #[test]
    fn no_engine_gives_namespaces_or_keys_unless_the_operator_gives_namespaces() {
        let shared =
            |call, first: i32| run(&only_shared(RET_ALLOW, false), call, AUDIT_ARCH, [first as u64, 0, 0, 0, 0, 0]);
        for call in [libc::SYS_clone, libc::SYS_unshare] {
            for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNET, libc::CLONE_NEWNS] {
                assert_eq!(shared(call, flag | libc::SIGCHLD), refuse(libc::EPERM));
            }
            assert_eq!(shared(call, libc::CLONE_FILES), RET_ALLOW);
        }
        assert_eq!(shared(libc::SYS_clone3, 0x1000), refuse(libc::ENOSYS));
        let own =
            |call, first: i32| run(&only_shared(RET_ALLOW, true), call, AUDIT_ARCH, [first as u64, 0, 0, 0, 0, 0]);
        assert_eq!(own(libc::SYS_unshare, libc::CLONE_NEWUSER), RET_ALLOW);
        assert_eq!(own(libc::SYS_clone3, 0x1000), RET_ALLOW);
        for call in [libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key] {
            assert_eq!(shared(call, 0), refuse(libc::EPERM));
            assert_eq!(own(call, 0), refuse(libc::EPERM));
        }
    }

    #[test]
    fn what_is_decided_by_user_is_refused_where_users_are_the_hosts() {
        let shared = |call, arguments| run(&only_shared(RET_ALLOW, false), call, AUDIT_ARCH, arguments);
        assert_eq!(shared(libc::SYS_mq_open, [0; 6]), refuse(libc::ENOSYS));
        let resize = [0, libc::F_SETPIPE_SZ as u64, 1 << 20, 0, 0, 0];
        assert_eq!(shared(libc::SYS_fcntl, resize), refuse(libc::EPERM));
        assert_eq!(shared(libc::SYS_fcntl, [0, libc::F_GETPIPE_SZ as u64, 0, 0, 0, 0]), RET_ALLOW);
        let choose_signal = [0, 10, libc::SIGKILL as u64, 0, 0, 0];
        assert_eq!(shared(libc::SYS_fcntl, choose_signal), refuse(libc::EINVAL));
        assert_eq!(shared(libc::SYS_fcntl, [0, libc::F_SETOWN as u64, 1, 0, 0, 0]), RET_ALLOW);
        // Where they are the sandbox's own, what is counted is its own as well.
        assert_eq!(decide(libc::SYS_fcntl, AUDIT_ARCH, resize), RET_ALLOW);
        assert_eq!(decide(libc::SYS_fcntl, AUDIT_ARCH, choose_signal), RET_ALLOW);
        assert_eq!(plain(libc::SYS_mq_open, 0), RET_ALLOW);
    }

    #[test]
    fn terminal_injection_is_refused() {
        assert_eq!(decide(libc::SYS_ioctl, AUDIT_ARCH, [0, 0x5412, 0, 0, 0, 0]), refuse(libc::EPERM));
        assert_eq!(decide(libc::SYS_ioctl, AUDIT_ARCH, [0, 0x5413, 0, 0, 0, 0]), RET_ALLOW);
    }

    #[test]
    fn no_request_has_all_packets_of_the_machine_stamped() {
        for request in [0x8906, 0x8907, 0x8010_8906, 0x8010_8907] {
            for program in [all(RET_ALLOW), only_shared(RET_ALLOW, false)] {
                let stamp = [3, request, 0x1000, 0, 0, 0];
                assert_eq!(run(&program, libc::SYS_ioctl, AUDIT_ARCH, stamp), refuse(libc::ENOENT));
            }
        }
    }
}
