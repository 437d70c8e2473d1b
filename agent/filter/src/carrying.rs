//! What is left to a process that carries frames between descriptors it has: no file, program, process or address is
//! within its calls.

use std::io::Result;

use crate::bpf::*;

/// It waits, reads, writes, takes who connects and closes; the clock is asked by call where the kernel offers no other way.
const CARRYING: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_sendto,
    libc::SYS_accept4,
    libc::SYS_close,
    libc::SYS_clock_gettime,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
];
/// Memory that it has and gives back, and the random numbers of its tables.
const KEEPING: &[libc::c_long] =
    &[libc::SYS_brk, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_getrandom];
/// The rest of asking for the machine's addresses, beside the socket for it.
const ASKING: &[libc::c_long] =
    &[libc::SYS_bind, libc::SYS_getsockname, libc::SYS_recvmsg, libc::SYS_sendmsg, libc::SYS_recvfrom];

fn program() -> Program {
    let refused = RET_ERRNO | libc::EPERM as u32;
    let mut program = Program::default();
    program.load(ARCH);
    program.put(JUMP_EQUAL, AUDIT_ARCH, 1, 0);
    program.give(refused);
    program.load(NUMBER);
    let mut calls = Calls::default();
    for allowed in [CARRYING, KEEPING, ASKING] {
        calls.when_any(allowed, RET_ALLOW);
    }
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        calls.only_for(call, |rules| {
            rules.load(argument(2));
            rules.put(JUMP_ANY_BIT, libc::PROT_EXEC as u32, 0, 1);
            rules.give(refused);
            rules.give(RET_ALLOW);
        });
    }
    calls.only_for(libc::SYS_socket, |rules| {
        rules.load(argument(0));
        rules.put(JUMP_EQUAL, libc::AF_NETLINK as u32, 1, 0);
        rules.give(refused);
        rules.load(argument(2));
        rules.when(libc::NETLINK_ROUTE as u32, RET_ALLOW);
        rules.give(refused);
    });
    // That a question is for one table of routes alone.
    calls.only_for(libc::SYS_setsockopt, |rules| {
        rules.load(argument(1));
        rules.put(JUMP_EQUAL, libc::SOL_NETLINK as u32, 1, 0);
        rules.give(refused);
        rules.load(argument(2));
        rules.when(libc::NETLINK_GET_STRICT_CHK as u32, RET_ALLOW);
        rules.give(refused);
    });
    program.go_by(&calls, refused);
    program
}

/// Refuses, with `EPERM`, all that carrying frames does not take. Needs no_new_privs to be set already.
pub fn install_carrying() -> Result<()> {
    program().install()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: u32 = RET_ERRNO | libc::EPERM as u32;

    fn decide(call: libc::c_long, arguments: [u64; 6]) -> u32 {
        run(&program(), call, AUDIT_ARCH, arguments)
    }

    #[test]
    fn frames_can_be_carried_and_nothing_else_be_done() {
        for call in [libc::SYS_ppoll, libc::SYS_read, libc::SYS_accept4, libc::SYS_recvmsg, libc::SYS_exit_group] {
            assert_eq!(decide(call, [0; 6]), RET_ALLOW, "{call}");
        }
        for call in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_connect,
            libc::SYS_kill,
            libc::SYS_pidfd_send_signal,
            libc::SYS_ptrace,
            libc::SYS_ioctl,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_io_uring_setup,
            libc::SYS_seccomp,
        ] {
            assert_eq!(decide(call, [0; 6]), REFUSED, "{call}");
        }
        assert_eq!(run(&program(), libc::SYS_read, 0x4000_0003, [0; 6]), REFUSED);
        assert_eq!(decide(libc::SYS_read | 0x4000_0000, [0; 6]), REFUSED);
    }

    #[test]
    fn memory_is_never_a_program_and_the_one_socket_asks_for_addresses() {
        let exec = libc::PROT_EXEC as u64;
        for call in [libc::SYS_mmap, libc::SYS_mprotect] {
            assert_eq!(decide(call, [0, 0, libc::PROT_READ as u64 | exec, 0, 0, 0]), REFUSED);
            assert_eq!(decide(call, [0, 0, (libc::PROT_READ | libc::PROT_WRITE) as u64, 0, 0, 0]), RET_ALLOW);
        }
        let option = |level: i32, name: i32| decide(libc::SYS_setsockopt, [3, level as u64, name as u64, 0, 0, 0]);
        assert_eq!(option(libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK), RET_ALLOW);
        for (level, name) in [
            (libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP),
            (libc::SOL_SOCKET, libc::NETLINK_GET_STRICT_CHK),
            (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
        ] {
            assert_eq!(option(level, name), REFUSED, "{level} {name}");
        }
        let socket = |family: i32, protocol: i32| {
            decide(libc::SYS_socket, [family as u64, libc::SOCK_RAW as u64, protocol as u64, 0, 0, 0])
        };
        assert_eq!(socket(libc::AF_NETLINK, libc::NETLINK_ROUTE), RET_ALLOW);
        for (family, protocol) in
            [(libc::AF_INET, 0), (libc::AF_INET6, 0), (libc::AF_UNIX, 0), (libc::AF_NETLINK, libc::NETLINK_NETFILTER)]
        {
            assert_eq!(socket(family, protocol), REFUSED, "{family} {protocol}");
        }
    }
}
