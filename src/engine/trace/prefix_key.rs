//! Prefix keys: 64-bit names of prompt prefixes.
//!
//! The key of a block depends on its ID and on all IDs before it. Two requests therefore have equal
//! keys exactly where their prompts start with the same blocks. This matters for formats whose IDs
//! are hashes of single blocks: the same block after a different prefix is not reusable.

/// Weyl increment of SplitMix64, the golden ratio as a 64-bit fraction.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Key of the empty prompt. It must not be the mix of a small number: XOR with the mix of an ID
/// would be 0.
const SEED: u64 = 0x5851_F42D_4C95_7F2D;

/// The finalizer of SplitMix64: a bijection whose output bits depend on all input bits.
#[inline]
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Computes the keys of a prompt's blocks, in order.
#[derive(Clone, Copy, Debug)]
pub struct PrefixKeys(u64);

impl PrefixKeys {
    /// For traces in which equal IDs mean equal blocks everywhere.
    pub fn global() -> PrefixKeys {
        PrefixKeys(SEED)
    }

    /// For traces in which IDs are local to a session: keys of different sessions differ.
    pub fn local(session: u64) -> PrefixKeys {
        PrefixKeys(mix(session.wrapping_add(2).wrapping_mul(GOLDEN)))
    }

    /// Returns the key of the next block.
    #[inline]
    pub fn next(&mut self, id: u64) -> u64 {
        self.0 = mix(self.0 ^ mix(id.wrapping_add(GOLDEN)));
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(mut from: PrefixKeys, ids: &[u64]) -> Vec<u64> {
        ids.iter().map(|id| from.next(*id)).collect()
    }

    #[test]
    fn keys_depend_on_the_whole_prefix() {
        let a = keys(PrefixKeys::global(), &[1, 2, 3, 4]);
        let b = keys(PrefixKeys::global(), &[1, 2, 9, 4]);
        assert_eq!(a[..2], b[..2]);
        assert_ne!(a[2], b[2]);
        assert_ne!(a[3], b[3], "the same block after another prefix");
    }

    #[test]
    fn repeated_and_extreme_ids_have_distinct_keys() {
        let found = keys(PrefixKeys::global(), &[0, 0, u64::MAX, u64::MAX, 0]);
        assert!(!found.contains(&0));
        let distinct: std::collections::HashSet<_> = found.iter().collect();
        assert_eq!(distinct.len(), found.len());
    }

    #[test]
    fn local_ids_share_nothing_between_sessions() {
        assert_ne!(keys(PrefixKeys::local(0), &[1]), keys(PrefixKeys::local(1), &[1]));
        assert_ne!(keys(PrefixKeys::local(0), &[1]), keys(PrefixKeys::global(), &[1]));
    }
}
