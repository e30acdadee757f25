//! The Grafana dashboard: rows of panels, each of which draws a few queries.

use serde_json::{Value, json};

use super::MonitoringScope;
use super::recording::{HIT_RATIO, LIFETIME, USED_RATIO};

/// Version of the dashboard format, which Grafana 10 writes and later releases read.
const SCHEMA_VERSION: u32 = 39;
/// Width of the grid, and the size of a panel, in grid units.
const GRID_WIDTH: usize = 24;
const PANEL_WIDTH: usize = 8;
const PANEL_HEIGHT: usize = 7;

/// A panel: a title, the unit of its values as Grafana names it, and its queries with their legends.
struct DashboardPanel {
    title: &'static str,
    unit: &'static str,
    queries: Vec<(&'static str, String)>,
}

/// A row of the dashboard.
struct DashboardRow {
    title: &'static str,
    panels: Vec<DashboardPanel>,
}

/// The contents of the dashboard file. `head` becomes its description.
pub(super) fn document(scope: &MonitoringScope, head: &str) -> Value {
    json!({
        "uid": uid(&scope.name),
        "title": format!("Mooncake store {}", scope.name),
        "description": head,
        "tags": ["mcctl", "mooncake"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": true,
        "refresh": "30s",
        "time": { "from": "now-6h", "to": "now" },
        "templating": { "list": [data_source_variable()] },
        "panels": panels(scope, &rows(scope)),
    })
}

/// Grafana limits a UID to 40 characters.
fn uid(name: &str) -> String {
    format!("mcctl-{name}").chars().take(40).collect()
}

fn data_source_variable() -> Value {
    json!({ "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus" })
}

fn rows(scope: &MonitoringScope) -> Vec<DashboardRow> {
    let mut rows = vec![overview(scope)];
    let masters = [election_panels(scope), data_panels(scope), master_panels(scope)];
    rows.push(DashboardRow { title: "Masters", panels: masters.into_iter().flatten().collect() });
    rows.push(DashboardRow { title: "Nodes", panels: node_panels(scope) });
    let checksums = checksum_panels(scope);
    if !checksums.is_empty() {
        rows.push(DashboardRow { title: "Checksums", panels: checksums });
    }
    rows.push(DashboardRow { title: "Latency and sizes", panels: histogram_panels(scope) });
    rows
}

fn panel(title: &'static str, unit: &'static str, queries: &[(&'static str, &str)]) -> DashboardPanel {
    let queries = queries.iter().map(|(legend, query)| (*legend, (*query).to_owned())).collect();
    DashboardPanel { title, unit, queries }
}

fn overview(scope: &MonitoringScope) -> DashboardRow {
    let recorded = |name: &str| format!("{name}{{$deployment}}");
    let mut panels = vec![
        panel("Objects", "short", &[("objects", "max(master_key_count{$master})")]),
        panel(
            "Memory",
            "bytes",
            &[
                ("in use", "max(master_allocated_bytes{$master})"),
                ("capacity", "max(master_total_capacity_bytes{$master})"),
            ],
        ),
        panel("Memory in use", "percentunit", &[("in use", &recorded(USED_RATIO))]),
        panel("Hit rate (15 min)", "percentunit", &[("{{lookup}}", &recorded(HIT_RATIO))]),
        panel(
            "Requests",
            "ops",
            &[
                (
                    "puts",
                    "sum(rate(master_put_start_requests_total{$master}[$__rate_interval])) \
                     + sum(rate(master_batch_put_start_items_total{$master}[$__rate_interval]))",
                ),
                ("gets", "sum(rate(total_get_nums_{$master}[$__rate_interval]))"),
                (
                    "existence checks",
                    "sum(rate(master_exist_key_requests_total{$master}[$__rate_interval])) \
                     + sum(rate(master_batch_exist_key_items_total{$master}[$__rate_interval]))",
                ),
            ],
        ),
        panel(
            "Failures",
            "ops",
            &[
                (
                    "puts",
                    "sum(rate(master_put_start_failures_total{$master}[$__rate_interval])) \
                     + sum(rate(master_batch_put_start_failed_items_total{$master}[$__rate_interval]))",
                ),
                ("puts without space", "sum(rate(master_put_start_alloc_failures_total{$master}[$__rate_interval]))"),
                ("revoked puts", "sum(rate(master_batch_put_revoke_items_total{$master}[$__rate_interval]))"),
            ],
        ),
        panel("Evicted", "Bps", &[("bytes", "sum(rate(master_evicted_size_bytes{$master}[$__rate_interval]))")]),
        panel("Lifetime of objects (15 min)", "s", &[("lifetime", &recorded(LIFETIME))]),
    ];
    panels.push(processes(scope));
    DashboardRow { title: "Overview", panels }
}

fn processes(scope: &MonitoringScope) -> DashboardPanel {
    let mut queries = vec![("masters", "sum(up{$master})")];
    if !scope.nodes.is_empty() {
        queries.push(("nodes", "sum(up{$store})"));
    }
    if !scope.servers.is_empty() {
        queries.push(("servers", "sum(up{$server})"));
    }
    queries.push(("clients of the master", "max(master_active_clients{$master})"));
    panel("Processes that respond", "short", &queries)
}

fn election_panels(scope: &MonitoringScope) -> Vec<DashboardPanel> {
    if !scope.is_elected() {
        return Vec::new();
    }
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

fn data_panels(scope: &MonitoringScope) -> Vec<DashboardPanel> {
    if !scope.has_data {
        return Vec::new();
    }
    vec![
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
        panel(
            "Time of a sync",
            "s",
            &[(
                "{{instance}}",
                "rate(mcctl_master_log_sync_seconds_total{$master}[$__rate_interval]) \
                 / (rate(mcctl_master_log_syncs_total{$master}[$__rate_interval]) > 0)",
            )],
        ),
        panel(
            "Snapshots",
            "short",
            &[
                ("written {{instance}}", "mcctl_master_snapshots_total{$master}"),
                ("failed {{instance}}", "mcctl_master_snapshot_failures_total{$master}"),
                ("memory only {{instance}}", "mcctl_master_memory_only{$master}"),
            ],
        ),
        panel("Time of the last snapshot", "s", &[("{{instance}}", "mcctl_master_snapshot_seconds{$master}")]),
    ]
}

fn master_panels(scope: &MonitoringScope) -> Vec<DashboardPanel> {
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
        panels.extend(process_panels());
    }
    panels
}

/// Resources of masters and nodes.
fn process_panels() -> [DashboardPanel; 3] {
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

fn node_panels(scope: &MonitoringScope) -> Vec<DashboardPanel> {
    let mut panels = vec![
        panel(
            "Memory in use by segment",
            "bytes",
            &[("{{segment}}", "max by (segment) (segment_allocated_bytes{$master})")],
        ),
        panel(
            "Capacity by segment",
            "bytes",
            &[("{{segment}}", "max by (segment) (segment_total_capacity_bytes{$master})")],
        ),
    ];
    if scope.is_mcctl {
        let age = "max(mcctl_master_heartbeat_age_max_seconds{$master})";
        panels.push(panel("Time since the oldest heartbeat", "s", &[("time", age)]));
    }
    if scope.is_mcctl && !scope.nodes.is_empty() {
        panels.extend(served_panels());
    }
    panels
}

/// What mcctl's nodes serve to their peers.
fn served_panels() -> [DashboardPanel; 4] {
    [
        panel(
            "Read from nodes",
            "Bps",
            &[("{{instance}}", "rate(mcctl_node_served_read_bytes_total{$store}[$__rate_interval])")],
        ),
        panel(
            "Written to nodes",
            "Bps",
            &[("{{instance}}", "rate(mcctl_node_served_write_bytes_total{$store}[$__rate_interval])")],
        ),
        panel("Connections to nodes", "short", &[("{{instance}}", "mcctl_node_connections{$store}")]),
        panel(
            "Refused requests",
            "ops",
            &[("{{instance}}", "rate(mcctl_node_served_refusals_total{$store}[$__rate_interval])")],
        ),
    ]
}

fn checksum_panels(scope: &MonitoringScope) -> Vec<DashboardPanel> {
    let mut panels = Vec::new();
    if scope.has_mcctl_clients {
        panels.extend([
            panel(
                "Checksum mismatches",
                "ops",
                &[
                    (
                        "{{peer}}",
                        "sum by (peer) (rate(mcctl_client_checksum_mismatches_total{$client}[$__rate_interval]))",
                    ),
                    (
                        "{{peer}}, right the second time",
                        "sum by (peer) (rate(mcctl_client_checksum_rereads_total{$client}[$__rate_interval]))",
                    ),
                    (
                        "concurrent rewrites",
                        "sum(rate(mcctl_client_checksum_retries_total{$client}[$__rate_interval]))",
                    ),
                    (
                        "withdrawn replicas",
                        "sum(rate(mcctl_client_replicas_withdrawn_total{$client}[$__rate_interval]))",
                    ),
                ],
            ),
            panel(
                "Reads that are not checked, by reason",
                "ops",
                &[(
                    "{{reason}}",
                    "sum by (reason) (rate(mcctl_client_unchecked_reads_total{$client}[$__rate_interval]))",
                )],
            ),
            panel(
                "Writes without a checksum, by reason",
                "ops",
                &[(
                    "{{reason}}",
                    "sum by (reason) (rate(mcctl_client_unchecked_writes_total{$client}[$__rate_interval]))",
                )],
            ),
        ]);
    }
    if scope.is_mcctl {
        panels.push(panel(
            "Writes without a checksum, of all clients",
            "percentunit",
            &[(
                "writes",
                "sum(rate(mcctl_master_completed_writes_total{$master,checksum=\"absent\"}[$__rate_interval])) \
                 / (sum(rate(mcctl_master_completed_writes_total{$master}[$__rate_interval])) > 0)",
            )],
        ));
        panels.push(panel(
            "Suspicious ends of writes",
            "short",
            &[("{{instance}}", "mcctl_master_suspicious_put_ends_total{$master}")],
        ));
    }
    panels
}

fn histogram_panels(scope: &MonitoringScope) -> Vec<DashboardPanel> {
    let sizes =
        "histogram_quantile(0.5, sum by (le) (rate(master_value_size_bytes_bucket{$master}[$__rate_interval])))";
    let mut panels = vec![panel("Median size of stored objects", "bytes", &[("median", sizes)])];
    if scope.is_mcctl {
        panels.push(panel(
            "Time for which the master's state is locked",
            "s",
            &[
                (
                    "p99",
                    "histogram_quantile(0.99, sum by (le) (rate(mcctl_master_state_hold_seconds_bucket{$master}[$__rate_interval])))",
                ),
                ("longest", "max(mcctl_master_state_hold_max_seconds{$master})"),
            ],
        ));
        panels.push(panel(
            "HTTP requests, p99",
            "s",
            &[(
                "{{job}} {{route}}",
                "histogram_quantile(0.99, sum by (job, route, le) \
                 (rate(mcctl_http_request_duration_seconds_bucket{$process}[$__rate_interval])))",
            )],
        ));
    }
    panels
}

/// The rows and their panels in Grafana's form. Each panel below a row belongs to it.
fn panels(scope: &MonitoringScope, rows: &[DashboardRow]) -> Vec<Value> {
    let (mut all, mut y) = (Vec::new(), 0);
    for row in rows {
        let at = json!({ "x": 0, "y": y, "w": GRID_WIDTH, "h": 1 });
        all.push(json!({ "id": all.len() + 1, "type": "row", "title": row.title, "collapsed": false, "gridPos": at, "panels": [] }));
        y += 1;
        let per_line = GRID_WIDTH / PANEL_WIDTH;
        for (index, panel) in row.panels.iter().enumerate() {
            let (x, line) = (index % per_line * PANEL_WIDTH, index / per_line);
            let at = json!({ "x": x, "y": y + line * PANEL_HEIGHT, "w": PANEL_WIDTH, "h": PANEL_HEIGHT });
            all.push(time_series(scope, all.len() + 1, panel, &at));
        }
        y += row.panels.len().div_ceil(per_line) * PANEL_HEIGHT;
    }
    all
}

fn time_series(scope: &MonitoringScope, id: usize, panel: &DashboardPanel, at: &Value) -> Value {
    let source = json!({ "type": "prometheus", "uid": "${datasource}" });
    let target = |(query, letter): (&(&str, String), char)| {
        json!({
            "refId": letter.to_string(),
            "datasource": source,
            "expr": scope.query(&query.1),
            "legendFormat": query.0,
        })
    };
    let targets: Vec<Value> = panel.queries.iter().zip('A'..='Z').map(target).collect();
    json!({
        "id": id,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": at,
        "fieldConfig": { "defaults": { "unit": panel.unit, "min": 0 }, "overrides": [] },
        "targets": targets,
    })
}
