//! The table of records with its log: every write is decided, appended to the log and applied while
//! the table is locked.

mod options;
mod snapshot;
#[cfg(test)]
mod tests;
mod threads;

pub(super) use options::record_options;
pub(super) use threads::RecordThreads;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::KeySpace;
use crate::change::{ChangePayload, MetadataChange};
#[cfg(test)]
use crate::records::TableImage;
use crate::records::{MetadataTable, PlannedWrite, RemovedRecords, WriteOutcome};
use crate::restore::{MetadataJournalError, MetadataRestoreReport, restore};
use crate::store::snapshot::RecordSnapshot;
use mcctl_base::{Mono, Unix};
use mcctl_journal::{CommitLog, CommitLogOptions, DataDir, FoundData, JournalError, LogSubject};

/// The terms in the messages about the log.
pub(super) const SUBJECT: LogSubject = LogSubject {
    service: "the metadata service",
    of: " of the metadata records",
    items: "records",
    lost: "metadata records",
};

/// The records, in memory or with a log.
///
/// A write is visible to readers before it is stored. Its response must wait for
/// [`RecordStore::commit`], and so must a response that follows from an earlier write, such as
/// [`WriteOutcome::Unchanged`].
pub(super) struct RecordStore {
    table: Mutex<MetadataTable>,
    /// The snapshot in progress.
    snapshot: Mutex<Option<RecordSnapshot>>,
    log: Option<Arc<CommitLog>>,
}

impl RecordStore {
    /// An empty table without a log.
    pub(super) fn in_memory() -> RecordStore {
        RecordStore::new(MetadataTable::default(), None)
    }

    fn new(table: MetadataTable, log: Option<Arc<CommitLog>>) -> RecordStore {
        RecordStore { table: Mutex::new(table), snapshot: Mutex::default(), log }
    }

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
        Ok((RecordStore::new(restored.table, Some(Arc::new(log))), report))
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.table().get(key)
    }

    pub(super) fn len(&self) -> usize {
        self.table().len()
    }

    /// [`MetadataTable::put`] at the wall-clock time `at`.
    ///
    /// # Errors
    /// The log does not accept the write, which has no effect.
    pub(super) fn put(&self, key: &[u8], value: &[u8], at: Unix) -> Result<WriteOutcome, JournalError> {
        self.change(at, |table| table.plan_put(key, value))
    }

    /// [`MetadataTable::take_over`] at the wall-clock time `at`.
    ///
    /// # Errors
    /// The log does not accept the write, which has no effect.
    pub(super) fn take_over(
        &self,
        key: &[u8],
        current: &[u8],
        value: &[u8],
        at: Unix,
    ) -> Result<WriteOutcome, JournalError> {
        self.change(at, |table| table.plan_take_over(key, current, value))
    }

    /// Removes the record under `key`. Returns false if it did not exist.
    ///
    /// # Errors
    /// The log does not accept the removal, which has no effect.
    pub(super) fn remove(&self, key: &[u8], at: Unix) -> Result<bool, JournalError> {
        let mut table = self.table();
        let change = table.plan_remove(key);
        self.apply(&mut table, change.as_slice(), at)?;
        Ok(change.is_some())
    }

    /// Removes all records that belong to the owner of `name`.
    ///
    /// # Errors
    /// The log does not accept the removal, which has no effect.
    pub(super) fn remove_segment(&self, keys: &KeySpace, name: &str, at: Unix) -> Result<RemovedRecords, JournalError> {
        let mut table = self.table();
        let (removed, changes) = table.plan_remove_segment(keys, name);
        self.apply(&mut table, &changes, at)?;
        drop(table);
        if let Some(log) = &self.log {
            // No response waits for the removal.
            log.flush();
        }
        Ok(removed)
    }

    /// [`MetadataTable::mark_owner_expired`]. The mark is not stored.
    pub(super) fn mark_owner_expired(&self, keys: &KeySpace, name: &str) {
        self.table().mark_owner_expired(keys, name);
    }

    fn change<'a>(
        &self,
        at: Unix,
        plan: impl FnOnce(&mut MetadataTable) -> PlannedWrite<'a>,
    ) -> Result<WriteOutcome, JournalError> {
        let mut table = self.table();
        let planned = plan(&mut table);
        self.apply(&mut table, &planned.changes, at)?;
        Ok(planned.outcome)
    }

    /// Applies the changes of one write, and appends them to the log before.
    fn apply(&self, table: &mut MetadataTable, changes: &[MetadataChange<'_>], at: Unix) -> Result<(), JournalError> {
        if changes.is_empty() {
            return Ok(());
        }
        if let Some(log) = &self.log {
            log.try_append(ChangePayload::of(changes).bytes(), at)?;
        }
        for change in changes {
            table.apply(change);
        }
        Ok(())
    }

    /// Waits until all writes are stored, as the sync mode requires it before a response.
    ///
    /// # Errors
    /// The disk reports an error, and the service does not continue without it.
    pub(super) async fn commit(&self) -> Result<(), JournalError> {
        match &self.log {
            Some(log) => log.commit().await,
            None => Ok(()),
        }
    }

    pub(super) fn log(&self) -> Option<&Arc<CommitLog>> {
        self.log.as_ref()
    }

    /// Copies all records, to compare them with those of another table.
    #[cfg(test)]
    pub(super) fn image(&self) -> TableImage {
        self.table().image()
    }

    fn table(&self) -> MutexGuard<'_, MetadataTable> {
        // A panic while the table is locked leaves no partial change that matters: each record is
        // written in one step.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn snapshot(&self) -> MutexGuard<'_, Option<RecordSnapshot>> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RecordStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordStore").field("table", &self.table).finish_non_exhaustive()
    }
}
