//! The ids of the writers of unfinished objects, each stored once: an object contains a 4-byte slot
//! instead of a 16-byte id.
//!
//! A client may use another id for each call that starts writes. The slot of an id is free again
//! when all of them have ended. A writer is not necessarily a registered client: a pure client
//! sends only puts.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::slots::OwnerSlot;
use mcctl_base::ClientId;

/// The first half of the ids of clients whose calls contain none.
const UNNAMED: u64 = u64::from_be_bytes(*b"no id   ");

/// The id of the clients of a host whose calls contain none, which are those before 0.3.8.
pub(super) fn unnamed_client(host: u64) -> ClientId {
    ClientId(UNNAMED, host)
}

/// Whether several clients may have this id.
pub(super) fn is_unnamed(client: ClientId) -> bool {
    client.0 == UNNAMED
}

/// Reference-counted writer ids. The count is the number of objects that the writer is writing.
#[derive(Debug)]
pub(super) struct OwnerTable {
    by_id: HashMap<ClientId, OwnerSlot, FixedState>,
    slots: Vec<(ClientId, u32)>,
    spare: Vec<OwnerSlot>,
}

impl OwnerTable {
    /// Creates an empty table.
    pub(crate) fn new(seed: u64) -> OwnerTable {
        OwnerTable { by_id: HashMap::with_hasher(FixedState::with_seed(seed)), slots: Vec::new(), spare: Vec::new() }
    }

    /// Returns the slot of `id` and increments its object count.
    pub(crate) fn acquire(&mut self, id: ClientId) -> OwnerSlot {
        if let Some(&slot) = self.by_id.get(&id) {
            self.slots[slot.index()].1 += 1;
            return slot;
        }
        let slot = match self.spare.pop() {
            Some(slot) => {
                self.slots[slot.index()] = (id, 1);
                slot
            }
            None => {
                self.slots.push((id, 1));
                OwnerSlot::from_index(self.slots.len() - 1)
            }
        };
        self.by_id.insert(id, slot);
        slot
    }

    /// Decrements the object count and frees the slot when it reaches 0.
    pub(crate) fn release(&mut self, slot: OwnerSlot) {
        let (id, objects) = &mut self.slots[slot.index()];
        *objects -= 1;
        if *objects == 0 {
            self.by_id.remove(id);
            self.spare.push(slot);
        }
    }

    /// Number of writers in the table.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the writer id in a slot.
    pub(crate) fn id(&self, slot: OwnerSlot) -> ClientId {
        self.slots[slot.index()].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_slot_lives_as_long_as_it_has_objects() {
        let mut owners = OwnerTable::new(1);
        let a = ClientId(1, 2);
        let b = ClientId(3, 4);
        let slot = owners.acquire(a);
        assert_eq!((owners.acquire(a), owners.id(slot)), (slot, a));
        owners.release(slot);
        assert_ne!(owners.acquire(b), slot);
        owners.release(slot);
        assert_eq!(owners.acquire(ClientId(5, 6)), slot);
    }
}
