//! Counts beside the tally: requests that met the limits, the steady state, and first turns apart from further ones.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::load::measure::goodput::{Goodput, Limit};
use crate::engine::load::measure::steady::Steady;
use crate::engine::load::session::{Next, Observer, Pass, PassId};
use crate::engine::load::target::Outcome;
use crate::engine::load::{Live, Record};

/// Some of a pass's requests, as KEP-74 counts them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// That went well.
    pub requests: u64,
    /// Of prompts and of answers.
    pub tokens: u64,
    /// The first sent, the last ended.
    window: Option<(Duration, Duration)>,
    ttft: (f64, u64),
    gaps: (f64, u64),
}

impl Work {
    fn add(&mut self, record: &Record) {
        let exchange = &record.exchange;
        if exchange.outcome != Outcome::Ok {
            return;
        }
        self.requests += 1;
        let tokens = exchange.answer.completion_tokens.unwrap_or(exchange.arrived);
        self.tokens += u64::from(exchange.answer.prompt_tokens.unwrap_or(0)) + u64::from(tokens);
        let (from, to) = self.window.unwrap_or((exchange.sent(), exchange.end));
        self.window = Some((from.min(exchange.sent()), to.max(exchange.end)));
        if let (Some(first), Some(last)) = (exchange.first_token, exchange.last_token) {
            self.ttft = (self.ttft.0 + first.saturating_sub(record.planned).as_secs_f64(), self.ttft.1 + 1);
            let gaps = u64::from(tokens.saturating_sub(1));
            self.gaps = (self.gaps.0 + last.saturating_sub(first).as_secs_f64(), self.gaps.1 + gaps);
        }
    }

    /// Tokens of prompts and answers per second.
    pub fn tokens_per_s(&self) -> Option<f64> {
        let seconds = self.window.map(|(from, to)| to.saturating_sub(from).as_secs_f64()).filter(|s| *s > 0.0)?;
        Some(self.tokens as f64 / seconds)
    }

    /// Mean milliseconds from the plan to the first token.
    pub fn ttft_ms(&self) -> Option<f64> {
        (self.ttft.1 > 0).then(|| self.ttft.0 / self.ttft.1 as f64 * 1e3)
    }

    /// Mean milliseconds between tokens.
    pub fn itl_ms(&self) -> Option<f64> {
        (self.gaps.1 > 0).then(|| self.gaps.0 / self.gaps.1 as f64 * 1e3)
    }
}

/// Of one pass.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub id: PassId,
    pub goodput: Goodput,
    pub steady: Steady,
    /// First turns.
    pub first: Work,
    /// All others.
    pub further: Work,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    limits: Vec<Limit>,
    /// A pass fails when a smaller share of it met the limits; after two in a row the rest is not run.
    pub enough: Option<f64>,
    failed: u32,
    pub passes: Vec<Watched>,
}

impl Watch {
    pub fn new(limits: &[Limit]) -> Watch {
        Watch { limits: limits.to_vec(), enough: None, failed: 0, passes: Vec::new() }
    }
}

impl Observer for Watch {
    fn begins(&mut self, pass: &PassId, _: u64, _: u64, _: &Arc<Live>) {
        self.passes.push(Watched {
            id: pass.clone(),
            goodput: Goodput::new(&self.limits),
            steady: Steady::default(),
            first: Work::default(),
            further: Work::default(),
        });
    }

    fn record(&mut self, _: &PassId, record: &Record) {
        let Some(pass) = self.passes.last_mut() else { return };
        pass.goodput.add(record);
        pass.steady.add(record);
        if record.turn.index == 0 { pass.first.add(record) } else { pass.further.add(record) }
    }

    fn ended(&mut self, pass: &Pass) -> Next {
        let (Some(enough), Some(watched)) = (self.enough, self.passes.last()) else { return Next::GoOn };
        self.failed = if watched.goodput.share(pass.sent()) < enough { self.failed + 1 } else { 0 };
        if self.failed >= 2 { Next::Enough } else { Next::GoOn }
    }
}
