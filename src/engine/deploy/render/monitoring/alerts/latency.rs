//! Alerts on the time that calls take.

use super::{AlertRule, AlertSeverity};

/// Maximum time of 99 % of the calls, in seconds. A call that changes something waits for the
/// standbys and, with `--fsync always`, for the disk.
const CALL_MAX_S: f64 = 0.1;

/// Calls that every read or write of an object waits for.
const CALLS: &str = "PutStart|BatchPutStart|GetReplicaList|BatchGetReplicaList";

/// The calls of readers and writers take too long.
pub(super) fn rpc_slow() -> AlertRule {
    AlertRule {
        name: "McctlRpcSlow",
        severity: AlertSeverity::Warning,
        query: format!(
            "histogram_quantile(0.99, sum by (method, le) \
             (rate(mcctl_rpc_request_duration_seconds_bucket{{$master,method=~\"{CALLS}\"}}[5m]))) > {CALL_MAX_S}"
        ),
        hold: "10m",
        summary: "{{ $labels.method }} calls take up to {{ $value | humanizeDuration }} (p99)",
        description: format!(
            "More than 1 % of these calls have taken longer than {CALL_MAX_S} s in the master, for 10 min. \
             The time includes the waits for standbys and the disk, and not the network to the client."
        ),
        runbook: "operations.md#calls-are-slow",
    }
}
