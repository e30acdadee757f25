//! Workloads: selectors that match the template, counts and budgets.

use super::{Field, Violation, ViolationKind, grammar};
use mcctl_base::text::Quoted;

/// Limit on the name of a StatefulSet: its pods carry a label `<name>-<10-character hash>`.
pub(super) const STATEFUL_NAME_MAX: usize = 52;

/// Rules for a Deployment.
pub(super) fn deployment(target: &Field<'_>, out: &mut Vec<Violation>) {
    selected(target, out);
    runs_always(target, out);
    target.check_min("progressDeadlineSeconds", 1, out);
    let Some(strategy) = target.get("strategy") else { return };
    strategy.check_one_of("type", &["RollingUpdate", "Recreate"], out);
    match strategy.get("rollingUpdate") {
        Some(_) if strategy.text("type") == Some("Recreate") => {
            strategy.report(out, ViolationKind::Conflict, "rollingUpdate requires type RollingUpdate");
        }
        Some(rolling) => {
            count_or_percent(&rolling, "maxUnavailable", out);
            count_or_percent(&rolling, "maxSurge", out);
            not_both_zero(&rolling, "25%", "25%", out);
        }
        None => {}
    }
}

/// Rules for a StatefulSet.
pub(super) fn stateful_set(target: &Field<'_>, out: &mut Vec<Violation>) {
    selected(target, out);
    runs_always(target, out);
    target.check_text("serviceName", |name| (!name.is_empty()).then(|| grammar::service_label(name)).flatten(), out);
    target.check_one_of("podManagementPolicy", &["OrderedReady", "Parallel"], out);
    if let Some(strategy) = target.get("updateStrategy") {
        strategy.check_one_of("type", &["RollingUpdate", "OnDelete"], out);
        if let Some(rolling) = strategy.get("rollingUpdate") {
            rolling.check_min("partition", 0, out);
            count_or_percent(&rolling, "maxUnavailable", out);
            if rolling.get("maxUnavailable").is_some_and(|n| zero(&n)) {
                rolling.report(out, ViolationKind::Stuck, "maxUnavailable 0 would block the rollout");
            }
        }
    }
}

/// Rules for the name of a StatefulSet.
pub(crate) fn stateful_name(target: &Field<'_>, out: &mut Vec<Violation>) {
    if let Some(name) = target.value.as_str().filter(|name| name.len() > STATEFUL_NAME_MAX) {
        let message =
            format!("too long: {} characters; the limit for a StatefulSet name is {STATEFUL_NAME_MAX}", name.len());
        target.report(out, ViolationKind::Syntax, message);
    }
}

/// Rules for a DaemonSet.
pub(super) fn daemon_set(target: &Field<'_>, out: &mut Vec<Violation>) {
    selected(target, out);
    runs_always(target, out);
    if let Some(strategy) = target.get("updateStrategy") {
        strategy.check_one_of("type", &["RollingUpdate", "OnDelete"], out);
        if let Some(rolling) = strategy.get("rollingUpdate") {
            count_or_percent(&rolling, "maxUnavailable", out);
            count_or_percent(&rolling, "maxSurge", out);
            not_both_zero(&rolling, "1", "0", out);
        }
    }
}

/// Rules for a Job.
pub(super) fn job(target: &Field<'_>, out: &mut Vec<Violation>) {
    for key in ["parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished"] {
        target.check_min(key, 0, out);
    }
    if let Some(pod) = target.find(&["template", "spec"]) {
        match pod.text("restartPolicy") {
            Some("Never" | "OnFailure") => {}
            _ => pod.report(out, ViolationKind::Value, "restartPolicy must be Never or OnFailure in a Job"),
        }
    }
}

/// Rules for a PodDisruptionBudget.
pub(super) fn disruption_budget(target: &Field<'_>, out: &mut Vec<Violation>) {
    target.check_exactly_one(&["minAvailable", "maxUnavailable"], out);
    count_or_percent(target, "minAvailable", out);
    count_or_percent(target, "maxUnavailable", out);
}

/// Checks that the selector is not empty and matches the labels of the template.
pub(super) fn selected(target: &Field<'_>, out: &mut Vec<Violation>) {
    target.check_min("replicas", 0, out);
    target.check_min("minReadySeconds", 0, out);
    let Some(selector) = target.get("selector").filter(|s| s.value.is_object()) else { return };
    let wanted = selector.entries("matchLabels");
    if wanted.is_empty() && selector.list("matchExpressions").is_empty() {
        selector.report(out, ViolationKind::Missing, "an empty selector matches every pod");
    }
    let Some(template) = target.get("template") else { return };
    let labels = template.get("metadata").map(|meta| meta.entries("labels")).unwrap_or_default();
    for (key, value) in wanted {
        let found = labels.iter().find(|(name, _)| *name == key).and_then(|(_, label)| label.value.as_str());
        if let Some(value_of) = value.value.as_str()
            && found != Some(value_of)
        {
            let has = found.map_or("does not have this label".to_owned(), |found| format!("has {}", Quoted(found)));
            value.report(
                out,
                ViolationKind::Conflict,
                format!("selects pods with {} = {}, but the template {has}", Quoted(key), Quoted(value_of)),
            );
        }
    }
}

fn runs_always(target: &Field<'_>, out: &mut Vec<Violation>) {
    if let Some(pod) = target.find(&["template", "spec"])
        && pod.text("restartPolicy").is_some_and(|policy| policy != "Always")
    {
        pod.report(out, ViolationKind::Value, "restartPolicy must be Always");
    }
}

/// Checks a non-negative number or a percentage at `key`.
pub(crate) fn count_or_percent(target: &Field<'_>, key: &str, out: &mut Vec<Violation>) {
    target.check_min(key, 0, out);
    let wrong = |text: &str| grammar::percent(text).is_none().then_some(grammar::GrammarError::CountOrPercentage);
    target.check_text(key, wrong, out);
}

/// Whether the count or percentage is 0.
pub(super) fn zero(target: &Field<'_>) -> bool {
    target.value.as_i64() == Some(0) || target.value.as_str().and_then(grammar::percent) == Some(0)
}

/// A rollout that may neither remove nor add a pod never progresses. `unavailable` and `surge` are
/// the defaults for missing fields.
pub(crate) fn not_both_zero(rolling: &Field<'_>, unavailable: &str, surge: &str, out: &mut Vec<Violation>) {
    let nothing = |key: &str, default: &str| rolling.get(key).map_or(default == "0", |n| zero(&n));
    if nothing("maxUnavailable", unavailable) && nothing("maxSurge", surge) {
        rolling.report(out, ViolationKind::Stuck, "maxUnavailable and maxSurge are both 0, which blocks the rollout");
    }
}
