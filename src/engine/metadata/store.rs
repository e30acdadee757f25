//! The table of records with its log: every write is decided, appended to the log and applied while
//! the table is locked.

mod options;
mod snapshot;
#[cfg(test)]
mod tests;
mod threads;

pub(super) use options::record_options;
pub(super) use threads::RecordThreads;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};

use crate::backend::{NotServed, RecordBackend, TablePlan};
use crate::change::ChangePayload;
use crate::records::SharedTable;
use crate::restore::{MetadataJournalError, MetadataRestoreReport, restore};
use crate::store::snapshot::RecordSnapshot;
use mcctl_base::{Mono, Unix};
use mcctl_journal::{CommitLog, CommitLogOptions, DataDir, FoundData, JournalError, LogSubject};
use mcctl_sys::env::Env;

/// The terms in the messages about the log.
pub(super) const SUBJECT: LogSubject = LogSubject {
    service: "the metadata service",
    of: " of the metadata records",
    items: "records",
    lost: "metadata records",
};

/// The records, with a log.
///
/// A write is visible to readers before it is stored. Its response must wait for
/// [`RecordStore::commit`], and so must a response that follows from an earlier write, such as
/// [`WriteOutcome::Unchanged`](crate::records::WriteOutcome::Unchanged).
pub(super) struct RecordStore {
    table: SharedTable,
    /// The snapshot in progress.
    snapshot: Mutex<Option<RecordSnapshot>>,
    log: Arc<CommitLog>,
}

impl RecordStore {
    /// Reads the records in `dir`, and begins a log after them at `now`.
    ///
    /// # Errors
    /// The directory is damaged or of an unknown version, or the disk reports an error.
    pub(super) fn restored(
        mut dir: DataDir,
        options: CommitLogOptions,
        now: Mono,
    ) -> Result<(RecordStore, MetadataRestoreReport), MetadataJournalError> {
        let restored = restore(&dir)?;
        let recovery = restored.recovery;
        let writer = dir.start_log(&recovery, options.log)?;
        let found = FoundData::new(&recovery, restored.snapshot_bytes, options.log);
        let log = CommitLog::new(dir, writer, options, SUBJECT, &found, now);
        let report = MetadataRestoreReport { records: restored.table.len(), recovery };
        let table = SharedTable::new(restored.table);
        Ok((RecordStore { table, snapshot: Mutex::default(), log: Arc::new(log) }, report))
    }

    /// Makes the changes of `plan` at the wall-clock time `at`: appends them to the log, and
    /// applies them.
    ///
    /// # Errors
    /// The log does not accept them, and they have no effect.
    pub(super) fn change(&self, plan: TablePlan<'_>, at: Unix) -> Result<(), JournalError> {
        let mut table = self.table.lock();
        let changes = plan(&mut table);
        if changes.is_empty() {
            return Ok(());
        }
        self.log.try_append(ChangePayload::of(&changes).bytes(), at)?;
        for change in changes {
            table.apply(&change);
        }
        Ok(())
    }

    /// Waits until all writes are stored, as the sync mode requires it before a response.
    ///
    /// # Errors
    /// The disk reports an error, and the service does not continue without it.
    pub(super) async fn commit(&self) -> Result<(), JournalError> {
        self.log.commit().await
    }

    pub(super) fn log(&self) -> &Arc<CommitLog> {
        &self.log
    }

    pub(super) fn table(&self) -> &SharedTable {
        &self.table
    }

    fn snapshot(&self) -> MutexGuard<'_, Option<RecordSnapshot>> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records in a data directory.
pub(super) struct StoredRecords<E> {
    pub store: Arc<RecordStore>,
    pub threads: RecordThreads,
    pub env: E,
}

impl<E: Env> RecordBackend for StoredRecords<E> {
    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Bytes>, NotServed>> {
        Box::pin(ready(Ok(self.store.table.lock().get(key))))
    }

    fn change<'a>(&'a self, plan: TablePlan<'a>) -> BoxFuture<'a, Result<(), NotServed>> {
        Box::pin(async move {
            self.store.change(plan, self.env.unix())?;
            // The changes are in the table, and perhaps in the log.
            self.store.commit().await.map_err(|error| NotServed::Unknown { cause: error.to_string() })
        })
    }

    fn table(&self) -> SharedTable {
        self.store.table.clone()
    }

    fn failed(&self) -> BoxFuture<'_, JournalError> {
        Box::pin(self.store.log.failure())
    }

    fn close(&self) -> BoxFuture<'_, Result<(), JournalError>> {
        Box::pin(self.threads.close(&self.env))
    }
}
