//! The metrics of a master's data directory. A master without one has none of them.

use crate::engine::master::metrics::ExpositionText;
use crate::engine::master::view::DataView;

/// Renders the metrics in the Prometheus text format.
pub fn data_exposition(data: &DataView) -> String {
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
    out.counter("mcctl_master_log_syncs_total", "Syncs of the log", data.syncs);
    out.seconds("mcctl_master_log_sync_seconds_total", "Time spent in syncs of the log", "counter", data.sync_time);
    out.counter("mcctl_master_snapshots_total", "Snapshots written", data.snapshots);
    out.counter("mcctl_master_snapshot_failures_total", "Snapshots that could not be written", data.snapshot_failures);
    out.seconds("mcctl_master_snapshot_seconds", "Duration of the last snapshot", "gauge", data.snapshot_time);
    out.gauge("mcctl_master_snapshot_objects", "Objects in the last snapshot", data.snapshot_objects);
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

    #[test]
    fn times_are_in_seconds_and_the_mode_is_a_number() {
        let data = DataView { sync_time: Duration::from_millis(1_500), memory_only: true, ..DataView::default() };
        let stalled = DataView { stalled_for: Some(Duration::from_secs(3)), unflushed_bytes: 7, ..DataView::default() };
        for line in ["mcctl_master_log_stalled 1", "mcctl_master_log_unflushed_bytes 7"] {
            assert!(data_exposition(&stalled).lines().any(|found| found == line), "{line}");
        }
        let text = data_exposition(&data);
        for line in ["mcctl_master_log_sync_seconds_total 1.5", "mcctl_master_memory_only 1"] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
