//! Groups: objects that are evicted together. A group exists as long as it has at least one member.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::eviction::index::EvictionIndex;
use crate::object::{GroupMembership, ObjectTable};
use crate::slots::{GroupSlot, ObjectSlot};
use mcctl_base::Mono;

/// All groups, indexed by name and by slot.
#[derive(Debug)]
pub(super) struct GroupTable {
    by_name: HashMap<Box<[u8]>, GroupSlot, FixedState>,
    slots: Vec<ObjectGroup>,
    spare: Vec<GroupSlot>,
}

/// One group. Its members form a linked list through the records' extra attributes.
#[derive(Debug)]
struct ObjectGroup {
    name: Box<[u8]>,
    first: ObjectSlot,
    /// The members' shared lease. Reading one member protects all members without updating each
    /// member's record. A recorded use: the group was restored, and its lease is that of all
    /// restored objects ([`EvictionIndex::lease_end`]).
    ///
    /// [`EvictionIndex::lease_end`]: crate::eviction::index::EvictionIndex::lease_end
    lease_until: Mono,
}

impl GroupTable {
    /// Creates an empty table.
    pub(crate) fn new(seed: u64) -> GroupTable {
        GroupTable { by_name: HashMap::with_hasher(FixedState::with_seed(seed)), slots: Vec::new(), spare: Vec::new() }
    }

    /// Adds the object `at` to the group `name`. `lease_until` is the lease of a new group.
    pub(crate) fn join(&mut self, objects: &mut ObjectTable, at: ObjectSlot, name: &[u8], lease_until: Mono) {
        let slot = match self.by_name.get(name) {
            Some(&slot) => slot,
            None => {
                let group = ObjectGroup { name: name.into(), first: ObjectSlot::NIL, lease_until };
                let slot = match self.spare.pop() {
                    Some(slot) => {
                        self.slots[slot.index()] = group;
                        slot
                    }
                    None => {
                        self.slots.push(group);
                        GroupSlot::from_index(self.slots.len() - 1)
                    }
                };
                self.by_name.insert(name.into(), slot);
                slot
            }
        };
        let next = std::mem::replace(&mut self.slots[slot.index()].first, at);
        if let Some(second) = membership(objects, next) {
            second.prev = at;
        }
        objects[at].extra_mut().group = Some(GroupMembership { group: slot, prev: ObjectSlot::NIL, next });
    }

    /// Unlinks a removed object. `was` is the object's membership before the removal.
    pub(crate) fn remove_member(&mut self, objects: &mut ObjectTable, was: GroupMembership) {
        if let Some(next) = membership(objects, was.next) {
            next.prev = was.prev;
        }
        if let Some(prev) = membership(objects, was.prev) {
            prev.next = was.next;
            return;
        }
        let group = &mut self.slots[was.group.index()];
        group.first = was.next;
        if was.next == ObjectSlot::NIL {
            self.by_name.remove(&std::mem::take(&mut group.name));
            self.spare.push(was.group);
        }
    }

    /// Returns the first member.
    pub(crate) fn first(&self, group: GroupSlot) -> ObjectSlot {
        self.slots[group.index()].first
    }

    /// Returns the group's name.
    pub(crate) fn name(&self, group: GroupSlot) -> &[u8] {
        &self.slots[group.index()].name
    }

    /// Returns the end of the members' shared lease, or a recorded use.
    pub(crate) fn lease_until(&self, group: GroupSlot) -> Mono {
        self.slots[group.index()].lease_until
    }

    /// Extends the shared lease to `lease` because a member was read.
    pub(crate) fn extend_lease(&mut self, order: &EvictionIndex, group: GroupSlot, lease: Mono) {
        let group = &mut self.slots[group.index()];
        group.lease_until = order.lease_end(group.lease_until).max(lease);
    }
}

fn membership(objects: &mut ObjectTable, at: ObjectSlot) -> Option<&mut GroupMembership> {
    if at == ObjectSlot::NIL {
        return None;
    }
    objects[at].extra.as_mut()?.group.as_mut()
}
