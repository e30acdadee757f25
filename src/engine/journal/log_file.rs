//! One file of the log: its creation, and the part of it that is written.

use std::sync::Arc;

use crate::error::JournalError;
use crate::frame::FrameRun;
use crate::header::{FILE_HEADER_BYTES, FileHeader};
use crate::names;
use crate::storage::{JournalFile, JournalStorage, StorageOperation};

/// A log file that frames are written to.
pub(super) struct LogFile {
    pub name: String,
    pub number: u64,
    /// The first value of the frames' checksums.
    pub seed: u32,
    pub file: Arc<dyn JournalFile>,
    /// Offset of the next frame.
    pub offset: u64,
    pub size: u64,
    /// The sequence number of the first frame, once it is written.
    pub first: Option<u64>,
}

impl LogFile {
    /// Creates the file of this header, with all its blocks. It has its name only after its header
    /// is durable, so a power loss does not leave a damaged header.
    ///
    /// # Errors
    /// The disk is full, or reports another error. A temporary file may remain.
    pub(super) fn create(storage: &dyn JournalStorage, header: &FileHeader) -> Result<LogFile, JournalError> {
        let name = names::log_name(header.number);
        let temporary = names::temporary(&name);
        let error = |operation, file: &str| JournalError::storage(operation, file, None);
        let file = storage.create(&temporary, header.size).map_err(error(StorageOperation::Create, &temporary))?;
        file.write_at(0, &header.encode()).map_err(error(StorageOperation::Write, &temporary))?;
        file.sync().map_err(error(StorageOperation::Sync, &temporary))?;
        storage.rename(&temporary, &name).map_err(error(StorageOperation::Rename, &temporary))?;
        storage.sync_directory("").map_err(error(StorageOperation::SyncDirectory, &storage.path()))?;
        let number = header.number;
        let seed = header.seed();
        let offset = FILE_HEADER_BYTES as u64;
        Ok(LogFile { name, number, seed, file, offset, size: header.size, first: None })
    }

    /// Number of free bytes in the file.
    pub(super) fn room(&self) -> u64 {
        self.size - self.offset
    }

    /// Writes complete frames after the last one. `bytes` are those of `run`.
    ///
    /// # Errors
    /// The disk reports an error.
    pub(super) fn write(&mut self, bytes: &[u8], run: FrameRun) -> Result<(), JournalError> {
        let failed = |cause| JournalError::storage(StorageOperation::Write, &self.name, Some(self.offset))(cause);
        self.file.write_at(self.offset, bytes).map_err(failed)?;
        self.offset += bytes.len() as u64;
        self.first.get_or_insert(run.first);
        Ok(())
    }
}

/// A log file in the directory, for the decision when it can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownLogFile {
    pub number: u64,
    /// The sequence number of the first frame. `None`: the file has no frame, or it was not read.
    pub first: Option<u64>,
}

/// Number of `files`, which are in order, that contain only frames up to `sequence`. The last file
/// is never counted, because frames may be added to it.
pub(super) fn files_up_to(files: &[KnownLogFile], sequence: u64) -> usize {
    files.iter().rposition(|file| file.first.is_some_and(|first| first <= sequence + 1)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_removable_if_the_next_one_begins_early_enough() {
        let file = |(number, first)| KnownLogFile { number, first };
        let files = [(1, None), (2, Some(10)), (3, Some(20)), (4, None), (5, Some(30)), (6, None)].map(file);
        let removable = |sequence| files_up_to(&files, sequence);
        assert_eq!([0, 8, 9, 18, 19, 28, 29, 1000].map(removable), [0, 0, 1, 1, 2, 2, 4, 4]);
        assert_eq!(files_up_to(&[], 5), 0);
    }
}
