//! A client for a metadata service. Over HTTP, it behaves like Mooncake's own HTTP plug-in: one
//! GET, PUT or DELETE per record, any status other than 200 is an error, and there are no retries.
//! With etcd, the records are the same, under the same keys, without a lease.
//!
//! Proxies from the environment are not used, because the service is part of the cluster. The
//! timeouts use the HTTP library's clock, so this client cannot be used in simulated runs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{AUTHORIZATION, HeaderMap};
use reqwest::{Method, Response, StatusCode, Url};

use crate::{MetadataError, VALUE_BYTES_MAX, response_body};
use mcctl_base::text::masked;
use mcctl_net::etcd::{EtcdClient, EtcdCompare, EtcdError, EtcdOp, EtcdOptions, EtcdTxn};
use mcctl_net::http::ClientTls;
use mcctl_net::http::HttpCredentials;
use mcctl_net::http::client::builder;
use mcctl_net::http::escape;

/// A client for one metadata service. Cheap to clone; clones share the connections.
#[derive(Clone)]
pub struct MetadataClient {
    backend: MetadataBackend,
    url: Arc<str>,
    /// The URL without its password, for errors.
    shown: Arc<str>,
    limits: CallLimits,
}

#[derive(Clone)]
enum MetadataBackend {
    Http(reqwest::Client),
    Etcd(EtcdClient),
}

/// Timeouts for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    pub connect: Duration,
    pub call: Duration,
}

impl Default for CallLimits {
    fn default() -> CallLimits {
        CallLimits { connect: Duration::from_millis(1500), call: Duration::from_secs(3) }
    }
}

impl fmt::Debug for MetadataClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetadataClient").field("url", &self.shown).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl MetadataClient {
    /// Creates a client for the service at `url` (`http://host:port/metadata`). It does not connect
    /// yet.
    ///
    /// # Errors
    /// [`MetadataError::BadUrl`], or [`MetadataError::Setup`] if the host's certificates cannot be
    /// read.
    pub fn http(url: &str) -> Result<MetadataClient, MetadataError> {
        MetadataClient::http_within(url, CallLimits::default())
    }

    /// Creates a client for the service at `url`, over HTTP or in etcd
    /// (`etcd://host:port;host:port`), with these timeouts. It does not connect yet.
    ///
    /// # Errors
    /// The same as [`http`](MetadataClient::http).
    pub fn within(url: &str, limits: CallLimits) -> Result<MetadataClient, MetadataError> {
        MetadataClient::with_credentials(url, limits, &HttpCredentials::default())
    }

    /// Like [`within`](MetadataClient::within), with a token and certificates for a service over
    /// HTTP. Without certificates, `https://` uses those that the host trusts.
    ///
    /// # Errors
    /// The same as [`http`](MetadataClient::http).
    pub fn with_credentials(
        url: &str,
        limits: CallLimits,
        credentials: &HttpCredentials,
    ) -> Result<MetadataClient, MetadataError> {
        if !url.starts_with("etcd://") {
            return MetadataClient::http_with(url, limits, credentials);
        }
        let bad = |reason: String| MetadataError::BadUrl { url: masked(url).into_owned(), reason };
        let options = EtcdOptions::parse(url, limits.call).map_err(|error| bad(error.to_string()))?;
        let client = EtcdClient::new(options).map_err(|error| bad(error.to_string()))?;
        let backend = MetadataBackend::Etcd(client);
        Ok(MetadataClient { backend, url: Arc::from(url), shown: Arc::from(&*masked(url)), limits })
    }

    /// Like [`http`](MetadataClient::http), with other timeouts.
    ///
    /// # Errors
    /// The same as [`http`](MetadataClient::http).
    pub fn http_within(url: &str, limits: CallLimits) -> Result<MetadataClient, MetadataError> {
        MetadataClient::http_with(url, limits, &HttpCredentials::default())
    }

    fn http_with(
        url: &str,
        limits: CallLimits,
        credentials: &HttpCredentials,
    ) -> Result<MetadataClient, MetadataError> {
        let bad = |reason: String| MetadataError::BadUrl { url: masked(url).into_owned(), reason };
        let parsed = Url::parse(url).map_err(|e| bad(e.to_string()))?;
        let tls = match parsed.scheme() {
            "http" => ClientTls::None,
            "https" => match &credentials.tls {
                Some(tls) => ClientTls::Config(Box::new((**tls).clone())),
                None => ClientTls::Host,
            },
            other => return Err(bad(format!("scheme '{other}' is not http or https"))),
        };
        let builder = builder(tls).map_err(|e| bad(e.to_string()))?;
        let authorization = credentials.authorization().map(|value| (AUTHORIZATION, value));
        let http = builder
            .default_headers(HeaderMap::from_iter(authorization))
            .connect_timeout(limits.connect)
            .timeout(limits.call)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build()
            .map_err(|source| MetadataError::Setup { url: masked(url).into_owned(), source })?;
        let backend = MetadataBackend::Http(http);
        Ok(MetadataClient { backend, url: Arc::from(url), shown: Arc::from(&*masked(url)), limits })
    }

    /// The service's URL, as configured.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the record under `key`, if it exists.
    ///
    /// # Errors
    /// Any [`MetadataError`] except `BadUrl` and `Setup`.
    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, MetadataError> {
        let http = match &self.backend {
            MetadataBackend::Http(http) => http,
            MetadataBackend::Etcd(etcd) => {
                let read = etcd.get(key).await.map_err(|source| self.etcd_failed(source, key))?;
                return Ok(read.pairs.into_iter().next().map(|pair| pair.value.into()));
            }
        };
        let response = self.send(http, Method::GET, key, None).await?;
        match response.status() {
            StatusCode::OK => Ok(Some(self.body(response, key).await?)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.refused(response, key).await),
        }
    }

    /// Writes `body` under `key`.
    ///
    /// # Errors
    /// Any [`MetadataError`] except `BadUrl`, `Setup` and `TooLarge`.
    /// [`MetadataError::is_duplicate`] detects a name that is in use.
    pub async fn put(&self, key: &str, body: Bytes) -> Result<(), MetadataError> {
        let http = match &self.backend {
            MetadataBackend::Http(http) => http,
            MetadataBackend::Etcd(etcd) => {
                let put = EtcdOp::Put { key: key.to_owned(), value: body.to_vec(), lease: 0 };
                let done = etcd.txn(&EtcdTxn { success: vec![put], ..EtcdTxn::default() }).await;
                return done.map(drop).map_err(|source| self.etcd_failed(source, key));
            }
        };
        let response = self.send(http, Method::PUT, key, Some(body)).await?;
        match response.status() {
            StatusCode::OK => self.drain(response, key).await,
            _ => Err(self.refused(response, key).await),
        }
    }

    /// Removes the record under `key`. Returns false if it did not exist.
    ///
    /// # Errors
    /// Any [`MetadataError`] except `BadUrl`, `Setup` and `TooLarge`.
    pub async fn remove(&self, key: &str) -> Result<bool, MetadataError> {
        let http = match &self.backend {
            MetadataBackend::Http(http) => http,
            MetadataBackend::Etcd(etcd) => {
                let compare = vec![EtcdCompare::CreateRevision(key.to_owned(), 0)];
                let failure = vec![EtcdOp::Delete(key.to_owned())];
                let done = etcd.txn(&EtcdTxn { compare, success: Vec::new(), failure }).await;
                return done.map(|done| !done.succeeded).map_err(|source| self.etcd_failed(source, key));
            }
        };
        let response = self.send(http, Method::DELETE, key, None).await?;
        match response.status() {
            StatusCode::OK => self.drain(response, key).await.map(|()| true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(self.refused(response, key).await),
        }
    }

    fn etcd_failed(&self, source: EtcdError, key: &str) -> MetadataError {
        MetadataError::Etcd { url: self.shown.to_string(), key: key.to_owned(), source }
    }

    async fn send(
        &self,
        http: &reqwest::Client,
        method: Method,
        key: &str,
        body: Option<Bytes>,
    ) -> Result<Response, MetadataError> {
        let mut request = http.request(method, format!("{}?key={}", self.url, escape(key)));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        request.send().await.map_err(|e| self.failed(e, key))
    }

    async fn body(&self, mut response: Response, key: &str) -> Result<Bytes, MetadataError> {
        let body = response_body::read(&mut response, VALUE_BYTES_MAX).await;
        body.map_err(|e| self.failed(e, key))?.ok_or_else(|| MetadataError::TooLarge {
            url: self.shown.to_string(),
            key: key.to_owned(),
            limit: VALUE_BYTES_MAX,
        })
    }

    /// Reads the rest of the body, so that the connection can be reused.
    async fn drain(&self, response: Response, key: &str) -> Result<(), MetadataError> {
        self.body(response, key).await.map(drop)
    }

    async fn refused(&self, mut response: Response, key: &str) -> MetadataError {
        let status = response.status().as_u16();
        let mut text = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            let left = REFUSAL_BYTES_MAX - text.len();
            text.extend_from_slice(&chunk[..chunk.len().min(left)]);
            if text.len() == REFUSAL_BYTES_MAX {
                break;
            }
        }
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        MetadataError::Refused { url: self.shown.to_string(), key: key.to_owned(), status, text }
    }

    fn failed(&self, source: reqwest::Error, key: &str) -> MetadataError {
        let url = self.shown.to_string();
        let key = key.to_owned();
        // The library's error repeats the URL with the escaped key; without it, the message is
        // shorter.
        let source = source.without_url();
        if source.is_timeout() {
            let limit = if source.is_connect() { self.limits.connect } else { self.limits.call };
            MetadataError::Timeout { url, key, limit }
        } else {
            MetadataError::Unreachable { url, key, source }
        }
    }
}

/// A node makes only a few calls at a time, so keeping more idle connections would provide no
/// benefit.
const IDLE_CONNECTIONS_MAX: usize = 4;
/// Maximum length of the response text in an error, in bytes.
const REFUSAL_BYTES_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_url_is_rejected_immediately() {
        for bad in ["", "nope", "ftp://a/metadata"] {
            assert!(matches!(MetadataClient::http(bad), Err(MetadataError::BadUrl { .. })), "{bad}");
        }
        assert!(MetadataClient::http("http://127.0.0.1:1/metadata").is_ok());
    }

    #[test]
    fn a_tls_client_is_created_or_its_setup_fails() {
        let made = MetadataClient::http("https://127.0.0.1:1/metadata");
        assert!(matches!(made, Ok(_) | Err(MetadataError::Setup { .. })), "{made:?}");
    }
}
