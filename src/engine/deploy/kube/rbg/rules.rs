//! Rules for groups: references, names, patterns, rollouts.

use std::collections::BTreeMap;

use super::{V1ALPHA2, WORKLOAD_ANNOTATION, service_name, workload_name};
use crate::kube::grammar::{self, LABEL_MAX};
use crate::kube::rule::{Field, count_or_percent, not_both_zero, stateful_name};
use crate::kube::{Violation, ViolationKind};
use mcctl_base::text::Quoted;

const PATTERNS: &[&str] = &["standalonePattern", "leaderWorkerPattern", "customComponentsPattern"];
const RESTART: &[&str] = &["None", "RecreateRoleInstanceOnPodRestart"];
/// The annotation value for the workload type of v1alpha2.
const ROLE_INSTANCE_SET: &str = "workloads.x-k8s.io/v1alpha2/RoleInstanceSet";

/// Applies the rules of `workloads.x-k8s.io/v1alpha2`.
pub fn rules_v1alpha2(top: &Field<'_>, out: &mut Vec<Violation>) {
    let Some(spec) = group(top, out) else { return };
    for role in spec.list("roles") {
        role.check_one_of("podManagementPolicy", &["Parallel", "OrderedReady"], out);
        let patterns: Vec<&str> = PATTERNS.iter().copied().filter(|p| role.get(p).is_some()).collect();
        match patterns.as_slice() {
            [_] => {}
            [] if role.get("template").is_some() || role.get("templateRef").is_some() => {
                let message = format!("a role's template belongs to v1alpha1; in {V1ALPHA2}, use standalonePattern");
                role.report(out, ViolationKind::Version, message);
            }
            _ => role.check_exactly_one(PATTERNS, out),
        }
        if let Some(pattern) = role.get("standalonePattern") {
            template_or_ref(&pattern, &spec, out);
        }
        if let Some(pattern) = role.get("leaderWorkerPattern") {
            template_or_ref(&pattern, &spec, out);
            leader_worker(&role, &pattern, out);
            restart_policy(&pattern, out);
        }
        if let Some(pattern) = role.get("customComponentsPattern") {
            components(&pattern, out);
            restart_policy(&pattern, out);
        }
        if let Some(kind) = role.get("annotations").and_then(|a| a.get(WORKLOAD_ANNOTATION))
            && kind.value.as_str() != Some(ROLE_INSTANCE_SET)
        {
            kind.report(
                out,
                ViolationKind::Deprecated,
                "deprecated; a cluster that does not enable deprecated workload types rejects it",
            );
        }
        if let Some(rolling) = rollout(&role, out) {
            rolling.check_one_of("type", &["RecreatePod", "InPlaceIfPossible", "InPlaceOnly"], out);
        }
    }
}

/// Applies the rules of `workloads.x-k8s.io/v1alpha1`.
pub fn rules_v1alpha1(top: &Field<'_>, out: &mut Vec<Violation>) {
    let Some(spec) = group(top, out) else { return };
    let group = top.find(&["metadata", "name"]).and_then(|name| name.value.as_str()).unwrap_or_default();
    for role in spec.list("roles") {
        if let Some(pattern) = PATTERNS.iter().find(|p| role.get(p).is_some()) {
            role.report(
                out,
                ViolationKind::Version,
                format!("{pattern} belongs to v1alpha2; in v1alpha1, use template, leaderWorkerSet or components"),
            );
        }
        role.check_one_of("restartPolicy", RESTART, out);
        rollout(&role, out);
        v1alpha1_workload(&role, &spec, out);
        let stateful = role.find(&["workload", "kind"]).is_none_or(|kind| kind.value == "StatefulSet");
        let name = serde_json::Value::from(workload_name(group, role.text("name").unwrap_or_default()));
        if stateful {
            stateful_name(&Field { at: role.at.key("name"), value: &name }, out);
        }
    }
    spec.check_unique("coordination", "name", out);
    let roles = names(&spec, "roles");
    for together in spec.list("coordination") {
        for role in together.list("roles").iter().filter(|r| r.value.as_str().is_some_and(|r| !roles.contains(&r))) {
            role.report(out, ViolationKind::Ineffective, "no role has this name");
        }
        for (part, keys) in
            [("rollingUpdate", &["maxSkew", "maxUnavailable", "partition"][..]), ("scaling", &["maxSkew"])]
        {
            let Some(part) = together.find(&["strategy", part]) else { continue };
            for key in keys {
                part.check_text(
                    key,
                    |t| grammar::percent(t).is_none().then_some(grammar::GrammarError::Percentage),
                    out,
                );
            }
            part.check_one_of("progression", &["OrderScheduled", "OrderReady"], out);
        }
    }
}

/// Applies the rules that both versions share and returns the spec, if it exists.
fn group<'v>(top: &Field<'v>, out: &mut Vec<Violation>) -> Option<Field<'v>> {
    let Some(spec) = top.get("spec") else {
        top.missing("spec", out);
        return None;
    };
    if spec.list("roles").is_empty() {
        spec.report(out, ViolationKind::Missing, "roles is missing or empty");
    }
    spec.check_unique("roles", "name", out);
    spec.check_unique("roleTemplates", "name", out);
    for shared in spec.list("roleTemplates") {
        check_name(&shared, out);
        if shared.get("template").is_none() {
            shared.missing("template", out);
        }
        template_meta(&shared, out);
    }
    let group = top.find(&["metadata", "name"]).and_then(|name| name.value.as_str()).unwrap_or_default();
    let mut services: BTreeMap<String, &str> = BTreeMap::new();
    for role in spec.list("roles") {
        check_name(&role, out);
        role.check_min("replicas", 0, out);
        role.check_min("minReadySeconds", 0, out);
        role.check_unique("servicePorts", "name", out);
        dependencies(&role, &spec, out);
        for key in ["labels", "annotations"] {
            for (name, entry) in role.entries(key) {
                if let Some(error) = grammar::qualified_key(name) {
                    entry.report(out, ViolationKind::Syntax, error.to_string());
                }
            }
        }
        for (_, label) in role.entries("labels") {
            if let Some(error) = label.value.as_str().and_then(grammar::label_value) {
                label.report(out, ViolationKind::Syntax, error.to_string());
            }
        }
        for runtime in role.list("engineRuntimes") {
            if runtime.text("profileName").is_none_or(str::is_empty) {
                runtime.missing("profileName", out);
            }
        }
        let Some(name) = role.text("name").filter(|name| !name.is_empty()) else { continue };
        let last = role.number("replicas").unwrap_or(1).max(1) - 1;
        let pod = format!("{}-{last}", workload_name(group, name));
        if pod.len() > LABEL_MAX {
            role.report(
                out,
                ViolationKind::Syntax,
                format!("the pod name {pod} has {} characters; the limit is {LABEL_MAX}", pod.len()),
            );
        } else if let Some(other) = services.insert(service_name(group, name), name).filter(|other| *other != name) {
            let service = service_name(group, name);
            let message = format!("the Service name is truncated to {service}, the same name as for {}", Quoted(other));
            role.report(out, ViolationKind::Duplicate, message);
        }
    }
    cycles(&spec, out);
    Some(spec)
}

fn check_name(target: &Field<'_>, out: &mut Vec<Violation>) {
    match target.text("name") {
        None | Some("") => target.missing("name", out),
        Some(_) => target.check_text("name", grammar::dns_label, out),
    }
}

fn names<'v>(spec: &Field<'v>, key: &str) -> Vec<&'v str> {
    spec.list(key).iter().filter_map(|item| item.text("name")).collect()
}

/// Checks the metadata of a template. The schema silently drops all other fields.
fn template_meta(parent: &Field<'_>, out: &mut Vec<Violation>) {
    let Some(meta) = parent.find(&["template", "metadata"]) else { return };
    for key in meta.keys() {
        if !["annotations", "finalizers", "labels", "name", "namespace"].contains(&key)
            && let Some(target) = meta.get(key)
        {
            target.report(
                out,
                ViolationKind::Dropped,
                "dropped by the server: template metadata supports only labels and annotations",
            );
        }
    }
}

fn template_or_ref(parent: &Field<'_>, spec: &Field<'_>, out: &mut Vec<Violation>) {
    parent.check_exactly_one(&["template", "templateRef"], out);
    template_meta(parent, out);
    if let Some(shared) = parent.get("templateRef") {
        match shared.text("name") {
            None | Some("") => shared.missing("name", out),
            Some(name) if !names(spec, "roleTemplates").contains(&name) => {
                shared.report(out, ViolationKind::Reference, format!("no roleTemplate is named {}", Quoted(name)));
            }
            Some(_) => {}
        }
        patches(&shared, &["patch"], out);
    }
}

/// Checks that patches are objects. No further schema applies to them.
fn patches(parent: &Field<'_>, keys: &[&str], out: &mut Vec<Violation>) {
    for patch in keys.iter().filter_map(|key| parent.get(key)).filter(|patch| !patch.value.is_object()) {
        patch.report(out, ViolationKind::WrongType, "a patch must be an object");
    }
}

fn leader_worker(role: &Field<'_>, pattern: &Field<'_>, out: &mut Vec<Violation>) {
    pattern.check_min("size", 1, out);
    patches(pattern, &["leaderTemplatePatch", "workerTemplatePatch"], out);
    pattern.check_one_of("sharedServiceSelection", &["All", "LeaderOnly"], out);
    let other = role.get("annotations").and_then(|a| a.get(WORKLOAD_ANNOTATION));
    let other = other.is_some_and(|kind| kind.value.as_str() != Some(ROLE_INSTANCE_SET));
    if other && pattern.text("sharedServiceSelection") == Some("LeaderOnly") {
        pattern.report(out, ViolationKind::Conflict, "sharedServiceSelection LeaderOnly requires a RoleInstanceSet");
    }
}

/// Checks the restart policy of a replica.
fn restart_policy(pattern: &Field<'_>, out: &mut Vec<Violation>) {
    if let Some(old) = pattern.get("restartPolicy") {
        pattern.check_one_of("restartPolicy", RESTART, out);
        old.report(out, ViolationKind::Deprecated, "deprecated; use restartPolicyConfig.type");
    }
    if let Some(config) = pattern.get("restartPolicyConfig") {
        config.check_one_of("type", RESTART, out);
        config.check_min("baseDelaySeconds", 0, out);
        config.check_min("maxDelaySeconds", 0, out);
        let (base, most) =
            (config.number("baseDelaySeconds").unwrap_or(30), config.number("maxDelaySeconds").unwrap_or(600));
        if most < base {
            config.report(
                out,
                ViolationKind::Conflict,
                format!("maxDelaySeconds {most} is less than baseDelaySeconds {base}"),
            );
        }
    }
}

fn components(pattern: &Field<'_>, out: &mut Vec<Violation>) {
    let list = pattern.list("components");
    if list.is_empty() {
        pattern.report(out, ViolationKind::Missing, "components is missing or empty");
    }
    pattern.check_unique("components", "name", out);
    for component in list {
        check_name(&component, out);
        component.check_min("size", 0, out);
        component.check_text("serviceName", grammar::service_label, out);
        if component.get("template").is_none() {
            component.missing("template", out);
        }
        template_meta(&component, out);
    }
}

/// An InstanceSet of v1alpha1: components, or one template, which the controller converts to
/// instances of a single pod.
fn instance_set(role: &Field<'_>, out: &mut Vec<Violation>) {
    if role.get("components").is_some() {
        components(role, out);
    } else if ["template", "templateRef", "leaderWorkerSet"].iter().all(|key| role.get(key).is_none()) {
        role.report(out, ViolationKind::Missing, "template or components is missing");
    }
    template_meta(role, out);
}

fn rollout<'v>(role: &Field<'v>, out: &mut Vec<Violation>) -> Option<Field<'v>> {
    let strategy = role.get("rolloutStrategy")?;
    strategy.check_one_of("type", &["RollingUpdate"], out);
    let rolling = strategy.get("rollingUpdate")?;
    for key in ["maxUnavailable", "maxSurge", "partition"] {
        count_or_percent(&rolling, key, out);
    }
    not_both_zero(&rolling, "1", "0", out);
    let replicas = role.number("replicas").unwrap_or(1);
    if let Some(partition) = rolling.number("partition").filter(|p| *p > 0 && *p >= replicas) {
        rolling.report(
            out,
            ViolationKind::Stuck,
            format!("partition {partition} with {replicas} replicas: no pod would be updated"),
        );
    }
    Some(rolling)
}

fn dependencies(role: &Field<'_>, spec: &Field<'_>, out: &mut Vec<Violation>) {
    let roles = names(spec, "roles");
    let mut seen = Vec::new();
    for dependency in role.list("dependencies") {
        let Some(name) = dependency.value.as_str() else { continue };
        if !roles.contains(&name) {
            dependency.report(out, ViolationKind::Reference, format!("no role is named {}", Quoted(name)));
        } else if seen.contains(&name) {
            dependency.report(out, ViolationKind::Duplicate, format!("duplicate dependency {}", Quoted(name)));
        }
        seen.push(name);
    }
}

/// Reports each dependency cycle between roles once.
fn cycles(spec: &Field<'_>, out: &mut Vec<Violation>) {
    let roles = spec.list("roles");
    let waits: BTreeMap<&str, Vec<&str>> = roles
        .iter()
        .filter_map(|role| {
            Some((role.text("name")?, role.list("dependencies").iter().filter_map(|d| d.value.as_str()).collect()))
        })
        .collect();
    // Repeatedly remove roles whose dependencies have all been removed. The remaining roles contain
    // a cycle.
    let mut free: Vec<&str> = Vec::new();
    loop {
        let next = waits
            .iter()
            .find(|(name, on)| !free.contains(name) && on.iter().all(|d| free.contains(d) || !waits.contains_key(d)));
        match next {
            Some((name, _)) => free.push(name),
            None => break,
        }
    }
    let mut reported: Vec<&str> = Vec::new();
    for (start, _) in waits.iter().filter(|(name, _)| !free.contains(name)) {
        let mut path = vec![*start];
        let cycle = loop {
            let last = path[path.len() - 1];
            let on = waits.get(last).into_iter().flatten().find(|d| waits.contains_key(*d) && !free.contains(d));
            let Some(on) = on else { break Vec::new() };
            if let Some(begin) = path.iter().position(|name| name == on) {
                break path.split_off(begin);
            }
            path.push(on);
        };
        if let Some(first) = cycle.first().filter(|first| !reported.contains(first))
            && let Some(role) = roles.iter().find(|role| role.text("name") == Some(first))
        {
            let text = cycle.iter().chain([first]).copied().collect::<Vec<_>>().join(" -> ");
            let message = format!("dependency cycle: {}", mcctl_base::text::escaped(&text));
            role.report(out, ViolationKind::Cycle, message);
            reported.extend(&cycle);
        }
    }
}

fn v1alpha1_workload(role: &Field<'_>, spec: &Field<'_>, out: &mut Vec<Violation>) {
    let version = role.find(&["workload", "apiVersion"]).and_then(|v| v.value.as_str()).unwrap_or("apps/v1");
    let kind = role.find(&["workload", "kind"]).and_then(|v| v.value.as_str()).unwrap_or("StatefulSet");
    let right = match kind {
        "StatefulSet" | "Deployment" => Some("apps/v1"),
        "LeaderWorkerSet" => Some("leaderworkerset.x-k8s.io/v1"),
        "InstanceSet" => Some("workloads.x-k8s.io/v1alpha1"),
        _ => None,
    };
    if let Some(workload) = role.get("workload") {
        match right {
            None => {
                let message = "kind must be StatefulSet, Deployment, LeaderWorkerSet or InstanceSet";
                workload.report(out, ViolationKind::Value, message);
            }
            Some(right) if right != version => workload.report(
                out,
                ViolationKind::Version,
                format!("{kind} belongs to API version {right}, not {version}"),
            ),
            Some(_) => {}
        }
    }
    if kind == "InstanceSet" {
        instance_set(role, out);
    } else {
        template_or_ref(role, spec, out);
        if role.get("components").is_some() {
            role.report(out, ViolationKind::Conflict, "components requires the workload InstanceSet");
        }
    }
    if role.get("templateRef").is_some() {
        if matches!(kind, "InstanceSet" | "LeaderWorkerSet") {
            role.report(out, ViolationKind::Conflict, format!("templateRef is not supported with {kind}"));
        }
        if role.find(&["templateRef", "patch"]).is_some() {
            role.report(
                out,
                ViolationKind::Version,
                "templateRef.patch belongs to v1alpha2; in v1alpha1, use templatePatch",
            );
        }
    } else if role.get("templatePatch").is_some() {
        role.report(out, ViolationKind::Conflict, "templatePatch requires templateRef");
    }
    patches(role, &["templatePatch"], out);
    if let Some(set) = role.get("leaderWorkerSet") {
        // The controller converts an InstanceSet with this field to a leader and its workers.
        if !matches!(kind, "LeaderWorkerSet" | "InstanceSet") {
            set.report(out, ViolationKind::Conflict, "requires the workload LeaderWorkerSet");
        }
        set.check_min("size", 1, out);
        patches(&set, &["patchLeaderTemplate", "patchWorkerTemplate"], out);
    }
}
