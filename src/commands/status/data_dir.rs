//! The free space on the file system of a master's data directory.

use serde::Serialize;

use crate::engine::admin::MasterStatus;
use crate::engine::journal::LogConfig;

/// The file system of the data directory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DataDirStatus {
    /// What the master may use.
    pub free_bytes: u64,
    pub size_bytes: u64,
    /// Two snapshots and a log file. With less, the next snapshot may fail, and the log then grows until the disk is full.
    pub needed_bytes: u64,
}

impl DataDirStatus {
    /// The values in a master's metrics; `None` if it has no data directory, or does not report its space.
    pub fn of(status: &MasterStatus) -> Option<DataDirStatus> {
        let snapshot = status.metric("mcctl_master_snapshot_bytes");
        Some(DataDirStatus {
            free_bytes: status.reported("mcctl_master_data_dir_free_bytes")?,
            size_bytes: status.reported("mcctl_master_data_dir_size_bytes")?,
            needed_bytes: snapshot.saturating_mul(2).saturating_add(LogConfig::default().file_bytes),
        })
    }

    /// Whether the free space is less than the master needs.
    pub fn is_almost_full(&self) -> bool {
        self.free_bytes < self.needed_bytes
    }
}
