//! Replicas that no longer belong to an object but may still be written to. Their memory is quarantined before it is reused.

use std::collections::BTreeMap;

use crate::engine::base::Mono;
use crate::engine::master::object::ReplicaRecord;

/// Quarantined replicas, ordered by the time at which they may be freed.
#[derive(Debug, Default)]
pub(super) struct Discards {
    waiting: BTreeMap<(Mono, u64), (ReplicaRecord, u64)>,
    bytes: u64,
}

impl Discards {
    /// Quarantines `replica`, which has a size of `bytes` bytes, until `until`.
    pub fn add(&mut self, replica: ReplicaRecord, bytes: u64, until: Mono) {
        self.bytes += bytes;
        // Replica ids are unique, so no two entries have the same key.
        self.waiting.insert((until, replica.id), (replica, bytes));
    }

    /// Removes and returns a replica that may be freed now.
    pub fn pop_due(&mut self, now: Mono) -> Option<(ReplicaRecord, u64)> {
        let entry = self.waiting.first_entry()?;
        if entry.key().0 > now {
            return None;
        }
        let (replica, bytes) = entry.remove();
        self.bytes -= bytes;
        Some((replica, bytes))
    }

    /// The time at which the next replica may be freed.
    pub fn first(&self) -> Option<Mono> {
        self.waiting.keys().next().map(|key| key.0)
    }

    /// Returns the total number of quarantined bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
