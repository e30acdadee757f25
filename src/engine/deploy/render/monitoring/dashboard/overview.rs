//! The store as a whole: its current state, its use and its requests.

use super::panel::{DashboardPanel, panel, stat, stat_with};
use crate::render::monitoring::MonitoringScope;
use crate::render::monitoring::recording::{HIT_RATIO, LIFETIME, USED_RATIO};

/// Values that show whether the store works now.
pub(super) fn stats(scope: &MonitoringScope) -> Vec<DashboardPanel> {
    let at_least_one = |color| vec![(color, None), ("green", Some(1.0))];
    let mut stats = Vec::new();
    if scope.is_mcctl {
        // A master without others to elect from has no metrics of the election.
        let serving = "sum(mcctl_ha_serving{$master}) or count(master_key_count{$master}) or vector(0)";
        let in_sync = "max(mcctl_ha_standbys_in_sync{$master})";
        stats.push(stat_with("Masters that serve", "none", serving, at_least_one("red")));
        stats.push(stat_with("Standbys in sync", "none", in_sync, at_least_one("orange")));
    } else {
        let responding = "count(master_key_count{$master}) or vector(0)";
        stats.push(stat_with("Masters that respond", "none", responding, at_least_one("red")));
    }
    let segments = "count(count by (segment) (segment_total_capacity_bytes{$master})) or vector(0)";
    let firing = "count(ALERTS{alertstate=\"firing\",$deployment}) or vector(0)";
    stats.extend([
        stat_with("Nodes", "none", segments, at_least_one("red")),
        stat(
            "Memory in use",
            "percentunit",
            "max(master_allocated_bytes{$master}) / max(master_total_capacity_bytes{$master})",
        ),
        stat("Objects", "short", "max(master_key_count{$master})"),
        stat_with("Alerts", "none", firing, vec![("green", None), ("red", Some(1.0))]),
    ]);
    stats
}

/// Use, requests and failures over time.
pub(super) fn panels() -> Vec<DashboardPanel> {
    let recorded = |name: &str| format!("{name}{{$deployment}}");
    vec![
        panel("Objects over time", "short", &[("objects", "max(master_key_count{$master})")]),
        panel(
            "Memory",
            "bytes",
            &[
                ("in use", "max(master_allocated_bytes{$master})"),
                ("capacity", "max(master_total_capacity_bytes{$master})"),
            ],
        ),
        panel("Share of the memory in use", "percentunit", &[("in use", &recorded(USED_RATIO))]),
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
        panel(
            "Processes that respond",
            "short",
            &[
                ("{{job}}", "sum by (job) (up{$process})"),
                ("clients of the master", "max(master_active_clients{$master})"),
            ],
        ),
        panel(
            "Median size of stored objects",
            "bytes",
            &[(
                "median",
                "histogram_quantile(0.5, sum by (le) (rate(master_value_size_bytes_bucket{$master}[$__rate_interval])))",
            )],
        ),
    ]
}
