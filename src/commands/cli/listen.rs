//! Addresses that a command listens on: bind errors and collisions.

use std::io;

use crate::commands::cli::error::Failure;
use crate::engine::base::HostPort;
use crate::engine::http::BindError;
use crate::engine::sys::interface::hosts_overlap;
use crate::engine::sys::ports::{self, PortOwner, PortUse};

/// One address that a command will listen on.
#[derive(Clone, Debug)]
pub struct ListenAddress {
    /// The service name used in errors, e.g. `the RPC server`.
    pub what: &'static str,
    pub at: HostPort,
    /// The flag that sets the port, with value and origin.
    pub origin: String,
    /// The flag that sets the host, with value and origin.
    pub host_origin: String,
}

impl ListenAddress {
    /// The failure for an HTTP server that cannot listen on this address, or on its Unix socket.
    pub fn http_failure(&self, error: &BindError) -> Failure {
        match &error.socket {
            None => self.failure(&error.source),
            Some(path) => Failure::host(format!("cannot listen on the Unix socket {}", path.display()))
                .tried(format!("--http-socket {}", path.display()))
                .found(error.source.to_string())
                .next("use another path, or stop the process that listens on it"),
        }
    }

    /// The failure for the bind error `error`.
    pub fn failure(&self, error: &io::Error) -> Failure {
        let ListenAddress { what, at, origin, host_origin } = self;
        let tried = format!("listen on {at} for {what}: {origin}");
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                let holder = ports::holder_at(&at.host, at.port);
                let next = match &holder {
                    Some(PortOwner { port_use: PortUse::Listens, pid, .. }) => {
                        format!("stop process {pid}, or use another port")
                    }
                    _ => match ports::outgoing_range().filter(|(first, last)| (*first..=*last).contains(&at.port)) {
                        Some((first, last)) => format!(
                            "use a port outside the ephemeral range {first} to {last}, or add it to \
                             net.ipv4.ip_local_reserved_ports"
                        ),
                        None => format!(
                            "run 'ss -tanp sport = :{}' as root to find the process, or use another port",
                            at.port
                        ),
                    },
                };
                let holder = holder.map_or("by a process that is not visible to this user".to_owned(), |holder| {
                    format!("by {holder}")
                });
                Failure::host(format!("port {} for {what} is in use {holder}", at.port)).tried(tried).next(next)
            }
            io::ErrorKind::PermissionDenied => {
                Failure::host(format!("this user is not allowed to listen on port {}", at.port))
                    .tried(tried)
                    .found(error.to_string())
                    .next("use port 1024 or higher, or grant CAP_NET_BIND_SERVICE")
            }
            io::ErrorKind::AddrNotAvailable => Failure::usage(format!("{} is not an address on this host", at.host))
                .tried(format!("listen on {at} for {what}: {host_origin}"))
                .found(error.to_string())
                .next("use one of this host's addresses (ip -brief address lists them)"),
            _ => Failure::host(format!("cannot listen on {at} for {what}"))
                .tried(format!("{origin}, {host_origin}"))
                .found(error.to_string())
                .next("use an address and port that this host can listen on"),
        }
    }
}

/// Checks that no two of `listens` use the same port on the same address.
///
/// # Errors
/// Two addresses collide. The failure names both flags.
pub fn check_collisions(listens: &[ListenAddress]) -> Result<(), Failure> {
    for (index, one) in listens.iter().enumerate() {
        for other in &listens[index + 1..] {
            if one.at.port != 0 && one.at.port == other.at.port && hosts_overlap(&one.at.host, &other.at.host) {
                return Err(Failure::usage(format!(
                    "{} and {} have the same port, {}",
                    one.what, other.what, one.at.port
                ))
                .found(format!("{} and {}", one.origin, other.origin))
                .next("set a different port for each service"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;

    fn listen(what: &'static str, host: &str, port: u16) -> ListenAddress {
        ListenAddress {
            what,
            at: HostPort::new(host, port),
            origin: format!("--{what} {port} (default)"),
            host_origin: format!("--{what}-host {host} (default)"),
        }
    }

    #[test]
    fn a_port_in_use_names_the_process_that_holds_it() {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = holder.local_addr().expect("bound").port();
        let failure = listen("rpc", "127.0.0.1", port).failure(&io::ErrorKind::AddrInUse.into());
        assert_eq!(failure.exit, Exit::Host);
        assert!(failure.what.contains(&format!("{port} for rpc")), "{failure}");
        assert!(failure.what.contains(&format!("by pid {} (", std::process::id())), "{failure}");
        assert!(failure.tried.is_some_and(|tried| tried.contains(&format!("--rpc {port} (default)"))));
    }

    #[test]
    fn two_services_on_one_port_and_address_are_refused() {
        let check = |a: &str, b: &str| check_collisions(&[listen("one", a, 7), listen("two", b, 7)]);
        let failure = check("0.0.0.0", "127.0.0.1").expect_err("overlap");
        assert_eq!(failure.found.as_deref(), Some("--one 7 (default) and --two 7 (default)"));
        assert!(check("127.0.0.1", "127.0.0.1").is_err());
        assert!(check("localhost", "127.0.0.1").is_err());
        assert!(check("127.0.0.1", "127.0.0.2").is_ok());
        assert!(check_collisions(&[listen("one", "::", 0), listen("two", "::", 0)]).is_ok());
    }
}
