//! Addresses of this host's network interfaces.
//!
//! Only reads.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};

use nix::ifaddrs::getifaddrs;

/// The IPv4 addresses of this host, each with the name of its interface.
///
/// # Errors
/// The system does not tell.
pub fn ipv4_addresses() -> io::Result<Vec<(String, Ipv4Addr)>> {
    let found = getifaddrs()?.filter_map(|entry| {
        let address = entry.address?;
        Some((entry.interface_name, address.as_sockaddr_in()?.ip()))
    });
    Ok(found.collect())
}

/// The address of this host that packets to `host` leave from. Sends nothing; resolves `host`, which may take a while.
pub fn address_towards(host: &str, port: u16) -> Option<IpAddr> {
    (host, port).to_socket_addrs().ok()?.find_map(|peer| {
        let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        // Connecting a datagram socket only asks the routing table.
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(peer).ok()?;
        socket.local_addr().ok().map(|local| local.ip())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_its_address() {
        let found = ipv4_addresses().expect("this host has interfaces");
        assert!(found.iter().any(|(_, address)| *address == Ipv4Addr::LOCALHOST), "{found:?}");
    }

    #[test]
    fn packets_to_the_loopback_leave_from_the_loopback() {
        assert_eq!(address_towards("127.0.0.1", 9), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(address_towards("no such host", 9), None);
    }
}
