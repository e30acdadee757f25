//! The table of records with its journal: every write is decided, appended to the log and applied
//! while the table is locked.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};

use crate::backend::{NotServed, RecordBackend, TablePlan};
use crate::journal::worker::JournalWorker;
use crate::journal::{MetadataJournal, MetadataJournalError, MetadataJournalOptions, MetadataRestoreReport, restore};
use crate::records::SharedTable;
use mcctl_base::Unix;
use mcctl_journal::{DataDir, JournalError};
use mcctl_sys::env::Env;

/// The records, with a journal.
///
/// A write is visible to readers before it is stored. Its response must wait for
/// [`RecordStore::commit`], and so must a response that follows from an earlier write, such as
/// [`WriteOutcome::Unchanged`](crate::records::WriteOutcome::Unchanged).
pub(super) struct RecordStore {
    table: SharedTable,
    journal: MetadataJournal,
}

impl RecordStore {
    /// Reads the records in `dir`, and begins a log after them.
    ///
    /// # Errors
    /// The directory is damaged or of an unknown version, or the disk reports an error.
    pub(super) fn restored(
        dir: DataDir,
        options: MetadataJournalOptions,
    ) -> Result<(RecordStore, MetadataRestoreReport), MetadataJournalError> {
        let restored = restore(&dir)?;
        let journal = MetadataJournal::start(dir, &restored, options)?;
        let report = MetadataRestoreReport { records: restored.table.len(), recovery: restored.recovery };
        Ok((RecordStore { table: SharedTable::new(restored.table), journal }, report))
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
        self.journal.append(&changes, at)?;
        self.journal.request_work();
        for change in changes {
            table.apply(&change);
        }
        Ok(())
    }

    /// Stores all writes, as the sync mode requires it before a response. Waits for the disk.
    ///
    /// # Errors
    /// The disk reports an error, and the service does not continue without it.
    pub(super) fn commit(&self) -> Result<(), JournalError> {
        self.journal.commit()
    }

    /// Writes a snapshot of the table at the wall-clock time `at`, if there is a journal and it is
    /// complete. Waits for the disk.
    ///
    /// # Errors
    /// The disk reports an error. Then the previous snapshot and the log are still complete.
    pub(super) fn write_snapshot(&self, at: Unix) -> Result<(), JournalError> {
        let (sequence, image) = {
            let table = self.table.lock();
            let Some(sequence) = self.journal.appended() else { return Ok(()) };
            (sequence, table.image())
        };
        self.journal.write_snapshot(sequence, image, at)
    }

    pub(super) fn journal(&self) -> &MetadataJournal {
        &self.journal
    }

    pub(super) fn table(&self) -> &SharedTable {
        &self.table
    }
}

/// Records in a data directory.
pub(super) struct StoredRecords<E> {
    pub store: Arc<RecordStore>,
    pub worker: Arc<JournalWorker>,
    pub env: E,
}

impl<E: Env> RecordBackend for StoredRecords<E> {
    fn get<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Bytes>, NotServed>> {
        Box::pin(ready(Ok(self.store.table().lock().get(key))))
    }

    fn change<'a>(&'a self, plan: TablePlan<'a>) -> BoxFuture<'a, Result<(), NotServed>> {
        Box::pin(async move {
            self.store.change(plan, self.env.unix())?;
            if !self.store.journal().needs_commit() {
                return Ok(());
            }
            let store = self.store.clone();
            let committed = tokio::task::spawn_blocking(move || store.commit()).await;
            committed.map_err(|_| NotServed::Stopping)?.map_err(NotServed::Journal)
        })
    }

    fn table(&self) -> SharedTable {
        self.store.table().clone()
    }

    fn failed(&self) -> BoxFuture<'_, JournalError> {
        Box::pin(self.store.journal().failure())
    }

    fn close(&self) -> BoxFuture<'_, Result<(), JournalError>> {
        let worker = self.worker.clone();
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || worker.close()).await {
                Ok(closed) => closed,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        })
    }
}
