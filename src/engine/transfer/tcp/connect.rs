//! Resolving and connecting, each within its time.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::engine::base::HostPort;
use crate::engine::transfer::tcp::watch::TICK;

/// How long a name may take.
const RESOLVE_LIMIT: Duration = Duration::from_secs(3);
/// More addresses of one name are not tried.
const ADDRESSES_MAX: usize = 4;

/// The addresses of `at`. A name that is not an address is looked up on a thread of its own, because the system's resolver takes no
/// time limit.
///
/// # Errors
/// The resolver's, or `TimedOut`.
pub(super) fn resolve(at: &HostPort, limit: Duration) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = at.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, at.port)]);
    }
    let (tell, told) = mpsc::channel();
    let (host, port) = (at.host.clone(), at.port);
    thread::Builder::new().name("te-resolve".into()).spawn(move || {
        let found = (host.as_str(), port).to_socket_addrs().map(|all| all.take(ADDRESSES_MAX).collect::<Vec<_>>());
        // Whoever asked may have given up.
        let _ = tell.send(found);
    })?;
    let found = told.recv_timeout(limit.min(RESOLVE_LIMIT)).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(found)
}

/// A connection to the first of `addresses` that answers, ready for blocking calls that wake up every [`TICK`].
///
/// # Errors
/// The last refusal, or `TimedOut`.
pub(super) fn connect(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        // Zero would mean no limit.
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
    fn addresses_resolve_without_asking_anybody_and_names_within_their_time() {
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
