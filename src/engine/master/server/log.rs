//! The log of a running master: changes are appended while the state is locked, and responses are
//! sent when their changes are stored.
//!
//! [`MasterLog::close_change`] is called before the state is unlocked, and returns a [`Receipt`].
//! [`MasterLog::commit`] is called with the receipt before the response is sent. It waits for the
//! disk only with `--fsync always`, for the few changes that need it
//! ([`ClosedChange::needs_sync`]), and while no log file has room. See [`CommitLog`].
//!
//! [`ClosedChange::needs_sync`]: crate::ClosedChange

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::SnapshotStep;
use crate::planted::{PlantedMistake, is_planted};
use crate::record::DataFormat;
use crate::record::buffer::{ClosedChange, RepeatedCall};
use crate::server::data::MasterData;
use crate::server::shared::MasterShared;
use crate::snapshot::SLOTS_PER_SLICE;
use crate::state::MasterState;
use mcctl_base::{Mono, Unix};
use mcctl_journal::{
    CommitLog, FoundData, JournalError, LogSubject, LogWriter, LoggedState, SnapshotBegin, SnapshotSlice,
    SnapshotSource, SnapshotTrailer, SyncMode,
};
use mcctl_net::rpc::{CommitWait, Receipt};
use mcctl_sys::env::Env;

/// The terms in the messages about the log.
pub(super) const SUBJECT: LogSubject = LogSubject { service: "the master", of: "", items: "objects", lost: "keys" };

/// The log of a master's changes.
pub(super) struct MasterLog {
    log: CommitLog,
    /// The format of snapshots.
    pub format: DataFormat,
    /// A standby could not be sent changes from this log, so it is not tried again.
    pub is_unreadable: AtomicBool,
}

impl Deref for MasterLog {
    type Target = CommitLog;

    #[inline]
    fn deref(&self) -> &CommitLog {
        &self.log
    }
}

impl AsRef<CommitLog> for MasterLog {
    fn as_ref(&self) -> &CommitLog {
        &self.log
    }
}

impl MasterLog {
    /// Uses `data`, whose log is written by `writer` from `now` on. The start has `found` the data
    /// before.
    pub(super) fn new(data: MasterData, writer: LogWriter, found: &FoundData, now: Mono) -> MasterLog {
        let MasterData { dir, options, format } = data;
        MasterLog {
            log: CommitLog::new(dir, writer, options, SUBJECT, found, now),
            format,
            is_unreadable: AtomicBool::new(false),
        }
    }

    /// Appends the change that the state has made since it was locked, if there is one. For use
    /// before the state is unlocked. Returns the receipt that a response reporting the change waits
    /// for.
    #[inline]
    pub(super) fn close_change(&self, state: &mut MasterState, now: impl FnOnce() -> Unix) -> Receipt {
        let closed = state.close_change(|change| {
            let needs_sync = self.append_own(&change, now);
            Receipt { last: change.sequence, needs_sync, ..Receipt::default() }
        });
        let mut receipt = closed.unwrap_or_default();
        if let Some(repeated) = state.take_repeated() {
            let needs_sync = self.sync_of_repeated(repeated);
            receipt.merge(Receipt { last: self.writer.appended(), needs_sync, ..Receipt::default() });
        }
        receipt
    }

    /// Appends a change of this master's state. Returns its number if its response waits until it
    /// is durable, and otherwise 0.
    #[inline]
    pub(super) fn append_own(&self, change: &ClosedChange<'_>, now: impl FnOnce() -> Unix) -> u64 {
        if self.has_failed() {
            // The log may lack an earlier change, and must not contain later ones.
            return 0;
        }
        self.append(change.sequence, change.payload, now());
        if self.must_sync(change.needs_sync) { change.sequence } else { 0 }
    }

    /// The last change that must be durable before the response to a repeated call is sent, or
    /// 0. The call repeats an earlier one, whose change may be any of those so far.
    pub(super) fn sync_of_repeated(&self, repeated: RepeatedCall) -> u64 {
        if self.must_sync(repeated.needs_sync) { self.writer.appended() } else { 0 }
    }

    /// Whether responses wait until a change is durable. `in_every_mode`: the change needs it in
    /// every mode.
    fn must_sync(&self, in_every_mode: bool) -> bool {
        in_every_mode || self.options.sync == SyncMode::Always
    }

    /// Stores the changes whose responses are about to be sent. See
    /// [`RpcService::commit`](mcctl_net::rpc::RpcService::commit).
    ///
    /// A response waits for a sync only if the changes in its `receipt` need one. If the future
    /// that is returned is dropped, the changes stay in the buffer.
    pub(super) fn commit(&self, receipt: Receipt) -> Option<CommitWait<'_>> {
        let (last, sync) = self.unstored_of(receipt)?;
        Some(Box::pin(self.store(last, sync)))
    }

    /// Like [`commit`](Self::commit), for a log that may be replaced.
    pub(super) fn commit_owned(self: Arc<Self>, receipt: Receipt) -> Option<impl Future<Output = bool> + Send + use<>> {
        let (last, sync) = self.unstored_of(receipt)?;
        Some(async move { self.store(last, sync).await })
    }

    fn unstored_of(&self, receipt: Receipt) -> Option<(u64, u64)> {
        if is_planted(PlantedMistake::AnswerBeforeRecord) {
            return None;
        }
        self.unstored(receipt.needs_sync)
    }
}

impl<E: Env> LoggedState for MasterShared<E> {
    fn durable(&self, sequence: u64) {
        // In a cluster, the standbys must have the changes as well, so the driver reports this to
        // the state.
        if self.ha.is_none() {
            self.with_guarded(|guarded, _, _| guarded.state.durable(sequence));
        }
    }

    fn awaits_durable(&self) -> bool {
        self.with_guarded(|guarded, _, _| guarded.state.has_freed_memory_waiting())
    }

    fn log_ended(&self, error: Option<JournalError>) {
        match self.disk() {
            // The standbys still need the records.
            Some(disk) => disk.log_failed(error),
            None if error.is_none() => self.with_guarded(|guarded, _, _| guarded.state.stop_recording()),
            None => {}
        }
    }
}

impl<E: Env> SnapshotSource for MasterShared<E> {
    type Log = MasterLog;

    const SLOTS_PER_STEP: u32 = SLOTS_PER_SLICE;

    fn begin(&self, log: &MasterLog, _: bool) -> SnapshotBegin {
        self.with_guarded(|guarded, now, _| match guarded.state.begin_snapshot(now, log.format) {
            Some(last) => SnapshotBegin::Begun { last, log_bytes: log.log_bytes() },
            None => SnapshotBegin::NotNow,
        })
    }

    fn slots(&self, slots: u32, _: bool) -> Option<SnapshotSlice> {
        self.with_guarded(|guarded, _, _| guarded.state.snapshot_slots(slots)).map(SnapshotSlice::from)
    }

    fn cancel(&self) {
        self.with_guarded(|guarded, _, _| guarded.state.cancel_snapshot());
    }
}

impl From<SnapshotStep> for SnapshotSlice {
    fn from(step: SnapshotStep) -> SnapshotSlice {
        match step {
            SnapshotStep::More => SnapshotSlice::More,
            SnapshotStep::Chunk(chunk) => SnapshotSlice::Chunk(chunk),
            SnapshotStep::Done(summary) => {
                SnapshotSlice::Done(SnapshotTrailer { items: summary.objects, digest: summary.digest })
            }
        }
    }
}

/// Ends the log of a master that sends no more responses: marks it as complete, and writes the last
/// snapshot.
///
/// # Errors
/// The log cannot be synced. An error of the snapshot is only logged.
pub(super) fn complete_log<E: Env>(shared: &MasterShared<E>, log: &MasterLog) -> Result<(), JournalError> {
    shared.with_guarded(|guarded, now, _| guarded.state.end_recording(now));
    mcctl_journal::complete_log(&shared.env, shared, log)
}
