//! Replicas that no longer belong to an object but may still be written to. Their memory is
//! quarantined before it is reused.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::ReplicaRecord;
use mcctl_base::Mono;

/// Quarantined replicas, found by id, and ordered by the time at which they may be freed.
#[derive(Debug, Default)]
pub(super) struct Discards {
    by_id: BTreeMap<u64, DiscardedReplica>,
    due: BTreeSet<(Mono, u64)>,
    bytes: u64,
}

/// A quarantined replica and the end of its quarantine.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiscardedReplica {
    pub replica: ReplicaRecord,
    /// Requested size in bytes.
    pub bytes: u64,
    /// When its memory may be freed.
    pub until: Mono,
}

impl Discards {
    /// Quarantines `replica`, which has a size of `bytes` bytes, until `until`. Replica ids are
    /// unique.
    pub(crate) fn add(&mut self, replica: ReplicaRecord, bytes: u64, until: Mono) {
        let before = self.by_id.insert(replica.id, DiscardedReplica { replica, bytes, until });
        debug_assert!(before.is_none(), "a replica is discarded once");
        self.due.insert((until, replica.id));
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The id of a replica that may be freed at `now`.
    pub(crate) fn first_due(&self, now: Mono) -> Option<u64> {
        self.due.first().filter(|(until, _)| *until <= now).map(|(_, id)| *id)
    }

    /// Removes and returns the replica with this id.
    pub(crate) fn remove(&mut self, id: u64) -> Option<DiscardedReplica> {
        let discarded = self.by_id.remove(&id)?;
        self.due.remove(&(discarded.until, id));
        self.bytes = self.bytes.saturating_sub(discarded.bytes);
        Some(discarded)
    }

    /// Returns true if a replica with this id is quarantined.
    pub(crate) fn contains(&self, id: u64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// All quarantined replicas, in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &DiscardedReplica> {
        self.by_id.values()
    }

    /// Sets the allocator ticket of the replica with this id.
    pub(crate) fn set_ticket(&mut self, id: u64, ticket: u32) {
        if let Some(discarded) = self.by_id.get_mut(&id) {
            discarded.replica.ticket = ticket;
        }
    }

    /// The time at which the next replica may be freed.
    pub(crate) fn first(&self) -> Option<Mono> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Returns the total number of quarantined bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
