//! Distributions for lengths and think times.

use std::fmt;
use std::str::FromStr;

use rand::Rng;
use rand_distr::{Distribution as _, Exp, LogNormal};

/// A distribution over non-negative numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    Constant(f64),
    /// Uniform between two bounds. For integers, both bounds are inclusive.
    Uniform {
        low: f64,
        high: f64,
    },
    /// Exponential with the given mean.
    Exponential {
        mean: f64,
    },
    LogNormal {
        /// Mean of the values themselves, not of their logarithms.
        mean: f64,
        /// Coefficient of variation: standard deviation divided by the mean.
        cv: f64,
    },
}

/// The string is not a valid distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid distribution '{0}': expected a number, uniform:LOW,HIGH, exponential:MEAN or lognormal:MEAN,CV, with numbers >= 0"
)]
pub struct ParseDistributionError(pub String);

impl Distribution {
    /// Draws a sample from the distribution.
    pub fn draw(&self, rng: &mut impl Rng) -> f64 {
        match *self {
            Distribution::Constant(value) => value,
            Distribution::Uniform { low, high } => low + (high - low) * rng.random::<f64>(),
            Distribution::Exponential { mean } if mean > 0.0 => {
                Exp::new(1.0 / mean).expect("a positive rate").sample(rng)
            }
            Distribution::Exponential { .. } => 0.0,
            Distribution::LogNormal { mean, cv } if mean > 0.0 => {
                let variance = (1.0 + cv * cv).ln();
                let law = LogNormal::new(mean.ln() - variance / 2.0, variance.sqrt());
                law.expect("a finite standard deviation").sample(rng)
            }
            Distribution::LogNormal { .. } => 0.0,
        }
    }

    /// Draws an integer sample of at least `least`.
    pub fn draw_count(&self, rng: &mut impl Rng, least: u32) -> u32 {
        let drawn = match *self {
            // All integers in the range are equally likely.
            Distribution::Uniform { low, high } => {
                f64::from(rng.random_range(low.round() as u32..=high.round() as u32))
            }
            _ => self.draw(rng).round(),
        };
        // Float-to-integer casts saturate.
        (drawn as u32).max(least)
    }

    /// Returns the mean of the distribution.
    pub fn mean(&self) -> f64 {
        match *self {
            Distribution::Constant(value) => value,
            Distribution::Uniform { low, high } => f64::midpoint(low, high),
            Distribution::Exponential { mean } | Distribution::LogNormal { mean, .. } => mean,
        }
    }
}

impl FromStr for Distribution {
    type Err = ParseDistributionError;

    fn from_str(text: &str) -> Result<Distribution, ParseDistributionError> {
        let wrong = || ParseDistributionError(text.to_owned());
        let (name, numbers) = text.split_once(':').unwrap_or(("constant", text));
        let numbers: Option<Vec<f64>> = numbers
            .split(',')
            .map(|number| number.trim().parse::<f64>().ok().filter(|n| (0.0..=f64::from(u32::MAX)).contains(n)))
            .collect();
        match (name, numbers.ok_or_else(wrong)?.as_slice()) {
            ("constant", &[value]) => Ok(Distribution::Constant(value)),
            ("uniform", &[low, high]) if low <= high => Ok(Distribution::Uniform { low, high }),
            ("exponential", &[mean]) => Ok(Distribution::Exponential { mean }),
            ("lognormal", &[mean, cv]) => Ok(Distribution::LogNormal { mean, cv }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Constant(value) => write!(f, "{value}"),
            Distribution::Uniform { low, high } => write!(f, "uniform:{low},{high}"),
            Distribution::Exponential { mean } => write!(f, "exponential:{mean}"),
            Distribution::LogNormal { mean, cv } => write!(f, "lognormal:{mean},{cv}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seed;

    #[test]
    fn display_round_trips_and_invalid_texts_are_refused() {
        for text in ["64", "0.5", "uniform:32,128", "exponential:5", "lognormal:5,1.2"] {
            assert_eq!(text.parse::<Distribution>().expect(text).to_string(), text);
        }
        for text in ["", "x", "-1", "uniform:2", "uniform:3,2", "normal:1,1", "1,2", "exponential:inf", "NaN", "1e300"]
        {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
    }

    #[test]
    fn mean_of_many_draws_is_the_declared_mean() {
        for text in ["7", "uniform:10,30", "exponential:20", "lognormal:20,0.8"] {
            let law: Distribution = text.parse().expect("a valid distribution");
            let mut rng = Seed(1).generator("test", 0);
            let sum: f64 = (0..40_000).map(|_| law.draw(&mut rng)).sum();
            assert!((sum / 40_000.0 / law.mean() - 1.0).abs() < 0.03, "{text}: {}", sum / 40_000.0);
        }
    }

    #[test]
    fn integer_draws_include_both_bounds_and_the_minimum() {
        let law = Distribution::Uniform { low: 1.0, high: 3.0 };
        let mut rng = Seed(1).generator("test", 0);
        let drawn: std::collections::BTreeSet<u32> = (0..100).map(|_| law.draw_count(&mut rng, 1)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(Distribution::Constant(0.0).draw_count(&mut rng, 1), 1);
    }
}
