//! `port.dial`: a TCP connection to a port inside the sandbox, carried by frames both ways.

use crate::sys;
use crate::workers::channel::{refused, Channel, Served, Stop};
use alcove_protocol::{ErrorCode, Kind, PortDial};
use serde::Serialize;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(10);
const CHUNK: usize = 64 * 1024;

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

fn relay(channel: &mut Channel, stream: &TcpStream) -> Served {
    let mut buffer = vec![0; CHUNK];
    let (mut from_client, mut from_port) = (true, true);
    while from_client || from_port {
        let entry = |fd, wanted: bool| libc::pollfd { fd: if wanted { fd } else { -1 }, events: libc::POLLIN, revents: 0 };
        let mut polls = [entry(channel.fd(), true), entry(stream.as_raw_fd(), from_port)];
        if !from_client {
            // Only the client's going away matters now.
            polls[0].events = libc::POLLRDHUP;
        }
        let buffered = from_client && channel.has_buffered();
        // SAFETY: two valid entries.
        match sys::check(unsafe { libc::poll(polls.as_mut_ptr(), 2, if buffered { 0 } else { -1 }) }) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            Err(_) => return Err(Stop::Gone),
            Ok(_) => {}
        }
        if buffered || polls[0].revents != 0 {
            if !from_client {
                return Err(Stop::Gone);
            }
            let count = channel.receive(&mut buffer)?;
            if count == 0 {
                from_client = false;
                // The port's end may be gone already.
                let _ = stream.shutdown(Shutdown::Write);
            } else {
                let mut rest = &buffer[..count];
                while !rest.is_empty() {
                    let sent = sys::send_vectored(stream.as_raw_fd(), &[rest]).map_err(|_| Stop::Gone)?;
                    rest = &rest[sent..];
                }
            }
        }
        if polls[1].revents != 0 {
            match sys::read(stream.as_raw_fd(), &mut buffer) {
                Ok(count) if count > 0 => channel.data(&buffer[..count])?,
                _ => {
                    from_port = false;
                    channel.frame(Kind::Eof, &[])?;
                }
            }
        }
    }
    Ok(())
}
