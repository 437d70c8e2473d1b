//! The system calls a sandbox may not make. A list of refusals: programs nobody here knows must run, and the rest of
//! the walls (namespaces, no capabilities) stand without it. What it takes away is kernel surface that needs no
//! privilege, and every way to gain capabilities in a namespace of one's own.
//!
//! `ptrace` stays: debuggers and strace are everyday tools, it needs the same user *and* no capability the tracer
//! lacks, so that the agent and its monitors are out of reach; and a tracer cannot get around this filter, which is
//! applied after its changes.

use crate::error::{AtStep, Result};
use crate::sys;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ERRNO: u32 = 0x0005_0000;

const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const NUMBER: u32 = 0;
const ARCH: u32 = 4;
/// Low half of an argument; these machines are little endian.
const fn argument(index: u32) -> u32 {
    16 + index * 8
}

/// Numbers above the tables of the libc crate.
const SYS_OPEN_TREE_ATTR: libc::c_long = 467;

/// Answered ENOSYS: programs have a fallback for kernels without these.
const UNKNOWN: &[libc::c_long] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
];

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
    libc::SYS_process_madvise,
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

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// Typing into somebody else's terminal.
const FORBIDDEN_IOCTLS: [u32; 2] = [0x5412 /* TIOCSTI */, 0x541c /* TIOCLINUX */];
const SOCKET_FAMILIES: [i32; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
/// PER_LINUX, PER_LINUX32, each also with UNAME26, no address randomisation (debuggers), and asking.
const PERSONALITIES: [u32; 6] = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];

struct Program(Vec<libc::sock_filter>);

impl Program {
    fn put(&mut self, code: u16, k: u32, jt: u8, jf: u8) {
        self.0.push(libc::sock_filter { code, jt, jf, k });
    }
    fn load(&mut self, offset: u32) {
        self.put(LOAD_WORD, offset, 0, 0);
    }
    fn give(&mut self, value: u32) {
        self.put(RETURN, value, 0, 0);
    }
    /// Returns `value` when the loaded word equals `k`.
    fn when(&mut self, k: u32, value: u32) {
        self.put(JUMP_EQUAL, k, 0, 1);
        self.give(value);
    }
    /// Adds `rules`, which end with a return, for one system call.
    fn only_for(&mut self, call: libc::c_long, rules: impl FnOnce(&mut Program)) {
        let mut inner = Program(Vec::new());
        rules(&mut inner);
        let skip = u8::try_from(inner.0.len()).expect("rules of one call are few");
        self.put(JUMP_EQUAL, call as u32, 0, skip);
        self.0.append(&mut inner.0);
    }
}

const fn refuse(errno: i32) -> u32 {
    RET_ERRNO | errno as u32
}

fn program() -> Vec<libc::sock_filter> {
    let mut program = Program(Vec::new());
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
    for call in UNKNOWN {
        program.when(*call as u32, refuse(libc::ENOSYS));
    }
    for call in FORBIDDEN {
        program.when(*call as u32, refuse(libc::EPERM));
    }
    program.only_for(libc::SYS_clone, |rules| {
        rules.load(argument(0));
        rules.put(JUMP_ANY_BIT, NEW_NAMESPACES, 0, 1);
        rules.give(refuse(libc::EPERM));
        rules.give(RET_ALLOW);
    });
    program.only_for(libc::SYS_ioctl, |rules| {
        rules.load(argument(1));
        for request in FORBIDDEN_IOCTLS {
            rules.when(request, refuse(libc::EPERM));
        }
        rules.give(RET_ALLOW);
    });
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        program.only_for(call, |rules| {
            rules.load(argument(0));
            for family in SOCKET_FAMILIES {
                rules.when(family as u32, RET_ALLOW);
            }
            rules.put(JUMP_EQUAL, libc::AF_NETLINK as u32, 1, 0);
            rules.give(refuse(libc::EAFNOSUPPORT));
            rules.load(argument(2));
            rules.when(libc::NETLINK_ROUTE as u32, RET_ALLOW);
            rules.give(refuse(libc::EPROTONOSUPPORT));
        });
    }
    program.only_for(libc::SYS_personality, |rules| {
        rules.load(argument(0));
        for persona in PERSONALITIES {
            rules.when(persona, RET_ALLOW);
        }
        rules.give(refuse(libc::EPERM));
    });
    program.give(RET_ALLOW);
    program.0
}

/// Needs no_new_privs to be set already.
pub fn install() -> Result<()> {
    let mut filter = program();
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    const SET_MODE_FILTER: u32 = 1;
    // SAFETY: the program and its instructions are alive through the call.
    sys::check(unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, 0, &raw const program) })
        .map(drop)
        .at("seccomp", "filter")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn decide(call: libc::c_long, arch: u32, arguments: [u64; 6]) -> u32 {
        let filter = program();
        let (mut at, mut word) = (0usize, 0u32);
        loop {
            let step = filter[at];
            at += 1;
            match step.code {
                LOAD_WORD => {
                    word = match step.k {
                        NUMBER => call as u32,
                        ARCH => arch,
                        offset => arguments[((offset - 16) / 8) as usize] as u32,
                    }
                }
                RETURN => return step.k,
                code => {
                    let holds = match code {
                        JUMP_EQUAL => word == step.k,
                        JUMP_GREATER_EQUAL => word >= step.k,
                        JUMP_ANY_BIT => word & step.k != 0,
                        _ => panic!("unknown instruction {code:#x}"),
                    };
                    at += usize::from(if holds { step.jt } else { step.jf });
                }
            }
        }
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
        assert_eq!(plain(libc::SYS_clone, (libc::CLONE_VM | libc::CLONE_THREAD) as u64), RET_ALLOW);
        assert_eq!(plain(libc::SYS_clone, libc::CLONE_NEWUSER as u64), refuse(libc::EPERM));
        assert_eq!(plain(libc::SYS_clone3, 0), refuse(libc::ENOSYS));
        assert_eq!(plain(libc::SYS_unshare, 0), refuse(libc::EPERM));
    }

    #[test]
    fn only_common_socket_families_are_allowed() {
        assert_eq!(plain(libc::SYS_socket, libc::AF_INET6 as u64), RET_ALLOW);
        assert_eq!(plain(libc::SYS_socket, libc::AF_VSOCK as u64), refuse(libc::EAFNOSUPPORT));
        assert_eq!(plain(libc::SYS_socket, libc::AF_NETLINK as u64), RET_ALLOW);
        let audit = [libc::AF_NETLINK as u64, 0, libc::NETLINK_AUDIT as u64, 0, 0, 0];
        assert_eq!(decide(libc::SYS_socket, AUDIT_ARCH, audit), refuse(libc::EPROTONOSUPPORT));
    }

    #[test]
    fn terminal_injection_is_refused() {
        assert_eq!(decide(libc::SYS_ioctl, AUDIT_ARCH, [0, 0x5412, 0, 0, 0, 0]), refuse(libc::EPERM));
        assert_eq!(decide(libc::SYS_ioctl, AUDIT_ARCH, [0, 0x5413, 0, 0, 0, 0]), RET_ALLOW);
    }
}
