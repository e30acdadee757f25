//! In which order objects are given up: by the end of their lease, oldest first, exactly.
//!
//! Almost every lease end is one of two kinds, and each kind only ever grows: a finished put sets it to *now*, a read to *now +
//! TTL*. So each kind is a linked list through the records, appended at its tail, and the two heads, merged, give the order;
//! touching an object costs a few links instead of a tree. What does not fit (a soft pin that ran out, an upsert of an object
//! that was leased) goes into a small ordered set beside them. Soft-pinned objects wait apart, hard-pinned and unfinished ones
//! are in none of these.

use std::collections::BTreeSet;

use crate::engine::base::Mono;
use crate::engine::master::object::{NIL, Objects};

/// Where an object stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Place {
    /// Nowhere: it is hard-pinned, or about to move.
    None,
    /// The slot holds no object.
    Free,
    /// Being written, in the order in which the writes began.
    Writing,
    /// Written and not read since, in the order in which the writes ended.
    Written,
    /// Read, in the order of the last reads.
    Read,
    /// Among those that fit neither list.
    Odd,
    /// Under a soft pin.
    Pinned,
}

/// A list through the records.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// The order of all objects.
#[derive(Debug)]
pub(super) struct Order {
    writing: List,
    written: List,
    read: List,
    odd: BTreeSet<(Mono, u32)>,
    pinned: BTreeSet<(Mono, u32)>,
    /// Ends of soft pins.
    pin_ends: BTreeSet<(Mono, u32)>,
}

impl Order {
    /// Nothing in it.
    pub fn new() -> Order {
        let list = List { head: NIL, tail: NIL };
        Order {
            writing: list,
            written: list,
            read: list,
            odd: BTreeSet::new(),
            pinned: BTreeSet::new(),
            pin_ends: BTreeSet::new(),
        }
    }

    /// A write of `at` begins.
    pub fn begin_write(&mut self, objects: &mut Objects, at: u32) {
        self.leave(objects, at);
        append(&mut self.writing, objects, at);
        objects[at].place = Place::Writing;
    }

    /// The write of `at` ended, or a pin on it changed: file it by its lease, its pins and the time.
    pub fn file(&mut self, objects: &mut Objects, at: u32, now: Mono) {
        self.leave(objects, at);
        let object = &objects[at];
        let lease = object.lease_until;
        let place = if object.hard_pin {
            Place::None
        } else if let Some(end) = object.soft_pin().filter(|end| *end > now) {
            self.pinned.insert((lease, at));
            self.pin_ends.insert((end, at));
            Place::Pinned
        } else if lease == now && fits(&self.written, objects, lease) {
            append(&mut self.written, objects, at);
            Place::Written
        } else {
            self.odd.insert((lease, at));
            Place::Odd
        };
        objects[at].place = place;
    }

    /// The object was read: its lease lasts until `lease` at least.
    pub fn touch(&mut self, objects: &mut Objects, at: u32, lease: Mono) {
        let object = &mut objects[at];
        let old = object.lease_until;
        if lease <= old {
            return;
        }
        object.lease_until = lease;
        match object.place {
            Place::Pinned => {
                self.pinned.remove(&(old, at));
                self.pinned.insert((lease, at));
            }
            Place::Written | Place::Read | Place::Odd => {
                match object.place {
                    Place::Written => detach(&mut self.written, objects, at),
                    Place::Read => detach(&mut self.read, objects, at),
                    _ => {
                        self.odd.remove(&(old, at));
                    }
                }
                if fits(&self.read, objects, lease) {
                    append(&mut self.read, objects, at);
                    objects[at].place = Place::Read;
                } else {
                    self.odd.insert((lease, at));
                    objects[at].place = Place::Odd;
                }
            }
            Place::None | Place::Writing | Place::Free => {}
        }
    }

    /// Give an object that stands in the order a later turn, without taking it for read.
    pub fn postpone(&mut self, objects: &mut Objects, at: u32, lease: Mono) {
        let pinned = objects[at].place == Place::Pinned;
        self.leave_but_keep_pin(objects, at);
        objects[at].lease_until = lease;
        if pinned {
            self.pinned.insert((lease, at));
            objects[at].place = Place::Pinned;
        } else {
            self.odd.insert((lease, at));
            objects[at].place = Place::Odd;
        }
    }

    /// Take the object out of wherever it stands.
    pub fn leave(&mut self, objects: &mut Objects, at: u32) {
        if objects[at].place == Place::Pinned
            && let Some(end) = objects[at].soft_pin()
        {
            self.pin_ends.remove(&(end, at));
        }
        self.leave_but_keep_pin(objects, at);
    }

    fn leave_but_keep_pin(&mut self, objects: &mut Objects, at: u32) {
        let lease = objects[at].lease_until;
        match objects[at].place {
            Place::Writing => detach(&mut self.writing, objects, at),
            Place::Written => detach(&mut self.written, objects, at),
            Place::Read => detach(&mut self.read, objects, at),
            Place::Odd => {
                self.odd.remove(&(lease, at));
            }
            Place::Pinned => {
                self.pinned.remove(&(lease, at));
            }
            Place::None | Place::Free => {}
        }
        objects[at].place = Place::None;
    }

    /// The unpinned object whose lease ends first.
    pub fn first_unpinned(&self, objects: &Objects) -> Option<(Mono, u32)> {
        let head = |list: &List| (list.head != NIL).then(|| (objects[list.head].lease_until, list.head));
        let odd = self.odd.first().copied();
        // At equal lease ends the order is written, read, odd; within a list it is the order of arrival.
        let mut best = head(&self.written);
        for other in [head(&self.read), odd].into_iter().flatten() {
            if best.is_none_or(|best| other.0 < best.0) {
                best = Some(other);
            }
        }
        best
    }

    /// The soft-pinned object whose lease ends first.
    pub fn first_pinned(&self) -> Option<(Mono, u32)> {
        self.pinned.first().copied()
    }

    /// The unfinished write that began first.
    pub fn first_writing(&self) -> Option<u32> {
        (self.writing.head != NIL).then_some(self.writing.head)
    }

    /// The soft pin that ends first.
    pub fn first_pin_end(&self) -> Option<(Mono, u32)> {
        self.pin_ends.first().copied()
    }

    /// Objects under an active soft pin.
    pub fn pinned(&self) -> usize {
        self.pinned.len()
    }
}

/// Would `lease` keep the list in order at its tail?
fn fits(list: &List, objects: &Objects, lease: Mono) -> bool {
    list.tail == NIL || objects[list.tail].lease_until <= lease
}

fn append(list: &mut List, objects: &mut Objects, at: u32) {
    let tail = std::mem::replace(&mut list.tail, at);
    objects[at].prev = tail;
    objects[at].next = NIL;
    if tail == NIL {
        list.head = at;
    } else {
        objects[tail].next = at;
    }
}

fn detach(list: &mut List, objects: &mut Objects, at: u32) {
    let (prev, next) = (objects[at].prev, objects[at].next);
    if prev == NIL {
        list.head = next;
    } else {
        objects[prev].next = next;
    }
    if next == NIL {
        list.tail = prev;
    } else {
        objects[next].prev = prev;
    }
}
