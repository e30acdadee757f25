//! The progress of a snapshot: which objects have been saved, and the saved bytes.
//!
//! A snapshot visits the object slots in order, a slice at a time, while the state changes. Before
//! an object changes that has not been visited, its image is saved. The result is the state at the
//! moment at which the snapshot began.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::discard::DiscardedReplica;
use crate::record::payload::PayloadWriter;
use crate::record::{DataFormat, MasterRecord};
use crate::slots::ObjectSlot;
use mcctl_base::Mono;

/// Size at which a chunk is complete, in bytes. A chunk is larger by at most the records of one
/// slice.
const CHUNK_BYTES: usize = 48 << 10;

/// A snapshot in progress.
#[derive(Debug)]
pub(super) struct SnapshotWalk {
    /// When the snapshot began. Durations in it count from then.
    pub begun: Mono,
    /// The next slot to visit.
    pub next: u32,
    /// Number of slots when the snapshot began. Later slots do not belong to it.
    pub end: u32,
    /// The quarantined replicas when the snapshot began that have not been saved yet.
    pub discards: Vec<DiscardedReplica>,
    /// The metadata service's records when the snapshot began that have not been saved yet, the
    /// last one first.
    pub metadata: Vec<(Bytes, Bytes)>,
    /// A bit per slot: it was saved, or was free, before it changed.
    claimed: Vec<u64>,
    /// The chunk that is being filled.
    chunk: PayloadWriter,
    complete: VecDeque<Vec<u8>>,
    /// The digest of what has been saved so far.
    pub digest: u64,
    /// Number of objects saved so far.
    pub objects: u64,
}

impl SnapshotWalk {
    /// Starts a snapshot of a table with `slots` slots.
    pub(crate) fn new(format: DataFormat, begun: Mono, slots: u32) -> SnapshotWalk {
        SnapshotWalk {
            begun,
            next: 0,
            end: slots,
            discards: Vec::new(),
            metadata: Vec::new(),
            claimed: vec![0; (slots as usize).div_ceil(64)],
            chunk: PayloadWriter::new(format),
            complete: VecDeque::new(),
            digest: 0,
            objects: 0,
        }
    }

    /// Marks a slot that is about to change. Returns true if its object, if it has one, must be
    /// saved first.
    pub(crate) fn claim(&mut self, at: ObjectSlot) -> bool {
        if at.0 < self.next || at.0 >= self.end {
            return false;
        }
        let word = &mut self.claimed[at.0 as usize / 64];
        let bit = 1 << (at.0 % 64);
        let is_first = *word & bit == 0;
        *word |= bit;
        is_first
    }

    /// Returns true if the slot was marked before the snapshot reached it.
    pub(crate) fn is_claimed(&self, at: ObjectSlot) -> bool {
        self.claimed.get(at.0 as usize / 64).is_some_and(|word| word & 1 << (at.0 % 64) != 0)
    }

    /// Appends a record to the chunk.
    pub(crate) fn add(&mut self, record: &MasterRecord<'_>) {
        self.chunk.add(record);
        if self.chunk.bytes().len() >= CHUNK_BYTES {
            self.complete.push_back(self.chunk.take());
        }
    }

    /// Returns true if a chunk is complete.
    pub(crate) fn has_chunk(&self) -> bool {
        !self.complete.is_empty()
    }

    /// Removes and returns a complete chunk. With `last`, also returns the chunk that is being
    /// filled, unless it is empty.
    pub(crate) fn pop_chunk(&mut self, last: bool) -> Option<Vec<u8>> {
        let complete = self.complete.pop_front();
        if complete.is_none() && last && !self.chunk.bytes().is_empty() {
            return Some(self.chunk.take());
        }
        complete
    }
}
