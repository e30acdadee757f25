//! The result of a measured pass.

use std::time::Duration;

use crate::measure::Tally;
use crate::server::ServerObservation;
use crate::target::ExchangeOutcome;
use crate::{RunStats, TimedRequest, Turn};

/// Maximum number of requests whose figures are kept, about 80 MiB.
pub const FIGURES_MAX: usize = 1 << 20;

/// Identifies a pass within a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassId {
    /// Index of the endpoint.
    pub side: usize,
    /// Name of the endpoint.
    pub side_name: String,
    pub name: String,
    /// Block number in a comparison, otherwise zero.
    pub block: u32,
}

/// One request's figures, to be paired with the figures for the same request in another pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub turn: Turn,
    /// Whether the request succeeded. If not, the times are meaningless.
    pub well: bool,
    /// TTFT, from the scheduled send time.
    pub ttft: Duration,
    /// E2E latency, from the scheduled send time.
    pub e2e: Duration,
    /// TPOT: mean time per token after the first one. `None` with fewer than two tokens.
    pub tpot: Option<Duration>,
    pub lag: Duration,
    pub prompt: u32,
    pub completion: u32,
    /// Cached tokens from L1.
    pub device: u32,
    /// Cached tokens from L2.
    pub host: u32,
    /// Cached tokens from L3.
    pub storage: u32,
    pub cached: u32,
    pub expected: Option<u32>,
}

impl Figure {
    /// Returns the figures for `record`.
    pub fn of(record: &TimedRequest) -> Figure {
        let exchange = &record.exchange;
        let answer = &record.exchange.answer;
        let completion = answer.completion_tokens.unwrap_or(exchange.arrived);
        let cached = answer.cached.clone().unwrap_or_default();
        let span = exchange.first_token.zip(exchange.last_token).map(|(first, last)| last.saturating_sub(first));
        Figure {
            turn: record.turn,
            well: exchange.outcome == ExchangeOutcome::Ok,
            ttft: exchange.first_token.unwrap_or_default().saturating_sub(record.planned),
            e2e: exchange.end.saturating_sub(record.planned),
            tpot: span.filter(|_| completion > 1).map(|span| span / (completion - 1)),
            lag: record.lag(),
            prompt: answer.prompt_tokens.unwrap_or(0),
            completion,
            device: cached.device,
            host: cached.host,
            storage: cached.storage,
            cached: answer.cached_in_all(),
            expected: record.possible.map(|possible| possible.expected),
        }
    }
}

/// The results of a pass.
#[derive(Clone, Debug)]
pub struct PassResult {
    pub id: PassId,
    pub tally: Tally,
    /// Run statistics that are not tied to a single request.
    pub ran: RunStats,
    /// Figures per request, if the session keeps them.
    pub figures: Vec<Figure>,
    /// Data observed on the server, if its other routes were used.
    pub observed: Option<ServerObservation>,
}

impl PassResult {
    /// Creates an empty result.
    pub fn new(id: PassId) -> PassResult {
        PassResult { id, tally: Tally::default(), ran: RunStats::default(), figures: Vec::new(), observed: None }
    }

    /// Adds `record` to the totals.
    pub fn add(&mut self, record: &TimedRequest, keep_figures: bool) {
        self.tally.add(record);
        if keep_figures && self.figures.len() < FIGURES_MAX {
            self.figures.push(Figure::of(record));
        }
    }

    /// Returns the number of requests sent: successful, failed or unfinished.
    pub fn sent(&self) -> u64 {
        self.tally.all.requests + self.tally.failed() + self.ran.unfinished
    }
}
