//! RoleBasedGroup of `workloads.x-k8s.io`: its fields in both versions, and the rules that its schema does not hold.
//!
//! `spec.roles` of the schema keeps unknown fields, so the API server takes a misspelt field of a role without a word. The types
//! here are closed. The rules beyond the schema are those of the admission webhook and of the schema's own expressions, plus the
//! references that nothing checks: dependencies, templates, names that would be cut.

mod names;
mod parts;
mod rules;
pub mod v1alpha1;
pub mod v1alpha2;

pub use names::{pod_address, service_name, workload_name};
pub use parts::{
    EngineRuntime, InPlaceUpdate, RoleTemplate, RollingUpdate, RolloutStrategy, ScalingAdapter, TemplateRef,
};
pub use rules::{rules_v1alpha1, rules_v1alpha2};

/// The kind.
pub const KIND: &str = "RoleBasedGroup";
/// Served and stored since v0.7.
pub const V1ALPHA2: &str = "workloads.x-k8s.io/v1alpha2";
/// The only one up to v0.6, deprecated since.
pub const V1ALPHA1: &str = "workloads.x-k8s.io/v1alpha1";
/// Label of every pod: its group (v1alpha2).
pub const GROUP_LABEL: &str = "rbg.workloads.x-k8s.io/group-name";
/// Label of every pod: its role (v1alpha2).
pub const ROLE_LABEL: &str = "rbg.workloads.x-k8s.io/role-name";
/// Label of every pod: its group (v1alpha1).
pub const GROUP_LABEL_V1ALPHA1: &str = "rolebasedgroup.workloads.x-k8s.io/name";
/// Label of every pod: its role (v1alpha1).
pub const ROLE_LABEL_V1ALPHA1: &str = "rolebasedgroup.workloads.x-k8s.io/role";
/// The annotation of a role that names its workload.
pub const WORKLOAD_ANNOTATION: &str = "rbg.workloads.x-k8s.io/role-workload-type";
