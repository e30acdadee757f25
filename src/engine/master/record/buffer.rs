//! Collects the records of a change until the change is complete.

use crate::record::payload::PayloadWriter;
use crate::record::{DataFormat, MasterRecord};

/// The records of the change in progress. A master without one records nothing.
///
/// A change is everything that happens while the state is locked once. Its number is assigned when
/// it begins, because memory that it frees waits until the change with this number is durable.
#[derive(Debug)]
pub struct RecordBuffer {
    /// Empty if nothing has changed.
    payload: PayloadWriter,
    /// The number of the change in progress.
    sequence: u64,
    needs_sync: bool,
    needs_standby: bool,
    /// The change has removed or replaced a complete object, or evicted it.
    removes: bool,
    /// The last change that removes, replaces or evicts an object, or after which a client
    /// overwrites memory ([`ClosedChange::needs_barrier`]); 0 if there was none.
    last_barrier: u64,
    repeated: Option<RepeatedCall>,
}

/// A call that changes nothing, because an earlier one has made its change. That change may not be
/// durable, and its caller may not have a response yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatedCall {
    /// The earlier change must be durable, in every mode, before the caller gets a response
    /// ([`ClosedChange::needs_sync`]).
    pub needs_sync: bool,
    /// In a cluster, the required standbys must have it, in every mode
    /// ([`ClosedChange::needs_standby`]).
    pub needs_standby: bool,
}

/// A complete change, to be appended to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedChange<'a> {
    /// One more than the number of the change before it.
    pub sequence: u64,
    pub payload: &'a [u8],
    /// The change must be durable, in every mode, before its caller gets a response.
    ///
    /// Some changes permit their callers to overwrite memory that a restart without the record
    /// would show to readers. A client reuses the memory of a segment once the master has unmounted
    /// it. An upsert in place overwrites the memory of a complete object. The first change of a
    /// process states how long its leases last, and the last one that the records are complete.
    pub needs_sync: bool,
    /// In a cluster: the required standbys must have the change, in every mode, before its caller
    /// gets a response. It hands out or frees memory, so a master that is elected without it could
    /// give the same memory to another object.
    pub needs_standby: bool,
    /// In a cluster: the sync record must have no barrier before this change, in every mode, before
    /// the caller gets a response; 0 if it may have one. This is the last change of those so far
    /// that remove, replace or evict an object, or after which a client overwrites memory. A master
    /// that is promoted without it, and keeps its objects, would show overwritten memory, or an
    /// object that is no longer the key's. So the start of a put waits, too: its key may be one
    /// that was evicted.
    pub needs_barrier: u64,
}

impl RecordBuffer {
    /// Creates an empty buffer that writes `format`. `sequence` is the number of the next change:
    /// one more than the last change that the state contains.
    pub fn new(format: DataFormat, sequence: u64) -> RecordBuffer {
        let payload = PayloadWriter::new(format);
        RecordBuffer {
            payload,
            sequence,
            needs_sync: false,
            needs_standby: false,
            removes: false,
            last_barrier: 0,
            repeated: None,
        }
    }

    /// Adds a record to the change in progress.
    #[inline]
    pub(crate) fn add(&mut self, record: &MasterRecord<'_>) {
        self.needs_sync |= matches!(
            record,
            MasterRecord::SegmentMounted { .. }
                | MasterRecord::SegmentClosed { .. }
                | MasterRecord::SegmentRetired { .. }
                | MasterRecord::ObjectRewritten { .. }
                | MasterRecord::ProcessTerms { .. }
        );
        self.needs_standby |= !matches!(
            record,
            MasterRecord::ObjectCompleted { .. }
                | MasterRecord::ClientMarked { .. }
                | MasterRecord::SegmentHoldEnded { .. }
                | MasterRecord::HoldEnded
        );
        self.payload.add(record);
    }

    /// Records that the change in progress removes, replaces or evicts a complete object.
    pub(crate) fn note_removal(&mut self) {
        self.removes = true;
    }

    /// The last change of those that [`ClosedChange::needs_barrier`] describes, or 0.
    pub(crate) fn last_barrier(&self) -> u64 {
        self.last_barrier
    }

    /// Adds a call that repeats an earlier one.
    pub(crate) fn repeat(&mut self, call: RepeatedCall) {
        let before = self.repeated.unwrap_or(RepeatedCall { needs_sync: false, needs_standby: false });
        self.repeated = Some(RepeatedCall {
            needs_sync: before.needs_sync || call.needs_sync,
            needs_standby: before.needs_standby || call.needs_standby,
        });
    }

    /// Returns whether a call was repeated since the last one that this function returned.
    #[inline]
    pub(crate) fn take_repeated(&mut self) -> Option<RepeatedCall> {
        self.repeated.take()
    }

    /// The number of the change in progress.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Size of the change in progress, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.payload.bytes().len()
    }

    /// The records of the change in progress.
    #[cfg(test)]
    pub(crate) fn payload(&self) -> &[u8] {
        self.payload.bytes()
    }

    /// Returns true if nothing has changed since the last change was closed.
    pub(crate) fn is_empty(&self) -> bool {
        self.payload.bytes().is_empty()
    }

    /// Ends the change and passes it to `write`. Returns `None`, and does not call `write`, if
    /// nothing has changed.
    pub(crate) fn close<R>(&mut self, write: impl FnOnce(ClosedChange<'_>) -> R) -> Option<R> {
        if self.is_empty() {
            return None;
        }
        if self.needs_sync || self.removes {
            self.last_barrier = self.sequence;
        }
        let change = ClosedChange {
            sequence: self.sequence,
            payload: self.payload.bytes(),
            needs_sync: self.needs_sync,
            needs_standby: self.needs_standby,
            needs_barrier: if self.needs_standby { self.last_barrier } else { 0 },
        };
        let result = write(change);
        // A batch may have made the buffer large.
        self.payload.clear(PAYLOAD_KEPT);
        self.needs_sync = false;
        self.needs_standby = false;
        self.removes = false;
        self.sequence += 1;
        Some(result)
    }
}

/// Memory that the buffer keeps for the next change, in bytes.
const PAYLOAD_KEPT: usize = 64 << 10;
