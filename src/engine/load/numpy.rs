//! The same lengths and arrival times as in `sglang.bench_serving`. The same seed produces the same values in both tools,
//! so two runs differ only in the tool. `bench_serving` samples them from NumPy's legacy generator (`np.random.seed`): first
//! the dataset's lengths, then the arrival times.

use std::time::Duration;

use crate::Seed;
use crate::mersenne::MersenneTwister;

/// NumPy's legacy generator after `np.random.seed`.
pub struct Numpy(MersenneTwister);

impl Numpy {
    /// `bench_serving` rejects seeds wider than 32 bits. Here, only the lower 32 bits are used.
    pub fn new(seed: Seed) -> Numpy {
        Numpy(MersenneTwister::from_number(seed.0 as u32))
    }

    /// Returns `count` lengths from `ratio` x `most` (at least one) to `most`, like `compute_random_lens` of `bench_serving`.
    pub fn lengths(&mut self, most: u32, ratio: f64, count: u32) -> Vec<u32> {
        if most == 0 {
            return vec![0; count as usize];
        }
        let least = least_length(most, ratio);
        (0..count).map(|_| least + self.up_to(most - least)).collect()
    }

    /// Returns a gap of a Poisson process with mean 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.0.unit()).ln()
    }

    /// Returns an integer from 0 to `most` inclusive, sampled like `np.random.randint`.
    pub fn up_to(&mut self, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        let mask = u32::MAX >> most.leading_zeros();
        loop {
            let found = self.0.word() & mask;
            if found <= most {
                return found;
            }
        }
    }
}

/// Returns the smallest length for `most` and `ratio`, which is at most 1.
fn least_length(most: u32, ratio: f64) -> u32 {
    ((f64::from(most) * ratio) as u32).clamp(1, most.max(1))
}

/// Integers that a `bench_serving` dataset samples before the arrival times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorDraws {
    pub count: u32,
    /// Largest value minus smallest value.
    pub range: u32,
}

impl PriorDraws {
    /// Returns the draws for `count` lengths up to `most`.
    pub fn lengths(most: u32, ratio: f64, count: u32) -> PriorDraws {
        PriorDraws { count, range: most.saturating_sub(least_length(most, ratio)) }
    }
}

/// Returns the arrival times for `count` requests at `rate` per second: the first at time zero, the others after
/// exponentially distributed gaps.
pub fn arrivals(seed: Seed, rate: f64, count: u32, before: &[PriorDraws]) -> Vec<Duration> {
    let mut numpy = Numpy::new(seed);
    for drawn in before {
        (0..drawn.count).for_each(|_| {
            numpy.up_to(drawn.range);
        });
    }
    let mut at = 0.0;
    let instant = |_| {
        let now = at;
        at += numpy.exponential() / rate;
        Duration::try_from_secs_f64(now).unwrap_or(Duration::MAX)
    };
    (0..count).map(instant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_integers_match_numpy() {
        let mut numpy = Numpy::new(Seed(43));
        let gaps = [0.0122229292812678, 0.09392179106639259, 0.014316734298938481, 0.027521296254641704];
        for gap in gaps {
            assert!((numpy.exponential() * 0.1 - gap).abs() < 1e-15, "{gap}");
        }
        let mut numpy = Numpy::new(Seed(42));
        assert_eq!(numpy.lengths(1024, 0.5, 5), [614, 947, 782, 618, 583]);
        assert_eq!(numpy.up_to(0), 0);
        assert!((numpy.exponential() - 0.9129425537759532).abs() < 1e-15);
    }

    #[test]
    fn first_request_is_immediate_and_lengths_are_drawn_first() {
        let at = arrivals(Seed(43), 10.0, 3, &[]);
        assert_eq!((at[0], at[1].as_micros(), at[2].as_micros()), (Duration::ZERO, 12_222, 106_144));
        let drawn = PriorDraws { count: 4, range: 1820 };
        let at = arrivals(Seed(42), 1.0, 2, &[drawn]);
        assert_eq!(at[1].as_micros(), 1_316_745);
        assert_eq!(arrivals(Seed(42), 1.0, 2, &[PriorDraws { range: 0, ..drawn }]), arrivals(Seed(42), 1.0, 2, &[]));
    }
}
