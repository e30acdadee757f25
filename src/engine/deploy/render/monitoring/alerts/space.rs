//! Alerts on the space of the store.

use super::{AlertRule, AlertSeverity};
use crate::render::monitoring::MonitoringScope;
use crate::render::monitoring::recording::{HIT_RATIO, LIFETIME, USED_RATIO};

/// Objects that are evicted earlier than this many seconds after their put rarely serve a second
/// request.
const LIFETIME_MIN_S: u32 = 600;

/// Share of puts that may fail for lack of space: a few do in a full store, because eviction starts
/// when memory is used up.
const FAILED_PUTS_MAX: f64 = 0.01;
/// The share of puts in the last 5 min that failed for lack of space.
const FAILED_PUTS: &str = "sum(increase(master_put_start_alloc_failures_total{$master}[5m])) / \
    (sum(increase(master_put_start_requests_total{$master}[5m])) + \
    sum(increase(master_batch_put_start_items_total{$master}[5m])) > 0)";

/// Rules on metrics that upstream's master has, too.
pub(super) fn space_rules(scope: &MonitoringScope) -> Vec<AlertRule> {
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
            runbook: "TROUBLESHOOTING.md#15-puts-fail-with--200-memory-is-97-used-and-nothing-is-evicted",
        },
        AlertRule {
            name: "McctlPutsFail",
            severity: AlertSeverity::Warning,
            query: format!("{FAILED_PUTS} > {FAILED_PUTS_MAX}"),
            hold: "5m",
            summary: "{{ $value | humanizePercentage }} of puts fail for lack of space",
            description: "The store is full, its free memory is fragmented, or nodes have just returned.".to_owned(),
            runbook: "TROUBLESHOOTING.md#15-puts-fail-with--200-memory-is-97-used-and-nothing-is-evicted",
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
            runbook: "operations.md#the-store-is-too-small",
        },
        AlertRule {
            name: "McctlHitRateFalling",
            severity: AlertSeverity::Warning,
            query: format!("{HIT_RATIO}{{$deployment}} < 0.7 * avg_over_time({HIT_RATIO}{{$deployment}}[1d])"),
            hold: "30m",
            summary: "The hit rate of {{ $labels.lookup }} calls has fallen to {{ $value | humanizePercentage }}",
            description: "It is more than 30 % below its average of the last day.".to_owned(),
            runbook: "operations.md#the-store-is-too-small",
        },
    ]
}
