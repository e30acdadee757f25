//! From a key's hash to its record: slots of 8 bytes, each the hash and the record's index, probed one after the other.
//!
//! The hash beside the index means that a probe touches nothing but the slot's cache line until it is right, and that growing and
//! shrinking chains never look at the records. The table is cut into shards by the hash's upper bits so that growth is cut, too:
//! moving all keys at once would hold the state for tens of milliseconds.

/// Indices by hash. Several may have one hash; who looks tells them apart.
#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Shard]>,
}

#[derive(Debug, Default)]
struct Shard {
    /// A power of two, or none. `EMPTY`, or the hash in the upper half and the index in the lower.
    slots: Vec<u64>,
    len: usize,
}

const SHARD_BITS: u32 = 10;
const EMPTY: u64 = u64::MAX;
const SLOTS_MIN: usize = 8;

fn slot(hash: u32, index: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(index)
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves")]
fn parts(slot: u64) -> (u32, u32) {
    ((slot >> 32) as u32, slot as u32)
}

fn shard(hash: u32) -> usize {
    (hash >> (32 - SHARD_BITS)) as usize
}

impl Table {
    /// Empty.
    pub fn new() -> Table {
        Table { shards: (0..1 << SHARD_BITS).map(|_| Shard::default()).collect() }
    }

    /// The index under `hash` that `is_it` says yes to.
    #[inline]
    pub fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let slots = &self.shards[shard(hash)].slots[..];
        let mask = slots.len().wrapping_sub(1);
        let mut at = hash as usize;
        // A table is never full, so the walk meets an empty slot.
        while let Some(&found) = slots.get(at & mask) {
            if found == EMPTY {
                return None;
            }
            let (other, index) = parts(found);
            if other == hash && is_it(index) {
                return Some(index);
            }
            at += 1;
        }
        None
    }

    /// An index under this hash, if there is one, right or wrong.
    #[inline]
    pub fn guess(&self, hash: u32) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// The content of the slot where the walk for `hash` begins: reading it brings its cache line near.
    #[inline]
    pub fn touch(&self, hash: u32) -> u64 {
        let slots = &self.shards[shard(hash)].slots[..];
        slots.get(hash as usize & slots.len().wrapping_sub(1)).copied().unwrap_or(EMPTY)
    }

    /// Put `index` under `hash`.
    pub fn insert(&mut self, hash: u32, index: u32) {
        let shard = &mut self.shards[shard(hash)];
        if (shard.len + 1) * 5 > shard.slots.len() * 4 {
            shard.grow();
        }
        shard.place(slot(hash, index));
        shard.len += 1;
    }

    /// Take `index` from under `hash`. Was it there?
    pub fn remove(&mut self, hash: u32, index: u32) -> bool {
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
        // Close the gap: a later slot moves into it unless that is before the place where the walk for it begins.
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let moved = shard.slots[at];
            if moved == EMPTY {
                break;
            }
            let home = parts(moved).0 as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
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
    fn place(&mut self, new: u64) {
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
            self.place(kept);
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
        fn it_holds_what_a_set_of_pairs_holds(
            steps in prop::collection::vec((any::<bool>(), 0u32..40, 0u32..6), 1..600),
            stride in prop::sample::select(vec![1u32, 8, 1 << 22, 0x9e37_79b1]),
        ) {
            let mut table = Table::new();
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
        let mut table = Table::new();
        assert_eq!((table.guess(7), table.touch(7), table.remove(7, 7)), (None, EMPTY, false));
    }
}
