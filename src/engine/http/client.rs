//! What our HTTP clients have in common.

use std::sync::Arc;

/// A TLS set-up that trusts nobody, for a client that speaks plain HTTP only: without one its library would read the host's
/// certificates, which takes milliseconds and is of no use there.
///
/// # Errors
/// The library has no version of TLS.
pub fn no_certificates() -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth())
}
