//! Whether a tier is faster than computing at one prompt length, from the TTFT of the same prompts.

use serde::{Serialize, Serializer};

use crate::ladder::median::{MedianInterval, median_interval, middle, samples_min};

/// Confidence level of a comparison. It is higher than that of the medians, because a report
/// contains many comparisons.
pub const COMPARISON_LEVEL: f64 = 0.99;
/// If the interval of the difference lies within this share of the TTFT of computing, the tier and
/// computing take equally long.
pub const EQUAL_SHARE: f64 = 0.05;
/// A sample above this multiple of the median is an outlier.
const OUTLIER: f64 = 2.0;

/// The result of a comparison with computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TierVerdict {
    Faster,
    Slower,
    /// Any difference is less than [`EQUAL_SHARE`] of the TTFT of computing.
    Equal,
    Undecided,
}

impl TierVerdict {
    /// Returns the verdict as a word.
    pub const fn name(self) -> &'static str {
        match self {
            TierVerdict::Faster => "faster",
            TierVerdict::Slower => "slower",
            TierVerdict::Equal => "equal",
            TierVerdict::Undecided => "undecided",
        }
    }
}

/// Why a comparison is undecided.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Undecided {
    #[error("{pairs} of the {} required samples", samples_min(COMPARISON_LEVEL))]
    TooFew { pairs: usize },
    #[error(
        "{outliers} of {samples} samples {}took {from_ms:.0} ms{}, the median is {median_ms:.0} ms",
        if *.computed { "of computing " } else { "" },
        if *.outliers == 1 { "" } else { " or more" }
    )]
    Outliers {
        /// Whether the outliers are samples of computing.
        computed: bool,
        outliers: usize,
        samples: usize,
        /// The smallest of the outliers.
        from_ms: f64,
        median_ms: f64,
    },
    #[error("it saves between {low_ms:.1} and {high_ms:.1} ms")]
    Overlap { low_ms: f64, high_ms: f64 },
}

impl Serialize for Undecided {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How much earlier the first token arrives from a tier than with computing, in milliseconds;
/// negative if it arrives later.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeSaved {
    /// Number of prompts that were verified in both.
    pub pairs: usize,
    /// Median over the prompts.
    pub median_ms: f64,
    /// Bounds of the 99 % interval. Absent with fewer than eight pairs.
    pub low_ms: Option<f64>,
    pub high_ms: Option<f64>,
    pub verdict: TierVerdict,
    /// Why the verdict is [`TierVerdict::Undecided`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Undecided>,
}

impl TimeSaved {
    /// Compares the TTFT of the same prompts in milliseconds: computed, and from the tier. Returns
    /// `None` without pairs.
    pub(super) fn of(pairs: &[(f64, f64)]) -> Option<TimeSaved> {
        let saved: Vec<f64> = pairs.iter().map(|(computed, tier)| computed - tier).collect();
        let MedianInterval { median, bounds } = median_interval(&saved, COMPARISON_LEVEL)?;
        let computed: Vec<f64> = pairs.iter().map(|pair| pair.0).collect();
        let tier: Vec<f64> = pairs.iter().map(|pair| pair.1).collect();
        let of_computed = median_of(&computed);
        // Medians of pairs may differ from medians of both columns. A verdict has to agree with
        // what the reader compares.
        let is_lower = median_of(&tier) < of_computed;
        let verdict = match bounds {
            None => TierVerdict::Undecided,
            Some((low, _)) if low > 0.0 && is_lower => TierVerdict::Faster,
            Some((_, high)) if high < 0.0 && !is_lower => TierVerdict::Slower,
            Some((low, high)) if low.abs().max(high.abs()) <= EQUAL_SHARE * of_computed => TierVerdict::Equal,
            Some(_) => TierVerdict::Undecided,
        };
        let reason = (verdict == TierVerdict::Undecided).then(|| match bounds {
            None => Undecided::TooFew { pairs: pairs.len() },
            Some((low_ms, high_ms)) => outliers(&tier, false)
                .or_else(|| outliers(&computed, true))
                .unwrap_or(Undecided::Overlap { low_ms, high_ms }),
        });
        let low_ms = bounds.map(|bounds| bounds.0);
        let high_ms = bounds.map(|bounds| bounds.1);
        Some(TimeSaved { pairs: pairs.len(), median_ms: median, low_ms, high_ms, verdict, reason })
    }

    /// Returns half of the width of the interval, in milliseconds.
    pub(super) fn half_width(&self) -> Option<f64> {
        Some((self.high_ms? - self.low_ms?) / 2.0)
    }
}

fn median_of(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    middle(&sorted).unwrap_or(0.0)
}

/// Returns the outliers among `samples`, if there are any.
fn outliers(samples: &[f64], computed: bool) -> Option<Undecided> {
    let median_ms = median_of(samples);
    let outside: Vec<f64> = samples.iter().copied().filter(|sample| *sample > OUTLIER * median_ms).collect();
    let from_ms = outside.iter().copied().min_by(f64::total_cmp)?;
    Some(Undecided::Outliers { computed, outliers: outside.len(), samples: samples.len(), from_ms, median_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(pairs: &[(f64, f64)]) -> TierVerdict {
        TimeSaved::of(pairs).expect("pairs").verdict
    }

    #[test]
    fn one_outlier_does_not_change_the_verdict() {
        let mut pairs: Vec<(f64, f64)> = (0..12).map(|n| (115.0 + f64::from(n % 3), 32.0 + f64::from(n % 4))).collect();
        assert_eq!(verdict(&pairs), TierVerdict::Faster);
        pairs[4].1 = 480.0;
        assert_eq!(verdict(&pairs), TierVerdict::Faster, "a tier's outlier");
        pairs[7].0 = 900.0;
        assert_eq!(verdict(&pairs), TierVerdict::Faster, "and one of computing");
        let slower: Vec<(f64, f64)> = pairs.iter().map(|(computed, tier)| (*tier, *computed)).collect();
        assert_eq!(verdict(&slower), TierVerdict::Slower);
    }

    #[test]
    fn an_undecided_comparison_has_a_reason() {
        let clear: Vec<(f64, f64)> = (0..8).map(|n| (115.0 + f64::from(n), 32.0)).collect();
        let few = TimeSaved::of(&clear[..5]).expect("pairs");
        assert_eq!((few.verdict, few.low_ms), (TierVerdict::Undecided, None));
        assert_eq!(few.reason, Some(Undecided::TooFew { pairs: 5 }));
        let mut one = clear.clone();
        one[3].1 = 480.0;
        let one = TimeSaved::of(&one).expect("pairs");
        let text = one.reason.expect("a reason").to_string();
        assert_eq!(text, "1 of 8 samples took 480 ms, the median is 32 ms");
        assert!(one.low_ms.expect("eight pairs") < 0.0, "the interval is not clipped");
        let mut computed = clear;
        computed.iter_mut().for_each(|pair| pair.1 = 120.0);
        computed[2].0 = 480.0;
        let reason = TimeSaved::of(&computed).and_then(|saved| saved.reason).expect("a reason");
        assert!(matches!(reason, Undecided::Outliers { computed: true, outliers: 1, samples: 8, .. }), "{reason}");
        let close: Vec<(f64, f64)> = (0..8).map(|n| (100.0 + f64::from(n) * 4.0, 114.0)).collect();
        let reason = TimeSaved::of(&close).and_then(|saved| saved.reason).expect("a reason");
        assert_eq!(reason, Undecided::Overlap { low_ms: -14.0, high_ms: 14.0 });
        assert_eq!(TimeSaved::of(&[]), None);
    }

    #[test]
    fn differences_below_a_twentieth_are_equal() {
        let pairs: Vec<(f64, f64)> = (0..10).map(|n| (100.0, 98.0 + f64::from(n % 5))).collect();
        assert_eq!(verdict(&pairs), TierVerdict::Equal);
        let pairs: Vec<(f64, f64)> = (0..10).map(|n| (100.0, 98.0 + f64::from(n % 2))).collect();
        assert_eq!(verdict(&pairs), TierVerdict::Faster, "a small difference that is certain");
    }
}
