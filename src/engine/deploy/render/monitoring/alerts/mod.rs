//! Alerting rules. A rule exists only if the deployment can cause it and exports its metrics.

mod disk;
mod election;
mod integrity;
mod latency;
mod process;
mod space;

use serde_yaml_ng::Value;

use super::MonitoringScope;
use crate::render::yaml::map;

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
    /// A section of the documentation: file in `docs/` and anchor.
    runbook: &'static str,
}

/// The contents of the rule file.
pub(super) fn document(scope: &MonitoringScope) -> Value {
    let rules = all(scope).iter().map(|alert| rule(scope, alert)).collect();
    scope.rule_group("alerts", rules)
}

fn all(scope: &MonitoringScope) -> Vec<AlertRule> {
    let mut all = vec![master_down(scope)];
    all.extend(node_rules(scope));
    if !scope.servers.is_empty() {
        all.extend(server_rules(scope));
    }
    all.extend(space::space_rules(scope));
    if scope.is_mcctl {
        all.extend(process::process_rules(scope));
        all.extend([
            latency::rpc_slow(),
            integrity::replicas_lost(),
            integrity::suspicious_put_ends(),
            process::unknown_requests(),
        ]);
    }
    if scope.has_mcctl_clients {
        all.push(integrity::checksum_mismatch());
    }
    if scope.has_data {
        all.extend(disk::disk_rules(scope));
    }
    if scope.is_elected() {
        all.extend(election::election_rules());
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
            ("summary", alert.summary.to_owned()),
            ("description", alert.description.clone()),
            scope.runbook(alert.runbook),
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
        runbook: "operations.md#a-process-does-not-respond",
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
            runbook: "operations.md#a-process-does-not-respond",
        });
    }
    if scope.node_count > 0 {
        rules.push(nodes_missing(scope));
    }
    rules
}

/// Compares the segments on the hosts of nodes with the number of nodes. Segments of engines have
/// the names of other hosts.
fn nodes_missing(scope: &MonitoringScope) -> AlertRule {
    let hosts: Vec<String> = scope.node_hosts.iter().map(|host| host_pattern(host)).collect();
    let hosts = hosts.join("|");
    let count = scope.node_count;
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
        runbook: "TROUBLESHOOTING.md#13-nodes-disappear-along-with-their-cached-data-actionclient_expired",
    }
}

/// The regular expression for `host` in a segment name, in a PromQL string.
fn host_pattern(host: &str) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    host.replace('[', "\\\\[").replace(']', "\\\\]").replace('.', "[.]")
}

/// A server of several is a warning. If all are down, no request is served.
fn server_rules(scope: &MonitoringScope) -> Vec<AlertRule> {
    let rule = |severity, query: &str, description: &str| AlertRule {
        name: "McctlServerDown",
        severity,
        query: query.to_owned(),
        hold: "2m",
        summary: "The SGLang server on {{ $labels.instance }} does not respond",
        description: description.to_owned(),
        runbook: "operations.md#a-process-does-not-respond",
    };
    if scope.servers.len() < 2 {
        let description = "Its metrics have not responded for 2 min. It is the only server.";
        return vec![rule(AlertSeverity::Critical, "up{$server} == 0", description)];
    }
    vec![
        rule(
            AlertSeverity::Critical,
            "up{$server} == 0 and on () max(up{$server}) == 0",
            "The metrics of all servers have not responded for 2 min.",
        ),
        rule(
            AlertSeverity::Warning,
            "up{$server} == 0 and on () max(up{$server}) == 1",
            "Its metrics have not responded for 2 min. Other servers continue.",
        ),
    ]
}
