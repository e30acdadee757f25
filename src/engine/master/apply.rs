//! Applying records: a state that repeats the changes that another master decided.
//!
//! Such a state serves no calls. While it is loaded from a snapshot or a log, it has no allocated
//! memory, no eviction order and no list of free slots: `restore` builds them at the end, from the
//! objects alone. A state that follows another master has them, and changes them with each record,
//! so that it can serve at once ([`StandbyState::follow`]). It checks each record against the
//! state, because a record that does not fit means that the data is damaged.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::client::CLIENTS_MAX;
use crate::config::StorePolicy;
use crate::digest::unkept_digest;
use crate::mount::check_segment;
use crate::object::{OBJECTS_MAX, ReplicaRecord};
use crate::object_records::RecordRole;
use crate::record::clock::RecordClock;
use crate::record::codec::{RecordError, RecordProblem};
use crate::record::{DATA_FORMAT_NEWEST, DataFormat, MasterRecord, SegmentContent, read_payload};
use crate::segment::SEGMENTS_MAX;
use crate::slots::{ObjectSlot, SegmentSlot};
use crate::snapshot::SnapshotStep;
use crate::snapshot_walk::SnapshotWalk;
use crate::state::MasterState;
use mcctl_base::{ClientId, Mono};
use mcctl_election::ha::message::DigestPart;
use mcctl_election::ha::planted::{HaMistake, is_planted};
use mcctl_metadata::change::MetadataChange;
use mcctl_metadata::records::SharedTable;
use mcctl_wire::types::SegmentStatus;

/// Why a payload cannot be applied. The state may then contain some of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("unknown kind of chunk {0}")]
    UnknownChunk(u8),
    #[error("object slot {0} is in use")]
    ObjectSlotInUse(u32),
    #[error("object slot {0} is empty")]
    NoObject(u32),
    #[error("object slot {0} is beyond the end of the table")]
    ObjectSlotTooHigh(u32),
    #[error("the key of object slot {0} exists in another slot, is empty or is too long")]
    BadKey(u32),
    #[error("object slot {slot} has a replica that segment slot {segment} cannot contain")]
    BadReplica { slot: u32, segment: u32 },
    #[error("object slot {0} keeps a replica that it does not have")]
    UnknownReplica(u32),
    #[error("object slot {0} has no write in progress")]
    NotWriting(u32),
    #[error("object slot {0} has a write in progress")]
    Writing(u32),
    #[error("segment slot {0} or the segment's id is in use, or the description is invalid")]
    BadSegment(u32),
    #[error("segment slot {0} has no segment")]
    NoSegment(u32),
    #[error("client {0} does not exist")]
    NoClient(ClientId),
    #[error("too many clients")]
    TooManyClients,
    #[error("replica {0} is discarded twice, or released without having been discarded")]
    BadDiscard(u64),
    #[error("a record of the metadata service that does not exist is removed")]
    NoMetadataRecord,
    #[error("tables of {objects} objects and {segments} segments are too large, or smaller than before")]
    BadSizes { objects: u32, segments: u32 },
}

impl ApplyError {
    /// Whether the data may be valid for another version of this program.
    pub fn is_of_another_version(&self) -> bool {
        let unknown =
            |problem: &RecordProblem| matches!(problem, RecordProblem::UnknownFormat(_) | RecordProblem::UnknownTag(_));
        match self {
            ApplyError::UnknownChunk(_) => true,
            ApplyError::Record(error) => unknown(&error.problem),
            _ => false,
        }
    }
}

/// A master's state that is read from a snapshot and records, or follows another master's records.
/// It serves no calls.
///
/// Apply a snapshot's chunks first, then the payloads behind it, in order. Then
/// [`activate`](StandbyState::activate) it.
#[derive(Debug)]
pub struct StandbyState {
    pub(super) state: MasterState,
    /// The clients that the last payload registered.
    registered: Vec<ClientId>,
    /// What the digest of a snapshot of an earlier release contains that is not kept
    /// ([`unkept_digest`]).
    unkept: u64,
    /// Whether it follows another master ([`follow`](Self::follow)), and is not being loaded.
    pub(super) follows: bool,
    /// Counts the steps of [`activate`](Self::activate).
    pub(super) progress: Arc<AtomicU64>,
}

impl StandbyState {
    /// Creates the state of an empty store.
    pub fn new(policy: StorePolicy) -> StandbyState {
        StandbyState {
            state: MasterState::new(policy),
            registered: Vec::new(),
            unkept: 0,
            follows: false,
            progress: Arc::default(),
        }
    }

    /// Creates the state of an empty store, which follows another master.
    pub fn following(policy: StorePolicy) -> StandbyState {
        let mut this = StandbyState { follows: true, ..StandbyState::new(policy) };
        this.state.objects.set_any_slot_next(true);
        this
    }

    /// Applies the records of a payload or of a snapshot's chunk, which was written `age` before
    /// `now`. Returns their number.
    ///
    /// # Errors
    /// The payload cannot be decoded, or a record does not fit the state. The data is damaged, or
    /// payloads are missing.
    pub fn apply_payload(&mut self, now: Mono, age: Duration, payload: &[u8]) -> Result<usize, ApplyError> {
        let mut count = 0;
        self.registered.clear();
        for record in read_payload(payload)? {
            self.apply(now, age, &record?)?;
            count += 1;
        }
        Ok(count)
    }

    /// The clients that registered in the last payload: they called when it was written.
    pub fn registered(&self) -> &[ClientId] {
        &self.registered
    }

    /// The records of the metadata service.
    pub(super) fn metadata(&self) -> &SharedTable {
        self.state.metadata()
    }

    /// The digest of the state ([`MasterState::digest`]).
    pub fn digest(&self) -> u64 {
        self.state.digest()
    }

    /// The digest that the applied snapshot must have, if nothing else was applied. A snapshot of
    /// an earlier release has the digest of what was read from it, also of what is not kept.
    pub fn snapshot_digest(&self) -> u64 {
        self.digest().wrapping_add(self.unkept)
    }

    /// Returns the policy of the store.
    pub fn policy(&self) -> &StorePolicy {
        &self.state.policy
    }

    /// The digests of a part of the state ([`MasterState::part_digests`]).
    pub fn part_digests(&self, part: &DigestPart) -> (u64, u64) {
        self.state.part_digests(part)
    }

    /// Whether the records contain everything that was acknowledged, even after a loss of power.
    /// Otherwise, the last changes may be missing.
    pub fn is_complete(&self) -> bool {
        self.state.complete_records
    }

    /// How long the leases may last that the recording process has granted.
    pub fn earlier_lease(&self) -> Duration {
        self.state.earlier_lease
    }

    /// A copy with the same segments, clients and metadata records, and without objects and
    /// quarantined memory. It shares the table of metadata records with this one. Returns it with
    /// the number of dropped objects. Its segments accept no new objects for `hold`, which must be
    /// at least as long as a write or a lease may last: clients may still use the memory.
    ///
    /// # Errors
    /// The copy is damaged.
    pub fn without_objects(
        mut self: Box<Self>,
        now: Mono,
        hold: Duration,
    ) -> Result<(Box<StandbyState>, u64), ApplyError> {
        // The former leader may have granted leases until now.
        self.state.earlier_leases_until = Mono(u64::MAX);
        self.state.open_at = self.state.open_at.max(Some(now + hold));
        let mut tables = SnapshotWalk::new(DATA_FORMAT_NEWEST, now, 0);
        self.state.save_tables(now, 0, &mut tables);
        let mut emptied = Box::new(StandbyState::new(self.state.policy.clone()));
        while let Some(chunk) = tables.pop_chunk(true) {
            emptied.apply_payload(now, Duration::ZERO, &chunk)?;
        }
        emptied.state.metadata = self.state.metadata.clone();
        Ok((emptied, self.objects()))
    }

    /// Requires all clients to name their segments again. A segment that its client does not name
    /// is dropped later. For a copy that may lack unmounts.
    pub fn require_remounts(&mut self) {
        self.state.clients.unmark_all();
    }

    /// The state of a copy that was made ready to serve, and has not served. It can apply records
    /// again.
    pub(super) fn of(mut state: MasterState) -> StandbyState {
        state.objects.set_any_slot_next(true);
        state.condemned.clear();
        state.sweep_left = 0;
        state.sweep_at = 0;
        state.confirm_until = None;
        StandbyState { state, registered: Vec::new(), unkept: 0, follows: true, progress: Arc::default() }
    }

    /// Counts the steps of [`activate`](Self::activate) in `progress`, so that another thread sees
    /// that it goes on.
    pub fn report_progress(&mut self, progress: Arc<AtomicU64>) {
        self.progress = progress;
    }

    /// Number of objects, including unfinished writes.
    pub fn objects(&self) -> u64 {
        u64::from(self.state.objects.len())
    }

    /// Begins a snapshot of the copy ([`MasterState::begin_snapshot`]). Returns false if another
    /// one is in progress.
    pub fn begin_snapshot(&mut self, now: Mono, format: DataFormat) -> bool {
        // The leader goes on granting leases of the length that it has recorded.
        self.state.earlier_leases_until = Mono(u64::MAX);
        self.state.begin_snapshot(now, format).is_some()
    }

    /// Continues the snapshot by up to `slots` object slots. Returns `None` if no snapshot is in
    /// progress.
    pub fn snapshot_slots(&mut self, slots: u32) -> Option<SnapshotStep> {
        self.state.snapshot_slots(slots)
    }

    /// Ends the snapshot in progress, if there is one, without completing it.
    pub fn cancel_snapshot(&mut self) {
        self.state.cancel_snapshot();
    }

    /// Applies one record, which was written `age` before `now`.
    ///
    /// The records of objects are only checked here, and applied by the function that a leader
    /// uses, too. A leader makes the changes of the other records by different code: see
    /// [`MasterState::apply_record`].
    pub(super) fn apply(&mut self, now: Mono, age: Duration, record: &MasterRecord<'_>) -> Result<(), ApplyError> {
        let clock = RecordClock { now, age };
        let role = StandbyRole { clock, follows: self.follows };
        match *record {
            MasterRecord::ObjectStarted(ref content) => self.check_new_object(content)?,
            MasterRecord::ObjectRewritten { slot, .. } => self.check_write(slot, false)?,
            MasterRecord::ObjectCompleted { slot, .. } => self.check_write(slot, true)?,
            MasterRecord::ObjectErased { slot } => self.check_object(slot).map(|_| ())?,
            MasterRecord::ObjectDiscarded { slot, .. } => self.check_discard(slot)?,
            MasterRecord::ReplicasDropped { slot, kept } => self.check_kept(slot, kept)?,
            MasterRecord::DiscardReleased { replica_id } => self.check_release(replica_id)?,
            MasterRecord::SegmentMounted { slot, client, ref segment } => self.mount(slot, client, segment)?,
            MasterRecord::SegmentClosed { slot, remaining_ms } => self.close(slot, clock.after(remaining_ms))?,
            MasterRecord::SegmentHeld { slot, remaining_ms } => {
                self.check_segment_slot(slot)?;
                self.state.set_hold(slot, clock.in_full(remaining_ms));
            }
            MasterRecord::SegmentHoldEnded { slot } => {
                self.check_segment_slot(slot)?;
                self.state.clear_hold(slot);
            }
            MasterRecord::SegmentRetired { slot } => self.retire(slot)?,
            MasterRecord::ClientMarked { client, ok } => {
                self.admit(client)?;
                self.state.clients.mark(client, ok);
                self.registered.extend(ok.then_some(client));
            }
            MasterRecord::ClientExpired { client } => {
                let record = self.state.clients.remove(client).ok_or(ApplyError::NoClient(client))?;
                record.segments.into_iter().for_each(|slot| self.state.segments.condemn(slot));
            }
            MasterRecord::ProcessTerms { lease_ms, hold_ms, complete } => {
                self.state.complete_records = complete;
                self.state.earlier_lease = Duration::from_millis(lease_ms);
                self.state.open_at = (hold_ms > 0).then(|| clock.in_full(hold_ms));
            }
            MasterRecord::HoldEnded => self.state.open_at = None,
            MasterRecord::MetadataPut { key, value } => {
                self.change_metadata(&MetadataChange::Put { key: Cow::Borrowed(key), value: Cow::Borrowed(value) })?;
            }
            MasterRecord::MetadataRemoved { key } => {
                self.change_metadata(&MetadataChange::Remove { key: Cow::Borrowed(key) })?;
            }
            MasterRecord::TableSizes { objects, segments, next_replica } => {
                // A snapshot follows.
                self.follows = false;
                self.extend_tables(objects, segments)?;
                self.state.segments.set_next_replica(next_replica);
            }
            MasterRecord::ObjectSaved { ref content, writing, checksum, lease_ms } => {
                self.check_new_object(content)?;
                self.unkept = self.unkept.wrapping_add(unkept_digest(content, writing, checksum));
                self.follows = false;
                self.state.insert_object(content, writing, &role);
                let entry = &mut self.state.objects[content.slot].eviction;
                entry.set_applied(writing, clock.used(lease_ms));
                if !writing {
                    entry.set_checksum(checksum);
                    self.state.count(content.slot);
                }
            }
            MasterRecord::DiscardSaved { replica, bytes, remaining_ms } => {
                self.follows = false;
                let fits = bytes > 0 && self.state.segments.can_contain(&replica, bytes, 0);
                if !fits || self.state.discards.contains(replica.id) {
                    return Err(ApplyError::BadDiscard(replica.id));
                }
                self.state.segments.count_replica(&replica, bytes);
                self.state.discards.add(replica, bytes, clock.in_full(remaining_ms));
            }
        }
        self.state.apply_record(record, &role);
        match *record {
            MasterRecord::ObjectStarted(ref content) if self.follows => self.claim_memory(content.slot),
            _ => Ok(()),
        }
    }

    /// Allocates the ranges of a new object's replicas.
    fn claim_memory(&mut self, at: ObjectSlot) -> Result<(), ApplyError> {
        let MasterState { objects, segments, .. } = &mut self.state;
        let object = &mut objects[at];
        let size = object.size;
        let claimed = if is_planted(HaMistake::StandbyRangeShort) { size / 2 } else { size };
        for replica in object.replicas_mut() {
            if !segments.claim(replica, claimed) {
                return Err(ApplyError::BadReplica { slot: at.0, segment: replica.segment.0 });
            }
        }
        Ok(())
    }

    fn change_metadata(&mut self, change: &MetadataChange<'_>) -> Result<(), ApplyError> {
        let is_applied = self.state.metadata.lock().apply(change);
        if is_applied { Ok(()) } else { Err(ApplyError::NoMetadataRecord) }
    }

    fn extend_tables(&mut self, objects: u32, segments: u32) -> Result<(), ApplyError> {
        let fits = (self.state.objects.slots()..=OBJECTS_MAX).contains(&objects)
            && (self.state.segments.slots() as usize..=SEGMENTS_MAX).contains(&(segments as usize));
        if !fits {
            return Err(ApplyError::BadSizes { objects, segments });
        }
        self.state.objects.extend_to(objects);
        self.state.segments.extend_to(segments);
        Ok(())
    }

    fn mount(&mut self, slot: SegmentSlot, client: ClientId, content: &SegmentContent<'_>) -> Result<(), ApplyError> {
        let segment = content.to_segment();
        if check_segment(&segment).is_err() || !self.state.segments.mount_at(slot, segment, client) {
            return Err(ApplyError::BadSegment(slot.0));
        }
        self.admit(client)?;
        if let Some(record) = self.state.clients.get_mut(client) {
            record.segments.push(slot);
        }
        Ok(())
    }

    fn close(&mut self, slot: SegmentSlot, until: Mono) -> Result<(), ApplyError> {
        let mounted = self.state.segments.get(slot).ok_or(ApplyError::NoSegment(slot.0))?;
        let id = mounted.segment.id;
        if let Some(before) = mounted.grace_until {
            self.state.grace.remove(&(before, id));
        }
        self.state.segments.close(slot, until);
        self.state.grace.insert((until, id));
        Ok(())
    }

    fn retire(&mut self, slot: SegmentSlot) -> Result<(), ApplyError> {
        let mounted = self.state.segments.get(slot).ok_or(ApplyError::NoSegment(slot.0))?;
        if let Some(until) = mounted.grace_until {
            self.state.grace.remove(&(until, mounted.segment.id));
        }
        self.state.clear_hold(slot);
        let retired = self.state.segments.retire(slot, &mut Vec::new()).ok_or(ApplyError::NoSegment(slot.0))?;
        if let Some(client) = self.state.clients.get_mut(retired.client) {
            client.segments.retain(|other| *other != slot);
        }
        Ok(())
    }

    fn admit(&mut self, client: ClientId) -> Result<(), ApplyError> {
        if self.state.clients.len() >= CLIENTS_MAX && self.state.clients.get(client).is_none() {
            return Err(ApplyError::TooManyClients);
        }
        self.state.clients.admit(client, Mono::ZERO);
        Ok(())
    }

    fn check_segment_slot(&self, slot: SegmentSlot) -> Result<(), ApplyError> {
        self.state.segments.get(slot).map(|_| ()).ok_or(ApplyError::NoSegment(slot.0))
    }

    /// The slots of the segments that wait to be retired because their client has expired.
    pub(super) fn condemned(&self) -> Vec<SegmentSlot> {
        let slots = (0..self.state.segments.slots()).map(SegmentSlot);
        let is_condemned = |slot: &SegmentSlot| {
            self.state.segments.get(*slot).is_some_and(|mounted| mounted.status == SegmentStatus::UNMOUNTING)
        };
        slots.filter(is_condemned).collect()
    }
}

/// A master that only applies records.
struct StandbyRole {
    clock: RecordClock,
    /// Whether the state follows another master ([`StandbyState::follows`]).
    follows: bool,
}

impl RecordRole for StandbyRole {
    fn pin_end(&self, ms: u64) -> Mono {
        self.clock.after(ms)
    }

    fn quarantine_end(&self, ms: u64) -> Mono {
        self.clock.in_full(ms)
    }

    fn new_group_lease(&self) -> Mono {
        self.clock.used(0)
    }

    fn begin_write(&self, state: &mut MasterState, at: ObjectSlot) {
        let used = self.clock.used(0);
        match self.follows {
            true => state.order.begin_recorded_write(&mut state.objects, at, self.clock.now, used),
            false => state.objects[at].eviction.set_applied(true, used),
        }
    }

    fn begin_rewrite(&self, state: &mut MasterState, at: ObjectSlot) {
        match self.follows {
            true => state.order.begin_write(&mut state.objects, at, self.clock.now),
            false => {
                let entry = &mut state.objects[at].eviction;
                entry.set_applied(true, entry.lease_until());
            }
        }
    }

    fn end_write(&self, state: &mut MasterState, at: ObjectSlot) {
        let used = self.clock.used(0);
        match self.follows {
            true => state.order.end_recorded_write(&mut state.objects, at, self.clock.now, used),
            false => state.objects[at].eviction.set_applied(false, used),
        }
    }

    fn unlist(&self, state: &mut MasterState, at: ObjectSlot) {
        match self.follows {
            true => state.order.remove(&mut state.objects, at),
            false => state.objects[at].eviction.set_applied(false, Mono::ZERO),
        }
    }

    fn release(&self, state: &mut MasterState, replica: &ReplicaRecord, _bytes: u64, _is_mounted: bool) {
        match self.follows {
            true => state.segments.release_claimed(replica),
            false => state.segments.release_reference(replica.segment),
        }
    }
}
