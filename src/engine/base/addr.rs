//! Host-and-port addresses, as written by operators and by Mooncake.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use crate::text::masked_address;

/// A host (name, IPv4, or IPv6 without brackets) and a port.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// Name or address; IPv6 without brackets, possibly with a `%zone`.
    pub host: String,
    pub port: u16,
}

/// The string is not a valid address. A password in it is masked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a valid HOST:PORT ({what}); IPv6 addresses need brackets, e.g. [::1]:50051")]
pub struct ParseAddrError {
    text: String,
    what: &'static str,
}

impl ParseAddrError {
    fn new(text: &str, what: &'static str) -> ParseAddrError {
        ParseAddrError { text: masked_address(text).into_owned(), what }
    }

    /// The reason without the text of the address.
    pub fn reason(&self) -> &'static str {
        self.what
    }
}

impl HostPort {
    /// Creates an address from a host and a port.
    pub fn new(host: impl Into<String>, port: u16) -> HostPort {
        HostPort { host: host.into(), port }
    }

    /// Splits `text` into host and optional port. Accepts `host`, `host:port`, `1.2.3.4:port`,
    /// `[v6]:port`, `[v6]`, bare `v6` (with zone), and Mooncake's unbracketed `v6:port` if the text
    /// after the last colon cannot be part of the IPv6 address.
    ///
    /// # Errors
    /// Fails if the host is empty, or if the text after the last colon is not a port.
    pub fn split(text: &str) -> Result<(String, Option<u16>), ParseAddrError> {
        let bad = |what| ParseAddrError::new(text, what);
        let port = |p: &str| p.parse::<u16>().map_err(|_| bad("the port is not a number from 0 to 65535"));
        if let Some(rest) = text.strip_prefix('[') {
            let (host, after) = rest.split_once(']').ok_or_else(|| bad("missing ']'"))?;
            if host.is_empty() {
                return Err(bad("the host is empty"));
            }
            return match after.strip_prefix(':') {
                Some(p) => Ok((host.to_owned(), Some(port(p)?))),
                None if after.is_empty() => Ok((host.to_owned(), None)),
                None => Err(bad("unexpected text after ']'")),
            };
        }
        let (host, tail) = match text.matches(':').count() {
            0 => (text, None),
            1 => text.split_once(':').map(|(h, p)| (h, Some(p))).ok_or_else(|| bad("missing ':'"))?,
            _ if is_ipv6(text) => (text, None),
            _ => text.rsplit_once(':').map(|(h, p)| (h, Some(p))).ok_or_else(|| bad("missing ':'"))?,
        };
        if host.is_empty() {
            return Err(bad("the host is empty"));
        }
        if host.contains(':') && !is_ipv6(host) {
            return Err(bad("too many colons"));
        }
        Ok((host.to_owned(), tail.map(port).transpose()?))
    }

    /// Returns true if the host is a loopback name or address.
    pub fn is_loopback(&self) -> bool {
        host_is_loopback(&self.host)
    }
}

/// Returns true if `host` is `localhost`, `::1`, or an address in 127.0.0.0/8.
pub fn host_is_loopback(host: &str) -> bool {
    loopback_to_bind(host).is_some()
}

/// Returns the bind address for a service announced as `host` if `host` is `localhost` or a
/// loopback address, so that other hosts cannot reach the service. Returns `None` for any other
/// host: the service then binds to all interfaces.
pub fn loopback_to_bind(host: &str) -> Option<IpAddr> {
    if host == "localhost" {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    host.parse::<IpAddr>().ok().filter(IpAddr::is_loopback)
}

fn is_ipv6(text: &str) -> bool {
    text.split('%').next().is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok())
}

impl FromStr for HostPort {
    type Err = ParseAddrError;
    fn from_str(text: &str) -> Result<HostPort, ParseAddrError> {
        let (host, port) = HostPort::split(text)?;
        let port = port.ok_or_else(|| ParseAddrError::new(text, "the port is missing"))?;
        Ok(HostPort { host, port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Option<(String, Option<u16>)> {
        HostPort::split(text).ok()
    }

    #[test]
    fn every_written_form_splits_into_host_and_port() {
        let some = |h: &str, p| Some((h.to_owned(), p));
        assert_eq!(split("node-1"), some("node-1", None));
        assert_eq!(split("node-1:50051"), some("node-1", Some(50051)));
        assert_eq!(split("127.0.0.1:1"), some("127.0.0.1", Some(1)));
        assert_eq!(split("[::1]:15000"), some("::1", Some(15000)));
        assert_eq!(split("::1"), some("::1", None));
        assert_eq!(split("fe80::1%eth0"), some("fe80::1%eth0", None));
        assert_eq!(split("[fe80::1%eth0]:7"), some("fe80::1%eth0", Some(7)));
        assert_eq!(split("2001:db8:0:0:0:0:0:1:15000"), some("2001:db8:0:0:0:0:0:1", Some(15000)));
    }

    #[test]
    fn an_invalid_address_is_refused() {
        for bad in ["", ":1", "a:b:1", "a:70000", "a:", "[::1", "[]:1", "[::1]x", "a:x"] {
            assert_eq!(split(bad), None, "{bad}");
        }
        assert!("node-1".parse::<HostPort>().is_err());
    }

    #[test]
    fn only_a_loopback_host_determines_the_bind_address() {
        assert_eq!(loopback_to_bind("localhost"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(loopback_to_bind("127.0.0.2").map(|ip| ip.to_string()).as_deref(), Some("127.0.0.2"));
        assert_eq!(loopback_to_bind("::1").map(|ip| ip.to_string()).as_deref(), Some("::1"));
        for host in ["10.0.0.1", "node-1", "0.0.0.0", "::"] {
            assert_eq!(loopback_to_bind(host), None, "{host}");
        }
    }

    #[test]
    fn ipv6_prints_with_brackets() {
        assert_eq!(HostPort::new("::1", 9).to_string(), "[::1]:9");
    }
}
