//! Segment tables that are filled from records, the confirmation of restored segments, and holds.
//!
//! A table that is being filled has no allocators and no list of free slots until
//! [`SegmentTable::rebuild`]. Its segments are unconfirmed.

use crate::alloc::OffsetAllocator;
use crate::object::ReplicaRecord;
use crate::segment::{SEGMENTS_MAX, SegmentEntry, SegmentTable, share_protocol};
use crate::slots::SegmentSlot;
use mcctl_base::{ClientId, Mono};
use mcctl_wire::types::{Segment, SegmentStatus};

impl SegmentTable {
    /// Returns true if the client of the slot's segment has not confirmed it since a restore, or
    /// did not before it was removed.
    pub(crate) fn is_unconfirmed(&self, slot: SegmentSlot) -> bool {
        let unconfirmed =
            |entry: &SegmentEntry| entry.mounted.as_ref().map_or(entry.never_confirmed, |mounted| !mounted.confirmed);
        self.slots.get(slot.index()).is_some_and(unconfirmed)
    }

    /// Number of replicas in the slot's segment, with quarantined ones.
    pub(crate) fn replicas(&self, slot: SegmentSlot) -> u32 {
        self.slots.get(slot.index()).map_or(0, |entry| entry.replicas)
    }

    /// Makes a restored segment readable: its client still holds the memory.
    pub(crate) fn confirm(&mut self, slot: SegmentSlot) {
        if let Some(mounted) = self.slots[slot.index()].mounted.as_mut() {
            mounted.confirmed = true;
        }
    }

    /// Closes a segment to new objects until [`end_hold`](Self::end_hold) is called.
    pub(crate) fn hold(&mut self, slot: SegmentSlot, until: Mono) {
        if let Some(mounted) = self.slots[slot.index()].mounted.as_mut() {
            mounted.held_until = Some(until);
            mounted.open = false;
            let segment = mounted.segment.clone();
            self.shut(slot, &segment);
        }
    }

    /// Ends a hold. The segment is not offered for new objects yet.
    pub(crate) fn end_hold(&mut self, slot: SegmentSlot) {
        if let Some(mounted) = self.slots[slot.index()].mounted.as_mut() {
            mounted.held_until = None;
        }
    }

    /// Offers a confirmed segment for new objects, unless it is held, being unmounted, or already
    /// open.
    pub(crate) fn open_confirmed(&mut self, slot: SegmentSlot) {
        let Some(mounted) = self.slots[slot.index()].mounted.as_mut() else { return };
        if mounted.confirmed && mounted.held_until.is_none() && !mounted.open && mounted.status == SegmentStatus::OK {
            mounted.open = true;
            let segment = mounted.segment.clone();
            self.open(slot, &segment);
        }
    }

    /// Adds free slots until the table has `slots` slots.
    pub(crate) fn extend_to(&mut self, slots: u32) {
        let slots = usize::try_from(slots).map_or(SEGMENTS_MAX, |slots| slots.min(SEGMENTS_MAX));
        if self.slots.len() < slots {
            self.slots.resize_with(slots, SegmentEntry::default);
        }
    }

    /// Mounts a segment at exactly this slot. Returns false, and changes nothing, if the slot or
    /// the id is in use, or if the slot is neither free nor the next slot of the table.
    pub(crate) fn mount_at(&mut self, at: SegmentSlot, mut segment: Segment, client: ClientId) -> bool {
        if at.index() > self.slots.len() || at.index() >= SEGMENTS_MAX || self.by_id.contains_key(&segment.id) {
            return false;
        }
        if self.slots.get(at.index()).is_some_and(|entry| entry.mounted.is_some() || entry.replicas > 0) {
            return false;
        }
        self.extend_to(at.0 + 1);
        share_protocol(&mut segment);
        self.insert(at, segment, client, false, OffsetAllocator::new(0));
        true
    }

    /// Returns true if the slot exists and, if its segment is mounted, the range lies within the
    /// segment and the segment has that much unused memory. `reserved` more bytes of the segment
    /// count as used.
    pub(crate) fn can_contain(&self, replica: &ReplicaRecord, bytes: u64, reserved: u64) -> bool {
        let Some(entry) = self.slots.get(replica.segment.index()) else { return false };
        let fits = |bytes: Option<u64>, size: u64| bytes.is_some_and(|bytes| bytes <= size);
        entry.mounted.as_ref().is_none_or(|mounted| {
            let size = mounted.segment.size;
            let used = mounted.used.checked_add(reserved);
            fits(replica.offset.checked_add(bytes), size) && fits(used.and_then(|used| used.checked_add(bytes)), size)
        })
    }

    /// Removes a replica's reference to the slot. For a table without allocators; see
    /// [`release`](Self::release).
    pub(crate) fn release_reference(&mut self, segment: SegmentSlot) {
        self.slots[segment.index()].replicas -= 1;
    }

    /// The id that the next replica gets.
    pub(crate) fn next_replica(&self) -> u64 {
        self.next_replica
    }

    /// Sets the id that the next replica gets, unless a higher one is in use.
    pub(crate) fn set_next_replica(&mut self, id: u64) {
        self.next_replica = self.next_replica.max(id);
    }

    /// Rebuilds the list of free slots, and sets the allocator of each mounted segment to the
    /// result of `memory_of`, which is passed the segment's slot and size.
    ///
    /// # Errors
    /// The first error of `memory_of`.
    pub(crate) fn rebuild<E>(
        &mut self,
        mut memory_of: impl FnMut(SegmentSlot, u64) -> Result<OffsetAllocator, E>,
    ) -> Result<(), E> {
        self.spare.clear();
        for nth in (0..self.slots.len()).rev() {
            let slot = SegmentSlot::from_index(nth);
            let entry = &mut self.slots[nth];
            match entry.mounted.as_mut() {
                Some(mounted) => mounted.memory = memory_of(slot, mounted.segment.size)?,
                None if entry.replicas == 0 => self.spare.push(slot),
                None => {}
            }
        }
        Ok(())
    }
}
