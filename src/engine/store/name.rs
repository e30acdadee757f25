//! A node's name: the host configured by the operator, with a port that is unique to the node.
//!
//! The port is part of the name, but nothing listens on it. It is still bound, so that two nodes on
//! one host cannot have the same name. Upstream: `real_client.cpp`, `MC_STORE_CLIENT_MIN_PORT`,
//! `MC_STORE_CLIENT_MAX_PORT`.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};

use mcctl_base::HostPort;
use mcctl_base::addr::{ParseAddrError, host_is_loopback};

/// Upstream's port range for node names.
pub const PORTS: (u16, u16) = (12300, 14300);
/// Maximum number of ports tried.
const TRIES: u64 = 200;

/// A node's name. Its port is reserved until this value is dropped.
#[derive(Debug)]
pub struct NodeName {
    pub name: HostPort,
    /// The socket is bound but not listening, so connections to the name are refused immediately.
    _reserved: Option<OwnedFd>,
}

/// Why a node could not get a name.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// The configured host is invalid.
    #[error(transparent)]
    Host(#[from] ParseAddrError),
    #[error("no free port for the node's name in range {}..={} ({tries} tried); widen the range", range.0, range.1)]
    NoPort {
        range: (u16, u16),
        /// Number of ports tried.
        tries: u64,
    },
}

impl NodeName {
    /// Returns the name for `local_hostname`. If it has no port, a port is chosen from `range`
    /// using `random`.
    ///
    /// # Errors
    /// The host is invalid, or no port is free.
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
            let port = range.0 + u16::try_from(random() % span).expect("less than a 16-bit span");
            if let Ok(reserved) = reserve_port(Ipv4Addr::UNSPECIFIED, port) {
                return Ok(NodeName { name: HostPort::new(host, port), _reserved: Some(reserved) });
            }
        }
        Err(NameError::NoPort { range, tries: TRIES.min(span * 4) })
    }

    /// Also reserves the port of a configured name, if nothing is going to listen on it. Returns
    /// false if another process on this host is using the port, most likely another node with the
    /// same name.
    pub fn bind_port(&mut self) -> bool {
        if self._reserved.is_some() {
            return true;
        }
        let address = self.name.host.parse().unwrap_or(Ipv4Addr::UNSPECIFIED);
        match reserve_port(address, self.name.port) {
            Ok(reserved) => self._reserved = Some(reserved),
            Err(Errno::EADDRINUSE) => return false,
            // The name belongs to another host (such as a proxy for this one), or the port is
            // privileged.
            Err(_) => {}
        }
        true
    }
}

/// Returns the port range for names, from upstream's variables `MC_STORE_CLIENT_MIN_PORT` and
/// `MC_STORE_CLIENT_MAX_PORT`. Adds a warning for each value that is not valid.
pub fn ports_from_env(lookup: &dyn Fn(&str) -> Option<String>, warnings: &mut Vec<String>) -> (u16, u16) {
    let (first, last) = PORTS;
    let mut read = |name: &str, otherwise: u16| match lookup(name).map(|text| text.trim().parse::<u16>()) {
        Some(Ok(port)) => port,
        Some(Err(_)) => {
            warnings.push(format!("{name} is not a port; using {otherwise}"));
            otherwise
        }
        None => otherwise,
    };
    let ports = (read("MC_STORE_CLIENT_MIN_PORT", first), read("MC_STORE_CLIENT_MAX_PORT", last));
    if ports.0 <= ports.1 {
        return ports;
    }
    warnings.push(format!("MC_STORE_CLIENT_MIN_PORT is above MC_STORE_CLIENT_MAX_PORT; using {first} to {last}"));
    (first, last)
}

/// Returns the host ID that a node or client reports, so that a master can place objects near their
/// writer: `configured` (`MOONCAKE_HOST_ID`), or the host of its name. Empty for hosts that do not
/// identify a machine, such as `localhost`.
pub fn host_id(local_hostname: &str, configured: Option<&str>) -> String {
    let named = configured.map(str::trim).filter(|configured| !configured.is_empty()).unwrap_or(local_hostname.trim());
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
    fn a_name_with_a_port_is_used_unchanged() {
        let name = NodeName::reserve("node-1:7", PORTS, || 0).unwrap();
        assert_eq!(name.name.to_string(), "node-1:7");
    }

    #[test]
    fn two_nodes_on_one_host_get_different_names() {
        let counter = std::cell::Cell::new(0);
        let random = || counter.replace(counter.get() + 1) / 2;
        let first = NodeName::reserve("127.0.0.1", (PORTS.0, PORTS.1), random).unwrap();
        let second = NodeName::reserve("127.0.0.1", (PORTS.0, PORTS.1), || u64::from(first.name.port - PORTS.0)).err();
        assert!(matches!(second, Some(NameError::NoPort { .. })), "{second:?}");
    }

    #[test]
    fn a_configured_name_whose_port_is_bound_is_detected() {
        let chosen = NodeName::reserve("127.0.0.1", PORTS, rand_port()).unwrap();
        let configured = chosen.name.to_string();
        assert!(!NodeName::reserve(&configured, PORTS, || 0).unwrap().bind_port());
        drop(chosen);
        let mut first = NodeName::reserve(&configured, PORTS, || 0).unwrap();
        assert!(first.bind_port() && first.bind_port());
        assert!(!NodeName::reserve(&configured, PORTS, || 0).unwrap().bind_port());
        assert!(NodeName::reserve("192.0.2.1:7", PORTS, || 0).unwrap().bind_port(), "not an address of this host");
    }

    /// Random ports for each process, because tests run concurrently, even across processes.
    fn rand_port() -> impl FnMut() -> u64 {
        let mut state = u64::from(std::process::id());
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        }
    }

    #[test]
    fn a_loopback_or_unspecified_host_gives_no_host_id() {
        for (name, configured, host) in [
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
            assert_eq!(host_id(name, configured), host, "{name} {configured:?}");
        }
    }

    #[test]
    fn an_invalid_host_is_refused() {
        assert!(matches!(NodeName::reserve("a:b:c", PORTS, || 0), Err(NameError::Host(_))));
    }
}
