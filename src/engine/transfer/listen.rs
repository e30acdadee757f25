//! Binds the handshake port, and chooses the address that is announced to peers.

use crate::TransferError;
use crate::config::{TransferConfig, TransferSettings};
use crate::ports::{draw, no_port};
use mcctl_base::HostPort;
use mcctl_base::addr::{host_is_loopback, loopback_to_bind};
use mcctl_metadata::MetadataUri;
use mcctl_sys::env::{Env, Listener, Net};
use mcctl_sys::host;

/// Number of handshake ports to try.
const PORT_TRIES: u32 = 500;

/// Binds the handshake port. Returns the listener and the address that peers use.
pub(super) async fn bind_handshake<E: Env>(
    config: &TransferConfig,
    env: &E,
) -> Result<(<E::Net as Net>::Listener, HostPort), TransferError> {
    let settings = &config.settings;
    let p2p = config.metadata == MetadataUri::P2p;
    let wrong = |problem: String| TransferError::Name { name: config.local_server_name.clone(), problem };
    let split = || HostPort::split(&config.local_server_name).map_err(|e| wrong(e.to_string()));
    if settings.legacy_port_binding && !p2p {
        let (host, port) = split()?;
        let at = HostPort::new(host, port.unwrap_or(settings.handshake_port));
        let listener = env.net().listen(&address_to_bind(settings, &at.host, at.port)).await;
        let listener = listener.map_err(|e| no_port("handshake port", &(at.port..=at.port), 1, e))?;
        let bound = HostPort::new(at.host, listener.port());
        return Ok((listener, bound));
    }
    let host = if p2p {
        split()?.0
    } else {
        if config.local_server_name.is_empty() {
            return Err(wrong("the name is empty".to_owned()));
        }
        announced(config)?
    };
    let (listener, port) = listen_in_range(settings, &host, env).await?;
    Ok((listener, HostPort::new(host, port)))
}

/// Returns the host to announce when a metadata service is used.
fn announced(config: &TransferConfig) -> Result<String, TransferError> {
    let settings = &config.settings;
    if let Some(host) = config.announce_host.as_ref().or(settings.bind_address.as_ref()) {
        return Ok(host.clone());
    }
    if let Some(address) = host::lan_address(settings.ipv6) {
        return Ok(address.to_string());
    }
    // Without a network, a name that is a loopback address is still usable.
    match HostPort::split(&config.local_server_name) {
        Ok((host, _)) if host_is_loopback(&host) => Ok(host),
        _ => Err(TransferError::NoAddress),
    }
}

async fn listen_in_range<E: Env>(
    settings: &TransferSettings,
    host: &str,
    env: &E,
) -> Result<(<E::Net as Net>::Listener, u16), TransferError> {
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrInUse);
    for _ in 0..PORT_TRIES {
        let port = draw(&settings.ports, env.rng());
        match env.net().listen(&address_to_bind(settings, host, port)).await {
            Ok(listener) => {
                let port = listener.port();
                return Ok((listener, port));
            }
            Err(error) => last = error,
        }
    }
    Err(no_port("handshake port", &settings.ports, PORT_TRIES, last))
}

/// Returns the address to bind for an announced `host`: the owner's choice if it has made one, else
/// the loopback address if that is what is announced, else the wildcard address for its family.
/// (Upstream always binds the wildcard address, and so serves any client that finds the port.)
fn address_to_bind(settings: &TransferSettings, host: &str, port: u16) -> HostPort {
    if let Some(address) = settings.listen_on.or_else(|| loopback_to_bind(host)) {
        return HostPort::new(address.to_string(), port);
    }
    let any = if settings.ipv6 || host.contains(':') { "::" } else { "0.0.0.0" };
    HostPort::new(any, port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owners_address_overrides_the_announced_host() {
        let bound = |listen_on: Option<&str>, host: &str| {
            let listen_on = listen_on.map(|address| address.parse().unwrap());
            address_to_bind(&TransferSettings { listen_on, ..TransferSettings::default() }, host, 7).to_string()
        };
        assert_eq!(bound(None, "10.0.0.1"), "0.0.0.0:7");
        assert_eq!(bound(None, "localhost"), "127.0.0.1:7");
        assert_eq!(bound(Some("10.0.0.1"), "node-1"), "10.0.0.1:7");
        assert_eq!(bound(Some("::"), "localhost"), "[::]:7");
    }
}
