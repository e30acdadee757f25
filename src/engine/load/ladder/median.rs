//! Medians with distribution-free intervals: the bounds are values of the sample itself, so neither
//! an outlier nor the shape of the distribution matters, and a bound is never a value that was not
//! measured.

use crate::student;

/// A median and the bounds of its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MedianInterval {
    pub median: f64,
    /// `None` if the sample is too small for the confidence level.
    pub bounds: Option<(f64, f64)>,
}

/// Returns the median of `values` with its interval at the confidence level `level` (0 to 1), or
/// `None` without values.
pub(crate) fn median_interval(values: &[f64], level: f64) -> Option<MedianInterval> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = middle(&sorted)?;
    let rank = bound_rank(sorted.len(), level);
    let bounds = (rank > 0).then(|| (sorted[rank - 1], sorted[sorted.len() - rank]));
    Some(MedianInterval { median, bounds })
}

/// Returns the median of values in ascending order.
pub(crate) fn middle(sorted: &[f64]) -> Option<f64> {
    let low = sorted.get(sorted.len().checked_sub(1)? / 2)?;
    let high = sorted.get(sorted.len() / 2)?;
    Some(f64::midpoint(*low, *high))
}

/// Returns the smallest sample size with an interval at this level.
pub(super) fn samples_min(level: f64) -> usize {
    (1..).find(|samples| bound_rank(*samples, level) > 0).unwrap_or(usize::MAX)
}

/// Returns the rank of the lower bound, counted from 1, and of the upper bound, counted from the
/// end. Zero if even the interval from the smallest to the largest value does not reach the level.
fn bound_rank(samples: usize, level: f64) -> usize {
    /// Above this size the binomial distribution is indistinguishable from the normal one, and its
    /// smallest terms would underflow.
    const EXACT_MAX: usize = 500;
    if samples > EXACT_MAX {
        let n = samples as f64;
        return ((n - student::normal(level) * n.sqrt()) / 2.0).floor() as usize;
    }
    let outside = (1.0 - level) / 2.0;
    // The number of values below the true median is binomial.
    let mut term = 0.5_f64.powi(samples as i32);
    let mut below = 0.0;
    for rank in 0..samples {
        below += term;
        if below > outside {
            return rank;
        }
        term *= (samples - rank) as f64 / (rank + 1) as f64;
    }
    0
}

/// Returns the probability that the interval at `level` excludes 0 at one or more of several looks,
/// although the true median is 0. `looks`: the sample size at each look, in ascending order; each
/// sample contains the previous one.
pub(super) fn error_of_looks(looks: &[usize], level: f64) -> f64 {
    // The probability of each number of values below 0, without an exclusion at an earlier look.
    let mut open = vec![1.0];
    let mut samples = 0;
    let mut excluded = 0.0;
    for look in looks {
        while samples < *look {
            let mut next = vec![0.0; open.len() + 1];
            for (below, probability) in open.iter().enumerate() {
                next[below] += probability / 2.0;
                next[below + 1] += probability / 2.0;
            }
            open = next;
            samples += 1;
        }
        let rank = bound_rank(samples, level);
        for (below, probability) in open.iter_mut().enumerate() {
            if below < rank || samples - below < rank {
                excluded += std::mem::take(probability);
            }
        }
    }
    excluded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_the_published_ranks() {
        // Ranks of the 95 % interval for the median, from tables of the sign test.
        for (samples, rank) in [(5, 0), (6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (50, 18), (100, 40)] {
            assert_eq!(bound_rank(samples, 0.95), rank, "{samples}");
        }
        assert_eq!((samples_min(0.95), samples_min(0.99)), (6, 8));
        assert!((bound_rank(500, 0.95) as i64 - bound_rank(501, 0.95) as i64).abs() <= 1);
    }

    #[test]
    fn repeated_looks_err_more_often_than_one() {
        // All eight values are on one side of 0.
        assert!((error_of_looks(&[8], 0.99) - 2.0 / 256.0).abs() < 1e-12);
        assert!((error_of_looks(&[5], 0.99)).abs() < 1e-12);
        let each: Vec<usize> = (8..=24).collect();
        let [few, many] = [&[8, 12, 16, 20, 24][..], &each].map(|looks| error_of_looks(looks, 0.99));
        assert!(few > 0.01 && few < many && (many - 0.023).abs() < 0.001, "{few} {many}");
    }

    #[test]
    fn one_outlier_moves_neither_the_median_nor_the_bounds() {
        let mut values: Vec<f64> = (0..20).map(|n| 30.0 + f64::from(n) / 10.0).collect();
        let clean = median_interval(&values, 0.95).expect("values");
        values[19] = 480.0;
        assert_eq!(median_interval(&values, 0.95), Some(clean));
        assert_eq!(median_interval(&[], 0.95), None);
        assert_eq!(median_interval(&[3.0], 0.95), Some(MedianInterval { median: 3.0, bounds: None }));
        assert_eq!(middle(&[1.0, 2.0]), Some(1.5));
    }

    #[test]
    fn interval_covers_the_true_median_of_a_skewed_distribution() {
        use crate::Seed;
        use rand::Rng;
        let mut rng = Seed(5).generator("median", 0);
        let mut covered = 0;
        for _ in 0..2000 {
            let values: Vec<f64> = (0..12).map(|_| -(1.0 - rng.random_range(0.0..1.0_f64)).ln()).collect();
            let (low, high) = median_interval(&values, 0.95).and_then(|one| one.bounds).expect("twelve values");
            covered += u32::from((low..=high).contains(&std::f64::consts::LN_2));
        }
        assert!(covered >= 1890, "{covered} of 2000");
    }
}
