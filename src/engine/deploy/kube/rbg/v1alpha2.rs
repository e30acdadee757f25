//! `workloads.x-k8s.io/v1alpha2`. All fields are optional in these types; rules check which ones
//! are required.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodTemplateSpec, ServicePort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::{EngineRuntime, RoleTemplate, RolloutStrategy, ScalingAdapter, TemplateRef};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "RoleBasedGroup")]
pub struct RoleBasedGroupV1alpha2 {
    pub api_version: Option<String>,
    pub kind: Option<String>,
    /// The name is part of every generated name.
    pub metadata: Option<ObjectMeta>,
    pub spec: Option<GroupSpecV1alpha2>,
    /// Written by the controller.
    pub status: Option<serde_json::Value>,
}

/// A group's roles and what they share.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "RoleBasedGroupSpec")]
pub struct GroupSpecV1alpha2 {
    pub roles: Option<Vec<RoleSpecV1alpha2>>,
    /// Templates that roles refer to.
    pub role_templates: Option<Vec<RoleTemplate>>,
}

/// A set of identical pods, or of identical groups of pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "RoleSpec")]
pub struct RoleSpecV1alpha2 {
    /// Unique in the group.
    pub name: String,
    pub replicas: Option<i32>,
    pub standalone_pattern: Option<Standalone>,
    /// A leader and workers per replica.
    pub leader_worker_pattern: Option<LeaderWorker>,
    /// Pods of several types per replica.
    pub custom_components_pattern: Option<CustomComponents>,
    /// Roles that must be ready first.
    pub dependencies: Option<Vec<String>>,
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the workload. One of them selects its type.
    pub annotations: Option<BTreeMap<String, String>>,
    pub rollout_strategy: Option<RolloutStrategy>,
    /// Ports of the role's headless Service.
    pub service_ports: Option<Vec<ServicePort>>,
    pub engine_runtimes: Option<Vec<EngineRuntime>>,
    pub scaling_adapter: Option<ScalingAdapter>,
    /// Seconds for which a pod must be ready before it counts as available.
    pub min_ready_seconds: Option<i32>,
    /// `Parallel` or `OrderedReady`.
    pub pod_management_policy: Option<String>,
}

/// One pod per replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "StandalonePattern")]
pub struct Standalone {
    pub template: Option<PodTemplateSpec>,
    pub template_ref: Option<TemplateRef>,
}

/// A leader and workers per replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "LeaderWorkerPattern")]
pub struct LeaderWorker {
    /// Pods per replica, including the leader.
    pub size: Option<i32>,
    pub template: Option<PodTemplateSpec>,
    pub template_ref: Option<TemplateRef>,
    pub leader_template_patch: Option<serde_json::Value>,
    pub worker_template_patch: Option<serde_json::Value>,
    /// The pods that the role's Service selects.
    pub shared_service_selection: Option<String>,
    /// Applies when a pod of a replica restarts.
    pub restart_policy_config: Option<RestartPolicy>,
    pub restart_policy: Option<String>,
}

/// The effect of a pod restart on its replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RestartPolicy {
    /// `None` or `RecreateRoleInstanceOnPodRestart`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub base_delay_seconds: Option<i32>,
    pub max_delay_seconds: Option<i32>,
}

/// Pods of several types per replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "CustomComponentsPattern")]
pub struct CustomComponents {
    pub components: Option<Vec<ComponentV1alpha2>>,
    /// Applies when a pod of a replica restarts.
    pub restart_policy_config: Option<RestartPolicy>,
    pub restart_policy: Option<String>,
}

/// A component of a replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "Component")]
pub struct ComponentV1alpha2 {
    /// Unique in the role.
    pub name: String,
    pub size: Option<i32>,
    pub service_name: Option<String>,
    pub labels: Option<BTreeMap<String, String>>,
    pub annotations: Option<BTreeMap<String, String>>,
    pub template: Option<PodTemplateSpec>,
}
