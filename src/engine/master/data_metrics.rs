//! The metrics of a master's data directory. A master without one has none of them.

use crate::metrics::ExpositionText;
use crate::view::DataView;

const SYNC_DURATION: &str = "mcctl_master_log_sync_duration_seconds";

/// Renders the metrics in the Prometheus text format.
pub(crate) fn data_exposition(data: &DataView) -> String {
    let mut out = ExpositionText(String::new());
    out.counter(
        "mcctl_master_log_changes_total",
        "Number of the newest change since the directory was created",
        data.appended,
    );
    out.counter(
        "mcctl_master_log_durable_changes_total",
        "Number of the newest change that a power loss does not lose",
        data.durable,
    );
    out.counter("mcctl_master_log_bytes_total", "Bytes of changes written by this process", data.appended_bytes);
    out.counter("mcctl_master_log_syncs_total", "Syncs of the log", data.syncs.count());
    out.seconds("mcctl_master_log_sync_seconds_total", "Time spent in syncs of the log", "counter", data.syncs.sum());
    out.head(SYNC_DURATION, "Time of a sync of the log", "histogram");
    data.syncs.write_series(&mut out.0, SYNC_DURATION, "");
    out.counter("mcctl_master_snapshots_total", "Snapshots written", data.snapshots);
    out.counter("mcctl_master_snapshot_failures_total", "Snapshots that could not be written", data.snapshot_failures);
    out.seconds("mcctl_master_snapshot_seconds", "Duration of the last snapshot", "gauge", data.snapshot_time);
    out.gauge("mcctl_master_snapshot_objects", "Objects in the last snapshot", data.snapshot_objects);
    out.gauge(
        "mcctl_master_snapshot_bytes",
        "Size of the last snapshot in bytes, written or restored",
        data.snapshot_bytes,
    );
    if let Some(space) = data.space {
        out.gauge(
            "mcctl_master_data_dir_free_bytes",
            "Free bytes on the file system of the data directory that the master may use",
            space.free,
        );
        out.gauge(
            "mcctl_master_data_dir_size_bytes",
            "Size of the file system of the data directory in bytes",
            space.size,
        );
    }
    out.gauge(
        "mcctl_master_memory_only",
        "1 if the master continues without its data directory after an error of the disk",
        u64::from(data.memory_only),
    );
    out.gauge(
        "mcctl_master_log_unflushed_bytes",
        "Bytes of changes that are not passed to the kernel; requests that change something wait if there are too many",
        data.unflushed_bytes,
    );
    out.gauge(
        "mcctl_master_log_stalled",
        "1 if an operation of the disk has not ended for --disk-stall-timeout, and changes wait for it",
        u64::from(data.stalled_for.is_some()),
    );
    out.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use mcctl_base::LatencyHistogram;
    use mcctl_journal::DiskSpace;

    #[test]
    fn times_are_in_seconds_and_the_mode_is_a_number() {
        let syncs = LatencyHistogram::default();
        syncs.record(Duration::from_millis(1_500), 1);
        let space = Some(DiskSpace { free: 5, size: 9 });
        let data = DataView { syncs: syncs.snapshot(), memory_only: true, space, ..DataView::default() };
        let stalled = DataView { stalled_for: Some(Duration::from_secs(3)), unflushed_bytes: 7, ..DataView::default() };
        for line in ["mcctl_master_log_stalled 1", "mcctl_master_log_unflushed_bytes 7"] {
            assert!(data_exposition(&stalled).lines().any(|found| found == line), "{line}");
        }
        let text = data_exposition(&data);
        assert!(!data_exposition(&stalled).contains("data_dir"), "the space is not known");
        for line in [
            "mcctl_master_log_sync_seconds_total 1.5",
            "mcctl_master_log_sync_duration_seconds_bucket{le=\"1\"} 0",
            "mcctl_master_log_sync_duration_seconds_bucket{le=\"2.5\"} 1",
            "mcctl_master_data_dir_free_bytes 5",
            "mcctl_master_data_dir_size_bytes 9",
            "mcctl_master_memory_only 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
