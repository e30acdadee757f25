//! The name under which a node appears: what the operator gave, with a port of its own.
//!
//! The port names the node and is not listened on; it is bound all the same, so that two nodes of one host cannot take the same
//! name. Upstream: `real_client.cpp`, `MC_STORE_CLIENT_MIN_PORT`, `MC_STORE_CLIENT_MAX_PORT`.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};

use crate::engine::base::HostPort;
use crate::engine::base::addr::{ParseAddrError, host_is_loopback};

/// Upstream's range of ports for names.
pub const PORTS: (u16, u16) = (12300, 14300);
/// Ports that are tried before giving up.
const TRIES: u64 = 200;

/// A node's name, reserved for as long as this lives.
#[derive(Debug)]
pub struct NodeName {
    /// Host and port.
    pub name: HostPort,
    /// Bound, but not listening: whoever mistakes the name for an address is refused at once.
    _reserved: Option<OwnedFd>,
}

/// No name could be made.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// What the operator gave is no host.
    #[error(transparent)]
    Host(#[from] ParseAddrError),
    /// No port was free.
    #[error("no free port for the node's name in {}..={} ({tries} were tried); widen the range", range.0, range.1)]
    NoPort {
        /// The range.
        range: (u16, u16),
        /// How many were tried.
        tries: u64,
    },
}

impl NodeName {
    /// The name for `local_hostname`: taken as it is when it has a port, else with one from `range`, chosen by `random`.
    ///
    /// # Errors
    /// The host is not one, or no port is free.
    pub fn reserve(
        local_hostname: &str,
        range: (u16, u16),
        mut random: impl FnMut() -> u64,
    ) -> Result<NodeName, NameError> {
        let (host, port) = HostPort::split(local_hostname)?;
        if let Some(port) = port {
            return Ok(NodeName { name: HostPort::new(host, port), _reserved: None });
        }
        let span = u64::from(range.1.saturating_sub(range.0)) + 1;
        for _ in 0..TRIES.min(span * 4) {
            let port = range.0 + u16::try_from(random() % span).expect("below a span of 16 bits");
            if let Ok(reserved) = reserve_port(Ipv4Addr::UNSPECIFIED, port) {
                return Ok(NodeName { name: HostPort::new(host, port), _reserved: Some(reserved) });
            }
        }
        Err(NameError::NoPort { range, tries: TRIES.min(span * 4) })
    }

    /// Reserve the port that came with the name, too, where nothing else is to listen on it; `false` when somebody on this host
    /// has it: most likely another node of the same name.
    pub fn hold(&mut self) -> bool {
        if self._reserved.is_some() {
            return true;
        }
        let address = self.name.host.parse().unwrap_or(Ipv4Addr::UNSPECIFIED);
        match reserve_port(address, self.name.port) {
            Ok(reserved) => self._reserved = Some(reserved),
            Err(Errno::EADDRINUSE) => return false,
            // The name is one of another host (an address in front of this one), or the port a privileged one.
            Err(_) => {}
        }
        true
    }
}

/// The host that a node or client reports, so that a master can put objects near their writer: `given` (`MOONCAKE_HOST_ID`), else
/// the host of its name. Empty for names that several hosts have, such as `localhost`.
pub fn host_id(local_hostname: &str, given: Option<&str>) -> String {
    let named = given.map(str::trim).filter(|given| !given.is_empty()).unwrap_or(local_hostname.trim());
    let host = HostPort::split(named).map_or_else(|_| named.to_owned(), |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let everywhere = host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    if everywhere || host_is_loopback(host) { String::new() } else { host.to_owned() }
}

fn reserve_port(address: Ipv4Addr, port: u16) -> nix::Result<OwnedFd> {
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(fd.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(address, port)))?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_port_is_taken_as_it_is() {
        let name = NodeName::reserve("node-1:7", PORTS, || 0).unwrap();
        assert_eq!(name.name.to_string(), "node-1:7");
    }

    #[test]
    fn two_nodes_of_one_host_get_two_names() {
        let counter = std::cell::Cell::new(0);
        let random = || counter.replace(counter.get() + 1) / 2;
        let first = NodeName::reserve("127.0.0.1", (PORTS.0, PORTS.1), random).unwrap();
        let second = NodeName::reserve("127.0.0.1", (PORTS.0, PORTS.1), || u64::from(first.name.port - PORTS.0)).err();
        assert!(matches!(second, Some(NameError::NoPort { .. })), "{second:?}");
    }

    #[test]
    fn a_name_that_another_node_holds_is_contested() {
        let chosen = NodeName::reserve("127.0.0.1", PORTS, rand_port()).unwrap();
        let given = chosen.name.to_string();
        assert!(!NodeName::reserve(&given, PORTS, || 0).unwrap().hold());
        drop(chosen);
        let mut first = NodeName::reserve(&given, PORTS, || 0).unwrap();
        assert!(first.hold() && first.hold());
        assert!(!NodeName::reserve(&given, PORTS, || 0).unwrap().hold());
        assert!(NodeName::reserve("192.0.2.1:7", PORTS, || 0).unwrap().hold(), "no address of this host");
    }

    /// Tests run at once, also in several processes.
    fn rand_port() -> impl FnMut() -> u64 {
        let mut state = u64::from(std::process::id());
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        }
    }

    #[test]
    fn a_host_that_many_machines_have_identifies_none() {
        for (name, given, host) in [
            ("node-1:5000", None, "node-1"),
            ("node-1", Some("  "), "node-1"),
            ("10.0.0.7:12345", Some("rack-3"), "rack-3"),
            ("[2001:db8::1]:5000", None, "2001:db8::1"),
            ("localhost:5000", None, ""),
            ("127.0.0.1:5000", None, ""),
            ("0.0.0.0:5000", None, ""),
            ("[::1]:5000", None, ""),
            ("[::]:5000", None, ""),
            ("node-1", Some("localhost"), ""),
        ] {
            assert_eq!(host_id(name, given), host, "{name} {given:?}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        assert!(matches!(NodeName::reserve("a:b:c", PORTS, || 0), Err(NameError::Host(_))));
    }
}
