//! An HTTP client for other programs' endpoints. It sends one request and receives one response:
//! complete and with limits on time and size, or in parts. It cannot be used in simulated runs,
//! because the HTTP library has its own clock and sockets.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::Method;

use crate::http::client::{ClientTls, builder};
use crate::http::credentials::HttpCredentials;
use crate::http::tls_mistake::TlsMistake;
use mcctl_base::text::one_line;
use mcctl_base::time::RoundedDuration;

/// Sends HTTP requests. Cheap to clone; clones share the connections. Does not use a proxy or
/// follow redirects.
#[derive(Clone)]
pub struct Fetcher {
    http: reqwest::Client,
    limit: Duration,
    bytes_max: usize,
    bearer: Option<String>,
    headers: HeaderMap,
}

impl fmt::Debug for Fetcher {
    /// Without the bearer token and the headers, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher")
            .field("limit", &self.limit)
            .field("bytes_max", &self.bytes_max)
            .finish_non_exhaustive()
    }
}

/// A complete response with any status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchResponse {
    pub status: u16,
    /// The body as text; invalid UTF-8 is replaced.
    pub body: String,
}

impl FetchResponse {
    /// Returns true for a 2xx status.
    pub fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Formats the status and the start of the body, as evidence in reports.
    pub fn shown(&self) -> String {
        const SHOWN: usize = 120;
        format!("HTTP {}: {}", self.status, one_line(self.body.trim(), SHOWN))
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The connection failed or broke.
    #[error("{0}")]
    Unreachable(String),
    /// Client and server differ in their settings for TLS.
    #[error(transparent)]
    Tls(#[from] TlsMistake),
    /// The response was not received completely within the time limit.
    #[error("no complete response within {}", RoundedDuration(*.0))]
    Timeout(Duration),
    /// The response exceeds the size limit.
    #[error("the response is longer than {0} bytes")]
    TooLong(usize),
    /// The client cannot be set up, or the URL is invalid.
    #[error("{0}")]
    Unusable(String),
}

impl Fetcher {
    /// Creates a client for plain HTTP, or for HTTPS as well if `tls` is set. A response must be
    /// complete within `limit` and contain at most `bytes_max` bytes.
    ///
    /// # Errors
    /// The HTTP library cannot be set up on this host.
    pub fn new(tls: bool, limit: Duration, bytes_max: usize) -> Result<Fetcher, FetchError> {
        Fetcher::build(if tls { ClientTls::Host } else { ClientTls::None }, limit, bytes_max)
    }

    /// Like [`new`](Fetcher::new), with the TLS configuration `tls`, or the host's default if it is
    /// `None`.
    ///
    /// # Errors
    /// The same as [`new`](Fetcher::new).
    pub fn with_tls(
        tls: Option<rustls::ClientConfig>,
        limit: Duration,
        bytes_max: usize,
    ) -> Result<Fetcher, FetchError> {
        Fetcher::build(tls.map_or(ClientTls::Host, |config| ClientTls::Config(Box::new(config))), limit, bytes_max)
    }

    /// Like [`new`](Fetcher::new), with the certificates and the token in `credentials`. They are
    /// sent to every URL, so the caller fetches only from servers that may see them.
    ///
    /// # Errors
    /// The same as [`new`](Fetcher::new).
    pub fn with_credentials(
        credentials: &HttpCredentials,
        limit: Duration,
        bytes_max: usize,
    ) -> Result<Fetcher, FetchError> {
        let fetcher = Fetcher::build(credentials.client_tls(), limit, bytes_max)?;
        Ok(fetcher.with_bearer(credentials.token.as_ref().map(|token| token.reveal().to_owned())))
    }

    fn build(tls: ClientTls, limit: Duration, bytes_max: usize) -> Result<Fetcher, FetchError> {
        let builder = builder(tls).map_err(|error| FetchError::Unusable(error.to_string()))?;
        let http = builder.build().map_err(|error| FetchError::Unusable(error.to_string()))?;
        Ok(Fetcher { http, limit, bytes_max, bearer: None, headers: HeaderMap::new() })
    }

    /// Adds `Authorization: Bearer` to every request.
    #[must_use]
    pub fn with_bearer(self, bearer: Option<String>) -> Fetcher {
        Fetcher { bearer, ..self }
    }

    /// Adds `headers` to every request.
    #[must_use]
    pub fn with_headers(self, headers: HeaderMap) -> Fetcher {
        Fetcher { headers, ..self }
    }

    /// Changes the time limit of requests.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Fetcher {
        Fetcher { limit, ..self }
    }

    /// Sends a GET request to `url`.
    ///
    /// # Errors
    /// See [`FetchError`]. A response with any status is not an error.
    pub async fn get(&self, url: &str) -> Result<FetchResponse, FetchError> {
        self.send(Method::GET, url, None).await
    }

    /// Sends a POST request with the body `json` to `url`.
    ///
    /// # Errors
    /// The same as [`get`](Fetcher::get).
    pub async fn post(&self, url: &str, json: String) -> Result<FetchResponse, FetchError> {
        self.send(Method::POST, url, Some(json)).await
    }

    /// Sends a GET request to `url` and returns once the response begins. No limits apply to this
    /// response; the caller sets its own.
    ///
    /// # Errors
    /// The same as [`get`](Fetcher::get).
    pub async fn open(&self, url: &str) -> Result<FetchStream, FetchError> {
        let response = self.request(Method::GET, url, None).send().await.map_err(|error| failed(error, self.limit))?;
        Ok(FetchStream { response, limit: self.limit })
    }

    async fn send(&self, method: Method, url: &str, body: Option<String>) -> Result<FetchResponse, FetchError> {
        let request = self.request(method, url, body).timeout(self.limit);
        let response = request.send().await.map_err(|error| failed(error, self.limit))?;
        let mut response = FetchStream { response, limit: self.limit };
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > self.bytes_max {
                return Err(FetchError::TooLong(self.bytes_max));
            }
            body.extend_from_slice(&chunk);
        }
        let body = String::from_utf8(body).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        Ok(FetchResponse { status, body })
    }

    fn request(&self, method: Method, url: &str, body: Option<String>) -> reqwest::RequestBuilder {
        let mut headers = self.headers.clone();
        if body.is_some() && !headers.contains_key(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let mut request = self.http.request(method, url).headers(headers);
        if let Some(bearer) = &self.bearer {
            request = request.bearer_auth(bearer);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        request
    }
}

/// A response whose body is read in parts.
#[derive(Debug)]
pub struct FetchStream {
    response: reqwest::Response,
    limit: Duration,
}

impl FetchStream {
    /// Returns the HTTP status code.
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// Waits for the next part of the body; `None` at its end.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, FetchError> {
        self.response.chunk().await.map_err(|error| failed(error, self.limit))
    }
}

fn failed(error: reqwest::Error, limit: Duration) -> FetchError {
    if error.is_timeout() {
        return FetchError::Timeout(limit);
    }
    if error.is_builder() {
        return FetchError::Unusable(root_cause(&error.without_url()));
    }
    let error = error.without_url();
    match TlsMistake::of_client(&error) {
        Some(mistake) => FetchError::Tls(mistake),
        None => FetchError::Unreachable(root_cause(&error)),
    }
}

/// Returns the innermost cause, for example `Connection refused (os error 111)`.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
