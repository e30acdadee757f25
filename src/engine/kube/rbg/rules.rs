//! The rules of a group: references, names, patterns, roll-outs.

use std::collections::BTreeMap;

use super::{V1ALPHA2, WORKLOAD_ANNOTATION, service_name, workload_name};
use crate::engine::base::text::Quoted;
use crate::engine::kube::Complaint;
use crate::engine::kube::rule::{Spot, count_or_percent, not_both_zero, stateful_name};
use crate::engine::kube::text::{self, LABEL_MAX};

const PATTERNS: &[&str] = &["standalonePattern", "leaderWorkerPattern", "customComponentsPattern"];
const RESTART: &[&str] = &["None", "RecreateRoleInstanceOnPodRestart"];
/// The workload of v1alpha2, as its annotation spells it.
const ROLE_INSTANCE_SET: &str = "workloads.x-k8s.io/v1alpha2/RoleInstanceSet";

/// The rules of `workloads.x-k8s.io/v1alpha2`.
pub fn rules_v1alpha2(top: &Spot<'_>, out: &mut Vec<Complaint>) {
    let Some(spec) = group(top, out) else { return };
    for role in spec.list("roles") {
        role.one_of("podManagementPolicy", &["Parallel", "OrderedReady"], out);
        let patterns: Vec<&str> = PATTERNS.iter().copied().filter(|p| role.get(p).is_some()).collect();
        match patterns.as_slice() {
            [_] => {}
            [] if role.get("template").is_some() || role.get("templateRef").is_some() => {
                let what = format!("a template of a role is v1alpha1's; in {V1ALPHA2} it stands in standalonePattern");
                role.complain(out, what);
            }
            _ => role.exactly_one(PATTERNS, out),
        }
        if let Some(pattern) = role.get("standalonePattern") {
            template_or_ref(&pattern, &spec, out);
        }
        if let Some(pattern) = role.get("leaderWorkerPattern") {
            template_or_ref(&pattern, &spec, out);
            leader_worker(&role, &pattern, out);
            restarts(&pattern, out);
        }
        if let Some(pattern) = role.get("customComponentsPattern") {
            components(&pattern, out);
            restarts(&pattern, out);
        }
        if let Some(kind) = role.get("annotations").and_then(|a| a.get(WORKLOAD_ANNOTATION))
            && kind.value.as_str() != Some(ROLE_INSTANCE_SET)
        {
            kind.complain(
                out,
                "refused unless the cluster enables deprecated workload types; leave the annotation away",
            );
        }
        if let Some(rolling) = rollout(&role, out) {
            rolling.one_of("type", &["RecreatePod", "InPlaceIfPossible", "InPlaceOnly"], out);
        }
    }
}

/// The rules of `workloads.x-k8s.io/v1alpha1`.
pub fn rules_v1alpha1(top: &Spot<'_>, out: &mut Vec<Complaint>) {
    let Some(spec) = group(top, out) else { return };
    let group = top.find(&["metadata", "name"]).and_then(|name| name.value.as_str()).unwrap_or_default();
    for role in spec.list("roles") {
        if let Some(pattern) = PATTERNS.iter().find(|p| role.get(p).is_some()) {
            role.complain(
                out,
                format!("{pattern} is v1alpha2's; here a role has template, or leaderWorkerSet or components"),
            );
        }
        role.one_of("restartPolicy", RESTART, out);
        rollout(&role, out);
        v1alpha1_workload(&role, &spec, out);
        let stateful = role.find(&["workload", "kind"]).is_none_or(|kind| kind.value == "StatefulSet");
        let name = serde_json::Value::from(workload_name(group, role.text("name").unwrap_or_default()));
        if stateful {
            stateful_name(&Spot { at: role.at.key("name"), value: &name }, out);
        }
    }
    spec.unique("coordination", "name", out);
    let roles = names(&spec, "roles");
    for together in spec.list("coordination") {
        for role in together.list("roles").iter().filter(|r| r.value.as_str().is_some_and(|r| !roles.contains(&r))) {
            role.complain(out, "no role of this name");
        }
        for (part, keys) in
            [("rollingUpdate", &["maxSkew", "maxUnavailable", "partition"][..]), ("scaling", &["maxSkew"])]
        {
            let Some(part) = together.find(&["strategy", part]) else { continue };
            for key in keys {
                part.held(key, |t| text::percent(t).is_none().then(|| "not a percentage: 0% to 100%".to_owned()), out);
            }
            part.one_of("progression", &["OrderScheduled", "OrderReady"], out);
        }
    }
}

/// What the versions share. The spec, if there is one.
fn group<'v>(top: &Spot<'v>, out: &mut Vec<Complaint>) -> Option<Spot<'v>> {
    let Some(spec) = top.get("spec") else {
        top.complain(out, "spec is missing");
        return None;
    };
    if spec.list("roles").is_empty() {
        spec.complain(out, "roles is missing or empty");
    }
    spec.unique("roles", "name", out);
    spec.unique("roleTemplates", "name", out);
    for shared in spec.list("roleTemplates") {
        named(&shared, out);
        if shared.get("template").is_none() {
            shared.complain(out, "template is missing");
        }
        template_meta(&shared, out);
    }
    let group = top.find(&["metadata", "name"]).and_then(|name| name.value.as_str()).unwrap_or_default();
    let mut services: BTreeMap<String, &str> = BTreeMap::new();
    for role in spec.list("roles") {
        named(&role, out);
        role.at_least("replicas", 0, out);
        role.at_least("minReadySeconds", 0, out);
        role.unique("servicePorts", "name", out);
        dependencies(&role, &spec, out);
        for key in ["labels", "annotations"] {
            for (name, entry) in role.entries(key) {
                if let Some(what) = text::qualified_key(name) {
                    entry.complain(out, what);
                }
            }
        }
        for (_, label) in role.entries("labels") {
            if let Some(what) = label.value.as_str().and_then(text::label_value) {
                label.complain(out, what);
            }
        }
        for runtime in role.list("engineRuntimes") {
            if runtime.text("profileName").is_none_or(str::is_empty) {
                runtime.complain(out, "profileName is missing");
            }
        }
        let Some(name) = role.text("name").filter(|name| !name.is_empty()) else { continue };
        let last = role.number("replicas").unwrap_or(1).max(1) - 1;
        let pod = format!("{}-{last}", workload_name(group, name));
        if pod.len() > LABEL_MAX {
            role.complain(
                out,
                format!("its pods would be named {pod}: {} characters, and {LABEL_MAX} is the most", pod.len()),
            );
        } else if let Some(other) = services.insert(service_name(group, name), name).filter(|other| *other != name) {
            let what = format!("its service is cut to {}, as is that of {}", service_name(group, name), Quoted(other));
            role.complain(out, what);
        }
    }
    cycles(&spec, out);
    Some(spec)
}

fn named(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    match spot.text("name") {
        None | Some("") => spot.complain(out, "name is missing"),
        Some(_) => spot.held("name", text::dns_label, out),
    }
}

fn names<'v>(spec: &Spot<'v>, key: &str) -> Vec<&'v str> {
    spec.list(key).iter().filter_map(|item| item.text("name")).collect()
}

/// Metadata of a template: the schema drops everything else without a word.
fn template_meta(parent: &Spot<'_>, out: &mut Vec<Complaint>) {
    let Some(meta) = parent.find(&["template", "metadata"]) else { return };
    for key in meta.keys() {
        if !["annotations", "finalizers", "labels", "name", "namespace"].contains(&key)
            && let Some(spot) = meta.get(key)
        {
            spot.complain(out, "dropped: metadata of a template is labels and annotations");
        }
    }
}

fn template_or_ref(parent: &Spot<'_>, spec: &Spot<'_>, out: &mut Vec<Complaint>) {
    parent.exactly_one(&["template", "templateRef"], out);
    template_meta(parent, out);
    if let Some(shared) = parent.get("templateRef") {
        match shared.text("name") {
            None | Some("") => shared.complain(out, "name is missing"),
            Some(name) if !names(spec, "roleTemplates").contains(&name) => {
                shared.complain(out, format!("no roleTemplate is named {}", Quoted(name)));
            }
            Some(_) => {}
        }
        patches(&shared, &["patch"], out);
    }
}

/// Patches are free in form, but maps.
fn patches(parent: &Spot<'_>, keys: &[&str], out: &mut Vec<Complaint>) {
    for patch in keys.iter().filter_map(|key| parent.get(key)).filter(|patch| !patch.value.is_object()) {
        patch.complain(out, "a patch is a map");
    }
}

fn leader_worker(role: &Spot<'_>, pattern: &Spot<'_>, out: &mut Vec<Complaint>) {
    pattern.at_least("size", 1, out);
    patches(pattern, &["leaderTemplatePatch", "workerTemplatePatch"], out);
    pattern.one_of("sharedServiceSelection", &["All", "LeaderOnly"], out);
    let other = role.get("annotations").and_then(|a| a.get(WORKLOAD_ANNOTATION));
    let other = other.is_some_and(|kind| kind.value.as_str() != Some(ROLE_INSTANCE_SET));
    if other && pattern.text("sharedServiceSelection") == Some("LeaderOnly") {
        pattern.complain(out, "sharedServiceSelection LeaderOnly is for RoleInstanceSet alone");
    }
}

/// When a pod restarts, what becomes of its replica.
fn restarts(pattern: &Spot<'_>, out: &mut Vec<Complaint>) {
    if let Some(old) = pattern.get("restartPolicy") {
        pattern.one_of("restartPolicy", RESTART, out);
        old.complain(out, "deprecated; restartPolicyConfig.type says it");
    }
    if let Some(config) = pattern.get("restartPolicyConfig") {
        config.one_of("type", RESTART, out);
        config.at_least("baseDelaySeconds", 0, out);
        config.at_least("maxDelaySeconds", 0, out);
        let (base, most) =
            (config.number("baseDelaySeconds").unwrap_or(30), config.number("maxDelaySeconds").unwrap_or(600));
        if most < base {
            config.complain(out, format!("maxDelaySeconds {most} is less than baseDelaySeconds {base}"));
        }
    }
}

fn components(pattern: &Spot<'_>, out: &mut Vec<Complaint>) {
    let list = pattern.list("components");
    if list.is_empty() {
        pattern.complain(out, "components is missing or empty");
    }
    pattern.unique("components", "name", out);
    for component in list {
        named(&component, out);
        component.at_least("size", 0, out);
        component.held("serviceName", text::service_label, out);
        if component.get("template").is_none() {
            component.complain(out, "template is missing");
        }
        template_meta(&component, out);
    }
}

fn rollout<'v>(role: &Spot<'v>, out: &mut Vec<Complaint>) -> Option<Spot<'v>> {
    let strategy = role.get("rolloutStrategy")?;
    strategy.one_of("type", &["RollingUpdate"], out);
    let rolling = strategy.get("rollingUpdate")?;
    for key in ["maxUnavailable", "maxSurge", "partition"] {
        count_or_percent(&rolling, key, out);
    }
    not_both_zero(&rolling, "1", "0", out);
    let replicas = role.number("replicas").unwrap_or(1);
    if let Some(partition) = rolling.number("partition").filter(|p| *p > 0 && *p >= replicas) {
        rolling.complain(out, format!("partition {partition} of {replicas} replicas: no pod would ever change"));
    }
    Some(rolling)
}

fn dependencies(role: &Spot<'_>, spec: &Spot<'_>, out: &mut Vec<Complaint>) {
    let roles = names(spec, "roles");
    let mut seen = Vec::new();
    for dependency in role.list("dependencies") {
        let Some(name) = dependency.value.as_str() else { continue };
        if !roles.contains(&name) {
            dependency.complain(out, format!("no role is named {}", Quoted(name)));
        } else if seen.contains(&name) {
            dependency.complain(out, format!("{} is there twice", Quoted(name)));
        }
        seen.push(name);
    }
}

/// Roles that wait for each other in a ring, each ring once.
fn cycles(spec: &Spot<'_>, out: &mut Vec<Complaint>) {
    let roles = spec.list("roles");
    let waits: BTreeMap<&str, Vec<&str>> = roles
        .iter()
        .filter_map(|role| {
            Some((role.text("name")?, role.list("dependencies").iter().filter_map(|d| d.value.as_str()).collect()))
        })
        .collect();
    // What waits for nothing, or for what is free already, is free; what is left has a ring in it.
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
    let mut told: Vec<&str> = Vec::new();
    for (start, _) in waits.iter().filter(|(name, _)| !free.contains(name)) {
        let mut way = vec![*start];
        let ring = loop {
            let last = way[way.len() - 1];
            let on = waits.get(last).into_iter().flatten().find(|d| waits.contains_key(*d) && !free.contains(d));
            let Some(on) = on else { break Vec::new() };
            if let Some(begin) = way.iter().position(|name| name == on) {
                break way.split_off(begin);
            }
            way.push(on);
        };
        if let Some(first) = ring.first().filter(|first| !told.contains(first))
            && let Some(role) = roles.iter().find(|role| role.text("name") == Some(first))
        {
            let text = ring.iter().chain([first]).copied().collect::<Vec<_>>().join(" -> ");
            role.complain(out, format!("dependencies go round: {}", crate::engine::base::text::escaped(&text)));
            told.extend(&ring);
        }
    }
}

fn v1alpha1_workload(role: &Spot<'_>, spec: &Spot<'_>, out: &mut Vec<Complaint>) {
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
            None => workload.complain(out, "kind is none of StatefulSet, Deployment, LeaderWorkerSet, InstanceSet"),
            Some(right) if right != version => {
                workload.complain(out, format!("{kind} is of {right}, not of {version}"))
            }
            Some(_) => {}
        }
    }
    if kind == "InstanceSet" {
        components(role, out);
    } else {
        template_or_ref(role, spec, out);
        if role.get("components").is_some() {
            role.complain(out, "components belong to the workload InstanceSet");
        }
    }
    if role.get("templateRef").is_some() {
        if matches!(kind, "InstanceSet" | "LeaderWorkerSet") {
            role.complain(out, format!("templateRef is not for a {kind}"));
        }
        if role.find(&["templateRef", "patch"]).is_some() {
            role.complain(out, "templateRef.patch is v1alpha2's; here it is templatePatch");
        }
    } else if role.get("templatePatch").is_some() {
        role.complain(out, "templatePatch belongs to templateRef");
    }
    patches(role, &["templatePatch"], out);
    if let Some(set) = role.get("leaderWorkerSet") {
        if kind != "LeaderWorkerSet" {
            set.complain(out, "belongs to the workload LeaderWorkerSet");
        }
        set.at_least("size", 1, out);
        patches(&set, &["patchLeaderTemplate", "patchWorkerTemplate"], out);
    }
}
