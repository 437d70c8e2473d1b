//! What concerns a whole machine: its root, its name, its clock, its random numbers, its end.

use crate::descriptors::{check, open};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;

/// Of `linux/random.h`; libc does not name them.
const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;
const MOST_ENTROPY: usize = 256;

/// `rand_pool_info` with room for what [`add_entropy`] takes.
#[repr(C)]
struct Pool {
    bits: libc::c_int,
    bytes: libc::c_int,
    contents: [u8; MOST_ENTROPY],
}

/// Makes the mounted file system at `new_root`, with all that is mounted in it, this process's root, and lets go of the one
/// before it.
pub fn replace_root(new_root: &str) -> Result<()> {
    std::env::set_current_dir(new_root)?;
    // SAFETY: constant strings. With both the same the old root comes to lie over the new one, from where it is taken.
    unsafe {
        check(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
        check(libc::umount2(c".".as_ptr(), libc::MNT_DETACH))?;
    }
    std::env::set_current_dir("/")
}

pub fn set_hostname(name: &str) -> Result<()> {
    // SAFETY: pointer and length belong together.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

pub fn hostname() -> Result<String> {
    // The longest that Linux has, and its end.
    let mut name = [0u8; 65];
    // SAFETY: pointer and length belong together.
    check(unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) })?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// @param milliseconds since 1970 UTC.
pub fn set_wall_clock(milliseconds: u64) -> Result<()> {
    let out_of_range = || Error::from_raw_os_error(libc::EINVAL);
    let time = libc::timespec {
        tv_sec: (milliseconds / 1000).try_into().map_err(|_| out_of_range())?,
        tv_nsec: (milliseconds % 1000 * 1_000_000) as libc::c_long,
    };
    // SAFETY: the structure outlives the call.
    check(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &time) }).map(drop)
}

/// Adds secret bytes, 256 at most, to the kernel's pool, counted in full, and makes its generator start again from them.
pub fn add_entropy(secret: &[u8]) -> Result<()> {
    let mut pool = Pool { bits: 0, bytes: 0, contents: [0; MOST_ENTROPY] };
    let Some(room) = pool.contents.get_mut(..secret.len()) else {
        return Err(Error::from_raw_os_error(libc::E2BIG));
    };
    room.copy_from_slice(secret);
    pool.bytes = secret.len() as libc::c_int;
    pool.bits = pool.bytes * 8;
    let device = open(c"/dev/urandom", libc::O_RDWR | libc::O_NOCTTY, 0)?;
    // SAFETY: the structure is longer than the lengths in it say; the second request has no argument.
    unsafe {
        check(libc::ioctl(device.as_raw_fd(), RNDADDENTROPY, &raw const pool))?;
        check(libc::ioctl(device.as_raw_fd(), RNDRESEEDCRNG)).map(drop)
    }
}

/// Has the kernel tell process 1 of the keys that reset a machine, by SIGINT, instead of resetting it.
pub fn take_over_reset() {
    // SAFETY: plain number. Where it is refused, the kernel goes on resetting.
    unsafe { libc::reboot(libc::RB_DISABLE_CAD) };
}

/// Ends the machine, as its process 1: a reset, which a microVM's monitor takes for its end, else power off. Returns only
/// what kept it from ending.
pub fn end_machine() -> Error {
    // SAFETY: plain numbers.
    unsafe {
        libc::sync();
        libc::reboot(libc::RB_AUTOBOOT);
        libc::reboot(libc::RB_POWER_OFF);
    }
    Error::last_os_error()
}
