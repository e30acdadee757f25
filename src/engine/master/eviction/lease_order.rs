//! The policy that evicts the object whose lease ended first. The order is precise, not
//! approximated.
//!
//! Almost every lease end is one of two kinds: a completed put sets it to *now*, a read to *now +
//! TTL*. The values of each kind only increase over time, so each kind has a linked list through
//! the records, and new entries are appended at the tail. Repeatedly taking the earlier of the two
//! heads yields this order. Touching an object costs a few link updates instead of a tree
//! operation. Objects with any other lease end (after an expired soft pin or an upsert of a leased
//! object) go into a small ordered set.
//!
//! Objects that were restored from records have a third list and a second set, in the order of
//! their recorded uses. They are older than all others, and their leases end at the same time.

use std::collections::BTreeSet;

use crate::eviction::EvictionPolicy;
use crate::eviction::list::RecordList;
use crate::object::ObjectTable;
use crate::record::clock::is_recorded_use;
use crate::slots::ObjectSlot;
use mcctl_base::Mono;

/// Value of an object's `tag` in the list `written`.
const WRITTEN: u8 = 0;
/// Value of an object's `tag` in the list `read`.
const READ: u8 = 1;
/// Value of an object's `tag` in the set `unordered`.
const UNORDERED: u8 = 2;
/// Value of an object's `tag` in the list `restored`.
const RESTORED: u8 = 3;
/// Value of an object's `tag` in the set `restored_unordered`.
const RESTORED_UNORDERED: u8 = 4;

/// The evictable objects, ordered by lease end.
#[derive(Debug, Default)]
pub(super) struct LeaseOrder {
    /// Written but not read since, ordered by the end of the write.
    written: RecordList,
    /// Read, ordered by the last read.
    read: RecordList,
    /// Objects that fit neither list.
    unordered: BTreeSet<(Mono, ObjectSlot)>,
    /// Restored and not used since, ordered by the recorded use.
    restored: RecordList,
    /// Restored objects that do not fit `restored`.
    restored_unordered: BTreeSet<(Mono, ObjectSlot)>,
}

impl EvictionPolicy for LeaseOrder {
    fn insert(&mut self, objects: &mut ObjectTable, at: ObjectSlot, now: Mono) {
        let lease = objects[at].eviction.lease_until();
        if is_recorded_use(lease) {
            self.insert_restored(objects, at, lease);
        } else if lease == now && fits(&self.written, objects, lease) {
            self.written.append(objects, at);
            objects[at].eviction.tag = WRITTEN;
        } else {
            self.insert_unordered(objects, at);
        }
    }

    fn touch(&mut self, objects: &mut ObjectTable, at: ObjectSlot, before: Mono) {
        self.remove_from(objects, at, before);
        if fits(&self.read, objects, objects[at].eviction.lease_until()) {
            self.read.append(objects, at);
            objects[at].eviction.tag = READ;
        } else {
            self.insert_unordered(objects, at);
        }
    }

    fn postpone(&mut self, objects: &mut ObjectTable, at: ObjectSlot, before: Mono) {
        self.remove_from(objects, at, before);
        self.insert_unordered(objects, at);
    }

    fn remove(&mut self, objects: &mut ObjectTable, at: ObjectSlot) {
        let lease = objects[at].eviction.lease_until();
        self.remove_from(objects, at, lease);
    }

    fn victim(&mut self, objects: &ObjectTable, now: Mono, restored_until: Mono) -> Option<ObjectSlot> {
        let head = |list: &RecordList| list.first().map(|at| (objects[at].eviction.lease_until(), at));
        // Objects with the same lease end are ordered by list (written, read, unordered), and
        // within a list by insertion order.
        if restored_until <= now {
            let first = [head(&self.restored), self.restored_unordered.first().copied()];
            if let Some((_, at)) = first.into_iter().flatten().min() {
                return Some(at);
            }
        }
        let mut best = head(&self.written);
        for other in [head(&self.read), self.unordered.first().copied()].into_iter().flatten() {
            if best.is_none_or(|best| other.0 < best.0) {
                best = Some(other);
            }
        }
        best.filter(|(lease, _)| *lease <= now).map(|(_, at)| at)
    }
}

impl LeaseOrder {
    fn insert_unordered(&mut self, objects: &mut ObjectTable, at: ObjectSlot) {
        let entry = &mut objects[at].eviction;
        self.unordered.insert((entry.lease_until(), at));
        entry.tag = UNORDERED;
    }

    fn insert_restored(&mut self, objects: &mut ObjectTable, at: ObjectSlot, used: Mono) {
        if fits(&self.restored, objects, used) {
            self.restored.append(objects, at);
            objects[at].eviction.tag = RESTORED;
        } else {
            self.restored_unordered.insert((used, at));
            objects[at].eviction.tag = RESTORED_UNORDERED;
        }
    }

    /// Removes an object that was inserted with a lease that ends at `lease`.
    fn remove_from(&mut self, objects: &mut ObjectTable, at: ObjectSlot, lease: Mono) {
        match objects[at].eviction.tag {
            WRITTEN => self.written.detach(objects, at),
            READ => self.read.detach(objects, at),
            RESTORED => self.restored.detach(objects, at),
            RESTORED_UNORDERED => {
                self.restored_unordered.remove(&(lease, at));
            }
            _ => {
                self.unordered.remove(&(lease, at));
            }
        }
    }
}

/// Returns true if appending `lease` keeps the list ordered.
fn fits(list: &RecordList, objects: &ObjectTable, lease: Mono) -> bool {
    list.last().is_none_or(|last| objects[last].eviction.lease_until() <= lease)
}
