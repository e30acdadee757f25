//! Kubernetes documents: what holds pods, Services, ConfigMaps, RoleBasedGroups.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::check::Place;
use crate::engine::lint::node::{Entry, Node, Value};
use crate::engine::lint::read::pod::{self, Around};
use crate::engine::lint::scene::{ConfigData, Pods, RoleGroup, Said, Scene, Service, ServicePort};

/// Is it a document of Kubernetes?
pub fn is_one(node: &Node) -> bool {
    node.get("apiVersion").is_some() && node.get("kind").is_some()
}

/// The documents in `node`: itself, or the items of a List.
pub fn documents(node: &Node) -> Vec<&Node> {
    match node.get("kind").and_then(Node::text) {
        Some(kind) if kind.ends_with("List") && node.get("items").is_some() => {
            node.get("items").map_or(&[][..], Node::items).iter().collect()
        }
        _ => vec![node],
    }
}

/// The data of a ConfigMap or Secret.
pub fn data(node: &Node, file: &Arc<str>) -> Option<ConfigData> {
    let secret = match node.get("kind")?.text()? {
        "ConfigMap" => false,
        "Secret" => true,
        _ => return None,
    };
    let name = node.path(&["metadata", "name"])?.text()?.to_owned();
    let entries = node.get(if secret { "stringData" } else { "data" }).map_or(&[][..], Node::entries);
    let one = |entry: &Entry| {
        let Value::Scalar(text) = &entry.value.value else { return None };
        let place = Place { file: file.clone(), line: text.first_line };
        Some((entry.key.clone(), (Said::new(text.text.clone(), place), text.first_line)))
    };
    Some(ConfigData { name, data: entries.iter().filter_map(one).collect(), secret })
}

/// Add what the document says to `scene`.
pub fn read(node: &Node, file: &Arc<str>, data: &[ConfigData], scene: &mut Scene) {
    let kind = node.get("kind").and_then(Node::text).unwrap_or_default();
    let name = node.path(&["metadata", "name"]).and_then(Node::text).unwrap_or("without a name");
    let spec = |keys: &[&str]| node.get("spec").and_then(|spec| spec.path(keys));
    let template = match kind {
        "Pod" => {
            let called = format!("Pod {name}");
            return add(node, called, None, None, node, file, data, scene);
        }
        "CronJob" => spec(&["jobTemplate", "spec", "template"]),
        "LeaderWorkerSet" => {
            for which in ["leaderTemplate", "workerTemplate"] {
                if let Some(template) = spec(&["leaderWorkerTemplate", which]) {
                    let called = format!("{kind} {name}, {which}");
                    add(template, called, None, None, node, file, data, scene);
                }
            }
            return;
        }
        "Service" => {
            scene.services.push(service(node, name, file));
            return;
        }
        "RoleBasedGroup" => return group(node, name, file, data, scene),
        "RoleBasedGroupSet" => {
            if let Some(template) = spec(&["template"]) {
                group(template, name, file, data, scene);
            }
            return;
        }
        _ => spec(&["template"]),
    };
    if let Some(template) = template.filter(|t| t.path(&["spec", "containers"]).is_some()) {
        let replicas = spec(&["replicas"]);
        add(template, format!("{kind} {name}"), None, replicas, node, file, data, scene);
    }
}

#[expect(clippy::too_many_arguments, reason = "what a pod template has around it, passed on once")]
fn add(
    template: &Node,
    name: String,
    group: Option<(String, String)>,
    replicas: Option<&Node>,
    owner: &Node,
    file: &Arc<str>,
    data: &[ConfigData],
    scene: &mut Scene,
) {
    let place = |line| Place { file: file.clone(), line };
    let mut labels: BTreeMap<String, String> = template
        .path(&["metadata", "labels"])
        .map_or(&[][..], Node::entries)
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
    let namespace = owner.path(&["metadata", "namespace"]).and_then(Node::text).map(str::to_owned);
    let index = scene.pods.len();
    scene.pods.push(Pods { name: name.clone(), labels, namespace, group, place: place(template.line) });
    let replicas = replicas.and_then(|node| Some(Said::new(node.text()?, place(node.line))));
    let around = Around { name, pod: index, replicas, data, file };
    if let Some(spec) = template.get("spec") {
        pod::read(spec, &around, &mut scene.processes);
    }
}

fn service(node: &Node, name: &str, file: &Arc<str>) -> Service {
    let place = |line| Place { file: file.clone(), line };
    let port = |node: Option<&Node>| node.and_then(Node::whole).and_then(|n| u16::try_from(n).ok());
    let selector = node.path(&["spec", "selector"]).map_or(&[][..], Node::entries).iter();
    let selector = selector.filter_map(|e| Some((e.key.clone(), Said::new(e.value.text()?, place(e.line)))));
    Service {
        name: name.to_owned(),
        namespace: node.path(&["metadata", "namespace"]).and_then(Node::text).map(str::to_owned),
        selector: selector.collect(),
        ports: node
            .path(&["spec", "ports"])
            .map_or(&[][..], Node::items)
            .iter()
            .map(|p| {
                let target = p.get("targetPort").or_else(|| p.get("port"));
                let line = target.map_or(p.line, |node| node.line);
                ServicePort { port: port(p.get("port")), target: port(target), place: place(line) }
            })
            .collect(),
        headless: node.path(&["spec", "clusterIP"]).and_then(Node::text) == Some("None"),
        place: place(node.line),
    }
}

/// The roles of a RoleBasedGroup, of v1alpha2 (a pattern in each role) and of v1alpha1 (a template in each role).
fn group(node: &Node, name: &str, file: &Arc<str>, data: &[ConfigData], scene: &mut Scene) {
    let place = |line| Place { file: file.clone(), line };
    let roles = node.path(&["spec", "roles"]).map_or(&[][..], Node::items);
    let templates = node.path(&["spec", "roleTemplates"]).map_or(&[][..], Node::items);
    let named = |role: &Node| Some(Said::new(role.get("name")?.text()?, place(role.line)));
    let said: Vec<Said> = roles.iter().filter_map(named).collect();
    scene.groups.push(RoleGroup { name: name.to_owned(), roles: said, place: place(node.line) });
    for role in roles {
        let Some(role_name) = role.get("name").and_then(Node::text) else { continue };
        let replicas = role.get("replicas");
        let mut put = |template: &Node, part: &str| {
            let called = format!("role {role_name} of group {name}{part}");
            let both = Some((name.to_owned(), role_name.to_owned()));
            add(template, called, both, replicas, node, file, data, scene);
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
        for component in role.path(&["customComponentsPattern", "components"]).map_or(&[][..], Node::items) {
            if let Some(template) = template_of(component, templates) {
                let part = component.get("name").and_then(Node::text).unwrap_or_default();
                put(&template, &format!(", component {part}"));
            }
        }
        if let Some(template) = template_of(role, templates) {
            put(&template, "");
        }
    }
}

fn template_of(holder: &Node, templates: &[Node]) -> Option<Node> {
    if let Some(template) = holder.get("template") {
        return Some(template.clone());
    }
    let reference = holder.get("templateRef")?;
    let name = reference.get("name")?.text()?;
    let base = templates.iter().find(|t| t.get("name").and_then(Node::text) == Some(name))?.get("template")?;
    // v1alpha1 has the patch beside the reference.
    let patch = reference.get("patch").or_else(|| holder.get("templatePatch"));
    Some(patch.map_or_else(|| base.clone(), |patch| merged(base, patch, 0)))
}

/// The deepest place at which a patch is merged.
const MERGE_DEPTH_MAX: usize = 32;

/// A strategic merge of Kubernetes: mappings are merged, lists of named things by their names, all else is replaced.
fn merged(base: &Node, patch: &Node, depth: usize) -> Node {
    match (&base.value, &patch.value) {
        (Value::Map(old), Value::Map(new)) if depth < MERGE_DEPTH_MAX => {
            let mut entries: Vec<Entry> = old.clone();
            for entry in new {
                match entries.iter_mut().find(|known| known.key == entry.key) {
                    Some(known) if entry.value.value == Value::Null => known.value = entry.value.clone(),
                    Some(known) => {
                        known.value = merged(&known.value, &entry.value, depth + 1);
                        known.line = entry.line;
                    }
                    None => entries.push(entry.clone()),
                }
            }
            Node { line: base.line, value: Value::Map(entries) }
        }
        (Value::List(old), Value::List(new)) if depth < MERGE_DEPTH_MAX => {
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
            Node { line: base.line, value: Value::List(items) }
        }
        _ => patch.clone(),
    }
}
