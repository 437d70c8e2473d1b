//! Life under a path translator (`--compat`): a ptrace program that knows the system calls of its day and rewrites the
//! paths in them. Two things it does not do are done here, once, for the agent and everything it starts:
//!
//! - A call it does not know goes through with the path as it is, and so to the host's files. Those calls answer
//!   ENOSYS; libraries then fall back to the older ones that are translated.
//! - When it is killed, what it traced goes on, untranslated. The agent dies with it.

use std::io::{Error, Result};

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

/// Set in the numbers of x86's x32 calls, which are another table.
const X32_BIT: u32 = 0x4000_0000;

/// Calls that take paths, or mounts, or start processes, and that proot 5.1 does not know. Numbers from 424 on are the
/// same on every architecture; they are written out because older headers lack some.
const UNKNOWN_TO_TRANSLATORS: &[u32] = &[
    libc::SYS_statx as u32,
    libc::SYS_renameat2 as u32,
    libc::SYS_execveat as u32,
    libc::SYS_name_to_handle_at as u32,
    libc::SYS_open_by_handle_at as u32,
    libc::SYS_fanotify_mark as u32,
    425, // io_uring_setup: its operations are no system calls at all
    428, // open_tree
    429, // move_mount
    430, // fsopen
    431, // fsconfig
    432, // fsmount
    433, // fspick
    435, // clone3
    437, // openat2
    439, // faccessat2
    442, // mount_setattr
    452, // fchmodat2
    463, // setxattrat
    464, // getxattrat
    465, // listxattrat
    466, // removexattrat
    467, // open_tree_attr
    468, // file_getattr
    469, // file_setattr
];

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

fn step(code: u16, k: u32, yes: u8, no: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt: yes, jf: no, k }
}

/// Foreign architectures, whose numbers mean other things, and the listed calls answer ENOSYS; the rest is allowed.
fn filter() -> Vec<libc::sock_filter> {
    let listed = UNKNOWN_TO_TRANSLATORS.len() as u8;
    let mut program = vec![
        step(LOAD_WORD, ARCHITECTURE, 0, 0),
        step(IF_EQUAL, AUDIT_ARCH, 0, listed + 3),
        step(LOAD_WORD, NUMBER, 0, 0),
        step(IF_AT_LEAST, X32_BIT, listed + 1, 0),
    ];
    for (index, number) in UNKNOWN_TO_TRANSLATORS.iter().enumerate() {
        program.push(step(IF_EQUAL, *number, listed - index as u8, 0));
    }
    program.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    program.push(step(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32, 0, 0));
    program
}

/// Must run before any other thread or process is started, so that nothing escapes it.
pub fn install() -> Result<()> {
    let program = filter();
    let fprog = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let zero: libc::c_ulong = 0;
    // SAFETY: plain settings of this process; the filter outlives the call that copies it.
    unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, zero, zero, zero))?;
        // A translator that died before this sends no signal any more, and has left us to init.
        if libc::getppid() == 1 {
            return Err(Error::other("the path translator is gone"));
        }
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as libc::c_ulong, zero, zero, zero))?;
        check(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER as libc::c_ulong, &fprog))
    }
}

fn check(result: libc::c_int) -> Result<()> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_of_the_filter_lands_on_a_return_or_the_next_step() {
        let program = filter();
        let refuse = program.len() - 1;
        assert_eq!(program[refuse].k & 0xffff, libc::ENOSYS as u32);
        for (index, step) in program.iter().enumerate().filter(|(_, step)| step.code == IF_EQUAL) {
            let target = index + 1 + usize::from(step.jt);
            if step.k == AUDIT_ARCH {
                assert_eq!(index + 1 + usize::from(step.jf), refuse);
            } else {
                assert_eq!(target, refuse, "{}", step.k);
            }
        }
        assert_eq!(4 + usize::from(program[3].jt), refuse);
    }
}
