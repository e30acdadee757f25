//! Kubernetes documents: pod templates, Services, ConfigMaps and RoleBasedGroups.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lint::model::{ConfigData, KubeService, LocatedValue, ParsedDeployment, PodSet, RoleGroup, ServicePort};
use crate::lint::read::pod::{self, PodContext};
use crate::lint::shell::effects::ScriptEffects;
use crate::lint::yaml::{YamlEntry, YamlNode, YamlValue};
use mcctl_base::check::SourceLocation;

/// Whether the node is a Kubernetes document.
pub(crate) fn is_kubernetes_document(node: &YamlNode) -> bool {
    node.get("apiVersion").is_some() && node.get("kind").is_some()
}

/// The documents in `node`: itself, or the items of a List.
pub(crate) fn documents(node: &YamlNode) -> Vec<&YamlNode> {
    match node.get("kind").and_then(YamlNode::text) {
        Some(kind) if kind.ends_with("List") && node.get("items").is_some() => {
            node.get("items").map_or(&[][..], YamlNode::items).iter().collect()
        }
        _ => vec![node],
    }
}

/// The data of a ConfigMap or Secret.
pub(crate) fn data(node: &YamlNode, file: &Arc<str>) -> Option<ConfigData> {
    let secret = match node.get("kind")?.text()? {
        "ConfigMap" => false,
        "Secret" => true,
        _ => return None,
    };
    let name = node.path(&["metadata", "name"])?.text()?.to_owned();
    let entries = node.get(if secret { "stringData" } else { "data" }).map_or(&[][..], YamlNode::entries);
    let one = |entry: &YamlEntry| {
        let YamlValue::Scalar(text) = &entry.value.value else { return None };
        let place = SourceLocation { file: file.clone(), line: text.first_line };
        Some((entry.key.clone(), (LocatedValue::new(text.text.clone(), place), text.first_line)))
    };
    Some(ConfigData { name, data: entries.iter().filter_map(one).collect(), secret })
}

/// Adds the content of the document to `deployment`.
pub(crate) fn read(
    node: &YamlNode,
    file: &Arc<str>,
    data: &[ConfigData],
    deployment: &mut ParsedDeployment,
    sink: &mut ScriptEffects,
) {
    let kind = node.get("kind").and_then(YamlNode::text).unwrap_or_default();
    let name = node.path(&["metadata", "name"]).and_then(YamlNode::text).unwrap_or("without a name");
    let spec = |keys: &[&str]| node.get("spec").and_then(|spec| spec.path(keys));
    let template = match kind {
        "Pod" => {
            let label = format!("Pod {name}");
            return add(node, label, None, None, node, file, data, deployment, sink);
        }
        "CronJob" => spec(&["jobTemplate", "spec", "template"]),
        "LeaderWorkerSet" => {
            for which in ["leaderTemplate", "workerTemplate"] {
                if let Some(template) = spec(&["leaderWorkerTemplate", which]) {
                    let label = format!("{kind} {name}, {which}");
                    add(template, label, None, None, node, file, data, deployment, sink);
                }
            }
            return;
        }
        "Service" => {
            deployment.services.push(service(node, name, file));
            return;
        }
        "RoleBasedGroup" => return group(node, name, file, data, deployment, sink),
        "RoleBasedGroupSet" => {
            if let Some(template) = spec(&["template"]) {
                group(template, name, file, data, deployment, sink);
            }
            return;
        }
        _ => spec(&["template"]),
    };
    if let Some(template) = template.filter(|t| t.path(&["spec", "containers"]).is_some()) {
        let replicas = spec(&["replicas"]);
        add(template, format!("{kind} {name}"), None, replicas, node, file, data, deployment, sink);
    }
}

#[expect(clippy::too_many_arguments, reason = "the context of a pod template, passed once")]
fn add(
    template: &YamlNode,
    name: String,
    group: Option<(String, String)>,
    replicas: Option<&YamlNode>,
    owner: &YamlNode,
    file: &Arc<str>,
    data: &[ConfigData],
    deployment: &mut ParsedDeployment,
    sink: &mut ScriptEffects,
) {
    let place = |line| SourceLocation { file: file.clone(), line };
    let mut labels: BTreeMap<String, String> = template
        .path(&["metadata", "labels"])
        .map_or(&[][..], YamlNode::entries)
        .iter()
        .filter_map(|entry| Some((entry.key.clone(), entry.value.text()?.to_owned())))
        .collect();
    if let Some((group, role)) = &group {
        for (key, value) in [
            ("rbg.workloads.x-k8s.io/group-name", group),
            ("rbg.workloads.x-k8s.io/role-name", role),
            ("rolebasedgroup.workloads.x-k8s.io/name", group),
            ("rolebasedgroup.workloads.x-k8s.io/role", role),
        ] {
            labels.insert(key.to_owned(), value.clone());
        }
    }
    let namespace = owner.path(&["metadata", "namespace"]).and_then(YamlNode::text).map(str::to_owned);
    let index = deployment.pods.len();
    let is_deployment = owner.get("kind").and_then(YamlNode::text) == Some("Deployment");
    deployment.pods.push(PodSet {
        name: name.clone(),
        labels,
        namespace,
        group,
        is_deployment,
        surge: surge(owner).filter(|_| is_deployment).map(place),
        place: place(template.line),
    });
    let replicas = replicas.and_then(|node| Some(LocatedValue::new(node.text()?, place(node.line))));
    let context = PodContext { name, pod: index, replicas, data, file };
    if let Some(spec) = template.get("spec") {
        pod::read(spec, &context, sink);
    }
}

/// The line that lets a Deployment start new pods before it stops the old ones, which is the
/// default.
fn surge(owner: &YamlNode) -> Option<u32> {
    let spec = owner.entry("spec")?;
    let Some(strategy) = spec.value.entry("strategy") else { return Some(spec.line) };
    if strategy.value.get("type").and_then(YamlNode::text) == Some("Recreate") {
        return None;
    }
    let surge = strategy.value.path(&["rollingUpdate", "maxSurge"]).and_then(YamlNode::text);
    (!matches!(surge, Some("0" | "0%"))).then_some(strategy.line)
}

fn service(node: &YamlNode, name: &str, file: &Arc<str>) -> KubeService {
    let place = |line| SourceLocation { file: file.clone(), line };
    let port = |node: Option<&YamlNode>| node.and_then(YamlNode::whole).and_then(|n| u16::try_from(n).ok());
    let selector = node.path(&["spec", "selector"]).map_or(&[][..], YamlNode::entries).iter();
    let selector = selector.filter_map(|e| Some((e.key.clone(), LocatedValue::new(e.value.text()?, place(e.line)))));
    KubeService {
        name: name.to_owned(),
        namespace: node.path(&["metadata", "namespace"]).and_then(YamlNode::text).map(str::to_owned),
        selector: selector.collect(),
        ports: node
            .path(&["spec", "ports"])
            .map_or(&[][..], YamlNode::items)
            .iter()
            .map(|p| {
                let target = p.get("targetPort").or_else(|| p.get("port"));
                let line = target.map_or(p.line, |node| node.line);
                ServicePort { port: port(p.get("port")), target: port(target), place: place(line) }
            })
            .collect(),
        headless: node.path(&["spec", "clusterIP"]).and_then(YamlNode::text) == Some("None"),
        place: place(node.line),
    }
}

/// Adds the roles of a RoleBasedGroup: v1alpha2 (a pattern per role) and v1alpha1 (a template per
/// role).
fn group(
    node: &YamlNode,
    name: &str,
    file: &Arc<str>,
    data: &[ConfigData],
    deployment: &mut ParsedDeployment,
    sink: &mut ScriptEffects,
) {
    let place = |line| SourceLocation { file: file.clone(), line };
    let roles = node.path(&["spec", "roles"]).map_or(&[][..], YamlNode::items);
    let templates = node.path(&["spec", "roleTemplates"]).map_or(&[][..], YamlNode::items);
    let named = |role: &YamlNode| Some(LocatedValue::new(role.get("name")?.text()?, place(role.line)));
    let located: Vec<LocatedValue> = roles.iter().filter_map(named).collect();
    deployment.groups.push(RoleGroup { name: name.to_owned(), roles: located, place: place(node.line) });
    for role in roles {
        let Some(role_name) = role.get("name").and_then(YamlNode::text) else { continue };
        let replicas = role.get("replicas");
        let mut put = |template: &YamlNode, part: &str| {
            let label = format!("role {role_name} of group {name}{part}");
            let both = Some((name.to_owned(), role_name.to_owned()));
            add(template, label, both, replicas, node, file, data, deployment, sink);
        };
        for pattern in ["standalonePattern", "leaderWorkerPattern"].iter().filter_map(|key| role.get(key)) {
            let Some(base) = template_of(pattern, templates) else { continue };
            match (pattern.get("leaderTemplatePatch"), pattern.get("workerTemplatePatch")) {
                (None, None) => put(&base, ""),
                (leader, worker) => {
                    for (patch, part) in [(leader, ", leader"), (worker, ", worker")] {
                        put(&patch.map_or_else(|| base.clone(), |patch| merged(&base, patch, 0)), part);
                    }
                }
            }
        }
        // In v1alpha1 the components belong to the role.
        let components = role.path(&["customComponentsPattern", "components"]).or_else(|| role.get("components"));
        for component in components.map_or(&[][..], YamlNode::items) {
            if let Some(template) = template_of(component, templates) {
                let part = component.get("name").and_then(YamlNode::text).unwrap_or_default();
                put(&template, &format!(", component {part}"));
            }
        }
        if let Some(template) = template_of(role, templates) {
            let patch = |key| role.path(&["leaderWorkerSet", key]);
            match (patch("patchLeaderTemplate"), patch("patchWorkerTemplate")) {
                (None, None) => put(&template, ""),
                (leader, worker) => {
                    for (patch, part) in [(leader, ", leader"), (worker, ", worker")] {
                        put(&patch.map_or_else(|| template.clone(), |patch| merged(&template, patch, 0)), part);
                    }
                }
            }
        }
    }
}

fn template_of(holder: &YamlNode, templates: &[YamlNode]) -> Option<YamlNode> {
    if let Some(template) = holder.get("template") {
        return Some(template.clone());
    }
    let reference = holder.get("templateRef")?;
    let name = reference.get("name")?.text()?;
    let base = templates.iter().find(|t| t.get("name").and_then(YamlNode::text) == Some(name))?.get("template")?;
    // In v1alpha1 the patch is next to the reference.
    let patch = reference.get("patch").or_else(|| holder.get("templatePatch"));
    Some(patch.map_or_else(|| base.clone(), |patch| merged(base, patch, 0)))
}

/// Limit on the depth to which a patch is merged.
const MERGE_DEPTH_MAX: usize = 32;

/// A Kubernetes strategic merge: mappings merge by key, lists merge by item name, and everything
/// else is replaced.
fn merged(base: &YamlNode, patch: &YamlNode, depth: usize) -> YamlNode {
    match (&base.value, &patch.value) {
        (YamlValue::Map(old), YamlValue::Map(new)) if depth < MERGE_DEPTH_MAX => {
            let mut entries: Vec<YamlEntry> = old.clone();
            for entry in new {
                match entries.iter_mut().find(|known| known.key == entry.key) {
                    Some(known) if entry.value.value == YamlValue::Null => known.value = entry.value.clone(),
                    Some(known) => {
                        known.value = merged(&known.value, &entry.value, depth + 1);
                        known.line = entry.line;
                    }
                    None => entries.push(entry.clone()),
                }
            }
            YamlNode { line: base.line, value: YamlValue::Map(entries) }
        }
        (YamlValue::List(old), YamlValue::List(new)) if depth < MERGE_DEPTH_MAX => {
            let key = ["name", "mountPath", "containerPort"]
                .into_iter()
                .find(|key| !new.is_empty() && new.iter().chain(old).all(|item| item.get(key).is_some()));
            let Some(key) = key else { return patch.clone() };
            let mut items = old.clone();
            for item in new {
                match items.iter_mut().find(|known| known.get(key).map(|n| n.text()) == item.get(key).map(|n| n.text()))
                {
                    Some(known) => *known = merged(known, item, depth + 1),
                    None => items.push(item.clone()),
                }
            }
            YamlNode { line: base.line, value: YamlValue::List(items) }
        }
        _ => patch.clone(),
    }
}
