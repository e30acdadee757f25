//! The file that states whether a directory contains everything that was acknowledged.
//!
//! It has one of two contents of the same length, so that marking a directory needs no space on the
//! disk. All other contents are corruption: no damaged mark counts as "valid".

use std::sync::Arc;

use crate::error::{Corruption, JournalError};
use crate::names;
use crate::storage::{JournalFile, JournalStorage, StorageOperation, read_full};

const VALID: &[u8; 8] = b"valid  \n";
const INVALID: &[u8; 8] = b"invalid\n";

/// The open marker. Its contents can be replaced, also on a full disk.
pub(super) struct ValidityMarker(Arc<dyn JournalFile>);

impl ValidityMarker {
    /// Opens the marker. In a `new` directory, creates it if necessary. It and its contents are
    /// durable when this returns.
    ///
    /// # Errors
    /// `Invalidated`; `Corrupt`; the disk reports an error.
    pub(super) fn open(storage: &dyn JournalStorage, exists: bool, new: bool) -> Result<ValidityMarker, JournalError> {
        let error = |operation| JournalError::storage(operation, names::VALIDITY, None);
        let file = match exists {
            true => storage.open(names::VALIDITY).map_err(error(StorageOperation::Open))?,
            false if new => {
                storage.create(names::VALIDITY, VALID.len() as u64).map_err(error(StorageOperation::Create))?
            }
            false => return Err(JournalError::corrupt(names::VALIDITY, 0, Corruption::NoMarker)),
        };
        let marker = ValidityMarker(file);
        let mut found = [0; VALID.len() + 1];
        let count = read_full(&*marker.0, 0, &mut found).map_err(error(StorageOperation::Read))?;
        match &found[..count] {
            found if found == INVALID => return Err(JournalError::Invalidated { directory: storage.path() }),
            // An earlier process could not sync the file, so the contents that this one reads may
            // not be on the disk.
            found if found == VALID && !new => marker.write(VALID)?,
            // An earlier process was interrupted, or lost power, while it created the directory.
            _ if new => {
                marker.write(VALID)?;
                let sync = JournalError::storage(StorageOperation::SyncDirectory, &storage.path(), None);
                storage.sync_directory("").map_err(sync)?;
            }
            _ => return Err(JournalError::corrupt(names::VALIDITY, 0, Corruption::Marker)),
        }
        Ok(marker)
    }

    /// Marks the directory as invalid.
    ///
    /// # Errors
    /// The disk reports an error. Then the directory is not marked, unless the disk has stored the
    /// mark in spite of the error.
    pub(super) fn invalidate(&self) -> Result<(), JournalError> {
        let marked = self.write(INVALID);
        if marked.is_err() {
            // The kernel may keep the mark although the sync failed.
            let _ = self.0.write_at(0, VALID);
        }
        marked
    }

    fn write(&self, contents: &[u8]) -> Result<(), JournalError> {
        let error = |operation| JournalError::storage(operation, names::VALIDITY, None);
        self.0.write_at(0, contents).map_err(error(StorageOperation::Write))?;
        self.0.sync().map_err(error(StorageOperation::Sync))
    }
}
