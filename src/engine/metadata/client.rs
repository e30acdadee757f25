//! A client for a metadata service. Over HTTP, it behaves like Mooncake's own HTTP plug-in: one
//! GET, PUT or DELETE per record, any status other than 200 is an error, and there are no retries.
//! If the service has several URLs, one after the other is used until one can serve the request,
//! starting with the one that responded last (see `attempts.rs`).
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

use crate::attempts::{AttemptOutcome, NextStep, PreferredTarget, TargetAttempts};
use crate::forward::was_sent;
use crate::uri::http_urls;
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
    Http(Arc<HttpServers>),
    Etcd(EtcdClient),
}

/// The URLs of a service over HTTP.
struct HttpServers {
    http: reqwest::Client,
    urls: Vec<String>,
    preferred: PreferredTarget,
}

/// Timeouts for a call to one URL.
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
    /// Creates a client for the service at `url` (`http://host:port/metadata`, or several of them
    /// separated by commas). It does not connect yet.
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
        let urls = http_urls(url);
        let mut secure = Vec::new();
        for url in &urls {
            match Url::parse(url).map_err(|e| bad(e.to_string()))?.scheme() {
                "http" => secure.push(false),
                "https" => secure.push(true),
                other => return Err(bad(format!("scheme '{other}' is not http or https"))),
            }
        }
        let is_secure = secure.contains(&true);
        if is_secure && secure.contains(&false) {
            // A token would also be sent without TLS.
            return Err(bad("all URLs in a list must have the same scheme".to_owned()));
        }
        let tls = match (is_secure, &credentials.tls) {
            (true, None) => ClientTls::Host,
            (true, Some(_)) => credentials.client_tls(),
            (false, _) => ClientTls::None,
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
        let urls = urls.into_iter().map(str::to_owned).collect();
        let servers = HttpServers { http, urls, preferred: PreferredTarget::default() };
        let backend = MetadataBackend::Http(Arc::new(servers));
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
        let servers = match &self.backend {
            MetadataBackend::Http(servers) => servers,
            MetadataBackend::Etcd(etcd) => {
                let read = etcd.get(key).await.map_err(|source| self.etcd_failed(source, key))?;
                return Ok(read.pairs.into_iter().next().map(|pair| pair.value.into()));
            }
        };
        self.exchange(servers, Method::GET, key, None).await
    }

    /// Writes `body` under `key`.
    ///
    /// # Errors
    /// Any [`MetadataError`] except `BadUrl`, `Setup` and `TooLarge`.
    /// [`MetadataError::is_duplicate`] detects a name that is in use.
    pub async fn put(&self, key: &str, body: Bytes) -> Result<(), MetadataError> {
        let servers = match &self.backend {
            MetadataBackend::Http(servers) => servers,
            MetadataBackend::Etcd(etcd) => {
                let put = EtcdOp::Put { key: key.to_owned(), value: body.to_vec(), lease: 0 };
                let done = etcd.txn(&EtcdTxn { success: vec![put], ..EtcdTxn::default() }).await;
                return done.map(drop).map_err(|source| self.etcd_failed(source, key));
            }
        };
        self.exchange(servers, Method::PUT, key, Some(body)).await.map(drop)
    }

    /// Removes the record under `key`. Returns false if it did not exist.
    ///
    /// # Errors
    /// Any [`MetadataError`] except `BadUrl`, `Setup` and `TooLarge`.
    pub async fn remove(&self, key: &str) -> Result<bool, MetadataError> {
        let servers = match &self.backend {
            MetadataBackend::Http(servers) => servers,
            MetadataBackend::Etcd(etcd) => {
                let compare = vec![EtcdCompare::CreateRevision(key.to_owned(), 0)];
                let failure = vec![EtcdOp::Delete(key.to_owned())];
                let done = etcd.txn(&EtcdTxn { compare, success: Vec::new(), failure }).await;
                return done.map(|done| !done.succeeded).map_err(|source| self.etcd_failed(source, key));
            }
        };
        self.exchange(servers, Method::DELETE, key, None).await.map(|removed| removed.is_some())
    }

    fn etcd_failed(&self, source: EtcdError, key: &str) -> MetadataError {
        MetadataError::Etcd { url: self.shown.to_string(), key: key.to_owned(), source }
    }

    /// Sends a request to one URL after the other, until one serves it. Returns the body of the
    /// response; `None` if the record does not exist.
    async fn exchange(
        &self,
        servers: &HttpServers,
        method: Method,
        key: &str,
        body: Option<Bytes>,
    ) -> Result<Option<Bytes>, MetadataError> {
        let count = servers.urls.len();
        let mut attempts = TargetAttempts::new(count, servers.preferred.get(), &method);
        loop {
            let target = attempts.target();
            let attempt = self.attempt(&servers.http, &servers.urls[target], &method, key, body.clone()).await;
            let (outcome, result) = match attempt {
                Ok(body) => (AttemptOutcome::Served, Ok(body)),
                Err((outcome, error)) => (outcome, Err(error)),
            };
            match outcome {
                AttemptOutcome::Served => servers.preferred.note_served(target),
                AttemptOutcome::Unserved | AttemptOutcome::Unknown => servers.preferred.note_failed(target, count),
            }
            match attempts.after(outcome) {
                NextStep::Try(_) => {
                    if let Err(error) = &result {
                        tracing::debug!(%error, "trying the next metadata service");
                    }
                }
                NextStep::Respond => return result,
                // The error is that of the last URL. Its text names all.
                NextStep::Fail | NextStep::FailUnknown => return result.map_err(|error| error.at(&self.shown)),
            }
        }
    }

    async fn attempt(
        &self,
        http: &reqwest::Client,
        url: &str,
        method: &Method,
        key: &str,
        body: Option<Bytes>,
    ) -> Result<Option<Bytes>, (AttemptOutcome, MetadataError)> {
        let failed = |error: reqwest::Error| {
            let outcome = if was_sent(&error) { AttemptOutcome::Unknown } else { AttemptOutcome::Unserved };
            (outcome, self.failed(error, url, key))
        };
        let mut request = http.request(method.clone(), format!("{url}?key={}", escape(key)));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let mut response = request.send().await.map_err(failed)?;
        match response.status() {
            // Reading the whole body allows the connection to be reused.
            StatusCode::OK => match response_body::read(&mut response, VALUE_BYTES_MAX).await.map_err(failed)? {
                Some(body) => Ok(Some(body)),
                None => {
                    let url = masked(url).into_owned();
                    let error = MetadataError::TooLarge { url, key: key.to_owned(), limit: VALUE_BYTES_MAX };
                    Err((AttemptOutcome::Served, error))
                }
            },
            StatusCode::NOT_FOUND if *method != Method::PUT => Ok(None),
            status => {
                let outcome = match status {
                    StatusCode::SERVICE_UNAVAILABLE => AttemptOutcome::Unserved,
                    StatusCode::GATEWAY_TIMEOUT => AttemptOutcome::Unknown,
                    _ => AttemptOutcome::Served,
                };
                Err((outcome, refused(response, url, key).await))
            }
        }
    }

    fn failed(&self, source: reqwest::Error, url: &str, key: &str) -> MetadataError {
        let url = masked(url).into_owned();
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

async fn refused(mut response: Response, url: &str, key: &str) -> MetadataError {
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
    MetadataError::Refused { url: masked(url).into_owned(), key: key.to_owned(), status, text }
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
        for bad in ["", "nope", "ftp://a/metadata", "http://a/metadata,https://"] {
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
