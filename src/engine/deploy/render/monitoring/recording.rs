//! Recording rules: ratios that several alerts and panels use.

use serde_yaml_ng::Value;

use super::MonitoringScope;
use crate::render::yaml::map;

/// The share of the memory that is in use. Standbys report the same values as their leader, so the
/// maximum is the leader's.
pub(super) const USED_RATIO: &str = "mcctl:used:ratio";
/// The share of lookups that find their key, with the label `lookup`: `get` or `exist`.
pub(super) const HIT_RATIO: &str = "mcctl:hit:ratio_rate15m";
/// The time in which evictions replace all stored bytes. In a steady state, this is the average
/// lifetime of an object.
pub(super) const LIFETIME: &str = "mcctl:object_lifetime:seconds15m";

const USED: &str = "max(master_allocated_bytes{$master}) / max(master_total_capacity_bytes{$master})";
const GET_HITS: &str = "sum(rate(valid_get_nums_{$master}[15m])) / (sum(rate(total_get_nums_{$master}[15m])) > 0)";
const EXIST_HITS: &str = "sum(rate(mcctl_master_exist_hits_total{$master}[15m])) / (\
    sum(rate(master_exist_key_requests_total{$master}[15m])) + \
    sum(rate(master_batch_exist_key_items_total{$master}[15m])) > 0)";
const LIFETIME_S: &str =
    "max(master_allocated_bytes{$master}) / (sum(rate(master_evicted_size_bytes{$master}[15m])) > 0)";

/// The contents of the rule file.
pub(super) fn document(scope: &MonitoringScope) -> Value {
    let mut rules = vec![
        rule(scope, USED_RATIO, None, USED),
        rule(scope, LIFETIME, None, LIFETIME_S),
        rule(scope, HIT_RATIO, Some("get"), GET_HITS),
    ];
    if scope.is_mcctl {
        rules.push(rule(scope, HIT_RATIO, Some("exist"), EXIST_HITS));
    }
    scope.rule_group("recording", rules)
}

fn rule(scope: &MonitoringScope, name: &str, lookup: Option<&str>, query: &str) -> Value {
    let labels = map! { "deployment": scope.name.as_str(), "lookup": lookup };
    map! { "record": name, "expr": scope.query(query), "labels": labels }
}
