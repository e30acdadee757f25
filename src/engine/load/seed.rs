//! One number from which all randomness of a run comes.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The seed of a run. Every use takes its own generator by name and index, so that one more draw in one place changes nothing in
/// another, and a conversation is the same whatever came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// The generator for `purpose`, number `index`. ChaCha with 8 rounds: the same on every machine and in every release.
    pub fn generator(self, purpose: &str, index: u64) -> ChaCha8Rng {
        // FNV-1a: a key for the purpose, no more.
        let key = purpose
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.0.to_le_bytes());
        seed[8..16].copy_from_slice(&key.to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(seed);
        generator.set_stream(index);
        generator
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngCore;

    #[test]
    fn a_generator_depends_on_seed_purpose_and_index_and_on_nothing_else() {
        let draw = |seed: u64, purpose: &str, index| Seed(seed).generator(purpose, index).next_u64();
        assert_eq!(draw(1, "arrivals", 0), draw(1, "arrivals", 0));
        let all = [draw(1, "arrivals", 0), draw(2, "arrivals", 0), draw(1, "lengths", 0), draw(1, "arrivals", 1)];
        let distinct: std::collections::HashSet<u64> = all.into_iter().collect();
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn the_numbers_of_a_seed_never_change() {
        let mut generator = Seed(43).generator("arrivals", 7);
        assert_eq!([generator.next_u32(), generator.next_u32()], [2_080_963_664, 819_814_773]);
    }
}
