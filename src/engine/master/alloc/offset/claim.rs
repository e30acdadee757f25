//! Allocation at given offsets, for a state that repeats the allocations of another master.
//!
//! Such a state finds the free run that contains an offset in an ordered map ([`FreeEnds`]). A
//! master that chooses the offsets itself does not need the map. The blocks and the free runs are
//! the same as if the allocator had chosen the offsets.

use std::collections::BTreeMap;

use crate::alloc::Allocator;
use crate::alloc::offset::{FREE, NIL, OffsetAllocator, Run, rounded};

/// The free runs of an allocator, by the offset at which they end. A block is mostly taken from the
/// start of a run, which does not change the run's end.
#[derive(Debug, Default)]
pub struct FreeEnds(BTreeMap<u64, u32>);

impl FreeEnds {
    /// The free runs of `memory`.
    pub fn of(memory: &OffsetAllocator) -> FreeEnds {
        let runs = 0..memory.runs.len();
        let mut ends: Vec<(u64, u32)> =
            runs.filter(|run| memory.is_listed(*run)).map(|run| (memory.end(run), run)).collect();
        ends.sort_unstable();
        FreeEnds(ends.into_iter().collect())
    }
}

impl OffsetAllocator {
    /// Allocates `bytes` bytes at `offset`, and returns the ticket of the block. Returns `None`,
    /// and changes nothing, if they are not all free.
    pub fn claim(&mut self, free: &mut FreeEnds, offset: u64, bytes: u64) -> Option<u32> {
        let last = offset.checked_add(bytes).filter(|last| bytes > 0 && *last <= self.capacity)?;
        let (end, run) = free.0.range(last..).next().map(|(end, run)| (*end, *run))?;
        let start = self.runs[run].at & !FREE;
        if offset < start {
            return None;
        }
        // The block is as long as `allocate` makes it, unless the free run is shorter.
        let padded = rounded(bytes).and_then(|bytes| offset.checked_add(bytes)).unwrap_or(last);
        let block_end = last.max(padded.min(end));
        self.unlink(run);
        let mut block = run;
        if offset > start {
            block = self.split(run, offset);
            self.link(run);
            free.0.insert(offset, run);
        }
        if block_end < end {
            let rest = self.split(block, block_end);
            self.link(rest);
            free.0.insert(end, rest);
        } else {
            free.0.remove(&end);
        }
        self.used += block_end - offset;
        self.live += 1;
        Some(block)
    }

    /// Frees a block that [`claim`](Self::claim) allocated.
    pub fn release(&mut self, free: &mut FreeEnds, ticket: u32) {
        let Run { at: start, below, above, .. } = self.runs[ticket];
        let merged = if self.is_free(below) { below } else { ticket };
        let end = if self.is_free(above) { self.end(above) } else { self.end(ticket) };
        if merged == below {
            free.0.remove(&start);
        }
        self.free(ticket);
        free.0.insert(end, merged);
    }

    /// Splits a run at `offset`, which lies within it. Returns the upper part.
    fn split(&mut self, run: u32, offset: u64) -> u32 {
        let above = self.runs[run].above;
        let upper = self.record(Run { at: offset, below: run, above, prev: NIL, next: NIL });
        if above != NIL {
            self.runs[above].below = upper;
        }
        self.runs[run].above = upper;
        upper
    }

    /// The offset at which a run ends.
    fn end(&self, run: u32) -> u64 {
        (self.runs[run].at & !FREE) + self.len(run)
    }

    /// Whether a record is a free run. An unused record may look like one.
    fn is_listed(&self, run: u32) -> bool {
        let Run { below, above, .. } = self.runs[run];
        let is_first = below == NIL && self.runs[run].at & !FREE == 0;
        self.is_free(run)
            && (is_first || below != NIL && self.runs[below].above == run)
            && (above == NIL || self.runs[above].below == run)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_free_bytes_within_the_segment_are_allocated() {
        let mut pool = OffsetAllocator::new(1_000);
        let mut free = FreeEnds::of(&pool);
        let block = pool.claim(&mut free, 100, 50);
        assert!(block.is_some());
        for (offset, bytes) in [(100, 1), (99, 2), (149, 1), (149, 10), (90, 100), (999, 2), (0, 0), (u64::MAX, 2)] {
            assert_eq!(pool.claim(&mut free, offset, bytes), None, "{offset} {bytes}");
        }
        assert_eq!((pool.used(), pool.live(), free.0.len()), (50, 1, 2));
        let rest = [pool.claim(&mut free, 0, 100), pool.claim(&mut free, 150, 850)];
        assert!(rest.iter().all(Option::is_some) && free.0.is_empty() && pool.largest_free() == 0);
        [block, rest[0], rest[1]].into_iter().flatten().for_each(|ticket| pool.release(&mut free, ticket));
        assert_eq!((pool.used(), pool.live(), pool.largest_free(), free.0.len()), (0, 0, 1_000, 1));
    }

    proptest! {
        /// The copy frees a block at once, the original some steps later, as a leader does.
        #[test]
        fn a_copy_has_the_blocks_and_the_free_runs_of_the_original(
            capacity in 1u64..100_000,
            steps in prop::collection::vec((1u64..3_000, any::<bool>(), any::<prop::sample::Index>()), 1..200),
        ) {
            let mut original = OffsetAllocator::new(capacity);
            let mut copy = OffsetAllocator::new(capacity);
            let mut free = FreeEnds::of(&copy);
            let mut blocks: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
            let mut waiting = Vec::new();
            for (bytes, is_freed, which) in steps {
                if let Some(block) = original.allocate(bytes) {
                    let ticket = copy.claim(&mut free, block.offset, bytes);
                    prop_assert!(ticket.is_some());
                    blocks.insert(block.offset, (block.ticket, ticket.unwrap_or_default()));
                }
                if is_freed && !blocks.is_empty() {
                    let offset = *blocks.keys().nth(which.index(blocks.len())).expect("an index of a block");
                    let (of_original, of_copy) = blocks.remove(&offset).expect("a block");
                    copy.release(&mut free, of_copy);
                    waiting.push(of_original);
                }
                if waiting.len() > 5 {
                    waiting.drain(..).for_each(|ticket| original.free(ticket));
                }
            }
            waiting.drain(..).for_each(|ticket| original.free(ticket));
            prop_assert_eq!(
                (copy.used(), copy.live(), copy.largest_free()),
                (original.used(), original.live(), original.largest_free())
            );
            let again = FreeEnds::of(&copy);
            prop_assert_eq!(&again.0, &free.0);
            let of_original = FreeEnds::of(&original);
            prop_assert_eq!(free.0.keys().collect::<Vec<_>>(), of_original.0.keys().collect::<Vec<_>>());
        }
    }
}
