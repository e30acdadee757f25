//! The options of a log, and the terms in its messages.

use std::time::Duration;

use crate::options::{DiskErrorPolicy, SyncMode};
use crate::writer::LogConfig;

/// The default of [`CommitLogOptions::snapshot_log_bytes`], which a master uses.
pub const SNAPSHOT_LOG_BYTES: u64 = 128 << 20;

/// The options of a service for its log and its snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitLogOptions {
    pub sync: SyncMode,
    pub on_error: DiskErrorPolicy,
    /// An operation of the disk for the log that lasts longer than this is a stall. Flag
    /// `--disk-stall-timeout`.
    pub stall_timeout: Duration,
    /// Time between two snapshots.
    pub snapshot_interval: Duration,
    /// Number of bytes of changes after which a snapshot is written before its time. A start reads
    /// at most about this much of the log. A larger snapshot raises the limit to its own size, so
    /// that snapshots write at most as much as the log.
    pub snapshot_log_bytes: u64,
    pub log: LogConfig,
}

impl Default for CommitLogOptions {
    fn default() -> CommitLogOptions {
        CommitLogOptions {
            sync: SyncMode::default(),
            on_error: DiskErrorPolicy::default(),
            stall_timeout: Duration::from_secs(2),
            snapshot_interval: Duration::from_secs(600),
            snapshot_log_bytes: SNAPSHOT_LOG_BYTES,
            log: LogConfig::default(),
        }
    }
}

impl CommitLogOptions {
    /// Number of bytes of the log after which a snapshot follows one of `snapshot_bytes` bytes.
    pub(super) fn log_bytes_before_snapshot(&self, snapshot_bytes: u64) -> u64 {
        self.snapshot_log_bytes.max(snapshot_bytes)
    }

    /// What the service may still write before its next snapshot is complete, and older files are
    /// removed: a snapshot as large as the last one, the log until then, and the file that is
    /// created ahead.
    pub fn space_needed(&self, snapshot_bytes: u64) -> u64 {
        let log_bytes = self.log_bytes_before_snapshot(snapshot_bytes);
        snapshot_bytes.saturating_add(log_bytes).saturating_add(self.log.file_bytes)
    }
}

/// The terms for a service and its data in the messages about its log.
#[derive(Clone, Copy, Debug)]
pub struct LogSubject {
    /// The process that has the log, for example `the master`.
    pub service: &'static str,
    /// What the data is of, for example ` of the metadata records`. Empty for the main data.
    pub of: &'static str,
    /// What a snapshot consists of, for example `objects`.
    pub items: &'static str,
    /// What an empty store lacks, for example `keys`.
    pub lost: &'static str,
}
