//! The Mersenne Twister MT19937, from which NumPy's legacy generator and Python's `random` module sample.

/// State size in 32-bit words.
const WORDS: usize = 624;
/// Distance between the state words that are combined.
const DISTANCE: usize = 397;
/// State from which seeding with a list of numbers starts.
const LIST_SEED: u32 = 19_650_218;

/// An MT19937 generator, as in Python and NumPy.
pub(super) struct MersenneTwister {
    state: [u32; WORDS],
    next: usize,
}

impl MersenneTwister {
    /// Creates a generator seeded with a single number, as `np.random.seed` does.
    pub(crate) fn from_number(seed: u32) -> MersenneTwister {
        let mut state = [seed; WORDS];
        for at in 1..WORDS {
            let before = state[at - 1];
            state[at] = 1_812_433_253_u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(at as u32);
        }
        MersenneTwister { state, next: WORDS }
    }

    /// Creates a generator from `seed`, split into 32-bit numbers, as Python's `random.seed` does.
    pub(crate) fn from_words(seed: u64) -> MersenneTwister {
        let words = [seed as u32, (seed >> 32) as u32];
        let key = if words[1] == 0 { &words[..1] } else { &words[..] };
        let mut state = MersenneTwister::from_number(LIST_SEED).state;
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
        MersenneTwister { state, next: WORDS }
    }

    /// Returns the next 32 random bits.
    pub(crate) fn word(&mut self) -> u32 {
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
    pub(crate) fn unit(&mut self) -> f64 {
        let (high, low) = (self.word() >> 5, self.word() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }
}
