//! `workloads.x-k8s.io/v1alpha1`: a role contains its template and names its workload type.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodTemplateSpec, ServicePort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::{EngineRuntime, RoleTemplate, RolloutStrategy, ScalingAdapter, TemplateRef};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "RoleBasedGroup")]
pub struct RoleBasedGroupV1alpha1 {
    pub api_version: Option<String>,
    pub kind: Option<String>,
    /// The name is part of every generated name.
    pub metadata: Option<ObjectMeta>,
    pub spec: Option<GroupSpecV1alpha1>,
    /// Written by the controller.
    pub status: Option<serde_json::Value>,
}

/// A group's roles and what they share.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "RoleBasedGroupSpec")]
pub struct GroupSpecV1alpha1 {
    pub roles: Option<Vec<RoleSpecV1alpha1>>,
    /// Templates that roles refer to.
    pub role_templates: Option<Vec<RoleTemplate>>,
    /// Roles that are updated or scaled together.
    pub coordination: Option<Vec<Coordination>>,
    pub pod_group_policy: Option<PodGroupPolicy>,
}

/// A set of identical pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "RoleSpec")]
pub struct RoleSpecV1alpha1 {
    /// Unique in the group.
    pub name: String,
    pub replicas: Option<i32>,
    pub workload: Option<WorkloadRef>,
    pub template: Option<PodTemplateSpec>,
    pub template_ref: Option<TemplateRef>,
    /// A strategic merge patch for the shared template, without a schema.
    pub template_patch: Option<serde_json::Value>,
    pub leader_worker_set: Option<LeaderWorkerSet>,
    pub components: Option<Vec<ComponentV1alpha1>>,
    /// Roles that must be ready first.
    pub dependencies: Option<Vec<String>>,
    pub labels: Option<BTreeMap<String, String>>,
    pub annotations: Option<BTreeMap<String, String>>,
    pub rollout_strategy: Option<RolloutStrategy>,
    /// `None` or `RecreateRoleInstanceOnPodRestart`.
    pub restart_policy: Option<String>,
    /// Ports of the role's headless Service.
    pub service_ports: Option<Vec<ServicePort>>,
    pub engine_runtimes: Option<Vec<EngineRuntime>>,
    pub scaling_adapter: Option<ScalingAdapter>,
    /// Seconds for which a pod must be ready before it counts as available.
    pub min_ready_seconds: Option<i32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "Workload")]
pub struct WorkloadRef {
    pub api_version: Option<String>,
    pub kind: Option<String>,
}

/// A leader and workers per replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LeaderWorkerSet {
    /// Pods per replica, including the leader.
    pub size: Option<i32>,
    pub patch_leader_template: Option<serde_json::Value>,
    pub patch_worker_template: Option<serde_json::Value>,
}

/// A component of an InstanceSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "ComponentV1alpha1")]
pub struct ComponentV1alpha1 {
    /// Unique in the role.
    pub name: String,
    pub size: Option<i32>,
    pub service_name: Option<String>,
    pub template: Option<PodTemplateSpec>,
}

/// Coordinated updates or scaling of several roles.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Coordination {
    /// Unique in the group.
    pub name: String,
    pub roles: Option<Vec<String>>,
    pub strategy: Option<CoordinationStrategy>,
}

/// The limits on the difference in progress between roles.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CoordinationStrategy {
    pub rolling_update: Option<RollingSkew>,
    pub scaling: Option<ScalingSkew>,
}

/// Percentages for a rolling update.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RollingSkew {
    pub max_skew: Option<String>,
    pub max_unavailable: Option<String>,
    pub partition: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScalingSkew {
    pub max_skew: Option<String>,
    /// `OrderScheduled` or `OrderReady`.
    pub progression: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodGroupPolicy {
    pub kube_scheduling: Option<KubeScheduling>,
    pub volcano_scheduling: Option<VolcanoScheduling>,
}

/// Settings for the coscheduling plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeScheduling {
    pub schedule_timeout_seconds: Option<i32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolcanoScheduling {
    pub priority_class_name: Option<String>,
    pub queue: Option<String>,
}
