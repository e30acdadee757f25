//! A small HTTP/1.1 server for the metadata service, the master's admin API and the store node's
//! REST API.
//!
//! It enforces the limits that protect all three services against any client: limits on
//! connections, header bytes, body bytes and concurrently read bodies; timeouts for headers,
//! bodies, responses and clients that stop reading; and a time limit for the shutdown. It has no
//! routes: a [`Handler`] receives complete requests. Tokens, client certificates and TLS are
//! optional ([`access`]). Like upstream's servers, it does not support HTTP/2. This directory also
//! contains a client for other programs' HTTP endpoints ([`fetch`]) and a parser for Prometheus
//! pages ([`samples`]).

pub mod access;
mod body;
pub mod client;
mod connection_slot;
mod credentials;
pub mod fetch;
mod query;
mod requests;
pub mod samples;
mod server;
mod stall_limit;
pub mod tls;
pub mod tls_mistake;

pub use access::{AccessDecision, AccessPolicy, AccessRules, HttpAccess, OTHER_ROUTE, RouteClass, SecretToken};
pub use body::{PageSource, PieceSource, ResponseBody};
pub use client::ClientTls;
pub use credentials::HttpCredentials;
pub use fetch::{FetchError, FetchResponse, FetchStream, Fetcher};
pub use hyper::{Method, StatusCode};
pub use query::{decode, escape, escape_in_query, param};
pub use requests::Requests;
pub use samples::Samples;
pub use server::{HttpServer, start, start_with};
pub use tls_mistake::TlsMistake;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};

use mcctl_base::HostPort;

/// A request whose body has been read.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    pub method: Method,
    /// The path, and the parameters after `?`, as sent.
    pub target: hyper::Uri,
    /// The value of `Authorization` is marked as sensitive, so that it is not printed.
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl HttpRequest {
    /// The path, as sent (percent-encoded).
    pub fn path(&self) -> &str {
        self.target.path()
    }

    /// The first parameter named `name`, as sent (percent-encoded).
    pub fn param(&self, name: &str) -> Option<&str> {
        param(self.target.query().unwrap_or_default(), name)
    }
}

/// The response of a [`Handler`], complete or streamed.
pub type Response = hyper::Response<ResponseBody>;

/// Handles requests. Many run concurrently; a waiting request does not delay others.
pub trait Handler: Send + Sync + 'static {
    /// Handles `request`. The future is dropped when it exceeds [`HttpLimits::answer`].
    fn handle(&self, request: HttpRequest) -> impl Future<Output = Response> + Send;

    /// The request counters, if requests are counted.
    fn requests(&self) -> Option<&Requests> {
        None
    }

    /// The route for `path`. It becomes a metric label, so it must be one of a few fixed strings.
    /// [`RouteClass::of`] decides by it what a request needs.
    fn route(&self, _path: &str) -> &'static str {
        OTHER_ROUTE
    }

    /// What a request needs if access is restricted.
    fn route_class(&self, method: &Method, path: &str) -> RouteClass {
        RouteClass::of(method, self.route(path))
    }
}

/// Limits for one server.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Maximum number of open connections. For each additional connection, the one that has been
    /// idle longest is closed. If none is idle, the new connection waits to be accepted.
    pub connections_max: usize,
    /// Maximum size of the request line and headers in bytes.
    pub header_bytes_max: usize,
    /// Maximum size of one body in bytes.
    pub body_bytes_max: usize,
    /// Maximum total size of all bodies being read or processed, in bytes. Further bodies wait.
    /// Must be at least `body_bytes_max`.
    pub bodies_bytes_max: usize,
    /// Timeout for an idle connection, and for receiving the headers of a request.
    pub header: Duration,
    /// Timeout for receiving the body of a request.
    pub body: Duration,
    /// Maximum time between receiving a request and starting the response.
    pub answer: Duration,
    /// While a response is being sent, the client must, in each period of this length, read it at a
    /// rate of at least [`HttpLimits::least_rate`], or read the rest of the response.
    pub stall: Duration,
    /// Minimum rate at which a client must read a response, in bytes per second; 0 requires at
    /// least one byte per period.
    pub least_rate: u64,
    /// How long a shutdown waits for responses in progress.
    pub drain: Duration,
}

impl HttpLimits {
    /// Limits for services with small requests: 1 MiB per body.
    pub const SMALL: HttpLimits = HttpLimits {
        connections_max: 4096,
        header_bytes_max: 64 << 10,
        body_bytes_max: 1 << 20,
        bodies_bytes_max: 64 << 20,
        header: Duration::from_secs(60),
        body: Duration::from_secs(10),
        answer: Duration::from_secs(10),
        stall: Duration::from_secs(20),
        least_rate: 64 << 10,
        drain: Duration::from_secs(1),
    };
}

/// The address or the Unix socket is not available.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {}", socket.as_ref().map_or(at.to_string(), |path| path.display().to_string()))]
pub struct BindError {
    pub at: HostPort,
    /// The path of the Unix socket, if that is not available.
    pub socket: Option<PathBuf>,
    #[source]
    pub source: io::Error,
}

/// Creates a response with `status`, a content type (omitted if empty) and a body.
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<ResponseBody>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    if !content_type.is_empty() {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    response
}

/// Creates the response that upstream's C++ servers send for an unknown method or path: 404 without
/// a content type.
pub fn no_such_route() -> Response {
    answer(StatusCode::NOT_FOUND, "", "404 Not Found")
}
