//! Alerts on damaged and lost objects.

use super::{AlertRule, AlertSeverity};

/// A client adds the series of a peer at the first mismatch, with the value 1. `increase` is
/// 0 then.
pub(super) fn checksum_mismatch() -> AlertRule {
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
        runbook: "TROUBLESHOOTING.md#checksum-mismatch--801",
    }
}

/// A late end of a write may have completed an object with wrong bytes.
pub(super) fn suspicious_put_ends() -> AlertRule {
    AlertRule {
        name: "McctlSuspiciousPutEnds",
        severity: AlertSeverity::Warning,
        query: "increase(mcctl_master_suspicious_put_ends_total{$master}[1h]) > 0".to_owned(),
        hold: "0s",
        summary: "Late ends of writes may have completed objects with wrong bytes",
        description: "{{ $value | humanize }} writes in 1 h were started again by their client, and ended over another connection. \
            The log of the master on {{ $labels.instance }} names the client. Run mcctl store verify --all."
            .to_owned(),
        runbook: "TROUBLESHOOTING.md#a-late-write-may-have-damaged-an-object",
    }
}

/// Nodes went away with the objects in their memory. An unmount that the node requests does not
/// count.
pub(super) fn replicas_lost() -> AlertRule {
    AlertRule {
        name: "McctlReplicasLost",
        severity: AlertSeverity::Warning,
        query: "increase(mcctl_master_lost_replicas_total{$master}[10m]) > 0".to_owned(),
        hold: "0s",
        summary: "{{ $value | humanize }} replicas were lost with their nodes in 10 min",
        description:
            "Nodes have expired, have restarted, or did not return after a restart of the master. Reads of objects \
            without another replica miss. The log of the master on {{ $labels.instance }} names the nodes."
                .to_owned(),
        runbook: "operations.md#replicas-are-lost",
    }
}
