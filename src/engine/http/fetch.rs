//! Questions to other programs' HTTP: one request, one whole answer, within a time and a size. It takes no part in simulated
//! runs: the HTTP library has its own clock and sockets.

use std::time::Duration;

use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::Method;

use crate::engine::base::text::one_line;
use crate::engine::http::client::no_certificates;

/// Asks HTTP servers. Cheap to clone; clones share the connections. No proxy is used and no redirect followed.
#[derive(Clone, Debug)]
pub struct Fetcher {
    http: reqwest::Client,
    limit: Duration,
    bytes_max: usize,
    bearer: Option<String>,
    headers: HeaderMap,
}

/// A whole answer, whatever its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The status.
    pub status: u16,
    /// The body, as text; what is no UTF-8 is replaced.
    pub body: String,
}

impl Fetched {
    /// Is the status one of success?
    pub fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The status and the start of the body, as evidence.
    pub fn shown(&self) -> String {
        const SHOWN: usize = 120;
        format!("HTTP {}: {}", self.status, one_line(self.body.trim(), SHOWN))
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// No connection, or it broke.
    #[error("{0}")]
    Unreachable(String),
    /// Not whole in time.
    #[error("no whole answer within {0:?}")]
    Late(Duration),
    /// More than was bargained for.
    #[error("an answer of more than {0} bytes")]
    TooLong(usize),
    /// The client cannot be set up, or the URL is none.
    #[error("{0}")]
    Unusable(String),
}

impl Fetcher {
    /// For plain HTTP, or with `tls` for https too. Each answer is there within `limit` and no longer than `bytes_max`.
    ///
    /// # Errors
    /// This host's HTTP library cannot be set up.
    pub fn new(tls: bool, limit: Duration, bytes_max: usize) -> Result<Fetcher, FetchError> {
        if !tls {
            let nobody = no_certificates().map_err(|error| FetchError::Unusable(error.to_string()))?;
            return Fetcher::trusting(Some(nobody), limit, bytes_max);
        }
        // An error means that somebody installed one before, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Fetcher::trusting(None, limit, bytes_max)
    }

    /// The same, with TLS as `tls` has it; as this host has it without.
    ///
    /// # Errors
    /// As [`new`](Fetcher::new).
    pub fn trusting(
        tls: Option<rustls::ClientConfig>,
        limit: Duration,
        bytes_max: usize,
    ) -> Result<Fetcher, FetchError> {
        let builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(limit)
            .tcp_nodelay(true);
        let builder = match tls {
            Some(tls) => builder.tls_backend_preconfigured(tls),
            None => builder,
        };
        let http = builder.build().map_err(|error| FetchError::Unusable(error.to_string()))?;
        Ok(Fetcher { http, limit, bytes_max, bearer: None, headers: HeaderMap::new() })
    }

    /// The same, with `Authorization: Bearer` in every request.
    #[must_use]
    pub fn with_bearer(self, bearer: Option<String>) -> Fetcher {
        Fetcher { bearer, ..self }
    }

    /// The same, with `headers` in every request.
    #[must_use]
    pub fn with_headers(self, headers: HeaderMap) -> Fetcher {
        Fetcher { headers, ..self }
    }

    /// GET `url`.
    ///
    /// # Errors
    /// See [`FetchError`]; any status is an answer.
    pub async fn get(&self, url: &str) -> Result<Fetched, FetchError> {
        self.send(Method::GET, url, None).await
    }

    /// POST `json` to `url`.
    ///
    /// # Errors
    /// As [`get`](Fetcher::get).
    pub async fn post(&self, url: &str, json: String) -> Result<Fetched, FetchError> {
        self.send(Method::POST, url, Some(json)).await
    }

    async fn send(&self, method: Method, url: &str, body: Option<String>) -> Result<Fetched, FetchError> {
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
        let mut response = request.send().await.map_err(|error| self.failed(error))?;
        let status = response.status().as_u16();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(error))? {
            if body.len() + chunk.len() > self.bytes_max {
                return Err(FetchError::TooLong(self.bytes_max));
            }
            body.extend_from_slice(&chunk);
        }
        let body = String::from_utf8(body).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        Ok(Fetched { status, body })
    }

    fn failed(&self, error: reqwest::Error) -> FetchError {
        if error.is_timeout() {
            return FetchError::Late(self.limit);
        }
        if error.is_builder() {
            return FetchError::Unusable(error.to_string());
        }
        FetchError::Unreachable(root_cause(&error.without_url()))
    }
}

/// The innermost reason: `Connection refused (os error 111)`.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
