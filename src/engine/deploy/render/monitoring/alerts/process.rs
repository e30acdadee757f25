//! Alerts on the processes of mcctl.

use super::{AlertRule, AlertSeverity};
use crate::render::monitoring::MonitoringScope;

/// Rules on metrics that every process of mcctl has.
pub(super) fn process_rules(scope: &MonitoringScope) -> Vec<AlertRule> {
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
            runbook: "TROUBLESHOOTING.md#13-nodes-disappear-along-with-their-cached-data-actionclient_expired",
        },
        AlertRule {
            name: "McctlProcessRestarts",
            severity: AlertSeverity::Warning,
            query: "changes(process_start_time_seconds{$process}[15m]) > 2".to_owned(),
            hold: "0s",
            summary: "The process on {{ $labels.instance }} has restarted {{ $value }} times in 15 min",
            description: "The log has the reason. The exit code names the kind of error.".to_owned(),
            runbook: "operations.md#a-process-does-not-respond",
        },
        AlertRule {
            name: "McctlOpenFilesNearLimit",
            severity: AlertSeverity::Warning,
            query: "process_open_fds{$process} / process_max_fds{$process} > 0.9".to_owned(),
            hold: "5m",
            summary: "The process on {{ $labels.instance }} has {{ $value | humanizePercentage }} of its open files in use",
            description: "At the limit, new connections wait or are refused.".to_owned(),
            runbook: "operations.md#connections-are-refused",
        },
        AlertRule {
            name: "McctlReleasesDiffer",
            severity: AlertSeverity::Warning,
            query: "count(count by (version, mooncake) (mcctl_build_info{$process})) > 1".to_owned(),
            hold: "30m",
            summary: "Masters and nodes run {{ $value }} different releases of mcctl",
            description: "An upgrade has not finished: some processes still run the previous release after 30 min."
                .to_owned(),
            runbook: "operations.md#upgrade",
        },
        AlertRule {
            name: "McctlConnectionsRefused",
            severity: AlertSeverity::Warning,
            query: "increase(mcctl_connections_not_allowed_total{$process}[10m]) > 0".to_owned(),
            hold: "0s",
            summary: "The process on {{ $labels.instance }} refused connections from addresses that are not allowed",
            description: "{{ $value | humanize }} connections in 10 min came from addresses that are not in --allow-cidr. The log has one of them."
                .to_owned(),
            runbook: "operations.md#connections-are-refused",
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
            runbook: "operations.md#connections-are-refused",
        });
    }
    rules
}

/// A client of an unknown release: its calls fail, and upstream's clients do not report it.
pub(super) fn unknown_requests() -> AlertRule {
    AlertRule {
        name: "McctlUnknownRequests",
        severity: AlertSeverity::Warning,
        query: "increase(mcctl_master_unknown_requests_total{$master}[10m]) > 0".to_owned(),
        hold: "0s",
        summary: "A client's requests cannot be decoded",
        description: "{{ $value | humanize }} requests in 10 min have a Mooncake release that the \
            master on {{ $labels.instance }} does not support. They fail. mcctl status shows the hosts of these clients."
            .to_owned(),
        runbook: "TROUBLESHOOTING.md#requests-of-an-unknown-release",
    }
}
