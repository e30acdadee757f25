//! Builds an offset allocator from the ranges that are in use, for a state that was read from disk.

use crate::alloc::offset::{NIL, OffsetAllocator, Run, rounded};

/// A range of a segment that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedRange {
    /// Offset of the first byte in the segment.
    pub offset: u64,
    /// Requested size in bytes.
    pub bytes: u64,
}

/// Why ranges cannot be the allocated blocks of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("the range of {bytes} bytes at offset {offset} is empty or outside the segment of {capacity} bytes")]
    Outside { offset: u64, bytes: u64, capacity: u64 },
    /// Also reported if the ranges are not in ascending order.
    #[error("the range at offset {offset} overlaps the range before it, which ends at {previous_end}")]
    Overlap { offset: u64, previous_end: u64 },
}

impl OffsetAllocator {
    /// Creates an allocator for `capacity` bytes in which the ranges `used` are allocated. The
    /// ranges are in ascending order. Also returns the ticket of each range, in the same order.
    ///
    /// # Errors
    /// Two ranges overlap, or a range is empty or outside the segment.
    ///
    /// # Panics
    /// If `capacity` is 2^63 or more, like [`OffsetAllocator::new`].
    pub fn rebuild(capacity: u64, used: &[UsedRange]) -> Result<(OffsetAllocator, Vec<u32>), RangeError> {
        let mut this = OffsetAllocator::without_runs(capacity);
        let mut tickets = Vec::with_capacity(used.len());
        let mut free = Vec::new();
        let mut end = 0;
        let mut below = NIL;
        for (nth, range) in used.iter().enumerate() {
            let UsedRange { offset, bytes } = *range;
            let last = offset.checked_add(bytes).filter(|last| bytes > 0 && *last <= capacity);
            let last = last.ok_or(RangeError::Outside { offset, bytes, capacity })?;
            if offset < end {
                return Err(RangeError::Overlap { offset, previous_end: end });
            }
            if offset > end {
                below = this.add_run(end, below);
                free.push(below);
            }
            below = this.add_run(offset, below);
            tickets.push(below);
            // The block is as long as `allocate` makes it, unless a later block or the end of the
            // segment leaves less.
            let limit = used.get(nth + 1).map_or(capacity, |next| next.offset.min(capacity));
            let padded = rounded(bytes).and_then(|bytes| offset.checked_add(bytes)).unwrap_or(last);
            end = last.max(padded.min(limit));
            this.used += end - offset;
            this.live += 1;
        }
        if end < capacity {
            free.push(this.add_run(end, below));
        }
        // A bin returns the run that was linked last first. The lowest addresses come first, as in
        // an allocator that was never full.
        free.into_iter().rev().for_each(|run| this.link(run));
        Ok((this, tickets))
    }

    /// Appends a run that begins at `at`, above the run `below`.
    fn add_run(&mut self, at: u64, below: u32) -> u32 {
        let run = self.record(Run { at, below, above: NIL, prev: NIL, next: NIL });
        if below != NIL {
            self.runs[below].above = run;
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::alloc::{Allocator, Block};

    fn range(offset: u64, bytes: u64) -> UsedRange {
        UsedRange { offset, bytes }
    }

    #[test]
    fn ranges_that_overlap_or_leave_the_segment_are_refused() {
        let refused = |used: &[UsedRange]| OffsetAllocator::rebuild(1_000, used).err();
        assert_eq!(refused(&[range(0, 10), range(9, 5)]), Some(RangeError::Overlap { offset: 9, previous_end: 10 }));
        assert_eq!(
            refused(&[range(500, 10), range(0, 10)]),
            Some(RangeError::Overlap { offset: 0, previous_end: 510 })
        );
        let outside = |offset, bytes| Some(RangeError::Outside { offset, bytes, capacity: 1_000 });
        assert_eq!(refused(&[range(999, 2)]), outside(999, 2));
        assert_eq!(refused(&[range(u64::MAX, 2)]), outside(u64::MAX, 2));
        assert_eq!(refused(&[range(3, 0)]), outside(3, 0));
        assert_eq!(refused(&[range(0, 1_000)]), None);
    }

    #[test]
    fn the_rest_of_the_segment_is_free() {
        let (mut pool, tickets) = OffsetAllocator::rebuild(1_000, &[range(100, 50), range(200, 300)]).expect("valid");
        assert_eq!((pool.used(), pool.live(), pool.largest_free()), (350, 2, 500));
        assert_eq!(pool.allocate(500).map(|block| block.offset), None, "500 is rounded up to 504");
        assert_eq!(pool.allocate(399).map(|block| block.offset), Some(500));
        tickets.into_iter().for_each(|ticket| pool.free(ticket));
        assert_eq!(pool.largest_free(), 500);
    }

    proptest! {
        #[test]
        fn a_rebuilt_allocator_has_the_same_free_runs(
            capacity in 1u64..200_000,
            sizes in prop::collection::vec(1u64..3_000, 1..80),
            freed in prop::collection::vec(any::<bool>(), 80),
        ) {
            let mut pool = OffsetAllocator::new(capacity);
            let blocks: Vec<(Block, u64)> =
                sizes.into_iter().filter_map(|bytes| Some((pool.allocate(bytes)?, bytes))).collect();
            let mut used = Vec::new();
            for ((block, bytes), freed) in blocks.into_iter().zip(freed) {
                if freed {
                    pool.free(block.ticket);
                } else {
                    used.push(range(block.offset, bytes));
                }
            }
            used.sort_unstable_by_key(|range| range.offset);
            let (mut rebuilt, tickets) = OffsetAllocator::rebuild(capacity, &used).expect("blocks of an allocator");
            prop_assert_eq!(
                (rebuilt.used(), rebuilt.live(), rebuilt.largest_free()),
                (pool.used(), pool.live(), pool.largest_free())
            );
            while let Some(block) = rebuilt.allocate(100) {
                let overlaps = used.iter().any(|old| block.offset < old.offset + old.bytes && old.offset < block.offset + 100);
                prop_assert!(!overlaps);
                used.push(range(block.offset, 100));
            }
            prop_assert_eq!(rebuilt.live() as usize, used.len());
            for ticket in tickets {
                rebuilt.free(ticket);
            }
        }
    }
}
