//! The eviction index: for each object, whether it is being written, hard-pinned, soft-pinned or
//! evictable.
//!
//! Unfinished writes are ordered by their start, soft-pinned objects by lease end. An
//! [`EvictionPolicy`] orders the evictable objects. Hard-pinned objects are in no order.
//!
//! The index depends on an object's lease, pins and the start of its write. These are private to
//! this file ([`EvictionEntry`], [`SoftPin`]) and change only in functions of [`EvictionIndex`],
//! which move the object at the same time. The exception is the soft pin of an object that is being
//! written: the order of unfinished writes does not depend on it.

use std::collections::BTreeSet;

use crate::eviction::list::RecordList;
use crate::eviction::{ActivePolicy, EvictionPolicy, EvictionPolicyKind};
use crate::object::ObjectTable;
use crate::record::clock::{RECORDED_USES, is_recorded_use};
use crate::slots::ObjectSlot;
use mcctl_base::Mono;

/// The part of an object's record that belongs to the index. Packed so that the record does not
/// grow.
#[derive(Debug)]
#[repr(C, packed(4))]
pub(crate) struct EvictionEntry {
    /// The object cannot be removed or evicted before this time. A recorded use
    /// ([`is_recorded_use`]): the object was restored, and its lease is that of all restored
    /// objects.
    lease_until: Mono,
    /// While a write is in progress: when it started. Otherwise the checksum of the value, if
    /// `has_checksum`.
    start_or_checksum: u64,
    /// Neighbors in the list that contains the object, or in that of the free slots.
    pub(super) prev: ObjectSlot,
    pub(super) next: ObjectSlot,
    state: EvictionState,
    /// For the policy's own use while it contains the object.
    pub(super) tag: u8,
    hard_pin: bool,
    /// Never set while a write is in progress.
    has_checksum: bool,
}

/// What an object is to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum EvictionState {
    /// Not in the index: hard-pinned, or about to change to another state.
    None,
    /// The slot contains no object.
    Free,
    /// A write is in progress. The object is neither readable nor evictable.
    Writing,
    SoftPinned,
    /// The policy contains the object.
    Evictable,
}

impl EvictionEntry {
    /// The entry of a new object that is not in the index.
    pub(crate) fn new(hard_pin: bool) -> EvictionEntry {
        EvictionEntry {
            lease_until: Mono::ZERO,
            start_or_checksum: 0,
            prev: ObjectSlot::NIL,
            next: ObjectSlot::NIL,
            state: EvictionState::None,
            tag: 0,
            hard_pin,
            has_checksum: false,
        }
    }

    /// The entry of a slot without an object, with its neighbors in the list of free slots.
    pub(crate) fn free(prev: ObjectSlot, next: ObjectSlot) -> EvictionEntry {
        EvictionEntry { prev, next, state: EvictionState::Free, ..EvictionEntry::new(false) }
    }

    /// Changes the neighbors of a free slot.
    pub(crate) fn set_free_links(&mut self, prev: Option<ObjectSlot>, next: Option<ObjectSlot>) {
        debug_assert!(self.is_free(), "the links of an object belong to the index");
        self.prev = prev.unwrap_or(self.prev);
        self.next = next.unwrap_or(self.next);
    }

    /// Sets whether a write is in progress, and when the object was last used, in a state that only
    /// applies records. The object is in no list there; [`EvictionIndex::restore`] inserts it.
    pub(crate) fn set_applied(&mut self, writing: bool, used: Mono) {
        self.state = if writing { EvictionState::Writing } else { EvictionState::None };
        self.lease_until = used;
        if writing {
            self.set_write_start(Mono::ZERO);
        }
    }

    /// The end of the object's own lease, or its recorded use ([`EvictionIndex::lease_end`]). Its
    /// group may have a longer one.
    #[inline]
    pub(crate) fn lease_until(&self) -> Mono {
        self.lease_until
    }

    /// When the write in progress started. `None`: no write is in progress.
    #[inline]
    pub(crate) fn write_start(&self) -> Option<Mono> {
        self.is_writing().then_some(Mono(self.start_or_checksum))
    }

    fn set_write_start(&mut self, start: Mono) {
        self.start_or_checksum = start.0;
        self.has_checksum = false;
    }

    /// The checksum that the writer sent. `None` while a write is in progress.
    #[inline]
    pub(crate) fn checksum(&self) -> Option<u64> {
        self.has_checksum.then_some(self.start_or_checksum)
    }

    /// Sets the checksum of an object whose write has ended.
    #[inline]
    pub(crate) fn set_checksum(&mut self, checksum: Option<u64>) {
        debug_assert!(!self.is_writing(), "the start of the write is in the same memory");
        self.start_or_checksum = checksum.unwrap_or(0);
        self.has_checksum = checksum.is_some();
    }

    /// Returns true if a write is in progress. The object is then neither readable nor evictable.
    #[inline]
    pub(crate) fn is_writing(&self) -> bool {
        self.state == EvictionState::Writing
    }

    /// Returns true if the object may never be evicted.
    pub(crate) fn hard_pin(&self) -> bool {
        self.hard_pin
    }

    /// Returns true if the slot contains no object.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.state == EvictionState::Free
    }

    /// Returns true if the object is not in the index.
    pub(crate) fn is_unlisted(&self) -> bool {
        self.state == EvictionState::None
    }

    /// Returns true if the object is evictable; with `soft`, also if it is soft-pinned.
    pub(crate) fn is_candidate(&self, soft: bool) -> bool {
        self.state == EvictionState::Evictable || soft && self.state == EvictionState::SoftPinned
    }

    /// The neighbors in the list that contains the object. In a free slot, the second one is the
    /// next free slot.
    #[inline]
    pub(crate) fn neighbors(&self) -> (ObjectSlot, ObjectSlot) {
        (self.prev, self.next)
    }
}

/// An object's soft pin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SoftPin {
    /// End of the pin. It may be in the past.
    end: Option<Mono>,
    pending: PendingPin,
}

/// How the soft pin changes when a write ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PendingPin {
    #[default]
    Keep,
    /// Pin for this number of milliseconds, counted from the end of the write.
    Set(u64),
    Clear,
}

impl SoftPin {
    /// Returns true if there is a pin, or will be one when the write in progress ends.
    pub(crate) fn is_set(&self) -> bool {
        self.end.is_some() || self.pending != PendingPin::Keep
    }

    /// How the pin changes when the write in progress ends.
    pub(crate) fn pending(&self) -> PendingPin {
        self.pending
    }

    /// The pin of a new object, which ends at `end`, and its change when the write ends.
    pub(crate) fn new(end: Option<Mono>, pending: PendingPin) -> SoftPin {
        SoftPin { end, pending }
    }

    /// End of the pin, if there is one. It may be in the past.
    pub(crate) fn end(&self) -> Option<Mono> {
        self.end
    }

    /// Sets how the pin changes when the write in progress ends.
    pub(crate) fn set_pending(&mut self, pending: PendingPin) {
        self.pending = pending;
    }

    /// Applies the pending change because the write has ended. `end_of` returns the end of a pin
    /// that lasts this number of milliseconds.
    pub(crate) fn apply_pending(&mut self, end_of: impl FnOnce(u64) -> Mono) {
        match std::mem::take(&mut self.pending) {
            PendingPin::Keep => {}
            PendingPin::Set(ttl_ms) => self.end = Some(end_of(ttl_ms)),
            PendingPin::Clear => self.end = None,
        }
    }
}

/// Orders all objects for eviction.
#[derive(Debug)]
pub(crate) struct EvictionIndex {
    policy: ActivePolicy,
    /// Unfinished writes, ordered by their start.
    writing: RecordList,
    /// Soft-pinned objects, ordered by lease end.
    pinned: BTreeSet<(Mono, ObjectSlot)>,
    /// Soft-pinned objects, ordered by the end of the pin.
    pin_ends: BTreeSet<(Mono, ObjectSlot)>,
    /// Number of unfinished writes.
    writes: u32,
    /// When the leases of restored objects end.
    restored_until: Mono,
}

impl EvictionIndex {
    /// Creates an empty index.
    pub(crate) fn new(policy: EvictionPolicyKind) -> EvictionIndex {
        EvictionIndex {
            policy: ActivePolicy::new(policy),
            writing: RecordList::default(),
            pinned: BTreeSet::new(),
            pin_ends: BTreeSet::new(),
            writes: 0,
            restored_until: Mono::ZERO,
        }
    }

    /// Sets when the leases of restored objects end: not before `until`.
    pub(crate) fn extend_restored_leases(&mut self, until: Mono) {
        self.restored_until = self.restored_until.max(until);
    }

    /// When a lease ends that [`EvictionEntry::lease_until`] or a group returns.
    #[inline]
    pub(crate) fn lease_end(&self, lease: Mono) -> Mono {
        if is_recorded_use(lease) { self.restored_until } else { lease }
    }

    /// Records the start of a write.
    pub(crate) fn begin_write(&mut self, objects: &mut ObjectTable, at: ObjectSlot, now: Mono) {
        self.remove(objects, at);
        let entry = &mut objects[at].eviction;
        entry.set_write_start(now);
        entry.state = EvictionState::Writing;
        self.writes += 1;
        self.writing.append(objects, at);
    }

    /// Records the end of a write: the object becomes evictable unless it is pinned. The pending
    /// change of the soft pin has taken effect.
    #[inline(always)]
    pub(crate) fn end_write(&mut self, objects: &mut ObjectTable, at: ObjectSlot, now: Mono) {
        self.remove(objects, at);
        let entry = &mut objects[at].eviction;
        entry.lease_until = self.lease_end(entry.lease_until).max(now);
        self.insert(objects, at, now);
    }

    /// Like [`begin_write`](Self::begin_write), for a new object in a state that applies records.
    /// `used`: the time of the record.
    pub(crate) fn begin_recorded_write(&mut self, objects: &mut ObjectTable, at: ObjectSlot, now: Mono, used: Mono) {
        objects[at].eviction.lease_until = used;
        self.begin_write(objects, at, now);
    }

    /// Like [`end_write`](Self::end_write), in a state that applies records. `used`: the time of
    /// the record.
    pub(crate) fn end_recorded_write(&mut self, objects: &mut ObjectTable, at: ObjectSlot, now: Mono, used: Mono) {
        self.remove(objects, at);
        objects[at].eviction.lease_until = used;
        self.insert(objects, at, now);
    }

    /// Records a read: the lease lasts at least until `lease`.
    pub(crate) fn touch(&mut self, objects: &mut ObjectTable, at: ObjectSlot, lease: Mono) {
        let entry = &mut objects[at].eviction;
        let before = entry.lease_until;
        let lease = if is_recorded_use(before) {
            lease.max(self.restored_until)
        } else if lease <= before {
            return;
        } else {
            lease
        };
        entry.lease_until = lease;
        match entry.state {
            EvictionState::Evictable => self.policy.touch(objects, at, before),
            EvictionState::SoftPinned => self.move_pinned(at, before, lease),
            EvictionState::None | EvictionState::Writing | EvictionState::Free => {}
        }
    }

    /// Sets the lease of an object whose group is protected until `lease`, so that it is not the
    /// next victim.
    pub(crate) fn postpone(&mut self, objects: &mut ObjectTable, at: ObjectSlot, lease: Mono) {
        let entry = &mut objects[at].eviction;
        let before = entry.lease_until;
        let lease = if is_recorded_use(before) { lease.max(self.restored_until) } else { lease };
        entry.lease_until = lease;
        match entry.state {
            EvictionState::Evictable => self.policy.postpone(objects, at, before),
            EvictionState::SoftPinned => self.move_pinned(at, before, lease),
            EvictionState::None | EvictionState::Writing | EvictionState::Free => {}
        }
    }

    /// Ends one soft pin that has expired. Returns false if there is none.
    pub(crate) fn expire_pin(&mut self, objects: &mut ObjectTable, now: Mono) -> bool {
        match self.pin_ends.first() {
            Some(&(end, at)) if end <= now => {
                self.remove(objects, at);
                self.insert(objects, at, now);
                true
            }
            _ => false,
        }
    }

    /// Removes the object from the index.
    pub(crate) fn remove(&mut self, objects: &mut ObjectTable, at: ObjectSlot) {
        let entry = &objects[at].eviction;
        match entry.state {
            EvictionState::Evictable => self.policy.remove(objects, at),
            EvictionState::Writing => {
                self.writes -= 1;
                self.writing.detach(objects, at);
            }
            EvictionState::SoftPinned => {
                self.pinned.remove(&(entry.lease_until, at));
                if let Some(end) = objects[at].soft_pin() {
                    self.pin_ends.remove(&(end, at));
                }
            }
            EvictionState::None | EvictionState::Free => {}
        }
        objects[at].eviction.state = EvictionState::None;
    }

    /// Inserts a complete object according to its pins.
    fn insert(&mut self, objects: &mut ObjectTable, at: ObjectSlot, now: Mono) {
        let object = &mut objects[at];
        if object.eviction.hard_pin {
            return;
        }
        if let Some(end) = object.soft_pin().filter(|end| *end > now) {
            self.pinned.insert((object.eviction.lease_until, at));
            self.pin_ends.insert((end, at));
            object.eviction.state = EvictionState::SoftPinned;
            return;
        }
        object.eviction.state = EvictionState::Evictable;
        self.policy.insert(objects, at, now);
    }

    fn move_pinned(&mut self, at: ObjectSlot, before: Mono, lease: Mono) {
        self.pinned.remove(&(before, at));
        self.pinned.insert((lease, at));
    }

    /// Inserts an object that was restored from records ([`EvictionEntry::set_applied`]). Objects
    /// come in the order of their recorded uses. A write in progress counts as started at `now`.
    pub(crate) fn restore(&mut self, objects: &mut ObjectTable, at: ObjectSlot, now: Mono) {
        let entry = &mut objects[at].eviction;
        let writing = entry.is_writing();
        entry.state = EvictionState::None;
        if writing {
            self.begin_write(objects, at, now);
        } else {
            self.insert(objects, at, now);
        }
    }

    /// The next unpinned object to evict, chosen by the policy. Its lease has ended.
    pub(crate) fn victim(&mut self, objects: &ObjectTable, now: Mono) -> Option<ObjectSlot> {
        self.policy.victim(objects, now, self.restored_until)
    }

    /// The next soft-pinned object to evict: the one whose lease ended first.
    pub(crate) fn pinned_victim(&self, now: Mono) -> Option<ObjectSlot> {
        // Restored objects are older than all others, and last in the set.
        let last = self.pinned.last().filter(|(used, _)| is_recorded_use(*used) && self.restored_until <= now);
        let restored = last.and_then(|_| self.pinned.range((RECORDED_USES, ObjectSlot(0))..).next());
        let own = || self.pinned.first().filter(|(lease, _)| *lease <= now);
        restored.or_else(own).map(|(_, at)| *at)
    }

    /// The oldest unfinished write.
    pub(crate) fn first_writing(&self) -> Option<ObjectSlot> {
        self.writing.first()
    }

    /// The end of the soft pin that ends first.
    pub(crate) fn first_pin_end(&self) -> Option<Mono> {
        self.pin_ends.first().map(|(end, _)| *end)
    }

    /// Number of unfinished writes.
    pub(crate) fn writes(&self) -> u32 {
        self.writes
    }

    /// Number of objects under an active soft pin.
    pub(crate) fn pinned(&self) -> usize {
        self.pinned.len()
    }
}
