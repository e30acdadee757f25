//! Whether a tier's answers differ from their references by more than noise.

use serde::Serialize;

/// A prompt differs if its divergence is above this multiple of the largest one between repeated
/// passes. Repeated passes that are equal in every bit make each difference count.
pub const NOISE_FACTOR: f64 = 10.0;
/// Probability of the sign test below which a shift of many small divergences counts.
const SHIFT_LEVEL: f64 = 1e-4;
/// A tier needs this share of its prompts to be verified.
pub const VERIFIED_MIN: f64 = 0.9;

/// The verdict on a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerVerdict {
    /// No prompt differs by more than noise.
    Same,
    /// At least one prompt differs, or many differ slightly.
    Different,
    /// Too few prompts came from the tier, or the noise is unknown.
    Void,
}

impl AnswerVerdict {
    /// Name in reports and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            AnswerVerdict::Same => "same",
            AnswerVerdict::Different => "different",
            AnswerVerdict::Void => "void",
        }
    }

    /// Returns the verdict. `differing`: number of prompts above the limit. `shifted`: whether many
    /// differ slightly. `planned` and `judged`: number of prompts planned, and with a known limit.
    pub(super) fn of(differing: u32, shifted: bool, planned: u32, judged: u32) -> AnswerVerdict {
        if differing > 0 || shifted {
            return AnswerVerdict::Different;
        }
        let is_enough = judged > 0 && f64::from(judged) >= f64::from(planned) * VERIFIED_MIN;
        if is_enough { AnswerVerdict::Same } else { AnswerVerdict::Void }
    }
}

/// Returns whether the tier's divergence is larger than the repeated pass's for too many prompts.
/// `pairs`: (tier, repeated) of the same prompts. Without a fault both are equally likely to be
/// the larger one (sign test).
pub(super) fn is_shifted(pairs: impl Iterator<Item = (f64, f64)>) -> bool {
    let (mut larger, mut unequal) = (0, 0);
    for (tier, repeated) in pairs {
        unequal += u32::from(tier != repeated);
        larger += u32::from(tier > repeated);
    }
    binomial_tail(larger, unequal) < SHIFT_LEVEL
}

/// Probability of at least `heads` heads in `tosses` fair tosses.
fn binomial_tail(heads: u32, tosses: u32) -> f64 {
    // Logarithms, because the terms of many tosses underflow.
    let mut log_term = -f64::from(tosses) * std::f64::consts::LN_2;
    let mut sum = 0.0;
    for at in 0..=tosses {
        if at >= heads {
            sum += log_term.exp();
        }
        log_term += f64::from(tosses - at).ln() - f64::from(at + 1).ln();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_those_of_a_fair_coin() {
        assert!((binomial_tail(0, 10) - 1.0).abs() < 1e-12);
        assert!((binomial_tail(10, 10) - 1.0 / 1024.0).abs() < 1e-12);
        assert!((binomial_tail(60, 100) - 0.028_44).abs() < 1e-4);
        assert!((binomial_tail(0, 0) - 1.0).abs() < 1e-12);
        assert!((binomial_tail(5000, 10_000) - 0.504).abs() < 1e-3);
    }

    #[test]
    fn a_shift_of_all_prompts_counts_and_of_half_of_them_does_not() {
        let pairs = |larger: u32| (0..40).map(move |n| if n < larger { (2.0, 1.0) } else { (1.0, 2.0) });
        assert!(is_shifted(pairs(40)) && is_shifted(pairs(36)) && !is_shifted(pairs(28)));
        assert!(!is_shifted((0..1000).map(|_| (0.0, 0.0))));
    }

    #[test]
    fn a_tier_that_was_not_reached_is_void_even_if_nothing_differs() {
        use AnswerVerdict::{Different, Same, Void};
        for (judged, expected) in [(100, Same), (90, Same), (89, Void), (0, Void)] {
            assert_eq!(AnswerVerdict::of(0, false, 100, judged), expected, "{judged}");
        }
        // A difference is one, however few prompts show it.
        assert_eq!(AnswerVerdict::of(1, false, 100, 3), Different);
        assert_eq!(AnswerVerdict::of(0, true, 100, 100), Different);
    }
}
