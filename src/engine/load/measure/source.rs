//! TTFT by source of the prompt (computed, L1, L2, L3), and an estimate of how much latency the
//! cache saved.
//!
//! A request belongs to the source that provided most of its prompt. The TTFT here counts from when
//! the request was sent: waits in the client do not depend on the source.
//!
//! The estimate compares requests of the same run. It leaves out the time in the server's queue, if
//! the server reports it, because queueing depends on the other requests and would be attributed to
//! the length of the prompt. The wait for L3 is part of loading and counts. A straight line is
//! fitted to this prefill time of the computed requests against their computed tokens. Its value at
//! the mean prompt length of the cached requests is what they would have taken without a cache. The
//! saved latency is that value minus their mean, with a 95 % interval from both. A line
//! underestimates the cost of long prompts, so no estimate is given beyond four times the longest
//! computed prompt. A cache also shortens the queue, which the estimate leaves out.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::answer::ModelAnswer;
use crate::{LatencyHistogram, student};

/// Minimum number of computed requests for an estimate.
pub const COMPUTED_MIN: u64 = 20;
/// Minimum number of cached requests for an estimate.
pub const CACHED_MIN: u64 = 5;
/// Minimum standard deviation of the computed lengths, as a share of their mean.
const SPREAD_MIN: f64 = 0.05;
/// The longest prompt for which a line is extrapolated, as a multiple of the longest computed
/// prompt.
const REACH: f64 = 4.0;
/// Confidence level of the intervals.
const LEVEL: f64 = 0.95;

/// Where most of a prompt came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptSource {
    Computed,
    /// L1: the memory of the device.
    Device,
    /// L2: the memory of the host.
    Host,
    /// L3: the distributed store.
    Storage,
    /// Cached, but the server reports no tier.
    CachedSomewhere,
}

impl PromptSource {
    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            PromptSource::Computed => "computed",
            PromptSource::Device => "L1 (device)",
            PromptSource::Host => "L2 (host)",
            PromptSource::Storage => "L3 (storage)",
            PromptSource::CachedSomewhere => "cached, tier unknown",
        }
    }

    /// Returns the source of most of the prompt of `answer`. `None` if the server does not report
    /// the length of the prompt.
    pub fn of(answer: &ModelAnswer) -> Option<PromptSource> {
        let prompt = answer.prompt_tokens.filter(|tokens| *tokens > 0)?;
        let computed = prompt.saturating_sub(answer.cached_in_all());
        let tiers = [PromptSource::Device, PromptSource::Host, PromptSource::Storage, PromptSource::CachedSomewhere];
        // With equal parts, the slower source determines the latency.
        let mut source = PromptSource::Computed;
        let mut most = computed;
        for (tier, tokens) in tiers.into_iter().zip(answer.cached_by_tier()) {
            if tokens > most {
                source = tier;
                most = tokens;
            }
        }
        Some(source)
    }
}

/// A straight line through points, with one pass over them.
#[derive(Clone, Copy, Debug, Default)]
struct LineFit {
    count: u64,
    mean_x: f64,
    mean_y: f64,
    xx: f64,
    xy: f64,
    yy: f64,
    max_x: f64,
}

impl LineFit {
    fn add(&mut self, x: f64, y: f64) {
        self.count += 1;
        let n = self.count as f64;
        let dx = x - self.mean_x;
        let dy = y - self.mean_y;
        self.mean_x += dx / n;
        self.mean_y += dy / n;
        self.xx += dx * (x - self.mean_x);
        self.xy += dx * (y - self.mean_y);
        self.yy += dy * (y - self.mean_y);
        self.max_x = self.max_x.max(x);
    }

    /// Returns the value of the line at `x` and the square of its standard error.
    fn at(&self, x: f64) -> (f64, f64) {
        let n = self.count as f64;
        let slope = self.xy / self.xx;
        let residual = ((self.yy - slope * self.xy) / (n - 2.0)).max(0.0);
        let away = x - self.mean_x;
        (self.mean_y + slope * away, residual * (1.0 / n + away * away / self.xx))
    }
}

/// Requests with the same source.
#[derive(Clone, Debug, Default)]
pub struct SourceRow {
    pub requests: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// TTFT from the send time.
    pub ttft: LatencyHistogram,
    /// TTFT from the send time without the time in the server's queue.
    pub prefill: LatencyHistogram,
}

/// How much latency the cache saved per request, or why this is not known. In milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LatencySaved {
    /// The mean over the requests and its 95 % interval.
    Estimate { mean_ms: f64, low_ms: f64, high_ms: f64 },
    /// Fewer than [`COMPUTED_MIN`] requests were computed.
    TooFewComputed { requests: u64 },
    /// The computed prompts have about the same length, so the effect of the length is unknown.
    OneLength,
    /// The cached prompts are more than four times as long as the longest computed one.
    TooLong,
    /// Fewer than [`CACHED_MIN`] requests had this source.
    TooFewCached { requests: u64 },
}

/// TTFT by source and by prompt length.
#[derive(Clone, Debug, Default)]
pub struct SourceStats {
    rows: BTreeMap<PromptSource, SourceRow>,
    /// By the lower bound of the prompt length, computed and cached.
    lengths: BTreeMap<(u32, bool), LatencyHistogram>,
    computed: LineFit,
}

/// TTFT of prompts of similar length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LengthRow {
    /// Lower bound of the prompt length in tokens, inclusive.
    pub from: u32,
    /// Upper bound of the prompt length, exclusive.
    pub below: u32,
    /// Whether most of the prompt was cached.
    pub cached: bool,
    pub requests: u64,
    /// First quartile, median and third quartile of the TTFT from the send time.
    pub ttft_quartiles_ms: [f64; 3],
}

/// Returns the range of prompt lengths that contains `tokens`: two ranges per power of two.
fn range(tokens: u32) -> (u32, u32) {
    let power = 1_u32 << tokens.max(2).ilog2();
    let half = power + power / 2;
    if tokens < half { (power, half) } else { (half, power.saturating_mul(2)) }
}

impl SourceStats {
    /// Adds a successful request with this `answer` and TTFT from the send time.
    pub fn add(&mut self, answer: &ModelAnswer, ttft: Duration) {
        let Some((source, prompt)) = PromptSource::of(answer).zip(answer.prompt_tokens) else { return };
        let row = self.rows.entry(source).or_default();
        let cached = answer.cached_in_all().min(prompt);
        row.requests += 1;
        row.prompt_tokens += u64::from(prompt);
        row.cached_tokens += u64::from(cached);
        row.ttft.record(ttft, 1);
        let prefill = without_queue(answer, ttft);
        row.prefill.record(prefill, 1);
        let is_cached = source != PromptSource::Computed;
        if !is_cached {
            self.computed.add(f64::from(prompt - cached), ms(prefill));
        }
        self.lengths.entry((range(prompt).0, is_cached)).or_default().record(ttft, 1);
    }

    /// Iterates over the sources that occurred, from computed to L3.
    pub fn rows(&self) -> impl Iterator<Item = (PromptSource, &SourceRow)> {
        self.rows.iter().map(|(source, row)| (*source, row))
    }

    /// Returns the TTFT by prompt length, shortest first.
    pub fn lengths(&self) -> Vec<LengthRow> {
        let row = |((from, cached), ttft): (&(u32, bool), &LatencyHistogram)| LengthRow {
            from: *from,
            below: range(*from).1,
            cached: *cached,
            requests: ttft.count(),
            ttft_quartiles_ms: [0.25, 0.5, 0.75]
                .map(|q| ttft.at(q).map_or(0.0, |value| (ms(value) * 1e3).round() / 1e3)),
        };
        self.lengths.iter().map(row).collect()
    }

    /// Estimates how much latency the cache saved for the requests with this `source`. `None` for
    /// computed requests.
    pub fn saved(&self, source: PromptSource) -> Option<LatencySaved> {
        let row = self.rows.get(&source).filter(|_| source != PromptSource::Computed)?;
        self.saved_of(row.requests, row.prompt_tokens, &row.prefill)
    }

    /// Estimates how much latency the cache saved over all requests whose prompts were mostly
    /// cached. `None` if there are none.
    pub fn saved_in_all(&self) -> Option<LatencySaved> {
        let cached = self.rows().filter(|(source, _)| *source != PromptSource::Computed);
        let mut all = SourceRow::default();
        for (_, row) in cached {
            all.requests += row.requests;
            all.prompt_tokens += row.prompt_tokens;
            all.prefill.add(&row.prefill);
        }
        self.saved_of(all.requests, all.prompt_tokens, &all.prefill)
    }

    fn saved_of(&self, requests: u64, prompt_tokens: u64, prefill: &LatencyHistogram) -> Option<LatencySaved> {
        let cached = prefill.summary()?;
        let computed = &self.computed;
        if requests < CACHED_MIN {
            return Some(LatencySaved::TooFewCached { requests });
        }
        if computed.count < COMPUTED_MIN {
            return Some(LatencySaved::TooFewComputed { requests: computed.count });
        }
        if (computed.xx / computed.count as f64).sqrt() < SPREAD_MIN * computed.mean_x {
            return Some(LatencySaved::OneLength);
        }
        let length = prompt_tokens as f64 / requests as f64;
        if length > REACH * computed.max_x {
            return Some(LatencySaved::TooLong);
        }
        let (without, variance) = computed.at(length);
        let deviation = ms(cached.deviation);
        let error = (variance + deviation * deviation / requests as f64).sqrt();
        let freedom = (computed.count - 2).min(requests - 1);
        let margin = student::bound(LEVEL, u32::try_from(freedom).unwrap_or(u32::MAX)) * error;
        let saved = without - ms(cached.mean);
        let round = |value: f64| (value * 1e3).round() / 1e3;
        Some(LatencySaved::Estimate {
            mean_ms: round(saved),
            low_ms: round(saved - margin),
            high_ms: round(saved + margin),
        })
    }
}

/// Returns `ttft` without the time in the server's queue. Servers fetch from L3 while a request is
/// queued, so that wait is kept.
fn without_queue(answer: &ModelAnswer, ttft: Duration) -> Duration {
    let queue = answer.times.queue.unwrap_or(0.0) - answer.times.storage_prefetch_wait.unwrap_or(0.0);
    let queue = Duration::try_from_secs_f64(queue.max(0.0)).unwrap_or_default();
    ttft.saturating_sub(queue)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::CachedTokens;

    fn answer(prompt: u32, device: u32, host: u32, storage: u32) -> ModelAnswer {
        ModelAnswer {
            prompt_tokens: Some(prompt),
            cached_tokens: Some(device + host + storage),
            cached: Some(CachedTokens { device, host, storage, backend: None }),
            ..ModelAnswer::default()
        }
    }

    #[test]
    fn a_request_belongs_to_the_source_of_most_of_its_prompt() {
        let of = |prompt, device, host, storage| PromptSource::of(&answer(prompt, device, host, storage));
        assert_eq!(of(100, 0, 0, 0), Some(PromptSource::Computed));
        assert_eq!(of(100, 50, 0, 0), Some(PromptSource::Computed));
        assert_eq!(of(100, 30, 40, 20), Some(PromptSource::Host));
        assert_eq!(of(100, 30, 10, 60), Some(PromptSource::Storage));
        assert_eq!(of(0, 0, 0, 0), None);
        let unknown = ModelAnswer { cached: None, ..answer(100, 90, 0, 0) };
        assert_eq!(PromptSource::of(&unknown), Some(PromptSource::CachedSomewhere));
        assert_eq!(PromptSource::of(&ModelAnswer::default()), None);
    }

    /// Prompts of 100 to 1090 tokens, each computed in 10 ms and 0.1 ms per token, with some noise.
    fn stats() -> SourceStats {
        let mut stats = SourceStats::default();
        for n in 0..100_u32 {
            let tokens = 100 + 10 * n;
            let noise = if n % 2 == 0 { 1_000 } else { 0 };
            stats.add(&answer(tokens, 0, 0, 0), Duration::from_micros(u64::from(10_000 + 100 * tokens + noise)));
        }
        stats
    }

    #[test]
    fn saved_latency_is_the_fitted_latency_minus_the_measured_one() {
        let mut stats = stats();
        for _ in 0..50 {
            stats.add(&answer(1_000, 0, 960, 0), Duration::from_millis(20));
        }
        let Some(LatencySaved::Estimate { mean_ms, low_ms, high_ms }) = stats.saved(PromptSource::Host) else {
            panic!("{:?}", stats.saved(PromptSource::Host))
        };
        assert!((mean_ms - 90.5).abs() < 0.5 && low_ms < mean_ms && mean_ms < high_ms && high_ms - low_ms < 1.0);
        assert_eq!(stats.saved(PromptSource::Host), stats.saved_in_all());
        assert_eq!((stats.saved(PromptSource::Computed), stats.saved(PromptSource::Device)), (None, None));
        let rows: Vec<_> = stats.rows().map(|(source, row)| (source, row.requests)).collect();
        assert_eq!(rows, [(PromptSource::Computed, 100), (PromptSource::Host, 50)]);
    }

    #[test]
    fn time_in_the_queue_does_not_count_but_the_wait_for_storage_does() {
        let queued = |queue: f64, wait: f64| {
            let mut answer = answer(100, 0, 0, 96);
            answer.times.queue = Some(queue);
            answer.times.storage_prefetch_wait = Some(wait);
            without_queue(&answer, Duration::from_millis(100))
        };
        assert_eq!(queued(0.06, 0.01), Duration::from_millis(50));
        assert_eq!(queued(0.01, 0.06), Duration::from_millis(100));
        assert_eq!(queued(f64::NAN, 0.0), Duration::from_millis(100));
        assert_eq!(queued(9.0, 0.0), Duration::ZERO);
    }

    #[test]
    fn no_estimate_without_enough_computed_requests_of_several_lengths() {
        let ten = Duration::from_millis(10);
        let mut few = SourceStats::default();
        (0..9).for_each(|n| few.add(&answer(100 + n, 0, 0, 0), ten));
        (0..4).for_each(|_| few.add(&answer(200, 190, 0, 0), ten));
        assert_eq!(few.saved(PromptSource::Device), Some(LatencySaved::TooFewCached { requests: 4 }));
        few.add(&answer(200, 190, 0, 0), ten);
        assert_eq!(few.saved(PromptSource::Device), Some(LatencySaved::TooFewComputed { requests: 9 }));
        (0..30).for_each(|_| few.add(&answer(104, 0, 0, 0), ten));
        assert_eq!(few.saved(PromptSource::Device), Some(LatencySaved::OneLength));
        let mut long = stats();
        (0..9).for_each(|_| long.add(&answer(9_000, 8_990, 0, 0), ten));
        assert_eq!(long.saved(PromptSource::Device), Some(LatencySaved::TooLong));
        assert_eq!(SourceStats::default().saved_in_all(), None);
    }

    #[test]
    fn lengths_are_grouped_by_halves_of_powers_of_two() {
        assert_eq!(
            [0, 1, 2, 3, 5, 6, 8, 511, 512, 767, 768].map(|n| range(n).0),
            [2, 2, 2, 3, 4, 6, 8, 384, 512, 512, 768]
        );
        assert_eq!(range(u32::MAX).1, u32::MAX);
        let rows = stats().lengths();
        assert!(rows.iter().map(|row| row.requests).sum::<u64>() == 100 && rows.len() < 10, "{rows:?}");
        assert!(rows.windows(2).all(|pair| pair[0].ttft_quartiles_ms[1] < pair[1].ttft_quartiles_ms[1]), "{rows:?}");
    }
}
