//! Tests whether one endpoint is better than another, based on paired differences between the same
//! requests.
//!
//! Requests in one conversation are not independent: they share history and a cached prefix. The
//! bootstrap therefore resamples whole conversations. Conversations in one block are not
//! independent either, because a disturbance during the block affects all of them. The differences
//! between blocks therefore yield a second interval (Student's), and the wider of the two applies
//! at each end. A bootstrap interval over few groups is too narrow, so it is widened by the ratio
//! of Student's quantile to the normal quantile.
//!
//! Fewer than [`BLOCKS_MEASURED`] blocks do not show how much passes differ by chance: one block
//! has no variance at all. Then a spread is assumed: each pass as a whole is off by [`PASS_NOISE`]
//! of the mean (standard deviation), as if that had been measured in [`ASSUMED_FREEDOM`] further
//! blocks. A larger measured spread widens the interval further.
//!
//! A known bound on the bias of the measurement, such as the generator lag, is added to the
//! interval at both ends.

use std::collections::BTreeMap;

use rand::Rng;
use serde::Serialize;

use crate::{Seed, student};

/// One request's values at both endpoints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestPair {
    pub conversation: u32,
    /// The block in which the pair was measured.
    pub block: u32,
    /// Weight: 1, or the number of values that were averaged.
    pub weight: f64,
    /// Value at the first endpoint.
    pub a: f64,
    /// Value at the second endpoint.
    pub b: f64,
}

/// Whether lower or higher values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BetterWhen {
    Less,
    More,
}

/// Criteria for a significant difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DifferenceRule {
    /// Confidence level, above 0 and below 1.
    pub level: f64,
    /// Minimum difference, as a share of the first endpoint's mean. The entire interval must lie
    /// beyond it.
    pub margin: f64,
    pub better_when: BetterWhen,
    /// Bound on the bias of the difference, in the unit of the values. The interval is wider by
    /// this at both ends.
    pub bias: f64,
    /// Number of bootstrap samples; see [`DRAWS`].
    pub draws: usize,
}

/// Confidence levels of the intervals of a comparison. All of them hold at once with at least 95 %
/// probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfidenceLevels {
    /// For the primary metric.
    pub primary: f64,
    /// For each other metric.
    pub other: f64,
}

impl ConfidenceLevels {
    /// Half of the 5 % for a wrong interval belongs to the primary metric, and the other half is
    /// divided among the `others` (Bonferroni correction with weights). `passes`: how often each
    /// metric is compared.
    pub fn of(passes: usize, others: usize) -> ConfidenceLevels {
        let share = 0.025 / passes.max(1) as f64;
        ConfidenceLevels { primary: 1.0 - share, other: 1.0 - share / others.max(1) as f64 }
    }
}

/// Verdict on the second endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DifferenceVerdict {
    Better,
    Worse,
    /// The interval includes zero or does not exceed the margin.
    NoDifferenceShown,
    /// Fewer than [`CONVERSATIONS_MIN`] conversations.
    TooFew,
}

impl DifferenceVerdict {
    /// Returns the label used in text reports.
    pub const fn label(self) -> &'static str {
        match self {
            DifferenceVerdict::Better => "better",
            DifferenceVerdict::Worse => "worse",
            DifferenceVerdict::NoDifferenceShown => "no difference shown",
            DifferenceVerdict::TooFew => "too few",
        }
    }
}

/// A difference of means, `b - a`, with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub pairs: usize,
    pub conversations: usize,
    pub blocks: usize,
    /// Mean at the first endpoint.
    pub mean_a: f64,
    /// Mean at the second endpoint.
    pub mean_b: f64,
    /// Bounds of the confidence interval for `mean_b - mean_a`.
    pub low: f64,
    pub high: f64,
    /// Confidence level of the interval.
    pub level: f64,
    /// The part of the interval's half-width that bounds the bias; see [`DifferenceRule::bias`].
    pub bias: f64,
    pub verdict: DifferenceVerdict,
}

impl Difference {
    /// Returns `mean_b - mean_a`.
    pub fn difference(&self) -> f64 {
        self.mean_b - self.mean_a
    }

    /// Returns the difference as a share of the first endpoint's mean, or `None` if that mean is
    /// zero.
    pub fn share(&self) -> Option<f64> {
        (self.mean_a != 0.0).then(|| self.difference() / self.mean_a)
    }
}

/// With fewer conversations, the interval is unreliable.
pub const CONVERSATIONS_MIN: usize = 5;
/// With this many bootstrap samples, the bounds are stable to within a few hundredths of the
/// interval width.
pub const DRAWS: usize = 4_000;

/// From this number of blocks on, the spread between blocks is measured, and none is assumed.
pub const BLOCKS_MEASURED: usize = 4;
/// Assumed standard deviation of a pass as a whole, as a share of the mean, if there are fewer
/// blocks.
pub const PASS_NOISE: f64 = 0.05;
/// Number of further blocks to which the assumption is equivalent.
pub const ASSUMED_FREEDOM: u32 = 4;

/// Sum of weights and sum of weighted differences, by group.
type Sums = BTreeMap<u32, (f64, f64)>;

/// Compares `pairs`. Returns `None` if there are none. The same seed produces the same interval.
pub fn compare(pairs: &[RequestPair], rule: DifferenceRule, seed: Seed) -> Option<Difference> {
    let weight: f64 = pairs.iter().map(|pair| pair.weight).sum();
    if weight <= 0.0 {
        return None;
    }
    let mut by_conversation = Sums::new();
    let mut by_block = Sums::new();
    let mut sum_a = 0.0;
    let mut sum_b = 0.0;
    for pair in pairs {
        let difference = pair.weight * (pair.b - pair.a);
        for sums in [by_conversation.entry(pair.conversation), by_block.entry(pair.block)] {
            let (weights, differences) = sums.or_default();
            *weights += pair.weight;
            *differences += difference;
        }
        sum_a += pair.weight * pair.a;
        sum_b += pair.weight * pair.b;
    }
    let groups: Vec<(f64, f64)> = by_conversation.into_values().filter(|(weight, _)| *weight > 0.0).collect();
    let blocks: Vec<f64> =
        by_block.into_values().filter(|(weight, _)| *weight > 0.0).map(|(weight, sum)| sum / weight).collect();
    let mean_a = sum_a / weight;
    let mean_b = sum_b / weight;
    let (below, above) = bootstrap(&groups, mean_b - mean_a, &rule, seed);
    let either = between_blocks(&blocks, rule.level, mean_a.abs().max(mean_b.abs()));
    let bias = rule.bias.max(0.0);
    let low = mean_b - mean_a - below.max(either) - bias;
    let high = mean_b - mean_a + above.max(either) + bias;
    let margin = (mean_a * rule.margin).abs();
    let verdict = match rule.better_when {
        _ if groups.len() < CONVERSATIONS_MIN => DifferenceVerdict::TooFew,
        _ if low <= margin && high >= -margin => DifferenceVerdict::NoDifferenceShown,
        BetterWhen::Less if high < 0.0 => DifferenceVerdict::Better,
        BetterWhen::More if low > 0.0 => DifferenceVerdict::Better,
        _ => DifferenceVerdict::Worse,
    };
    Some(Difference {
        pairs: pairs.len(),
        conversations: groups.len(),
        blocks: blocks.len(),
        mean_a,
        mean_b,
        low,
        high,
        level: rule.level,
        bias,
        verdict,
    })
}

/// Returns how far the interval extends below and above `mean`, by resampling `groups` of (weight,
/// weighted difference).
fn bootstrap(groups: &[(f64, f64)], mean: f64, rule: &DifferenceRule, seed: Seed) -> (f64, f64) {
    let level = rule.level;
    let number = rule.draws.max(2);
    let mut rng = seed.generator("bootstrap", 0);
    let mut draws: Vec<f64> = (0..number)
        .map(|_| {
            let mut weights = 0.0;
            let mut sum = 0.0;
            for _ in 0..groups.len() {
                let (weight, difference) = groups[rng.random_range(0..groups.len())];
                weights += weight;
                sum += difference;
            }
            sum / weights
        })
        .collect();
    draws.sort_by(f64::total_cmp);
    let at = |q: f64| draws[((number - 1) as f64 * q).round() as usize];
    let n = groups.len() as f64;
    let wider = if groups.len() < 2 {
        1.0
    } else {
        (n / (n - 1.0)).sqrt() * student::bound(level, groups.len() as u32 - 1) / student::normal(level)
    };
    let outside = (1.0 - level) / 2.0;
    ((mean - at(outside)).max(0.0) * wider, (at(1.0 - outside) - mean).max(0.0) * wider)
}

/// Half-width of Student's interval for the mean of `blocks`. With fewer than [`BLOCKS_MEASURED`]
/// blocks, a spread in proportion to `size`, the size of the values, is assumed.
fn between_blocks(blocks: &[f64], level: f64, size: f64) -> f64 {
    let n = blocks.len() as f64;
    let mean = blocks.iter().sum::<f64>() / n;
    let squares = blocks.iter().map(|block| (block - mean).powi(2)).sum::<f64>();
    let measured = blocks.len().saturating_sub(1) as u32;
    // The difference of two passes has twice the variance of one.
    let assumed = 2.0 * (PASS_NOISE * size).powi(2) * f64::from(ASSUMED_FREEDOM);
    let (freedom, squares) = if blocks.len() < BLOCKS_MEASURED {
        (measured + ASSUMED_FREEDOM, squares + assumed)
    } else {
        (measured, squares)
    };
    student::bound(level, freedom) * (squares / f64::from(freedom) / n).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Distribution;
    use rand_distr::{Distribution as _, Normal};

    // Fewer samples than in production, because these tests run hundreds of comparisons.
    const FIVE: DifferenceRule =
        DifferenceRule { level: 0.99, margin: 0.0, better_when: BetterWhen::Less, bias: 0.0, draws: 400 };

    /// Generates `conversations` conversations of four turns each, in `blocks` blocks. Levels
    /// differ widely between conversations. The second endpoint differs by `shift`. Each pass has
    /// its own random disturbance with standard deviation `disturbance`, and drifts by `drift` from
    /// the previous pass.
    fn sample(
        conversations: u32,
        blocks: u32,
        shift: f64,
        disturbance: f64,
        drift: f64,
        seed: u64,
    ) -> Vec<RequestPair> {
        let mut rng = Seed(seed).generator("sample", 0);
        let (level, noise) =
            (Distribution::Exponential { mean: 100.0 }, Distribution::Uniform { low: -5.0, high: 5.0 });
        let disturbed = Normal::new(0.0, disturbance).expect("a finite standard deviation");
        let mut pairs = Vec::new();
        for block in 0..blocks {
            let first = f64::from(2 * block) * drift;
            // A B, B A, A B ...
            let (at_a, at_b) = if block % 2 == 0 { (first, first + drift) } else { (first + drift, first) };
            let at_a = at_a + disturbed.sample(&mut rng);
            let at_b = at_b + disturbed.sample(&mut rng);
            for conversation in (0..conversations).filter(|c| c % blocks == block) {
                let base = level.draw(&mut rng);
                for _ in 0..4 {
                    let a = base + at_a + noise.draw(&mut rng);
                    let b = base + at_b + shift + noise.draw(&mut rng);
                    pairs.push(RequestPair { conversation, block, weight: 1.0, a, b });
                }
            }
        }
        pairs
    }

    fn verdict(pairs: &[RequestPair]) -> DifferenceVerdict {
        compare(pairs, FIVE, Seed(7)).expect("pairs").verdict
    }

    #[test]
    fn difference_far_below_the_spread_of_conversations_is_shown() {
        let found = compare(&sample(40, 8, -3.0, 0.0, 0.0, 1), FIVE, Seed(1)).expect("pairs");
        assert_eq!(found.verdict, DifferenceVerdict::Better);
        assert!(found.low < -3.0 && -3.0 < found.high, "{found:?}");
        assert_eq!(verdict(&sample(40, 8, 3.0, 0.0, 0.0, 1)), DifferenceVerdict::Worse);
        let hits = DifferenceRule { better_when: BetterWhen::More, ..FIVE };
        let verdict = compare(&sample(40, 8, 3.0, 0.0, 0.0, 1), hits, Seed(1)).expect("pairs").verdict;
        assert_eq!(verdict, DifferenceVerdict::Better, "more hits are better");
    }

    #[test]
    fn identical_endpoints_rarely_differ_despite_block_disturbances() {
        // With five metrics at 99 % each, at most 5 in 100 self-comparisons may be wrong, which is
        // 1 in 100 per metric. The disturbances are ten times the standard error of a
        // conversation's mean. They are tested with drift, and with few and many blocks.
        for (blocks, disturbance, drift) in
            [(1, 0.0, 0.0), (4, 5.0, 0.0), (8, 5.0, 0.0), (8, 20.0, 3.0), (16, 2.0, 5.0)]
        {
            let shown = (0..300).filter(|seed| {
                verdict(&sample(32, blocks, 0.0, disturbance, drift, *seed)) != DifferenceVerdict::NoDifferenceShown
            });
            let shown = shown.count();
            assert!(shown <= 9, "{shown} of 300 with {blocks} blocks, {disturbance}, {drift}");
        }
    }

    fn as_one(pairs: Vec<RequestPair>) -> Vec<RequestPair> {
        pairs.into_iter().map(|pair| RequestPair { block: 0, ..pair }).collect()
    }

    #[test]
    fn one_block_does_not_take_disturbances_for_differences() {
        // The passes as a whole are off by 5 %, which a single block does not show. The bootstrap
        // alone would be wrong in more than 30 of 100.
        let shown = |pairs: &dyn Fn(u64) -> Vec<RequestPair>| {
            (0..100).filter(|seed| verdict(&pairs(*seed)) != DifferenceVerdict::NoDifferenceShown).count()
        };
        assert!(shown(&|seed| as_one(sample(64, 4, 0.0, 5.0, 0.0, seed))) <= 1);
        for blocks in [1, 2, 3] {
            let wrong = shown(&|seed| sample(63, blocks, 0.0, 5.0, 0.0, seed));
            assert!(wrong <= 2, "{wrong} of 100 with {blocks} blocks");
            let found = shown(&|seed| sample(63, blocks, -50.0, 5.0, 0.0, seed));
            assert!(found >= 95, "half the latency was found in {found} of 100 with {blocks} blocks");
        }
    }

    #[test]
    fn a_bias_widens_the_interval_and_hides_no_larger_difference() {
        let pairs = sample(40, 8, -10.0, 0.0, 0.0, 1);
        let of = |bias| compare(&pairs, DifferenceRule { bias, ..FIVE }, Seed(1)).expect("pairs");
        let none = of(0.0);
        let some = of(5.0);
        assert!((some.low - none.low + 5.0).abs() < 1e-9 && (some.high - none.high - 5.0).abs() < 1e-9);
        assert_eq!((some.bias, some.verdict), (5.0, DifferenceVerdict::Better));
        assert_eq!(of(11.0).verdict, DifferenceVerdict::NoDifferenceShown);
    }

    #[test]
    fn true_difference_is_found_among_disturbances_of_its_size() {
        let found = (0..100)
            .filter(|seed| verdict(&sample(64, 12, -10.0, 5.0, 0.5, *seed)) == DifferenceVerdict::Better)
            .count();
        assert!(found >= 90, "{found} of 100");
    }

    #[test]
    fn difference_within_the_margin_is_not_shown() {
        let rule = DifferenceRule { margin: 0.05, ..FIVE };
        let pairs = sample(64, 8, 1.0, 0.0, 0.0, 3);
        assert_eq!(verdict(&pairs), DifferenceVerdict::Worse);
        assert_eq!(compare(&pairs, rule, Seed(1)).expect("pairs").verdict, DifferenceVerdict::NoDifferenceShown);
    }

    #[test]
    fn weights_turn_a_mean_of_means_into_the_overall_mean() {
        let pair = |conversation, weight, a| RequestPair { conversation, block: 0, weight, a, b: a + 1.0 };
        let found = compare(&[pair(0, 9.0, 10.0), pair(1, 1.0, 20.0)], FIVE, Seed(1)).expect("pairs");
        assert_eq!((found.mean_a, found.mean_b), (11.0, 12.0));
        assert!((found.difference() - 1.0).abs() < 1e-9 && (found.share().expect("some") - 1.0 / 11.0).abs() < 1e-9);
    }

    #[test]
    fn few_conversations_give_no_verdict() {
        assert_eq!(verdict(&sample(4, 1, -50.0, 0.0, 0.0, 1)), DifferenceVerdict::TooFew);
        assert_eq!(compare(&[], FIVE, Seed(1)), None);
    }

    #[test]
    fn all_intervals_together_may_be_wrong_in_5_percent() {
        for (passes, others) in [(1, 4), (2, 4), (1, 1)] {
            let levels = ConfidenceLevels::of(passes, others);
            let wrong = passes as f64 * (1.0 - levels.primary + others as f64 * (1.0 - levels.other));
            assert!((wrong - 0.05).abs() < 1e-12 && levels.primary < levels.other + 1e-12, "{levels:?}");
        }
    }
}
