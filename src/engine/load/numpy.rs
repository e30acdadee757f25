//! The same arrival times as in `sglang.bench_serving`. The same seed produces the same arrival times in both tools, so
//! two runs differ only in the tool. `bench_serving` samples them from NumPy's legacy generator (`np.random.seed`)
//! after sampling its dataset's lengths.

use std::time::Duration;

/// State size of MT19937 in 32-bit words.
const WORDS: usize = 624;
/// Distance between the state words that are combined.
const DISTANCE: usize = 397;

/// NumPy's legacy generator: MT19937, seeded with a single number.
struct Numpy {
    state: [u32; WORDS],
    next: usize,
}

impl Numpy {
    fn seeded(seed: u32) -> Numpy {
        let mut state = [seed; WORDS];
        for at in 1..WORDS {
            let before = state[at - 1];
            state[at] = 1_812_433_253_u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(at as u32);
        }
        Numpy { state, next: WORDS }
    }

    fn word(&mut self) -> u32 {
        if self.next == WORDS {
            for at in 0..WORDS {
                let joined = (self.state[at] & 0x8000_0000) | (self.state[(at + 1) % WORDS] & 0x7fff_ffff);
                let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[at] = self.state[(at + DISTANCE) % WORDS] ^ (joined >> 1) ^ odd;
            }
            self.next = 0;
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// Returns a number in `0.0..1.0` with 53 random bits.
    fn unit(&mut self) -> f64 {
        let (high, low) = (self.word() >> 5, self.word() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }

    /// Returns a gap of a Poisson process with mean 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Returns an integer from 0 to `most` inclusive, sampled like `np.random.randint`.
    fn up_to(&mut self, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        let mask = u32::MAX >> most.leading_zeros();
        loop {
            let found = self.word() & mask;
            if found <= most {
                return found;
            }
        }
    }
}

/// Integers that a `bench_serving` dataset samples before the arrival times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorDraws {
    pub count: u32,
    /// Largest value minus smallest value.
    pub range: u32,
}

/// Returns the arrival times for `count` requests at `rate` per second: the first at time zero, the others after
/// exponentially distributed gaps.
pub fn arrivals(seed: u64, rate: f64, count: u32, before: &[PriorDraws]) -> Vec<Duration> {
    // bench_serving rejects seeds wider than 32 bits.
    let mut numpy = Numpy::seeded(seed as u32);
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
        let mut numpy = Numpy::seeded(43);
        let gaps = [0.0122229292812678, 0.09392179106639259, 0.014316734298938481, 0.027521296254641704];
        for gap in gaps {
            assert!((numpy.exponential() * 0.1 - gap).abs() < 1e-15, "{gap}");
        }
        let mut numpy = Numpy::seeded(42);
        let lengths: Vec<u32> = (0..5).map(|_| 512 + numpy.up_to(512)).collect();
        assert_eq!(lengths, [614, 947, 782, 618, 583]);
        assert_eq!(numpy.up_to(0), 0);
        assert!((numpy.exponential() - 0.9129425537759532).abs() < 1e-15);
    }

    #[test]
    fn first_request_is_immediate_and_lengths_are_drawn_first() {
        let at = arrivals(43, 10.0, 3, &[]);
        assert_eq!((at[0], at[1].as_micros(), at[2].as_micros()), (Duration::ZERO, 12_222, 106_144));
        let drawn = PriorDraws { count: 4, range: 1820 };
        let at = arrivals(42, 1.0, 2, &[drawn]);
        assert_eq!(at[1].as_micros(), 1_316_745);
        assert_eq!(arrivals(42, 1.0, 2, &[PriorDraws { range: 0, ..drawn }]), arrivals(42, 1.0, 2, &[]));
    }
}
