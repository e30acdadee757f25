//! The clients of the store: transfers and checksums.

use super::panel::{DashboardPanel, panel};
use crate::render::monitoring::MonitoringScope;

/// What mcctl's clients transfer, by peer, and what they find.
pub(super) fn panels() -> Vec<DashboardPanel> {
    vec![
        panel(
            "Transferred bytes, by peer",
            "Bps",
            &[(
                "{{direction}} {{peer}}",
                "sum by (peer, direction) (rate(mcctl_client_peer_bytes_total{$client}[$__rate_interval]))",
            )],
        ),
        panel(
            "Failed operations, by peer",
            "ops",
            &[(
                "{{direction}} {{peer}}",
                "sum by (peer, direction) (rate(mcctl_client_peer_failures_total{$client}[$__rate_interval]))",
            )],
        ),
        panel(
            "Mean time of a batch, by peer",
            "s",
            &[(
                "{{direction}} {{peer}}",
                "sum by (peer, direction) (rate(mcctl_client_peer_seconds_total{$client}[$__rate_interval])) \
                 / (sum by (peer, direction) (rate(mcctl_client_peer_transfers_total{$client}[$__rate_interval])) > 0)",
            )],
        ),
        panel(
            "Object reads, by result",
            "ops",
            &[("{{result}}", "sum by (result) (rate(mcctl_client_object_reads_total{$client}[$__rate_interval]))")],
        ),
    ]
}

/// Damaged objects, and objects that cannot be checked.
pub(super) fn checksum_panels(scope: &MonitoringScope) -> Vec<DashboardPanel> {
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
