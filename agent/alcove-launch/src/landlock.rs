//! Landlock, where the kernel has it (ABI 6, Linux 6.12): abstract unix sockets and signals stay within the sandbox.
//!
//! Files need no rules: nothing but the sandbox's own root can be named. Scoping is what namespaces leave open: in
//! network mode `host` the abstract sockets of the host would be in reach.

use crate::error::{AtStep, Result};
use crate::sys;

const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;
const SCOPE_SIGNAL: u64 = 2;
/// Every access to files that the first version knows.
const FIRST_ACCESS_FS: u64 = (1 << 13) - 1;
const CREATE_RULESET_VERSION: u32 = 1;
const ABI_WITH_SCOPES: libc::c_long = 6;

#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

pub fn confine() -> Result<()> {
    if abi() < ABI_WITH_SCOPES {
        return Ok(());
    }
    restrict(RulesetAttr {
        handled_access_fs: 0,
        handled_access_net: 0,
        scoped: SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL,
    })
}

/// No file is opened, run, made or removed any more.
pub fn close_files() -> Result<()> {
    if abi() < 1 {
        return Ok(());
    }
    restrict(RulesetAttr { handled_access_fs: FIRST_ACCESS_FS, handled_access_net: 0, scoped: 0 })
}

fn abi() -> libc::c_long {
    // SAFETY: asks for the version only.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, CREATE_RULESET_VERSION) }
}

fn restrict(attributes: RulesetAttr) -> Result<()> {
    const STEP: &str = "landlock";
    // Older kernels know the beginning of it, and take zeros for the rest.
    // SAFETY: the struct is alive and its size given; the descriptor is closed here.
    unsafe {
        let ruleset = sys::check(libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const attributes,
            size_of::<RulesetAttr>(),
            0,
        ))
        .at(STEP, "ruleset")?;
        sys::check(libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0)).at(STEP, "restrict")?;
        libc::close(ruleset as i32);
    }
    Ok(())
}
