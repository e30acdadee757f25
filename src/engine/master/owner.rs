//! The ids of the objects' writers, each kept once: an object holds a 4-byte slot instead of a 16-byte id.
//!
//! A writer need not be a client that the master knows otherwise: one that lends no memory never says anything but puts.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::engine::base::ClientId;

/// Ids of writers with the number of their objects.
#[derive(Debug)]
pub(super) struct Owners {
    by_id: HashMap<ClientId, u32, FixedState>,
    slots: Vec<(ClientId, u32)>,
    spare: Vec<u32>,
}

impl Owners {
    /// None.
    pub fn new(seed: u64) -> Owners {
        Owners { by_id: HashMap::with_hasher(FixedState::with_seed(seed)), slots: Vec::new(), spare: Vec::new() }
    }

    /// The slot of `id`, with one object more.
    pub fn hold(&mut self, id: ClientId) -> u32 {
        if let Some(&slot) = self.by_id.get(&id) {
            self.slots[slot as usize].1 += 1;
            return slot;
        }
        let slot = match self.spare.pop() {
            Some(slot) => {
                self.slots[slot as usize] = (id, 1);
                slot
            }
            None => {
                self.slots.push((id, 1));
                u32::try_from(self.slots.len() - 1).expect("no more writers than objects")
            }
        };
        self.by_id.insert(id, slot);
        slot
    }

    /// One object less; the slot is forgotten with its last.
    pub fn release(&mut self, slot: u32) {
        let (id, objects) = &mut self.slots[slot as usize];
        *objects -= 1;
        if *objects == 0 {
            self.by_id.remove(id);
            self.spare.push(slot);
        }
    }

    /// Whose slot it is.
    pub fn id(&self, slot: u32) -> ClientId {
        self.slots[slot as usize].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_kept_as_long_as_it_has_objects() {
        let mut owners = Owners::new(1);
        let (a, b) = (ClientId(1, 2), ClientId(3, 4));
        let slot = owners.hold(a);
        assert_eq!((owners.hold(a), owners.id(slot)), (slot, a));
        owners.release(slot);
        assert_ne!(owners.hold(b), slot);
        owners.release(slot);
        assert_eq!(owners.hold(ClientId(5, 6)), slot);
    }
}
