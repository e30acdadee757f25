//! Histograms of durations with fixed buckets, which threads record into without a lock.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets in nanoseconds: 10 µs to 10 s. Longer durations are in a last bucket
/// without a bound.
const BOUNDS_NS: [u64; 19] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];
const BUCKETS: usize = BOUNDS_NS.len() + 1;

/// A histogram that several threads may record into. Recording costs two relaxed atomic additions.
#[derive(Debug, Default)]
pub struct LatencyHistogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl LatencyHistogram {
    /// Records that `count` operations took `duration` each.
    #[inline]
    pub fn record(&self, duration: Duration, count: u64) {
        let ns = nanoseconds(duration);
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(count, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(ns.saturating_mul(count), Ordering::Relaxed);
    }

    /// The current values. Values recorded at the same time may be in the buckets and not yet in
    /// the sum, or the reverse.
    pub fn snapshot(&self) -> LatencySnapshot {
        LatencySnapshot {
            buckets: std::array::from_fn(|bucket| self.buckets[bucket].load(Ordering::Relaxed)),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

/// The values of one or more histograms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencySnapshot {
    buckets: [u64; BUCKETS],
    sum_ns: u64,
}

impl LatencySnapshot {
    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &LatencySnapshot) {
        for (all, more) in self.buckets.iter_mut().zip(other.buckets) {
            *all += more;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Number of recorded operations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Total of the recorded durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Writes the series of a histogram in the Prometheus text format, in seconds. `labels` is
    /// empty, or a list such as `method="Ping"`.
    pub fn write_series(&self, out: &mut String, name: &str, labels: &str) {
        let (separator, whole) = match labels {
            "" => ("", String::new()),
            _ => (",", format!("{{{labels}}}")),
        };
        let mut below = 0;
        for (bound, count) in BOUNDS_NS.iter().zip(self.buckets) {
            below += count;
            let bound = Duration::from_nanos(*bound).as_secs_f64();
            let _ = writeln!(out, "{name}_bucket{{{labels}{separator}le=\"{bound}\"}} {below}");
        }
        let count = self.count();
        let sum = self.sum().as_secs_f64();
        let _ = writeln!(
            out,
            "{name}_bucket{{{labels}{separator}le=\"+Inf\"}} {count}\n{name}_sum{whole} {sum}\n{name}_count{whole} {count}"
        );
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(all: &[(Duration, u64)]) -> LatencySnapshot {
        let histogram = LatencyHistogram::default();
        all.iter().for_each(|(duration, count)| histogram.record(*duration, *count));
        histogram.snapshot()
    }

    #[test]
    fn a_bucket_includes_its_bound_and_is_cumulative() {
        let us = Duration::from_micros;
        let mut out = String::new();
        let all = recorded(&[(us(0), 1), (us(10), 2), (us(11), 1), (Duration::from_secs(60), 1)]);
        all.write_series(&mut out, "f", "method=\"Ping\"");
        for line in [
            "f_bucket{method=\"Ping\",le=\"0.00001\"} 3",
            "f_bucket{method=\"Ping\",le=\"0.000025\"} 4",
            "f_bucket{method=\"Ping\",le=\"10\"} 4",
            "f_bucket{method=\"Ping\",le=\"+Inf\"} 5",
            "f_sum{method=\"Ping\"} 60.000031",
            "f_count{method=\"Ping\"} 5",
        ] {
            assert!(out.lines().any(|found| found == line), "{line}\n{out}");
        }
    }

    #[test]
    fn series_without_labels_have_no_empty_braces() {
        let mut out = String::new();
        LatencySnapshot::default().write_series(&mut out, "f", "");
        assert!(out.contains("f_bucket{le=\"+Inf\"} 0\nf_sum 0\nf_count 0\n"), "{out}");
    }

    #[test]
    fn merged_histograms_add_up() {
        let mut all = recorded(&[(Duration::from_millis(1), 2)]);
        all.merge(&recorded(&[(Duration::from_millis(1), 1), (Duration::from_secs(1), 1)]));
        let both = recorded(&[(Duration::from_millis(1), 3), (Duration::from_secs(1), 1)]);
        assert_eq!((all, all.count(), all.sum()), (both, 4, Duration::from_millis(1_003)));
    }
}
