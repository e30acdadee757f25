//! The endpoint under load: request encoding, connections and exchanges.

mod body;
mod connection;
pub mod http1;
mod http2;
mod pool;
mod protocol;
mod response;
mod timestamped;
mod wire;

use std::time::Duration;

use hyper::header::HeaderMap;
use serde_json::{Map, Value};

use crate::ModelAnswer;
use crate::answer::{AnswerReader, Dialect, TokenArrival};
use crate::target::wire::WireStream;
use mcctl_base::HostPort;
use mcctl_base::time::RoundedDuration;
use mcctl_sys::env::Env;

pub use body::EncodedRequest;
pub use pool::HttpConnectionPool;
pub use protocol::{HttpProtocol, Tls, TlsError, Trust};
pub use wire::ConnectError;

/// The destination of requests and the parameters that all requests share.
#[derive(Clone, Debug)]
pub struct LoadTarget {
    pub at: HostPort,
    /// Path, such as `/generate`.
    pub path: String,
    /// API of the endpoint.
    pub dialect: Dialect,
    /// Model name, for APIs that require one.
    pub model: String,
    pub temperature: f64,
    /// Nucleus sampling. `None` omits the parameter.
    pub top_p: Option<f64>,
    /// Whether responses are streamed. A non-streamed response is a single JSON document, and all
    /// of its tokens arrive at the end.
    pub stream: bool,
    /// Whether the server ignores the end-of-sequence token and generates the full requested
    /// length.
    pub ignore_eos: bool,
    /// Additional members for every request. They override the default ones.
    pub extra: Map<String, Value>,
    pub headers: HeaderMap,
    /// TLS and HTTP version.
    pub protocol: HttpProtocol,
    /// Time limits and retries.
    pub limits: ExchangeLimits,
}

impl LoadTarget {
    /// Creates a target for streamed requests over HTTP to the API `dialect` at `at`, with the
    /// API's route and the default model, parameters and limits.
    pub fn new(at: HostPort, dialect: Dialect) -> LoadTarget {
        LoadTarget {
            at,
            path: dialect.route().to_owned(),
            dialect,
            model: "default".to_owned(),
            temperature: 0.0,
            top_p: None,
            stream: true,
            ignore_eos: true,
            extra: Map::new(),
            headers: HeaderMap::new(),
            protocol: HttpProtocol::default(),
            limits: ExchangeLimits::default(),
        }
    }

    /// Returns the endpoint's URL.
    pub fn url(&self) -> String {
        let scheme = if self.protocol.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.at, self.path)
    }

    /// Returns a parser for a response.
    fn answer_reader(&self) -> AnswerReader {
        if self.stream { AnswerReader::new(self.dialect) } else { AnswerReader::of_document(self.dialect) }
    }

    /// Returns the host and port in the form used in requests, without the default port.
    fn authority(&self) -> String {
        let default = if self.protocol.tls.is_some() { 443 } else { 80 };
        let whole = self.at.to_string();
        match self.at.port == default {
            true => whole.trim_end_matches(&format!(":{default}")).to_owned(),
            false => whole,
        }
    }
}

/// Checks that the endpoint is reachable: connects in the same way as a request, including TLS, and
/// then disconnects.
///
/// # Errors
/// The connection or the TLS handshake failed or timed out.
pub async fn check_reachable<E: Env + Unpin>(env: &E, target: &LoadTarget) -> Result<(), ConnectError> {
    WireStream::open(env, target).await.map(drop)
}

/// Time limits of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeLimits {
    pub connect: Duration,
    /// Maximum time without data: between two bytes of the response, or between the request and the
    /// first byte.
    pub silence: Duration,
    pub whole: Duration,
    /// Number of retries after busy responses (429 or 503) with `Retry-After`.
    pub busy_retries: u32,
}

impl Default for ExchangeLimits {
    fn default() -> ExchangeLimits {
        let connect = Duration::from_secs(10);
        let silence = Duration::from_secs(600);
        ExchangeLimits { connect, silence, whole: Duration::from_secs(3600), busy_retries: 0 }
    }
}

/// How an exchange ended. Every request that was sent has exactly one outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeOutcome {
    /// A complete response with at least one token.
    Ok,
    Connect(String),
    /// A status other than 2xx.
    Status {
        status: u16,
        /// Start of the response body.
        message: String,
        /// `Retry-After`, if specified in seconds.
        retry_after: Option<Duration>,
    },
    /// The connection broke, or the response is not HTTP.
    Broken(String),
    /// The stream ended without its final frame.
    CutOff,
    /// The server sent an error within the stream.
    Refused(String),
    /// Status 200, but without any tokens.
    NoTokens,
    /// Status 200 without any tokens and with a content type other than a stream. Contains the
    /// content type and the start of the body.
    NoStream(String),
    /// No bytes arrived for [`ExchangeLimits::silence`], or the exchange took longer than
    /// [`ExchangeLimits::whole`].
    TimedOut(Duration),
    /// A panic aborted the exchange: a bug in mcctl, not in the server.
    Bug(String),
}

impl ExchangeOutcome {
    /// Whether the server refused the request because prompt and response exceed the model's
    /// context. Servers report this only in the message text.
    pub fn is_context_overflow(&self) -> bool {
        let (ExchangeOutcome::Status { message, .. } | ExchangeOutcome::Refused(message)) = self else { return false };
        let message = message.to_ascii_lowercase();
        let words = [
            "context length",
            "context_length",
            "maximum context",
            "context window",
            "prompt is too long",
            "maximum allowed length",
            "maximum model length",
        ];
        words.iter().any(|words| message.contains(words))
    }

    /// Returns the category under which failures are counted.
    pub fn kind(&self) -> String {
        match self {
            ExchangeOutcome::Ok => "ok".to_owned(),
            ExchangeOutcome::Connect(_) => "no connection".to_owned(),
            ExchangeOutcome::Status { status, .. } => format!("status {status}"),
            ExchangeOutcome::Broken(_) => "connection broke".to_owned(),
            ExchangeOutcome::CutOff => "stream cut off".to_owned(),
            ExchangeOutcome::Refused(_) => "error in the stream".to_owned(),
            ExchangeOutcome::NoTokens => "no tokens".to_owned(),
            ExchangeOutcome::NoStream(_) => "no stream".to_owned(),
            ExchangeOutcome::TimedOut(_) => "time-out".to_owned(),
            ExchangeOutcome::Bug(_) => "bug in mcctl".to_owned(),
        }
    }

    /// Returns the message that accompanies the category, or an empty string.
    pub fn message(&self) -> String {
        match self {
            ExchangeOutcome::Connect(message)
            | ExchangeOutcome::Broken(message)
            | ExchangeOutcome::Refused(message)
            | ExchangeOutcome::NoStream(message)
            | ExchangeOutcome::Bug(message) => message.clone(),
            ExchangeOutcome::Status { message, .. } => message.clone(),
            ExchangeOutcome::TimedOut(limit) => {
                format!("no data or an incomplete response after {}", RoundedDuration(*limit))
            }
            ExchangeOutcome::Ok | ExchangeOutcome::CutOff | ExchangeOutcome::NoTokens => String::new(),
        }
    }
}

/// Maximum number of frames per response whose arrival times are stored.
pub const ARRIVALS_MAX: usize = 1 << 16;

/// The timeline of an exchange, relative to the start of the run.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// When the generator started the exchange.
    pub begun: Duration,
    /// Time taken by earlier attempts that ended with busy responses.
    pub waited: Duration,
    /// When the last byte of the request was written.
    pub wrote: Duration,
    /// When the first token was read.
    pub first_token: Option<Duration>,
    /// When the last token was read.
    pub last_token: Option<Duration>,
    pub end: Duration,
    /// Number of tokens received in frames.
    pub arrived: u32,
    /// Arrivals of the first [`ARRIVALS_MAX`] frames.
    pub arrivals: Vec<TokenArrival>,
    pub answer: ModelAnswer,
    pub outcome: ExchangeOutcome,
}

impl Exchange {
    /// Returns when the request was first sent. Waiting for retries after busy responses is part of
    /// the latency.
    pub fn sent(&self) -> Duration {
        self.wrote.saturating_sub(self.waited)
    }

    /// Creates the exchange for a request that could not be sent.
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
            answer: ModelAnswer::default(),
            outcome: ExchangeOutcome::Connect(why),
        }
    }
}

#[cfg(test)]
mod outcome_tests {
    use super::*;

    #[test]
    fn context_overflows_are_recognized_by_the_words_of_servers() {
        let status =
            |message: &str| ExchangeOutcome::Status { status: 400, message: message.to_owned(), retry_after: None };
        for message in [
            // SGLang, vLLM, and others.
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            "Requested token count exceeds the model's maximum context length of 4096 tokens.",
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
            "{\"code\":\"context_length_exceeded\"}",
            "Prompt is too long",
        ] {
            assert!(status(message).is_context_overflow(), "{message}");
            assert!(ExchangeOutcome::Refused(message.to_owned()).is_context_overflow());
        }
        assert!(!status("max_tokens must be at least 1").is_context_overflow());
        assert!(!ExchangeOutcome::Broken("context length".to_owned()).is_context_overflow());
    }
}
