//! Floors the benchmark compares with, and the client whose calls it times.
//!
//! `alcove-floor forkexec COUNT PROGRAM [ARG…]` starts PROGRAM COUNT times from this resident process, one after the
//! other, with its output on /dev/null, and prints the nanoseconds of each run on a line of its own.
//!
//! `alcove-floor serve PORT` answers HTTP on the loopback: `/bytes/N` with N bytes, everything else with "ok"; an upgrade is agreed to, and what comes is said again.
//!
//! `alcove-floor http …` is the other side, see `http.rs`.

mod http;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::exit;
use std::thread;
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

static BLOCK: [u8; 256 * 1024] = [b'x'; 256 * 1024];

/// One connection, for as many requests as come on it. Bodies are not looked for.
fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut output = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut upgrades = false;
        let path = line.split(' ').nth(1).unwrap_or("/").to_owned();
        loop {
            line.clear();
            if input.read_line(&mut line)? == 0 || line == "\r\n" {
                break;
            }
            upgrades |= line.eq_ignore_ascii_case("upgrade: websocket\r\n");
        }
        let mut left: usize = path.strip_prefix("/bytes/").and_then(|count| count.parse().ok()).unwrap_or(0);
        if upgrades {
            output
                .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")?;
            // Whatever comes is said again.
            return std::io::copy(&mut input, &mut output).map(|_| ());
        }
        if left == 0 {
            output.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
            continue;
        }
        output.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n").as_bytes())?;
        while left > 0 {
            let count = left.min(BLOCK.len());
            output.write_all(&BLOCK[..count])?;
            left -= count;
        }
    }
}

fn serve(port: u16) -> std::io::Result<()> {
    for stream in TcpListener::bind(("127.0.0.1", port))?.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        thread::spawn(|| answer(stream));
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let (Some("serve"), Some(port)) = (arguments.get(1).map(String::as_str), arguments.get(2)) {
        let port = port.parse().expect("a port");
        serve(port).expect("the port can be listened on");
        return;
    }
    if let (Some("http"), 5..=6) = (arguments.get(1).map(String::as_str), arguments.len()) {
        let numbers: Vec<u64> = arguments[2..].iter().map(|text| text.parse().expect("a number")).collect();
        let report = http::run(numbers[0] as u16, numbers[1] as u32, numbers[2] as u32, numbers.get(3).copied());
        println!("{}", report.join("\n"));
        return;
    }
    let count = arguments.get(2).and_then(|text| text.parse::<u32>().ok());
    let (Some("forkexec"), Some(count), true) = (arguments.get(1).map(String::as_str), count, arguments.len() > 3)
    else {
        eprintln!(
            "usage: alcove-floor forkexec COUNT PROGRAM [ARG…] | serve PORT | http PORT CLIENTS COUNT [MILLISECONDS]"
        );
        exit(2);
    };
    let words: Vec<CString> =
        arguments[3..].iter().map(|word| CString::new(word.as_str()).expect("no NUL in arguments")).collect();
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
