//! `port.dial`: a TCP connection to a port inside the sandbox, carried by frames both ways.

use crate::sys;
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ErrorCode, Kind, PortDial, frame};
use serde::Serialize;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(10);
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
    let port = request.port;
    Err(match last {
        Some(error) if error.kind() == ErrorKind::ConnectionRefused => {
            refused(ErrorCode::NotFound, format!("nothing listens on port {port}"))
        }
        Some(error) => refused(ErrorCode::Io, format!("port {port} cannot be reached: {error}")),
        None => refused(ErrorCode::NotFound, format!("port {port} has no address")),
    })
}

pub fn dial(channel: &mut Channel, request: &PortDial) -> Served {
    let stream = connect(request)?;
    // Small writes of an interactive protocol must not wait for each other.
    let _ = stream.set_nodelay(true);
    channel.reply(&Empty {})?;
    channel.flush()?;
    // A dialled connection carries nothing else afterwards: whatever ends it, it is closed.
    let _ = relay(channel, &stream);
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
    fn send(&mut self, fd: RawFd) -> Served {
        while !self.is_empty() {
            match sys::send_now(fd, &self.bytes[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(Stop::Gone),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}

/// Carries both directions independently: neither waits for a peer that only reads once the other has been written.
fn relay(channel: &mut Channel, stream: &TcpStream) -> Served {
    let mut buffer = vec![0; CHUNK];
    let (mut to_client, mut to_port) = (Waiting::default(), Waiting::default());
    let (mut from_client, mut from_port, mut port_shut) = (true, true, false);
    let (client, port) = (channel.fd(), stream.as_raw_fd());
    while from_client || from_port || !to_client.is_empty() || !to_port.is_empty() {
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
            to_port.bytes.extend_from_slice(&buffer[..count]);
        }
        // That it takes more is no sign that it has something to say: a read would wait for that.
        if read_port && polls[1].revents & !libc::POLLOUT != 0 {
            match sys::read(port, &mut buffer) {
                Ok(count) if count > 0 => frame::encode(&mut to_client.bytes, Kind::Data, &buffer[..count]),
                _ => {
                    from_port = false;
                    frame::encode(&mut to_client.bytes, Kind::Eof, &[]);
                }
            }
        }
        to_client.send(client)?;
        if to_port.send(port).is_err() {
            // The port reads no more: what the client still sends has nowhere to go, but its answer may be on the way.
            to_port = Waiting::default();
            from_client = false;
        }
        if !from_client && to_port.is_empty() && !port_shut {
            port_shut = true;
            // The port's end may be gone already.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
    Ok(())
}
