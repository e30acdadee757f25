//! Pseudo-random numbers from a seed, so that pure code can be replayed.

/// A small pseudo-random number generator (SplitMix64). The same seed yields the same sequence.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator seeded with `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Generates the next pseudo-random number.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "an endless source, not an iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Generates the next pseudo-random number that is at least 0 and less than `bound`. `bound`
    /// must not be 0.
    #[inline]
    pub fn below(&mut self, bound: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the product's upper half is below bound")]
        let scaled = ((u128::from(self.next()) * bound as u128) >> 64) as usize;
        scaled
    }
}
