//! What the threads of a log require of the state whose changes are in it.

use crate::error::JournalError;
use crate::service::commit_log::CommitLog;
use crate::snapshot::SnapshotTrailer;

/// A state whose changes are in a log.
pub trait LoggedState {
    /// The changes up to this one are durable.
    fn durable(&self, _sequence: u64) {}

    /// Whether something other than a response waits until changes are durable. Then the log is
    /// synced within a second in every mode.
    fn awaits_durable(&self) -> bool {
        false
    }

    /// The log has ended after an error of the disk. With an `error`, the process must stop.
    /// Without one, it continues without the log: the directory is marked as invalid, and responses
    /// still wait for the end of this call.
    fn log_ended(&self, _error: Option<JournalError>) {}
}

/// A state of which snapshots are written. Its changes are in a log.
pub trait SnapshotSource {
    type Log: AsRef<CommitLog>;

    /// Number of slots by which one step continues a snapshot.
    const SLOTS_PER_STEP: u32;

    /// Begins a snapshot. Waits for others, if that is needed and `may_wait`.
    fn begin(&self, log: &Self::Log, may_wait: bool) -> SnapshotBegin;

    /// Continues the snapshot by up to `slots` slots of the state's table, or by none if others
    /// must do it and not `may_wait`. `None`: it was cancelled.
    fn slots(&self, slots: u32, may_wait: bool) -> Option<SnapshotSlice>;

    /// Ends the snapshot in progress, whether or not it is complete, so that another one can begin.
    fn cancel(&self);
}

/// The result of beginning a snapshot.
#[derive(Debug)]
pub enum SnapshotBegin {
    /// No snapshot can begin now. The thread tries again later.
    NotNow,
    /// Begin again, to get the result.
    NotYet,
    /// It contains the changes up to `last`. The size of the log before it
    /// ([`CommitLog::log_bytes`]) was `log_bytes`.
    Begun { last: u64, log_bytes: u64 },
}

/// The result of one slice of a snapshot.
#[derive(Debug)]
pub enum SnapshotSlice {
    /// Continue, without writing anything.
    More,
    /// Write this chunk and continue.
    Chunk(Vec<u8>),
    Done(SnapshotTrailer),
}
