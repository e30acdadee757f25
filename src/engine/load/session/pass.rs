//! What a measured run brought.

use std::time::Duration;

use crate::engine::load::measure::Tally;
use crate::engine::load::server::Observed;
use crate::engine::load::target::Outcome;
use crate::engine::load::{Ran, Record, Turn};

/// Figures of at most so many requests are kept: 80 MiB or so.
pub const FIGURES_MAX: usize = 1 << 20;

/// Which pass it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassId {
    /// Index of the endpoint.
    pub side: usize,
    /// What the endpoint is called.
    pub side_name: String,
    /// What the pass is called.
    pub name: String,
    /// Which block of a comparison it belongs to.
    pub block: u32,
}

/// One request in short, to be paired with the same request elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Which.
    pub turn: Turn,
    /// Did it go well? The times mean nothing otherwise.
    pub well: bool,
    /// From the planned instant to the first token.
    pub ttft: Duration,
    /// From the planned instant to the end.
    pub e2e: Duration,
    /// Per token after the first; `None` with fewer than two.
    pub tpot: Option<Duration>,
    /// The generator's own lag.
    pub lag: Duration,
    /// Tokens of the prompt, of the answer, and cached by tier.
    pub prompt: u32,
    /// Of the answer.
    pub completion: u32,
    /// From the device.
    pub device: u32,
    /// From the host.
    pub host: u32,
    /// From the store.
    pub storage: u32,
    /// Cached in all.
    pub cached: u32,
    /// That should have been cached.
    pub expected: Option<u32>,
}

impl Figure {
    /// The figure of `record`.
    pub fn of(record: &Record) -> Figure {
        let (exchange, answer) = (&record.exchange, &record.exchange.answer);
        let completion = answer.completion_tokens.unwrap_or(exchange.arrived);
        let cached = answer.cached.clone().unwrap_or_default();
        let span = exchange.first_token.zip(exchange.last_token).map(|(first, last)| last.saturating_sub(first));
        Figure {
            turn: record.turn,
            well: exchange.outcome == Outcome::Ok,
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
            expected: record.expected,
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Which one.
    pub id: PassId,
    /// What its requests add up to.
    pub tally: Tally,
    /// What the run left beside them.
    pub ran: Ran,
    /// A figure per request, where the session keeps them.
    pub figures: Vec<Figure>,
    /// What the server's other routes told of it.
    pub observed: Option<Observed>,
}

impl Pass {
    /// Nothing of `id` yet.
    pub fn new(id: PassId) -> Pass {
        Pass { id, tally: Tally::default(), ran: Ran::default(), figures: Vec::new(), observed: None }
    }

    /// Count `record`.
    pub fn add(&mut self, record: &Record, keep_figures: bool) {
        self.tally.add(record);
        if keep_figures && self.figures.len() < FIGURES_MAX {
            self.figures.push(Figure::of(record));
        }
    }

    /// Requests that were sent: they went well, failed, or are unfinished.
    pub fn sent(&self) -> u64 {
        self.tally.all.requests + self.tally.failed() + self.ran.unfinished
    }
}
