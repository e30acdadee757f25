//! RoleBasedGroup of `workloads.x-k8s.io`: fields in both API versions, and rules beyond its
//! schema.
//!
//! The schema keeps unknown fields in `spec.roles`, so the API server silently accepts a misspelled
//! field of a role. The types here reject unknown fields. The additional rules are those of the
//! admission webhook and of the schema's CEL expressions, plus references that nothing else checks:
//! dependencies, templates, and names that would be truncated.

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

pub const KIND: &str = "RoleBasedGroup";
/// Served and stored since v0.7.
pub const V1ALPHA2: &str = "workloads.x-k8s.io/v1alpha2";
/// The only version up to v0.6. Deprecated since v0.7.
pub const V1ALPHA1: &str = "workloads.x-k8s.io/v1alpha1";
/// Pod label: group (v1alpha2).
pub const GROUP_LABEL: &str = "rbg.workloads.x-k8s.io/group-name";
/// Pod label: role (v1alpha2).
pub const ROLE_LABEL: &str = "rbg.workloads.x-k8s.io/role-name";
/// Pod label: group (v1alpha1).
pub const GROUP_LABEL_V1ALPHA1: &str = "rolebasedgroup.workloads.x-k8s.io/name";
/// Pod label: role (v1alpha1).
pub const ROLE_LABEL_V1ALPHA1: &str = "rolebasedgroup.workloads.x-k8s.io/role";
/// The annotation that selects the workload type of a role.
pub const WORKLOAD_ANNOTATION: &str = "rbg.workloads.x-k8s.io/role-workload-type";
