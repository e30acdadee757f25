//! Addresses that a command listens on: what is wrong when it cannot, and whether two of them collide.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};

use crate::commands::error::Failure;
use crate::engine::base::HostPort;
use crate::engine::sys::ports::{self, Holder, Use};

/// One address that a command will listen on.
#[derive(Clone, Debug)]
pub struct Listen {
    /// What listens there: `the RPC server`.
    pub what: &'static str,
    /// Where.
    pub at: HostPort,
    /// The flag that chose the port, its value and where that came from.
    pub origin: String,
    /// The flag that chose the host, likewise.
    pub host_origin: String,
}

impl Listen {
    /// Why it cannot listen there.
    pub fn failure(&self, error: &io::Error) -> Failure {
        let Listen { what, at, origin, host_origin } = self;
        let tried = format!("listen on {at} for {what}: {origin}");
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                let holder = ports::holder(at.port);
                let next = match &holder {
                    Some(Holder { does: Use::Listens, pid, .. }) => {
                        format!("stop process {pid}, or choose another port")
                    }
                    _ => match ports::outgoing_range().filter(|(first, last)| (*first..=*last).contains(&at.port)) {
                        Some((first, last)) => format!(
                            "choose a port outside {first} to {last}, from which outgoing connections take theirs, or reserve this \
                             one in net.ipv4.ip_local_reserved_ports"
                        ),
                        None => format!("find it with 'ss -tanp sport = :{}' as root, or choose another port", at.port),
                    },
                };
                let holder = holder
                    .map_or("by a process that cannot be seen from here".to_owned(), |holder| format!("by {holder}"));
                Failure::host(format!("port {} for {what} is in use {holder}", at.port)).tried(tried).next(next)
            }
            io::ErrorKind::PermissionDenied => Failure::host(format!("this user may not listen on port {}", at.port))
                .tried(tried)
                .found(error.to_string())
                .next("choose a port of 1024 or above, or grant CAP_NET_BIND_SERVICE"),
            io::ErrorKind::AddrNotAvailable => Failure::usage(format!("{} is not an address of this host", at.host))
                .tried(format!("listen on {at} for {what}: {host_origin}"))
                .found(error.to_string())
                .next("give an address of this host, or 0.0.0.0 for all of them"),
            _ => Failure::host(format!("cannot listen on {at} for {what}"))
                .tried(format!("{origin}, {host_origin}"))
                .found(error.to_string())
                .next("give a host and port that this machine can listen on"),
        }
    }
}

/// Check that no two of `listens` want the same port of the same address.
///
/// # Errors
/// Two do; both flags are named.
pub fn check_collisions(listens: &[Listen]) -> Result<(), Failure> {
    for (index, one) in listens.iter().enumerate() {
        for other in &listens[index + 1..] {
            if one.at.port != 0 && one.at.port == other.at.port && overlap(&one.at.host, &other.at.host) {
                return Err(Failure::usage(format!(
                    "{} and {} are given one port, {}",
                    one.what, other.what, one.at.port
                ))
                .found(format!("{} and {}", one.origin, other.origin))
                .next("give each its own port"));
            }
        }
    }
    Ok(())
}

/// Do two hosts have an address in common? A name that cannot be resolved is only like itself.
fn overlap(one: &str, other: &str) -> bool {
    let addresses = |host: &str| -> Vec<IpAddr> {
        let found = (host, 0).to_socket_addrs().map(|found| found.map(|address| address.ip()).collect());
        found.unwrap_or_default()
    };
    let is_any = |host: &str| matches!(host, "0.0.0.0" | "::" | "");
    one == other || is_any(one) || is_any(other) || {
        let others = addresses(other);
        addresses(one).iter().any(|address| others.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::error::Exit;

    fn listen(what: &'static str, host: &str, port: u16) -> Listen {
        Listen {
            what,
            at: HostPort::new(host, port),
            origin: format!("--{what} {port} (default)"),
            host_origin: format!("--{what}-host {host} (default)"),
        }
    }

    #[test]
    fn a_port_in_use_names_its_holder() {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = holder.local_addr().expect("bound").port();
        let failure = listen("rpc", "127.0.0.1", port).failure(&io::ErrorKind::AddrInUse.into());
        assert_eq!(failure.exit, Exit::Host);
        assert!(failure.what.starts_with(&format!("port {port} for rpc is in use by pid {} (", std::process::id())));
        assert_eq!(failure.tried, Some(format!("listen on 127.0.0.1:{port} for rpc: --rpc {port} (default)")));
    }

    #[test]
    fn two_services_on_one_port_are_refused_unless_their_addresses_differ() {
        let check = |a: &str, b: &str| check_collisions(&[listen("one", a, 7), listen("two", b, 7)]);
        assert_eq!(check("0.0.0.0", "127.0.0.1").expect_err("overlap").what, "one and two are given one port, 7");
        assert!(check("127.0.0.1", "127.0.0.1").is_err());
        assert!(check("localhost", "127.0.0.1").is_err());
        assert!(check("127.0.0.1", "127.0.0.2").is_ok());
        assert!(check_collisions(&[listen("one", "::", 0), listen("two", "::", 0)]).is_ok());
    }
}
