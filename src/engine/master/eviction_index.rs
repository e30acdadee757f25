//! The eviction order: all evictable objects, ordered by lease end, oldest first. The order is precise, not approximated.
//!
//! Almost every lease end is one of two kinds: a completed put sets it to *now*, a read to *now + TTL*. The values of each kind only
//! increase over time, so each kind has a linked list through the records, and new entries are appended at the tail. Repeatedly taking the
//! earlier of the two heads yields this order. Touching an object costs a few link updates instead of a tree operation. Objects with any
//! other lease end (after an expired soft pin or an upsert of a leased object) go into a small ordered set. Soft-pinned objects are in a
//! separate set. Hard-pinned objects and unfinished writes are not evictable and are not in the index.

use std::collections::BTreeSet;

use crate::engine::base::Mono;
use crate::engine::master::object::ObjectTable;
use crate::engine::master::slots::ObjectSlot;

/// The list or set that contains an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum EvictionList {
    /// In no list: the object is hard-pinned or about to move to another list.
    None,
    /// The slot contains no object.
    Free,
    /// Being written, ordered by the start of the write.
    Writing,
    /// Written but not read since, ordered by the end of the write.
    Written,
    /// Read, ordered by the last read.
    Read,
    /// In the ordered set for objects that fit neither list.
    Unordered,
    Pinned,
}

/// A doubly linked list through the records.
#[derive(Clone, Copy, Debug)]
struct RecordList {
    head: ObjectSlot,
    tail: ObjectSlot,
}

/// Orders all objects for eviction.
#[derive(Debug)]
pub(super) struct EvictionIndex {
    writing: RecordList,
    written: RecordList,
    read: RecordList,
    unordered: BTreeSet<(Mono, ObjectSlot)>,
    pinned: BTreeSet<(Mono, ObjectSlot)>,
    /// Soft-pinned objects, ordered by the end of the pin.
    pin_ends: BTreeSet<(Mono, ObjectSlot)>,
}

impl EvictionIndex {
    /// Creates an empty index.
    pub fn new() -> EvictionIndex {
        let list = RecordList { head: ObjectSlot::NIL, tail: ObjectSlot::NIL };
        EvictionIndex {
            writing: list,
            written: list,
            read: list,
            unordered: BTreeSet::new(),
            pinned: BTreeSet::new(),
            pin_ends: BTreeSet::new(),
        }
    }

    /// Moves the object to the list of writes in progress.
    pub fn begin_write(&mut self, objects: &mut ObjectTable, at: ObjectSlot) {
        self.remove(objects, at);
        append(&mut self.writing, objects, at);
        objects[at].list = EvictionList::Writing;
    }

    /// Inserts the object according to its lease, its pins and the current time. Call this when a write ends or a pin changes.
    pub fn insert(&mut self, objects: &mut ObjectTable, at: ObjectSlot, now: Mono) {
        self.remove(objects, at);
        let object = &objects[at];
        let lease = object.lease_until;
        let list = if object.hard_pin {
            EvictionList::None
        } else if let Some(end) = object.soft_pin().filter(|end| *end > now) {
            self.pinned.insert((lease, at));
            self.pin_ends.insert((end, at));
            EvictionList::Pinned
        } else if lease == now && fits(&self.written, objects, lease) {
            append(&mut self.written, objects, at);
            EvictionList::Written
        } else {
            self.unordered.insert((lease, at));
            EvictionList::Unordered
        };
        objects[at].list = list;
    }

    /// Records a read: the lease lasts at least until `lease`.
    pub fn touch(&mut self, objects: &mut ObjectTable, at: ObjectSlot, lease: Mono) {
        let object = &mut objects[at];
        let old = object.lease_until;
        if lease <= old {
            return;
        }
        object.lease_until = lease;
        match object.list {
            EvictionList::Pinned => {
                self.pinned.remove(&(old, at));
                self.pinned.insert((lease, at));
            }
            EvictionList::Written | EvictionList::Read | EvictionList::Unordered => {
                match object.list {
                    EvictionList::Written => detach(&mut self.written, objects, at),
                    EvictionList::Read => detach(&mut self.read, objects, at),
                    _ => {
                        self.unordered.remove(&(old, at));
                    }
                }
                if fits(&self.read, objects, lease) {
                    append(&mut self.read, objects, at);
                    objects[at].list = EvictionList::Read;
                } else {
                    self.unordered.insert((lease, at));
                    objects[at].list = EvictionList::Unordered;
                }
            }
            EvictionList::None | EvictionList::Writing | EvictionList::Free => {}
        }
    }

    /// Moves an indexed object to a later position without counting a read.
    pub fn postpone(&mut self, objects: &mut ObjectTable, at: ObjectSlot, lease: Mono) {
        let pinned = objects[at].list == EvictionList::Pinned;
        self.remove_keeping_pin(objects, at);
        objects[at].lease_until = lease;
        if pinned {
            self.pinned.insert((lease, at));
            objects[at].list = EvictionList::Pinned;
        } else {
            self.unordered.insert((lease, at));
            objects[at].list = EvictionList::Unordered;
        }
    }

    /// Removes the object from the index.
    pub fn remove(&mut self, objects: &mut ObjectTable, at: ObjectSlot) {
        if objects[at].list == EvictionList::Pinned
            && let Some(end) = objects[at].soft_pin()
        {
            self.pin_ends.remove(&(end, at));
        }
        self.remove_keeping_pin(objects, at);
    }

    fn remove_keeping_pin(&mut self, objects: &mut ObjectTable, at: ObjectSlot) {
        let lease = objects[at].lease_until;
        match objects[at].list {
            EvictionList::Writing => detach(&mut self.writing, objects, at),
            EvictionList::Written => detach(&mut self.written, objects, at),
            EvictionList::Read => detach(&mut self.read, objects, at),
            EvictionList::Unordered => {
                self.unordered.remove(&(lease, at));
            }
            EvictionList::Pinned => {
                self.pinned.remove(&(lease, at));
            }
            EvictionList::None | EvictionList::Free => {}
        }
        objects[at].list = EvictionList::None;
    }

    /// The unpinned object with the earliest lease end.
    pub fn first_unpinned(&self, objects: &ObjectTable) -> Option<(Mono, ObjectSlot)> {
        let head =
            |list: &RecordList| (list.head != ObjectSlot::NIL).then(|| (objects[list.head].lease_until, list.head));
        let unordered = self.unordered.first().copied();
        // Objects with the same lease end are ordered by list (written, read, unordered), and within a list by insertion order.
        let mut best = head(&self.written);
        for other in [head(&self.read), unordered].into_iter().flatten() {
            if best.is_none_or(|best| other.0 < best.0) {
                best = Some(other);
            }
        }
        best
    }

    /// The soft-pinned object with the earliest lease end.
    pub fn first_pinned(&self) -> Option<(Mono, ObjectSlot)> {
        self.pinned.first().copied()
    }

    /// The oldest unfinished write.
    pub fn first_writing(&self) -> Option<ObjectSlot> {
        (self.writing.head != ObjectSlot::NIL).then_some(self.writing.head)
    }

    /// The soft pin with the earliest end.
    pub fn first_pin_end(&self) -> Option<(Mono, ObjectSlot)> {
        self.pin_ends.first().copied()
    }

    /// Number of objects under an active soft pin.
    pub fn pinned(&self) -> usize {
        self.pinned.len()
    }
}

/// Returns true if appending `lease` keeps the list ordered.
fn fits(list: &RecordList, objects: &ObjectTable, lease: Mono) -> bool {
    list.tail == ObjectSlot::NIL || objects[list.tail].lease_until <= lease
}

fn append(list: &mut RecordList, objects: &mut ObjectTable, at: ObjectSlot) {
    let tail = std::mem::replace(&mut list.tail, at);
    objects[at].prev = tail;
    objects[at].next = ObjectSlot::NIL;
    if tail == ObjectSlot::NIL {
        list.head = at;
    } else {
        objects[tail].next = at;
    }
}

fn detach(list: &mut RecordList, objects: &mut ObjectTable, at: ObjectSlot) {
    let (prev, next) = (objects[at].prev, objects[at].next);
    if prev == ObjectSlot::NIL {
        list.head = next;
    } else {
        objects[prev].next = next;
    }
    if next == ObjectSlot::NIL {
        list.tail = prev;
    } else {
        objects[next].prev = prev;
    }
}
