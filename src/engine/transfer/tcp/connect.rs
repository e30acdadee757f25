//! Resolves names and opens connections, each with a time limit.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::tcp::progress::TICK;
use mcctl_base::HostPort;

/// Timeout for resolving a name.
const RESOLVE_LIMIT: Duration = Duration::from_secs(3);
/// Maximum number of addresses to try per name.
const ADDRESSES_MAX: usize = 4;

/// Resolves `at`. Names are resolved on a separate thread, because the system resolver has no time
/// limit.
///
/// # Errors
/// Fails with the resolver's error, or with `TimedOut`.
pub(super) fn resolve(at: &HostPort, limit: Duration) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = at.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, at.port)]);
    }
    let (sender, receiver) = mpsc::channel();
    let host = at.host.clone();
    let port = at.port;
    thread::Builder::new().name("te-resolve".into()).spawn(move || {
        let found = (host.as_str(), port).to_socket_addrs().map(|all| all.take(ADDRESSES_MAX).collect::<Vec<_>>());
        // The caller may have timed out.
        let _ = sender.send(found);
    })?;
    let found =
        receiver.recv_timeout(limit.min(RESOLVE_LIMIT)).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host name has no address"));
    }
    Ok(found)
}

/// Connects to the first of `addresses` that responds. Blocking calls on the connection wake up
/// every [`TICK`].
///
/// # Errors
/// Fails with the last address's error, which may be `TimedOut`.
pub(super) fn connect(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        // `connect_timeout` rejects a zero timeout.
        match TcpStream::connect_timeout(address, limit.max(Duration::from_millis(1))) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TICK))?;
                stream.set_write_timeout(Some(TICK))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_no_resolver_and_names_have_a_limit() {
        let limit = Duration::from_secs(3);
        let v6 = resolve(&HostPort::new("::1", 5), limit).unwrap();
        assert_eq!(v6, ["[::1]:5".parse().unwrap()]);
        assert!(resolve(&HostPort::new("localhost", 5), limit).unwrap().iter().all(|a| a.ip().is_loopback()));
        assert!(resolve(&HostPort::new("no.such.host.invalid", 5), limit).is_err());
    }

    #[test]
    fn a_closed_port_is_refused_at_once() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = connect(&[free], Duration::from_secs(3)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
