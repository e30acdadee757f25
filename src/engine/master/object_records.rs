//! The changes that the object records describe. Both roles of a master make them with
//! [`MasterState::apply_record`]: a leader when it records a change, a standby or a restart when it
//! reads the record.
//!
//! This file changes what records describe: objects, their owners and groups, quarantined replicas,
//! and the sums over them. What differs between the roles is behind [`RecordRole`]: their times,
//! and the memory, which a leader has allocated before, and which it frees later.

use crate::eviction::index::{PendingPin, SoftPin};
use crate::object::{NewObject, ObjectExtra, ObjectRecord, RemovedObject, ReplicaRecord};
use crate::record::{MasterRecord, ObjectContent, ReplicaList};
use crate::slots::{ObjectSlot, OwnerSlot};
use crate::state::MasterState;
use mcctl_base::{ClientId, Mono};

/// What differs between the roles when a record is applied.
pub(super) trait RecordRole {
    /// When a soft pin ends that lasts `ms` milliseconds according to the record.
    fn pin_end(&self, ms: u64) -> Mono;
    /// When a quarantine ends that lasts `ms` milliseconds according to the record.
    fn quarantine_end(&self, ms: u64) -> Mono;
    /// The lease of a new group.
    fn new_group_lease(&self) -> Mono;
    /// Marks a new object as being written.
    fn begin_write(&self, state: &mut MasterState, at: ObjectSlot);
    /// Marks a complete object as being written.
    fn begin_rewrite(&self, state: &mut MasterState, at: ObjectSlot);
    /// Marks an object as complete.
    fn end_write(&self, state: &mut MasterState, at: ObjectSlot);
    /// Takes an object that is about to be removed out of the eviction index.
    fn unlist(&self, state: &mut MasterState, at: ObjectSlot);
    /// Releases the memory of a replica of `bytes` bytes, which is no longer counted. `is_mounted`:
    /// its segment has not been removed.
    fn release(&self, state: &mut MasterState, replica: &ReplicaRecord, bytes: u64, is_mounted: bool);
}

impl MasterState {
    /// Makes the change of the objects that a record describes. The record must fit the state: a
    /// leader builds it from the state, a standby checks it first.
    ///
    /// A new kind of record must be added here, and is then applied by both roles. A leader's
    /// functions pass one kind each. Everything is inlined into them, so that puts pay neither for
    /// the match nor for a record in memory.
    #[inline(always)]
    pub(super) fn apply_record<R: RecordRole>(&mut self, record: &MasterRecord<'_>, role: &R) {
        match *record {
            MasterRecord::ObjectStarted(ref content) => {
                self.insert_object(content, true, role);
                role.begin_write(self, content.slot);
            }
            MasterRecord::ObjectRewritten { slot, client, pending } => self.rewrite_object(slot, client, pending, role),
            MasterRecord::ObjectCompleted { slot, checksum } => self.complete_object(slot, checksum, role),
            MasterRecord::ObjectErased { slot } => {
                let removed = self.remove_object(slot, role);
                for replica in removed.replicas() {
                    self.release_replica(replica, removed.size, role);
                }
            }
            MasterRecord::ObjectDiscarded { slot, remaining_ms } => {
                let until = role.quarantine_end(remaining_ms);
                let removed = self.remove_object(slot, role);
                for replica in removed.replicas() {
                    self.discards.add(*replica, removed.size, until);
                }
            }
            MasterRecord::ReplicasDropped { slot, kept } => self.drop_replicas(slot, kept, role),
            MasterRecord::DiscardReleased { replica_id } => {
                if let Some(discarded) = self.discards.remove(replica_id) {
                    self.release_replica(&discarded.replica, discarded.bytes, role);
                }
            }
            // The roles make these changes by different code. A leader's segments have allocators
            // and names that are offered for new objects, its clients have deadlines, and it moves
            // the description of a segment into its table instead of copying it.
            MasterRecord::SegmentMounted { .. }
            | MasterRecord::SegmentClosed { .. }
            | MasterRecord::SegmentHeld { .. }
            | MasterRecord::SegmentHoldEnded { .. }
            | MasterRecord::SegmentRetired { .. }
            | MasterRecord::ClientMarked { .. }
            | MasterRecord::ClientExpired { .. } => {}
            // A process states its own terms, and stores those of the processes before it.
            MasterRecord::ProcessTerms { .. } | MasterRecord::HoldEnded => {}
            // A leader's change decides with the table locked, and other threads read the table.
            MasterRecord::MetadataPut { .. } | MasterRecord::MetadataRemoved { .. } => {}
            // A leader writes snapshots, but does not read them.
            MasterRecord::TableSizes { .. } | MasterRecord::ObjectSaved { .. } | MasterRecord::DiscardSaved { .. } => {}
        }
    }

    /// Inserts a new object, which is neither complete nor being written yet. `is_writing`: it will
    /// be written. Otherwise, its writer is not kept.
    #[inline(always)]
    pub(super) fn insert_object<R: RecordRole>(&mut self, content: &ObjectContent<'_>, is_writing: bool, role: &R) {
        let replica = content.replicas.first();
        let replicas = content.replicas.rest_to_vec();
        self.segments.count_replica(&replica, content.size);
        for more in &replicas {
            self.segments.count_replica(more, content.size);
        }
        let soft_pin = SoftPin::new(content.pin_ms.map(|ms| role.pin_end(ms)), content.pending);
        let extra = ObjectExtra { replicas, soft_pin, ..ObjectExtra::default() };
        let new = NewObject {
            owner: if is_writing { self.owners.acquire(content.client) } else { OwnerSlot::NONE },
            size: content.size,
            replica,
            extra: extra.boxed(),
            hard_pin: content.hard_pin,
        };
        self.tenants.add(content.key, content.size);
        self.claim_new(content.slot);
        self.objects.insert_at(content.slot, self.objects.hash(content.key), new);
        if let Some(group) = content.group {
            self.groups.join(&mut self.objects, content.slot, group, role.new_group_lease());
        }
    }

    #[inline(always)]
    fn rewrite_object<R: RecordRole>(&mut self, at: ObjectSlot, client: ClientId, pending: PendingPin, role: &R) {
        self.preserve(at);
        self.uncount(at);
        let object = &mut self.objects[at];
        object.owner = self.owners.acquire(client);
        object.set_pending_pin(pending);
        role.begin_rewrite(self, at);
    }

    #[inline(always)]
    fn complete_object<R: RecordRole>(&mut self, at: ObjectSlot, checksum: Option<u64>, role: &R) {
        self.preserve(at);
        let object = &mut self.objects[at];
        let owner = std::mem::replace(&mut object.owner, OwnerSlot::NONE);
        self.ended.add(at, object.replica.id, self.owners.id(owner));
        self.owners.release(owner);
        if let Some(extra) = object.extra.as_mut() {
            extra.soft_pin.apply_pending(|ttl_ms| role.pin_end(ttl_ms));
        }
        role.end_write(self, at);
        self.objects[at].eviction.set_checksum(checksum);
        self.count(at);
    }

    /// Removes an object. The caller releases or quarantines its replicas, which are still counted
    /// in their segments.
    #[inline(always)]
    fn remove_object<R: RecordRole>(&mut self, at: ObjectSlot, role: &R) -> RemovedObject {
        self.preserve(at);
        if self.objects[at].eviction.is_writing() {
            self.owners.release(self.objects[at].owner);
        } else {
            self.uncount(at);
        }
        role.unlist(self, at);
        if !self.tenants.is_empty() {
            self.tenants.remove(self.objects.key(at), self.objects[at].size);
        }
        let removed = self.objects.remove(at);
        if let Some(membership) = removed.extra.as_ref().and_then(|extra| extra.group) {
            self.groups.remove_member(&mut self.objects, membership);
        }
        removed
    }

    fn drop_replicas<R: RecordRole>(&mut self, at: ObjectSlot, kept: ReplicaList<'_>, role: &R) {
        self.preserve(at);
        let object = &self.objects[at];
        let size = object.size;
        let before: Vec<ReplicaRecord> = object.replicas().copied().collect();
        // A record has no tickets, so the replicas are those of the object.
        let is_kept = |replica: &ReplicaRecord| kept.iter().any(|other| other == *replica);
        let (kept, lost): (Vec<ReplicaRecord>, Vec<ReplicaRecord>) = before.iter().copied().partition(is_kept);
        let Some((first, rest)) = kept.split_first() else {
            debug_assert!(false, "an object keeps at least one replica");
            return;
        };
        if !object.eviction.is_writing() {
            let dropped = lost.len() as u64;
            self.mem_replicas -= dropped;
            self.hard_pinned_bytes -= if object.eviction.hard_pin() { size * dropped } else { 0 };
        }
        for replica in &lost {
            self.release_replica(replica, size, role);
        }
        self.ended.replace_replica(at, before[0].id, first.id);
        self.objects[at].set_replicas(*first, rest.to_vec());
    }

    /// Stops counting a replica of `bytes` bytes in its segment, and releases its memory.
    #[inline(always)]
    fn release_replica<R: RecordRole>(&mut self, replica: &ReplicaRecord, bytes: u64, role: &R) {
        let is_mounted = self.segments.stop_counting(replica, bytes);
        role.release(self, replica, bytes, is_mounted);
    }

    /// Counts an object that has become complete.
    #[inline(always)]
    pub(super) fn count(&mut self, at: ObjectSlot) {
        let object = &self.objects[at];
        self.mem_replicas += (object.more_replicas().len() + 1) as u64;
        self.evictable += u64::from(!object.eviction.hard_pin());
        self.hard_pinned_bytes += hard_pinned_bytes(object);
    }

    /// Stops counting an object that is no longer complete.
    #[inline(always)]
    fn uncount(&mut self, at: ObjectSlot) {
        let object = &self.objects[at];
        self.mem_replicas -= (object.more_replicas().len() + 1) as u64;
        self.evictable -= u64::from(!object.eviction.hard_pin());
        self.hard_pinned_bytes -= hard_pinned_bytes(object);
    }
}

/// Size of the replicas of a hard-pinned object, in bytes; 0 for another object.
#[inline(always)]
fn hard_pinned_bytes(object: &ObjectRecord) -> u64 {
    if object.eviction.hard_pin() { object.size * (object.more_replicas().len() + 1) as u64 } else { 0 }
}
