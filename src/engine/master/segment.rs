//! The mounted segments: their memory, their names, and the allocation of replicas.
//!
//! Once a segment is retired, nothing is allocated in it or read from it. Its slot stays reserved
//! until no record refers to it, so a stale replica can never be mistaken for a replica in a later
//! segment.

use std::collections::BTreeMap;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::alloc::offset::FreeEnds;
use crate::alloc::placement::SegmentPool;
use crate::alloc::{Allocator, OffsetAllocator};
use crate::object::ReplicaRecord;
use crate::slots::SegmentSlot;
use mcctl_base::{ClientId, Mono, SegmentId};
use mcctl_wire::types::{Segment, SegmentStatus};

mod applied;

/// Maximum number of segments, including retired ones that records still refer to.
pub(super) const SEGMENTS_MAX: usize = 1 << 18;

/// Maximum size of a segment: 32 TiB, more than any host has. With this limit, the total size of
/// all segments fits into 64 bits.
pub(super) const SEGMENT_BYTES_MAX: u64 = 1 << 45;
const _: () = assert!(SEGMENT_BYTES_MAX.checked_mul(SEGMENTS_MAX as u64).is_some());

/// Maximum length of a name, endpoint or protocol, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 4096;

const PROTOCOLS: [&str; 2] = ["tcp", "rdma"];

/// Replaces the text of a known protocol. Every response contains a clone of it, and cloning a
/// static `Bytes` updates no reference count.
fn share_protocol(segment: &mut Segment) {
    if let Some(known) = PROTOCOLS.iter().find(|known| segment.protocol.0 == known.as_bytes()) {
        segment.protocol.0 = Bytes::from_static(known.as_bytes());
    }
}

#[derive(Debug)]
pub(super) struct MountedSegment {
    /// The client's description of the segment.
    pub segment: Segment,
    pub client: ClientId,
    pub status: SegmentStatus,
    /// False from a restore until the segment's client proves that it still holds the memory. Until
    /// then, the segment is neither readable nor open for new objects.
    pub confirmed: bool,
    /// The segment is offered for new objects.
    open: bool,
    /// The segment is mounted again and accepts no new objects until then: see `hold`.
    pub held_until: Option<Mono>,
    pub grace_until: Option<Mono>,
    /// Sum of the requested sizes of the objects in the segment, in bytes.
    pub used: u64,
    memory: OffsetAllocator,
    /// The free runs of `memory` by their ends, in a state that applies records. Otherwise not
    /// kept.
    free: FreeEnds,
}

impl MountedSegment {
    /// Used bytes, blocks and the longest free run of the allocator.
    #[cfg(test)]
    pub(crate) fn memory_report(&self) -> (u64, u32, u64) {
        (self.memory.used(), self.memory.live(), self.memory.largest_free())
    }

    /// Whether the segment is offered for new objects.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }
}

/// All segments, indexed by slot, id, name, endpoint and host.
#[derive(Debug)]
pub(super) struct SegmentTable {
    slots: Vec<SegmentEntry>,
    spare: Vec<SegmentSlot>,
    by_id: HashMap<SegmentId, SegmentSlot, FixedState>,
    /// Slots of the mounted segments, by endpoint.
    by_endpoint: HashMap<Bytes, Vec<SegmentSlot>, FixedState>,
    /// Number of mounted segments, by name.
    of_name: HashMap<Bytes, u32, FixedState>,
    /// Names with at least one segment that accepts new objects. Dense and unordered.
    open: Vec<OpenName>,
    open_by_name: HashMap<Bytes, u32, FixedState>,
    /// Number of segments that accept new objects, by host and name.
    hosts: BTreeMap<Bytes, BTreeMap<Bytes, u32>>,
    capacity: u64,
    used: u64,
    next_replica: u64,
}

#[derive(Debug, Default)]
struct SegmentEntry {
    mounted: Option<Box<MountedSegment>>,
    /// Number of records and freed ranges that refer to this slot.
    replicas: u32,
    /// The slot's last segment was removed before its client confirmed it after a restore.
    never_confirmed: bool,
}

#[derive(Debug)]
struct OpenName {
    name: Bytes,
    segments: Vec<SegmentSlot>,
}

impl SegmentTable {
    /// Creates an empty table.
    pub(crate) fn new(seed: u64) -> SegmentTable {
        let hasher = || FixedState::with_seed(seed);
        SegmentTable {
            slots: Vec::new(),
            spare: Vec::new(),
            by_id: HashMap::with_hasher(hasher()),
            by_endpoint: HashMap::with_hasher(hasher()),
            of_name: HashMap::with_hasher(hasher()),
            open: Vec::new(),
            open_by_name: HashMap::with_hasher(hasher()),
            hosts: BTreeMap::new(),
            capacity: 0,
            used: 0,
            next_replica: 1,
        }
    }

    /// Total size of all mounted segments in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Total requested size of the objects in all segments, in bytes.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Returns true if no more segments can be mounted.
    pub(crate) fn is_full(&self) -> bool {
        self.spare.is_empty() && self.slots.len() >= SEGMENTS_MAX
    }

    /// Number of slots, mounted or not.
    pub(crate) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("at most SEGMENTS_MAX")
    }

    /// Returns the segment with this id and its slot.
    pub(crate) fn find(&self, id: SegmentId) -> Option<(SegmentSlot, &MountedSegment)> {
        let slot = *self.by_id.get(&id)?;
        Some((slot, self.get(slot)?))
    }

    /// Returns the segment in a slot, if it is mounted.
    #[inline]
    pub(crate) fn get(&self, slot: SegmentSlot) -> Option<&MountedSegment> {
        self.slots.get(slot.index())?.mounted.as_deref()
    }

    /// Slots of the mounted segments with this endpoint.
    pub(crate) fn of_endpoint(&self, endpoint: &[u8]) -> &[SegmentSlot] {
        self.by_endpoint.get(endpoint).map_or(&[], Vec::as_slice)
    }

    /// Returns true if a segment with this name is mounted.
    pub(crate) fn has_name(&self, name: &[u8]) -> bool {
        self.of_name.contains_key(name)
    }

    /// Number of replicas in the segments with this name that do not belong to `client`.
    pub(crate) fn replicas_of_others(&self, name: &[u8], client: ClientId) -> u64 {
        if !self.has_name(name) {
            return 0;
        }
        let slots = (0..self.slots.len()).map(SegmentSlot::from_index);
        let is_other = |slot: &SegmentSlot| {
            self.get(*slot).is_some_and(|other| other.client != client && other.segment.name.0 == name)
        };
        slots.filter(is_other).map(|slot| u64::from(self.replicas(slot))).sum()
    }

    /// Mounts a segment and returns its slot. The id must not be mounted.
    pub(crate) fn mount(&mut self, mut segment: Segment, client: ClientId) -> SegmentSlot {
        share_protocol(&mut segment);
        let slot = self.spare.pop().unwrap_or_else(|| {
            self.slots.push(SegmentEntry::default());
            SegmentSlot::from_index(self.slots.len() - 1)
        });
        self.open(slot, &segment);
        let memory = OffsetAllocator::new(segment.size);
        self.insert(slot, segment, client, true, memory);
        slot
    }

    fn insert(
        &mut self,
        at: SegmentSlot,
        segment: Segment,
        client: ClientId,
        confirmed: bool,
        memory: OffsetAllocator,
    ) {
        debug_assert!(!self.by_id.contains_key(&segment.id), "an id is mounted once");
        self.by_id.insert(segment.id, at);
        self.by_endpoint.entry(segment.te_endpoint.0.clone()).or_default().push(at);
        *self.of_name.entry(segment.name.0.clone()).or_default() += 1;
        self.capacity += segment.size;
        let status = SegmentStatus::OK;
        let open = confirmed;
        let held_until = None;
        let grace_until = None;
        let used = 0;
        let free = FreeEnds::default();
        let mounted =
            MountedSegment { segment, client, status, confirmed, open, held_until, grace_until, used, memory, free };
        let entry = &mut self.slots[at.index()];
        entry.mounted = Some(Box::new(mounted));
        entry.never_confirmed = false;
    }

    /// Makes the segment unreadable and closes it to new objects. The caller must call `retire`
    /// later.
    pub(crate) fn condemn(&mut self, slot: SegmentSlot) {
        if let Some(mounted) = self.slots[slot.index()].mounted.as_mut() {
            mounted.status = SegmentStatus::UNMOUNTING;
        }
    }

    /// Returns true if the replicas in this slot can be read.
    #[inline]
    pub(crate) fn is_readable(&self, slot: SegmentSlot) -> bool {
        self.get(slot).is_some_and(|mounted| mounted.status != SegmentStatus::UNMOUNTING && mounted.confirmed)
    }

    /// Returns true if the replicas in this slot are not lost: they can be read, or will be once
    /// the segment's client confirms it.
    #[inline]
    pub(crate) fn is_kept(&self, slot: SegmentSlot) -> bool {
        self.get(slot).is_some_and(|mounted| mounted.status != SegmentStatus::UNMOUNTING)
    }

    /// Stops allocation in the segment, which will be unmounted at `until`.
    pub(crate) fn close(&mut self, slot: SegmentSlot, until: Mono) {
        if let Some(mounted) = self.slots[slot.index()].mounted.as_mut() {
            mounted.status = SegmentStatus::GRACEFULLY_UNMOUNTING;
            mounted.grace_until = Some(until);
            mounted.open = false;
            let segment = mounted.segment.clone();
            self.shut(slot, &segment);
        }
    }

    /// Removes the segment and moves its allocator to `waste`.
    pub(crate) fn retire(&mut self, slot: SegmentSlot, waste: &mut Vec<OffsetAllocator>) -> Option<RetiredSegment> {
        let entry = &mut self.slots[slot.index()];
        let MountedSegment { segment, client, used, memory, confirmed, .. } = *entry.mounted.take()?;
        entry.never_confirmed = !confirmed;
        waste.push(memory);
        self.by_id.remove(&segment.id);
        if let Some(slots) = self.by_endpoint.get_mut(&segment.te_endpoint.0) {
            slots.retain(|other| *other != slot);
            if slots.is_empty() {
                self.by_endpoint.remove(&segment.te_endpoint.0);
            }
        }
        self.shut(slot, &segment);
        let left = self.of_name.get_mut(&segment.name.0).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            self.of_name.remove(&segment.name.0);
        }
        self.capacity -= segment.size;
        self.used -= used;
        if self.slots[slot.index()].replicas == 0 {
            self.spare.push(slot);
        }
        Some(RetiredSegment { segment, client, last_of_name: left == 0, replicas: self.slots[slot.index()].replicas })
    }

    /// Counts a replica of a new object: its bytes as used, and its reference to the slot. The slot
    /// must exist.
    #[inline(always)]
    pub(crate) fn count_replica(&mut self, replica: &ReplicaRecord, bytes: u64) {
        let entry = &mut self.slots[replica.segment.index()];
        entry.replicas += 1;
        if let Some(mounted) = entry.mounted.as_mut() {
            mounted.used += bytes;
            self.used += bytes;
        }
        // The allocation of the replica has already chosen a higher number, unless it was made by
        // another process.
        self.next_replica = self.next_replica.max(replica.id.saturating_add(1));
    }

    /// Stops counting the bytes of a replica as used. The caller must call `release` later. Returns
    /// false if the segment has been removed.
    pub(crate) fn stop_counting(&mut self, replica: &ReplicaRecord, bytes: u64) -> bool {
        let Some(mounted) = self.slots[replica.segment.index()].mounted.as_mut() else { return false };
        mounted.used -= bytes;
        self.used -= bytes;
        true
    }

    /// Returns a range to the segment's allocator, unless the segment has been removed. The slot
    /// loses one reference.
    pub(crate) fn release(&mut self, segment: SegmentSlot, ticket: u32) {
        let slot = &mut self.slots[segment.index()];
        slot.replicas -= 1;
        match slot.mounted.as_mut() {
            Some(mounted) => mounted.memory.free(ticket),
            None if slot.replicas == 0 => self.spare.push(segment),
            None => {}
        }
    }

    /// Number of names that accept new objects.
    pub(crate) fn open_names(&self) -> usize {
        self.open.len()
    }

    fn open(&mut self, slot: SegmentSlot, segment: &Segment) {
        let name = &segment.name.0;
        let host = &segment.host_id.0;
        if !host.is_empty() {
            *self.hosts.entry(host.clone()).or_default().entry(name.clone()).or_default() += 1;
        }
        if let Some(&at) = self.open_by_name.get(name) {
            self.open[at as usize].segments.push(slot);
        } else {
            let at = u32::try_from(self.open.len()).expect("at most SEGMENTS_MAX");
            self.open_by_name.insert(name.clone(), at);
            self.open.push(OpenName { name: name.clone(), segments: vec![slot] });
        }
    }

    /// Stops offering the segment for new objects. Does nothing if the segment is already closed to
    /// new objects.
    fn shut(&mut self, slot: SegmentSlot, segment: &Segment) {
        let name = &segment.name.0;
        let host = &segment.host_id.0;
        let Some(&at) = self.open_by_name.get(name) else { return };
        let segments = &mut self.open[at as usize].segments;
        let Some(found) = segments.iter().position(|other| *other == slot) else { return };
        segments.remove(found);
        if let Some(names) = self.hosts.get_mut(host) {
            if let Some(count) = names.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    names.remove(name);
                }
            }
            if names.is_empty() {
                self.hosts.remove(host);
            }
        }
        let segments = &self.open[at as usize].segments;
        if segments.is_empty() {
            self.open_by_name.remove(name);
            self.open.swap_remove(at as usize);
            if let Some(moved) = self.open.get(at as usize) {
                self.open_by_name.insert(moved.name.clone(), at);
            }
        }
    }
}

/// Maximum number of segments tried per name. A client may mount thousands of segments under one
/// name.
const CHUNKS_TRIED_MAX: usize = 100;

impl SegmentPool for SegmentTable {
    type Allocation = ReplicaRecord;

    fn names(&self) -> usize {
        self.open.len()
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        self.open_by_name.get(name).map(|at| *at as usize)
    }

    fn near(&self, host: &[u8], draw: u64, count: usize) -> Vec<usize> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let from = self.hosts.range::<[u8], _>((Included(host), Unbounded));
        let around = self.hosts.range::<[u8], _>((Unbounded, Excluded(host)));
        let names = from.chain(around).flat_map(|(_, names)| {
            let begin = usize::try_from(draw % names.len().max(1) as u64).unwrap_or(0);
            names.keys().skip(begin).chain(names.keys().take(begin))
        });
        names.filter_map(|name| SegmentPool::find(self, name)).take(count).collect()
    }

    fn host(&self, name: usize) -> Option<Bytes> {
        let segment = self.open[name].segments.first()?;
        Some(&self.get(*segment)?.segment.host_id.0).filter(|host| !host.is_empty()).cloned()
    }

    fn free_ratio(&self, name: usize) -> f64 {
        let mut used = 0u64;
        let mut size = 0u64;
        for mounted in self.open[name].segments.iter().take(CHUNKS_TRIED_MAX).filter_map(|slot| self.get(*slot)) {
            used += mounted.used;
            size += mounted.segment.size;
        }
        1.0 - used as f64 / (size as f64).max(1.0)
    }

    fn allocate(&mut self, name: usize, bytes: u64, draw: u64) -> Option<ReplicaRecord> {
        let segments = &self.open[name].segments;
        let count = segments.len();
        let start = usize::try_from(draw % count as u64).unwrap_or(0);
        for i in 0..count.min(CHUNKS_TRIED_MAX) {
            let segment = segments[(start + i) % count];
            let entry = &mut self.slots[segment.index()];
            let Some(mounted) = entry.mounted.as_mut().filter(|mounted| mounted.status == SegmentStatus::OK) else {
                continue;
            };
            if let Some(block) = mounted.memory.allocate(bytes) {
                // The record of the object counts the replica.
                let id = self.next_replica;
                self.next_replica += 1;
                return Some(ReplicaRecord { segment, ticket: block.ticket, offset: block.offset, id });
            }
        }
        None
    }
}

/// A segment that has just been retired, for reporting to subscribers.
#[derive(Debug)]
pub(super) struct RetiredSegment {
    pub segment: Segment,
    pub client: ClientId,
    pub last_of_name: bool,
    /// Number of replicas in it.
    pub replicas: u32,
}
