//! Networks in CIDR notation, and lists of them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A network, for example `10.0.0.0/8` or `fd00::/8`. An address without a prefix length is a
/// network with this address only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    /// Number of leading bits that all addresses in the network share.
    bits: u32,
}

/// Networks, one of which must contain an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CidrList(Vec<Cidr>);

/// The text is not a list of networks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseCidrError {
    #[error("'{0}' is not an IP address")]
    Address(String),
    #[error("'{0}': the prefix length must be a number from 0 to {1}")]
    Prefix(String, u32),
    /// The address has bits after the prefix. The second value is the network that contains it.
    #[error("'{0}' is an address inside {1}; write {1} for the network, or {2} for the address")]
    HostBits(String, Cidr, IpAddr),
    #[error("the list is empty")]
    Empty,
}

impl Cidr {
    fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                prefix(network.to_bits(), 32, self.bits) == prefix(address.to_bits(), 32, self.bits)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                prefix(network.to_bits(), 128, self.bits) == prefix(address.to_bits(), 128, self.bits)
            }
            _ => false,
        }
    }

    fn network(address: IpAddr, bits: u32) -> Cidr {
        let address = match address {
            IpAddr::V4(address) => IpAddr::V4(u32::try_from(prefix(address.to_bits(), 32, bits)).unwrap_or(0).into()),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(prefix(address.to_bits(), 128, bits))),
        };
        Cidr { address, bits }
    }
}

/// `value`, a number of `width` bits, with all bits after the first `bits` set to 0.
fn prefix(value: impl Into<u128>, width: u32, bits: u32) -> u128 {
    let rest = width - bits;
    let value = value.into();
    value.checked_shr(rest).map_or(0, |kept| kept << rest)
}

impl FromStr for Cidr {
    type Err = ParseCidrError;

    fn from_str(text: &str) -> Result<Cidr, ParseCidrError> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| ParseCidrError::Address(text.to_owned()))?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let invalid = || ParseCidrError::Prefix(text.to_owned(), width);
        let bits = match bits {
            None => width,
            Some(bits) if bits.bytes().all(|digit| digit.is_ascii_digit()) => bits.parse().map_err(|_| invalid())?,
            Some(_) => return Err(invalid()),
        };
        if bits > width {
            return Err(invalid());
        }
        let network = Cidr::network(address, bits);
        if network.address != address {
            return Err(ParseCidrError::HostBits(text.to_owned(), network, address));
        }
        // An IPv4 network in IPv6 notation is an IPv4 network, as addresses are compared in their
        // IPv4 form.
        Ok(match address.to_canonical() {
            IpAddr::V4(v4) if width == 128 && bits >= 96 => Cidr { address: v4.into(), bits: bits - 96 },
            _ => network,
        })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl CidrList {
    /// Whether a network in the list contains `address`. An IPv4 address in IPv6 notation
    /// (`::ffff:10.0.0.1`) is treated as IPv4, because a dual-stack socket reports IPv4 peers like
    /// that.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(address))
    }
}

impl FromStr for CidrList {
    type Err = ParseCidrError;

    /// Parses networks that are separated by commas.
    fn from_str(text: &str) -> Result<CidrList, ParseCidrError> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let networks = parts.map(str::parse).collect::<Result<Vec<Cidr>, _>>()?;
        if networks.is_empty() { Err(ParseCidrError::Empty) } else { Ok(CidrList(networks)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(list: &str, address: &str) -> bool {
        list.parse::<CidrList>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn a_list_contains_the_addresses_of_its_networks() {
        for (list, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.0.0.0/8,192.168.1.7", "192.168.1.7", "192.168.1.8"),
            ("10.1.2.128/25", "10.1.2.128", "10.1.2.127"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("::/0", "fe80::1", "10.0.0.1"),
            ("fd00:1::/32", "fd00:1:ffff::9", "fd00:2::"),
            ("::1", "::1", "::2"),
            ("127.0.0.1/32", "127.0.0.1", "127.0.0.2"),
        ] {
            assert!(contains(list, inside), "{list} {inside}");
            assert!(!contains(list, outside), "{list} {outside}");
        }
    }

    #[test]
    fn ipv4_addresses_match_in_both_notations() {
        assert!(contains("10.0.0.0/8", "::ffff:10.0.0.1"));
        assert!(!contains("10.0.0.0/8", "::ffff:11.0.0.1"));
        assert!(contains("::ffff:10.0.0.0/104", "10.0.0.1") && !contains("::ffff:10.0.0.0/104", "11.0.0.1"));
        // These bits are not an IPv4 address.
        assert!(!contains("10.0.0.0/8", "::10.0.0.1"));
    }

    #[test]
    fn text_that_is_not_a_network_is_refused() {
        let parsed = |text: &str| text.parse::<CidrList>();
        for text in [
            "",
            " , ",
            "10.0.0",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/8/8",
            "host",
            "fe80::1%eth0",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
        let error = parsed("10.1.0.5/8").unwrap_err();
        assert!(
            matches!(&error, ParseCidrError::HostBits(_, network, _) if network.to_string() == "10.0.0.0/8"),
            "{error}"
        );
    }
}
