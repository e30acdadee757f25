//! A doubly linked list of objects. The links are in the records, so no operation allocates memory.

use crate::object::ObjectTable;
use crate::slots::ObjectSlot;

/// The ends of a list. An object is in at most one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordList {
    head: ObjectSlot,
    tail: ObjectSlot,
}

impl Default for RecordList {
    fn default() -> RecordList {
        RecordList { head: ObjectSlot::NIL, tail: ObjectSlot::NIL }
    }
}

impl RecordList {
    /// The object that was appended first.
    #[inline]
    pub(super) fn first(&self) -> Option<ObjectSlot> {
        (self.head != ObjectSlot::NIL).then_some(self.head)
    }

    /// The object that was appended last.
    #[inline]
    pub(super) fn last(&self) -> Option<ObjectSlot> {
        (self.tail != ObjectSlot::NIL).then_some(self.tail)
    }

    /// Adds an object at the end. It must not be in any list.
    pub(super) fn append(&mut self, objects: &mut ObjectTable, at: ObjectSlot) {
        let tail = std::mem::replace(&mut self.tail, at);
        let entry = &mut objects[at].eviction;
        entry.prev = tail;
        entry.next = ObjectSlot::NIL;
        if tail == ObjectSlot::NIL {
            self.head = at;
        } else {
            objects[tail].eviction.next = at;
        }
    }

    /// Removes an object, which must be in this list.
    pub(super) fn detach(&mut self, objects: &mut ObjectTable, at: ObjectSlot) {
        let entry = &objects[at].eviction;
        let prev = entry.prev;
        let next = entry.next;
        if prev == ObjectSlot::NIL {
            self.head = next;
        } else {
            objects[prev].eviction.next = next;
        }
        if next == ObjectSlot::NIL {
            self.tail = prev;
        } else {
            objects[next].eviction.prev = prev;
        }
    }
}
