//! Groups: objects that are given up together. A group exists as long as it has a member.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::engine::base::Mono;
use crate::engine::master::object::{Membership, NIL, Objects};

/// All groups.
#[derive(Debug)]
pub(super) struct Groups {
    by_name: HashMap<Box<[u8]>, u32, FixedState>,
    slots: Vec<Group>,
    spare: Vec<u32>,
}

/// One group: its members are a list through the records' extras.
#[derive(Debug)]
struct Group {
    name: Box<[u8]>,
    first: u32,
    /// The members' common lease: reading one protects all, without touching all.
    lease_until: Mono,
}

impl Groups {
    /// None.
    pub fn new(seed: u64) -> Groups {
        Groups { by_name: HashMap::with_hasher(FixedState::with_seed(seed)), slots: Vec::new(), spare: Vec::new() }
    }

    /// Put the object `at` into the group `name`.
    pub fn join(&mut self, objects: &mut Objects, at: u32, name: &[u8]) {
        let slot = match self.by_name.get(name) {
            Some(&slot) => slot,
            None => {
                let group = Group { name: name.into(), first: NIL, lease_until: Mono::ZERO };
                let slot = match self.spare.pop() {
                    Some(slot) => {
                        self.slots[slot as usize] = group;
                        slot
                    }
                    None => {
                        self.slots.push(group);
                        u32::try_from(self.slots.len() - 1).expect("no more groups than objects")
                    }
                };
                self.by_name.insert(name.into(), slot);
                slot
            }
        };
        let next = std::mem::replace(&mut self.slots[slot as usize].first, at);
        if let Some(second) = membership(objects, next) {
            second.prev = at;
        }
        objects[at].extra_mut().group = Some(Membership { group: slot, prev: NIL, next });
    }

    /// An object with this membership is gone.
    pub fn left(&mut self, objects: &mut Objects, was: Membership) {
        if let Some(next) = membership(objects, was.next) {
            next.prev = was.prev;
        }
        if let Some(prev) = membership(objects, was.prev) {
            prev.next = was.next;
            return;
        }
        let group = &mut self.slots[was.group as usize];
        group.first = was.next;
        if was.next == NIL {
            self.by_name.remove(&std::mem::take(&mut group.name));
            self.spare.push(was.group);
        }
    }

    /// One of the members.
    pub fn first(&self, group: u32) -> u32 {
        self.slots[group as usize].first
    }

    /// The group's name.
    pub fn name(&self, group: u32) -> &[u8] {
        &self.slots[group as usize].name
    }

    /// Until when all members are protected.
    pub fn lease_until(&self, group: u32) -> Mono {
        self.slots[group as usize].lease_until
    }

    /// A member was read.
    pub fn touch(&mut self, group: u32, lease: Mono) {
        let group = &mut self.slots[group as usize];
        group.lease_until = group.lease_until.max(lease);
    }
}

fn membership(objects: &mut Objects, at: u32) -> Option<&mut Membership> {
    if at == NIL {
        return None;
    }
    objects[at].extra.as_mut()?.group.as_mut()
}
