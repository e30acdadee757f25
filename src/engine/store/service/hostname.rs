//! The name by which other hosts reach a node or a client.

use std::io;
use std::net::IpAddr;

use mcctl_base::HostPort;
use mcctl_base::addr::{ParseAddrError, host_is_loopback};
use mcctl_metadata::MetadataUri;

/// Why there is no usable name.
#[derive(Debug, thiserror::Error)]
pub enum HostnameError {
    /// The master's name cannot be resolved. It may become resolvable later.
    #[error("cannot resolve the host name of the master at {master}")]
    Unresolved { master: HostPort, source: io::Error },
    /// The local address on the route to the master is missing or valid only on this host.
    #[error("this node has no address that other hosts can reach")]
    NoAddress { master: HostPort },
    #[error("'{given}' is not a valid host name or address")]
    Invalid { given: String, source: ParseAddrError },
    /// The given name is an unspecified address, which is only valid for listening.
    #[error("other hosts cannot reach this node at '{given}'")]
    Unspecified {
        given: String,
        /// The local address on the route to the master.
        usable: Option<IpAddr>,
    },
    /// The given name is valid only on this host, but peers connect by name, and the master is on
    /// another host.
    #[error("other hosts cannot reach this node at '{given}'")]
    LocalOnly {
        given: String,
        master: HostPort,
        /// The local address on the route to the master.
        usable: Option<IpAddr>,
    },
}

/// The name by which other hosts reach this process. This is `given` if set, otherwise localhost if
/// the master is on this host, or the local address on the route to the master, which
/// `address_towards` returns.
///
/// # Errors
/// `given` is invalid, other hosts cannot reach it, or this host has no usable address.
pub fn local_hostname(
    given: Option<&str>,
    master: &HostPort,
    metadata: &MetadataUri,
    address_towards: impl Fn(&HostPort) -> io::Result<Option<IpAddr>>,
) -> Result<String, HostnameError> {
    let Some(given) = given else {
        if master.is_loopback() {
            return Ok("localhost".to_owned());
        }
        let towards =
            address_towards(master).map_err(|source| HostnameError::Unresolved { master: master.clone(), source })?;
        let derived = towards.filter(|address| !address.is_loopback() && !address.is_unspecified());
        return match derived {
            Some(address @ IpAddr::V6(_)) => Ok(format!("[{address}]")),
            Some(address) => Ok(address.to_string()),
            None => Err(HostnameError::NoAddress { master: master.clone() }),
        };
    };
    let given = given.to_owned();
    let host = match HostPort::split(&given) {
        Ok((host, _)) => host,
        Err(source) => return Err(HostnameError::Invalid { given, source }),
    };
    let usable = || address_towards(master).ok().flatten();
    if host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified()) {
        return Err(HostnameError::Unspecified { given, usable: usable() });
    }
    if host_is_loopback(&host) && !master.is_loopback() && *metadata == MetadataUri::P2p {
        return Err(HostnameError::LocalOnly { given, master: master.clone(), usable: usable() });
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(given: Option<&str>, master: &str, metadata: &MetadataUri) -> Result<String, HostnameError> {
        local_hostname(given, &HostPort::new(master, 50051), metadata, |_| Ok(Some(IpAddr::from([10, 0, 0, 7]))))
    }

    #[test]
    fn the_default_is_the_address_towards_the_master() {
        assert_eq!(name(None, "127.0.0.1", &MetadataUri::P2p).unwrap(), "localhost");
        assert_eq!(name(None, "10.0.0.1", &MetadataUri::P2p).unwrap(), "10.0.0.7");
        assert_eq!(name(Some("node-7"), "10.0.0.1", &MetadataUri::P2p).unwrap(), "node-7");
        let master = HostPort::new("10.0.0.1", 1);
        let v6 = local_hostname(None, &master, &MetadataUri::P2p, |_| Ok("2001:db8::7".parse().ok()));
        assert_eq!(v6.unwrap(), "[2001:db8::7]");
        let alone = local_hostname(None, &master, &MetadataUri::P2p, |_| Ok(None));
        assert!(matches!(alone, Err(HostnameError::NoAddress { .. })));
        let unresolved = local_hostname(None, &master, &MetadataUri::P2p, |_| Err(io::ErrorKind::NotFound.into()));
        assert!(matches!(unresolved, Err(HostnameError::Unresolved { .. })));
    }

    #[test]
    fn a_local_name_is_refused_if_peers_on_other_hosts_connect_by_name() {
        assert!(matches!(
            name(Some("0.0.0.0"), "127.0.0.1", &MetadataUri::P2p),
            Err(HostnameError::Unspecified { .. })
        ));
        assert!(matches!(
            name(Some("localhost:7"), "10.0.0.1", &MetadataUri::P2p),
            Err(HostnameError::LocalOnly { .. })
        ));
        assert!(matches!(name(Some("a:b:c"), "10.0.0.1", &MetadataUri::P2p), Err(HostnameError::Invalid { .. })));
        // With an HTTP metadata service, the name is only a key.
        let http = MetadataUri::Service("http://10.0.0.1:8080/metadata".to_owned());
        assert_eq!(name(Some("localhost"), "10.0.0.1", &http).unwrap(), "localhost");
    }
}
