//! Alerting rules. A rule exists only if the deployment can cause it and exports its metrics.

use serde_yaml_ng::Value;

use super::MonitoringScope;
use super::recording::{HIT_RATIO, LIFETIME, USED_RATIO};
use crate::engine::deploy::render::yaml::map;

/// How urgent an alert is.
#[derive(Clone, Copy)]
enum AlertSeverity {
    /// Requests fail, wait, or lose data now.
    Critical,
    /// Something works only in part, or will fail soon.
    Warning,
}

/// An alerting rule before its query and labels are written.
struct AlertRule {
    name: &'static str,
    severity: AlertSeverity,
    /// The query before its variables are replaced.
    query: String,
    /// Time for which the query must have a result.
    hold: &'static str,
    summary: &'static str,
    description: String,
    /// A section of the documentation: file and anchor.
    runbook: &'static str,
}

/// Objects that are evicted earlier than this many seconds after their put rarely serve a second request.
const LIFETIME_MIN_S: u32 = 600;

/// Share of puts that may fail for lack of space: a few do in a full store, because eviction starts when memory is used up.
const FAILED_PUTS_MAX: f64 = 0.01;
/// The share of puts in the last 5 min that failed for lack of space.
const FAILED_PUTS: &str = "sum(increase(master_put_start_alloc_failures_total{$master}[5m])) / \
    (sum(increase(master_put_start_requests_total{$master}[5m])) + \
    sum(increase(master_batch_put_start_items_total{$master}[5m])) > 0)";

/// The contents of the rule file.
pub(super) fn document(scope: &MonitoringScope) -> Value {
    let rules = all(scope).iter().map(|alert| rule(scope, alert)).collect();
    scope.rule_group("alerts", rules)
}

fn all(scope: &MonitoringScope) -> Vec<AlertRule> {
    let mut all = vec![master_down(scope)];
    all.extend(node_rules(scope));
    if !scope.servers.is_empty() {
        all.push(server_down());
    }
    all.extend(space_rules(scope));
    if scope.is_mcctl {
        all.extend(process_rules(scope));
        all.push(suspicious_put_ends());
    }
    if scope.has_mcctl_clients {
        all.push(checksum_mismatch());
    }
    if scope.has_data {
        all.extend(disk_rules(scope));
    }
    if scope.is_elected() {
        all.extend(election_rules());
    }
    all
}

fn rule(scope: &MonitoringScope, alert: &AlertRule) -> Value {
    let severity = match alert.severity {
        AlertSeverity::Critical => "critical",
        AlertSeverity::Warning => "warning",
    };
    map! {
        "alert": alert.name,
        "expr": scope.query(&alert.query),
        "for": alert.hold,
        "labels": [("deployment", scope.name.as_str()), ("severity", severity)],
        "annotations": [
            ("summary", alert.summary),
            ("description", alert.description.as_str()),
            ("runbook", alert.runbook),
        ],
    }
}

fn master_down(scope: &MonitoringScope) -> AlertRule {
    let is_only = scope.masters.len() < 2;
    AlertRule {
        name: "McctlMasterDown",
        severity: if is_only { AlertSeverity::Critical } else { AlertSeverity::Warning },
        query: "up{$master} == 0".to_owned(),
        hold: "30s",
        summary: "The master on {{ $labels.instance }} does not respond",
        description: match is_only {
            true => "Its admin port has not responded for 30 s. Clients cannot read or write objects.".to_owned(),
            false => "Its admin port has not responded for 30 s. The other masters continue.".to_owned(),
        },
        runbook: "docs/operations.md#a-process-does-not-respond",
    }
}

fn node_rules(scope: &MonitoringScope) -> Vec<AlertRule> {
    let mut rules = Vec::new();
    if !scope.nodes.is_empty() {
        rules.push(AlertRule {
            name: "McctlNodeDown",
            severity: AlertSeverity::Warning,
            query: "up{$store} == 0".to_owned(),
            hold: "1m",
            summary: "The node on {{ $labels.instance }} does not respond",
            description: "Its port has not responded for 1 min. If the process has ended, its objects are lost."
                .to_owned(),
            runbook: "docs/operations.md#a-process-does-not-respond",
        });
    }
    if scope.node_count > 0 {
        rules.push(nodes_missing(scope));
    }
    rules
}

/// Compares the segments on the hosts of nodes with the number of nodes. Segments of engines have the names of other hosts.
fn nodes_missing(scope: &MonitoringScope) -> AlertRule {
    let hosts: Vec<String> = scope.node_hosts.iter().map(|host| host_pattern(host)).collect();
    let (hosts, count) = (hosts.join("|"), scope.node_count);
    AlertRule {
        name: "McctlNodesMissing",
        severity: AlertSeverity::Warning,
        query: format!(
            "(count(count by (segment) (segment_total_capacity_bytes{{$master,segment=~\"({hosts}):[0-9]+\"}})) \
             or vector(0)) < {count}"
        ),
        hold: "2m",
        summary: "The master lists fewer nodes than the deployment has",
        description: format!("Nodes in the deployment file: {count}. Nodes that the master lists: {{{{ $value }}}}."),
        runbook: "docs/TROUBLESHOOTING.md#13-nodes-disappear-along-with-their-cached-data-actionclient_expired",
    }
}

/// The regular expression for `host` in a segment name, in a PromQL string.
fn host_pattern(host: &str) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    host.replace('[', "\\\\[").replace(']', "\\\\]").replace('.', "[.]")
}

fn server_down() -> AlertRule {
    AlertRule {
        name: "McctlServerDown",
        severity: AlertSeverity::Warning,
        query: "up{$server} == 0".to_owned(),
        hold: "2m",
        summary: "The SGLang server on {{ $labels.instance }} does not respond",
        description: "Its metrics have not responded for 2 min.".to_owned(),
        runbook: "docs/operations.md#a-process-does-not-respond",
    }
}

fn space_rules(scope: &MonitoringScope) -> Vec<AlertRule> {
    let watermark = scope.watermark;
    vec![
        AlertRule {
            name: "McctlStoreFull",
            severity: AlertSeverity::Critical,
            query: format!(
                "max_over_time({USED_RATIO}{{$deployment}}[5m]) >= {watermark} and on () {FAILED_PUTS} > {FAILED_PUTS_MAX}"
            ),
            hold: "1m",
            summary: "Puts fail because the store is full",
            description: format!(
                "{{{{ $value | humanizePercentage }}}} of the memory was in use, above the watermark of {watermark}. \
                 Eviction does not free memory fast enough, usually because leases protect the objects."
            ),
            runbook: "docs/TROUBLESHOOTING.md#15-puts-fail-with--200-memory-is-97-used-and-nothing-is-evicted",
        },
        AlertRule {
            name: "McctlPutsFail",
            severity: AlertSeverity::Warning,
            query: format!("{FAILED_PUTS} > {FAILED_PUTS_MAX}"),
            hold: "5m",
            summary: "{{ $value | humanizePercentage }} of puts fail for lack of space",
            description: "The store is full, its free memory is fragmented, or nodes have just returned.".to_owned(),
            runbook: "docs/TROUBLESHOOTING.md#15-puts-fail-with--200-memory-is-97-used-and-nothing-is-evicted",
        },
        AlertRule {
            name: "McctlObjectsShortLived",
            severity: AlertSeverity::Warning,
            query: format!("{LIFETIME}{{$deployment}} < {LIFETIME_MIN_S}"),
            hold: "15m",
            summary: "Objects are evicted {{ $value | humanizeDuration }} after their put",
            description: "At the current rate, evictions replace all stored bytes in this time. \
                The store is too small for its load."
                .to_owned(),
            runbook: "docs/operations.md#the-store-is-too-small",
        },
        AlertRule {
            name: "McctlHitRateFalling",
            severity: AlertSeverity::Warning,
            query: format!("{HIT_RATIO}{{$deployment}} < 0.7 * avg_over_time({HIT_RATIO}{{$deployment}}[1d])"),
            hold: "30m",
            summary: "The hit rate of {{ $labels.lookup }} calls has fallen to {{ $value | humanizePercentage }}",
            description: "It is more than 30 % below its average of the last day.".to_owned(),
            runbook: "docs/operations.md#the-store-is-too-small",
        },
    ]
}

/// Rules on metrics that every process of mcctl has.
fn process_rules(scope: &MonitoringScope) -> Vec<AlertRule> {
    let late_s = scope.client_ttl_s as f64 / 2.0;
    let mut rules = vec![
        AlertRule {
            name: "McctlHeartbeatLate",
            severity: AlertSeverity::Warning,
            query: format!("max(max_over_time(mcctl_master_heartbeat_age_max_seconds{{$master}}[2m])) > {late_s}"),
            hold: "0s",
            summary: "A heartbeat is {{ $value | humanizeDuration }} late",
            description: format!(
                "Nodes send a heartbeat every second. After {} s without one, the master drops a node's objects.",
                scope.client_ttl_s
            ),
            runbook: "docs/TROUBLESHOOTING.md#13-nodes-disappear-along-with-their-cached-data-actionclient_expired",
        },
        AlertRule {
            name: "McctlProcessRestarts",
            severity: AlertSeverity::Warning,
            query: "changes(process_start_time_seconds{$process}[15m]) > 2".to_owned(),
            hold: "0s",
            summary: "The process on {{ $labels.instance }} has restarted {{ $value }} times in 15 min",
            description: "The log has the reason. The exit code names the kind of error.".to_owned(),
            runbook: "docs/operations.md#a-process-does-not-respond",
        },
        AlertRule {
            name: "McctlOpenFilesNearLimit",
            severity: AlertSeverity::Warning,
            query: "process_open_fds{$process} / process_max_fds{$process} > 0.9".to_owned(),
            hold: "5m",
            summary: "The process on {{ $labels.instance }} has {{ $value | humanizePercentage }} of its open files in use",
            description: "At the limit, new connections wait or are refused.".to_owned(),
            runbook: "docs/operations.md#connections-are-refused",
        },
        AlertRule {
            name: "McctlReleasesDiffer",
            severity: AlertSeverity::Warning,
            query: "count(count by (version, mooncake) (mcctl_build_info{$process})) > 1".to_owned(),
            hold: "30m",
            summary: "Masters and nodes run {{ $value }} different releases of mcctl",
            description: "An upgrade has not finished: some processes still run the previous release after 30 min."
                .to_owned(),
            runbook: "docs/operations.md#upgrade",
        },
        AlertRule {
            name: "McctlConnectionsRefused",
            severity: AlertSeverity::Warning,
            query: "increase(mcctl_connections_not_allowed_total{$process}[10m]) > 0".to_owned(),
            hold: "0s",
            summary: "The process on {{ $labels.instance }} refused connections from addresses that are not allowed",
            description: "{{ $value | humanize }} connections in 10 min came from addresses that are not in --allow-cidr. The log has one of them."
                .to_owned(),
            runbook: "docs/operations.md#connections-are-refused",
        },
    ];
    if !scope.nodes.is_empty() {
        rules.push(AlertRule {
            name: "McctlRequestsRefused",
            severity: AlertSeverity::Warning,
            query: "increase(mcctl_node_served_refusals_total{$store}[10m]) > 0".to_owned(),
            hold: "0s",
            summary: "The node on {{ $labels.instance }} refused requests for its memory",
            description: "{{ $value | humanize }} requests in 10 min named memory that it does not serve.".to_owned(),
            runbook: "docs/operations.md#connections-are-refused",
        });
    }
    rules
}

/// A client adds the series of a peer at the first mismatch, with the value 1. `increase` is 0 then.
fn checksum_mismatch() -> AlertRule {
    let series = "mcctl_client_checksum_mismatches_total{$client}";
    AlertRule {
        name: "McctlChecksumMismatch",
        severity: AlertSeverity::Critical,
        query: format!("sum by (peer) ((increase({series}[10m]) > 0) or ({series} unless {series} offset 10m)) > 0"),
        hold: "0s",
        summary: "Objects on {{ $labels.peer }} are damaged",
        description:
            "{{ $value | humanize }} damaged replicas were found on this node in 10 min: their bytes do not match the checksum. \
            Run mcctl store verify --all. If most of them are on this node, stop it, and test its host's memory."
                .to_owned(),
        runbook: "docs/TROUBLESHOOTING.md#checksum-mismatch--801",
    }
}

fn suspicious_put_ends() -> AlertRule {
    AlertRule {
        name: "McctlSuspiciousPutEnds",
        severity: AlertSeverity::Warning,
        query: "increase(mcctl_master_suspicious_put_ends_total{$master}[1h]) > 0".to_owned(),
        hold: "0s",
        summary: "Late ends of writes may have completed objects with wrong bytes",
        description: "{{ $value | humanize }} writes in 1 h were started again by their client, and ended over another connection. \
            The log of the master on {{ $labels.instance }} names the client. Run mcctl store verify --all."
            .to_owned(),
        runbook: "docs/TROUBLESHOOTING.md#a-late-write-may-have-damaged-an-object",
    }
}

fn disk_rules(scope: &MonitoringScope) -> Vec<AlertRule> {
    let runbook = "docs/operations.md#the-masters-disk-fails";
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
    if scope.is_synced {
        rules.extend(sync_rules(runbook));
    }
    rules
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
            query: "rate(mcctl_master_log_sync_seconds_total{$master}[5m]) \
                / rate(mcctl_master_log_syncs_total{$master}[5m]) > 0.5"
                .to_owned(),
            hold: "5m",
            summary: "A sync of the log on {{ $labels.instance }} takes {{ $value | humanizeDuration }}",
            description: "The disk of the data directory is overloaded or failing.".to_owned(),
            runbook,
        },
    ]
}

fn election_rules() -> [AlertRule; 5] {
    let runbook = "docs/high-availability.md#watch-it";
    [
        AlertRule {
            name: "McctlNoLeader",
            severity: AlertSeverity::Critical,
            query: "(max(mcctl_ha_serving{$master}) or vector(0)) == 0".to_owned(),
            hold: "10s",
            summary: "No master leads",
            description: "Clients cannot read or write objects. Check etcd and the masters' /ha_status?format=json."
                .to_owned(),
            runbook,
        },
        AlertRule {
            name: "McctlNoStandbyInSync",
            severity: AlertSeverity::Warning,
            query: "max(mcctl_ha_standbys_in_sync{$master}) == 0".to_owned(),
            hold: "1m",
            summary: "No standby has a complete copy",
            description: "If the leader's host fails now, keys are lost.".to_owned(),
            runbook,
        },
        AlertRule {
            name: "McctlEtcdUnreachable",
            severity: AlertSeverity::Critical,
            query: "max(mcctl_ha_etcd_unreachable{$master}) == 1".to_owned(),
            hold: "30s",
            summary: "A master cannot reach etcd",
            description: "No failover is possible, and a leader without a standby stops responding.".to_owned(),
            runbook,
        },
        AlertRule {
            name: "McctlStandbyLags",
            severity: AlertSeverity::Warning,
            query: "max(mcctl_ha_lag_changes{$master}) > 10000".to_owned(),
            hold: "1m",
            summary: "A standby is {{ $value }} changes behind the leader",
            description: "The standby or the network between the masters is too slow.".to_owned(),
            runbook,
        },
        AlertRule {
            name: "McctlLeadersChange",
            severity: AlertSeverity::Warning,
            query: "max(changes(mcctl_ha_view{$master}[1h])) > 3".to_owned(),
            hold: "0s",
            summary: "The leader has changed {{ $value }} times in an hour",
            description: "The leaders' hosts, their network or etcd are not stable.".to_owned(),
            runbook,
        },
    ]
}
