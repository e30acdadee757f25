//! The credentials that a client sends to a protected HTTP port.

use std::sync::Arc;

use hyper::header::HeaderValue;
use rustls::ClientConfig;

use crate::http::access::SecretToken;
use crate::http::client::ClientTls;

/// The token and the certificates of a client. The default is plain HTTP without a token.
#[derive(Clone, Debug, Default)]
pub struct HttpCredentials {
    pub token: Option<SecretToken>,
    /// The authorities to trust, and the client's certificate; `None` for plain HTTP.
    pub tls: Option<Arc<ClientConfig>>,
}

impl HttpCredentials {
    /// The scheme of the URLs that are fetched with these credentials.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// The same without the token, for a port that may belong to another program.
    #[must_use]
    pub fn without_token(&self) -> HttpCredentials {
        HttpCredentials { token: None, tls: self.tls.clone() }
    }

    /// The value of the `Authorization` header, if there is a token.
    pub fn authorization(&self) -> Option<HeaderValue> {
        let token = self.token.as_ref()?.reveal();
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// The TLS configuration of a client; without certificates, that of a client for plain HTTP.
    pub fn client_tls(&self) -> ClientTls {
        self.tls.as_ref().map_or(ClientTls::None, |tls| ClientTls::Config(Box::new((**tls).clone())))
    }
}

impl PartialEq for HttpCredentials {
    /// TLS configurations are equal only if they are the same object.
    fn eq(&self, other: &HttpCredentials) -> bool {
        let is_same_tls = match (&self.tls, &other.tls) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        self.token == other.token && is_same_tls
    }
}

impl Eq for HttpCredentials {}
