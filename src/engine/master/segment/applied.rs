//! Segment tables that are filled from records, the confirmation of restored segments, and holds.
//!
//! A table that is loaded has no allocated memory until [`SegmentTable::rebuild_memory`]. A table
//! that follows another master allocates the ranges that the records state. Neither has a list of
//! free slots until [`SegmentTable::relink_free_slots`]. Their segments are unconfirmed.

use crate::alloc::OffsetAllocator;
use crate::alloc::offset::FreeEnds;
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
        let memory = OffsetAllocator::new(segment.size);
        let free = FreeEnds::of(&memory);
        self.insert(at, segment, client, false, memory);
        if let Some(mounted) = self.slots[at.index()].mounted.as_mut() {
            mounted.free = free;
        }
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

    /// Allocates the range of a replica of `bytes` bytes, and sets its ticket. A removed segment
    /// has no memory. Returns false if the range is not free.
    #[must_use]
    pub(crate) fn claim(&mut self, replica: &mut ReplicaRecord, bytes: u64) -> bool {
        let entry = &mut self.slots[replica.segment.index()];
        let Some(mounted) = entry.mounted.as_mut() else { return true };
        let ticket = mounted.memory.claim(&mut mounted.free, replica.offset, bytes);
        replica.ticket = ticket.unwrap_or(0);
        ticket.is_some()
    }

    /// Frees the range of a replica, unless its segment has been removed, and removes its reference
    /// to the slot. For a table that follows another master; see [`release`](Self::release).
    pub(crate) fn release_claimed(&mut self, replica: &ReplicaRecord) {
        let entry = &mut self.slots[replica.segment.index()];
        entry.replicas -= 1;
        if let Some(mounted) = entry.mounted.as_mut() {
            mounted.memory.release(&mut mounted.free, replica.ticket);
        }
    }

    /// Removes a replica's reference to the slot. For a table that is loaded; see
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

    /// Sets the allocator of each mounted segment to the result of `memory_of`, which is passed the
    /// segment's slot and size.
    ///
    /// # Errors
    /// The first error of `memory_of`.
    pub(crate) fn rebuild_memory<E>(
        &mut self,
        mut memory_of: impl FnMut(SegmentSlot, u64) -> Result<OffsetAllocator, E>,
    ) -> Result<(), E> {
        for (nth, entry) in self.slots.iter_mut().enumerate() {
            if let Some(mounted) = entry.mounted.as_mut() {
                mounted.memory = memory_of(SegmentSlot::from_index(nth), mounted.segment.size)?;
                mounted.free = FreeEnds::default();
            }
        }
        Ok(())
    }

    /// Keeps the free runs of all allocators by their ends, for [`claim`](Self::claim).
    pub(crate) fn index_free_runs(&mut self) {
        for mounted in self.slots.iter_mut().filter_map(|entry| entry.mounted.as_mut()) {
            mounted.free = FreeEnds::of(&mounted.memory);
        }
    }

    /// Takes the free runs by their ends: from now on, this table chooses the ranges. Dropping them
    /// may take long.
    pub(crate) fn take_free_ends(&mut self) -> Vec<FreeEnds> {
        let mounted = self.slots.iter_mut().filter_map(|entry| entry.mounted.as_mut());
        mounted.map(|mounted| std::mem::take(&mut mounted.free)).collect()
    }

    /// Rebuilds the list of free slots.
    pub(crate) fn relink_free_slots(&mut self) {
        let slots = (0..self.slots.len()).rev();
        let is_free = |nth: &usize| self.slots[*nth].mounted.is_none() && self.slots[*nth].replicas == 0;
        self.spare = slots.filter(is_free).map(SegmentSlot::from_index).collect();
    }
}
