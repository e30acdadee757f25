//! The name under which a node appears: what the operator gave, with a port of its own.
//!
//! The port names the node and is not listened on; it is bound all the same, so that two nodes of one host cannot take the same
//! name. Upstream: `real_client.cpp`, `MC_STORE_CLIENT_MIN_PORT`, `MC_STORE_CLIENT_MAX_PORT`.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};

use crate::engine::base::HostPort;
use crate::engine::base::addr::ParseAddrError;

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
            if let Ok(reserved) = reserve_port(port) {
                return Ok(NodeName { name: HostPort::new(host, port), _reserved: Some(reserved) });
            }
        }
        Err(NameError::NoPort { range, tries: TRIES.min(span * 4) })
    }
}

fn reserve_port(port: u16) -> nix::Result<OwnedFd> {
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(fd.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, port))?;
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
    fn what_is_no_host_is_refused() {
        assert!(matches!(NodeName::reserve("a:b:c", PORTS, || 0), Err(NameError::Host(_))));
    }
}
