//! Rendered monitoring: snapshots, the metrics that queries name, and checks by Prometheus.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use mcctl::engine::env::address_filter;
use mcctl::engine::sys::process_metrics;
use serde_json::Value;

use super::written::{check, files};
use super::{all_fixtures, fixture};
use crate::cli::mcctl;

#[test]
fn rules_and_dashboards_of_three_deployments() {
    for name in ["mcctl.toml", "mcctl-ha.toml", "single.toml"] {
        check("prometheus", name);
        check("grafana", name);
    }
}

fn document(name: &str, text: &str) -> Value {
    match name.ends_with(".json") {
        true => serde_json::from_str(text).expect("JSON"),
        false => serde_yaml_ng::from_str(text).expect("YAML"),
    }
}

/// The strings with the key `key` anywhere in `value`.
fn strings<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                found.extend(field.as_str().filter(|_| name == key));
                strings(field, key, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| strings(item, key, found)),
        _ => {}
    }
}

/// All strings with the key `key` in the rules and the dashboard of `fixture`.
fn rendered_strings(fixture: &str, key: &str) -> Vec<String> {
    let mut all = Vec::new();
    for format in ["prometheus", "grafana"] {
        for (name, text) in files(format, fixture) {
            let document = document(&name, &text);
            let mut found = Vec::new();
            strings(&document, key, &mut found);
            all.extend(found.into_iter().map(str::to_owned));
        }
    }
    all
}

/// The metrics that `query` selects. Each is followed by its matchers.
fn metrics(query: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let selectors: Vec<&str> = query.split('{').collect();
    let before = &selectors[..selectors.len() - 1];
    before.iter().map(|text| text.rsplit(|c| !is_name(c)).next().unwrap_or_default().to_owned()).collect()
}

/// The metric families of an exposition. For a histogram, the name of its buckets.
fn families(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| if kind == "histogram" { format!("{name}_bucket") } else { name.to_owned() }).collect()
}

/// Metrics of clients, which appear when they are first used.
const CLIENTS: &[&str] = &[
    "mcctl_client_object_reads_total",
    "mcctl_client_peer_bytes_total",
    "mcctl_client_peer_failures_total",
    "mcctl_client_peer_seconds_total",
    "mcctl_client_peer_transfers_total",
    "mcctl_client_checksum_mismatches_total",
    "mcctl_client_checksum_rereads_total",
    "mcctl_client_checksum_retries_total",
    "mcctl_client_replicas_withdrawn_total",
    "mcctl_client_unchecked_reads_total",
    "mcctl_client_unchecked_writes_total",
];

/// Metrics of SGLang 0.5.23.
const SGLANG: &[&str] = &[
    "sglang:cached_tokens_total",
    "sglang:inter_token_latency_seconds_bucket",
    "sglang:num_queue_reqs",
    "sglang:num_running_reqs",
    "sglang:prompt_tokens_total",
    "sglang:time_to_first_token_seconds_bucket",
];

#[tokio::test]
async fn every_metric_of_a_query_is_exported() {
    let expositions = [
        crate::admin::metrics_of_an_elected_master().await,
        crate::rest::metrics_of_a_node().await,
        process_metrics::exposition(),
        address_filter::exposition(),
    ];
    let mut exported: BTreeSet<String> = expositions.iter().flat_map(|text| families(text)).collect();
    // Series of Prometheus itself.
    exported.extend(["up".to_owned(), "ALERTS".to_owned()]);
    exported.extend(CLIENTS.iter().chain(SGLANG).map(|name| (*name).to_owned()));
    for fixture in all_fixtures() {
        let recorded = rendered_strings(&fixture, "record");
        let queries = rendered_strings(&fixture, "expr");
        assert!(queries.len() > 20, "{fixture}");
        for query in &queries {
            let named = metrics(query);
            assert!(!named.is_empty(), "{query}");
            let unknown: Vec<_> =
                named.iter().filter(|name| !exported.contains(*name) && !recorded.contains(name)).collect();
            assert!(unknown.is_empty(), "{fixture}: {unknown:?} in {query}");
        }
    }
}

#[test]
fn every_query_for_upstream_programs_names_only_their_metrics() {
    for query in rendered_strings("single.toml", "expr") {
        let ours = |name: &String| name.starts_with("mcctl_") || name.starts_with("process_");
        assert!(!metrics(&query).iter().any(ours), "{query}");
    }
}

#[test]
fn every_runbook_is_a_section_of_the_documentation() {
    for fixture in all_fixtures() {
        for runbook in rendered_strings(&fixture, "runbook") {
            let (file, section) = runbook.split_once('#').expect("a section");
            // Where the Debian package installs docs/.
            let file = file.strip_prefix("/usr/share/doc/mcctl/").expect("an installed document");
            let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect("a document");
            let mut headings = text.lines().filter(|line| line.starts_with('#'));
            assert!(headings.any(|line| crate::docs::anchor(line.trim_start_matches('#')) == section), "{runbook}");
        }
    }
}

/// Runs promtool in `folder`. Returns whether it succeeds, and its messages.
fn promtool(folder: &Path, args: &[&str]) -> (bool, String) {
    let output = Command::new("promtool").args(args).current_dir(folder).output();
    let output = output.expect("promtool (Debian package: prometheus)");
    let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), texts.concat())
}

/// Writes the monitoring files of `name` to a new folder.
fn written(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("text");
    mcctl(&["render", "prometheus", &fixture(name), "--out", out]).succeeds();
    folder
}

#[test]
#[ignore = "needs promtool"]
fn prometheus_accepts_every_configuration_and_rule() {
    for name in all_fixtures() {
        let folder = written(&name);
        for args in [
            // The files with tokens and certificates are on another host.
            &["check", "config", "--syntax-only", "prometheus.yml"][..],
            &["check", "rules", "rules/mcctl-recording.yml", "rules/mcctl-alerts.yml"],
        ] {
            let (accepted, messages) = promtool(folder.path(), args);
            assert!(accepted && !messages.contains("WARNING"), "{name}: {messages}");
        }
    }
}

/// Samples of a healthy cluster, one per 15 s, in promtool's notation.
const HEALTHY: &[(&str, &str)] = &[
    (r#"up{job="ha-master",instance="m1"}"#, "1+0x480"),
    (r#"up{job="ha-master",instance="m2"}"#, "1+0x480"),
    (r#"up{job="ha-store",instance="n1"}"#, "1+0x480"),
    (r#"up{job="ha-server",instance="s1"}"#, "1+0x480"),
    (r#"up{job="ha-server",instance="s2"}"#, "1+0x480"),
    (r#"mcctl_ha_serving{job="ha-master",instance="m1"}"#, "1+0x480"),
    (r#"mcctl_ha_serving{job="ha-master",instance="m2"}"#, "0+0x480"),
    (r#"mcctl_ha_standbys_in_sync{job="ha-master",instance="m1"}"#, "1+0x480"),
    (r#"mcctl_ha_standbys_in_sync{job="ha-master",instance="m2"}"#, "0+0x480"),
    (r#"mcctl_ha_etcd_unreachable{job="ha-master",instance="m1"}"#, "0+0x480"),
    (r#"mcctl_ha_lag_changes{job="ha-master",instance="m1"}"#, "0+0x480"),
    (r#"mcctl_ha_view{job="ha-master",instance="m1"}"#, "7+0x480"),
    (r#"mcctl_master_memory_only{job="ha-master",instance="m1"}"#, "0+0x480"),
    (r#"mcctl_master_log_stalled{job="ha-master",instance="m1"}"#, "0+0x480"),
    (r#"mcctl_master_snapshot_failures_total{job="ha-master",instance="m1"}"#, "0+0x480"),
    (r#"mcctl_master_log_changes_total{job="ha-master",instance="m1"}"#, "5+100x480"),
    (r#"mcctl_master_log_durable_changes_total{job="ha-master",instance="m1"}"#, "0+100x480"),
    (r#"mcctl_master_log_sync_duration_seconds_bucket{job="ha-master",instance="m1",le="0.5"}"#, "0+10x480"),
    (r#"mcctl_master_log_sync_duration_seconds_bucket{job="ha-master",instance="m1",le="1"}"#, "0+10x480"),
    (r#"mcctl_master_log_sync_duration_seconds_bucket{job="ha-master",instance="m1",le="+Inf"}"#, "0+10x480"),
    (r#"mcctl_master_data_dir_free_bytes{job="ha-master",instance="m1"}"#, "400000000+0x480"),
    (r#"mcctl_master_data_dir_size_bytes{job="ha-master",instance="m1"}"#, "1000000000+0x480"),
    (r#"mcctl_master_snapshot_bytes{job="ha-master",instance="m1"}"#, "100000000+0x480"),
    (r#"mcctl_master_lost_replicas_total{job="ha-master",instance="m1"}"#, "0+0x480"),
    (
        r#"mcctl_rpc_request_duration_seconds_bucket{job="ha-master",instance="m1",method="PutStart",le="0.1"}"#,
        "0+100x480",
    ),
    (
        r#"mcctl_rpc_request_duration_seconds_bucket{job="ha-master",instance="m1",method="PutStart",le="0.25"}"#,
        "0+100x480",
    ),
    (
        r#"mcctl_rpc_request_duration_seconds_bucket{job="ha-master",instance="m1",method="PutStart",le="+Inf"}"#,
        "0+100x480",
    ),
    (r#"mcctl_master_heartbeat_age_max_seconds{job="ha-master",instance="m1"}"#, "1+0x480"),
    (r#"segment_total_capacity_bytes{job="ha-master",instance="m1",segment="10.0.1.1:12300"}"#, "1000+0x480"),
    (r#"master_total_capacity_bytes{job="ha-master",instance="m1"}"#, "1000+0x480"),
    (r#"master_allocated_bytes{job="ha-master",instance="m1"}"#, "800+0x480"),
    (r#"master_evicted_size_bytes{job="ha-master",instance="m1"}"#, "0+0x480"),
    (r#"master_put_start_alloc_failures_total{job="ha-master",instance="m1"}"#, "0+0x480"),
    (r#"master_put_start_requests_total{job="ha-master",instance="m1"}"#, "0+10x480"),
    (r#"master_batch_put_start_items_total{job="ha-master",instance="m1"}"#, "0+90x480"),
    (r#"total_get_nums_{job="ha-master",instance="m1"}"#, "0+100x480"),
    (r#"valid_get_nums_{job="ha-master",instance="m1"}"#, "0+90x480"),
    (r#"process_start_time_seconds{job="ha-store",instance="n1"}"#, "1000+0x480"),
    (r#"process_open_fds{job="ha-store",instance="n1"}"#, "100+0x480"),
    (r#"process_max_fds{job="ha-store",instance="n1"}"#, "1000+0x480"),
    (r#"mcctl_node_served_refusals_total{job="ha-store",instance="n1"}"#, "0+0x480"),
    (r#"mcctl_connections_not_allowed_total{job="ha-store",instance="n1"}"#, "0+0x480"),
    (r#"mcctl_client_checksum_mismatches_total{job="ha-store",instance="n1",peer="n2:12300"}"#, "0+0x480"),
    (r#"mcctl_client_checksum_mismatches_total{job="ha-client",instance="e1",peer="n3:12300"}"#, "_x480"),
    (r#"mcctl_master_suspicious_put_ends_total{job="ha-master",instance="m1"}"#, "2+0x480"),
    (r#"mcctl_master_unknown_requests_total{job="ha-master",instance="m1"}"#, "2+0x480"),
    (r#"mcctl_build_info{job="ha-master",instance="m1",version="1",mooncake="0.3.13"}"#, "1+0x480"),
    (r#"mcctl_build_info{job="ha-store",instance="n1",version="1",mooncake="0.3.13"}"#, "1+0x480"),
    (r#"mcctl_build_info{job="ha-store",instance="n2",version="2",mooncake="0.3.13"}"#, "_x480"),
];

/// The alert that a change of samples must cause, alone. Each change begins at 30 min. `None`: no
/// alert.
struct AlertCase {
    alert: Option<&'static str>,
    /// Its severity, if it has several.
    severity: Option<&'static str>,
    /// Metric, instance, and its samples from 30 min on. The instance may be followed by other
    /// labels.
    changes: &'static [(&'static str, &'static str, &'static str)],
    /// Time at which the alert must be firing, and time at which it must not be firing yet.
    fires: &'static str,
    waits: &'static str,
}

const fn alert(
    alert: &'static str,
    changes: &'static [(&'static str, &'static str, &'static str)],
    fires: &'static str,
    waits: &'static str,
) -> AlertCase {
    AlertCase { alert: Some(alert), severity: None, changes, fires, waits }
}

const ALERTS: &[AlertCase] = &[
    AlertCase { alert: None, severity: None, changes: &[], fires: "119m", waits: "1m" },
    // A failover within the hold time.
    AlertCase {
        alert: None,
        severity: None,
        changes: &[("mcctl_ha_serving", "m1", "0 1+0x300")],
        fires: "31m",
        waits: "30m",
    },
    alert("McctlNoLeader", &[("mcctl_ha_serving", "m1", "0+0x300")], "30m30s", "30m"),
    alert("McctlNoStandbyInSync", &[("mcctl_ha_standbys_in_sync", "m1", "0+0x300")], "31m30s", "30m45s"),
    alert("McctlEtcdUnreachable", &[("mcctl_ha_etcd_unreachable", "m1", "1+0x300")], "31m", "30m15s"),
    alert("McctlStandbyLags", &[("mcctl_ha_lag_changes", "m1", "20000+0x300")], "31m30s", "30m45s"),
    alert("McctlLeadersChange", &[("mcctl_ha_view", "m1", "8+1x4 12+0x300")], "32m", "30m15s"),
    alert("McctlMasterDown", &[("up", "m2", "0+0x300")], "31m", "30m15s"),
    alert("McctlNodeDown", &[("up", "n1", "0+0x300")], "31m30s", "30m45s"),
    AlertCase { severity: Some("warning"), ..alert("McctlServerDown", &[("up", "s1", "0+0x300")], "32m30s", "31m45s") },
    AlertCase {
        severity: Some("critical"),
        ..alert("McctlServerDown", &[("up", "s1", "0+0x300"), ("up", "s2", "0+0x300")], "32m30s", "31m45s")
    },
    alert("McctlNodesMissing", &[("segment_total_capacity_bytes", "m1", "stale")], "32m30s", "31m45s"),
    alert("McctlMemoryOnly", &[("mcctl_master_memory_only", "m1", "1+0x300")], "30m15s", "29m45s"),
    alert("McctlDiskStalled", &[("mcctl_master_log_stalled", "m1", "1+0x300")], "31m", "30m15s"),
    alert("McctlSnapshotsFail", &[("mcctl_master_snapshot_failures_total", "m1", "1+0x300")], "30m15s", "29m45s"),
    alert("McctlLogNotSynced", &[("mcctl_master_log_durable_changes_total", "m1", "12000+0x300")], "33m30s", "31m"),
    // Each later sync takes between 0.5 and 1 s.
    alert(
        "McctlLogSyncSlow",
        &[("mcctl_master_log_sync_duration_seconds_bucket", "m1\",le=\"0.5", "1190+0x300")],
        "40m",
        "31m",
    ),
    alert("McctlDiskAlmostFull", &[("mcctl_master_data_dir_free_bytes", "m1", "210000000+0x300")], "31m30s", "30m45s"),
    alert(
        "McctlDiskFilling",
        &[
            ("mcctl_master_data_dir_free_bytes", "m1", "199000000+0x300"),
            ("mcctl_master_data_dir_size_bytes", "m1", "2000000000+0x300"),
            ("mcctl_master_snapshot_bytes", "m1", "1000+0x300"),
        ],
        "41m",
        "39m",
    ),
    alert("McctlReplicasLost", &[("mcctl_master_lost_replicas_total", "m1", "7+0x300")], "30m15s", "29m45s"),
    // Of 100 calls, 2 take between 0.1 and 0.25 s.
    alert(
        "McctlRpcSlow",
        &[("mcctl_rpc_request_duration_seconds_bucket", "m1\",method=\"PutStart\",le=\"0.1", "11998+98x300")],
        "46m",
        "39m",
    ),
    alert("McctlHeartbeatLate", &[("mcctl_master_heartbeat_age_max_seconds", "m1", "20 1+0x300")], "30m15s", "29m45s"),
    alert(
        "McctlStoreFull",
        &[("master_allocated_bytes", "m1", "990+0x300"), ("master_put_start_alloc_failures_total", "m1", "1+5x300")],
        "32m",
        "30m30s",
    ),
    // A full store in which few puts fail, which is the normal state of a cache.
    AlertCase {
        alert: None,
        severity: None,
        changes: &[
            ("master_allocated_bytes", "m1", "950+0x300"),
            ("master_put_start_alloc_failures_total", "m1", "0.5+0.5x300"),
        ],
        fires: "60m",
        waits: "30m",
    },
    // Free memory that no put can use.
    alert("McctlPutsFail", &[("master_put_start_alloc_failures_total", "m1", "5+5x300")], "36m", "34m"),
    alert("McctlObjectsShortLived", &[("master_evicted_size_bytes", "m1", "50+50x300")], "55m", "35m"),
    alert("McctlHitRateFalling", &[("valid_get_nums_", "m1", "10800+10x300")], "85m", "45m"),
    alert("McctlProcessRestarts", &[("process_start_time_seconds", "n1", "2000+100x3 2300+0x300")], "31m", "30m15s"),
    alert("McctlOpenFilesNearLimit", &[("process_open_fds", "n1", "950+0x300")], "36m", "34m"),
    alert("McctlReleasesDiffer", &[("mcctl_build_info", "n2", "1+0x300")], "60m30s", "59m"),
    alert("McctlConnectionsRefused", &[("mcctl_connections_not_allowed_total", "n1", "3+0x300")], "30m15s", "29m45s"),
    alert("McctlChecksumMismatch", &[("mcctl_client_checksum_mismatches_total", "n1", "5+0x300")], "30m15s", "29m45s"),
    // The first mismatch of a peer, which adds its series.
    alert("McctlChecksumMismatch", &[("mcctl_client_checksum_mismatches_total", "e1", "1+0x300")], "30m15s", "29m30s"),
    alert("McctlSuspiciousPutEnds", &[("mcctl_master_suspicious_put_ends_total", "m1", "3+0x300")], "30m15s", "29m45s"),
    alert("McctlUnknownRequests", &[("mcctl_master_unknown_requests_total", "m1", "3+0x300")], "30m15s", "29m45s"),
    alert("McctlRequestsRefused", &[("mcctl_node_served_refusals_total", "n1", "3+0x300")], "30m15s", "29m45s"),
];

/// Samples up to 30 min, then `later`.
fn changed(healthy: &str, later: &str) -> String {
    format!("{} {later}", healthy.replace("x480", "x119"))
}

fn series(changes: &[(&str, &str, &str)]) -> Vec<Value> {
    let is_of = |series: &str, metric: &str, instance: &str| {
        series.starts_with(&format!("{metric}{{")) && series.contains(&format!("instance=\"{instance}\""))
    };
    for (metric, instance, _) in changes {
        assert!(HEALTHY.iter().any(|(series, _)| is_of(series, metric, instance)), "no series {metric} of {instance}");
    }
    let samples = |series: &str, healthy: &str| {
        let is_changed = |metric: &str, instance: &str| is_of(series, metric, instance);
        let change = changes.iter().find(|(metric, instance, _)| is_changed(metric, instance));
        change.map_or_else(|| healthy.to_owned(), |(_, _, later)| changed(healthy, later))
    };
    HEALTHY
        .iter()
        .map(|(name, healthy)| serde_json::json!({"series": name, "values": samples(name, healthy)}))
        .collect()
}

/// A test of promtool: which alerts fire at two times.
fn promtool_case(case: &AlertCase) -> Value {
    let (by, severity) = match case.severity {
        None => ("alertname", String::new()),
        Some(severity) => ("alertname, severity", format!(",severity=\"{severity}\"")),
    };
    let at = |time: &str, firing: Option<&str>| {
        let samples: Vec<Value> = firing
            .iter()
            .map(|name| serde_json::json!({"labels": format!("{{alertname=\"{name}\"{severity}}}"), "value": 1}))
            .collect();
        serde_json::json!({
            "expr": format!("group by ({by}) (ALERTS{{alertstate=\"firing\"}})"),
            "eval_time": time,
            "exp_samples": samples,
        })
    };
    serde_json::json!({
        "name": case.alert.unwrap_or("none"),
        "interval": "15s",
        "input_series": series(case.changes),
        "promql_expr_test": [at(case.waits, None), at(case.fires, case.alert)],
    })
}

#[test]
#[ignore = "needs promtool"]
fn each_fault_raises_its_alert_and_no_other() {
    let folder = written("mcctl-ha.toml");
    let tests: Vec<Value> = ALERTS.iter().map(promtool_case).collect();
    let document = serde_json::json!({
        "rule_files": ["rules/mcctl-recording.yml", "rules/mcctl-alerts.yml"],
        "evaluation_interval": "15s",
        "tests": tests,
    });
    fs::write(folder.path().join("test.yml"), document.to_string()).expect("written");
    let (passed, messages) = promtool(folder.path(), &["test", "rules", "test.yml"]);
    assert!(passed, "{messages}");
}

#[test]
fn every_alert_has_a_case() {
    let named: BTreeSet<&str> = ALERTS.iter().filter_map(|case| case.alert).collect();
    let rendered = rendered_strings("mcctl-ha.toml", "alert");
    assert_eq!(rendered.iter().map(String::as_str).collect::<BTreeSet<_>>(), named);
}
