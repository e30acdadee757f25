//! Hosts and ports in the addresses that settings contain.

use mcctl_base::addr::host_is_loopback;

/// The host in `host:port`, `etcd://host:port` or `http://host:port/x`.
pub(crate) fn host_of(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let rest = rest.split(['/', ';', ',']).next().unwrap_or(rest);
    if let Some(inner) = rest.strip_prefix('[') {
        return inner.split(']').next().unwrap_or(inner);
    }
    match rest.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') => host,
        Some(_) => rest,
        None => rest,
    }
}

/// Whether the address is reachable only from its own host.
pub(crate) fn is_host_local(host: &str) -> bool {
    let host = host_of(host.trim());
    host_is_loopback(host) || matches!(host, "0.0.0.0" | "::" | "")
}
