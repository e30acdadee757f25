//! Addresses of this host's network interfaces. Read-only.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};

use nix::ifaddrs::getifaddrs;

/// The host's IPv4 addresses, each with its interface name.
///
/// # Errors
/// Fails if the system cannot list the addresses.
pub fn ipv4_addresses() -> io::Result<Vec<(String, Ipv4Addr)>> {
    let found = getifaddrs()?.filter_map(|entry| {
        let address = entry.address?;
        Some((entry.interface_name, address.as_sockaddr_in()?.ip()))
    });
    Ok(found.collect())
}

/// All addresses of the host, each with its interface name, in the system's order.
///
/// # Errors
/// Fails if the system cannot list the addresses.
pub fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let found = getifaddrs()?.filter_map(|entry| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let ip = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))?;
        Some((entry.interface_name, ip))
    });
    Ok(found.collect())
}

/// Whether two hosts to listen on have an address in common. Resolves both. A name that cannot be
/// resolved matches only itself.
pub fn hosts_overlap(one: &str, other: &str) -> bool {
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

/// The source address for packets to `host`. `None` if no route exists. Sends no packets. Resolves
/// `host`, which may take a while.
///
/// # Errors
/// Fails if `host` cannot be resolved.
pub fn address_towards(host: &str, port: u16) -> io::Result<Option<IpAddr>> {
    Ok((host, port).to_socket_addrs()?.find_map(|peer| {
        let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        // Connecting a datagram socket only consults the routing table.
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(peer).ok()?;
        socket.local_addr().ok().map(|local| local.ip())
    }))
}

/// Checks that `host` can be resolved. May take a while.
///
/// # Errors
/// Fails with the resolver's error.
pub fn resolve(host: &str) -> io::Result<()> {
    match (host, 0).to_socket_addrs()?.next() {
        Some(_) => Ok(()),
        None => Err(io::Error::new(io::ErrorKind::NotFound, "the host name has no address")),
    }
}

/// Whether a server that listens on `host` listens on all addresses of this host. Names are
/// resolved, which may take a while.
pub fn is_unspecified(host: &str) -> bool {
    let resolved = (host, 0).to_socket_addrs();
    host.is_empty() || resolved.is_ok_and(|mut all| all.any(|address| address.ip().to_canonical().is_unspecified()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_has_many_forms() {
        for host in ["", "0.0.0.0", "0", "00.0.0.0", "::", "::0", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0"] {
            assert!(is_unspecified(host), "{host}");
        }
        for host in ["127.0.0.1", "::1", "10.0.0.1", "localhost", "no such name"] {
            assert!(!is_unspecified(host), "{host}");
        }
    }

    #[test]
    fn the_loopback_interface_has_its_address() {
        let found = ipv4_addresses().expect("this host has interfaces");
        assert!(found.iter().any(|(_, address)| *address == Ipv4Addr::LOCALHOST), "{found:?}");
    }

    #[test]
    fn packets_to_the_loopback_leave_from_the_loopback() {
        assert_eq!(address_towards("127.0.0.1", 9).expect("no name"), Some(Ipv4Addr::LOCALHOST.into()));
    }

    /// A name with a NUL byte is rejected before the resolver is called, so the result does not
    /// depend on the host.
    #[test]
    fn errors_of_the_resolver_are_returned() {
        let kinds = [address_towards("a\0b", 9).unwrap_err().kind(), resolve("a\0b").unwrap_err().kind()];
        assert_eq!(kinds, [io::ErrorKind::InvalidInput; 2]);
    }

    #[test]
    fn addresses_are_resolved_without_a_name_service() {
        for address in ["127.0.0.1", "::1", "192.0.2.1"] {
            resolve(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        }
    }
}
