//! The segments, and the nodes that serve them.

use super::panel::{DashboardPanel, panel};
use crate::render::monitoring::MonitoringScope;

/// The segments and the nodes that serve them.
pub(super) fn panels(scope: &MonitoringScope) -> Vec<DashboardPanel> {
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
        panels.push(panel(
            "Replicas lost with their nodes",
            "short",
            &[("{{instance}}", "increase(mcctl_master_lost_replicas_total{$master}[$__rate_interval])")],
        ));
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
