//! A small file in a data directory, whose contents its user defines. It is replaced as a whole.

use crc32c::crc32c;

use crate::emptying::list;
use crate::error::JournalError;
use crate::names;
use crate::storage::{JournalStorage, StorageOperation, read_full};

/// Maximum size of a note, in bytes.
const NOTE_BYTES_MAX: usize = 4096;

/// Replaces the note. With `durable`, it is on the disk when this returns; otherwise, a loss of
/// power may damage it.
///
/// # Errors
/// The disk reports an error. Then the note is unchanged or replaced.
pub(super) fn store(storage: &dyn JournalStorage, note: &[u8], durable: bool) -> Result<(), JournalError> {
    let temporary = names::temporary(names::NOTE);
    let error = |operation| JournalError::storage(operation, &temporary, None);
    let file = storage.create(&temporary, 0).map_err(error(StorageOperation::Create))?;
    let bytes = [&crc32c(note).to_le_bytes(), note].concat();
    file.write_at(0, &bytes).map_err(error(StorageOperation::Write))?;
    if durable {
        file.sync().map_err(error(StorageOperation::Sync))?;
    }
    storage.rename(&temporary, names::NOTE).map_err(error(StorageOperation::Rename))?;
    let sync = JournalError::storage(StorageOperation::SyncDirectory, &storage.path(), None);
    if durable { storage.sync_directory("").map_err(sync) } else { Ok(()) }
}

/// The note; `None` if there is none, or it is damaged.
///
/// # Errors
/// The disk reports an error.
pub(super) fn load(storage: &dyn JournalStorage) -> Result<Option<Vec<u8>>, JournalError> {
    if !exists(storage)? {
        return Ok(None);
    }
    let error = |operation| JournalError::storage(operation, names::NOTE, None);
    let file = storage.open(names::NOTE).map_err(error(StorageOperation::Open))?;
    let mut bytes = vec![0; NOTE_BYTES_MAX];
    let count = read_full(&*file, 0, &mut bytes).map_err(error(StorageOperation::Read))?;
    let valid = bytes[..count].split_first_chunk().filter(|(sum, note)| u32::from_le_bytes(**sum) == crc32c(note));
    Ok(valid.map(|(_, note)| note.to_vec()))
}

/// Removes the note.
///
/// # Errors
/// The disk reports an error.
pub(super) fn remove(storage: &dyn JournalStorage) -> Result<(), JournalError> {
    if !exists(storage)? {
        return Ok(());
    }
    storage.remove(names::NOTE).map_err(JournalError::storage(StorageOperation::Remove, names::NOTE, None))?;
    storage.sync_directory("").map_err(JournalError::storage(StorageOperation::SyncDirectory, &storage.path(), None))
}

fn exists(storage: &dyn JournalStorage) -> Result<bool, JournalError> {
    Ok(list(storage)?.iter().any(|name| name == names::NOTE))
}
