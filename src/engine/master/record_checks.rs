//! Checks that a record of an object fits the state of a standby. A record that does not means that
//! the data is damaged, or that payloads are missing. [`MasterState::apply_record`] requires a
//! record that fits.
//!
//! [`MasterState::apply_record`]: crate::state::MasterState::apply_record

use std::collections::{BTreeMap, BTreeSet};

use crate::apply::{ApplyError, StandbyState};
use crate::object::{OBJECTS_MAX, ObjectRecord, ReplicaRecord};
use crate::record::{ObjectContent, ReplicaList};
use crate::slots::{ObjectSlot, SegmentSlot};
use mcctl_base::id::RECORDED_KEY_BYTES_MAX;

impl StandbyState {
    /// Checks the record of a new object.
    ///
    /// # Errors
    /// `ObjectSlotInUse`, `ObjectSlotTooHigh`, `BadKey`, `BadReplica`.
    pub(super) fn check_new_object(&self, content: &ObjectContent<'_>) -> Result<(), ApplyError> {
        let ObjectContent { slot, key, size, replicas, .. } = *content;
        let objects = &self.state.objects;
        if objects.get(slot).is_some() {
            return Err(ApplyError::ObjectSlotInUse(slot.0));
        }
        if slot.0 > objects.slots() || slot.0 >= OBJECTS_MAX {
            return Err(ApplyError::ObjectSlotTooHigh(slot.0));
        }
        if key.is_empty() || key.len() > RECORDED_KEY_BYTES_MAX || objects.find(objects.hash(key)).is_some() {
            return Err(ApplyError::BadKey(slot.0));
        }
        self.check_replicas(slot, size, replicas)
    }

    /// Checks that each segment can contain its replicas of `size` bytes.
    fn check_replicas(&self, at: ObjectSlot, size: u64, replicas: ReplicaList<'_>) -> Result<(), ApplyError> {
        let check = |replica: &ReplicaRecord, reserved: u64| {
            let fits = size > 0 && self.state.segments.can_contain(replica, size, reserved);
            if fits { Ok(()) } else { Err(ApplyError::BadReplica { slot: at.0, segment: replica.segment.0 }) }
        };
        if replicas.is_single() {
            return check(&replicas.first(), 0);
        }
        // The bytes in each segment that the replicas so far require.
        let mut reserved: BTreeMap<SegmentSlot, u64> = BTreeMap::new();
        for replica in replicas.iter() {
            let bytes = reserved.entry(replica.segment).or_default();
            check(&replica, *bytes)?;
            *bytes = bytes.saturating_add(size);
        }
        Ok(())
    }

    /// Checks that the slot contains an object, and whether a write is in progress.
    ///
    /// # Errors
    /// `NoObject`, `Writing`, `NotWriting`.
    pub(super) fn check_write(&self, slot: ObjectSlot, writing: bool) -> Result<(), ApplyError> {
        match (self.check_object(slot)?.eviction.is_writing(), writing) {
            (true, false) => Err(ApplyError::Writing(slot.0)),
            (false, true) => Err(ApplyError::NotWriting(slot.0)),
            _ => Ok(()),
        }
    }

    /// Returns the object in the slot.
    ///
    /// # Errors
    /// `NoObject`.
    pub(super) fn check_object(&self, slot: ObjectSlot) -> Result<&ObjectRecord, ApplyError> {
        self.state.objects.get(slot).ok_or(ApplyError::NoObject(slot.0))
    }

    /// Checks that the slot contains an object, none of whose replicas is quarantined.
    ///
    /// # Errors
    /// `NoObject`, `BadDiscard`.
    pub(super) fn check_discard(&self, slot: ObjectSlot) -> Result<(), ApplyError> {
        let object = self.check_object(slot)?;
        let mut ids: BTreeSet<u64> = BTreeSet::new();
        for replica in object.replicas() {
            // In damaged data, two replicas of an object may have the same id.
            let is_repeated = !object.more_replicas().is_empty() && !ids.insert(replica.id);
            if is_repeated || self.state.discards.contains(replica.id) {
                return Err(ApplyError::BadDiscard(replica.id));
            }
        }
        Ok(())
    }

    /// Checks that a replica with this id is quarantined.
    ///
    /// # Errors
    /// `BadDiscard`.
    pub(super) fn check_release(&self, replica_id: u64) -> Result<(), ApplyError> {
        if self.state.discards.contains(replica_id) { Ok(()) } else { Err(ApplyError::BadDiscard(replica_id)) }
    }

    /// Checks that the object has the replicas that it keeps, in the same order.
    ///
    /// # Errors
    /// `NoObject`, `UnknownReplica`.
    pub(super) fn check_kept(&self, slot: ObjectSlot, kept: ReplicaList<'_>) -> Result<(), ApplyError> {
        let mut left = self.check_object(slot)?.replicas();
        let are_known = kept.iter().all(|replica| left.any(|other| *other == replica));
        if are_known { Ok(()) } else { Err(ApplyError::UnknownReplica(slot.0)) }
    }
}
