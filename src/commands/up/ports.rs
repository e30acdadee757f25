//! Port selection: a service's default port if it is free, otherwise the next free port outside the
//! ephemeral range.
//!
//! Any program may get a port in that range for an outgoing connection, before the store is
//! restarted.

use crate::commands::cli::error::Failure;
use crate::commands::cli::listen::{ListenAddress, check_collisions};
use crate::engine::base::HostPort;
use crate::engine::sys::ports;

/// The port request for one service.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortRequest {
    /// The service name used in errors.
    pub what: &'static str,
    /// The flag that sets the port.
    pub flag: &'static str,
    pub port: Option<u16>,
    /// The port to use if the flag is not set.
    pub default: u16,
}

/// The address on `host` for each of `requests`: the requested port, otherwise the default port if
/// it is free, otherwise a free port: see [`candidates`]. If a default port is in use, a message is
/// added to `notes`. If another process binds a port before the caller does, the caller gets the
/// usual bind error.
///
/// # Errors
/// Two requests specify the same port.
pub(super) fn choose(
    host: &str,
    requests: &[PortRequest],
    notes: &mut Vec<String>,
) -> Result<Vec<ListenAddress>, Failure> {
    let mut listens: Vec<ListenAddress> = Vec::new();
    for one in requests {
        listens.push(address(host, one, requests, &listens, notes));
    }
    check_collisions(&listens)?;
    Ok(listens)
}

/// Maximum number of ports that are tried before the kernel chooses one.
const CANDIDATES_MAX: usize = 1_000;

/// The ports to try instead of `default`: the ones after it. If those are in the ephemeral range,
/// ports that are a multiple of 10,000 lower.
fn candidates(default: u16, ephemeral: Option<(u16, u16)>) -> impl Iterator<Item = u16> {
    let is_ephemeral = move |port: u16| ephemeral.is_some_and(|(first, last)| (first..=last).contains(&port));
    let mut start = default.saturating_add(1);
    while is_ephemeral(start) && start > 10_000 + 1_024 {
        start -= 10_000;
    }
    (start..=u16::MAX).take(CANDIDATES_MAX).filter(move |port| *port >= 1_024 && !is_ephemeral(*port))
}

fn address(
    host: &str,
    one: &PortRequest,
    all: &[PortRequest],
    chosen: &[ListenAddress],
    notes: &mut Vec<String>,
) -> ListenAddress {
    let PortRequest { what, flag, port, default } = *one;
    let (port, origin) = if let Some(port) = port {
        (port, format!("{flag} {port} (command line)"))
    } else if let Some(holder) = holder(host, default, all) {
        let is_wanted = |port: u16| all.iter().any(|other| other.port == Some(port) || other.default == port);
        let is_chosen = |port: u16| chosen.iter().any(|listen| listen.at.port == port);
        let mut free = candidates(default, ports::outgoing_range())
            .filter(|port| !is_wanted(*port) && !is_chosen(*port) && ports::is_free(host, *port));
        match free.next() {
            Some(port) => {
                notes.push(format!("port {default} is in use by {holder}: {what} uses port {port}"));
                (port, format!("{flag} {port} (free port)"))
            }
            None => {
                notes.push(format!("port {default} is in use by {holder}: {what} uses any free port"));
                (0, format!("{flag}, any free port"))
            }
        }
    } else {
        (default, format!("{flag} {default} (default)"))
    };
    ListenAddress { what, at: HostPort::new(host, port), origin, host_origin: format!("--bind {host}") }
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
        let ephemeral = ports::outgoing_range().expect("a Linux host");
        assert!(!(ephemeral.0..=ephemeral.1).contains(&ports[0]) && ports[0] != 0, "{ports:?}");
        assert!(notes[0].contains(&format!("pid {}", std::process::id())), "{notes:?}");
        assert!(notes[0].ends_with(&format!("uses port {}", ports[0])), "{notes:?}");
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
        let requests = [PortRequest { default: 20_007, ..RPC }, PortRequest { port: Some(20_007), ..ADMIN }];
        let (ports, notes) = choose_ports(&requests).expect("no collision");
        assert!(ports[0] > 20_007 && ports[1] == 20_007, "{ports:?}");
        assert!(notes[0].contains("--metrics-port 20007"), "{notes:?}");
    }

    #[test]
    fn a_replacement_is_after_the_default_and_not_ephemeral() {
        let first = |default| candidates(default, Some((32_768, 60_999))).next();
        assert_eq!([8080, 9003, 50_051, 32_767].map(first), [Some(8081), Some(9004), Some(30_052), Some(22_768)]);
        assert_eq!(candidates(50_051, None).next(), Some(50_052));
        assert_eq!(candidates(80, None).next(), Some(1_024));
        assert_eq!(candidates(u16::MAX, Some((1, u16::MAX))).next(), None);
    }
}
