//! Rules that types cannot express: required fields, syntax, and consistency between values.
//!
//! [`structure`] is called for every visited struct with the name of its type, wherever it occurs:
//! a container in a Deployment and a container in a role of a group are subject to the same rules.
//! Values of the wrong type have already been reported and are skipped here.

mod container;
mod meta;
mod pod;
mod resources;
mod service;
mod workload;

use serde_json::Value;

use super::path::FieldPath;
use super::{Violation, ViolationKind, grammar};

pub(super) use workload::{count_or_percent, not_both_zero, stateful_name};

/// A field of a document: its path and value.
#[derive(Clone, Debug)]
pub struct Field<'v> {
    pub at: FieldPath,
    pub value: &'v Value,
}

impl<'v> Field<'v> {
    /// The child at `key`. Null counts as missing, as in Kubernetes.
    pub fn get(&self, key: &str) -> Option<Field<'v>> {
        let value = self.value.get(key).filter(|v| !v.is_null())?;
        Some(Field { at: self.at.key(key), value })
    }

    /// The descendant at the path `keys`.
    pub fn find(&self, keys: &[&str]) -> Option<Field<'v>> {
        keys.iter().try_fold(self.clone(), |target, key| target.get(key))
    }

    /// The items of the list at `key`, or none.
    pub fn list(&self, key: &str) -> Vec<Field<'v>> {
        let at = self.at.key(key);
        let items = self.value.get(key).and_then(Value::as_array);
        items.into_iter().flatten().enumerate().map(|(i, value)| Field { at: at.index(i), value }).collect()
    }

    /// The entries of the object at `key`, or none.
    pub fn entries(&self, key: &str) -> Vec<(&'v str, Field<'v>)> {
        let at = self.at.key(key);
        let map = self.value.get(key).and_then(Value::as_object);
        map.into_iter().flatten().map(|(k, value)| (k.as_str(), Field { at: at.key(k), value })).collect()
    }

    /// The string at `key`.
    pub fn text(&self, key: &str) -> Option<&'v str> {
        self.value.get(key).and_then(Value::as_str)
    }

    /// The integer at `key`.
    pub fn number(&self, key: &str) -> Option<i64> {
        self.value.get(key).and_then(Value::as_i64)
    }

    /// The keys of this object whose values are not null.
    pub fn keys(&self) -> Vec<&'v str> {
        let map = self.value.as_object();
        map.into_iter().flatten().filter(|(_, v)| !v.is_null()).map(|(k, _)| k.as_str()).collect()
    }

    /// Reports a violation at this field.
    pub fn report(&self, out: &mut Vec<Violation>, kind: ViolationKind, message: impl Into<String>) {
        out.push(Violation::new(&self.at, kind, message));
    }

    /// Reports that the field `key` is missing here.
    pub fn missing(&self, key: &str, out: &mut Vec<Violation>) {
        self.report(out, ViolationKind::Missing, format!("{key} is missing"));
    }

    /// Checks the syntax of the string at `key` with `grammar`.
    pub fn check_text(
        &self,
        key: &str,
        grammar: impl Fn(&str) -> Option<grammar::GrammarError>,
        out: &mut Vec<Violation>,
    ) {
        if let Some(error) = self.text(key).and_then(grammar) {
            out.push(Violation::new(&self.at.key(key), ViolationKind::Syntax, error.to_string()));
        }
    }

    /// Checks that the string at `key` is one of `allowed`.
    pub fn check_one_of(&self, key: &str, allowed: &[&str], out: &mut Vec<Violation>) {
        if let Some(found) = self.text(key).filter(|found| !allowed.contains(found)) {
            let message = format!("{} is not one of {}", super::Quoted(found), allowed.join(", "));
            out.push(Violation::new(&self.at.key(key), ViolationKind::Value, message));
        }
    }

    /// Checks that the number at `key` is at least `least`.
    pub fn check_min(&self, key: &str, least: i64, out: &mut Vec<Violation>) {
        if let Some(found) = self.number(key).filter(|found| *found < least) {
            let message = format!("{found} is below the minimum of {least}");
            out.push(Violation::new(&self.at.key(key), ViolationKind::Range, message));
        }
    }

    /// Checks that exactly one of `keys` is set.
    pub fn check_exactly_one(&self, keys: &[&str], out: &mut Vec<Violation>) {
        let found: Vec<&str> = keys.iter().copied().filter(|key| self.get(key).is_some()).collect();
        match found.as_slice() {
            [_] => {}
            [] => self.report(out, ViolationKind::Missing, format!("one of {} is required", keys.join(", "))),
            many => {
                self.report(out, ViolationKind::Conflict, format!("{} are mutually exclusive", many.join(" and ")));
            }
        }
    }

    /// Checks that `field` is unique among the items of the list at `key`.
    pub fn check_unique(&self, key: &str, field: &str, out: &mut Vec<Violation>) {
        let mut seen = Vec::new();
        for item in self.list(key) {
            let Some(name) = item.text(field) else { continue };
            if seen.contains(&name) {
                item.report(out, ViolationKind::Duplicate, format!("duplicate {field} {}", super::Quoted(name)));
            }
            seen.push(name);
        }
    }
}

/// Applies the rules for a whole document.
pub(super) fn document(top: &Field<'_>, out: &mut Vec<Violation>) {
    if top.get("metadata").is_none() {
        return top.missing("metadata", out);
    }
    meta::name(top, out);
    match top.text("kind") {
        Some("ConfigMap" | "Secret") => meta::data(top, out),
        Some("StatefulSet") => {
            if let Some(name) = top.find(&["metadata", "name"]) {
                workload::stateful_name(&name, out);
            }
        }
        _ => {}
    }
}

/// Applies the rules for the struct `name` at `target` in `whole`.
pub(super) fn structure(name: &str, target: &Field<'_>, whole: &Value, out: &mut Vec<Violation>) {
    required(name, target, out);
    match name {
        "ObjectMeta" => meta::labels(target, out),
        "LabelSelector" => meta::selector(target, out),
        "LabelSelectorRequirement" => meta::requirement(target, &["In", "NotIn", "Exists", "DoesNotExist"], out),
        "NodeSelectorRequirement" => {
            meta::requirement(target, &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"], out);
        }
        "Quantity" => resources::quantity(target, out),
        "ResourceRequirements" => resources::requirements(target, out),
        "PodSpec" => pod::spec(target, whole, out),
        "Volume" => pod::volume(target, out),
        "EmptyDirVolumeSource" => {
            let medium = |m: &str| !(m.is_empty() || m == "Memory" || m.starts_with("HugePages"));
            target.check_text("medium", |m| medium(m).then_some(grammar::GrammarError::Medium), out);
        }
        "Toleration" => {
            target.check_one_of("operator", &["Exists", "Equal"], out);
            target.check_one_of("effect", &["", "NoSchedule", "PreferNoSchedule", "NoExecute"], out);
        }
        "TopologySpreadConstraint" => {
            target.check_min("maxSkew", 1, out);
            target.check_one_of("whenUnsatisfiable", &["DoNotSchedule", "ScheduleAnyway"], out);
        }
        "WeightedPodAffinityTerm" | "PreferredSchedulingTerm"
            if target.number("weight").is_some_and(|w| !(1..=100).contains(&w)) =>
        {
            target.report(out, ViolationKind::Range, "weight must be from 1 to 100");
        }
        "Container" => container::container(target, out),
        "EnvVar" => container::env_var(target, out),
        "EnvVarSource" => target
            .check_exactly_one(&["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"], out),
        "ObjectFieldSelector" => container::field_path(target, out),
        "ContainerPort" => container::port(target, out),
        "VolumeMount" => container::mount(target, out),
        "Probe" => container::probe(target, out),
        "LifecycleHandler" => target.check_exactly_one(&["exec", "httpGet", "sleep", "tcpSocket"], out),
        "HTTPGetAction" | "TCPSocketAction" => container::target_port(target, whole, out),
        "GRPCAction" => port_number(target, "port", out),
        "ExecAction" if target.list("command").is_empty() => target.missing("command", out),
        "ServiceSpec" => service::spec(target, out),
        "ServicePort" => service::port(target, out),
        "DeploymentSpec" => workload::deployment(target, out),
        "StatefulSetSpec" => workload::stateful_set(target, out),
        "DaemonSetSpec" => workload::daemon_set(target, out),
        "ReplicaSetSpec" => workload::selected(target, out),
        "JobSpec" => workload::job(target, out),
        "PodDisruptionBudgetSpec" => workload::disruption_budget(target, out),
        _ => {}
    }
}

/// Checks the port number at `key`.
fn port_number(target: &Field<'_>, key: &str, out: &mut Vec<Violation>) {
    if let Some(port) = target.number(key).filter(|port| !(1..=65535).contains(port)) {
        let message = format!("{port} is not a valid port (1 to 65535)");
        out.push(Violation::new(&target.at.key(key), ViolationKind::Range, message));
    }
}

/// Fields that Kubernetes requires, but k8s-openapi replaces with a default if they are missing.
const REQUIRED: &[(&str, &[&str])] = &[
    ("ConfigMapKeySelector", &["name", "key"]),
    ("Container", &["name"]),
    ("ContainerPort", &["containerPort"]),
    ("CronJobSpec", &["schedule", "jobTemplate"]),
    ("DaemonSet", &["spec"]),
    ("DaemonSetSpec", &["selector", "template"]),
    ("Deployment", &["spec"]),
    ("DeploymentSpec", &["selector", "template"]),
    ("EnvVar", &["name"]),
    ("GRPCAction", &["port"]),
    ("HTTPGetAction", &["port"]),
    ("HTTPHeader", &["name", "value"]),
    ("HostPathVolumeSource", &["path"]),
    ("Job", &["spec"]),
    ("JobSpec", &["template"]),
    ("KeyToPath", &["key", "path"]),
    ("LabelSelectorRequirement", &["key", "operator"]),
    ("LocalObjectReference", &["name"]),
    ("NFSVolumeSource", &["server", "path"]),
    ("NodeSelector", &["nodeSelectorTerms"]),
    ("NodeSelectorRequirement", &["key", "operator"]),
    ("ObjectFieldSelector", &["fieldPath"]),
    ("PersistentVolumeClaimVolumeSource", &["claimName"]),
    ("PodAffinityTerm", &["topologyKey"]),
    ("PodSpec", &["containers"]),
    ("PodTemplateSpec", &["spec"]),
    ("PreferredSchedulingTerm", &["weight", "preference"]),
    ("ReplicaSetSpec", &["selector", "template"]),
    ("ResourceFieldSelector", &["resource"]),
    ("SecretKeySelector", &["name", "key"]),
    ("Service", &["spec"]),
    ("ServicePort", &["port"]),
    ("SleepAction", &["seconds"]),
    ("StatefulSet", &["spec"]),
    ("StatefulSetSpec", &["selector", "template"]),
    ("TCPSocketAction", &["port"]),
    ("TopologySpreadConstraint", &["maxSkew", "topologyKey", "whenUnsatisfiable"]),
    ("Volume", &["name"]),
    ("VolumeDevice", &["name", "devicePath"]),
    ("VolumeMount", &["name", "mountPath"]),
    ("WeightedPodAffinityTerm", &["weight", "podAffinityTerm"]),
];

fn required(name: &str, target: &Field<'_>, out: &mut Vec<Violation>) {
    let Some((_, fields)) = REQUIRED.iter().find(|(structure, _)| *structure == name) else { return };
    let empty = |value: &Value| value.as_str().is_some_and(str::is_empty);
    for field in *fields {
        if target.get(field).is_none_or(|found| empty(found.value) && name != "HTTPHeader") {
            target.missing(field, out);
        }
    }
}
