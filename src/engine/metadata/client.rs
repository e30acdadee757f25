//! The client of an HTTP metadata service, as Mooncake's own HTTP plug-in behaves: one GET, PUT or DELETE per record, only status
//! 200 is success, no retries.
//!
//! Proxies from the environment are not used: the service is part of the cluster, and a proxy between the two only breaks it.
//! This client has its own clock (the HTTP library's), so it takes no part in simulated runs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::{Method, Response, StatusCode, Url};

use crate::engine::base::text::masked;
use crate::engine::http::client::no_certificates;
use crate::engine::metadata::{MetadataError, VALUE_BYTES_MAX, key};

/// Asks one metadata service. Cheap to clone; clones share the connections.
#[derive(Clone)]
pub struct MetadataClient {
    http: reqwest::Client,
    url: Arc<str>,
    /// The URL without its password, for errors.
    shown: Arc<str>,
    limits: CallLimits,
}

/// How long a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// To be connected.
    pub connect: Duration,
    /// In all.
    pub call: Duration,
}

impl Default for CallLimits {
    /// Mooncake's own.
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
    /// A client for the service at `url` (`http://host:port/metadata`). Nothing is connected yet.
    ///
    /// # Errors
    /// [`MetadataError::BadUrl`], or [`MetadataError::Setup`] when the host's certificates cannot be read.
    pub fn http(url: &str) -> Result<MetadataClient, MetadataError> {
        MetadataClient::http_within(url, CallLimits::default())
    }

    /// The same, with other limits.
    ///
    /// # Errors
    /// As [`http`](MetadataClient::http).
    pub fn http_within(url: &str, limits: CallLimits) -> Result<MetadataClient, MetadataError> {
        let bad = |reason: String| MetadataError::BadUrl { url: masked(url).into_owned(), reason };
        let parsed = Url::parse(url).map_err(|e| bad(e.to_string()))?;
        let builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(limits.connect)
            .timeout(limits.call)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .tcp_nodelay(true);
        let builder = match parsed.scheme() {
            "http" => builder.tls_backend_preconfigured(no_certificates().map_err(|e| bad(e.to_string()))?),
            "https" => {
                // An error means that somebody installed one before, which is as good.
                let _ = rustls::crypto::ring::default_provider().install_default();
                builder
            }
            other => return Err(bad(format!("the scheme is {other}, not http or https"))),
        };
        let http = builder.build().map_err(|source| MetadataError::Setup { url: masked(url).into_owned(), source })?;
        Ok(MetadataClient { http, url: Arc::from(url), shown: Arc::from(&*masked(url)), limits })
    }

    /// The service's URL, as given.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The record under `key`; `None` when there is none.
    ///
    /// # Errors
    /// Any [`MetadataError`] but `BadUrl` and `Setup`.
    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, MetadataError> {
        let response = self.send(Method::GET, key, None).await?;
        match response.status() {
            StatusCode::OK => Ok(Some(self.body(response, key).await?)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.refused(response, key).await),
        }
    }

    /// Write `body` under `key`.
    ///
    /// # Errors
    /// Any [`MetadataError`] but `BadUrl`, `Setup` and `TooLarge`; see [`MetadataError::is_duplicate`] for a name that is taken.
    pub async fn put(&self, key: &str, body: Bytes) -> Result<(), MetadataError> {
        let response = self.send(Method::PUT, key, Some(body)).await?;
        match response.status() {
            StatusCode::OK => self.drain(response, key).await,
            _ => Err(self.refused(response, key).await),
        }
    }

    /// Remove the record under `key`; was there one?
    ///
    /// # Errors
    /// Any [`MetadataError`] but `BadUrl`, `Setup` and `TooLarge`.
    pub async fn remove(&self, key: &str) -> Result<bool, MetadataError> {
        let response = self.send(Method::DELETE, key, None).await?;
        match response.status() {
            StatusCode::OK => self.drain(response, key).await.map(|()| true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(self.refused(response, key).await),
        }
    }

    async fn send(&self, method: Method, key: &str, body: Option<Bytes>) -> Result<Response, MetadataError> {
        let mut request = self.http.request(method, format!("{}?key={}", self.url, key::escape(key)));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        request.send().await.map_err(|e| self.failed(e, key))
    }

    async fn body(&self, mut response: Response, key: &str) -> Result<Bytes, MetadataError> {
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.failed(e, key))? {
            if body.len() + chunk.len() > VALUE_BYTES_MAX {
                return Err(MetadataError::TooLarge {
                    url: self.shown.to_string(),
                    key: key.to_owned(),
                    limit: VALUE_BYTES_MAX,
                });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// Read the rest, so that the connection can be used again.
    async fn drain(&self, response: Response, key: &str) -> Result<(), MetadataError> {
        self.body(response, key).await.map(drop)
    }

    async fn refused(&self, mut response: Response, key: &str) -> MetadataError {
        let status = response.status().as_u16();
        let mut text = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            let room = REFUSAL_BYTES_MAX - text.len();
            text.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if text.len() == REFUSAL_BYTES_MAX {
                break;
            }
        }
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        MetadataError::Refused { url: self.shown.to_string(), key: key.to_owned(), status, text }
    }

    fn failed(&self, source: reqwest::Error, key: &str) -> MetadataError {
        let (url, key) = (self.shown.to_string(), key.to_owned());
        // The error repeats the URL with the escaped key; ours is shorter.
        let source = source.without_url();
        if source.is_timeout() {
            let limit = if source.is_connect() { self.limits.connect } else { self.limits.call };
            MetadataError::Timeout { url, key, limit }
        } else {
            MetadataError::Unreachable { url, key, source }
        }
    }
}

/// A node asks from few tasks at a time; more connections would only be held open for nothing.
const IDLE_CONNECTIONS_MAX: usize = 4;
/// What of a refusal goes into the error.
const REFUSAL_BYTES_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_url_is_refused_at_once() {
        for bad in ["", "nope", "ftp://a/metadata"] {
            assert!(matches!(MetadataClient::http(bad), Err(MetadataError::BadUrl { .. })), "{bad}");
        }
        assert!(MetadataClient::http("http://127.0.0.1:1/metadata").is_ok());
    }

    #[test]
    fn tls_is_set_up_or_said_to_be_impossible_here() {
        let made = MetadataClient::http("https://127.0.0.1:1/metadata");
        assert!(matches!(made, Ok(_) | Err(MetadataError::Setup { .. })), "{made:?}");
    }
}
