//! What a master of a cluster notes in its data directory about the copy of the state in it.

use serde::{Deserialize, Serialize};

use crate::engine::ha::{HistoryId, MemberId};

/// The format of the note that this release reads and writes.
const FORMAT: u32 = 1;

/// Which copy the directory contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::engine::master::server) struct CopyNote {
    /// The format of the note.
    pub format: u32,
    /// The ID of the copy.
    pub member: MemberId,
    /// The history of its last changes; `None` if it is empty.
    pub history: Option<HistoryId>,
    /// The history before, and its last change.
    pub parent: Option<(HistoryId, u64)>,
    /// Even after a loss of power, the directory contains everything that this copy has acknowledged.
    pub durable: bool,
}

impl CopyNote {
    /// A note of the current format.
    pub fn new(
        member: MemberId,
        history: Option<HistoryId>,
        parent: Option<(HistoryId, u64)>,
        durable: bool,
    ) -> CopyNote {
        CopyNote { format: FORMAT, member, history, parent, durable }
    }

    /// The note as bytes.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a note; `None` if it has another format. The copy's history is then unknown.
    pub fn decode(bytes: &[u8]) -> Option<CopyNote> {
        serde_json::from_slice(bytes).ok().filter(|note: &CopyNote| note.format == FORMAT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_round_trips_and_other_formats_are_unknown() {
        let note = CopyNote::new(MemberId(u64::MAX), Some(HistoryId(u64::MAX)), Some((HistoryId(3), 4)), true);
        assert_eq!(CopyNote::decode(&note.encode()), Some(note));
        let other = CopyNote { format: 2, ..note };
        assert_eq!(CopyNote::decode(&other.encode()), None);
        assert_eq!(CopyNote::decode(b"{"), None);
    }
}
