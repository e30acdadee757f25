//! Whether a tier slows decoding: a figure of each prompt, divided by that of the same prompt
//! computed.

use serde::Serialize;

use crate::ladder::median_interval;

/// A tier is slower if the whole interval of the ratio is below this value.
pub const SLOWER_BELOW: f64 = 0.95;
/// Confidence level of the interval.
const LEVEL: f64 = 0.999;

/// The ratio of a figure to that of computing, over prompts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PairedRatio {
    pub pairs: u32,
    pub median: f64,
    /// Bounds of the 99.9 % interval; absent if there are too few pairs.
    pub low: Option<f64>,
    pub high: Option<f64>,
}

impl PairedRatio {
    /// Returns the ratio over `pairs` of (tier, computed), or `None` without pairs.
    pub fn of(pairs: impl Iterator<Item = (f64, f64)>) -> Option<PairedRatio> {
        let ratios: Vec<f64> =
            pairs.map(|(tier, computed)| tier / computed).filter(|ratio| ratio.is_finite()).collect();
        let found = median_interval(&ratios, LEVEL)?;
        let (low, high) = found.bounds.unzip();
        Some(PairedRatio { pairs: ratios.len() as u32, median: found.median, low, high })
    }

    /// Whether the tier is slower.
    pub fn is_slower(&self) -> bool {
        self.high.is_some_and(|high| high < SLOWER_BELOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_interval_below_the_limit_is_slower() {
        let pairs = |ratio: f64, count: u32| (0..count).map(move |n| (ratio * (1.0 + f64::from(n % 5) / 100.0), 1.0));
        let half = PairedRatio::of(pairs(0.5, 40)).expect("pairs");
        assert!(half.is_slower() && (half.median - 0.51).abs() < 0.01, "{half:?}");
        assert!(!PairedRatio::of(pairs(0.94, 40)).expect("pairs").is_slower());
        assert!(!PairedRatio::of(pairs(0.5, 5)).expect("too few for an interval").is_slower());
        assert_eq!(PairedRatio::of([(1.0, 0.0)].into_iter()), None);
    }
}
