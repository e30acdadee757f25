//! The numbers of a log and its snapshots, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::service::commit_log::CommitLog;
use crate::storage::DiskSpace;
use mcctl_base::LatencySnapshot;

/// The log of the state's changes, and the snapshots of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataView {
    /// The number of the newest change.
    pub appended: u64,
    /// The number of the newest change that a power loss does not lose.
    pub durable: u64,
    /// Size of the changes appended by this process, in bytes.
    pub appended_bytes: u64,
    /// The syncs of the log.
    pub syncs: LatencySnapshot,
    pub snapshots: u64,
    pub snapshot_failures: u64,
    /// Duration of the last snapshot.
    pub snapshot_time: Duration,
    /// Number of items in the last snapshot.
    pub snapshot_objects: u64,
    /// Size of the last snapshot, written or restored, in bytes.
    pub snapshot_bytes: u64,
    /// The file system of the directory; `None` if its size cannot be read.
    pub space: Option<DiskSpace>,
    /// The service continues without the log after an error of the disk.
    pub memory_only: bool,
    /// Size of the changes that are not passed to the kernel, in bytes.
    pub unflushed_bytes: u64,
    /// For how long an operation of the disk has not ended, if it is too long and changes wait for
    /// it.
    pub stalled_for: Option<Duration>,
}

impl CommitLog {
    /// The numbers for the metrics, without [`stalled_for`](Self::stalled_for).
    pub fn view(&self) -> DataView {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let time = |count: &AtomicU64| Duration::from_micros(read(count));
        let counts = &self.counts;
        DataView {
            appended: self.writer.appended(),
            durable: self.writer.durable(),
            appended_bytes: self.appended_bytes(),
            syncs: counts.syncs.snapshot(),
            snapshots: read(&counts.snapshots),
            snapshot_failures: read(&counts.snapshot_failures),
            snapshot_time: time(&counts.snapshot_us),
            snapshot_objects: read(&counts.snapshot_objects),
            snapshot_bytes: self.last_snapshot().bytes,
            space: *self.space(),
            memory_only: self.memory_only(),
            unflushed_bytes: self.writer.unflushed_bytes() as u64,
            stalled_for: None,
        }
    }
}
