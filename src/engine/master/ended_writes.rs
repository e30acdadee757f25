//! The writers of recently ended writes. The end of a write may arrive again, because its response
//! was lost, and must then get the same response. The writer of a complete object is stored nowhere
//! else.

use crate::slots::ObjectSlot;
use mcctl_base::ClientId;

/// Number of entries. An entry is replaced by the write of another object whose slot has the same
/// remainder.
const ENTRIES: usize = 1 << 16;

/// The id of the object's first replica, and the two halves of the writer's id. No replica has the
/// id 0. An array of zeros is allocated without being written, so memory is used only for entries
/// that were.
type EndedWrite = [u64; 3];

/// The last write of each group of object slots that has ended.
#[derive(Debug, Default)]
pub(super) struct EndedWrites {
    /// Empty until a write ends.
    entries: Vec<EndedWrite>,
}

impl EndedWrites {
    /// Adds the write of an object that has become complete. `replica` is the id of its first
    /// replica.
    #[inline]
    pub(crate) fn add(&mut self, at: ObjectSlot, replica: u64, ClientId(high, low): ClientId) {
        if self.entries.is_empty() {
            self.entries = vec![[0; 3]; ENTRIES];
        }
        self.entries[at.0 as usize % ENTRIES] = [replica, high, low];
    }

    /// The object's first replica was dropped. The next one has the id `now`.
    pub(crate) fn replace_replica(&mut self, at: ObjectSlot, before: u64, now: u64) {
        if let Some([replica, ..]) = self.entries.get_mut(at.0 as usize % ENTRIES).filter(|[id, ..]| *id == before) {
            *replica = now;
        }
    }

    /// Whether this client is known to have ended the last write of an object. `replica` is the id
    /// of its first replica.
    pub(crate) fn is_writer(&self, at: ObjectSlot, replica: u64, ClientId(high, low): ClientId) -> bool {
        self.entries.get(at.0 as usize % ENTRIES) == Some(&[replica, high, low])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_that_of_the_last_write_with_its_remainder() {
        let mut ended = EndedWrites::default();
        let a = ClientId(1, 2);
        let b = ClientId(2, 1);
        let slot = ObjectSlot(5);
        let same = ObjectSlot(5 + 3 * ENTRIES as u32);
        assert!(!ended.is_writer(slot, 7, a));
        ended.add(slot, 7, a);
        assert!(ended.is_writer(slot, 7, a));
        assert!(!ended.is_writer(slot, 7, b) && !ended.is_writer(slot, 8, a) && !ended.is_writer(ObjectSlot(6), 7, a));
        ended.add(same, 9, b);
        assert!(ended.is_writer(same, 9, b) && !ended.is_writer(slot, 7, a));
    }
}
