//! Logs and snapshots on disk: of the master's state, and of the metadata service's records.
//! Payloads are opaque bytes.
//!
//! A [`DataDir`] is one directory, used by one process. [`DataDir::recover`] delivers the newest
//! valid snapshot and the log after it. [`DataDir::start_log`] begins a [`LogWriter`], which
//! appends frames to preallocated files. [`DataDir::begin_snapshot`] and
//! [`DataDir::publish_snapshot`] write snapshots, and remove the log that is no longer needed.
//!
//! A running service uses a [`CommitLog`] and its threads.
//!
//! The disk is a [`JournalStorage`]: [`DiskStorage`], or [`SimulatedStorage`] in tests.
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]

mod data_dir;
mod disk;
mod emptying;
mod error;
mod flushed_mark;
mod frame;
mod header;
mod identity;
mod live_reader;
mod log_end;
mod log_file;
mod log_files;
mod log_reader;
mod marker;
mod modes;
mod names;
mod note;
mod options;
mod plan;
mod planted;
mod recovery;
mod service;
mod simulated;
mod simulated_disk;
mod simulated_inode;
mod snapshot;
mod snapshot_reader;
mod storage;
#[cfg(test)]
mod unit_tests;
mod uuid;
mod writer;

pub use data_dir::{DataDir, DataDirOptions, ExistingData};
pub use disk::DiskStorage;
pub use error::{Corruption, JournalError, WrittenBy};
pub use header::JOURNAL_FORMAT;
pub use live_reader::LiveLogReader;
pub use log_end::TornTail;
pub use names::{IDENTITY as IDENTITY_FILE, is_journal_file};
pub use options::{DiskErrorPolicy, ParseDiskErrorPolicyError, ParseSyncModeError, SyncMode};
pub use plan::{BOOT_ID_PATH, DataDirPlan, ExistingDataChoice};
pub use planted::JournalMistake;
#[cfg(any(test, debug_assertions))]
pub use planted::plant;
pub use recovery::{RecoveredItem, RecoveredSnapshot, RecoveryReport};
pub use service::{
    CHUNK_KIND, CommitLog, CommitLogOptions, DataView, FoundData, LogOutcome, LogRoom, LogSubject, LogThread, LogWork,
    LoggedState, SNAPSHOT_LOG_BYTES, SnapshotBegin, SnapshotRun, SnapshotSlice, SnapshotSource, SnapshotThread,
    StateSnapshots, complete_log,
};
pub use simulated::{Crash, SimulatedStorage};
pub use simulated_disk::DiskFault;
pub use snapshot::{CHUNK_BYTES_MAX, SnapshotTrailer, SnapshotWriter};
pub use storage::{DiskSpace, JournalFile, JournalStorage, StorageOperation};
pub use uuid::{ParseUuidError, Uuid};
pub use writer::{LOG_FILE_SIZES, LogConfig, LogWriter};
