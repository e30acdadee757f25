//! The builder of every HTTP client.

use std::sync::Arc;

/// The TLS configuration of a client.
#[derive(Clone, Debug)]
pub enum ClientTls {
    /// For plain HTTP only: no trusted certificates. Reading the host's certificates would take
    /// milliseconds and provide no benefit.
    None,
    /// Trust the certificates that the host trusts.
    Host,
    Config(Box<rustls::ClientConfig>),
}

/// Returns the builder of an HTTP client that uses no proxy and follows no redirects: mcctl calls
/// only the services that it was given.
///
/// # Errors
/// The TLS library does not support any version of TLS.
pub fn builder(tls: ClientTls) -> Result<reqwest::ClientBuilder, rustls::Error> {
    let builder = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).tcp_nodelay(true);
    Ok(match tls {
        ClientTls::None => builder.tls_backend_preconfigured(no_certificates()?),
        ClientTls::Host => {
            // An error means that a provider is already installed, which is fine.
            let _ = rustls::crypto::ring::default_provider().install_default();
            builder
        }
        ClientTls::Config(config) => builder.tls_backend_preconfigured(*config),
    })
}

fn no_certificates() -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth())
}
