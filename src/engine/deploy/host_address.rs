//! The hosts of a deployment file: which addresses belong to one host, and on which addresses its
//! processes listen.

use std::net::{IpAddr, Ipv6Addr};

use mcctl_base::addr::host_is_loopback;

/// A text that is the same for all addresses that belong to one host: loopback addresses and
/// `localhost`, the spellings of an address, and the letter cases of a name.
pub fn host_key(host: &str) -> String {
    let name = host.to_ascii_lowercase();
    let address = match name.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => name,
    };
    if host_is_loopback(&address) { "127.0.0.1".to_owned() } else { address }
}

/// Whether two addresses belong to one host. All loopback addresses do.
pub(crate) fn is_same_host(one: &str, other: &str) -> bool {
    host_key(one) == host_key(other)
}

/// Whether `host` is an IPv6 address.
pub fn is_ipv6(host: &str) -> bool {
    host.parse::<Ipv6Addr>().is_ok()
}

/// The address on which a process on `host` listens: that of the loopback interface if `host` is on
/// it, otherwise all addresses of the family of `host`. A name is reached over IPv4.
pub(crate) fn bind_address(host: &str) -> &'static str {
    match (is_ipv6(host), host_is_loopback(host)) {
        (false, true) => "127.0.0.1",
        (false, false) => "0.0.0.0",
        (true, true) => "::1",
        (true, false) => "::",
    }
}

/// The address at which a process on `host` reaches its own ports, as in a URL. Python's servers
/// that listen on `::` refuse IPv4.
pub(crate) fn own_url_host(host: &str) -> &'static str {
    if is_ipv6(host) { "[::1]" } else { "127.0.0.1" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_and_spellings_belong_to_one_host() {
        for (one, other) in [
            ("localhost", "127.0.0.1"),
            ("::1", "127.0.0.1"),
            ("127.0.0.2", "LocalHost"),
            ("fd00::1", "FD00:0:0::1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("Node-1", "node-1"),
        ] {
            assert!(is_same_host(one, other), "{one} {other}");
        }
        assert!(!is_same_host("10.0.0.1", "10.0.0.2") && !is_same_host("fd00::1", "fd00::2"));
    }

    #[test]
    fn a_process_listens_on_the_family_of_its_host() {
        let all = ["localhost", "node-1", "10.0.0.1", "::1", "fd00::1"].map(bind_address);
        assert_eq!(all, ["127.0.0.1", "0.0.0.0", "0.0.0.0", "::1", "::"]);
        assert_eq!(["node-1", "fd00::1"].map(own_url_host), ["127.0.0.1", "[::1]"]);
    }
}
