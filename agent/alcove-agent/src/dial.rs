//! `port.dial`: a TCP connection to a port inside the sandbox, carried by frames both ways.

use crate::sys;
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ErrorCode, Kind, PortDial, frame};
use serde::Serialize;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

const CONNECT: Duration = Duration::from_secs(10);
/// How long a client that was told everything may take to close.
const LINGER: Duration = Duration::from_secs(10);
/// With its header as much as the service reads at once.
const CHUNK: usize = 64 * 1024 - frame::HEADER_LENGTH;

#[derive(Serialize)]
struct Empty {}

fn connect(request: &PortDial) -> Result<TcpStream, Stop> {
    let addresses: Vec<IpAddr> = match request.host.as_deref() {
        None | Some("" | "localhost") => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        Some(host) => vec![host.parse().map_err(|_| {
            refused(ErrorCode::BadRequest, format!("host {host:?} is neither an IP address nor localhost"))
        })?],
    };
    if request.port == 0 {
        return Err(refused(ErrorCode::BadRequest, "port 0 cannot be dialled"));
    }
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&SocketAddr::new(address, request.port), CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = last.or(Some(error)),
        }
    }
    Err(match last {
        Some(error) => unreached(request.port, &error),
        None => refused(ErrorCode::NotFound, format!("port {} has no address", request.port)),
    })
}

fn unreached(port: u16, error: &io::Error) -> Stop {
    match error.kind() {
        ErrorKind::ConnectionRefused => refused(ErrorCode::NotFound, format!("nothing listens on port {port}")),
        ErrorKind::TimedOut => {
            refused(ErrorCode::Timeout, format!("port {port} took no connection within {} s", CONNECT.as_secs()))
        }
        _ => refused(ErrorCode::Io, format!("port {port} cannot be reached: {}", sys::reason(error))),
    }
}

pub fn dial(channel: &mut Channel, request: &PortDial) -> Served {
    let stream = connect(request)?;
    // Small writes of an interactive protocol must not wait for each other.
    let _ = stream.set_nodelay(true);
    channel.reply(&Empty {})?;
    channel.flush()?;
    // A dialled connection carries nothing else afterwards: whatever ends it, it is closed.
    if let Ok(Ended::ByPort) = relay(channel, &stream) {
        drop(stream);
        linger(channel.fd());
    }
    Err(Stop::Gone)
}

/// Bytes on their way to a socket that did not take them at once.
#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    sent: usize,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Sends what the socket takes without waiting.
    fn send(&mut self, fd: RawFd) -> io::Result<()> {
        while !self.is_empty() {
            match sys::send_now(fd, &self.bytes[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}

/// How both directions came to their end.
enum Ended {
    InOrder,
    /// Nothing more comes of the port and nothing reaches it, while the client may still be sending.
    ByPort,
}

/// Carries both directions independently: neither waits for a peer that only reads once the other has been written. What the
/// port said before it broke goes to the client, without an `eof`: nobody may take it for all there was.
fn relay(channel: &mut Channel, stream: &TcpStream) -> Result<Ended, Stop> {
    let mut buffer = vec![0; CHUNK];
    let (mut to_client, mut to_port) = (Waiting::default(), Waiting::default());
    let (mut from_client, mut from_port, mut port_shut) = (true, true, false);
    // Takes no more; and: a send was told that it was reset, which the reads behind what has come are not told again.
    let (mut port_deaf, mut port_reset) = (false, false);
    let (client, port) = (channel.fd(), stream.as_raw_fd());
    while from_port || !to_client.is_empty() || (!port_deaf && (from_client || !to_port.is_empty())) {
        let mut polls = [
            libc::pollfd { fd: client, events: libc::POLLRDHUP, revents: 0 },
            libc::pollfd { fd: port, events: 0, revents: 0 },
        ];
        let read_client = from_client && to_port.is_empty();
        let read_port = from_port && to_client.is_empty();
        polls[0].events |=
            if read_client { libc::POLLIN } else { 0 } | if to_client.is_empty() { 0 } else { libc::POLLOUT };
        polls[1].events |=
            if read_port { libc::POLLIN } else { 0 } | if to_port.is_empty() { 0 } else { libc::POLLOUT };
        if polls[1].events == 0 {
            // A closed port would be reported again and again though nothing can be done about it now.
            polls[1].fd = -1;
        }
        let buffered = read_client && channel.has_buffered();
        // SAFETY: two valid entries.
        match sys::check(unsafe { libc::poll(polls.as_mut_ptr(), 2, if buffered { 0 } else { -1 }) }) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            Err(_) => return Err(Stop::Gone),
            Ok(_) => {}
        }
        if polls[0].revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
            && polls[0].revents & libc::POLLIN == 0
        {
            return Err(Stop::Gone);
        }
        if read_client && (buffered || polls[0].revents & libc::POLLIN != 0) {
            let count = channel.receive(&mut buffer)?;
            from_client = count > 0;
            // What nobody takes is read and dropped: the answer may be on the way, and a client that cannot write gives it up.
            if !port_deaf {
                to_port.bytes.extend_from_slice(&buffer[..count]);
            }
        }
        // That it takes more is no sign that it has something to say: a read would wait for that.
        if read_port && polls[1].revents & !libc::POLLOUT != 0 {
            match sys::read(port, &mut buffer) {
                Ok(0) if !port_reset => {
                    from_port = false;
                    frame::encode(&mut to_client.bytes, Kind::Eof, &[]);
                }
                Ok(count) if count > 0 => {
                    frame::encode(&mut to_client.bytes, Kind::Data, &buffer[..count]);
                    // A program that writes an answer in small parts may not send the second before the first was acknowledged.
                    if count < buffer.len() {
                        sys::acknowledge_now(port);
                    }
                }
                _ => {
                    from_port = false;
                    port_deaf = true;
                    to_port = Waiting::default();
                }
            }
        }
        to_client.send(client).map_err(|_| Stop::Gone)?;
        if let Err(error) = to_port.send(port) {
            // A broken pipe alone is a port that had ended its own direction in order before.
            port_reset |= error.kind() != ErrorKind::BrokenPipe;
            to_port = Waiting::default();
            port_deaf = true;
        }
        if !from_client && to_port.is_empty() && !port_shut {
            port_shut = true;
            // The port's end may be gone already.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
    Ok(if port_deaf { Ended::ByPort } else { Ended::InOrder })
}

/// Ends this side alone and drops what the client still sends until it closes. With the whole connection closed its next write
/// would fail, and it might give up what it was told and has not read.
fn linger(client: RawFd) {
    let until = Instant::now() + LINGER;
    let mut sink = vec![0; CHUNK];
    // SAFETY: no memory is involved; a client that is gone is found out below.
    unsafe { libc::shutdown(client, libc::SHUT_WR) };
    loop {
        let left = until.saturating_duration_since(Instant::now()).as_millis() as libc::c_int;
        let mut poll = libc::pollfd { fd: client, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        match sys::check(unsafe { libc::poll(&raw mut poll, 1, left) }) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Ok(count) if count > 0 && sys::read(client, &mut sink).is_ok_and(|count| count > 0) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_port_was_not_reached_is_told() {
        for (kind, code) in [
            (ErrorKind::ConnectionRefused, ErrorCode::NotFound),
            (ErrorKind::TimedOut, ErrorCode::Timeout),
            (ErrorKind::ConnectionReset, ErrorCode::Io),
        ] {
            match unreached(80, &kind.into()) {
                Stop::Refused(error) => assert_eq!(error.code, code, "{}", error.message),
                Stop::Gone => panic!("{kind:?}"),
            }
        }
    }
}
