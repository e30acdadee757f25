//! An endpoint under load: how a turn becomes an HTTP request, and one exchange over one connection.

mod body;
mod connection;
mod hearing;
pub mod http1;
mod http2;
mod pool;
mod stamped;
mod via;
mod wire;

use std::time::Duration;

use hyper::header::HeaderMap;
use serde_json::{Map, Value};

use crate::engine::base::HostPort;
use crate::engine::env::Env;
use crate::engine::load::Answer;
use crate::engine::load::answer::{Arrival, Dialect};
use crate::engine::load::target::wire::Wire;

pub use body::Asking;
pub use pool::Pool;
pub use via::{Tls, TlsError, Trust, Via};

/// Where requests go, and what is the same in all of them.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where to connect.
    pub at: HostPort,
    /// The path, `/generate`.
    pub path: String,
    /// The words it speaks.
    pub dialect: Dialect,
    /// The model, where the dialect names one.
    pub model: String,
    /// Sampling temperature.
    pub temperature: f64,
    /// Nucleus sampling; `None` sends nothing.
    pub top_p: Option<f64>,
    /// Is the answer streamed? Otherwise it is one JSON document, and all of its tokens arrive at its end.
    pub stream: bool,
    /// Shall the server go on to the last token asked for, whatever comes?
    pub ignore_eos: bool,
    /// More members of every request; they win over ours.
    pub extra: Map<String, Value>,
    /// More headers.
    pub headers: HeaderMap,
    /// TLS and the version of HTTP.
    pub via: Via,
    /// What waits how long.
    pub limits: Limits,
}

impl Target {
    /// Its URL.
    pub fn url(&self) -> String {
        let scheme = if self.via.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.at, self.path)
    }

    /// Host and port as a request names them: without a port that goes without saying.
    fn authority(&self) -> String {
        let default = if self.via.tls.is_some() { 443 } else { 80 };
        let whole = self.at.to_string();
        match self.at.port == default {
            true => whole.trim_end_matches(&format!(":{default}")).to_owned(),
            false => whole,
        }
    }
}

/// Is anybody there? Connects as a request would, TLS included, asks nothing and goes.
///
/// # Errors
/// Why there is no connection, in words.
pub async fn reach<E: Env + Unpin>(env: &E, target: &Target) -> Result<(), String> {
    Wire::open(env, target).await.map(drop)
}

/// How long an exchange may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// To connect.
    pub connect: Duration,
    /// From one byte of the answer to the next, and from the request to the first.
    pub silence: Duration,
    /// In all.
    pub whole: Duration,
    /// So many times a request is sent again to a server that is busy (429 or 503) and says when to come back.
    pub busy_retries: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        let (connect, silence) = (Duration::from_secs(10), Duration::from_secs(600));
        Limits { connect, silence, whole: Duration::from_secs(3600), busy_retries: 0 }
    }
}

/// How an exchange ended. Every request that was sent ends in exactly one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A whole answer with at least one token.
    Ok,
    /// No connection.
    Connect(String),
    /// Another status than 2xx.
    Status {
        /// Which.
        status: u16,
        /// The beginning of what it says.
        says: String,
        /// `Retry-After`, if it was in seconds.
        retry_after: Option<Duration>,
    },
    /// The connection ended, or what came is not HTTP.
    Broken(String),
    /// The stream ended without its last frame.
    CutOff,
    /// The server sent an error in the stream.
    Refused(String),
    /// A 200 without a token.
    NoTokens,
    /// A 200 whose head says that it is something else than a stream, and that has no token: its type, and how it begins.
    NoStream(String),
    /// Nothing came for [`Limits::silence`], or it took [`Limits::whole`].
    TooSlow(Duration),
    /// It was broken off by a panic here, which says this: a bug in mcctl, and nothing of the server's.
    Bug(String),
}

impl Outcome {
    /// The word under which failures are counted.
    pub fn word(&self) -> String {
        match self {
            Outcome::Ok => "ok".to_owned(),
            Outcome::Connect(_) => "no connection".to_owned(),
            Outcome::Status { status, .. } => format!("status {status}"),
            Outcome::Broken(_) => "connection broke".to_owned(),
            Outcome::CutOff => "stream cut off".to_owned(),
            Outcome::Refused(_) => "error in the stream".to_owned(),
            Outcome::NoTokens => "no tokens".to_owned(),
            Outcome::NoStream(_) => "no stream".to_owned(),
            Outcome::TooSlow(_) => "time-out".to_owned(),
            Outcome::Bug(_) => "bug in mcctl".to_owned(),
        }
    }

    /// What is said of it beside its word; nothing where the word says it all.
    pub fn said(&self) -> String {
        match self {
            Outcome::Connect(said)
            | Outcome::Broken(said)
            | Outcome::Refused(said)
            | Outcome::NoStream(said)
            | Outcome::Bug(said) => said.clone(),
            Outcome::Status { says, .. } => says.clone(),
            Outcome::TooSlow(limit) => format!("silent, or not at its end, within {limit:?}"),
            Outcome::Ok | Outcome::CutOff | Outcome::NoTokens => String::new(),
        }
    }
}

/// Frames of one answer whose arrivals are kept.
pub const ARRIVALS_MAX: usize = 1 << 16;

/// What happened when, as durations since the run began.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// When the shell took it up: from then on it was ours.
    pub begun: Duration,
    /// How much of the time before that the server had asked for, being busy: it was asked before.
    pub waited: Duration,
    /// When the last byte of the request had been written.
    pub wrote: Duration,
    /// When the first token had been read.
    pub first_token: Option<Duration>,
    /// When the last one had.
    pub last_token: Option<Duration>,
    /// The end.
    pub end: Duration,
    /// Tokens that arrived in frames.
    pub arrived: u32,
    /// When each of them did; of the first [`ARRIVALS_MAX`] frames.
    pub arrivals: Vec<Arrival>,
    /// What it says.
    pub answer: Answer,
    /// How it ended.
    pub outcome: Outcome,
}

impl Exchange {
    /// When the request was first sent: a busy server may have asked to come again, and the wait for that is load, too.
    pub fn sent(&self) -> Duration {
        self.wrote.saturating_sub(self.waited)
    }

    /// Nothing could be sent.
    pub fn without_connection(begun: Duration, end: Duration, why: String) -> Exchange {
        Exchange {
            begun,
            waited: Duration::ZERO,
            wrote: end,
            first_token: None,
            last_token: None,
            end,
            arrived: 0,
            arrivals: Vec::new(),
            answer: Answer::default(),
            outcome: Outcome::Connect(why),
        }
    }
}
