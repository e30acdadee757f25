//! A hash index that maps a key's hash to its record: an open-addressing table with linear probing,
//! whose 8-byte slots contain the hash and the record's index.
//!
//! With the hash next to the index, a probe touches no record until it finds a slot with the same
//! hash. Growing the table and closing gaps never read the records. The table is split into shards
//! by the upper bits of the hash, so that it grows one shard at a time. Moving all keys in one step
//! would keep the state locked for tens of milliseconds.

/// Record indices by hash. Several keys may have the same hash; the caller distinguishes them.
#[derive(Debug)]
pub(super) struct HashIndex {
    shards: Box<[Shard]>,
}

#[derive(Debug, Default)]
struct Shard {
    /// The length is a power of two, or 0. A slot is either `EMPTY` or contains the hash in its
    /// upper half and the index in its lower half.
    slots: Vec<u64>,
    len: usize,
}

const SHARD_BITS: u32 = 10;
const EMPTY: u64 = u64::MAX;
const SLOTS_MIN: usize = 8;

fn slot(hash: u32, index: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(index)
}

#[expect(clippy::cast_possible_truncation, reason = "splits the value into its two halves")]
fn parts(slot: u64) -> (u32, u32) {
    ((slot >> 32) as u32, slot as u32)
}

fn shard(hash: u32) -> usize {
    (hash >> (32 - SHARD_BITS)) as usize
}

impl HashIndex {
    /// Creates an empty index.
    pub(crate) fn new() -> HashIndex {
        HashIndex { shards: (0..1 << SHARD_BITS).map(|_| Shard::default()).collect() }
    }

    /// Returns the index under `hash` for which `matches` returns true.
    #[inline]
    pub(crate) fn find(&self, hash: u32, mut matches: impl FnMut(u32) -> bool) -> Option<u32> {
        let slots = &self.shards[shard(hash)].slots[..];
        let mask = slots.len().wrapping_sub(1);
        let mut at = hash as usize;
        // A table is never full, so probing reaches an empty slot.
        while let Some(&found) = slots.get(at & mask) {
            if found == EMPTY {
                return None;
            }
            let (other, index) = parts(found);
            if other == hash && matches(index) {
                return Some(index);
            }
            at += 1;
        }
        None
    }

    /// Returns any index under this hash, whether or not its key matches.
    #[inline]
    pub(crate) fn guess(&self, hash: u32) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// Reads the first slot that a probe for `hash` visits, to load its cache line.
    #[inline]
    pub(crate) fn touch(&self, hash: u32) -> u64 {
        let slots = &self.shards[shard(hash)].slots[..];
        slots.get(hash as usize & slots.len().wrapping_sub(1)).copied().unwrap_or(EMPTY)
    }

    /// Inserts `index` under `hash`.
    pub(crate) fn insert(&mut self, hash: u32, index: u32) {
        let shard = &mut self.shards[shard(hash)];
        if (shard.len + 1) * 5 > shard.slots.len() * 4 {
            shard.grow();
        }
        shard.insert_slot(slot(hash, index));
        shard.len += 1;
    }

    /// Removes `index` under `hash`. Returns false if it was missing.
    pub(crate) fn remove(&mut self, hash: u32, index: u32) -> bool {
        let shard = &mut self.shards[shard(hash)];
        let mask = shard.slots.len().wrapping_sub(1);
        let mut gap = hash as usize & mask;
        loop {
            match shard.slots.get(gap) {
                None | Some(&EMPTY) => return false,
                Some(&found) if found == slot(hash, index) => break,
                Some(_) => gap = (gap + 1) & mask,
            }
        }
        // Close the gap: move a later slot into it, unless the gap is before the slot's home
        // position.
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let moved = shard.slots[at];
            if moved == EMPTY {
                break;
            }
            let start = parts(moved).0 as usize & mask;
            if at.wrapping_sub(start) & mask >= at.wrapping_sub(gap) & mask {
                shard.slots[gap] = moved;
                gap = at;
            }
        }
        shard.slots[gap] = EMPTY;
        shard.len -= 1;
        true
    }
}

impl Shard {
    fn insert_slot(&mut self, new: u64) {
        let mask = self.slots.len() - 1;
        let mut at = parts(new).0 as usize & mask;
        while self.slots[at] != EMPTY {
            at = (at + 1) & mask;
        }
        self.slots[at] = new;
    }

    fn grow(&mut self) {
        let doubled = (self.slots.len() * 2).max(SLOTS_MIN);
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; doubled]);
        for kept in old.into_iter().filter(|kept| *kept != EMPTY) {
            self.insert_slot(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn contents_match_a_set_of_pairs(
            steps in prop::collection::vec((any::<bool>(), 0u32..40, 0u32..6), 1..600),
            stride in prop::sample::select(vec![1u32, 8, 1 << 22, 0x9e37_79b1]),
        ) {
            let mut table = HashIndex::new();
            let mut model = BTreeSet::new();
            for (insert, hash, index) in steps {
                let hash = hash.wrapping_mul(stride);
                if insert {
                    if model.insert((hash, index)) {
                        table.insert(hash, index);
                    }
                } else {
                    prop_assert_eq!(table.remove(hash, index), model.remove(&(hash, index)));
                }
                for at in 0..40u32 {
                    let hash = at.wrapping_mul(stride);
                    for index in 0..6 {
                        prop_assert_eq!(table.find(hash, |found| found == index), model.get(&(hash, index)).map(|(_, index)| *index));
                    }
                    prop_assert_eq!(table.guess(hash).is_some(), model.range((hash, 0)..=(hash, u32::MAX)).next().is_some());
                }
            }
        }
    }

    #[test]
    fn an_empty_table_finds_nothing() {
        let mut table = HashIndex::new();
        assert_eq!((table.guess(7), table.touch(7), table.remove(7, 7)), (None, EMPTY, false));
    }
}
