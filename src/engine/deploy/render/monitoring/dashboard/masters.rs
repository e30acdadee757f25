//! The masters: latency, disk, election and resources.

use super::panel::{DashboardPanel, panel, quantiles};
use crate::render::monitoring::MonitoringScope;

/// How long RPC calls and HTTP requests take, and how long the state is locked.
pub(super) fn latency_panels() -> Vec<DashboardPanel> {
    let buckets = "mcctl_rpc_request_duration_seconds_bucket{$master}";
    let p = |q: f64| format!("histogram_quantile({q}, sum by (method, le) (rate({buckets}[$__rate_interval])))");
    vec![
        panel("RPC calls, p50", "s", &[("{{method}}", &p(0.5))]),
        panel("RPC calls, p99", "s", &[("{{method}}", &p(0.99))]),
        panel(
            "RPC calls by method",
            "ops",
            &[(
                "{{method}}",
                "sum by (method) (rate(mcctl_rpc_request_duration_seconds_bucket{$master,le=\"+Inf\"}[$__rate_interval]))",
            )],
        ),
        panel(
            "Time for which the master's state is locked",
            "s",
            &[
                (
                    "p99",
                    "histogram_quantile(0.99, sum by (le) (rate(mcctl_master_state_hold_seconds_bucket{$master}[$__rate_interval])))",
                ),
                ("longest", "max(mcctl_master_state_hold_max_seconds{$master})"),
            ],
        ),
        panel(
            "HTTP requests, p99",
            "s",
            &[(
                "{{job}} {{route}}",
                "histogram_quantile(0.99, sum by (job, route, le) \
                 (rate(mcctl_http_request_duration_seconds_bucket{$process}[$__rate_interval])))",
            )],
        ),
    ]
}

/// The data directory and its disk.
pub(super) fn disk_panels() -> Vec<DashboardPanel> {
    vec![
        panel(
            "Free space of the disk",
            "bytes",
            &[
                ("free {{instance}}", "mcctl_master_data_dir_free_bytes{$master}"),
                (
                    "needed {{instance}}",
                    "mcctl_master_snapshot_bytes{$master} + clamp_min(mcctl_master_snapshot_bytes{$master}, 134217728) + 16777216",
                ),
            ],
        ),
        panel(
            "Free share of the disk",
            "percentunit",
            &[(
                "{{instance}}",
                "mcctl_master_data_dir_free_bytes{$master} / mcctl_master_data_dir_size_bytes{$master}",
            )],
        ),
        panel(
            "Log",
            "ops",
            &[("changes {{instance}}", "rate(mcctl_master_log_changes_total{$master}[$__rate_interval])")],
        ),
        panel(
            "Changes that are not durable",
            "short",
            &[(
                "{{instance}}",
                "mcctl_master_log_changes_total{$master} - mcctl_master_log_durable_changes_total{$master}",
            )],
        ),
        quantiles("Time of a sync", "instance", "mcctl_master_log_sync_duration_seconds_bucket{$master}"),
        panel(
            "Snapshots",
            "short",
            &[
                ("written {{instance}}", "mcctl_master_snapshots_total{$master}"),
                ("failed {{instance}}", "mcctl_master_snapshot_failures_total{$master}"),
                ("memory only {{instance}}", "mcctl_master_memory_only{$master}"),
            ],
        ),
        panel(
            "Changes that are not written",
            "bytes",
            &[("{{instance}}", "mcctl_master_log_unflushed_bytes{$master}")],
        ),
        panel("Time of the last snapshot", "s", &[("{{instance}}", "mcctl_master_snapshot_seconds{$master}")]),
    ]
}

/// The election, and the copies of the standbys.
pub(super) fn election_panels() -> Vec<DashboardPanel> {
    vec![
        panel("Leader (1: leads)", "short", &[("{{instance}}", "mcctl_ha_serving{$master}")]),
        panel(
            "Standbys",
            "short",
            &[
                ("in sync", "max(mcctl_ha_standbys_in_sync{$master})"),
                ("connected", "max(mcctl_ha_standbys{$master})"),
                ("that can be promoted", "sum(mcctl_ha_promotable{$master})"),
            ],
        ),
        panel("Lag of the slowest standby", "short", &[("changes", "max(mcctl_ha_lag_changes{$master})")]),
        panel("Lag in bytes", "bytes", &[("bytes", "max(mcctl_ha_lag_bytes{$master})")]),
        panel("etcd (1: unreachable)", "short", &[("{{instance}}", "mcctl_ha_etcd_unreachable{$master}")]),
        panel(
            "Changes of the leader",
            "short",
            &[
                ("promotions", "sum(mcctl_ha_promotions_total{$master})"),
                ("demotions", "sum(mcctl_ha_demotions_total{$master})"),
            ],
        ),
    ]
}

/// Heartbeats, releases and resources.
pub(super) fn process_panels(scope: &MonitoringScope) -> Vec<DashboardPanel> {
    let mut panels = vec![panel(
        "Heartbeats and mounts",
        "ops",
        &[
            ("heartbeats", "sum(rate(master_ping_requests_total{$master}[$__rate_interval]))"),
            ("mounts", "sum(rate(master_mount_segment_requests_total{$master}[$__rate_interval]))"),
            ("remounts", "sum(rate(master_remount_segment_requests_total{$master}[$__rate_interval]))"),
            ("unmounts", "sum(rate(master_unmount_segment_requests_total{$master}[$__rate_interval]))"),
        ],
    )];
    if scope.is_mcctl {
        panels.push(panel("Releases", "short", &[("{{version}}", "count by (version) (mcctl_build_info{$process})")]));
        panels.extend(resource_panels());
    }
    panels
}

/// Resources of masters and nodes.
fn resource_panels() -> [DashboardPanel; 3] {
    [
        panel(
            "CPUs in use",
            "short",
            &[("{{instance}}", "rate(process_cpu_seconds_total{$process}[$__rate_interval])")],
        ),
        panel("Resident memory", "bytes", &[("{{instance}}", "process_resident_memory_bytes{$process}")]),
        panel(
            "Open files",
            "percentunit",
            &[("{{instance}}", "process_open_fds{$process} / process_max_fds{$process}")],
        ),
    ]
}
