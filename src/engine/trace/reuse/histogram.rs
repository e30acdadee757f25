//! Hit tokens by reuse distance, in a fixed amount of memory.
//!
//! Distances are exact below 4096 tokens. Above, a bucket is at most 1/2048 of its distance
//! wide. At the end of a bucket, the number of hits is exact at every distance.

/// Distances below 2 to this power have a bucket of their own.
const EXACT_BITS: u32 = 12;
/// Buckets per power of two.
const STEPS_BITS: u32 = EXACT_BITS - 1;
/// Greater distances are counted at this one.
const DISTANCE_MAX: u64 = (1 << 48) - 1;

/// Tokens by reuse distance.
#[derive(Clone, Debug, Default)]
pub(super) struct DistanceHistogram {
    /// Tokens in each bucket that are not in `change`.
    tokens: Vec<i64>,
    /// Change of the number of tokens per distance from each bucket to the next.
    change: Vec<i64>,
}

/// The bucket of a distance.
fn bucket(distance: u64) -> usize {
    let distance = distance.min(DISTANCE_MAX);
    let index = match distance.checked_ilog2() {
        Some(exponent) if exponent >= EXACT_BITS => {
            let shift = exponent - STEPS_BITS;
            (u64::from(shift) << STEPS_BITS) + (distance >> shift)
        }
        _ => distance,
    };
    usize::try_from(index).unwrap_or(usize::MAX)
}

/// The first distance of a bucket.
fn start(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    match (bucket >> STEPS_BITS).saturating_sub(1) {
        0 => bucket,
        shift => (bucket - (shift << STEPS_BITS)) << shift,
    }
}

impl DistanceHistogram {
    /// Counts `tokens` tokens at every distance in `from..to`.
    pub(super) fn add(&mut self, from: u64, to: u64, tokens: i64) {
        if from >= to {
            return;
        }
        let (first, last) = (bucket(from), bucket(to - 1));
        if self.tokens.len() <= last {
            self.tokens.resize(last + 1, 0);
            self.change.resize(last + 2, 0);
        }
        let width = |from: u64, to: u64| i64::try_from(to.saturating_sub(from)).unwrap_or(i64::MAX);
        if first == last {
            self.tokens[first] += tokens.saturating_mul(width(from, to));
            return;
        }
        self.tokens[first] += tokens.saturating_mul(width(from, start(first + 1)));
        self.tokens[last] += tokens.saturating_mul(width(start(last), to));
        self.change[first + 1] += tokens;
        self.change[last] -= tokens;
    }

    /// Returns the end of each bucket that has hits, in tokens, and the number of tokens up to
    /// it.
    pub(super) fn sums(&self) -> Vec<(u64, u64)> {
        let mut sum = 0i64;
        let mut per_distance = 0i64;
        let mut sums = Vec::new();
        for (at, (tokens, change)) in self.tokens.iter().zip(&self.change).enumerate() {
            per_distance += change;
            let end = start(at + 1);
            let width = i64::try_from(end - start(at)).unwrap_or(i64::MAX);
            let here = tokens + per_distance.saturating_mul(width);
            if here != 0 {
                sum = sum.saturating_add(here);
                sums.push((end, u64::try_from(sum).unwrap_or(0)));
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_are_consecutive_and_narrow() {
        for at in 0..60_000 {
            assert_eq!(bucket(start(at)), at);
            assert_eq!(bucket(start(at + 1) - 1), at);
            let width = start(at + 1) - start(at);
            assert!(width == 1 || start(at) >= 4096 && width * 2048 <= start(at));
        }
        assert!(bucket(u64::MAX) < 100_000);
    }

    proptest! {
        #[test]
        fn sums_are_exact_at_the_end_of_each_bucket(
            ramps in prop::collection::vec((0u64..40_000, 1u64..9_000, 1i64..70), 1..20)
        ) {
            let mut histogram = DistanceHistogram::default();
            for (from, count, tokens) in &ramps {
                histogram.add(*from, from + count, *tokens);
            }
            let sums = histogram.sums();
            for (end, sum) in &sums {
                let below = |(from, count, tokens): &(u64, u64, i64)| {
                    (end.min(&(from + count)).saturating_sub(*from)) as i64 * tokens
                };
                prop_assert_eq!(*sum as i64, ramps.iter().map(below).sum::<i64>());
            }
            let all: i64 = ramps.iter().map(|(_, count, tokens)| *count as i64 * tokens).sum();
            prop_assert_eq!(sums.last().map(|(_, sum)| *sum as i64), Some(all));
        }
    }
}
