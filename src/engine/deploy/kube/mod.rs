//! Validation of Kubernetes documents: everything the API server rejects, and mistakes that it
//! silently accepts.
//!
//! Unknown fields are violations everywhere, including places where the server silently keeps or
//! drops them (`spec.roles` of a RoleBasedGroup has `x-kubernetes-preserve-unknown-fields`). Fields
//! and types come from k8s-openapi and, for RoleBasedGroups, from `rbg`. `rule` and `rbg` contain
//! the rules that cannot be expressed as types.
//!
//! Each document is validated on its own. References between documents, such as Service selectors,
//! are checked elsewhere. A violation has a path, not a line. The module is pure. Unknown kinds are
//! not validated ([`known`] lists the known ones).

pub mod grammar;
pub mod path;
pub mod rbg;
mod rule;
mod typed;

use std::fmt;

use k8s_openapi::api::{apps, autoscaling, batch, coordination, core, discovery, networking, policy, rbac};
use serde::Deserialize;
use serde_json::Value;

use mcctl_base::text::Quoted;
use path::FieldPath;
use rule::Field;

/// The category of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ViolationKind {
    /// Two fields contradict each other.
    Conflict,
    /// Dependencies form a cycle.
    Cycle,
    /// The field is deprecated.
    Deprecated,
    /// The server silently drops the field.
    Dropped,
    /// Two list items have the same key.
    Duplicate,
    /// A required field or alternative is missing.
    Missing,
    /// The value does not have the required syntax.
    Syntax,
    /// A number is out of range.
    Range,
    /// The field has no effect.
    Ineffective,
    /// A reference has no target.
    Reference,
    /// The rollout could never make progress.
    Stuck,
    /// The field does not exist.
    UnknownField,
    /// The value is not one of the allowed values.
    Value,
    /// The field or kind belongs to another API version.
    Version,
    /// The value has the wrong type.
    WrongType,
}

impl ViolationKind {
    /// Whether the API server or the controller certainly refuses the document or drops a part of
    /// it.
    pub const fn is_certain(self) -> bool {
        !matches!(self, ViolationKind::Deprecated | ViolationKind::Ineffective)
    }

    /// A stable identifier in kebab case.
    pub const fn id(self) -> &'static str {
        match self {
            ViolationKind::Conflict => "conflict",
            ViolationKind::Cycle => "cycle",
            ViolationKind::Deprecated => "deprecated",
            ViolationKind::Dropped => "dropped",
            ViolationKind::Duplicate => "duplicate",
            ViolationKind::Missing => "missing",
            ViolationKind::Syntax => "syntax",
            ViolationKind::Range => "range",
            ViolationKind::Ineffective => "ineffective",
            ViolationKind::Reference => "reference",
            ViolationKind::Stuck => "stuck",
            ViolationKind::UnknownField => "unknown-field",
            ViolationKind::Value => "value",
            ViolationKind::Version => "version",
            ViolationKind::WrongType => "wrong-type",
        }
    }
}

/// A violation in a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Field path such as `spec.roles[1].standalonePattern.template`. Empty for the document
    /// itself. [`FieldPath::parse`] parses it.
    pub path: String,
    pub kind: ViolationKind,
    /// The message, without a trailing period.
    pub message: String,
}

impl Violation {
    fn new(at: &FieldPath, kind: ViolationKind, message: impl Into<String>) -> Violation {
        Violation { path: at.to_string(), kind, message: message.into() }
    }

    /// Whether the API server accepts a document of the kind `kind`, and refuses the pods that a
    /// controller creates from it. The server does not check the pod templates of a RoleBasedGroup.
    pub fn is_refused_as_pod(&self, kind: &str) -> bool {
        let is_checked_in_pods = match self.kind {
            ViolationKind::Conflict
            | ViolationKind::Duplicate
            | ViolationKind::Missing
            | ViolationKind::Syntax
            | ViolationKind::Range
            | ViolationKind::Reference
            | ViolationKind::Value => true,
            ViolationKind::Cycle
            | ViolationKind::Deprecated
            | ViolationKind::Dropped
            | ViolationKind::Ineffective
            | ViolationKind::Stuck
            | ViolationKind::UnknownField
            | ViolationKind::Version
            | ViolationKind::WrongType => false,
        };
        let in_template = || FieldPath::parse(&self.path).is_some_and(|path| path.passes("template"));
        kind == rbg::KIND && is_checked_in_pods && in_template()
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

/// Checks a document against a type: [`typed::check_type`] for that type.
type TypeCheck = fn(&Value, &FieldPath, &mut Vec<Violation>) -> Vec<typed::VisitedStruct>;

fn check_as<T: for<'de> Deserialize<'de>>() -> TypeCheck {
    typed::check_type::<T>
}

/// All known kinds: API version, name, type.
fn kinds() -> [(&'static str, &'static str, TypeCheck); 28] {
    use {apps::v1 as apps, autoscaling::v2 as autoscaling, batch::v1 as batch, core::v1 as core};
    [
        ("apps/v1", "DaemonSet", check_as::<apps::DaemonSet>()),
        ("apps/v1", "Deployment", check_as::<apps::Deployment>()),
        ("apps/v1", "ReplicaSet", check_as::<apps::ReplicaSet>()),
        ("apps/v1", "StatefulSet", check_as::<apps::StatefulSet>()),
        ("autoscaling/v2", "HorizontalPodAutoscaler", check_as::<autoscaling::HorizontalPodAutoscaler>()),
        ("batch/v1", "CronJob", check_as::<batch::CronJob>()),
        ("batch/v1", "Job", check_as::<batch::Job>()),
        ("coordination.k8s.io/v1", "Lease", check_as::<coordination::v1::Lease>()),
        ("discovery.k8s.io/v1", "EndpointSlice", check_as::<discovery::v1::EndpointSlice>()),
        ("networking.k8s.io/v1", "Ingress", check_as::<networking::v1::Ingress>()),
        ("networking.k8s.io/v1", "NetworkPolicy", check_as::<networking::v1::NetworkPolicy>()),
        ("policy/v1", "PodDisruptionBudget", check_as::<policy::v1::PodDisruptionBudget>()),
        ("rbac.authorization.k8s.io/v1", "ClusterRole", check_as::<rbac::v1::ClusterRole>()),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", check_as::<rbac::v1::ClusterRoleBinding>()),
        ("rbac.authorization.k8s.io/v1", "Role", check_as::<rbac::v1::Role>()),
        ("rbac.authorization.k8s.io/v1", "RoleBinding", check_as::<rbac::v1::RoleBinding>()),
        ("v1", "ConfigMap", check_as::<core::ConfigMap>()),
        ("v1", "Endpoints", check_as::<core::Endpoints>()),
        ("v1", "LimitRange", check_as::<core::LimitRange>()),
        ("v1", "Namespace", check_as::<core::Namespace>()),
        ("v1", "PersistentVolume", check_as::<core::PersistentVolume>()),
        ("v1", "PersistentVolumeClaim", check_as::<core::PersistentVolumeClaim>()),
        ("v1", "Pod", check_as::<core::Pod>()),
        ("v1", "ResourceQuota", check_as::<core::ResourceQuota>()),
        ("v1", "Secret", check_as::<core::Secret>()),
        ("v1", "Service", check_as::<core::Service>()),
        ("v1", "ServiceAccount", check_as::<core::ServiceAccount>()),
        (rbg::V1ALPHA1, rbg::KIND, check_as::<rbg::v1alpha1::RoleBasedGroupV1alpha1>()),
    ]
}

/// Whether [`validate`] validates documents of this kind.
pub fn known(document: &Value) -> bool {
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default();
    kind == "List" || kinds().iter().any(|(_, name, _)| *name == kind)
}

/// All violations in a document. Empty if its kind is unknown.
pub fn validate(document: &Value) -> Vec<Violation> {
    let mut violations = Vec::new();
    validate_at(document, &FieldPath::root(), &mut violations);
    violations
}

fn validate_at(whole: &Value, at: &FieldPath, violations: &mut Vec<Violation>) {
    let Some(document) = at.find(whole) else { return };
    let Some(map) = document.as_object() else {
        violations.push(Violation::new(
            at,
            ViolationKind::WrongType,
            "expected an object with apiVersion, kind and metadata",
        ));
        return;
    };
    let text = |key: &str| map.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let (Some(version), Some(kind)) = (text("apiVersion"), text("kind")) else {
        for key in ["apiVersion", "kind"].iter().filter(|key| text(key).is_none()) {
            violations.push(Violation::new(at, ViolationKind::Missing, format!("{key} is missing")));
        }
        return;
    };
    if (version, kind) == ("v1", "List") {
        let items = at.key("items");
        let count = items.find(whole).and_then(Value::as_array).map_or(0, Vec::len);
        return (0..count).for_each(|i| validate_at(whole, &items.index(i), violations));
    }
    let of_kind: Vec<_> = kinds().into_iter().filter(|(_, name, _)| *name == kind).collect();
    if of_kind.is_empty() {
        return;
    }
    let typed = match (version, kind) {
        (rbg::V1ALPHA2, rbg::KIND) => Some(check_as::<rbg::v1alpha2::RoleBasedGroupV1alpha2>()),
        _ => of_kind.iter().find(|(v, _, _)| *v == version).map(|(_, _, check_as)| *check_as),
    };
    let Some(typed) = typed else {
        let right = if kind == rbg::KIND { rbg::V1ALPHA2 } else { of_kind[0].0 };
        let message = format!("{kind} belongs to API version {right}, not {}", Quoted(version));
        violations.push(Violation::new(&at.key("apiVersion"), ViolationKind::Version, message));
        return;
    };
    let visited = typed(document, at, violations);
    let top = Field { at: at.clone(), value: document };
    rule::document(&top, violations);
    for visit in &visited {
        if let Some(value) = visit.at.find(whole) {
            rule::structure(visit.name, &Field { at: visit.at.clone(), value }, whole, violations);
        }
    }
    match version {
        rbg::V1ALPHA2 => rbg::rules_v1alpha2(&top, violations),
        rbg::V1ALPHA1 => rbg::rules_v1alpha1(&top, violations),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
