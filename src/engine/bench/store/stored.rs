//! Tracks which objects several clients have put: all objects before the first put that is still in
//! progress. Performs no I/O.

use std::collections::BTreeMap;
use std::ops::Range;

/// Completed puts as a prefix, plus ranges beyond it.
#[derive(Debug)]
pub(super) struct StoredPrefix {
    first: u32,
    /// Ranges beyond the prefix, by start index. Adjacent ranges are merged, so there are fewer
    /// ranges than clients.
    ahead: BTreeMap<u32, u32>,
}

impl StoredPrefix {
    /// Creates a tracker with the first `first` objects already stored.
    pub(super) fn new(first: u32) -> StoredPrefix {
        StoredPrefix { first, ahead: BTreeMap::new() }
    }

    /// Returns N such that the first N objects are stored.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// Marks `objects` as stored.
    pub(super) fn add(&mut self, objects: Range<u32>) {
        let mut from = objects.start;
        let mut to = objects.end;
        if let Some((start, _)) = self.ahead.range(..=from).next_back().filter(|(_, end)| **end == from) {
            from = *start;
        }
        if let Some(end) = self.ahead.remove(&to) {
            to = end;
        }
        self.ahead.insert(from, to);
        while let Some(end) = self.ahead.remove(&self.first) {
            self.first = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_in_progress_holds_back_later_ones() {
        let mut stored = StoredPrefix::new(8);
        stored.add(12..16);
        stored.add(20..24);
        stored.add(16..20);
        assert_eq!((stored.first(), stored.ahead.len()), (8, 1), "8 to 11 are in progress");
        stored.add(8..12);
        assert_eq!((stored.first(), stored.ahead.len()), (24, 0));
        stored.add(24..25);
        assert_eq!(stored.first(), 25);
    }
}
