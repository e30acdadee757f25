//! The table of records with its journal: every write is decided, appended to the log and applied
//! while the table is locked.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::KeySpace;
use crate::change::MetadataChange;
use crate::journal::{MetadataJournal, MetadataJournalError, MetadataJournalOptions, MetadataRestoreReport, restore};
#[cfg(test)]
use crate::records::TableImage;
use crate::records::{MetadataTable, PlannedWrite, RemovedRecords, WriteOutcome};
use mcctl_base::Unix;
use mcctl_journal::{DataDir, JournalError};

/// The records, in memory or with a journal.
///
/// A write is visible to readers before it is stored. Its response must wait for
/// [`RecordStore::commit`], and so must a response that follows from an earlier write, such as
/// [`WriteOutcome::Unchanged`].
pub(super) struct RecordStore {
    table: Mutex<MetadataTable>,
    journal: Option<MetadataJournal>,
}

impl RecordStore {
    /// An empty table without a journal.
    pub(super) fn in_memory() -> RecordStore {
        RecordStore { table: Mutex::default(), journal: None }
    }

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
        Ok((RecordStore { table: Mutex::new(restored.table), journal: Some(journal) }, report))
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
        if let Some(journal) = &self.journal {
            journal.append(changes, at)?;
            journal.request_work();
        }
        for change in changes {
            table.apply(change);
        }
        Ok(())
    }

    /// Whether a response must wait for [`RecordStore::commit`].
    pub(super) fn needs_commit(&self) -> bool {
        self.journal.as_ref().is_some_and(MetadataJournal::needs_commit)
    }

    /// Stores all writes, as the sync mode requires it before a response. Waits for the disk.
    ///
    /// # Errors
    /// The disk reports an error, and the service does not continue without it.
    pub(super) fn commit(&self) -> Result<(), JournalError> {
        self.journal.as_ref().map_or(Ok(()), MetadataJournal::commit)
    }

    /// Writes a snapshot of the table at the wall-clock time `at`, if there is a journal and it is
    /// complete. Waits for the disk.
    ///
    /// # Errors
    /// The disk reports an error. Then the previous snapshot and the log are still complete.
    pub(super) fn write_snapshot(&self, at: Unix) -> Result<(), JournalError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let (sequence, image) = {
            let table = self.table();
            let Some(sequence) = journal.appended() else { return Ok(()) };
            (sequence, table.image())
        };
        journal.write_snapshot(sequence, image, at)
    }

    pub(super) fn journal(&self) -> Option<&MetadataJournal> {
        self.journal.as_ref()
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
}

impl fmt::Debug for RecordStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordStore").field("table", &self.table).finish_non_exhaustive()
    }
}
