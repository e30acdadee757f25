//! A small HTTP/1.1 server: the floor under the metadata service, the master's admin surface and the store node's REST routes.
//!
//! It owns what must hold for all three, whoever is on the other side: a bound on connections, on header and body bytes and on the
//! bodies that are read at once, a deadline on every step (header, body, answer, a peer that stops reading), a stop that ends
//! within a bound. It knows no route: a [`Handler`] gets whole requests. No TLS, no HTTP/2, as upstream's servers. Beside it: one question to another
//! program's HTTP ([`fetch`]), and the samples of a Prometheus page ([`samples`]).

mod body;
pub mod client;
pub mod fetch;
mod query;
mod requests;
pub mod samples;
mod server;

pub use body::{Body, Pages, Pieces};
pub use fetch::{FetchError, Fetched, Fetcher};
pub use hyper::{Method, StatusCode};
pub use query::{decode, param};
pub use requests::Requests;
pub use samples::Samples;
pub use server::{Running, start};

use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use crate::engine::base::HostPort;

/// A request whose body has been read.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The path and, after `?`, the parameters, as sent.
    pub target: hyper::Uri,
    /// The body.
    pub body: Bytes,
}

impl Request {
    /// The path, as sent (percent-encoded).
    pub fn path(&self) -> &str {
        self.target.path()
    }

    /// The first parameter called `name`, as sent (percent-encoded); `None` when there is none.
    pub fn param(&self, name: &str) -> Option<&str> {
        param(self.target.query().unwrap_or_default(), name)
    }
}

/// An answer.
pub type Response = hyper::Response<Body>;

/// What a server does with requests. Many run at once; one that waits holds nobody up.
pub trait Handler: Send + Sync + 'static {
    /// Answer `request`. Dropped when it takes longer than [`Limits::answer`].
    fn handle(&self, request: Request) -> impl Future<Output = Response> + Send;

    /// Where requests are counted, if they are.
    fn requests(&self) -> Option<&Requests> {
        None
    }

    /// The route that `path` belongs to: one of a few fixed texts, since it becomes a metric's label.
    fn route(&self, _path: &str) -> &'static str {
        OTHER_ROUTE
    }
}

/// The route of a path that the server does not have.
pub const OTHER_ROUTE: &str = "other";

/// Bounds of one server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections that are open at once. For a further one the connection is closed that has been idle longest; if none is idle, it
    /// waits to be accepted.
    pub connections_max: usize,
    /// Bytes of request line and headers.
    pub header_bytes_max: usize,
    /// Bytes of one body.
    pub body_bytes_max: usize,
    /// Bytes of all bodies that are being read or answered at once; further ones wait. At least `body_bytes_max`.
    pub bodies_bytes_max: usize,
    /// How long a connection may be idle, or take to send its headers.
    pub header: Duration,
    /// How long a body may take.
    pub body: Duration,
    /// How long an answer may take to begin.
    pub answer: Duration,
    /// While an answer waits for its peer, the peer must take [`Limits::least_rate`] in each such period, or all of the answer.
    pub stall: Duration,
    /// The least rate at which a peer must take an answer, bytes per second; 0 asks for some byte in each period.
    pub least_rate: u64,
    /// How long a stop waits for answers that have begun.
    pub drain: Duration,
}

impl Limits {
    /// For services whose requests are small: 1 MiB per body.
    pub const SMALL: Limits = Limits {
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

/// A port could not be taken.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {at}")]
pub struct BindError {
    /// Where.
    pub at: HostPort,
    /// What the system says.
    #[source]
    pub source: io::Error,
}

/// An answer with `status`, a content type (none when empty) and a body.
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    if !content_type.is_empty() {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    response
}

/// What upstream's C++ servers answer to a method or path that they do not have: 404, no content type.
pub fn no_such_route() -> Response {
    answer(StatusCode::NOT_FOUND, "", "404 Not Found")
}
