//! Aggregates the records of a run in bounded memory.

pub mod expected;
pub mod goodput;
pub mod interactivity;
pub mod kep74;
pub mod lengths;
pub mod reuse;
pub mod series;
pub mod source;
pub mod steady;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::measure::interactivity::PerTokenLatency;
use crate::measure::lengths::TokenHistogram;
use crate::measure::series::TimeSeries;
use crate::measure::source::SourceStats;
use crate::target::ExchangeOutcome;
use crate::{LatencyHistogram, LatencySummary, TimedRequest};

/// Turns from this index on share one row.
pub const ROWS_MAX: usize = 64;

/// Prompt tokens by source, and output tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenTotals {
    /// Prompt tokens, as counted by the server.
    pub prompt: u64,
    /// Output tokens, as counted by the server.
    pub completion: u64,
    /// Cached in device memory (L1).
    pub device: u64,
    /// Cached in host memory (L2).
    pub host: u64,
    /// Fetched from the store (L3).
    pub storage: u64,
    /// Cached, but the server reports no tier.
    pub cached_somewhere: u64,
    /// Output tokens in responses for which the server reports no count. They are counted from the
    /// frames.
    pub uncounted: u64,
}

impl TokenTotals {
    fn add(&mut self, record: &TimedRequest) {
        let answer = &record.exchange.answer;
        self.prompt += u64::from(answer.prompt_tokens.unwrap_or(0));
        match answer.completion_tokens {
            Some(tokens) => self.completion += u64::from(tokens),
            None => self.uncounted += u64::from(record.exchange.arrived),
        }
        let [device, host, storage, somewhere] = answer.cached_by_tier().map(u64::from);
        self.device += device;
        self.host += host;
        self.storage += storage;
        self.cached_somewhere += somewhere;
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &TokenTotals) -> TokenTotals {
        TokenTotals {
            prompt: self.prompt + other.prompt,
            completion: self.completion + other.completion,
            device: self.device + other.device,
            host: self.host + other.host,
            storage: self.storage + other.storage,
            cached_somewhere: self.cached_somewhere + other.cached_somewhere,
            uncounted: self.uncounted + other.uncounted,
        }
    }

    /// Returns the cached tokens over all tiers.
    pub fn cached(&self) -> u64 {
        self.device + self.host + self.storage + self.cached_somewhere
    }
}

/// Results for one turn over all conversations.
#[derive(Clone, Debug, Default)]
pub struct TurnStats {
    pub requests: u64,
    pub tokens: TokenTotals,
    /// TTFT from the scheduled send time.
    pub ttft: LatencyHistogram,
    /// E2E latency from the scheduled send time.
    pub e2e: LatencyHistogram,
}

/// Aggregated results of a run.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Rows by turn; the first turn is at index 0. The last row covers all turns from [`ROWS_MAX`]
    /// on.
    pub turns: Vec<TurnStats>,
    /// The sum of all rows: all successful requests.
    pub all: TurnStats,
    /// TTFT from the last byte of the request: time spent in the server and the network.
    pub ttft_from_send: LatencyHistogram,
    /// TPOT of each request: (last - first) / (tokens - 1).
    pub tpot: LatencyHistogram,
    /// E2E latency per output token.
    pub per_token: PerTokenLatency,
    /// Failures because the prompt and the response exceed the model's context.
    pub context_overflows: u64,
    /// Generator lag: the time from a request's earliest possible send time until its last byte was
    /// sent.
    pub lag: LatencyHistogram,
    /// Concurrency wait: the time from the scheduled send time to a free slot.
    pub wait: LatencyHistogram,
    /// Queue time reported by the server.
    pub queue: LatencyHistogram,
    /// Wait for L3 reported by the server.
    pub storage_wait: LatencyHistogram,
    /// Failures by type, each with its count and first message.
    pub failures: BTreeMap<String, (u64, String)>,
    /// Number of frames that were not valid JSON.
    pub bad_frames: u64,
    /// When the first request was sent, and when the last response ended.
    pub window: Option<(Duration, Duration)>,
    pub series: TimeSeries,
    /// TTFT by source of the prompt and by its length.
    pub sources: SourceStats,
    /// Lengths of the prompts, as counted by the server.
    pub prompt_lengths: TokenHistogram,
    /// Lengths of the responses.
    pub output_lengths: TokenHistogram,
}

impl Tally {
    /// Adds `record` to the totals.
    pub fn add(&mut self, record: &TimedRequest) {
        let exchange = &record.exchange;
        let planned = record.planned;
        let answer = &exchange.answer;
        self.series.add(record);
        self.bad_frames += u64::from(answer.bad_frames);
        let (from, to) = self.window.unwrap_or((exchange.sent(), exchange.end));
        self.window = Some((from.min(exchange.sent()), to.max(exchange.end)));
        if exchange.outcome != ExchangeOutcome::Ok {
            let message = match &exchange.outcome {
                ExchangeOutcome::CutOff => {
                    "the stream ended without its final frame; the server may use a different API".to_owned()
                }
                ExchangeOutcome::NoTokens => "the response is complete but empty".to_owned(),
                other => other.message(),
            };
            self.context_overflows += u64::from(exchange.outcome.is_context_overflow());
            let (count, _) = self.failures.entry(exchange.outcome.kind()).or_insert((0, message));
            *count += 1;
            return;
        }
        self.lag.record(record.lag(), 1);
        self.wait.record(record.eligible_at.saturating_sub(planned), 1);
        let place = (record.turn.index as usize).min(ROWS_MAX - 1);
        if self.turns.len() <= place {
            self.turns.resize_with(place + 1, TurnStats::default);
        }
        let rows = [&mut self.turns[place], &mut self.all];
        for row in rows {
            row.requests += 1;
            row.tokens.add(record);
            row.e2e.record(exchange.end.saturating_sub(planned), 1);
            if let Some(first) = exchange.first_token {
                row.ttft.record(first.saturating_sub(planned), 1);
            }
        }
        let tokens = answer.completion_tokens.unwrap_or(exchange.arrived);
        self.output_lengths.record(tokens);
        self.per_token.add(record, tokens);
        if let Some(prompt) = answer.prompt_tokens {
            self.prompt_lengths.record(prompt);
        }
        if let (Some(first), Some(last)) = (exchange.first_token, exchange.last_token) {
            let ttft = first.saturating_sub(exchange.wrote);
            self.ttft_from_send.record(ttft, 1);
            self.sources.add(answer, ttft);
            if tokens > 1 {
                self.tpot.record(last.saturating_sub(first) / (tokens - 1), 1);
            }
        }
        let seconds = |at: Option<f64>| at.and_then(|at| Duration::try_from_secs_f64(at).ok());
        if let Some(queue) = seconds(answer.times.queue) {
            self.queue.record(queue, 1);
        }
        if let Some(wait) = seconds(answer.times.storage_prefetch_wait) {
            self.storage_wait.record(wait, 1);
        }
    }

    /// Returns the number of failed requests.
    pub fn failed(&self) -> u64 {
        self.failures.values().map(|(count, _)| count).sum()
    }

    /// Extends the window to `from` and `to`, if there was a request.
    pub fn extend_window(&mut self, from: Duration, to: Duration) {
        if let Some((first, last)) = &mut self.window {
            *first = (*first).min(from);
            *last = (*last).max(to);
        }
    }

    /// Returns the time from the first request to the end of the last response.
    pub fn took(&self) -> Duration {
        self.window.map_or(Duration::ZERO, |(from, to)| to.saturating_sub(from))
    }
}

/// Returns whether the generator lag makes the figures questionable, which is the case if it
/// exceeds both 5 ms and 1 % of the median TTFT.
pub fn is_late(lag: &LatencySummary, ttft: &LatencySummary) -> bool {
    let lag = lag.p99.unwrap_or(lag.max);
    lag > Duration::from_millis(5).max(ttft.p50 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Turn;
    use crate::answer::{CachedTokens, ModelAnswer};
    use crate::target::Exchange;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn record(index: u32, outcome: ExchangeOutcome) -> TimedRequest {
        let answer = ModelAnswer {
            prompt_tokens: Some(100),
            completion_tokens: Some(5),
            cached_tokens: Some(96),
            cached: Some(CachedTokens { device: 16, host: 48, storage: 32, backend: None }),
            ..ModelAnswer::default()
        };
        let exchange = Exchange {
            begun: ms(11),
            waited: Duration::ZERO,
            wrote: ms(12),
            first_token: Some(ms(50)),
            last_token: Some(ms(90)),
            end: ms(91),
            arrived: 5,
            arrivals: Vec::new(),
            answer,
            outcome,
        };
        TimedRequest {
            turn: Turn { conversation: 0, index },
            planned: ms(10),
            eligible_at: ms(10),
            max_tokens: 5,
            possible: None,
            own_tokens: None,
            exchange,
        }
    }

    #[test]
    fn latency_counts_from_the_schedule_and_tokens_by_tier_and_turn() {
        let mut tally = Tally::default();
        tally.add(&record(0, ExchangeOutcome::Ok));
        tally.add(&record(2, ExchangeOutcome::Ok));
        assert_eq!(tally.turns.iter().map(|row| row.requests).collect::<Vec<_>>(), [1, 0, 1]);
        let mean = |histogram: &LatencyHistogram| histogram.summary().expect("some").mean;
        assert_eq!((mean(&tally.all.ttft), mean(&tally.ttft_from_send)), (ms(40), ms(38)));
        assert_eq!((mean(&tally.tpot), mean(&tally.lag), mean(&tally.all.e2e)), (ms(10), ms(2), ms(81)));
        let tokens = tally.all.tokens;
        assert_eq!(
            (tokens.device, tokens.host, tokens.storage, tokens.cached(), tokens.prompt),
            (32, 96, 64, 192, 200)
        );
    }

    #[test]
    fn failures_are_counted_by_kind_and_excluded_from_latencies() {
        let mut tally = Tally::default();
        for (status, status_text) in [(503, "busy"), (503, "still busy"), (429, "")] {
            tally.add(&record(
                0,
                ExchangeOutcome::Status { status, message: status_text.to_owned(), retry_after: None },
            ));
        }
        assert_eq!(tally.failures.get("status 503"), Some(&(2, "busy".to_owned())));
        assert_eq!((tally.failed(), tally.all.requests, tally.lag.count()), (3, 0, 0));
    }

    #[test]
    fn number_of_turn_rows_is_bounded() {
        let mut tally = Tally::default();
        tally.add(&record(1_000_000, ExchangeOutcome::Ok));
        tally.add(&record(63, ExchangeOutcome::Ok));
        assert_eq!((tally.turns.len(), tally.turns[ROWS_MAX - 1].requests), (ROWS_MAX, 2));
    }
}
