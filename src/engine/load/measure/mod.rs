//! What the records of a run add up to, in memory that does not grow with their number.

pub mod expected;
pub mod goodput;
pub mod reuse;
pub mod series;
pub mod steady;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::engine::load::measure::series::Series;
use crate::engine::load::target::Outcome;
use crate::engine::load::{Histogram, Record, Summary};

/// Turns from this one on share a row.
pub const ROWS_MAX: usize = 64;

/// Tokens of prompts by where they came from, and how many could have come from a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tokens {
    /// Of the prompts, by the server's count.
    pub prompt: u64,
    /// Of the answers, by the server's count.
    pub completion: u64,
    /// Cached in device memory (L1).
    pub device: u64,
    /// Cached in host memory (L2).
    pub host: u64,
    /// Fetched from the store (L3).
    pub storage: u64,
    /// Cached, without a word where.
    pub cached_somewhere: u64,
    /// Of the answers whose server does not count: as many as frames came.
    pub uncounted: u64,
}

impl Tokens {
    fn add(&mut self, record: &Record) {
        let answer = &record.exchange.answer;
        self.prompt += u64::from(answer.prompt_tokens.unwrap_or(0));
        match answer.completion_tokens {
            Some(tokens) => self.completion += u64::from(tokens),
            None => self.uncounted += u64::from(record.exchange.arrived),
        }
        match &answer.cached {
            Some(cached) => {
                self.device += u64::from(cached.device);
                self.host += u64::from(cached.host);
                self.storage += u64::from(cached.storage);
            }
            None => self.cached_somewhere += u64::from(answer.cached_tokens.unwrap_or(0)),
        }
    }

    /// Cached in all.
    pub fn cached(&self) -> u64 {
        self.device + self.host + self.storage + self.cached_somewhere
    }
}

/// One turn of all conversations.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Requests that ended well.
    pub requests: u64,
    /// Their tokens.
    pub tokens: Tokens,
    /// To the first token, from the planned instant.
    pub ttft: Histogram,
    /// To the end, from the planned instant.
    pub e2e: Histogram,
}

/// What a run adds up to.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By turn, the first at 0; the last row has all turns from [`ROWS_MAX`] on.
    pub turns: Vec<Row>,
    /// All that ended well.
    pub all: Row,
    /// To the first token, from the last byte of the request: the server's part and the network's.
    pub ttft_from_send: Histogram,
    /// Between tokens after the first, per request: (last - first) / (tokens - 1).
    pub tpot: Histogram,
    /// How late the generator was: from the instant at which a request could be sent to its last byte.
    pub lag: Histogram,
    /// The wait for a place under the cap: from the planned instant to that one.
    pub wait: Histogram,
    /// In the server's queue, by its word.
    pub queue: Histogram,
    /// Waiting for L3, by its word.
    pub storage_wait: Histogram,
    /// Failures by kind: how many, and the first one's words.
    pub failures: BTreeMap<String, (u64, String)>,
    /// Frames that were no JSON.
    pub bad_frames: u64,
    /// The earliest request written, and the latest end.
    pub window: Option<(Duration, Duration)>,
    /// How it went over the time.
    pub series: Series,
}

impl Tally {
    /// Count `record`.
    pub fn add(&mut self, record: &Record) {
        let (exchange, planned) = (&record.exchange, record.planned);
        let answer = &exchange.answer;
        self.series.add(record);
        self.bad_frames += u64::from(answer.bad_frames);
        let (from, to) = self.window.unwrap_or((exchange.sent(), exchange.end));
        self.window = Some((from.min(exchange.sent()), to.max(exchange.end)));
        if exchange.outcome != Outcome::Ok {
            let said = match &exchange.outcome {
                Outcome::CutOff => "it ended without its last frame: is it a stream of this API?".to_owned(),
                Outcome::NoTokens => "an answer that is complete and empty".to_owned(),
                other => other.said(),
            };
            let (count, _) = self.failures.entry(exchange.outcome.word()).or_insert((0, said));
            *count += 1;
            return;
        }
        self.lag.record(record.lag(), 1);
        self.wait.record(record.free.saturating_sub(planned), 1);
        let place = (record.turn.index as usize).min(ROWS_MAX - 1);
        if self.turns.len() <= place {
            self.turns.resize_with(place + 1, Row::default);
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
        if let (Some(first), Some(last)) = (exchange.first_token, exchange.last_token) {
            self.ttft_from_send.record(first.saturating_sub(exchange.wrote), 1);
            let tokens = answer.completion_tokens.unwrap_or(exchange.arrived);
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

    /// Requests that failed.
    pub fn failed(&self) -> u64 {
        self.failures.values().map(|(count, _)| count).sum()
    }

    /// From the first request to the last end.
    pub fn took(&self) -> Duration {
        self.window.map_or(Duration::ZERO, |(from, to)| to.saturating_sub(from))
    }
}

/// When the generator's own lateness puts its figures in doubt: more than 5 ms, or a hundredth of the median time to first token.
pub fn is_late(lag: &Summary, ttft: &Summary) -> bool {
    let lag = lag.p99.unwrap_or(lag.max);
    lag > Duration::from_millis(5).max(ttft.p50 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::Turn;
    use crate::engine::load::answer::{Answer, Cached};
    use crate::engine::load::target::Exchange;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn record(index: u32, outcome: Outcome) -> Record {
        let answer = Answer {
            prompt_tokens: Some(100),
            completion_tokens: Some(5),
            cached_tokens: Some(96),
            cached: Some(Cached { device: 16, host: 48, storage: 32, backend: None }),
            ..Answer::default()
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
        Record {
            turn: Turn { conversation: 0, index },
            planned: ms(10),
            free: ms(10),
            max_tokens: 5,
            expected: None,
            exchange,
        }
    }

    #[test]
    fn latency_counts_from_the_plan_and_tokens_by_tier_and_turn() {
        let mut tally = Tally::default();
        tally.add(&record(0, Outcome::Ok));
        tally.add(&record(2, Outcome::Ok));
        assert_eq!(tally.turns.iter().map(|row| row.requests).collect::<Vec<_>>(), [1, 0, 1]);
        let mean = |histogram: &Histogram| histogram.summary().expect("some").mean;
        assert_eq!((mean(&tally.all.ttft), mean(&tally.ttft_from_send)), (ms(40), ms(38)));
        assert_eq!((mean(&tally.tpot), mean(&tally.lag), mean(&tally.all.e2e)), (ms(10), ms(2), ms(81)));
        let tokens = tally.all.tokens;
        assert_eq!(
            (tokens.device, tokens.host, tokens.storage, tokens.cached(), tokens.prompt),
            (32, 96, 64, 192, 200)
        );
    }

    #[test]
    fn a_failure_is_counted_by_its_kind_and_in_no_latency() {
        let mut tally = Tally::default();
        for (status, says) in [(503, "busy"), (503, "still busy"), (429, "")] {
            tally.add(&record(0, Outcome::Status { status, says: says.to_owned(), retry_after: None }));
        }
        assert_eq!(tally.failures.get("status 503"), Some(&(2, "busy".to_owned())));
        assert_eq!((tally.failed(), tally.all.requests, tally.lag.count()), (3, 0, 0));
    }

    #[test]
    fn rows_do_not_grow_without_end() {
        let mut tally = Tally::default();
        tally.add(&record(1_000_000, Outcome::Ok));
        tally.add(&record(63, Outcome::Ok));
        assert_eq!((tally.turns.len(), tally.turns[ROWS_MAX - 1].requests), (ROWS_MAX, 2));
    }
}
