//! Code shared by the HTTP clients.

use std::sync::Arc;

/// Returns a TLS configuration without trusted certificates, for a client that uses only plain HTTP. Without it, the library would read the
/// host's certificates, which takes milliseconds and provides no benefit.
///
/// # Errors
/// The library does not support any version of TLS.
pub fn no_certificates() -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth())
}
