//! Request arrival times. They are absolute, so a late request does not delay later ones.
//!
//! Gaps are sampled at rate 1 and mapped to the target rate through the inverse of the rate's
//! integral. Any gap distribution therefore works with any rate curve, and a gap that spans the end
//! of a ramp has the correct length on both sides.

use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, Gamma};

/// Distribution of the gaps between arrivals, with mean 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gaps {
    Even,
    /// Uniform between zero and twice the mean, like `bench_multiturn.py`.
    Uniform,
    /// Gamma distribution with this shape. 1 is a Poisson process; lower values are burstier,
    /// higher values are smoother (vLLM's `burstiness`).
    Gamma(f64),
}

impl Gaps {
    /// Exponentially distributed gaps (Poisson arrivals).
    pub const POISSON: Gaps = Gaps::Gamma(1.0);
}

/// Request rate over time, in requests per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// A constant rate above zero. An infinite rate sends all requests at once.
    Constant(f64),
    /// A linear change from one rate to another, followed by a constant rate.
    Ramp {
        from: f64,
        /// Rate at the end of the ramp and afterwards, above zero.
        to: f64,
        /// Duration of the ramp.
        over: Duration,
    },
}

impl Rate {
    /// Returns the time, in seconds, at which the integral of the rate reaches `arrivals`, which is
    /// a sum of rate-1 gaps.
    fn due(self, arrivals: f64) -> f64 {
        match self {
            Rate::Constant(rate) => arrivals / rate,
            Rate::Ramp { from, to, over } => {
                let over = over.as_secs_f64();
                let within = f64::midpoint(from, to) * over;
                if arrivals >= within {
                    return over + (arrivals - within) / to;
                }
                // Solves from*t + slope*t*t/2 = arrivals, in a form that also holds for a slope of
                // zero.
                let slope = (to - from) / over;
                2.0 * arrivals / (from + (from * from + 2.0 * slope * arrivals).max(0.0).sqrt())
            }
        }
    }
}

/// A schedule of arrivals.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    Drawn {
        gaps: Gaps,
        rate: Rate,
    },
    /// Recorded times since the start, in order, divided by `speed`.
    Recorded {
        at: Vec<Duration>,
        /// A speed of 2 replays a trace in half the time.
        speed: f64,
    },
}

impl Arrivals {
    /// Returns the arrival times since the start, in non-decreasing order. Sampled arrivals never
    /// end.
    pub fn instants(self, rng: ChaCha8Rng) -> Instants {
        Instants { arrivals: self, rng, sum: 0.0, index: 0 }
    }
}

/// Iterator over arrival times; see [`Arrivals::instants`].
#[derive(Clone, Debug)]
pub struct Instants {
    arrivals: Arrivals,
    rng: ChaCha8Rng,
    sum: f64,
    index: usize,
}

/// Upper bound on arrival times, later than the end of any run.
const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).map_or(FAR, |at| at.min(FAR))
}

impl Iterator for Instants {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        match &self.arrivals {
            Arrivals::Drawn { gaps, rate } => {
                // With constant gaps, the first arrival is at time zero. Other distributions start
                // with a gap, because a Poisson process has no arrival at time zero.
                let gap = match *gaps {
                    Gaps::Even => f64::from(u8::from(self.index > 0)),
                    Gaps::Uniform => 2.0 * self.rng.random::<f64>(),
                    Gaps::Gamma(shape) => Gamma::new(shape, 1.0 / shape).map_or(1.0, |law| law.sample(&mut self.rng)),
                };
                self.index += 1;
                self.sum += gap;
                Some(seconds(rate.due(self.sum)))
            }
            Arrivals::Recorded { at, speed } => {
                let at = at.get(self.index)?;
                self.index += 1;
                Some(seconds(at.as_secs_f64() / speed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seed;

    fn instants(gaps: Gaps, rate: Rate, count: usize) -> Vec<f64> {
        let rng = Seed(5).generator("arrivals", 0);
        Arrivals::Drawn { gaps, rate }.instants(rng).take(count).map(|at| at.as_secs_f64()).collect()
    }

    /// Kolmogorov-Smirnov distance between the sample and `law`, times the square root of the
    /// sample size.
    fn distance(mut sample: Vec<f64>, law: impl Fn(f64) -> f64) -> f64 {
        sample.sort_by(f64::total_cmp);
        let n = sample.len() as f64;
        let one = |(i, x): (usize, &f64)| {
            let expected = law(*x);
            (expected - i as f64 / n).abs().max((expected - (i + 1) as f64 / n).abs())
        };
        sample.iter().enumerate().map(one).fold(0.0, f64::max) * n.sqrt()
    }

    fn gaps_of(instants: &[f64]) -> Vec<f64> {
        std::iter::once(&0.0).chain(instants).zip(instants).map(|(a, b)| b - a).collect()
    }

    /// Critical value: 99.9 % of samples from the distribution stay below it.
    const KS_999: f64 = 1.95;

    #[test]
    fn even_arrivals_do_not_drift() {
        let at = instants(Gaps::Even, Rate::Constant(10.0), 1_000_000);
        assert_eq!(at[0], 0.0);
        assert!((at[999_999] - 99_999.9).abs() < 1e-6, "{}", at[999_999]);
    }

    #[test]
    fn poisson_arrivals_have_exponential_gaps() {
        let gaps = gaps_of(&instants(Gaps::POISSON, Rate::Constant(4.0), 20_000));
        let found = distance(gaps, |gap| 1.0 - (-4.0 * gap).exp());
        assert!(found < KS_999, "{found}");
    }

    #[test]
    fn gamma_arrivals_match_their_closed_form() {
        // With shape 2, a gap is the sum of two exponentially distributed gaps (an Erlang
        // distribution).
        let gaps = gaps_of(&instants(Gaps::Gamma(2.0), Rate::Constant(4.0), 20_000));
        let found = distance(gaps, |gap| 1.0 - (-8.0 * gap).exp() * (1.0 + 8.0 * gap));
        assert!(found < KS_999, "{found}");
        // Bursty arrivals: check the mean and variance for shape 0.25.
        let gaps = gaps_of(&instants(Gaps::Gamma(0.25), Rate::Constant(1.0), 100_000));
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.03 && (variance - 4.0).abs() < 0.3, "{mean} {variance}");
    }

    #[test]
    fn ramp_has_the_arrivals_of_its_area_and_then_its_final_rate() {
        let rate = Rate::Ramp { from: 0.0, to: 10.0, over: Duration::from_secs(10) };
        let at = instants(Gaps::Even, rate, 151);
        assert!((at[50] - 10.0).abs() < 1e-9, "50 arrivals in the ramp: {}", at[50]);
        assert!((at[150] - 20.0).abs() < 1e-9, "then ten per second: {}", at[150]);
        assert!((at[8] - 4.0).abs() < 1e-9, "the square root of 2 x 8 / 1: {}", at[8]);
        let down = Rate::Ramp { from: 10.0, to: 2.0, over: Duration::from_secs(10) };
        assert!((instants(Gaps::Even, down, 63)[62] - 11.0).abs() < 1e-9);
    }

    #[test]
    fn recorded_arrivals_are_scaled_by_speed_and_end() {
        let at = [0, 1_500, 4_000].map(Duration::from_millis).to_vec();
        let played: Vec<Duration> = Arrivals::Recorded { at, speed: 2.0 }.instants(Seed(0).generator("", 0)).collect();
        assert_eq!(played, [0, 750, 2_000].map(Duration::from_millis));
    }

    #[test]
    fn extreme_rates_do_not_panic() {
        for rate in [1e-300, f64::INFINITY, 1e300] {
            assert_eq!(instants(Gaps::POISSON, Rate::Constant(rate), 3).len(), 3);
        }
    }
}
