//! Recording of the state's changes, and the memory that waits until a change is durable.
//!
//! The caller locks the state, makes calls, ends the change with [`MasterState::close_change`], and
//! unlocks the state. It sends no response before the payload is in the kernel, so that a killed
//! process loses nothing that was acknowledged. After a sync of the log, it calls
//! [`MasterState::durable`].

use crate::object::ReplicaRecord;
use crate::object_records::RecordRole;
use crate::planted::{PlantedMistake, is_planted};
use crate::record::buffer::{ClosedChange, RecordBuffer, RepeatedCall};
use crate::record::clock::ChangeTimes;
use crate::record::{MasterRecord, remaining_ms};
use crate::slots::ObjectSlot;
use crate::state::MasterState;
use mcctl_base::Mono;

/// Maximum number of freed ranges that return to their allocators at once.
const RANGES_PER_SLICE: usize = 512;

impl MasterState {
    /// Records all changes from `now` on. `buffer` must continue the numbers of the changes that
    /// the state contains. `waits_for_sync`: the caller sends each response only when its changes
    /// are durable.
    pub fn start_recording(&mut self, now: Mono, mut buffer: RecordBuffer, waits_for_sync: bool) {
        self.complete_records = waits_for_sync;
        buffer.add(&self.process_record(now));
        self.records = Some(buffer);
    }

    /// Records that no more responses will be sent. After this change is durable, the records are
    /// complete.
    pub fn end_recording(&mut self, now: Mono) {
        self.complete_records = true;
        let record = self.process_record(now);
        self.record(&record);
    }

    /// Continues without records, because they can no longer be stored. Memory that waits for its
    /// change becomes available.
    pub fn stop_recording(&mut self) {
        self.records = None;
        self.walk = None;
        self.durable(u64::MAX);
    }

    /// Makes the change of the objects that a record describes, and adds the record to the change
    /// in progress. The record states what follows from the state now; `times` are its times.
    /// Everything else that records describe is changed by the callers of [`record`](Self::record).
    #[inline(always)]
    pub(super) fn commit(&mut self, times: ChangeTimes, record: &MasterRecord<'_>) {
        if let Some(records) = self.records.as_mut() {
            // The encoder gets a copy, so that the record itself need not be in memory if changes
            // are not recorded.
            let copy = *record;
            records.add(&copy);
        }
        self.apply_record(record, &LeaderRole(times));
    }

    /// Adds a record to the change in progress, if changes are recorded. The caller makes the
    /// change.
    #[inline]
    pub(super) fn record(&mut self, record: &MasterRecord<'_>) {
        if let Some(records) = self.records.as_mut() {
            records.add(record);
        }
    }

    /// The record that states how long leases last, whether restored segments are held, and whether
    /// the records are complete.
    pub(super) fn process_record(&self, now: Mono) -> MasterRecord<'static> {
        // Before a restored object's lease has ended, a reader may have a lease that an earlier
        // process granted.
        let lease = self.longest_lease(now);
        let hold_ms = self.open_at.map_or(0, |until| remaining_ms(now, until));
        let lease_ms = remaining_ms(Mono::ZERO, Mono::ZERO + lease);
        MasterRecord::ProcessTerms { lease_ms, hold_ms, complete: self.complete_records }
    }

    /// Ends the change in progress and passes its number and payload to `write`. Returns `None`,
    /// and does not call `write`, if nothing has changed or changes are not recorded.
    pub fn close_change<R>(&mut self, write: impl FnOnce(ClosedChange<'_>) -> R) -> Option<R> {
        self.records.as_mut()?.close(write)
    }

    /// Returns whether a call since the last one that this function returned has repeated an
    /// earlier one. Its response must wait for all changes so far, because the state does not store
    /// which of them is the earlier call's.
    #[inline]
    pub fn take_repeated(&mut self) -> Option<RepeatedCall> {
        self.records.as_mut()?.take_repeated()
    }

    /// Adds a call that repeats an earlier one, if changes are recorded.
    pub(super) fn repeat(&mut self, call: RepeatedCall) {
        if let Some(records) = self.records.as_mut() {
            records.repeat(call);
        }
    }

    /// Records that all changes up to number `sequence` are durable. Memory that they freed becomes
    /// available, most of it in later slices ([`tick`](Self::tick)).
    pub fn durable(&mut self, sequence: u64) {
        self.freed.set_durable(sequence);
        self.reclaim_slice();
    }

    /// Size of the records of the change in progress, in bytes.
    pub(super) fn change_bytes(&self) -> usize {
        self.records.as_ref().map_or(0, RecordBuffer::bytes)
    }

    /// Whether freed memory waits until its change is durable.
    pub fn has_freed_memory_waiting(&self) -> bool {
        self.freed.bytes() > 0
    }

    /// Records that a complete object is removed, replaced or evicted.
    pub(super) fn note_removal(&mut self) {
        if let Some(records) = self.records.as_mut() {
            records.note_removal();
        }
    }

    /// The last change after which responses wait for the removal of the barrier
    /// ([`ClosedChange::needs_barrier`]), or 0.
    pub fn last_barrier_change(&self) -> u64 {
        self.records.as_ref().map_or(0, RecordBuffer::last_barrier)
    }

    /// Sets the barrier of the cluster's sync record. Returns true if it must be removed: a
    /// response waits for that, or the memory that later changes have freed is needed.
    pub fn set_barrier(&mut self, barrier: Option<u64>) -> bool {
        self.barrier = barrier;
        let Some(barrier) = barrier else {
            self.is_freed_awaited = false;
            return false;
        };
        let waiting = self.segments.used() + self.freed.bytes();
        let is_short = self.is_freed_awaited || waiting > self.segments.capacity() / 8 * 7;
        self.last_barrier_change() > barrier || is_short && self.freed.waits_after(barrier)
    }

    /// Returns some durably freed ranges to their allocators. Returns true if there are more.
    pub(super) fn reclaim_slice(&mut self) -> bool {
        for _ in 0..RANGES_PER_SLICE {
            let Some(range) = self.freed.pop_durable() else { return false };
            self.segments.release(range.segment, range.ticket);
        }
        self.freed.is_any_durable()
    }
}

/// A master that serves calls.
struct LeaderRole(ChangeTimes);

impl RecordRole for LeaderRole {
    #[inline(always)]
    fn pin_end(&self, ms: u64) -> Mono {
        self.0.end(ms)
    }

    #[inline(always)]
    fn quarantine_end(&self, ms: u64) -> Mono {
        self.0.end(ms)
    }

    #[inline(always)]
    fn new_group_lease(&self) -> Mono {
        Mono::ZERO
    }

    #[inline(always)]
    fn begin_write(&self, state: &mut MasterState, at: ObjectSlot) {
        state.order.begin_write(&mut state.objects, at, self.0.now());
    }

    #[inline(always)]
    fn begin_rewrite(&self, state: &mut MasterState, at: ObjectSlot) {
        state.order.begin_write(&mut state.objects, at, self.0.now());
    }

    #[inline(always)]
    fn end_write(&self, state: &mut MasterState, at: ObjectSlot) {
        state.order.end_write(&mut state.objects, at, self.0.now());
    }

    #[inline(always)]
    fn unlist(&self, state: &mut MasterState, at: ObjectSlot) {
        state.order.remove(&mut state.objects, at);
    }

    /// Makes the memory available to other objects. If changes are recorded, it is available only
    /// when the change in progress is durable.
    #[inline(always)]
    fn release(&self, state: &mut MasterState, replica: &ReplicaRecord, bytes: u64, is_mounted: bool) {
        let waits = state.records.as_ref().map(RecordBuffer::sequence);
        let waits = waits.filter(|_| !is_planted(PlantedMistake::RangeFreedBeforeItsRecord));
        match waits {
            Some(sequence) if is_mounted => state.freed.add(replica.segment, replica.ticket, bytes, sequence),
            // Without records, or the memory of a removed segment, which has no allocator.
            _ => state.segments.release(replica.segment, replica.ticket),
        }
    }
}
