//! Is one endpoint better than another? Differences between the same requests, and how sure one can be of them.
//!
//! Requests of one conversation are not independent (they share a history and its place in the cache), so the bootstrap draws whole
//! conversations. Nor are the conversations of one block: whatever went on beside the endpoint while the block ran went on for all of
//! them. So the blocks' own differences give a second interval (Student's), and the wider of both holds at each end. A bootstrap
//! of few draws is too narrow; it is widened as Student's law is wider than the normal one.

use std::collections::BTreeMap;

use rand::Rng;
use serde::Serialize;

use crate::engine::load::{Seed, student};

/// One request's figure at both endpoints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The conversation it belongs to.
    pub conversation: u32,
    /// The block in which it was measured.
    pub block: u32,
    /// How much it counts: one, or the number of values of which it is the mean.
    pub weight: f64,
    /// At the first endpoint.
    pub a: f64,
    /// At the second.
    pub b: f64,
}

/// Which way a figure is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A latency.
    Less,
    /// A hit.
    More,
}

/// When a difference counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// The share of intervals that hold the truth, above 0 and below 1.
    pub level: f64,
    /// The interval has to lie beyond this share of the first endpoint's mean: a difference of less matters to nobody.
    pub margin: f64,
    /// Which way is better.
    pub wanted: Wanted,
    /// Samples of the bootstrap; see [`DRAWS`].
    pub draws: usize,
}

/// The level of each of `tests` intervals with which all of them hold the truth at once in at least 95 of 100 cases (Bonferroni).
pub fn level_of_each(tests: usize) -> f64 {
    1.0 - 0.05 / tests.max(1) as f64
}

/// What can be said of the second endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Its figure is better, beyond chance.
    Better,
    /// It is worse, beyond chance.
    Worse,
    /// The interval holds zero, or does not clear the margin.
    NoDifferenceShown,
    /// Fewer than [`CONVERSATIONS_MIN`] conversations: nothing can be said.
    TooFew,
}

impl Verdict {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::NoDifferenceShown => "no difference shown",
            Verdict::TooFew => "too few",
        }
    }
}

/// A difference of means, `b - a`, with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Pairs.
    pub pairs: usize,
    /// Conversations they come from.
    pub conversations: usize,
    /// Blocks they were measured in.
    pub blocks: usize,
    /// Mean of the first endpoint's figures.
    pub mean_a: f64,
    /// Mean of the second's.
    pub mean_b: f64,
    /// Lower end of the interval of `mean_b - mean_a`.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// The share of such intervals that hold the truth.
    pub level: f64,
    /// What follows.
    pub verdict: Verdict,
}

impl Difference {
    /// `mean_b - mean_a`.
    pub fn difference(&self) -> f64 {
        self.mean_b - self.mean_a
    }

    /// The difference as a share of the first endpoint's mean; `None` where that is zero.
    pub fn share(&self) -> Option<f64> {
        (self.mean_a != 0.0).then(|| self.difference() / self.mean_a)
    }
}

/// With fewer conversations an interval says less than it seems to.
pub const CONVERSATIONS_MIN: usize = 5;
/// Samples of a bootstrap whose ends are steady to a few hundredths of the interval.
pub const DRAWS: usize = 4_000;

/// Weights and weighted differences, summed up by something.
type Sums = BTreeMap<u32, (f64, f64)>;

/// Compare `pairs`; `None` when there are none. The same seed gives the same interval.
pub fn compare(pairs: &[Pair], rule: Rule, seed: Seed) -> Option<Difference> {
    let weight: f64 = pairs.iter().map(|pair| pair.weight).sum();
    if weight <= 0.0 {
        return None;
    }
    let (mut by_conversation, mut by_block) = (Sums::new(), Sums::new());
    let (mut sum_a, mut sum_b) = (0.0, 0.0);
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
    let (mean_a, mean_b) = (sum_a / weight, sum_b / weight);
    let (below, above) = bootstrap(&groups, mean_b - mean_a, &rule, seed);
    let either = between_blocks(&blocks, rule.level);
    let (low, high) = (mean_b - mean_a - below.max(either), mean_b - mean_a + above.max(either));
    let margin = (mean_a * rule.margin).abs();
    let verdict = match rule.wanted {
        _ if groups.len() < CONVERSATIONS_MIN => Verdict::TooFew,
        _ if low <= margin && high >= -margin => Verdict::NoDifferenceShown,
        Wanted::Less if high < 0.0 => Verdict::Better,
        Wanted::More if low > 0.0 => Verdict::Better,
        _ => Verdict::Worse,
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
        verdict,
    })
}

/// How far the interval reaches below and above `mean`, by drawing among `groups` of (weight, weighted difference).
fn bootstrap(groups: &[(f64, f64)], mean: f64, rule: &Rule, seed: Seed) -> (f64, f64) {
    let (level, number) = (rule.level, rule.draws.max(2));
    let mut rng = seed.generator("bootstrap", 0);
    let mut draws: Vec<f64> = (0..number)
        .map(|_| {
            let (mut weights, mut sum) = (0.0, 0.0);
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

/// Half of Student's interval of the mean of `blocks`; nothing where there is but one, which says nothing of others.
fn between_blocks(blocks: &[f64], level: f64) -> f64 {
    if blocks.len() < 2 {
        return 0.0;
    }
    let n = blocks.len() as f64;
    let mean = blocks.iter().sum::<f64>() / n;
    let variance = blocks.iter().map(|block| (block - mean).powi(2)).sum::<f64>() / (n - 1.0);
    student::bound(level, blocks.len() as u32 - 1) * (variance / n).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::Distribution;
    use rand_distr::{Distribution as _, Normal};

    // Fewer draws than in earnest: there are hundreds of comparisons here.
    const FIVE: Rule = Rule { level: 0.99, margin: 0.0, wanted: Wanted::Less, draws: 400 };

    /// `conversations` of four turns in `blocks` blocks, whose level differs widely between conversations. The second endpoint is
    /// `shift` off; both blocks of a pair have their own disturbance of this deviation, and the whole drifts by `drift` from one
    /// to the next.
    fn sample(conversations: u32, blocks: u32, shift: f64, disturbance: f64, drift: f64, seed: u64) -> Vec<Pair> {
        let mut rng = Seed(seed).generator("sample", 0);
        let (level, noise) =
            (Distribution::Exponential { mean: 100.0 }, Distribution::Uniform { low: -5.0, high: 5.0 });
        let disturbed = Normal::new(0.0, disturbance).expect("a finite deviation");
        let mut pairs = Vec::new();
        for block in 0..blocks {
            let first = f64::from(2 * block) * drift;
            // A B, B A, A B ...
            let (at_a, at_b) = if block % 2 == 0 { (first, first + drift) } else { (first + drift, first) };
            let (at_a, at_b) = (at_a + disturbed.sample(&mut rng), at_b + disturbed.sample(&mut rng));
            for conversation in (0..conversations).filter(|c| c % blocks == block) {
                let base = level.draw(&mut rng);
                for _ in 0..4 {
                    let a = base + at_a + noise.draw(&mut rng);
                    let b = base + at_b + shift + noise.draw(&mut rng);
                    pairs.push(Pair { conversation, block, weight: 1.0, a, b });
                }
            }
        }
        pairs
    }

    fn verdict(pairs: &[Pair]) -> Verdict {
        compare(pairs, FIVE, Seed(7)).expect("pairs").verdict
    }

    #[test]
    fn a_difference_far_below_the_spread_between_conversations_is_shown() {
        let found = compare(&sample(40, 1, -3.0, 0.0, 0.0, 1), FIVE, Seed(1)).expect("pairs");
        assert_eq!(found.verdict, Verdict::Better);
        assert!(found.low < -3.0 && -3.0 < found.high, "{found:?}");
        assert_eq!(verdict(&sample(40, 1, 3.0, 0.0, 0.0, 1)), Verdict::Worse);
        let hits = Rule { wanted: Wanted::More, ..FIVE };
        let verdict = compare(&sample(40, 1, 3.0, 0.0, 0.0, 1), hits, Seed(1)).expect("pairs").verdict;
        assert_eq!(verdict, Verdict::Better, "more hits are better");
    }

    #[test]
    fn the_same_endpoint_twice_is_taken_for_two_hardly_ever_though_every_block_has_a_disturbance_of_its_own() {
        // What is wanted: with five figures at 99 % each, at most 5 of 100 comparisons of an endpoint with itself are wrong; for one
        // figure 1 of 100. Disturbances of ten times what a conversation's mean is off by, a drift, few and many blocks.
        for (blocks, disturbance, drift) in
            [(1, 0.0, 0.0), (4, 5.0, 0.0), (8, 5.0, 0.0), (8, 20.0, 3.0), (16, 2.0, 5.0)]
        {
            let shown = (0..300).filter(|seed| {
                verdict(&sample(32, blocks, 0.0, disturbance, drift, *seed)) != Verdict::NoDifferenceShown
            });
            let shown = shown.count();
            assert!(shown <= 9, "{shown} of 300 with {blocks} blocks, {disturbance}, {drift}");
        }
    }

    #[test]
    fn without_the_blocks_own_interval_disturbances_would_pass_for_differences() {
        let as_one = |pairs: Vec<Pair>| pairs.into_iter().map(|pair| Pair { block: 0, ..pair }).collect::<Vec<_>>();
        let shown = (0..100)
            .filter(|seed| verdict(&as_one(sample(64, 4, 0.0, 5.0, 0.0, *seed))) != Verdict::NoDifferenceShown)
            .count();
        assert!(shown > 30, "the bootstrap alone is wrong in {shown} of 100");
    }

    #[test]
    fn a_true_difference_is_found_among_disturbances_of_its_size() {
        let found = (0..100).filter(|seed| verdict(&sample(64, 12, -10.0, 5.0, 0.5, *seed)) == Verdict::Better).count();
        assert!(found >= 90, "{found} of 100");
    }

    #[test]
    fn a_difference_that_matters_to_nobody_is_none() {
        let rule = Rule { margin: 0.05, ..FIVE };
        let pairs = sample(64, 1, 1.0, 0.0, 0.0, 3);
        assert_eq!(verdict(&pairs), Verdict::Worse);
        assert_eq!(compare(&pairs, rule, Seed(1)).expect("pairs").verdict, Verdict::NoDifferenceShown);
    }

    #[test]
    fn weights_make_a_mean_of_means_the_mean_of_all() {
        let pair = |conversation, weight, a| Pair { conversation, block: 0, weight, a, b: a + 1.0 };
        let found = compare(&[pair(0, 9.0, 10.0), pair(1, 1.0, 20.0)], FIVE, Seed(1)).expect("pairs");
        assert_eq!((found.mean_a, found.mean_b), (11.0, 12.0));
        assert!((found.difference() - 1.0).abs() < 1e-9 && (found.share().expect("some") - 1.0 / 11.0).abs() < 1e-9);
    }

    #[test]
    fn few_conversations_give_no_verdict_and_none_no_figure() {
        assert_eq!(verdict(&sample(4, 1, -50.0, 0.0, 0.0, 1)), Verdict::TooFew);
        assert_eq!(compare(&[], FIVE, Seed(1)), None);
        assert!((level_of_each(5) - 0.99).abs() < 1e-12);
    }
}
