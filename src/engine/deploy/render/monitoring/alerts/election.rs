//! Alerts on a cluster of masters.

use super::{AlertRule, AlertSeverity};

/// Rules on the election and the standbys.
pub(super) fn election_rules() -> [AlertRule; 5] {
    let runbook = "high-availability.md#watch-it";
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
