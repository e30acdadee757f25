//! Replicas that belong to no object any more but may still be written to: their memory waits before it is used again.

use std::collections::BTreeMap;

use crate::engine::base::Mono;
use crate::engine::master::object::Replica;

/// The waiting replicas, by the time at which they may be freed.
#[derive(Debug, Default)]
pub(super) struct Discards {
    waiting: BTreeMap<(Mono, u64), (Replica, u64)>,
    bytes: u64,
}

impl Discards {
    /// Keep `replica` of `bytes` until `until`.
    pub fn add(&mut self, replica: Replica, bytes: u64, until: Mono) {
        self.bytes += bytes;
        // Replica ids are unique, so no two entries fall together.
        self.waiting.insert((until, replica.id), (replica, bytes));
    }

    /// One whose time has come.
    pub fn pop_due(&mut self, now: Mono) -> Option<(Replica, u64)> {
        let entry = self.waiting.first_entry()?;
        if entry.key().0 > now {
            return None;
        }
        let (replica, bytes) = entry.remove();
        self.bytes -= bytes;
        Some((replica, bytes))
    }

    /// When the next one's time comes.
    pub fn first(&self) -> Option<Mono> {
        self.waiting.keys().next().map(|key| key.0)
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
