//! Values of Python's `random` module, with which `sglang.bench_serving` shuffles datasets and samples texts.

use crate::Seed;
use crate::mersenne::MersenneTwister;

/// Python's `random` module after `random.seed`.
pub struct PythonRandom(MersenneTwister);

impl PythonRandom {
    /// Returns the generator after `random.seed(seed)`.
    pub fn new(seed: Seed) -> PythonRandom {
        PythonRandom(MersenneTwister::from_words(seed.0))
    }

    /// Shuffles `items` like `random.shuffle`. Lists with 2^32 items or more are left unchanged beyond that position.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let Ok(count) = u32::try_from(at + 1) else { continue };
            let other = self.below(count);
            items.swap(at, other as usize);
        }
    }

    /// Returns `count` elements of `items`, with repetition, like `random.choices`. Empty if `items` is empty.
    pub fn choices(&mut self, items: &[u32], count: u32) -> Vec<u32> {
        let Some(last) = items.len().checked_sub(1) else { return Vec::new() };
        let index = |unit: f64| ((unit * items.len() as f64) as usize).min(last);
        (0..count).map(|_| items[index(self.0.unit())]).collect()
    }

    /// Returns an integer from 0 to `count` (exclusive, above 0).
    fn below(&mut self, count: u32) -> u32 {
        let unused = count.leading_zeros();
        loop {
            let found = self.0.word() >> unused;
            if found < count {
                return found;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_and_choices_match_python() {
        let mut python = PythonRandom::new(Seed(42));
        assert_eq!([python.0.unit(), python.0.unit()], [0.639_426_798_457_883_7, 0.025_010_755_222_666_936]);
        let mut items: Vec<u32> = (0..10).collect();
        python.shuffle(&mut items);
        assert_eq!(items, [7, 6, 2, 9, 0, 5, 1, 8, 3, 4]);
        let thousand: Vec<u32> = (0..1000).collect();
        assert_eq!(python.choices(&thousand, 6), [31, 93, 232, 602, 561, 716]);
        assert!(python.choices(&[], 6).is_empty());
        let mut zero = PythonRandom::new(Seed(0));
        assert_eq!([zero.0.word(), zero.0.word(), zero.0.word()], [3_626_764_237, 1_654_615_998, 3_255_389_356]);
    }
}
