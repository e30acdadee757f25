//! The records of all objects: found by key through a table of 8-byte slots, kept in a slab that never moves.
//!
//! Nothing here knows a rule of the store; it keeps records whole. A record is 160 bytes, half of them for its key; with its share
//! of the table (10 to 20 bytes) and its allocator run (24) an object with one replica costs some 200 bytes. A key in its record is
//! one wait for memory less in every lookup; keys longer than [`INLINE`] lie elsewhere.

use std::hash::BuildHasher;
use std::hint::black_box;

use foldhash::fast::FixedState;

use crate::engine::alloc::Chunked;
use crate::engine::base::Mono;
use crate::engine::master::key::Keys;
use crate::engine::master::order::Place;
use crate::engine::master::table::Table;

/// No object.
pub(super) const NIL: u32 = u32::MAX;

/// Objects that are kept at most; the index is a `u32` and some are left for safety.
pub(super) const OBJECTS_MAX: u32 = 1 << 31;

/// The longest key that is kept in its record, bytes: SGLang's are 64 hexadecimal digits and a suffix.
const INLINE: usize = 80;

/// Keys that [`Objects::warm`] takes at a time.
const WARM_MAX: usize = 64;

/// A stretch of a segment that belongs to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    /// Slot in the segment table.
    pub segment: u32,
    /// The allocator's ticket.
    pub ticket: u32,
    /// First byte in the segment.
    pub offset: u64,
    /// What clients call it.
    pub id: u64,
}

/// One object. The alignment keeps it on three cache lines.
#[derive(Debug)]
#[repr(align(32))]
pub(super) struct Object {
    /// Of the key.
    hash: u32,
    key_len: u32,
    /// The key, or, if that is longer, the slot where it is kept.
    key: [u8; INLINE],
    /// The writer, as a slot of `Owners`.
    pub owner: u32,
    /// Bytes, as asked for.
    pub size: u64,
    /// Protected from removal and eviction before this; also the clock by which victims are chosen.
    pub lease_until: Mono,
    /// When the last write began.
    pub put_start: Mono,
    /// The first replica; more are in `extra`. An object has at least one.
    pub replica: Replica,
    /// Neighbours in the list that `place` names. `prev` is free for the list's owner.
    pub prev: u32,
    /// See `prev`.
    pub next: u32,
    /// What few objects have.
    pub extra: Option<Box<Extra>>,
    /// Which list or set of `Order` the object is in.
    pub place: Place,
    /// Being written: not readable, not evictable.
    pub processing: bool,
    /// Never evicted.
    pub hard_pin: bool,
}

/// What few objects have.
#[derive(Debug, Default)]
pub(super) struct Extra {
    /// Replicas after the first.
    pub replicas: Vec<Replica>,
    /// As the writer gave it.
    pub checksum: Option<u64>,
    /// The soft pin holds until then.
    pub soft_pin: Option<Mono>,
    /// What the write under way does to the soft pin when it ends.
    pub pending_pin: PendingPin,
    /// The group, and neighbours in it.
    pub group: Option<Membership>,
}

/// What a write does to the soft pin when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PendingPin {
    /// Leave it.
    #[default]
    Keep,
    /// Set it for so many milliseconds from the end of the write.
    Set(u64),
    /// Clear it.
    Clear,
}

/// An object's place in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    /// Slot in `Groups`.
    pub group: u32,
    /// Neighbours among the members.
    pub prev: u32,
    /// See `prev`.
    pub next: u32,
}

impl Object {
    /// All replicas.
    pub fn replicas(&self) -> impl Iterator<Item = &Replica> {
        std::iter::once(&self.replica).chain(self.extra.iter().flat_map(|extra| &extra.replicas))
    }

    /// The group's slot.
    pub fn group(&self) -> Option<u32> {
        Some(self.extra.as_ref()?.group?.group)
    }

    /// What few objects have, made if missing.
    pub fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// The soft pin's end, if one is set (it may have passed).
    pub fn soft_pin(&self) -> Option<Mono> {
        self.extra.as_ref()?.soft_pin
    }
}

/// A key with its hash, so that it is hashed once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashed<'a> {
    pub key: &'a [u8],
    hash: u32,
}

/// All objects.
#[derive(Debug)]
pub(super) struct Objects {
    table: Table,
    slots: Chunked<Object>,
    keys: Keys,
    /// First free slot, linked by `next`.
    spare: u32,
    len: u32,
    hasher: FixedState,
}

impl Objects {
    /// None; `seed` decides the order of the table, so a run replays.
    pub fn new(seed: u64) -> Objects {
        Objects {
            table: Table::new(),
            slots: Chunked::default(),
            keys: Keys::default(),
            spare: NIL,
            len: 0,
            hasher: FixedState::with_seed(seed),
        }
    }

    /// Objects kept.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Slots, live or free: indices are below this.
    pub fn slots(&self) -> u32 {
        self.slots.len()
    }

    /// Hash a key.
    #[expect(clippy::cast_possible_truncation, reason = "32 bits of the hash are enough for 2^31 objects")]
    pub fn hash<'a>(&self, key: &'a [u8]) -> Hashed<'a> {
        Hashed { key, hash: self.hasher.hash_one(key) as u32 }
    }

    /// The object with this key.
    pub fn find(&self, key: Hashed<'_>) -> Option<u32> {
        self.table.find(key.hash, |at| self.is_named(at, key))
    }

    fn is_named(&self, at: u32, name: Hashed<'_>) -> bool {
        let object = &self.slots[at];
        object.key_len as usize == name.key.len() && self.key_of(object) == name.key
    }

    /// Bring near what looking these keys up will touch.
    ///
    /// A lookup is a chain of cache misses, table, record, key, and the processor waits for each. Here all lookups of a batch take
    /// each step together, so that their misses overlap. What is read does not matter, only that it was.
    pub fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        let mut hashes = [0u32; WARM_MAX];
        let mut count = 0;
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(key).hash;
            count += 1;
        }
        let hashes = &hashes[..count];
        black_box(hashes.iter().fold(0, |sum, hash| sum ^ self.table.touch(*hash)));
        let mut found = [NIL; WARM_MAX];
        for (found, hash) in found.iter_mut().zip(hashes) {
            *found = self.table.guess(*hash).unwrap_or(NIL);
        }
        // A record lies on three lines: its key begins on the first, ends on the second, and the links are on the third. Of the
        // neighbours only the links are written.
        let links = |at: u32| self.slots.get(at).map_or(0, |object| object.prev);
        black_box(found.iter().fold(0, |sum, at| {
            let Some(object) = self.slots.get(*at) else { return sum };
            sum ^ u32::from(object.key[0]) ^ u32::from(object.key[INLINE - 1]) ^ object.prev
        }));
        black_box(found.iter().fold(0, |sum, at| match self.slots.get(*at) {
            Some(object) => sum ^ links(object.prev) ^ links(object.next),
            None => sum,
        }));
    }

    /// Keep a new object under `key`, which must not be taken.
    pub fn insert(&mut self, key: Hashed<'_>, new: NewObject) -> u32 {
        debug_assert!(self.find(key).is_none(), "an object is kept once");
        let object = Object {
            hash: key.hash,
            key: self.keep_key(key.key),
            key_len: u32::try_from(key.key.len()).expect("keys are at most KEY_BYTES_MAX"),
            owner: new.owner,
            size: new.size,
            lease_until: Mono::ZERO,
            put_start: new.put_start,
            replica: new.replica,
            prev: NIL,
            next: NIL,
            extra: new.extra,
            place: Place::None,
            processing: true,
            hard_pin: new.hard_pin,
        };
        let at = if self.spare == NIL {
            self.slots.push(object)
        } else {
            let at = self.spare;
            self.spare = self.slots[at].next;
            self.slots[at] = object;
            at
        };
        self.table.insert(key.hash, at);
        self.len += 1;
        at
    }

    /// Forget the object; what it held besides its key comes back.
    pub fn remove(&mut self, at: u32) -> Removed {
        let was_there = self.table.remove(self.slots[at].hash, at);
        debug_assert!(was_there, "every live object is in the table");
        let object = &mut self.slots[at];
        if object.key_len as usize > INLINE {
            self.keys.remove(long_slot(&object.key), object.key_len);
        }
        debug_assert!(object.place == Place::None, "an object leaves its list before it goes");
        object.place = Place::Free;
        object.next = self.spare;
        self.spare = at;
        self.len -= 1;
        Removed { extra: object.extra.take(), owner: object.owner }
    }

    /// The key of an object.
    pub fn key(&self, at: u32) -> &[u8] {
        self.key_of(&self.slots[at])
    }

    #[inline]
    fn key_of<'a>(&'a self, object: &'a Object) -> &'a [u8] {
        match object.key.get(..object.key_len as usize) {
            Some(key) => key,
            None => self.keys.get(long_slot(&object.key), object.key_len),
        }
    }

    /// What the record keeps of a key; a long one goes elsewhere.
    fn keep_key(&mut self, key: &[u8]) -> [u8; INLINE] {
        let mut kept = [0; INLINE];
        match kept.get_mut(..key.len()) {
            Some(kept) => kept.copy_from_slice(key),
            None => kept[..4].copy_from_slice(&self.keys.insert(key).to_le_bytes()),
        }
        kept
    }

    /// The object in a slot, if there is one.
    pub fn get(&self, at: u32) -> Option<&Object> {
        self.slots.get(at).filter(|object| object.place != Place::Free)
    }
}

impl std::ops::Index<u32> for Objects {
    type Output = Object;
    fn index(&self, at: u32) -> &Object {
        &self.slots[at]
    }
}

impl std::ops::IndexMut<u32> for Objects {
    fn index_mut(&mut self, at: u32) -> &mut Object {
        &mut self.slots[at]
    }
}

/// Where a key is that is too long for its record.
fn long_slot(kept: &[u8; INLINE]) -> u32 {
    u32::from_le_bytes([kept[0], kept[1], kept[2], kept[3]])
}

/// What a new object begins with.
#[derive(Debug)]
pub(super) struct NewObject {
    pub owner: u32,
    pub size: u64,
    pub put_start: Mono,
    pub replica: Replica,
    pub extra: Option<Box<Extra>>,
    pub hard_pin: bool,
}

/// What an object leaves behind for its caller to settle.
#[derive(Debug)]
pub(super) struct Removed {
    pub extra: Option<Box<Extra>>,
    pub owner: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_160_bytes() {
        assert_eq!(size_of::<Object>(), 160);
    }

    #[test]
    fn keys_of_every_length_are_found_and_told_apart() {
        let mut objects = Objects::new(1);
        let made: Vec<Vec<u8>> = (1..300usize).map(|len| vec![(len % 7) as u8; len]).collect();
        let replica = Replica { segment: 0, ticket: 0, offset: 0, id: 0 };
        let new = || NewObject { owner: 0, size: 1, put_start: Mono::ZERO, replica, extra: None, hard_pin: false };
        let at: Vec<u32> = made.iter().map(|key| objects.insert(objects.hash(key), new())).collect();
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
