//! Floors the benchmark compares with.
//!
//! `alcove-floor forkexec COUNT PROGRAM [ARG…]` starts PROGRAM COUNT times from this resident process, one after the
//! other, with its output on /dev/null, and prints the nanoseconds of each run on a line of its own.

use std::process::exit;
use std::time::Instant;
use std::{ffi::CString, ptr};

fn fork_exec(argv: &[*const libc::c_char], envp: &[*const libc::c_char]) -> i32 {
    let mut pid: libc::pid_t = 0;
    // SAFETY: argv and envp are null-terminated arrays of pointers to strings that outlive the call.
    let failed = unsafe {
        libc::posix_spawn(&mut pid, argv[0], ptr::null(), ptr::null(), argv.as_ptr().cast(), envp.as_ptr().cast())
    };
    if failed != 0 {
        eprintln!("alcove-floor: cannot start the program: error {failed}");
        exit(1);
    }
    let mut status = 0;
    // SAFETY: pid is a child of this process that nobody else waits for.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    status
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let count = arguments.get(2).and_then(|text| text.parse::<u32>().ok());
    let (Some("forkexec"), Some(count), true) = (arguments.get(1).map(String::as_str), count, arguments.len() > 3) else {
        eprintln!("usage: alcove-floor forkexec COUNT PROGRAM [ARG…]");
        exit(2);
    };
    let words: Vec<CString> = arguments[3..].iter().map(|word| CString::new(word.as_str()).expect("no NUL in arguments")).collect();
    let mut argv: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).collect();
    argv.push(ptr::null());
    let envp = [ptr::null()];
    let mut report = String::new();
    for _ in 0..count {
        let started = Instant::now();
        fork_exec(&argv, &envp);
        report.push_str(&format!("{}\n", started.elapsed().as_nanos()));
    }
    print!("{report}");
}
