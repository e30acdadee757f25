//! `workloads.x-k8s.io/v1alpha2`: what a group is made of. Every field is optional here; what must be there is a rule.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodTemplateSpec, ServicePort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::{EngineRuntime, RoleTemplate, RolloutStrategy, ScalingAdapter, TemplateRef};

/// The document.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RoleBasedGroup {
    /// Version.
    pub api_version: Option<String>,
    /// Kind.
    pub kind: Option<String>,
    /// Its name is part of every generated name.
    pub metadata: Option<ObjectMeta>,
    /// The roles.
    pub spec: Option<Spec>,
    /// Written by the controller.
    pub status: Option<serde_json::Value>,
}

/// The roles and what they share.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "RoleBasedGroupSpec")]
pub struct Spec {
    /// At least one.
    pub roles: Option<Vec<Role>>,
    /// Pods that roles refer to.
    pub role_templates: Option<Vec<RoleTemplate>>,
}

/// A set of like pods, or of like groups of pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "RoleSpec")]
pub struct Role {
    /// Unique in the group.
    pub name: String,
    /// How many; 1 when not given.
    pub replicas: Option<i32>,
    /// One pod each.
    pub standalone_pattern: Option<Standalone>,
    /// A leader and workers each.
    pub leader_worker_pattern: Option<LeaderWorker>,
    /// Pods of several kinds each.
    pub custom_components_pattern: Option<CustomComponents>,
    /// Roles that must be ready first.
    pub dependencies: Option<Vec<String>>,
    /// On the workload.
    pub labels: Option<BTreeMap<String, String>>,
    /// On the workload; one of them chooses its kind.
    pub annotations: Option<BTreeMap<String, String>>,
    /// How changes roll.
    pub rollout_strategy: Option<RolloutStrategy>,
    /// Ports of the role's headless service.
    pub service_ports: Option<Vec<ServicePort>>,
    /// Injected containers.
    pub engine_runtimes: Option<Vec<EngineRuntime>>,
    /// Autoscaling.
    pub scaling_adapter: Option<ScalingAdapter>,
    /// Seconds of readiness before a pod counts.
    pub min_ready_seconds: Option<i32>,
    /// `Parallel` or `OrderedReady`.
    pub pod_management_policy: Option<String>,
}

/// One pod per replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "StandalonePattern")]
pub struct Standalone {
    /// The pod.
    pub template: Option<PodTemplateSpec>,
    /// Or a shared one.
    pub template_ref: Option<TemplateRef>,
}

/// A leader and its workers per replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "LeaderWorkerPattern")]
pub struct LeaderWorker {
    /// Pods of a replica, the leader among them.
    pub size: Option<i32>,
    /// The pod.
    pub template: Option<PodTemplateSpec>,
    /// Or a shared one.
    pub template_ref: Option<TemplateRef>,
    /// Over the leader's.
    pub leader_template_patch: Option<serde_json::Value>,
    /// Over the workers'.
    pub worker_template_patch: Option<serde_json::Value>,
    /// Whom the role's service selects.
    pub shared_service_selection: Option<String>,
    /// When a pod of a replica restarts.
    pub restart_policy_config: Option<RestartPolicy>,
    /// The old spelling.
    pub restart_policy: Option<String>,
}

/// What a restarted pod means for its replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RestartPolicy {
    /// `None` or `RecreateRoleInstanceOnPodRestart`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Seconds; 30 when not given.
    pub base_delay_seconds: Option<i32>,
    /// Seconds; 600 when not given.
    pub max_delay_seconds: Option<i32>,
}

/// Pods of several kinds per replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "CustomComponentsPattern")]
pub struct CustomComponents {
    /// The kinds.
    pub components: Option<Vec<Component>>,
    /// When a pod of a replica restarts.
    pub restart_policy_config: Option<RestartPolicy>,
    /// The old spelling.
    pub restart_policy: Option<String>,
}

/// One kind of pods of a replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Component {
    /// Unique in the role.
    pub name: String,
    /// How many; 1 when not given.
    pub size: Option<i32>,
    /// Its service.
    pub service_name: Option<String>,
    /// On the pods.
    pub labels: Option<BTreeMap<String, String>>,
    /// On the pods.
    pub annotations: Option<BTreeMap<String, String>>,
    /// The pod.
    pub template: Option<PodTemplateSpec>,
}
