//! The note about the copy of the state that a master of a cluster stores in its data directory.

use serde::{Deserialize, Serialize};

use mcctl_election::ha::{HistoryId, MemberId};
use mcctl_journal::{SyncMode, Uuid};

/// The format of the note that this release reads and writes.
const FORMAT: u32 = 1;

/// The copy that the directory contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::server) struct CopyNote {
    /// The format of the note.
    pub format: u32,
    /// The ID of the copy.
    pub member: MemberId,
    /// The history of its last changes; `None` if it is empty.
    pub history: Option<HistoryId>,
    /// The history before that one, and its last change.
    pub parent: Option<(HistoryId, u64)>,
    /// The place that has all changes that the copy has acknowledged.
    pub stored: CopyStored,
}

/// The place that has all changes that a copy has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::server) enum CopyStored {
    /// The disk: a loss of power loses none of them.
    OnDisk,
    /// The kernel with this boot ID: a restart of the host may lose the last changes, and leave no
    /// trace of them.
    InKernel(u64, u64),
}

impl CopyStored {
    /// The place of the changes that this kernel stores in this mode.
    pub(crate) fn of(sync: SyncMode, boot: Uuid) -> CopyStored {
        match sync {
            SyncMode::Always => CopyStored::OnDisk,
            #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
            SyncMode::Interval(_) | SyncMode::Never => CopyStored::InKernel((boot.0 >> 64) as u64, boot.0 as u64),
        }
    }
}

impl CopyNote {
    /// A note of the current format.
    pub(crate) fn new(
        member: MemberId,
        history: Option<HistoryId>,
        parent: Option<(HistoryId, u64)>,
        stored: CopyStored,
    ) -> CopyNote {
        CopyNote { format: FORMAT, member, history, parent, stored }
    }

    /// The note as bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a note; `None` if it has another format. The copy's history is then unknown.
    pub(crate) fn decode(bytes: &[u8]) -> Option<CopyNote> {
        serde_json::from_slice(bytes).ok().filter(|note: &CopyNote| note.format == FORMAT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_round_trips_and_other_formats_are_unknown() {
        let boot = Uuid(u128::MAX - 7);
        for sync in [SyncMode::Always, SyncMode::Never] {
            let stored = CopyStored::of(sync, boot);
            let note = CopyNote::new(MemberId(u64::MAX), Some(HistoryId(u64::MAX)), Some((HistoryId(3), 4)), stored);
            assert_eq!(CopyNote::decode(&note.encode()), Some(note));
        }
        let note = CopyNote::new(MemberId(1), None, None, CopyStored::OnDisk);
        let other = CopyNote { format: 2, ..note };
        assert_eq!(CopyNote::decode(&other.encode()), None);
        assert_eq!(CopyNote::decode(b"{"), None);
    }
}
