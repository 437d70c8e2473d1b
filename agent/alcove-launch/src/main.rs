//! `alcove-launch serve`: takes one JSON request per line from standard input and answers one JSON line each on
//! standard output, each request in a process of its own; with three more arguments it keeps writable layers ready for
//! launches that want one made from that template. `alcove-launch one`: a single request, for people and tests.
//!
//! The service keeps one of these because starting a process from a large one takes milliseconds. It ends with the
//! service, when its standard input closes; sandboxes stay.

mod cgroup;
mod child;
mod debts;
mod destroy;
mod disk;
mod error;
mod figures;
mod folder;
mod harden;
mod idmap;
mod inside;
mod landlock;
mod launch;
mod lend;
mod naming;
mod network;
mod overlay;
mod parcels;
mod park;
mod pool;
mod quiet;
mod range;
mod remove;
mod serve;
mod shift;
mod spec;

use alcove_sys as sys;
use std::process::ExitCode;

fn main() -> ExitCode {
    sys::close_relocations();
    end_alone_of_a_panic();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map_or("", String::as_str) {
        "serve" => serve::serve(&arguments[1..]),
        "one" => serve::one(),
        "--version" => {
            println!("alcove-launch {} {}", env!("CARGO_PKG_VERSION"), sys::C_LIBRARY);
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("usage: alcove-launch serve [DISK_TEMPLATE POOL_DIR COUNT] | one | --version");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("alcove-launch: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A child cloned by the system call alone still has its parent's number in the library's memory, with which musl's `abort` sends its signal:
/// a panic in a launch would end the launcher.
fn end_alone_of_a_panic() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        // SAFETY: plain number, as a shell tells an abort.
        unsafe { libc::_exit(134) };
    }));
}
