//! The mounted segments: their memory, their names, and who may take from them.
//!
//! A segment that goes is *gone* at once: nothing is allocated from it or read in it from then on. Its slot stays reserved until
//! no record points to it any more, so a stale replica can never be taken for one of a later segment.

use std::collections::BTreeMap;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::engine::alloc::placement::Pool;
use crate::engine::alloc::{Allocator, OffsetAllocator};
use crate::engine::base::{ClientId, Mono, SegmentId};
use crate::engine::master::object::Replica;
use crate::engine::wire::types::{Segment, SegmentStatus};

/// Segments that are kept at most, gone ones with records left included.
pub(super) const SEGMENTS_MAX: usize = 1 << 18;

/// The largest segment: 32 TiB, more than any host has. So the bytes of all segments together fit into 64 bits.
pub(super) const SEGMENT_BYTES_MAX: u64 = 1 << 45;
const _: () = assert!(SEGMENT_BYTES_MAX.checked_mul(SEGMENTS_MAX as u64).is_some());

/// The longest name, endpoint or protocol, bytes.
pub(super) const NAME_BYTES_MAX: usize = 4096;

/// The protocols that there are.
const PROTOCOLS: [&str; 2] = ["tcp", "rdma"];

/// A mounted segment.
#[derive(Debug)]
pub(super) struct Mounted {
    /// As the client described it.
    pub segment: Segment,
    /// Whose it is.
    pub client: ClientId,
    /// Mounted or going.
    pub status: SegmentStatus,
    /// When it goes.
    pub grace_until: Option<Mono>,
    /// Bytes asked for by what is in it.
    pub used: u64,
    memory: OffsetAllocator,
}

/// All segments.
#[derive(Debug)]
pub(super) struct Segments {
    slots: Vec<Slot>,
    spare: Vec<u32>,
    by_id: HashMap<SegmentId, u32, FixedState>,
    /// All mounted segments of an endpoint.
    by_endpoint: HashMap<Bytes, Vec<u32>, FixedState>,
    /// How many mounted segments a name has.
    of_name: HashMap<Bytes, u32, FixedState>,
    /// Names with a segment that takes new objects, without gaps, in no particular order.
    open: Vec<OpenName>,
    open_by_name: HashMap<Bytes, u32, FixedState>,
    /// How many segments that take new objects each name of each host has.
    hosts: BTreeMap<Bytes, BTreeMap<Bytes, u32>>,
    capacity: u64,
    used: u64,
    next_replica: u64,
}

#[derive(Debug, Default)]
struct Slot {
    mounted: Option<Box<Mounted>>,
    /// Records that point here.
    replicas: u32,
}

#[derive(Debug)]
struct OpenName {
    name: Bytes,
    segments: Vec<u32>,
}

impl Segments {
    /// None.
    pub fn new(seed: u64) -> Segments {
        let hasher = || FixedState::with_seed(seed);
        Segments {
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

    /// Bytes of all mounted segments.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes asked for by what is in them.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Is there room for one more?
    pub fn is_full(&self) -> bool {
        self.spare.is_empty() && self.slots.len() >= SEGMENTS_MAX
    }

    /// Slots, mounted or not.
    pub fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("at most SEGMENTS_MAX")
    }

    /// The segment with this id.
    pub fn find(&self, id: SegmentId) -> Option<(u32, &Mounted)> {
        let slot = *self.by_id.get(&id)?;
        Some((slot, self.get(slot)?))
    }

    /// The segment in a slot, if it is mounted.
    #[inline]
    pub fn get(&self, slot: u32) -> Option<&Mounted> {
        self.slots.get(slot as usize)?.mounted.as_deref()
    }

    /// The mounted segments of an endpoint.
    pub fn of_endpoint(&self, endpoint: &[u8]) -> &[u32] {
        self.by_endpoint.get(endpoint).map_or(&[], Vec::as_slice)
    }

    /// Is a segment of this name mounted?
    pub fn has_name(&self, name: &[u8]) -> bool {
        self.of_name.contains_key(name)
    }

    /// Mount a segment whose id is not mounted; its slot.
    pub fn mount(&mut self, mut segment: Segment, client: ClientId) -> u32 {
        // Every answer carries a clone of it, and a clone of a constant counts nothing.
        if let Some(known) = PROTOCOLS.iter().find(|known| segment.protocol.0 == known.as_bytes()) {
            segment.protocol.0 = Bytes::from_static(known.as_bytes());
        }
        debug_assert!(!self.by_id.contains_key(&segment.id), "an id is mounted once");
        let slot = self.spare.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots() - 1
        });
        self.by_id.insert(segment.id, slot);
        self.by_endpoint.entry(segment.te_endpoint.0.clone()).or_default().push(slot);
        *self.of_name.entry(segment.name.0.clone()).or_default() += 1;
        self.capacity += segment.size;
        self.open(slot, &segment);
        let memory = OffsetAllocator::new(segment.size);
        let mounted = Mounted { segment, client, status: SegmentStatus::OK, grace_until: None, used: 0, memory };
        self.slots[slot as usize].mounted = Some(Box::new(mounted));
        slot
    }

    /// Nothing is read in it or put into it any more; `retire` follows.
    pub fn condemn(&mut self, slot: u32) {
        if let Some(mounted) = self.slots[slot as usize].mounted.as_mut() {
            mounted.status = SegmentStatus::UNMOUNTING;
        }
    }

    /// Can the replicas in this slot be read?
    #[inline]
    pub fn is_readable(&self, slot: u32) -> bool {
        self.get(slot).is_some_and(|mounted| mounted.status != SegmentStatus::UNMOUNTING)
    }

    /// Take no new objects into it from now on; it goes at `until`.
    pub fn close(&mut self, slot: u32, until: Mono) {
        if let Some(mounted) = self.slots[slot as usize].mounted.as_mut() {
            mounted.status = SegmentStatus::GRACEFULLY_UNMOUNTING;
            mounted.grace_until = Some(until);
            let segment = mounted.segment.clone();
            self.shut(slot, &segment);
        }
    }

    /// The segment is gone. Its memory's records go to `waste`.
    pub fn retire(&mut self, slot: u32, waste: &mut Vec<OffsetAllocator>) -> Option<Departed> {
        let Mounted { segment, client, used, memory, .. } = *self.slots[slot as usize].mounted.take()?;
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
        if self.slots[slot as usize].replicas == 0 {
            self.spare.push(slot);
        }
        Some(Departed { segment, client, last_of_name: left == 0 })
    }

    /// Give a replica's bytes back.
    pub fn free(&mut self, replica: &Replica, bytes: u64) {
        let slot = &mut self.slots[replica.segment as usize];
        slot.replicas -= 1;
        match slot.mounted.as_mut() {
            Some(mounted) => {
                mounted.memory.free(replica.ticket);
                mounted.used -= bytes;
                self.used -= bytes;
            }
            None if slot.replicas == 0 => self.spare.push(replica.segment),
            None => {}
        }
    }

    /// Names that take new objects.
    pub fn open_names(&self) -> usize {
        self.open.len()
    }

    fn open(&mut self, slot: u32, segment: &Segment) {
        let (name, host) = (&segment.name.0, &segment.host_id.0);
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

    /// The segment takes nothing new; it may be closed already.
    fn shut(&mut self, slot: u32, segment: &Segment) {
        let (name, host) = (&segment.name.0, &segment.host_id.0);
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

/// Segments of one name that are tried; a client may lend thousands of chunks under one.
const CHUNKS_TRIED_MAX: usize = 100;

impl Pool for Segments {
    type Taken = Replica;

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
        names.filter_map(|name| Pool::find(self, name)).take(count).collect()
    }

    fn free_ratio(&self, name: usize) -> f64 {
        let (mut used, mut size) = (0u64, 0u64);
        for mounted in self.open[name].segments.iter().take(CHUNKS_TRIED_MAX).filter_map(|slot| self.get(*slot)) {
            used += mounted.used;
            size += mounted.segment.size;
        }
        1.0 - used as f64 / (size as f64).max(1.0)
    }

    fn take(&mut self, name: usize, bytes: u64, draw: u64) -> Option<Replica> {
        let segments = &self.open[name].segments;
        let count = segments.len();
        let start = usize::try_from(draw % count as u64).unwrap_or(0);
        for i in 0..count.min(CHUNKS_TRIED_MAX) {
            let segment = segments[(start + i) % count];
            let slot = &mut self.slots[segment as usize];
            let Some(mounted) = slot.mounted.as_mut().filter(|mounted| mounted.status == SegmentStatus::OK) else {
                continue;
            };
            if let Some(block) = mounted.memory.allocate(bytes) {
                mounted.used += bytes;
                self.used += bytes;
                slot.replicas += 1;
                let id = self.next_replica;
                self.next_replica += 1;
                return Some(Replica { segment, ticket: block.ticket, offset: block.offset, id });
            }
        }
        None
    }
}

/// What is left of a segment to tell of.
#[derive(Debug)]
pub(super) struct Departed {
    pub segment: Segment,
    pub client: ClientId,
    pub last_of_name: bool,
}
