//! What starts pods: selectors that match the template, counts, and budgets.

use super::{Complaint, Spot, text};
use crate::engine::base::text::Quoted;

/// Pods of a StatefulSet carry a label `<name>-<hash of ten>`: a longer name starts none.
pub const STATEFUL_NAME_MAX: usize = 52;

/// A Deployment.
pub fn deployment(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    selected(spot, out);
    runs_always(spot, out);
    spot.at_least("progressDeadlineSeconds", 1, out);
    let Some(strategy) = spot.get("strategy") else { return };
    strategy.one_of("type", &["RollingUpdate", "Recreate"], out);
    match strategy.get("rollingUpdate") {
        Some(_) if strategy.text("type") == Some("Recreate") => {
            strategy.complain(out, "rollingUpdate belongs to the type RollingUpdate");
        }
        Some(rolling) => {
            count_or_percent(&rolling, "maxUnavailable", out);
            count_or_percent(&rolling, "maxSurge", out);
            not_both_zero(&rolling, "25%", "25%", out);
        }
        None => {}
    }
}

/// A StatefulSet.
pub fn stateful_set(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    selected(spot, out);
    runs_always(spot, out);
    spot.held("serviceName", |name| (!name.is_empty()).then(|| text::service_label(name)).flatten(), out);
    spot.one_of("podManagementPolicy", &["OrderedReady", "Parallel"], out);
    if let Some(strategy) = spot.get("updateStrategy") {
        strategy.one_of("type", &["RollingUpdate", "OnDelete"], out);
        if let Some(rolling) = strategy.get("rollingUpdate") {
            rolling.at_least("partition", 0, out);
            count_or_percent(&rolling, "maxUnavailable", out);
            if rolling.get("maxUnavailable").is_some_and(|n| zero(&n)) {
                rolling.complain(out, "maxUnavailable 0 would never roll");
            }
        }
    }
}

/// The name of a StatefulSet.
pub fn stateful_name(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    if let Some(name) = spot.value.as_str().filter(|name| name.len() > STATEFUL_NAME_MAX) {
        let what = format!(
            "a name of {} characters; a StatefulSet's pods need one of at most {STATEFUL_NAME_MAX}",
            name.len()
        );
        spot.complain(out, what);
    }
}

/// A DaemonSet.
pub fn daemon_set(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    selected(spot, out);
    runs_always(spot, out);
    if let Some(strategy) = spot.get("updateStrategy") {
        strategy.one_of("type", &["RollingUpdate", "OnDelete"], out);
        if let Some(rolling) = strategy.get("rollingUpdate") {
            count_or_percent(&rolling, "maxUnavailable", out);
            count_or_percent(&rolling, "maxSurge", out);
            not_both_zero(&rolling, "1", "0", out);
        }
    }
}

/// A Job.
pub fn job(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    for key in ["parallelism", "completions", "backoffLimit", "ttlSecondsAfterFinished"] {
        spot.at_least(key, 0, out);
    }
    if let Some(pod) = spot.find(&["template", "spec"]) {
        match pod.text("restartPolicy") {
            Some("Never" | "OnFailure") => {}
            _ => pod.complain(out, "restartPolicy of a Job's pods is Never or OnFailure"),
        }
    }
}

/// A PodDisruptionBudget.
pub fn disruption_budget(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    spot.exactly_one(&["minAvailable", "maxUnavailable"], out);
    count_or_percent(spot, "minAvailable", out);
    count_or_percent(spot, "maxUnavailable", out);
}

/// The selector is not empty and matches the labels of the template.
pub fn selected(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    spot.at_least("replicas", 0, out);
    spot.at_least("minReadySeconds", 0, out);
    let Some(selector) = spot.get("selector").filter(|s| s.value.is_object()) else { return };
    let wanted = selector.entries("matchLabels");
    if wanted.is_empty() && selector.list("matchExpressions").is_empty() {
        selector.complain(out, "an empty selector matches every pod");
    }
    let Some(template) = spot.get("template") else { return };
    let labels = template.get("metadata").map(|meta| meta.entries("labels")).unwrap_or_default();
    for (key, value) in wanted {
        let found = labels.iter().find(|(name, _)| *name == key).and_then(|(_, label)| label.value.as_str());
        if let Some(value_of) = value.value.as_str()
            && found != Some(value_of)
        {
            let has = found.map_or("has no such label".to_owned(), |found| format!("says {}", Quoted(found)));
            value.complain(
                out,
                format!("selects pods with {} = {}, and the template {has}", Quoted(key), Quoted(value_of)),
            );
        }
    }
}

fn runs_always(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    if let Some(pod) = spot.find(&["template", "spec"])
        && pod.text("restartPolicy").is_some_and(|policy| policy != "Always")
    {
        pod.complain(out, "restartPolicy of these pods is Always");
    }
}

/// A number from 0 or `NN%` at `key`.
pub fn count_or_percent(spot: &Spot<'_>, key: &str, out: &mut Vec<Complaint>) {
    spot.at_least(key, 0, out);
    let wrong =
        |text: &str| text::percent(text).is_none().then(|| "neither a number nor a percentage (25%)".to_owned());
    spot.held(key, wrong, out);
}

/// Does this count come to nothing?
pub fn zero(spot: &Spot<'_>) -> bool {
    spot.value.as_i64() == Some(0) || spot.value.as_str().and_then(text::percent) == Some(0)
}

/// A roll-out that may neither take a pod away nor add one never moves. The texts are what a missing field means.
pub fn not_both_zero(rolling: &Spot<'_>, unavailable: &str, surge: &str, out: &mut Vec<Complaint>) {
    let nothing = |key: &str, default: &str| rolling.get(key).map_or(default == "0", |n| zero(&n));
    if nothing("maxUnavailable", unavailable) && nothing("maxSurge", surge) {
        rolling.complain(out, "maxUnavailable and maxSurge are both 0: nothing could ever roll");
    }
}
