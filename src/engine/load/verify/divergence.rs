//! The difference between two answers to the same prompt.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// A token: its ID, or its text if the server returns no IDs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum TokenName {
    Id(u32),
    Text(Arc<str>),
}

impl fmt::Display for TokenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenName::Id(id) => write!(f, "{id}"),
            TokenName::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// The distribution of the token at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct NextToken {
    /// The token that was forced or generated.
    pub token: TokenName,
    /// Its log-probability; NaN if the server returned no number.
    pub logprob: f64,
    /// Log-probabilities of the likeliest tokens.
    pub top: Vec<(TokenName, f64)>,
}

impl NextToken {
    /// Whether the log-probabilities are numbers, and not above 0 by more than rounding.
    fn is_valid(&self) -> bool {
        const ROUNDING: f64 = 1e-3;
        self.logprob <= ROUNDING && self.top.iter().all(|(_, logprob)| *logprob <= ROUNDING)
    }
}

/// The difference between an answer and its reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Divergence {
    /// Number of compared positions: all forced ones, and the generated ones up to the first token
    /// that differs.
    positions: u32,
    /// Sum of the Kullback-Leibler divergences of the positions, in nats. The divergence of a
    /// position is infinite if a log-probability is not a number, if the reference does not list
    /// the generated token, or if an answer is shorter.
    sum: f64,
    /// The positions whose divergence is above that of all positions before, with the divergence.
    /// A run keeps many results, so it does not keep the other positions.
    peaks: Vec<(u32, f64)>,
    /// Whether the answers are equal in every bit.
    pub identical: bool,
    /// Index of the first generated token that differs.
    pub first_token: Option<u32>,
    /// The token of the reference there, and the other one.
    pub tokens: Option<(TokenName, TokenName)>,
}

impl Divergence {
    /// Compares `other` with `reference`. Each has `forced` positions before the generated ones.
    pub fn between(reference: &[NextToken], other: &[NextToken], forced: usize) -> Divergence {
        let mut found = Divergence { identical: reference == other, ..Divergence::default() };
        for (at, (expected, actual)) in reference.iter().zip(other).enumerate() {
            let kl = kl_bound(expected, actual);
            if at >= forced && expected.token != actual.token {
                let is_listed = expected.top.iter().any(|(token, _)| *token == actual.token);
                found.push(if is_listed { kl } else { f64::INFINITY });
                found.first_token = u32::try_from(at - forced).ok();
                found.tokens = Some((expected.token.clone(), actual.token.clone()));
                return found;
            }
            found.push(kl);
        }
        if reference.len() != other.len() {
            found.push(f64::INFINITY);
        }
        found
    }

    /// Adds the divergence of the next position.
    fn push(&mut self, kl: f64) {
        if kl > self.max() {
            self.peaks.push((self.positions, kl));
        }
        self.sum += kl;
        self.positions += 1;
    }

    /// Mean over the positions.
    pub fn mean(&self) -> f64 {
        if self.positions == 0 { 0.0 } else { self.sum / f64::from(self.positions) }
    }

    /// Largest value.
    pub fn max(&self) -> f64 {
        self.peaks.last().map_or(0.0, |(_, kl)| *kl)
    }

    /// The first position whose divergence is above `limit`, which is at least 0.
    pub fn first_above(&self, limit: f64) -> Option<u32> {
        self.peaks.iter().find(|(_, kl)| *kl > limit).map(|(at, _)| *at)
    }
}

/// Returns a lower bound of the Kullback-Leibler divergence of `q` from `p`, in nats.
///
/// Only the likeliest tokens are known. The tokens in both lists, those only in `p`'s list, and all
/// others are three groups. Grouping never increases the divergence (data-processing inequality).
/// `q` gives each token outside its list at most the probability of the last one in it. The bound
/// is the smallest value which that allows.
fn kl_bound(p: &NextToken, q: &NextToken) -> f64 {
    if !(p.is_valid() && q.is_valid()) {
        return f64::INFINITY;
    }
    // A server without lists still returns the token's own log-probability.
    let listed = |of: &NextToken| {
        if of.top.is_empty() { vec![(of.token.clone(), of.logprob)] } else { of.top.clone() }
    };
    let (p, q) = (listed(p), listed(q));
    let q_last = q.iter().map(|(_, logprob)| logprob.exp()).fold(f64::INFINITY, f64::min);
    let (mut sum, mut p_common, mut q_common, mut p_only, mut only) = (0.0, 0.0, 0.0, 0.0, 0);
    for (token, logprob) in &p {
        match q.iter().find(|(other, _)| other == token) {
            Some((_, other)) => {
                sum += term(logprob.exp(), other.exp());
                p_common += logprob.exp();
                q_common += other.exp();
            }
            None => {
                p_only += logprob.exp();
                only += 1;
            }
        }
    }
    let p_rest = (1.0 - p_common - p_only).max(0.0);
    let q_left = (1.0 - q_common).max(0.0);
    // The bound falls as `q_only` rises to the share that `p` gives this group.
    let best = if p_only + p_rest > 0.0 { q_left * p_only / (p_only + p_rest) } else { 0.0 };
    let q_only = best.min(q_last * f64::from(only));
    (sum + term(p_only, q_only) + term(p_rest, q_left - q_only)).max(0.0)
}

/// Returns `p ln(p / q)`. A probability that is rounded to 0 counts as the smallest one.
fn term(p: f64, q: f64) -> f64 {
    const SMALLEST: f64 = 1e-12;
    if p <= SMALLEST || p.to_bits() == q.to_bits() { 0.0 } else { p * (p / q.max(SMALLEST)).ln() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A position with these probabilities of the first tokens. The first one is the token.
    fn position(shares: &[(u32, f64)]) -> NextToken {
        let top: Vec<_> = shares.iter().map(|(id, share)| (TokenName::Id(*id), share.ln())).collect();
        NextToken { token: top[0].0.clone(), logprob: top[0].1, top }
    }

    #[test]
    fn equal_distributions_do_not_diverge() {
        let one = position(&[(1, 0.5), (2, 0.3), (3, 0.1)]);
        assert_eq!(kl_bound(&one, &one).to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn complete_lists_give_the_exact_divergence() {
        let p = position(&[(1, 0.75), (2, 0.25)]);
        let q = position(&[(1, 0.25), (2, 0.75)]);
        assert!((kl_bound(&p, &q) - 0.5 * 3.0_f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn lists_without_a_common_token_diverge() {
        let p = position(&[(1, 0.6), (2, 0.3)]);
        let q = position(&[(7, 0.9), (8, 0.01)]);
        assert!(kl_bound(&p, &q) > 1.0, "{}", kl_bound(&p, &q));
    }

    #[test]
    fn an_answer_that_is_not_a_number_diverges_infinitely() {
        let p = position(&[(1, 0.6), (2, 0.3)]);
        let broken = NextToken { logprob: f64::NAN, ..p.clone() };
        let impossible = NextToken { logprob: 5.0, ..p.clone() };
        for other in [broken, impossible] {
            assert!(kl_bound(&p, &other).is_infinite() && kl_bound(&other, &other).is_infinite());
        }
    }

    #[test]
    fn generated_tokens_count_up_to_the_first_difference() {
        let [a, b] = [position(&[(1, 0.6), (2, 0.4)]), position(&[(2, 0.6), (1, 0.4)])];
        let reference = [a.clone(), a.clone(), a.clone(), a.clone()];
        let found = Divergence::between(&reference, &[b.clone(), a.clone(), b.clone(), a.clone()], 2);
        assert_eq!((found.positions, found.first_token), (3, Some(0)));
        assert_eq!(found.tokens, Some((TokenName::Id(1), TokenName::Id(2))));
        assert_eq!((found.first_above(0.0), found.first_above(1.0)), (Some(0), None));
        let same = Divergence::between(&reference, &reference, 2);
        assert_eq!((same.mean(), same.max(), same.first_token, same.identical), (0.0, 0.0, None, true));
        // A token that the reference does not list, and a shorter answer.
        let unlisted = position(&[(9, 0.6), (1, 0.4)]);
        let other = [a.clone(), a.clone(), unlisted, a.clone()];
        assert!(Divergence::between(&reference, &other, 2).max().is_infinite());
        assert!(Divergence::between(&reference, &reference[..3], 2).max().is_infinite());
    }

    /// A distribution over `weights.len()` tokens, as the server returns it.
    fn listed(weights: &[f64], keep: usize) -> NextToken {
        let sum: f64 = weights.iter().sum();
        let mut shares: Vec<(u32, f64)> = weights.iter().zip(0..).map(|(weight, id)| (id, weight / sum)).collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares.truncate(keep);
        position(&shares)
    }

    proptest! {
        #[test]
        fn figures_are_those_of_all_positions(kl in proptest::collection::vec(0.0_f64..1.0, 0..20), limit in 0.0_f64..1.0) {
            let mut found = Divergence::default();
            kl.iter().for_each(|kl| found.push(*kl));
            let mean = kl.iter().sum::<f64>() / kl.len().max(1) as f64;
            prop_assert!((found.mean() - mean).abs() < 1e-12);
            prop_assert_eq!(found.max(), kl.iter().copied().fold(0.0, f64::max));
            prop_assert_eq!(found.first_above(limit).map(|at| at as usize), kl.iter().position(|kl| *kl > limit));
        }

        #[test]
        fn the_bound_is_never_above_the_divergence(
            p in proptest::collection::vec(0.001_f64..1.0, 12),
            q in proptest::collection::vec(0.001_f64..1.0, 12),
            keep in 1_usize..12,
        ) {
            let exact = kl_bound(&listed(&p, 12), &listed(&q, 12));
            let bound = kl_bound(&listed(&p, keep), &listed(&q, keep));
            prop_assert!(bound >= 0.0 && bound <= exact + 1e-9, "{} {}", bound, exact);
        }
    }
}
