//! Totals over a subset of a pass's requests, counted as in SGLang's KEP-74.

use std::time::Duration;

use crate::TimedRequest;
use crate::measure::TokenTotals;
use crate::target::ExchangeOutcome;

/// Totals over successful requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kep74Totals {
    pub requests: u64,
    tokens: TokenTotals,
    /// Time of the first send and of the last response.
    window: Option<(Duration, Duration)>,
    /// Sum of the values in seconds, and their number.
    ttft: (f64, u64),
    /// Sum of the values in seconds, and their number.
    gaps: (f64, u64),
}

impl Kep74Totals {
    /// Adds `record` to the totals, if the request succeeded.
    pub fn add(&mut self, record: &TimedRequest) {
        let exchange = &record.exchange;
        if exchange.outcome != ExchangeOutcome::Ok {
            return;
        }
        self.requests += 1;
        self.tokens.add(record);
        let (from, to) = self.window.unwrap_or((exchange.sent(), exchange.end));
        self.window = Some((from.min(exchange.sent()), to.max(exchange.end)));
        if let (Some(first), Some(last)) = (exchange.first_token, exchange.last_token) {
            self.ttft = (self.ttft.0 + first.saturating_sub(record.planned).as_secs_f64(), self.ttft.1 + 1);
            let tokens = exchange.answer.completion_tokens.unwrap_or(exchange.arrived);
            let gaps = u64::from(tokens.saturating_sub(1));
            self.gaps = (self.gaps.0 + last.saturating_sub(first).as_secs_f64(), self.gaps.1 + gaps);
        }
    }

    /// Returns prompt and output tokens per second, from the first send to the last response.
    pub fn tokens_per_s(&self) -> Option<f64> {
        let seconds = self.window.map(|(from, to)| to.saturating_sub(from).as_secs_f64()).filter(|s| *s > 0.0)?;
        let TokenTotals { prompt, completion, uncounted, .. } = self.tokens;
        Some((prompt + completion + uncounted) as f64 / seconds)
    }

    /// Returns the mean TTFT from the scheduled send time, in milliseconds.
    pub fn ttft_ms(&self) -> Option<f64> {
        (self.ttft.1 > 0).then(|| self.ttft.0 / self.ttft.1 as f64 * 1e3)
    }

    /// Returns the mean ITL per token, in milliseconds.
    pub fn itl_ms(&self) -> Option<f64> {
        (self.gaps.1 > 0).then(|| self.gaps.0 / self.gaps.1 as f64 * 1e3)
    }
}
