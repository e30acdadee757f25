//! Alerts on the disk of the data directory.

use super::{AlertRule, AlertSeverity};
use crate::render::monitoring::MonitoringScope;
use mcctl_base::size::LOG_FILE_BYTES;

/// A snapshot is written after this much of the log, or as much as the last snapshot, if that is
/// larger.
const SNAPSHOT_LOG_BYTES: u64 = 128 << 20;
/// Share of the disk below which the space should be watched.
const FREE_SHARE_MIN: f64 = 0.1;

/// Rules for masters with data directories.
pub(super) fn disk_rules(scope: &MonitoringScope) -> Vec<AlertRule> {
    let runbook = "operations.md#the-masters-disk-fails";
    let mut rules = vec![
        AlertRule {
            name: "McctlMemoryOnly",
            severity: AlertSeverity::Critical,
            query: "mcctl_master_memory_only{$master} == 1".to_owned(),
            hold: "0s",
            summary: "The master on {{ $labels.instance }} continues without its data directory",
            description: "Its disk has failed or is full. A restart of this master loses its keys.".to_owned(),
            runbook,
        },
        AlertRule {
            name: "McctlDiskStalled",
            severity: AlertSeverity::Critical,
            query: "mcctl_master_log_stalled{$master} == 1".to_owned(),
            hold: "30s",
            summary: "The disk of the master on {{ $labels.instance }} does not respond",
            description: "Puts and removals wait, and lookups continue. The master continues when the disk responds."
                .to_owned(),
            runbook,
        },
        AlertRule {
            name: "McctlSnapshotsFail",
            severity: AlertSeverity::Warning,
            query: "increase(mcctl_master_snapshot_failures_total{$master}[1h]) > 0".to_owned(),
            hold: "0s",
            summary: "The master on {{ $labels.instance }} cannot write snapshots",
            description: "The log keeps growing until a snapshot succeeds. Check the free space of the disk."
                .to_owned(),
            runbook,
        },
    ];
    rules.extend(free_space_rules());
    if scope.is_synced {
        rules.extend(sync_rules(runbook));
    }
    rules
}

/// Two thresholds: what the master needs next, and a share of the disk, because other programs may
/// fill it as well.
fn free_space_rules() -> [AlertRule; 2] {
    let runbook = "operations.md#the-masters-disk-is-almost-full";
    [
        AlertRule {
            name: "McctlDiskAlmostFull",
            severity: AlertSeverity::Critical,
            query: format!(
                "mcctl_master_data_dir_free_bytes{{$master}} < mcctl_master_snapshot_bytes{{$master}} + \
                 clamp_min(mcctl_master_snapshot_bytes{{$master}}, {SNAPSHOT_LOG_BYTES}) + {LOG_FILE_BYTES}"
            ),
            hold: "1m",
            summary: "The disk of the master on {{ $labels.instance }} has {{ $value | humanize1024 }}B left",
            description:
                "The next snapshot, and the log until it is complete, need more. On a full disk, the master stops, or continues without the directory."
                    .to_owned(),
            runbook,
        },
        AlertRule {
            name: "McctlDiskFilling",
            severity: AlertSeverity::Warning,
            query: format!(
                "mcctl_master_data_dir_free_bytes{{$master}} / mcctl_master_data_dir_size_bytes{{$master}} < {FREE_SHARE_MIN}"
            ),
            hold: "10m",
            summary: "{{ $value | humanizePercentage }} of the disk of the master on {{ $labels.instance }} are free",
            description: "The file system of the data directory has had little free space for 10 min.".to_owned(),
            runbook,
        },
    ]
}

fn sync_rules(runbook: &'static str) -> [AlertRule; 2] {
    [
        AlertRule {
            name: "McctlLogNotSynced",
            severity: AlertSeverity::Critical,
            query: "mcctl_master_log_changes_total{$master} > mcctl_master_log_durable_changes_total{$master} \
                and changes(mcctl_master_log_durable_changes_total{$master}[2m]) == 0"
                .to_owned(),
            hold: "1m",
            summary: "The log of the master on {{ $labels.instance }} is not synced",
            description: "No change has become durable for 2 min. A loss of power loses the later ones.".to_owned(),
            runbook,
        },
        AlertRule {
            name: "McctlLogSyncSlow",
            severity: AlertSeverity::Warning,
            query: "histogram_quantile(0.95, sum by (instance, le) \
                (rate(mcctl_master_log_sync_duration_seconds_bucket{$master}[5m]))) > 0.5"
                .to_owned(),
            hold: "5m",
            summary: "Syncs of the log on {{ $labels.instance }} take up to {{ $value | humanizeDuration }} (p95)",
            description: "The disk of the data directory is overloaded or failing.".to_owned(),
            runbook,
        },
    ]
}
