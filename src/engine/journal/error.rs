//! The errors of a data directory: the disk reports an error, or the directory's contents are
//! wrong.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::storage::StorageOperation;

/// An error of a data directory, its log or its snapshots.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// The operating system reported an error.
    #[error("cannot {operation} {file}{}: {cause}", AtOffset(*offset))]
    Storage { operation: StorageOperation, file: String, offset: Option<u64>, cause: Arc<io::Error> },
    /// Another process has locked the directory.
    #[error("{directory} is in use: another process has locked it")]
    Locked { directory: String },
    /// The directory belongs to another cluster.
    #[error("{directory} belongs to cluster '{found}', not to '{expected}'")]
    OtherCluster { directory: String, found: String, expected: String },
    /// A process that could no longer write to the directory has marked its contents as incomplete.
    #[error("{directory} is invalid: its last process continued without it after a disk error")]
    Invalidated { directory: String },
    /// A newer or unknown program wrote the file.
    #[error("{file} has format {found}, which is not supported; {writer} wrote it")]
    UnknownFormat { file: String, found: u32, writer: String },
    /// Data that must be complete is damaged or missing.
    #[error("{file}{}: {what}", CorruptAt(what, *offset))]
    Corrupt { file: String, offset: u64, what: Corruption },
    /// The log's buffer is full, because no new log file could be created in time.
    #[error("the log's buffer is full: {buffered} bytes are not written, and the limit is {limit}")]
    LogFull { buffered: usize, limit: usize },
    /// A payload does not fit into a log file or a snapshot chunk.
    #[error("a payload of {bytes} bytes exceeds the limit of {limit}")]
    PayloadTooLarge { bytes: usize, limit: usize },
    /// The kernel's boot ID, which tells whether the data of the last process is complete, cannot
    /// be read.
    #[error("cannot read {}: {cause}", crate::plan::BOOT_ID_PATH)]
    BootId { cause: Arc<io::Error> },
}

impl JournalError {
    /// Returns a function that converts an error of the operating system.
    pub(super) fn storage(
        operation: StorageOperation,
        file: &str,
        offset: Option<u64>,
    ) -> impl FnOnce(io::Error) -> JournalError + use<> {
        let file = file.to_owned();
        move |cause| JournalError::Storage { operation, file, offset, cause: Arc::new(cause) }
    }

    pub(super) fn corrupt(file: &str, offset: u64, what: Corruption) -> JournalError {
        JournalError::Corrupt { file: file.to_owned(), offset, what }
    }
}

/// The kind of damage that a file has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// The file's header is short, has another magic number, or its checksum is wrong.
    #[error("the file's header is damaged")]
    FileHeader,
    /// The header is that of another file.
    #[error("the header belongs to file number {found}")]
    FileNumber { found: u64 },
    /// The file was copied from another data directory.
    #[error("the file belongs to the data directory {found}")]
    OtherDirectory { found: String },
    /// The file does not have the size with which it was created.
    #[error("the file has {found} bytes instead of {expected}")]
    FileSize { found: u64, expected: u64 },
    /// A frame is damaged, and a valid frame follows.
    #[error("change {expected} is damaged, and change {next} after it is valid")]
    Frame { expected: u64, next: u64 },
    /// Frames are missing between two files, or at the beginning of the log.
    #[error("changes from {expected} are missing; the next one is {found}")]
    Gap { expected: u64, found: u64 },
    /// The file that precedes this one in the log does not exist, and its frames are needed.
    #[error("the log file before it, number {number}, is missing")]
    NoPrevious { number: u64 },
    /// The log ends before a sequence number that was durable.
    #[error("the log ends with change {last}, although change {durable} was durable")]
    LogEnd { last: u64, durable: u64 },
    /// The log ends before a change that the running kernel had accepted, so bytes at its end are
    /// lost or damaged.
    #[error(
        "changes {} to {flushed} are damaged or missing, although they were written completely since this host started",
        last + 1
    )]
    LostEnd { last: u64, flushed: u64 },
    /// The directory was used before, and has no log file.
    #[error("the log files are missing, although the directory was used before")]
    NoLog,
    /// A snapshot's chunk is damaged.
    #[error("chunk {index} is damaged")]
    Chunk { index: u64 },
    /// A snapshot ends without its trailer, or its trailer contradicts the chunks.
    #[error("the snapshot is incomplete")]
    Trailer,
    /// The identity file cannot be parsed.
    #[error("the file is not a valid identity: {0}")]
    Identity(String),
    /// The file that states whether the directory is valid has other contents.
    #[error("the file states neither 'valid' nor 'invalid'")]
    Marker,
    /// The directory was used before, and the file that states whether it is valid is missing.
    #[error("the file is missing, although the directory was used before")]
    NoMarker,
    /// The directory has data, and the file that identifies it is missing.
    #[error("the file is missing, although the directory contains data")]
    NoIdentity,
}

/// ` is corrupt at offset N`, or nothing if a file is missing.
struct CorruptAt<'a>(&'a Corruption, u64);

impl fmt::Display for CorruptAt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Corruption::NoLog | Corruption::NoMarker | Corruption::NoIdentity => Ok(()),
            _ => write!(f, " is corrupt at offset {}", self.1),
        }
    }
}

/// Shows the writer of a file, for an error message: ` (written by NAME)`, or nothing.
pub struct WrittenBy<'a>(pub &'a Option<String>);

impl fmt::Display for WrittenBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |writer| write!(f, " (written by {writer})"))
    }
}

/// ` at offset N`, or nothing.
struct AtOffset(Option<u64>);

impl fmt::Display for AtOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |offset| write!(f, " at offset {offset}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_operation_file_offset_and_cause() {
        let no_space = || io::Error::from_raw_os_error(28);
        let text = |offset| JournalError::storage(StorageOperation::Write, "log-7", offset)(no_space()).to_string();
        assert_eq!(text(Some(512)), format!("cannot write log-7 at offset 512: {}", no_space()));
        assert_eq!(text(None), format!("cannot write log-7: {}", no_space()));
    }
}
