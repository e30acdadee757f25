//! How many prompts are enough to find a fault that affects some of them.

use serde::Serialize;

/// The smallest fault to find, and how surely.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SampleSize {
    /// Share of the prompts that the fault affects, above 0 and at most 1.
    pub affected: f64,
    /// Probability that at least one of the prompts is affected, between 0 and 1.
    pub power: f64,
}

impl SampleSize {
    /// Number of prompts: the smallest n with 1 - (1 - affected)^n >= power.
    pub fn prompts(self) -> u32 {
        if self.affected >= 1.0 {
            return 1;
        }
        // The share is above 0, so the logarithm is below 0. The small amount removes rounding
        // errors.
        let prompts = ((-self.power).ln_1p() / (-self.affected).ln_1p() - 1e-9).ceil();
        (prompts as u32).max(1)
    }

    /// Largest share of wrong answers that is compatible, at 95 % confidence, with none among
    /// `prompts`. It is 1 without prompts.
    pub fn share_max(prompts: u32) -> f64 {
        if prompts == 0 { 1.0 } else { 1.0 - 0.05_f64.powf(1.0 / f64::from(prompts)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_reach_the_power_and_one_fewer_does_not() {
        for (affected, power, expected) in [(0.05, 0.999, 135), (0.05, 0.99, 90), (0.2, 0.999, 31), (0.5, 0.5, 1)] {
            let found = SampleSize { affected, power }.prompts();
            assert_eq!(found, expected, "{affected} {power}");
            let reached = |prompts: u32| 1.0 - (1.0 - affected).powi(prompts as i32);
            assert!(reached(found) >= power - 1e-9 && (found == 1 || reached(found - 1) < power));
        }
        assert_eq!(SampleSize { affected: 1.0, power: 0.999 }.prompts(), 1);
    }

    #[test]
    fn no_fault_in_a_thousand_answers_proves_three_in_a_thousand() {
        assert!((SampleSize::share_max(1000) - 0.003).abs() < 1e-4);
        assert!((SampleSize::share_max(0) - 1.0).abs() < 1e-12);
    }
}
