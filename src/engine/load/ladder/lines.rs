//! TTFT as a line over the prompt length, and where a tier's line crosses that of computing.

use serde::Serialize;

use crate::ladder::median::middle;
use crate::ladder::{LadderCell, LadderTier, TierVerdict};

/// TTFT as a fixed component plus a per-token component: a line through the medians, as the median
/// of the slopes between all pairs of lengths (Theil-Sen), so that one disturbed length does not
/// turn it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinearFit {
    pub tier: LadderTier,
    pub fixed_ms: f64,
    /// Inverse of the per-token component. Absent if TTFT does not increase with the prompt length.
    pub tokens_per_s: Option<f64>,
}

impl LinearFit {
    /// Fits a line for `tier`. Returns `None` with fewer than three lengths.
    pub(super) fn of(tier: LadderTier, rungs: &[LadderCell]) -> Option<LinearFit> {
        let of_tier = rungs.iter().filter(|rung| rung.tier == tier);
        let points: Vec<(f64, f64)> =
            of_tier.filter_map(|rung| Some((f64::from(rung.length), rung.ttft?.median_ms))).collect();
        if points.len() < 3 {
            return None;
        }
        let mut slopes = Vec::new();
        for (at, a) in points.iter().enumerate() {
            slopes.extend(points[at + 1..].iter().map(|b| (b.1 - a.1) / (b.0 - a.0)));
        }
        slopes.sort_by(f64::total_cmp);
        let slope = middle(&slopes)?;
        let mut rests: Vec<f64> = points.iter().map(|(x, y)| y - slope * x).collect();
        rests.sort_by(f64::total_cmp);
        Some(LinearFit { tier, fixed_ms: middle(&rests)?, tokens_per_s: (slope > 0.0).then(|| 1e3 / slope) })
    }

    fn slope_ms(&self) -> f64 {
        self.tokens_per_s.map_or(0.0, |rate| 1e3 / rate)
    }
}

/// The prompt length above which loading from a tier is faster than computing the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BreakEven {
    pub tier: LadderTier,
    /// Shortest measured length at and above which the tier is faster at every measured length.
    pub shown_from: Option<u32>,
    /// Length at which the fitted lines cross. Absent if they do not cross at a positive length, or
    /// if a measured length contradicts the crossing.
    pub fitted: Option<f64>,
    /// Whether `fitted` lies outside the measured lengths.
    pub extrapolated: bool,
}

impl BreakEven {
    /// Returns where `tier` becomes faster, or `None` if the tier was not measured.
    pub(super) fn of(tier: LadderTier, rungs: &[LadderCell], fits: &[LinearFit]) -> Option<BreakEven> {
        let verdicts: Vec<(u32, TierVerdict)> = rungs
            .iter()
            .filter(|rung| rung.tier == tier)
            .filter_map(|rung| Some((rung.length, rung.saved.as_ref()?.verdict)))
            .collect();
        let first = verdicts.first()?.0;
        let last = verdicts.last()?.0;
        let faster = verdicts.iter().rev().take_while(|(_, verdict)| *verdict == TierVerdict::Faster);
        let shown_from = faster.last().map(|(length, _)| *length);
        let fit = |tier: LadderTier| fits.iter().find(|fit| fit.tier == tier);
        let fitted = fit(tier).zip(fit(LadderTier::Cold)).and_then(|(tier, cold)| {
            let crossing = (tier.fixed_ms - cold.fixed_ms) / (cold.slope_ms() - tier.slope_ms());
            (tier.slope_ms() < cold.slope_ms() && crossing > 0.0).then_some(crossing)
        });
        let agrees = |crossing: f64| {
            verdicts.iter().all(|(length, verdict)| match verdict {
                TierVerdict::Faster => f64::from(*length) > crossing,
                TierVerdict::Slower => f64::from(*length) < crossing,
                TierVerdict::Equal | TierVerdict::Undecided => true,
            })
        };
        let fitted = fitted.filter(|crossing| agrees(*crossing));
        let measured = f64::from(first)..=f64::from(last);
        let extrapolated = fitted.is_some_and(|crossing| !measured.contains(&crossing));
        Some(BreakEven { tier, shown_from, fitted, extrapolated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::{MedianTtft, TimeSaved};

    fn rung(length: u32, tier: LadderTier, ms: f64, verdict: TierVerdict) -> LadderCell {
        let ttft = MedianTtft { median_ms: ms, low_ms: None, high_ms: None, min_ms: ms, max_ms: ms };
        let saved = TimeSaved { pairs: 8, median_ms: 0.0, low_ms: None, high_ms: None, verdict, reason: None };
        LadderCell { ttft: Some(ttft), saved: Some(saved), ..LadderCell::new(length, tier) }
    }

    fn cold(length: u32) -> LadderCell {
        LadderCell {
            saved: None,
            ..rung(length, LadderTier::Cold, 10.0 + 0.1 * f64::from(length), TierVerdict::Undecided)
        }
    }

    #[test]
    fn one_disturbed_length_does_not_turn_the_line() {
        let mut rungs: Vec<LadderCell> = [512, 1024, 2048, 4096, 8192].map(cold).into();
        rungs[3].ttft = Some(MedianTtft { median_ms: 4000.0, ..rungs[3].ttft.expect("set") });
        let fit = LinearFit::of(LadderTier::Cold, &rungs).expect("five lengths");
        assert!((fit.fixed_ms - 10.0).abs() < 1.0 && (fit.slope_ms() - 0.1).abs() < 0.01, "{fit:?}");
        assert_eq!(LinearFit::of(LadderTier::Cold, &rungs[..2]), None);
    }

    #[test]
    fn a_crossing_that_a_measured_length_contradicts_is_not_reported() {
        let even = |verdicts: [TierVerdict; 3]| {
            let tier = LadderTier::Storage;
            // Crosses the line of computing at 625 tokens.
            let storage = [512, 1024, 2048].into_iter().zip(verdicts);
            let storage = storage.map(|(length, verdict)| rung(length, tier, 60.0 + 0.02 * f64::from(length), verdict));
            let rungs: Vec<LadderCell> = [512, 1024, 2048].map(cold).into_iter().chain(storage).collect();
            let fits: Vec<LinearFit> =
                [LadderTier::Cold, tier].iter().filter_map(|tier| LinearFit::of(*tier, &rungs)).collect();
            BreakEven::of(tier, &rungs, &fits).expect("measured")
        };
        use TierVerdict::{Faster, Slower, Undecided};
        let found = even([Slower, Faster, Faster]);
        assert!((found.fitted.expect("they cross") - 625.0).abs() < 1e-6 && !found.extrapolated);
        assert_eq!(found.shown_from, Some(1024));
        assert_eq!(even([Faster, Faster, Faster]).fitted, None, "faster at 512 already");
        assert_eq!(even([Faster, Faster, Faster]).shown_from, Some(512));
        assert_eq!((even([Slower, Slower, Faster]).fitted, even([Slower, Faster, Undecided]).shown_from), (None, None));
    }
}
