//! Empties a data directory: moves its files to a subdirectory, or removes them.
//!
//! A marker file has the destination in its name. It is durable before the first file moves, and
//! removed after the last one, so that the next start completes what a crash interrupts.

use std::io;

use crate::error::JournalError;
use crate::names;
use crate::storage::{JournalStorage, StorageOperation};

/// Maximum number of directories with the same date.
const SAME_DATE_MAX: u32 = 1000;

/// Moves all files of the journal to a new subdirectory, which is named after `date`. Returns its
/// name.
///
/// # Errors
/// The disk reports an error.
pub(super) fn set_aside(storage: &dyn JournalStorage, date: &str) -> Result<String, JournalError> {
    assert!(!date.is_empty() && !date.contains('/'), "not a directory name: '{date}'");
    let directory = create_directory(storage, date)?;
    begin(storage, &directory)?;
    Ok(directory)
}

/// Removes all files of the journal.
///
/// # Errors
/// The disk reports an error.
pub(super) fn discard(storage: &dyn JournalStorage) -> Result<(), JournalError> {
    begin(storage, "")
}

fn create_directory(storage: &dyn JournalStorage, date: &str) -> Result<String, JournalError> {
    let mut name = date.to_owned();
    let mut number = 1;
    loop {
        match storage.create_directory(&name) {
            Ok(()) => return Ok(name),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < SAME_DATE_MAX => number += 1,
            Err(error) => return Err(JournalError::storage(StorageOperation::CreateDirectory, &name, None)(error)),
        }
        name = format!("{date}-{number}");
    }
}

fn begin(storage: &dyn JournalStorage, destination: &str) -> Result<(), JournalError> {
    let marker = format!("{}{destination}", names::EMPTYING);
    storage.create(&marker, 0).map_err(JournalError::storage(StorageOperation::Create, &marker, None))?;
    sync(storage, "")?;
    complete(storage)
}

/// Completes what an earlier process began. Does nothing without a marker.
///
/// # Errors
/// The disk reports an error.
pub(super) fn complete(storage: &dyn JournalStorage) -> Result<(), JournalError> {
    let names = list(storage)?;
    for (marker, destination) in names.iter().filter_map(|name| Some((name, name.strip_prefix(names::EMPTYING)?))) {
        let of_journal = || names.iter().filter(|name| names::is_of_journal(name));
        if of_journal().next().is_some() {
            let directory = storage.path();
            let files = of_journal().count();
            match destination {
                "" => tracing::info!(%directory, files, "removing the data in the directory"),
                _ => {
                    tracing::warn!(%directory, files, to = destination, "moving the data in the directory to a subdirectory")
                }
            }
        }
        for name in of_journal() {
            if destination.is_empty() {
                storage.remove(name).map_err(JournalError::storage(StorageOperation::Remove, name, None))?;
            } else {
                let to = format!("{destination}/{name}");
                storage.rename(name, &to).map_err(JournalError::storage(StorageOperation::Rename, name, None))?;
            }
        }
        if !destination.is_empty() {
            sync(storage, destination)?;
        }
        sync(storage, "")?;
        storage.remove(marker).map_err(JournalError::storage(StorageOperation::Remove, marker, None))?;
        sync(storage, "")?;
    }
    Ok(())
}

/// The names of the files in the directory.
///
/// # Errors
/// The disk reports an error.
pub(super) fn list(storage: &dyn JournalStorage) -> Result<Vec<String>, JournalError> {
    storage.list().map_err(JournalError::storage(StorageOperation::List, &storage.path(), None))
}

fn sync(storage: &dyn JournalStorage, directory: &str) -> Result<(), JournalError> {
    let shown = format!("{}/{directory}", storage.path());
    storage.sync_directory(directory).map_err(JournalError::storage(StorageOperation::SyncDirectory, &shown, None))
}
