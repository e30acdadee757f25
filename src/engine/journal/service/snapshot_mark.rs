//! The last snapshot of a state, which determines when the next one is due.

use crate::recovery::RecoveryReport;
use crate::service::options::CommitLogOptions;
use crate::writer::LogConfig;
use mcctl_base::Mono;

/// The contents of a data directory at the start, which determine when the next snapshot is due.
#[derive(Clone, Copy, Debug, Default)]
pub struct FoundData {
    /// The number of the last change that the newest snapshot contains.
    pub snapshot: u64,
    /// Size of the chunks of the newest snapshot, in bytes.
    pub snapshot_bytes: u64,
    /// Size of the log files that were read, in bytes.
    pub log_bytes: u64,
}

impl FoundData {
    /// What `recovery` has delivered: a snapshot with chunks of `snapshot_bytes` bytes, and a log.
    pub fn new(recovery: &RecoveryReport, snapshot_bytes: u64, log: LogConfig) -> FoundData {
        let snapshot = recovery.snapshot.as_ref().map_or(0, |snapshot| snapshot.sequence);
        FoundData { snapshot, snapshot_bytes, log_bytes: recovery.log_files() as u64 * log.file_bytes }
    }
}

/// The last snapshot, written or attempted.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotMark {
    /// The last change that it contains.
    pub sequence: u64,
    /// Time of the attempt. `None`: the next one is due at once.
    pub at: Option<Mono>,
    /// Size of the log before it, in bytes
    /// ([`CommitLog::log_bytes`](super::commit_log::CommitLog::log_bytes)).
    pub log_bytes: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

impl SnapshotMark {
    /// The snapshot that was restored, as if it had been written at `now`. If the log has grown too
    /// large, because the processes before were killed before they wrote one, the next one is due
    /// at once.
    pub(super) fn restored(found: &FoundData, options: &CommitLogOptions, now: Mono) -> SnapshotMark {
        let is_overdue = found.log_bytes >= options.log_bytes_before_snapshot(found.snapshot_bytes);
        let at = (!is_overdue).then_some(now);
        SnapshotMark { sequence: found.snapshot, at, log_bytes: 0, bytes: found.snapshot_bytes }
    }
}
