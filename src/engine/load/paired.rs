//! Is one endpoint better than another? Differences between the same requests, and how sure one can be of them.
//!
//! Requests of one conversation are not independent (they share a history and its place in the cache), so the bootstrap draws whole
//! conversations.

use std::collections::BTreeMap;

use rand::Rng;
use serde::Serialize;

use crate::engine::load::Seed;

/// One request's figure at both endpoints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The conversation it belongs to.
    pub conversation: u32,
    /// At the first endpoint.
    pub a: f64,
    /// At the second.
    pub b: f64,
}

/// What can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The second endpoint's figure is smaller, beyond chance.
    Smaller,
    /// It is larger, beyond chance.
    Larger,
    /// The interval holds zero.
    NoDifferenceShown,
    /// Fewer than [`CONVERSATIONS_MIN`] conversations: nothing can be said.
    TooFew,
}

/// A difference of means, `b - a`, with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Pairs.
    pub pairs: usize,
    /// Conversations they come from.
    pub conversations: usize,
    /// Mean of the first endpoint's figures.
    pub mean_a: f64,
    /// Mean of the second's.
    pub mean_b: f64,
    /// Lower end of the 95 % interval of `mean_b - mean_a`.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// What follows.
    pub verdict: Verdict,
}

/// With fewer conversations a bootstrap says less than it seems to.
pub const CONVERSATIONS_MIN: usize = 5;
/// Samples of the bootstrap.
const DRAWS: usize = 2_000;

/// Compare `pairs`; `None` when there are none. The same seed gives the same interval.
pub fn compare(pairs: &[Pair], seed: Seed) -> Option<Difference> {
    if pairs.is_empty() {
        return None;
    }
    // Of each conversation: how many pairs, and the sum of their differences.
    let mut by_conversation: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for pair in pairs {
        let (count, sum) = by_conversation.entry(pair.conversation).or_default();
        *count += 1.0;
        *sum += pair.b - pair.a;
    }
    let groups: Vec<(f64, f64)> = by_conversation.into_values().collect();
    let mut rng = seed.generator("bootstrap", 0);
    let mut draws: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let (mut count, mut sum) = (0.0, 0.0);
            for _ in 0..groups.len() {
                let (n, difference) = groups[rng.random_range(0..groups.len())];
                count += n;
                sum += difference;
            }
            sum / count
        })
        .collect();
    draws.sort_by(f64::total_cmp);
    let at = |q: f64| draws[((DRAWS - 1) as f64 * q).round() as usize];
    let (low, high) = (at(0.025), at(0.975));
    let n = pairs.len() as f64;
    let verdict = match () {
        () if groups.len() < CONVERSATIONS_MIN => Verdict::TooFew,
        () if high < 0.0 => Verdict::Smaller,
        () if low > 0.0 => Verdict::Larger,
        () => Verdict::NoDifferenceShown,
    };
    Some(Difference {
        pairs: pairs.len(),
        conversations: groups.len(),
        mean_a: pairs.iter().map(|pair| pair.a).sum::<f64>() / n,
        mean_b: pairs.iter().map(|pair| pair.b).sum::<f64>() / n,
        low,
        high,
        verdict,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::Distribution;

    /// `conversations` of four turns, whose level differs widely between conversations; the second endpoint is `shift` off.
    fn sample(conversations: u32, shift: f64, seed: u64) -> Vec<Pair> {
        let mut rng = Seed(seed).generator("sample", 0);
        let (level, noise) =
            (Distribution::Exponential { mean: 100.0 }, Distribution::Uniform { low: -5.0, high: 5.0 });
        let pairs = (0..conversations).flat_map(|conversation| {
            let base = level.draw(&mut rng);
            (0..4).map(|_| (conversation, base)).collect::<Vec<_>>()
        });
        let pairs: Vec<(u32, f64)> = pairs.collect();
        let pair = |(conversation, base): (u32, f64)| Pair {
            conversation,
            a: base + noise.draw(&mut rng),
            b: base + shift + noise.draw(&mut rng),
        };
        pairs.into_iter().map(pair).collect()
    }

    #[test]
    fn a_difference_far_below_the_spread_between_conversations_is_shown() {
        let found = compare(&sample(40, -3.0, 1), Seed(1)).expect("pairs");
        assert_eq!(found.verdict, Verdict::Smaller);
        assert!(found.low < -3.0 && -3.0 < found.high, "{found:?}");
        assert_eq!(compare(&sample(40, 3.0, 1), Seed(1)).expect("pairs").verdict, Verdict::Larger);
    }

    #[test]
    fn the_same_endpoint_twice_shows_a_difference_about_as_often_as_promised() {
        let shown = (0..200)
            .filter(|seed| {
                compare(&sample(30, 0.0, *seed), Seed(7)).expect("pairs").verdict != Verdict::NoDifferenceShown
            })
            .count();
        assert!((2..=24).contains(&shown), "5 % of 200 is 10: {shown}");
    }

    #[test]
    fn few_conversations_give_no_verdict_and_none_no_figure() {
        assert_eq!(compare(&sample(4, -50.0, 1), Seed(1)).expect("pairs").verdict, Verdict::TooFew);
        assert_eq!(compare(&[], Seed(1)), None);
    }
}
