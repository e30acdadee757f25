//! Turns a state that was loaded into one that follows another master or serves calls: builds
//! allocators, eviction order and lists of free slots. A state that follows has them, so that it
//! serves in a time that does not depend on the number of objects.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::alloc::{OffsetAllocator, RangeError, UsedRange};
use crate::apply::StandbyState;
use crate::eviction::index::EvictionIndex;
use crate::planted::{PlantedMistake, is_planted};
use crate::slots::{ObjectSlot, SegmentSlot};
use crate::state::MasterState;
use mcctl_base::{Mono, SegmentId};

/// Why a restored state cannot serve calls. The data is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    #[error("memory of segment {segment} belongs to two objects, or is outside of it: {source}")]
    Ranges { segment: SegmentId, source: RangeError },
}

/// What a restored state contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Number of objects, including unfinished writes.
    pub objects: u64,
    /// Number of unfinished writes.
    pub writing: u64,
    pub segments: u64,
    pub clients: u64,
}

/// A range in use, and to what it belongs.
#[derive(Clone, Copy, Debug)]
struct RestoredRange {
    range: UsedRange,
    holder: RangeHolder,
}

#[derive(Clone, Copy, Debug)]
enum RangeHolder {
    /// The replica of an object with this position.
    Object(ObjectSlot, u32),
    /// A quarantined replica with this id.
    Discard(u64),
}

impl StandbyState {
    /// Prepares the state to follow another master: from now on, it keeps everything that it needs
    /// to serve. Takes as long as a sort of all objects, and no time if it follows already.
    /// Unfinished writes count as started at `now`.
    ///
    /// # Errors
    /// Two objects have the same memory, or an object's memory is outside its segment.
    pub fn follow(&mut self, now: Mono) -> Result<(), RestoreError> {
        if !self.follows {
            self.build(now)?;
            self.state.segments.index_free_runs();
            self.follows = true;
        }
        self.state.objects.set_any_slot_next(true);
        Ok(())
    }

    /// Builds what a state lacks that was loaded.
    fn build(&mut self, now: Mono) -> Result<(), RestoreError> {
        let step = || {
            self.progress.fetch_add(1, Ordering::Relaxed);
        };
        rebuild_memory(&mut self.state, step)?;
        rebuild_order(&mut self.state, now, step);
        self.state.objects.relink_free_slots();
        Ok(())
    }

    /// Starts to serve calls at `now`. The applied records must be durable, because the memory that
    /// they freed is available at once: sync the log first.
    ///
    /// No client is confirmed (see `confirm`). Every object counts as leased for one default lease,
    /// or for that of the process before if it was longer, because readers may have leases.
    /// Unfinished writes count as started now.
    ///
    /// Restored segments accept no new objects for `hold`. Pass zero if the records contain
    /// everything that was acknowledged. After a loss of power, the last records may be missing,
    /// and clients may still read or write memory that is free according to the others. Pass a time
    /// after which they have ended: at least the lease, and as long as a write may take. The hold
    /// is recorded, so another restart does not end it.
    ///
    /// # Errors
    /// Two objects have the same memory, or an object's memory is outside its segment.
    pub fn activate(self, now: Mono, hold: Duration) -> Result<(MasterState, RestoreReport), RestoreError> {
        self.activate_behind(now, hold, Duration::ZERO)
    }

    /// Like [`activate`](Self::activate), if another master may grant leases for `stale` from now
    /// on.
    ///
    /// # Errors
    /// Same as [`activate`](Self::activate).
    pub fn activate_behind(
        mut self,
        now: Mono,
        hold: Duration,
        stale: Duration,
    ) -> Result<(MasterState, RestoreReport), RestoreError> {
        if !self.follows {
            self.build(now)?;
        }
        let condemned = self.condemned();
        let StandbyState { mut state, .. } = self;
        state.condemned = condemned.into();
        state.segments.relink_free_slots();
        state.objects.set_any_slot_next(false);
        state.earlier_lease = state.earlier_lease.max(state.policy.lease_ttl);
        let lease = now + state.earlier_lease + stale;
        state.earlier_leases_until = lease;
        let lease = if is_planted(PlantedMistake::LeaseAssumedEnded) { now } else { lease };
        state.order.extend_restored_leases(lease);
        let deadline = now + state.policy.client_ttl;
        state.clients.restore_all(deadline);
        state.confirm_until = Some(deadline);
        state.expect_clients(now);
        let hold = (!hold.is_zero()).then(|| now + hold);
        state.open_at = state.open_at.max(hold);
        // Some objects may be on segments that have been removed.
        state.sweep_left = state.objects.slots();
        let mounted = (0..state.segments.slots()).filter(|slot| state.segments.get(SegmentSlot(*slot)).is_some());
        let report = RestoreReport {
            objects: u64::from(state.objects.len()),
            writing: u64::from(state.order.writes()),
            segments: mounted.count() as u64,
            clients: state.clients.len() as u64,
        };
        Ok((state, report))
    }
}

/// Number of objects between two reports of progress.
const SLOTS_PER_STEP: u32 = 1 << 16;

/// Number of restored writes that are discarded per change.
const WRITES_PER_CHANGE: usize = 4096;

impl MasterState {
    /// Another master may have granted leases until now. Every restored object counts as leased
    /// until `until` at least.
    pub fn assume_leases(&mut self, until: Mono) {
        self.earlier_leases_until = self.earlier_leases_until.max(until);
        self.order.extend_restored_leases(until);
    }

    /// Takes what only a state that follows another master needs. Dropping it may take long.
    pub fn take_following(&mut self) -> impl Send + use<> {
        self.segments.take_free_ends()
    }

    /// The longest lease that an earlier master granted.
    pub fn earlier_lease(&self) -> Duration {
        self.earlier_lease
    }

    /// Discards some unfinished writes of a restored state, and quarantines their memory. Returns
    /// true if there are more.
    ///
    /// For use if the last changes may be missing. The client of such a write may have revoked it
    /// and started another one of the same key, to other memory. The end of that write would
    /// complete this one, whose memory may contain any bytes.
    pub fn discard_restored_writes(&mut self, now: Mono) -> bool {
        for _ in 0..WRITES_PER_CHANGE {
            let Some(at) = self.order.first_writing() else { return false };
            self.discard(at, now, now + self.policy.put_release_after);
        }
        true
    }
}

/// Builds the allocators of all segments from the objects and the quarantined replicas.
///
/// Calls `step` from time to time.
fn rebuild_memory(state: &mut MasterState, step: impl Fn()) -> Result<(), RestoreError> {
    let mut by_segment: Vec<Vec<RestoredRange>> = Vec::new();
    by_segment.resize_with(state.segments.slots() as usize, Vec::new);
    let mut add = |segment: SegmentSlot, offset: u64, bytes: u64, holder: RangeHolder| {
        by_segment[segment.index()].push(RestoredRange { range: UsedRange { offset, bytes }, holder });
    };
    for at in (0..state.objects.slots()).map(ObjectSlot) {
        if at.0 % SLOTS_PER_STEP == 0 {
            step();
        }
        let Some(object) = state.objects.get(at) else { continue };
        for (nth, replica) in (0..).zip(object.replicas()) {
            add(replica.segment, replica.offset, object.size, RangeHolder::Object(at, nth));
        }
    }
    for discarded in state.discards.iter() {
        let replica = &discarded.replica;
        add(replica.segment, replica.offset, discarded.bytes, RangeHolder::Discard(replica.id));
    }
    let MasterState { segments, objects, discards, .. } = &mut *state;
    let rebuilt = segments.rebuild_memory(|slot, size| -> Result<OffsetAllocator, (SegmentSlot, RangeError)> {
        step();
        let mut ranges = std::mem::take(&mut by_segment[slot.index()]);
        ranges.sort_unstable_by_key(|range| range.range.offset);
        let used: Vec<UsedRange> = ranges.iter().map(|range| range.range).collect();
        let (memory, tickets) = OffsetAllocator::rebuild(size, &used).map_err(|error| (slot, error))?;
        for (range, ticket) in ranges.into_iter().zip(tickets) {
            match range.holder {
                RangeHolder::Object(at, nth) => {
                    if let Some(replica) = objects[at].replicas_mut().nth(nth as usize) {
                        replica.ticket = ticket;
                    }
                }
                RangeHolder::Discard(id) => discards.set_ticket(id, ticket),
            }
        }
        Ok(memory)
    });
    rebuilt.map_err(|(slot, source)| RestoreError::Ranges {
        segment: state.segments.get(slot).map(|mounted| mounted.segment.id).unwrap_or_default(),
        source,
    })
}

/// Inserts all objects into a new eviction order: those that were used last are evicted last. Calls
/// `step` from time to time.
fn rebuild_order(state: &mut MasterState, now: Mono, step: impl Fn()) {
    state.order = EvictionIndex::new(state.policy.eviction_policy);
    let mut by_use: Vec<(Mono, ObjectSlot)> = Vec::with_capacity(state.objects.len() as usize);
    for at in (0..state.objects.slots()).map(ObjectSlot) {
        let Some(object) = state.objects.get(at) else { continue };
        by_use.push((object.eviction.lease_until(), at));
    }
    by_use.sort_unstable();
    for (nth, (_, at)) in by_use.into_iter().enumerate() {
        if nth % SLOTS_PER_STEP as usize == 0 {
            step();
        }
        state.order.restore(&mut state.objects, at, now);
    }
}
