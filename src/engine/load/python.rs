//! The shuffle of Python's `random` module (the Mersenne Twister MT19937), with which
//! `sglang.bench_serving` orders datasets.

use crate::Seed;

/// State size in 32-bit words.
const WORDS: usize = 624;
/// Distance between the state words that are combined.
const DISTANCE: usize = 397;
/// State from which seeding with a list of numbers starts.
const LIST_SEED: u32 = 19_650_218;

/// Python's `random` module after `random.seed`.
pub(crate) struct PythonRandom {
    state: [u32; WORDS],
    next: usize,
}

impl PythonRandom {
    /// Returns the generator after `random.seed(seed)`, which splits `seed` into 32-bit numbers.
    pub(crate) fn new(seed: Seed) -> PythonRandom {
        let words = [seed.0 as u32, (seed.0 >> 32) as u32];
        let key = if words[1] == 0 { &words[..1] } else { &words[..] };
        let mut state = [LIST_SEED; WORDS];
        for at in 1..WORDS {
            let before = state[at - 1];
            state[at] = 1_812_433_253_u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(at as u32);
        }
        let mut at = 1;
        let mix = |state: &mut [u32; WORDS], at: &mut usize, factor: u32, add: u32| {
            let before = state[*at - 1];
            state[*at] = (state[*at] ^ (before ^ (before >> 30)).wrapping_mul(factor)).wrapping_add(add);
            *at += 1;
            if *at == WORDS {
                state[0] = state[WORDS - 1];
                *at = 1;
            }
        };
        for step in 0..WORDS {
            let index = step % key.len();
            mix(&mut state, &mut at, 1_664_525, key[index].wrapping_add(index as u32));
        }
        for _ in 1..WORDS {
            let subtracted = (at as u32).wrapping_neg();
            mix(&mut state, &mut at, 1_566_083_941, subtracted);
        }
        state[0] = 1 << 31;
        PythonRandom { state, next: WORDS }
    }

    /// Shuffles `items` like `random.shuffle`. Lists with 2^32 items or more are left unchanged
    /// beyond that position.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let Ok(count) = u32::try_from(at + 1) else { continue };
            let other = self.below(count);
            items.swap(at, other as usize);
        }
    }

    /// Returns an integer from 0 to `count` (exclusive, above 0).
    fn below(&mut self, count: u32) -> u32 {
        let unused = count.leading_zeros();
        loop {
            let found = self.word() >> unused;
            if found < count {
                return found;
            }
        }
    }

    /// Returns the next 32 random bits.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_match_python() {
        for (seed, expected) in [(42, [7, 3, 2, 8, 5, 6, 9, 4, 0, 1]), ((11 << 40) | 5, [8, 1, 9, 7, 6, 3, 4, 5, 0, 2])]
        {
            let mut items: Vec<u32> = (0..10).collect();
            PythonRandom::new(Seed(seed)).shuffle(&mut items);
            assert_eq!(items, expected);
        }
    }
}
