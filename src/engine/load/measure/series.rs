//! Results of a run over time, in bounded memory.

use std::time::Duration;

use serde::Serialize;

use crate::TimedRequest;
use crate::target::ExchangeOutcome;

/// Maximum number of buckets. In longer runs, pairs of buckets are merged.
pub const BUCKETS_MAX: usize = 1_200;
const NARROWEST: Duration = Duration::from_millis(250);
/// Later times are clamped to this value.
const LATEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Counts for one time bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bucket {
    /// Requests that were fully written.
    pub sent: u64,
    /// Requests that ended, including failed ones.
    pub ended: u64,
    /// Requests that ended with a failure.
    pub failed: u64,
    /// Request-seconds in flight. Divided by the bucket width, this is the mean number of requests
    /// in flight.
    pub busy_s: f64,
    /// Output tokens, spread evenly between the first and the last token of each response.
    pub output_tokens: f64,
    /// Prompt tokens of requests whose first token arrived in this bucket.
    pub prompt_tokens: u64,
    /// Prompt tokens served from L1.
    pub device: u64,
    /// Prompt tokens served from L2.
    pub host: u64,
    /// Prompt tokens served from L3.
    pub storage: u64,
    /// Cached prompt tokens for which the server reports no tier.
    pub cached_somewhere: u64,
    /// Number of first tokens.
    pub first_tokens: u64,
    /// Sum of TTFT (scheduled) over these first tokens, in seconds.
    pub ttft_sum_s: f64,
    /// Maximum TTFT (scheduled) over these first tokens, in seconds.
    pub ttft_max_s: f64,
}

impl Bucket {
    /// Adds the counts from `other`.
    pub fn plus(&mut self, other: &Bucket) {
        self.sent += other.sent;
        self.ended += other.ended;
        self.failed += other.failed;
        self.busy_s += other.busy_s;
        self.output_tokens += other.output_tokens;
        self.prompt_tokens += other.prompt_tokens;
        self.device += other.device;
        self.host += other.host;
        self.storage += other.storage;
        self.cached_somewhere += other.cached_somewhere;
        self.first_tokens += other.first_tokens;
        self.ttft_sum_s += other.ttft_sum_s;
        self.ttft_max_s = self.ttft_max_s.max(other.ttft_max_s);
    }
}

/// Counts over a run, in time buckets of equal width.
#[derive(Clone, Debug)]
pub struct TimeSeries {
    width: Duration,
    buckets: Vec<Bucket>,
}

impl Default for TimeSeries {
    fn default() -> TimeSeries {
        TimeSeries { width: NARROWEST, buckets: Vec::new() }
    }
}

impl TimeSeries {
    /// Adds `record` to the counts.
    pub fn add(&mut self, record: &TimedRequest) {
        let exchange = &record.exchange;
        self.reach(exchange.end.max(exchange.wrote));
        // A request that was never written was neither sent nor in flight.
        if !matches!(exchange.outcome, ExchangeOutcome::Connect(_)) {
            self.at(exchange.wrote).sent += 1;
            self.spread(exchange.wrote, exchange.end, exchange.end.saturating_sub(exchange.wrote).as_secs_f64(), |b| {
                &mut b.busy_s
            });
        }
        let ended = self.at(exchange.end);
        ended.ended += 1;
        if exchange.outcome != ExchangeOutcome::Ok {
            ended.failed += 1;
            return;
        }
        let answer = &exchange.answer;
        let (Some(first), Some(last)) = (exchange.first_token, exchange.last_token) else { return };
        let tokens = answer.completion_tokens.unwrap_or(exchange.arrived);
        self.spread(first, last, f64::from(tokens), |bucket| &mut bucket.output_tokens);
        let ttft = first.saturating_sub(record.planned).as_secs_f64();
        let at = self.at(first);
        at.first_tokens += 1;
        at.ttft_sum_s += ttft;
        at.ttft_max_s = at.ttft_max_s.max(ttft);
        at.prompt_tokens += u64::from(answer.prompt_tokens.unwrap_or(0));
        let [device, host, storage, somewhere] = answer.cached_by_tier().map(u64::from);
        at.device += device;
        at.host += host;
        at.storage += storage;
        at.cached_somewhere += somewhere;
    }

    /// Extends the buckets to `until`, widening them if needed.
    fn reach(&mut self, until: Duration) {
        let until = until.min(LATEST);
        while until.as_nanos() / self.width.as_nanos() >= BUCKETS_MAX as u128 {
            self.width *= 2;
            self.buckets = self
                .buckets
                .chunks(2)
                .map(|pair| {
                    let mut sum = pair[0];
                    pair.iter().skip(1).for_each(|other| sum.plus(other));
                    sum
                })
                .collect();
        }
        let needed = self.place(until) + 1;
        if self.buckets.len() < needed {
            self.buckets.resize(needed, Bucket::default());
        }
    }

    fn place(&self, at: Duration) -> usize {
        ((at.min(LATEST).as_nanos() / self.width.as_nanos()) as usize).min(BUCKETS_MAX - 1)
    }

    fn at(&mut self, at: Duration) -> &mut Bucket {
        let place = self.place(at);
        &mut self.buckets[place]
    }

    /// Spreads `amount` evenly between `from` and `to`.
    fn spread(&mut self, from: Duration, to: Duration, amount: f64, of: impl Fn(&mut Bucket) -> &mut f64) {
        let from = from.min(LATEST);
        let to = to.min(LATEST);
        let first = self.place(from);
        let last = self.place(to);
        let whole = to.saturating_sub(from).as_secs_f64();
        if first >= last || whole <= 0.0 {
            *of(&mut self.buckets[last]) += amount;
            return;
        }
        for place in first..=last {
            let begins = self.width * place as u32;
            let part = (begins + self.width).min(to).saturating_sub(begins.max(from)).as_secs_f64();
            *of(&mut self.buckets[place]) += amount * part / whole;
        }
    }

    /// Returns the bucket width.
    pub fn width(&self) -> Duration {
        self.width
    }

    /// Returns the buckets since the start of the run.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Returns the peak output rate in tokens per second, averaged over one second of run time, or
    /// over one bucket if that is wider.
    pub fn peak_output_per_s(&self) -> f64 {
        let second = Duration::from_secs(1);
        let (step, width) = match self.width < second {
            true => ((second.as_nanos() / self.width.as_nanos()) as usize, second),
            false => (1, self.width),
        };
        let sums = self.buckets.chunks(step).map(|chunk| chunk.iter().map(|bucket| bucket.output_tokens).sum::<f64>());
        sums.fold(0.0, f64::max) / width.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Turn;
    use crate::answer::ModelAnswer;
    use crate::target::Exchange;

    fn record(wrote: Duration, first: Duration, end: Duration) -> TimedRequest {
        let answer = ModelAnswer { completion_tokens: Some(100), prompt_tokens: Some(7), ..ModelAnswer::default() };
        let exchange = Exchange {
            begun: wrote,
            waited: Duration::ZERO,
            wrote,
            first_token: Some(first),
            last_token: Some(end),
            end,
            arrived: 100,
            arrivals: Vec::new(),
            answer,
            outcome: ExchangeOutcome::Ok,
        };
        let turn = Turn { conversation: 0, index: 0 };
        TimedRequest {
            turn,
            planned: wrote,
            eligible_at: wrote,
            max_tokens: 100,
            possible: None,
            own_tokens: None,
            exchange,
        }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn tokens_and_time_in_flight_are_spread_over_buckets() {
        let mut series = TimeSeries::default();
        series.add(&record(ms(0), ms(500), ms(1_000)));
        let tokens: Vec<f64> = series.buckets().iter().map(|bucket| bucket.output_tokens).collect();
        assert_eq!(tokens, [0.0, 0.0, 50.0, 50.0, 0.0]);
        let busy: f64 = series.buckets().iter().map(|bucket| bucket.busy_s).sum();
        assert!((busy - 1.0).abs() < 1e-9);
        assert_eq!((series.buckets()[0].sent, series.buckets()[4].ended, series.buckets()[2].first_tokens), (1, 1, 1));
        assert!((series.peak_output_per_s() - 100.0).abs() < 1e-9);
    }

    #[test]
    fn long_run_has_wider_buckets_and_the_same_totals() {
        let mut series = TimeSeries::default();
        for hour in 0..24 {
            let at = Duration::from_secs(hour * 3600);
            series.add(&record(at, at + ms(10), at + ms(200_000)));
        }
        series.add(&record(ms(3), ms(4), Duration::MAX));
        assert!(series.buckets().len() <= BUCKETS_MAX);
        let sum = |of: fn(&Bucket) -> f64| series.buckets().iter().map(of).sum::<f64>();
        assert_eq!(sum(|bucket| bucket.sent as f64), 25.0);
        assert!((sum(|bucket| bucket.output_tokens) - 2_500.0).abs() < 1e-6);
    }
}
