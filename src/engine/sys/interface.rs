//! Addresses of this host's network interfaces.
//!
//! Only reads.

use std::io;
use std::net::Ipv4Addr;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_its_address() {
        let found = ipv4_addresses().expect("this host has interfaces");
        assert!(found.iter().any(|(_, address)| *address == Ipv4Addr::LOCALHOST), "{found:?}");
    }
}
