//! The free space on the file system of a master's data directory.

use serde::Serialize;

use crate::engine::admin::MasterStatus;
use crate::engine::journal::CommitLogOptions;

/// The file system of the data directory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct DataDirStatus {
    /// What the master may use.
    pub free_bytes: u64,
    pub size_bytes: u64,
    /// The sum of `snapshot_bytes` and `log_bytes`: what the master still writes before the next
    /// snapshot is complete, and older files are removed. With less, the disk may become full.
    pub needed_bytes: u64,
    /// Size of the next snapshot, if it is as large as the last one.
    pub snapshot_bytes: u64,
    /// The log until the next snapshot, and the file that is allocated ahead.
    pub log_bytes: u64,
}

impl DataDirStatus {
    /// The values in a master's metrics; `None` if it has no data directory, or does not report its
    /// space.
    pub(super) fn of(status: &MasterStatus) -> Option<DataDirStatus> {
        let free_bytes = status.reported("mcctl_master_data_dir_free_bytes")?;
        let size_bytes = status.reported("mcctl_master_data_dir_size_bytes")?;
        Some(DataDirStatus::new(free_bytes, size_bytes, status.metric("mcctl_master_snapshot_bytes")))
    }

    /// The status of a file system on which the last snapshot took `snapshot_bytes`.
    pub(super) fn new(free_bytes: u64, size_bytes: u64, snapshot_bytes: u64) -> DataDirStatus {
        let needed_bytes = CommitLogOptions::default().space_needed(snapshot_bytes);
        let log_bytes = needed_bytes - snapshot_bytes;
        DataDirStatus { free_bytes, size_bytes, needed_bytes, snapshot_bytes, log_bytes }
    }

    /// Whether the free space is less than the master needs.
    pub(super) fn is_almost_full(&self) -> bool {
        self.free_bytes < self.needed_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_grows_by_128_mib_or_a_snapshot_before_files_are_removed() {
        let needed = |snapshot: u64| DataDirStatus::new(0, 0, snapshot).needed_bytes >> 20;
        assert_eq!([0, 10 << 20, 1 << 30].map(needed), [128 + 16, 10 + 128 + 16, 1024 + 1024 + 16]);
    }
}
