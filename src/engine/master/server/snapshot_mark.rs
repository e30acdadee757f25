//! The last snapshot of a master, which determines when the next one is due.

use crate::server::data::FoundData;
use mcctl_base::Mono;

/// Number of bytes of changes after which a snapshot is written before its time. A start reads at
/// most about this much of the log. A larger snapshot raises the limit to its own size, so that
/// snapshots write at most as much as the log.
pub const SNAPSHOT_LOG_BYTES: u64 = 128 << 20;

/// What a master may still write before its next snapshot is complete, and older files are removed:
/// a snapshot as large as the last one, the log until then, and the file that is created ahead.
pub fn space_needed(snapshot_bytes: u64, file_bytes: u64) -> u64 {
    snapshot_bytes.saturating_add(SNAPSHOT_LOG_BYTES.max(snapshot_bytes)).saturating_add(file_bytes)
}

/// The last snapshot, written or attempted.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotMark {
    /// The last change that it contains.
    pub sequence: u64,
    /// Time of the attempt. `None`: the next one is due at once.
    pub at: Option<Mono>,
    /// Size of the log before it, in bytes
    /// ([`MasterLog::log_bytes`](super::log::MasterLog::log_bytes)).
    pub log_bytes: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The snapshot that was restored, as if it had been written at `now`. If the log has grown too
/// large, because the masters before were killed before they wrote one, the next one is due at
/// once.
pub(super) fn restored_mark(found: &FoundData, now: Mono) -> SnapshotMark {
    let is_overdue = found.log_bytes >= SNAPSHOT_LOG_BYTES.max(found.snapshot_bytes);
    let at = (!is_overdue).then_some(now);
    SnapshotMark { sequence: found.snapshot, at, log_bytes: 0, bytes: found.snapshot_bytes }
}
