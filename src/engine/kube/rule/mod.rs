//! What types cannot tell: fields that must be there, grammars, and values that must agree with each other.
//!
//! [`structure`] is asked for every structure that was met, by the name of its type, wherever it stands: a container is a container
//! in a Deployment and in a role of a group. Values of a wrong type were told already and are passed over here.

mod container;
mod meta;
mod pod;
mod resources;
mod service;
mod workload;

use serde_json::Value;

use super::path::Path;
use super::{Complaint, text};

pub use workload::{count_or_percent, not_both_zero, stateful_name};

/// A place in a document.
#[derive(Clone, Debug)]
pub struct Spot<'v> {
    /// Where.
    pub at: Path,
    /// What stands there.
    pub value: &'v Value,
}

impl<'v> Spot<'v> {
    /// Below this at `key`; null counts as nothing, as it does for Kubernetes.
    pub fn get(&self, key: &str) -> Option<Spot<'v>> {
        let value = self.value.get(key).filter(|v| !v.is_null())?;
        Some(Spot { at: self.at.key(key), value })
    }

    /// Below this, `keys` down.
    pub fn find(&self, keys: &[&str]) -> Option<Spot<'v>> {
        keys.iter().try_fold(self.clone(), |spot, key| spot.get(key))
    }

    /// The elements of the list at `key`; none where there is no list.
    pub fn list(&self, key: &str) -> Vec<Spot<'v>> {
        let at = self.at.key(key);
        let items = self.value.get(key).and_then(Value::as_array);
        items.into_iter().flatten().enumerate().map(|(i, value)| Spot { at: at.index(i), value }).collect()
    }

    /// The entries of the map at `key`; none where there is no map.
    pub fn entries(&self, key: &str) -> Vec<(&'v str, Spot<'v>)> {
        let at = self.at.key(key);
        let map = self.value.get(key).and_then(Value::as_object);
        map.into_iter().flatten().map(|(k, value)| (k.as_str(), Spot { at: at.key(k), value })).collect()
    }

    /// The text at `key`.
    pub fn text(&self, key: &str) -> Option<&'v str> {
        self.value.get(key).and_then(Value::as_str)
    }

    /// The number at `key`.
    pub fn number(&self, key: &str) -> Option<i64> {
        self.value.get(key).and_then(Value::as_i64)
    }

    /// The keys of this map whose value is not null.
    pub fn keys(&self) -> Vec<&'v str> {
        let map = self.value.as_object();
        map.into_iter().flatten().filter(|(_, v)| !v.is_null()).map(|(k, _)| k.as_str()).collect()
    }

    /// One complaint about this place.
    pub fn complain(&self, out: &mut Vec<Complaint>, what: impl Into<String>) {
        out.push(Complaint::new(&self.at, what));
    }

    /// Complains with what `grammar` says of the text at `key`.
    pub fn held(&self, key: &str, grammar: impl Fn(&str) -> Option<String>, out: &mut Vec<Complaint>) {
        if let Some(what) = self.text(key).and_then(grammar) {
            out.push(Complaint::new(&self.at.key(key), what));
        }
    }

    /// Complains about a text at `key` that is none of `allowed`.
    pub fn one_of(&self, key: &str, allowed: &[&str], out: &mut Vec<Complaint>) {
        if let Some(found) = self.text(key).filter(|found| !allowed.contains(found)) {
            let what = format!("{} is none of {}", super::Quoted(found), allowed.join(", "));
            out.push(Complaint::new(&self.at.key(key), what));
        }
    }

    /// Complains about a number at `key` below `least`.
    pub fn at_least(&self, key: &str, least: i64, out: &mut Vec<Complaint>) {
        if let Some(found) = self.number(key).filter(|found| *found < least) {
            out.push(Complaint::new(&self.at.key(key), format!("{found} is too few; {least} is the least")));
        }
    }

    /// Complains unless one of `keys` is there, and only one.
    pub fn exactly_one(&self, keys: &[&str], out: &mut Vec<Complaint>) {
        let found: Vec<&str> = keys.iter().copied().filter(|key| self.get(key).is_some()).collect();
        match found.as_slice() {
            [_] => {}
            [] => self.complain(out, format!("one of {} must stand here", keys.join(", "))),
            many => self.complain(out, format!("{} exclude each other", many.join(" and "))),
        }
    }

    /// Complains about elements of the list at `key` whose `field` an earlier element has, too.
    pub fn unique(&self, key: &str, field: &str, out: &mut Vec<Complaint>) {
        let mut seen = Vec::new();
        for item in self.list(key) {
            let Some(name) = item.text(field) else { continue };
            if seen.contains(&name) {
                item.complain(out, format!("the {field} {} is there twice", super::Quoted(name)));
            }
            seen.push(name);
        }
    }
}

/// The rules of a whole document.
pub fn document(top: &Spot<'_>, out: &mut Vec<Complaint>) {
    if top.get("metadata").is_none() {
        return top.complain(out, "metadata is missing");
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

/// The rules of the structure `name` at `spot`, which stands in `whole`.
pub fn structure(name: &str, spot: &Spot<'_>, whole: &Value, out: &mut Vec<Complaint>) {
    required(name, spot, out);
    match name {
        "ObjectMeta" => meta::labels(spot, out),
        "LabelSelector" => meta::selector(spot, out),
        "LabelSelectorRequirement" => meta::requirement(spot, &["In", "NotIn", "Exists", "DoesNotExist"], out),
        "NodeSelectorRequirement" => {
            meta::requirement(spot, &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"], out);
        }
        "Quantity" => resources::quantity(spot, out),
        "ResourceRequirements" => resources::requirements(spot, out),
        "PodSpec" => pod::spec(spot, whole, out),
        "Volume" => pod::volume(spot, out),
        "EmptyDirVolumeSource" => {
            let medium = |m: &str| !(m.is_empty() || m == "Memory" || m.starts_with("HugePages"));
            spot.held("medium", |m| medium(m).then(|| "neither Memory nor HugePages".to_owned()), out);
        }
        "Toleration" => {
            spot.one_of("operator", &["Exists", "Equal"], out);
            spot.one_of("effect", &["", "NoSchedule", "PreferNoSchedule", "NoExecute"], out);
        }
        "TopologySpreadConstraint" => {
            spot.at_least("maxSkew", 1, out);
            spot.one_of("whenUnsatisfiable", &["DoNotSchedule", "ScheduleAnyway"], out);
        }
        "WeightedPodAffinityTerm" | "PreferredSchedulingTerm"
            if spot.number("weight").is_some_and(|w| !(1..=100).contains(&w)) =>
        {
            spot.complain(out, "weight is 1 to 100");
        }
        "Container" => container::container(spot, out),
        "EnvVar" => container::env_var(spot, out),
        "EnvVarSource" => {
            spot.exactly_one(&["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"], out)
        }
        "ObjectFieldSelector" => container::field_path(spot, out),
        "ContainerPort" => container::port(spot, out),
        "VolumeMount" => container::mount(spot, out),
        "Probe" => container::probe(spot, out),
        "LifecycleHandler" => spot.exactly_one(&["exec", "httpGet", "sleep", "tcpSocket"], out),
        "HTTPGetAction" | "TCPSocketAction" => container::dialled_port(spot, whole, out),
        "GRPCAction" => port_number(spot, "port", out),
        "ExecAction" if spot.list("command").is_empty() => spot.complain(out, "command is missing"),
        "ServiceSpec" => service::spec(spot, out),
        "ServicePort" => service::port(spot, out),
        "DeploymentSpec" => workload::deployment(spot, out),
        "StatefulSetSpec" => workload::stateful_set(spot, out),
        "DaemonSetSpec" => workload::daemon_set(spot, out),
        "ReplicaSetSpec" => workload::selected(spot, out),
        "JobSpec" => workload::job(spot, out),
        "PodDisruptionBudgetSpec" => workload::disruption_budget(spot, out),
        _ => {}
    }
}

/// Complains about a port at `key` that is none.
fn port_number(spot: &Spot<'_>, key: &str, out: &mut Vec<Complaint>) {
    if let Some(port) = spot.number(key).filter(|port| !(1..=65535).contains(port)) {
        out.push(Complaint::new(&spot.at.key(key), format!("{port} is no port: 1 to 65535")));
    }
}

/// Fields that Kubernetes demands and k8s-openapi reads as their default when they are missing.
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

fn required(name: &str, spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    let Some((_, fields)) = REQUIRED.iter().find(|(structure, _)| *structure == name) else { return };
    let empty = |value: &Value| value.as_str().is_some_and(str::is_empty);
    for field in *fields {
        if spot.get(field).is_none_or(|found| empty(found.value) && name != "HTTPHeader") {
            spot.complain(out, format!("{field} is missing"));
        }
    }
}
