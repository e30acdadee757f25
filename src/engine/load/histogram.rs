//! Latency histograms in bounded memory, and the percentiles that a given sample size supports.

use std::time::Duration;

use hdrhistogram::Histogram as Hdr;
use serde::{Deserialize, Serialize, Serializer};

/// Longer latencies are recorded as this value.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A histogram of durations with three significant digits, from 1 us to one day. It uses about
/// 200 KiB at most, regardless of the number of values. The mean, standard deviation, minimum and
/// maximum are exact.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "HistogramParts", from = "HistogramParts")]
pub struct LatencyHistogram {
    counts: Hdr<u64>,
    sum: f64,
    squares: f64,
    min: Duration,
    max: Duration,
}

/// A histogram in transit between two processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HistogramParts {
    /// Values in nanoseconds, with their counts.
    counts: Vec<(u64, u64)>,
    sum: f64,
    squares: f64,
    min: Duration,
    max: Duration,
}

impl From<LatencyHistogram> for HistogramParts {
    fn from(histogram: LatencyHistogram) -> HistogramParts {
        let LatencyHistogram { counts, sum, squares, min, max } = histogram;
        let counts = counts.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        HistogramParts { counts, sum, squares, min, max }
    }
}

impl From<HistogramParts> for LatencyHistogram {
    fn from(parts: HistogramParts) -> LatencyHistogram {
        let HistogramParts { counts, sum, squares, min, max } = parts;
        let mut histogram = LatencyHistogram { sum, squares, min, max, ..LatencyHistogram::default() };
        for (value, count) in counts {
            histogram.counts.saturating_record_n(value.clamp(1_000, LONGEST.as_nanos() as u64), count);
        }
        histogram
    }
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        let counts = Hdr::new_with_bounds(1_000, LONGEST.as_nanos() as u64, 3).expect("valid histogram bounds");
        LatencyHistogram { counts, sum: 0.0, squares: 0.0, min: Duration::MAX, max: Duration::ZERO }
    }
}

impl LatencyHistogram {
    /// Records `value` `times` times.
    pub fn record(&mut self, value: Duration, times: u32) {
        if times == 0 {
            return;
        }
        let nanos = value.min(LONGEST).as_nanos() as u64;
        (self.min, self.max) = (self.min.min(value), self.max.max(value));
        self.counts.saturating_record_n(nanos.max(1_000), u64::from(times));
        let seconds = value.as_secs_f64();
        self.sum += seconds * f64::from(times);
        self.squares += seconds * seconds * f64::from(times);
    }

    /// Adds all values from `other`.
    pub fn add(&mut self, other: &LatencyHistogram) {
        self.counts.add(&other.counts).expect("identical histogram bounds");
        self.sum += other.sum;
        self.squares += other.squares;
        (self.min, self.max) = (self.min.min(other.min), self.max.max(other.max));
    }

    /// Number of recorded values.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Returns the `q` quantile (0 to 1), or `None` if the histogram is empty.
    pub fn at(&self, q: f64) -> Option<Duration> {
        let value = Duration::from_nanos(self.counts.value_at_quantile(q.clamp(0.0, 1.0)));
        (self.count() > 0).then(|| value.clamp(self.min, self.max))
    }

    /// Returns the cumulative distribution as pairs of (value, share of values at or below it), in
    /// about 100 steps at most.
    pub fn curve(&self) -> Vec<(Duration, f64)> {
        let mut curve: Vec<(Duration, f64)> = Vec::new();
        let steps = (1..100).map(|step| f64::from(step) / 100.0).chain([0.995, 0.999, 1.0]);
        for q in steps {
            let Some(value) = self.at(q) else { break };
            match curve.last_mut() {
                Some(last) if last.0 == value => last.1 = q,
                _ => curve.push((value, q)),
            }
        }
        curve
    }

    /// Returns the summary, or `None` if the histogram is empty.
    pub fn summary(&self) -> Option<LatencySummary> {
        let n = self.count();
        if n == 0 {
            return None;
        }
        let mean = self.sum / n as f64;
        let at = |q: f64| Duration::from_nanos(self.counts.value_at_quantile(q));
        // n (1 - q) values lie above the q quantile. If this number is less than one, the
        // percentile would simply equal the maximum.
        let supported = |q: f64| (n as f64 * (1.0 - q) >= 1.0 - 1e-9).then(|| at(q));
        Some(LatencySummary {
            count: n,
            mean: Duration::from_secs_f64(mean),
            deviation: Duration::from_secs_f64((self.squares / n as f64 - mean * mean).max(0.0).sqrt()),
            min: self.min,
            p50: at(0.5),
            p90: supported(0.9),
            p95: supported(0.95),
            p99: supported(0.99),
            p999: supported(0.999),
            max: self.max,
        })
    }
}

/// Summary of a histogram. Percentiles that the sample size does not support are absent: p99 needs
/// 100 values, and p99.9 needs 1,000.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencySummary {
    pub count: u64,
    #[serde(rename = "mean_ms", serialize_with = "ms")]
    pub mean: Duration,
    /// Standard deviation of the values, not of the mean.
    #[serde(rename = "deviation_ms", serialize_with = "ms")]
    pub deviation: Duration,
    #[serde(rename = "min_ms", serialize_with = "ms")]
    pub min: Duration,
    #[serde(rename = "p50_ms", serialize_with = "ms")]
    pub p50: Duration,
    #[serde(rename = "p90_ms", serialize_with = "maybe_ms")]
    pub p90: Option<Duration>,
    #[serde(rename = "p95_ms", serialize_with = "maybe_ms")]
    pub p95: Option<Duration>,
    #[serde(rename = "p99_ms", serialize_with = "maybe_ms")]
    pub p99: Option<Duration>,
    #[serde(rename = "p99_9_ms", serialize_with = "maybe_ms")]
    pub p999: Option<Duration>,
    #[serde(rename = "max_ms", serialize_with = "ms")]
    pub max: Duration,
}

fn ms<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    // Rounded to microseconds.
    to.serialize_f64((value.as_secs_f64() * 1e6).round() / 1e3)
}

fn maybe_ms<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => ms(value, to),
        None => to.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_survives_the_way_to_another_process() {
        let mut histogram = LatencyHistogram::default();
        (1..=200_u64).for_each(|n| histogram.record(Duration::from_micros(n * n), 1));
        let text = serde_json::to_string(&histogram).expect("JSON");
        let read: LatencyHistogram = serde_json::from_str(&text).expect("the same type");
        assert_eq!(read.summary(), histogram.summary());
        let empty = serde_json::to_string(&LatencyHistogram::default()).expect("JSON");
        assert_eq!(serde_json::from_str::<LatencyHistogram>(&empty).expect("the same type").summary(), None);
    }

    #[test]
    fn percentiles_require_a_large_enough_sample() {
        let mut histogram = LatencyHistogram::default();
        assert_eq!(histogram.summary(), None);
        for i in 1..=99_u64 {
            histogram.record(Duration::from_millis(i), 1);
        }
        let few = histogram.summary().expect("some");
        assert!(few.p95.is_some() && few.p99.is_none() && few.p999.is_none());
        histogram.record(Duration::from_millis(100), 1);
        let enough = histogram.summary().expect("some");
        let p99 = enough.p99.expect("a hundred values").as_secs_f64();
        assert!((p99 / 0.099 - 1.0).abs() < 2e-3, "{p99}");
        assert_eq!(enough.mean, Duration::from_micros(50_500));
        assert!((enough.deviation.as_secs_f64() - 0.028_866).abs() < 1e-6, "{:?}", enough.deviation);
    }

    #[test]
    fn curve_increases_without_repeated_values() {
        let mut histogram = LatencyHistogram::default();
        assert!(histogram.curve().is_empty() && histogram.at(0.5).is_none());
        (1..=3).for_each(|i| histogram.record(Duration::from_millis(i), 1));
        let curve = histogram.curve();
        assert_eq!(curve.len(), 3, "{curve:?}");
        assert!(curve.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
        assert_eq!(curve.last().map(|(_, share)| *share), Some(1.0));
    }

    #[test]
    fn out_of_range_values_are_counted_and_histograms_add_up() {
        let mut histogram = LatencyHistogram::default();
        histogram.record(Duration::ZERO, 2);
        histogram.record(Duration::MAX.min(Duration::from_secs(1 << 40)), 1);
        let mut sum = LatencyHistogram::default();
        sum.add(&histogram);
        sum.add(&histogram);
        assert_eq!((sum.count(), sum.summary().map(|s| s.min)), (6, Some(Duration::ZERO)));
    }

    #[test]
    fn json_uses_milliseconds_and_null_for_missing_percentiles() {
        let mut histogram = LatencyHistogram::default();
        histogram.record(Duration::from_micros(1_500), 1);
        let json = serde_json::to_value(histogram.summary()).expect("numbers");
        assert_eq!((json["mean_ms"].as_f64(), json["p99_ms"].is_null()), (Some(1.5), true));
    }
}
