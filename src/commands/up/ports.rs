//! Port selection: a service's default port if it is free, otherwise any free port.

use crate::commands::error::Failure;
use crate::commands::listen::{ListenAddress, check_collisions};
use crate::engine::base::HostPort;
use crate::engine::sys::ports;

/// The port request for one service.
#[derive(Clone, Copy, Debug)]
pub struct PortRequest {
    /// The service name used in errors.
    pub what: &'static str,
    /// The flag that sets the port.
    pub flag: &'static str,
    pub port: Option<u16>,
    /// The port to use if the flag is not set.
    pub default: u16,
}

/// The address on `host` for each of `requests`: the requested port, otherwise the default port if it is free, otherwise any free port.
/// If a default port is in use, a message is added to `notes`. If another process binds a port before the caller does, the caller gets the
/// usual bind error.
///
/// # Errors
/// Two requests specify the same port.
pub fn choose(host: &str, requests: &[PortRequest], notes: &mut Vec<String>) -> Result<Vec<ListenAddress>, Failure> {
    let listens: Vec<ListenAddress> = requests.iter().map(|one| address(host, one, requests, notes)).collect();
    check_collisions(&listens)?;
    Ok(listens)
}

fn address(host: &str, one: &PortRequest, all: &[PortRequest], notes: &mut Vec<String>) -> ListenAddress {
    let PortRequest { what, flag, port, default } = *one;
    let (port, origin) = if let Some(port) = port {
        (port, format!("{flag} {port} (command line)"))
    } else if let Some(holder) = holder(host, default, all) {
        notes.push(format!("port {default} is in use by {holder}: {what} will use another port"));
        (0, format!("{flag}, any free port"))
    } else {
        (default, format!("{flag} {default} (default)"))
    };
    ListenAddress { what, at: HostPort::new(host, port), origin, host_origin: format!("--host {host}") }
}

/// The process that is using `port`, or the flag that requests it.
fn holder(host: &str, port: u16, all: &[PortRequest]) -> Option<String> {
    if let Some(other) = all.iter().find(|other| other.port == Some(port)) {
        return Some(format!("{} {port}", other.flag));
    }
    (!ports::is_free(host, port))
        .then(|| ports::holder(port).map_or("another process".to_owned(), |holder| holder.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RPC: PortRequest = PortRequest { what: "the RPC", flag: "--rpc-port", port: None, default: 0 };
    const ADMIN: PortRequest = PortRequest { what: "the admin HTTP", flag: "--metrics-port", port: None, default: 0 };

    fn choose_ports(requests: &[PortRequest]) -> Result<(Vec<u16>, Vec<String>), Failure> {
        let mut notes = Vec::new();
        let chosen = choose("127.0.0.1", requests, &mut notes)?;
        Ok((chosen.iter().map(|listen| listen.at.port).collect(), notes))
    }

    #[test]
    fn a_default_port_in_use_is_replaced_and_its_holder_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("bound").port();
        let (ports, notes) = choose_ports(&[PortRequest { default: port, ..RPC }]).expect("no collision");
        assert_eq!(ports, [0]);
        assert!(notes[0].contains(&format!("pid {}", std::process::id())), "{notes:?}");
        let requested = choose_ports(&[PortRequest { default: port, port: Some(port), ..RPC }]).expect("no collision");
        assert_eq!(requested, (vec![port], vec![]), "a requested port is not replaced");
    }

    #[test]
    fn one_port_for_two_services_is_refused_and_names_both_flags() {
        let failure = choose_ports(&[PortRequest { port: Some(7), ..RPC }, PortRequest { port: Some(7), ..ADMIN }]);
        let found = failure.expect_err("a collision").found.expect("both flags");
        assert!(found.contains("--rpc-port 7") && found.contains("--metrics-port 7"), "{found}");
    }

    #[test]
    fn a_default_port_yields_to_a_requested_one() {
        let requests = [PortRequest { default: 7, ..RPC }, PortRequest { port: Some(7), ..ADMIN }];
        let (ports, notes) = choose_ports(&requests).expect("no collision");
        assert_eq!(ports, [0, 7]);
        assert!(notes[0].contains("--metrics-port 7"), "{notes:?}");
    }
}
