//! Kubernetes documents, held to what the API server refuses, and beyond: to what it lets pass in silence.
//!
//! Unknown fields are refused everywhere, in the places too where the server keeps or drops them without a word
//! (`spec.roles` of a RoleBasedGroup carries `x-kubernetes-preserve-unknown-fields`). Fields and types are those of k8s-openapi
//! and, for RoleBasedGroups, of `rbg`; the rules that types cannot tell are in `rule` and `rbg`.
//!
//! One document at a time: that a Service selects something is for who sees all documents. Pure, and deaf to lines: a complaint
//! has a path. Kinds that are not known are not judged ([`known`] tells which are).

pub mod path;
pub mod rbg;
mod rule;
pub mod text;
mod typed;

use std::fmt;

use k8s_openapi::api::{apps, autoscaling, batch, coordination, core, discovery, networking, policy, rbac};
use serde::Deserialize;
use serde_json::Value;

use crate::engine::base::text::Quoted;
use path::Path;
use rule::Spot;

/// One thing that is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Complaint {
    /// Where: `spec.roles[1].standalonePattern.template`; empty for the document itself. [`Path::parse`] reads it.
    pub path: String,
    /// What, as a sentence without a full stop.
    pub what: String,
}

impl Complaint {
    fn new(at: &Path, what: impl Into<String>) -> Complaint {
        Complaint { path: at.to_string(), what: what.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.what),
            path => write!(f, "{path}: {}", self.what),
        }
    }
}

/// Holds a document against a type: [`typed::hold`] of that type.
type Hold = fn(&Value, &Path, &mut Vec<Complaint>) -> Vec<typed::Met>;

fn hold<T: for<'de> Deserialize<'de>>() -> Hold {
    typed::hold::<T>
}

/// Every kind that is known: its version, its name, its type.
fn kinds() -> [(&'static str, &'static str, Hold); 28] {
    use {apps::v1 as apps, autoscaling::v2 as autoscaling, batch::v1 as batch, core::v1 as core};
    [
        ("apps/v1", "DaemonSet", hold::<apps::DaemonSet>()),
        ("apps/v1", "Deployment", hold::<apps::Deployment>()),
        ("apps/v1", "ReplicaSet", hold::<apps::ReplicaSet>()),
        ("apps/v1", "StatefulSet", hold::<apps::StatefulSet>()),
        ("autoscaling/v2", "HorizontalPodAutoscaler", hold::<autoscaling::HorizontalPodAutoscaler>()),
        ("batch/v1", "CronJob", hold::<batch::CronJob>()),
        ("batch/v1", "Job", hold::<batch::Job>()),
        ("coordination.k8s.io/v1", "Lease", hold::<coordination::v1::Lease>()),
        ("discovery.k8s.io/v1", "EndpointSlice", hold::<discovery::v1::EndpointSlice>()),
        ("networking.k8s.io/v1", "Ingress", hold::<networking::v1::Ingress>()),
        ("networking.k8s.io/v1", "NetworkPolicy", hold::<networking::v1::NetworkPolicy>()),
        ("policy/v1", "PodDisruptionBudget", hold::<policy::v1::PodDisruptionBudget>()),
        ("rbac.authorization.k8s.io/v1", "ClusterRole", hold::<rbac::v1::ClusterRole>()),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", hold::<rbac::v1::ClusterRoleBinding>()),
        ("rbac.authorization.k8s.io/v1", "Role", hold::<rbac::v1::Role>()),
        ("rbac.authorization.k8s.io/v1", "RoleBinding", hold::<rbac::v1::RoleBinding>()),
        ("v1", "ConfigMap", hold::<core::ConfigMap>()),
        ("v1", "Endpoints", hold::<core::Endpoints>()),
        ("v1", "LimitRange", hold::<core::LimitRange>()),
        ("v1", "Namespace", hold::<core::Namespace>()),
        ("v1", "PersistentVolume", hold::<core::PersistentVolume>()),
        ("v1", "PersistentVolumeClaim", hold::<core::PersistentVolumeClaim>()),
        ("v1", "Pod", hold::<core::Pod>()),
        ("v1", "ResourceQuota", hold::<core::ResourceQuota>()),
        ("v1", "Secret", hold::<core::Secret>()),
        ("v1", "Service", hold::<core::Service>()),
        ("v1", "ServiceAccount", hold::<core::ServiceAccount>()),
        (rbg::V1ALPHA1, rbg::KIND, hold::<rbg::v1alpha1::RoleBasedGroup>()),
    ]
}

/// Is this a document of a kind that [`validate`] judges?
pub fn known(document: &Value) -> bool {
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default();
    kind == "List" || kinds().iter().any(|(_, name, _)| *name == kind)
}

/// Everything that is wrong with one document. Nothing is said of a kind that is not known.
pub fn validate(document: &Value) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    judge(document, &Path::root(), &mut complaints);
    complaints
}

fn judge(whole: &Value, at: &Path, complaints: &mut Vec<Complaint>) {
    let Some(document) = at.find(whole) else { return };
    let Some(map) = document.as_object() else {
        complaints.push(Complaint::new(at, "a document is a map with apiVersion, kind and metadata"));
        return;
    };
    let text = |key: &str| map.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let (Some(version), Some(kind)) = (text("apiVersion"), text("kind")) else {
        for key in ["apiVersion", "kind"].iter().filter(|key| text(key).is_none()) {
            complaints.push(Complaint::new(at, format!("{key} is missing")));
        }
        return;
    };
    if (version, kind) == ("v1", "List") {
        let items = at.key("items");
        let count = items.find(whole).and_then(Value::as_array).map_or(0, Vec::len);
        return (0..count).for_each(|i| judge(whole, &items.index(i), complaints));
    }
    let of_kind: Vec<_> = kinds().into_iter().filter(|(_, name, _)| *name == kind).collect();
    if of_kind.is_empty() {
        return;
    }
    let typed = match (version, kind) {
        (rbg::V1ALPHA2, rbg::KIND) => Some(hold::<rbg::v1alpha2::RoleBasedGroup>()),
        _ => of_kind.iter().find(|(v, _, _)| *v == version).map(|(_, _, hold)| *hold),
    };
    let Some(typed) = typed else {
        let right = if kind == rbg::KIND { rbg::V1ALPHA2 } else { of_kind[0].0 };
        let what = format!("{kind} is of {right}, and {} stands here", Quoted(version));
        complaints.push(Complaint::new(&at.key("apiVersion"), what));
        return;
    };
    let met = typed(document, at, complaints);
    let top = Spot { at: at.clone(), value: document };
    rule::document(&top, complaints);
    for met in &met {
        if let Some(value) = met.at.find(whole) {
            rule::structure(met.name, &Spot { at: met.at.clone(), value }, whole, complaints);
        }
    }
    match version {
        rbg::V1ALPHA2 => rbg::rules_v1alpha2(&top, complaints),
        rbg::V1ALPHA1 => rbg::rules_v1alpha1(&top, complaints),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
