//! Tracks goals per pass: goodput, steady state, and the first turns separately from later turns.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::load::measure::goodput::{Goodput, LatencyLimit};
use crate::engine::load::measure::steady::SteadyState;
use crate::engine::load::session::{AfterPass, Observer, PassId, PassResult};
use crate::engine::load::target::ExchangeOutcome;
use crate::engine::load::{LiveCounters, TimedRequest};

/// Totals over a subset of a pass's requests, counted as in KEP-74.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kep74Totals {
    pub requests: u64,
    /// Prompt and output tokens.
    pub tokens: u64,
    /// Time of the first send and of the last response.
    window: Option<(Duration, Duration)>,
    /// Sum of the values in seconds, and their number.
    ttft: (f64, u64),
    /// Sum of the values in seconds, and their number.
    gaps: (f64, u64),
}

impl Kep74Totals {
    fn add(&mut self, record: &TimedRequest) {
        let exchange = &record.exchange;
        if exchange.outcome != ExchangeOutcome::Ok {
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

    /// Returns prompt and output tokens per second.
    pub fn tokens_per_s(&self) -> Option<f64> {
        let seconds = self.window.map(|(from, to)| to.saturating_sub(from).as_secs_f64()).filter(|s| *s > 0.0)?;
        Some(self.tokens as f64 / seconds)
    }

    /// Returns the mean TTFT from the scheduled send time, in milliseconds.
    pub fn ttft_ms(&self) -> Option<f64> {
        (self.ttft.1 > 0).then(|| self.ttft.0 / self.ttft.1 as f64 * 1e3)
    }

    /// Returns the mean ITL in milliseconds.
    pub fn itl_ms(&self) -> Option<f64> {
        (self.gaps.1 > 0).then(|| self.gaps.0 / self.gaps.1 as f64 * 1e3)
    }
}

/// Goal statistics for one pass.
#[derive(Clone, Debug)]
pub(super) struct PassStats {
    pub id: PassId,
    pub goodput: Goodput,
    pub steady: SteadyState,
    pub first_turn: Kep74Totals,
    pub later_turns: Kep74Totals,
}

/// Observer that tracks goals.
#[derive(Debug)]
pub(super) struct GoalTracker {
    limits: Vec<LatencyLimit>,
    /// Minimum share of requests that must meet the limits; otherwise the pass fails. After two failed passes in a row, the run stops.
    pub required_share: Option<f64>,
    failed: u32,
    pub passes: Vec<PassStats>,
}

impl GoalTracker {
    /// Creates a tracker for `limits` that never stops the run.
    pub fn new(limits: &[LatencyLimit]) -> GoalTracker {
        GoalTracker { limits: limits.to_vec(), required_share: None, failed: 0, passes: Vec::new() }
    }
}

impl Observer for GoalTracker {
    fn pass_started(&mut self, pass: &PassId, _: u64, _: u64, _: &Arc<LiveCounters>) {
        self.passes.push(PassStats {
            id: pass.clone(),
            goodput: Goodput::new(&self.limits),
            steady: SteadyState::default(),
            first_turn: Kep74Totals::default(),
            later_turns: Kep74Totals::default(),
        });
    }

    fn record(&mut self, _: &PassId, record: &TimedRequest) {
        let Some(pass) = self.passes.last_mut() else { return };
        pass.goodput.add(record);
        pass.steady.add(record);
        if record.turn.index == 0 { pass.first_turn.add(record) } else { pass.later_turns.add(record) }
    }

    fn pass_ended(&mut self, pass: &PassResult) -> AfterPass {
        let (Some(required), Some(stats)) = (self.required_share, self.passes.last()) else {
            return AfterPass::Continue;
        };
        self.failed = if stats.goodput.share(pass.sent()) < required { self.failed + 1 } else { 0 };
        if self.failed >= 2 { AfterPass::Stop } else { AfterPass::Continue }
    }
}
