//! The bytes in the clients' segments.

use std::collections::BTreeMap;

use super::operation::VALUE;

/// A value: the key that it was written for, and the number of the write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredValue {
    pub key: String,
    pub write: u32,
}

/// The number of the segment of an address.
pub(super) fn segment_of(at: u64) -> u64 {
    at >> 40
}

/// The values in memory, by the address at which they begin.
#[derive(Default)]
pub(super) struct Memory(BTreeMap<u64, StoredValue>);

impl Memory {
    /// Writes a value. Values that it overlaps are lost.
    pub(super) fn write(&mut self, at: u64, value: StoredValue) {
        let overlapping = self.0.range(at.saturating_sub(VALUE - 1)..at + VALUE).map(|(start, _)| *start);
        for start in overlapping.collect::<Vec<u64>>() {
            self.0.remove(&start);
        }
        self.0.insert(at, value);
    }

    /// The value that begins at an address; `None` if a later write has overlapped it.
    pub(super) fn read(&self, at: u64) -> Option<&StoredValue> {
        self.0.get(&at)
    }
}
