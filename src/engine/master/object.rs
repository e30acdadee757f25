//! The object records. A table of 8-byte slots maps each key to its record; the records are in a
//! slab that never moves.
//!
//! This file implements none of the store's rules; it only keeps the records consistent. A record
//! takes 160 bytes, half of them for the key. Including its share of the table (10 to 20 bytes) and
//! its allocator run (24 bytes), an object with one replica costs about 200 bytes. Storing the key
//! in the record saves one cache miss per lookup. Keys longer than [`INLINE`] are stored elsewhere.

use std::hash::BuildHasher;
use std::hint::black_box;

use foldhash::fast::FixedState;

use crate::alloc::Chunked;
use crate::eviction::index::{EvictionEntry, PendingPin, SoftPin};
use crate::hash_index::HashIndex;
use crate::long_keys::LongKeys;
use crate::slots::{GroupSlot, ObjectSlot, OwnerSlot, SegmentSlot};
use mcctl_base::Mono;

/// Maximum number of objects. The index is a `u32`; the upper half of its range stays unused as a
/// safety margin.
pub(super) const OBJECTS_MAX: u32 = 1 << 31;

/// Longest key stored inside its record, in bytes. An SGLang key is 64 hexadecimal digits and a
/// suffix.
const INLINE: usize = 80;

/// Maximum number of keys that [`ObjectTable::warm`] handles per call.
const WARM_MAX: usize = 64;

/// A range of a segment that belongs to an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplicaRecord {
    /// Slot in the segment table.
    pub segment: SegmentSlot,
    /// Identifies the range in the segment's allocator. 0 in records, and in a state that is being
    /// loaded.
    pub ticket: u32,
    /// Offset of the first byte in the segment.
    pub offset: u64,
    /// The replica id reported to clients.
    pub id: u64,
}

/// The tickets are not compared: a record has none.
impl PartialEq for ReplicaRecord {
    fn eq(&self, other: &ReplicaRecord) -> bool {
        (self.segment, self.offset, self.id) == (other.segment, other.offset, other.id)
    }
}

impl Eq for ReplicaRecord {}

/// One object. The alignment makes it span three cache lines: the key starts on the first, and
/// `eviction` is on the third.
#[derive(Debug)]
#[repr(C, align(32))]
pub(super) struct ObjectRecord {
    hash: u32,
    key_len: u32,
    /// The key, or for a long key its slot in [`LongKeys`].
    key: [u8; INLINE],
    /// The first replica; the others are in `extra`. An object has at least one.
    pub replica: ReplicaRecord,
    /// Requested size in bytes.
    pub size: u64,
    /// Attributes that most objects do not have.
    pub extra: Option<Box<ObjectExtra>>,
    /// The writer while the object is being written, as a slot of `OwnerTable`; otherwise
    /// [`OwnerSlot::NONE`].
    pub owner: OwnerSlot,
    /// The part that belongs to the eviction index.
    pub eviction: EvictionEntry,
}

/// Attributes that most objects do not have.
#[derive(Debug, Default)]
pub(super) struct ObjectExtra {
    /// All replicas except the first.
    pub replicas: Vec<ReplicaRecord>,
    pub soft_pin: SoftPin,
    /// The group, and the neighbors in its member list.
    pub group: Option<GroupMembership>,
}

impl ObjectExtra {
    /// The attributes of a new object without a group; `None` if it has none.
    pub(crate) fn boxed(self) -> Option<Box<ObjectExtra>> {
        let is_needed = !self.replicas.is_empty() || self.soft_pin.is_set();
        is_needed.then(|| Box::new(self))
    }
}

/// An object's position in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupMembership {
    pub group: GroupSlot,
    /// Neighbors in the member list.
    pub prev: ObjectSlot,
    pub next: ObjectSlot,
}

impl ObjectRecord {
    /// A slot that never contained an object.
    fn free_slot() -> ObjectRecord {
        ObjectRecord {
            hash: 0,
            key_len: 0,
            key: [0; INLINE],
            replica: ReplicaRecord { segment: SegmentSlot(0), ticket: 0, offset: 0, id: 0 },
            size: 0,
            extra: None,
            owner: OwnerSlot::NONE,
            eviction: EvictionEntry::free(ObjectSlot::NIL, ObjectSlot::NIL),
        }
    }

    /// The replicas after the first.
    pub(crate) fn more_replicas(&self) -> &[ReplicaRecord] {
        self.extra.as_ref().map_or(&[], |extra| &extra.replicas)
    }

    /// Iterates over all replicas, first replica first.
    pub(crate) fn replicas_mut(&mut self) -> impl Iterator<Item = &mut ReplicaRecord> {
        std::iter::once(&mut self.replica).chain(self.extra.iter_mut().flat_map(|extra| &mut extra.replicas))
    }

    /// Replaces all replicas. The caller frees the previous ones.
    pub(crate) fn set_replicas(&mut self, first: ReplicaRecord, rest: Vec<ReplicaRecord>) {
        self.replica = first;
        if !rest.is_empty() || self.extra.is_some() {
            self.extra_mut().replicas = rest;
        }
    }

    /// Iterates over all replicas, first replica first.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = &ReplicaRecord> {
        std::iter::once(&self.replica).chain(self.extra.iter().flat_map(|extra| &extra.replicas))
    }

    /// The slot of the object's group.
    pub(crate) fn group(&self) -> Option<GroupSlot> {
        Some(self.extra.as_ref()?.group?.group)
    }

    /// Returns the extra attributes, creating them if necessary.
    pub(crate) fn extra_mut(&mut self) -> &mut ObjectExtra {
        self.extra.get_or_insert_default()
    }

    /// Sets how the soft pin changes when the write in progress ends.
    pub(crate) fn set_pending_pin(&mut self, pending: PendingPin) {
        if pending != PendingPin::Keep || self.extra.is_some() {
            self.extra_mut().soft_pin.set_pending(pending);
        }
    }

    /// End of the soft pin, if one is set. It may be in the past.
    pub(crate) fn soft_pin(&self) -> Option<Mono> {
        self.extra.as_ref()?.soft_pin.end()
    }
}

/// A key and its hash, so that each key is hashed only once.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashedKey<'a> {
    pub key: &'a [u8],
    hash: u32,
}

/// All object records, found by key or by slot.
#[derive(Debug)]
pub(super) struct ObjectTable {
    table: HashIndex,
    slots: Chunked<ObjectRecord>,
    keys: LongKeys,
    /// First free slot. The entries of free slots link them.
    spare: ObjectSlot,
    /// Any free slot may be used next, so the list of free slots is linked in both directions.
    is_any_slot_next: bool,
    len: u32,
    hasher: FixedState,
}

impl ObjectTable {
    /// Creates an empty table. `seed` determines the hash order, so that a run can be replayed.
    pub(crate) fn new(seed: u64) -> ObjectTable {
        ObjectTable {
            table: HashIndex::new(),
            slots: Chunked::default(),
            keys: LongKeys::default(),
            spare: ObjectSlot::NIL,
            is_any_slot_next: false,
            len: 0,
            hasher: FixedState::with_seed(seed),
        }
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Number of slots, used or free. Every index is below this number.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len()
    }

    /// Hashes a key with the table's seed.
    #[expect(clippy::cast_possible_truncation, reason = "32 bits of the hash are enough for 2^31 objects")]
    pub(crate) fn hash<'a>(&self, key: &'a [u8]) -> HashedKey<'a> {
        HashedKey { key, hash: self.hasher.hash_one(key) as u32 }
    }

    /// Returns the object with this key.
    pub(crate) fn find(&self, key: HashedKey<'_>) -> Option<ObjectSlot> {
        self.table.find(key.hash, |at| self.has_key(ObjectSlot(at), key)).map(ObjectSlot)
    }

    fn has_key(&self, at: ObjectSlot, name: HashedKey<'_>) -> bool {
        let object = &self.slots[at.0];
        object.key_len as usize == name.key.len() && self.key_of(object) == name.key
    }

    /// Prefetches the cache lines that a lookup of these keys will touch.
    ///
    /// A lookup is a chain of cache misses (table, record, key), and the processor waits for each.
    /// This function does each step for all keys in a batch, so that the misses overlap. The values
    /// it reads do not matter.
    pub(crate) fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        let mut hashes = [0u32; WARM_MAX];
        let mut count = 0;
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(key).hash;
            count += 1;
        }
        let hashes = &hashes[..count];
        black_box(hashes.iter().fold(0, |sum, hash| sum ^ self.table.touch(*hash)));
        let mut found = [ObjectSlot::NIL; WARM_MAX];
        for (found, hash) in found.iter_mut().zip(hashes) {
            *found = self.table.guess(*hash).map_or(ObjectSlot::NIL, ObjectSlot);
        }
        // A record spans three cache lines: the key starts on the first and ends on the second, and
        // the links are on the third. Of the neighbors, only the links are modified.
        let links = |at: ObjectSlot| self.slots.get(at.0).map_or(0, |object| object.eviction.neighbors().0.0);
        black_box(found.iter().fold(0, |sum, at| {
            let Some(object) = self.slots.get(at.0) else { return sum };
            sum ^ u32::from(object.key[0]) ^ u32::from(object.key[INLINE - 1]) ^ object.eviction.neighbors().0.0
        }));
        black_box(found.iter().fold(
            0,
            |sum, at| match self.slots.get(at.0).map(|object| object.eviction.neighbors()) {
                Some((prev, next)) => sum ^ links(prev) ^ links(next),
                None => sum,
            },
        ));
    }

    /// The slot of the next new object.
    #[inline]
    pub(crate) fn next_slot(&self) -> ObjectSlot {
        if self.spare == ObjectSlot::NIL { ObjectSlot(self.slots.len()) } else { self.spare }
    }

    /// Inserts a new object at the next slot.
    #[cfg(test)]
    pub(crate) fn insert(&mut self, key: HashedKey<'_>, new: NewObject) -> ObjectSlot {
        let at = self.next_slot();
        self.insert_at(at, key, new);
        at
    }

    fn record_of(&mut self, key: HashedKey<'_>, new: NewObject) -> ObjectRecord {
        debug_assert!(self.find(key).is_none(), "a key is inserted only once");
        ObjectRecord {
            hash: key.hash,
            key_len: u32::try_from(key.key.len()).expect("keys are at most RECORDED_KEY_BYTES_MAX"),
            key: self.encode_key(key.key),
            replica: new.replica,
            size: new.size,
            extra: new.extra,
            owner: new.owner,
            eviction: EvictionEntry::new(new.hard_pin),
        }
    }

    /// Inserts a new object, which is not in the eviction index, at exactly this slot. The slot
    /// must be free or the next one of the table, and `key` must not be in the table. Unless the
    /// slot is that of [`next_slot`](Self::next_slot), or any slot may be next, the list of free
    /// slots is wrong until [`relink_free_slots`](Self::relink_free_slots).
    #[inline]
    pub(crate) fn insert_at(&mut self, at: ObjectSlot, key: HashedKey<'_>, new: NewObject) {
        let object = self.record_of(key, new);
        if at.0 == self.slots.len() {
            self.slots.push(object);
        } else {
            debug_assert!(self.get(at).is_none(), "a slot contains one object");
            let (before, after) = self.slots[at.0].eviction.neighbors();
            if at == self.spare {
                self.spare = after;
            }
            if self.is_any_slot_next {
                self.link_free(before, after);
            }
            self.slots[at.0] = object;
        }
        self.table.insert(key.hash, at.0);
        self.len += 1;
    }

    /// Adds free slots until the table has `slots` slots.
    pub(crate) fn extend_to(&mut self, slots: u32) {
        while self.slots.len() < slots {
            self.slots.push(ObjectRecord::free_slot());
        }
    }

    /// Rebuilds the list of free slots, lowest slot first.
    pub(crate) fn relink_free_slots(&mut self) {
        self.spare = ObjectSlot::NIL;
        for at in (0..self.slots.len()).rev() {
            if self.slots[at].eviction.is_free() {
                self.add_free(ObjectSlot(at), true);
            }
        }
    }

    /// Sets whether any free slot may be used next. The list of free slots must be complete.
    pub(crate) fn set_any_slot_next(&mut self, is_any: bool) {
        self.is_any_slot_next = is_any;
    }

    /// The free slots, in the order of the list.
    #[cfg(test)]
    pub(crate) fn free_slots(&self) -> Vec<ObjectSlot> {
        let is_slot = |at: &ObjectSlot| *at != ObjectSlot::NIL;
        let next = |at: &ObjectSlot| Some(self.slots[at.0].eviction.neighbors().1).filter(is_slot);
        std::iter::successors(Some(self.spare).filter(is_slot), next).collect()
    }

    /// Adds a slot to the free ones. `both`: links it in both directions.
    #[inline]
    fn add_free(&mut self, at: ObjectSlot, both: bool) {
        let next = std::mem::replace(&mut self.spare, at);
        self.slots[at.0].eviction = EvictionEntry::free(ObjectSlot::NIL, next);
        if both && next != ObjectSlot::NIL {
            self.slots[next.0].eviction.set_free_links(Some(at), None);
        }
    }

    /// Makes two free slots neighbors. Either of them may be `NIL`.
    fn link_free(&mut self, before: ObjectSlot, after: ObjectSlot) {
        if before != ObjectSlot::NIL {
            self.slots[before.0].eviction.set_free_links(None, Some(after));
        }
        if after != ObjectSlot::NIL {
            self.slots[after.0].eviction.set_free_links(Some(before), None);
        }
    }

    /// Removes the object. The caller must release the returned resources.
    pub(crate) fn remove(&mut self, at: ObjectSlot) -> RemovedObject {
        let existed = self.table.remove(self.slots[at.0].hash, at.0);
        debug_assert!(existed, "every live object is in the table");
        let object = &mut self.slots[at.0];
        if object.key_len as usize > INLINE {
            self.keys.remove(long_slot(&object.key), object.key_len);
        }
        debug_assert!(object.eviction.is_unlisted(), "an object leaves the eviction index before it is removed");
        let removed = RemovedObject { size: object.size, replica: object.replica, extra: object.extra.take() };
        self.add_free(at, self.is_any_slot_next);
        self.len -= 1;
        removed
    }

    /// Returns the key of an object.
    pub(crate) fn key(&self, at: ObjectSlot) -> &[u8] {
        self.key_of(&self.slots[at.0])
    }

    #[inline]
    fn key_of<'a>(&'a self, object: &'a ObjectRecord) -> &'a [u8] {
        match object.key.get(..object.key_len as usize) {
            Some(key) => key,
            None => self.keys.get(long_slot(&object.key), object.key_len),
        }
    }

    /// Encodes a key for its record. A long key is stored in [`LongKeys`].
    fn encode_key(&mut self, key: &[u8]) -> [u8; INLINE] {
        let mut kept = [0; INLINE];
        match kept.get_mut(..key.len()) {
            Some(kept) => kept.copy_from_slice(key),
            None => kept[..4].copy_from_slice(&self.keys.insert(key).to_le_bytes()),
        }
        kept
    }

    /// Returns the object in a slot, or `None` for a free slot.
    pub(crate) fn get(&self, at: ObjectSlot) -> Option<&ObjectRecord> {
        self.slots.get(at.0).filter(|object| !object.eviction.is_free())
    }
}

impl std::ops::Index<ObjectSlot> for ObjectTable {
    type Output = ObjectRecord;
    #[inline]
    fn index(&self, at: ObjectSlot) -> &ObjectRecord {
        &self.slots[at.0]
    }
}

impl std::ops::IndexMut<ObjectSlot> for ObjectTable {
    #[inline]
    fn index_mut(&mut self, at: ObjectSlot) -> &mut ObjectRecord {
        &mut self.slots[at.0]
    }
}

/// Returns the [`LongKeys`] slot of a key that is too long for its record.
fn long_slot(kept: &[u8; INLINE]) -> u32 {
    u32::from_le_bytes([kept[0], kept[1], kept[2], kept[3]])
}

/// Initial values of a new object.
#[derive(Debug)]
pub(super) struct NewObject {
    pub owner: OwnerSlot,
    pub size: u64,
    pub replica: ReplicaRecord,
    pub extra: Option<Box<ObjectExtra>>,
    pub hard_pin: bool,
}

/// Resources of a removed object that the caller must release.
#[derive(Debug)]
pub(super) struct RemovedObject {
    /// Requested size of each replica in bytes.
    pub size: u64,
    replica: ReplicaRecord,
    pub extra: Option<Box<ObjectExtra>>,
}

impl RemovedObject {
    /// Iterates over all replicas, first replica first.
    #[inline]
    pub(crate) fn replicas(&self) -> impl Iterator<Item = &ReplicaRecord> {
        std::iter::once(&self.replica).chain(self.extra.iter().flat_map(|extra| &extra.replicas))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_160_bytes() {
        assert_eq!(size_of::<ObjectRecord>(), 160);
    }

    #[test]
    fn keys_of_every_length_are_found() {
        let mut objects = ObjectTable::new(1);
        let made: Vec<Vec<u8>> = (1..300usize).map(|len| vec![(len % 7) as u8; len]).collect();
        let replica = ReplicaRecord { segment: SegmentSlot(0), ticket: 0, offset: 0, id: 0 };
        let new = || NewObject { owner: OwnerSlot::NONE, size: 1, replica, extra: None, hard_pin: false };
        let at: Vec<ObjectSlot> = made.iter().map(|key| objects.insert(objects.hash(key), new())).collect();
        for (key, at) in made.iter().zip(&at) {
            assert_eq!((objects.find(objects.hash(key)), objects.key(*at)), (Some(*at), &key[..]));
        }
        for at in at.iter().step_by(2) {
            objects.remove(*at);
        }
        for (nth, (key, at)) in made.iter().zip(&at).enumerate() {
            assert_eq!(objects.find(objects.hash(key)), (nth % 2 == 1).then_some(*at));
        }
    }
}
