//! Memory that a change has freed and that must not be handed out before the change is durable.
//!
//! If the host loses power, the last changes may be missing from the log. After the restart, an
//! object whose removal is missing exists again. Its memory must still contain its bytes, so no
//! other object may have received that memory.

use std::collections::VecDeque;

use crate::slots::SegmentSlot;

/// Freed ranges that wait for their changes, oldest first.
#[derive(Debug, Default)]
pub(super) struct FreedRanges {
    waiting: VecDeque<FreedRange>,
    /// All changes up to this number are durable.
    durable: u64,
    /// Requested size of the waiting ranges, in bytes.
    bytes: u64,
}

/// A range that belongs to no object.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreedRange {
    pub segment: SegmentSlot,
    /// The range's ticket in the segment's allocator.
    pub ticket: u32,
    bytes: u64,
    /// The change that freed it.
    sequence: u64,
}

impl FreedRanges {
    /// Adds a range of `bytes` bytes that change number `sequence` freed. The number must not be
    /// lower than that of the last range.
    pub(crate) fn add(&mut self, segment: SegmentSlot, ticket: u32, bytes: u64, sequence: u64) {
        self.bytes += bytes;
        self.waiting.push_back(FreedRange { segment, ticket, bytes, sequence });
    }

    /// Records that all changes up to `sequence` are durable.
    pub(crate) fn set_durable(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence);
    }

    /// Returns true if a range may return to its allocator.
    pub(crate) fn is_any_durable(&self) -> bool {
        self.waiting.front().is_some_and(|range| range.sequence <= self.durable)
    }

    /// Removes and returns the oldest range, if its change is durable.
    pub(crate) fn pop_durable(&mut self) -> Option<FreedRange> {
        let range = *self.waiting.front().filter(|range| range.sequence <= self.durable)?;
        self.waiting.pop_front();
        self.bytes -= range.bytes;
        Some(range)
    }

    /// Whether ranges wait, and all of them for changes after `limit`.
    pub(crate) fn waits_after(&self, limit: u64) -> bool {
        self.waiting.front().is_some_and(|range| range.sequence > limit)
    }

    /// Total size of the waiting ranges, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_return_in_order_once_their_change_is_durable() {
        let mut freed = FreedRanges::default();
        for (ticket, sequence) in [(1, 5), (2, 5), (3, 6)] {
            freed.add(SegmentSlot(0), ticket, 10, sequence);
        }
        let pop = |freed: &mut FreedRanges| freed.pop_durable().map(|range| range.ticket);
        assert_eq!((pop(&mut freed), freed.is_any_durable()), (None, false));
        freed.set_durable(5);
        freed.set_durable(4);
        assert_eq!((pop(&mut freed), pop(&mut freed), pop(&mut freed)), (Some(1), Some(2), None));
        assert_eq!(freed.bytes(), 10);
        freed.set_durable(6);
        assert_eq!((pop(&mut freed), freed.bytes()), (Some(3), 0));
    }
}
