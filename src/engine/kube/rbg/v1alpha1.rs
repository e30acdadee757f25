//! `workloads.x-k8s.io/v1alpha1`: a role has its template itself and names the workload that runs it.

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
    /// Roles that change or scale in step.
    pub coordination: Option<Vec<Coordination>>,
    /// All or none scheduling.
    pub pod_group_policy: Option<PodGroupPolicy>,
}

/// A set of like pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "RoleSpec")]
pub struct Role {
    /// Unique in the group.
    pub name: String,
    /// How many; 1 when not given.
    pub replicas: Option<i32>,
    /// What runs it; apps/v1 StatefulSet when not given.
    pub workload: Option<Workload>,
    /// The pod.
    pub template: Option<PodTemplateSpec>,
    /// Or a shared one.
    pub template_ref: Option<TemplateRef>,
    /// A strategic merge patch over the shared one, free in form.
    pub template_patch: Option<serde_json::Value>,
    /// Of a LeaderWorkerSet.
    pub leader_worker_set: Option<LeaderWorkerSet>,
    /// Of an InstanceSet.
    pub components: Option<Vec<Component>>,
    /// Roles that must be ready first.
    pub dependencies: Option<Vec<String>>,
    /// On the workload.
    pub labels: Option<BTreeMap<String, String>>,
    /// On the workload.
    pub annotations: Option<BTreeMap<String, String>>,
    /// How changes roll.
    pub rollout_strategy: Option<RolloutStrategy>,
    /// `None` or `RecreateRoleInstanceOnPodRestart`.
    pub restart_policy: Option<String>,
    /// Ports of the role's headless service.
    pub service_ports: Option<Vec<ServicePort>>,
    /// Injected containers.
    pub engine_runtimes: Option<Vec<EngineRuntime>>,
    /// Autoscaling.
    pub scaling_adapter: Option<ScalingAdapter>,
    /// Seconds of readiness before a pod counts.
    pub min_ready_seconds: Option<i32>,
}

/// A kind of workload.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Workload {
    /// Its version.
    pub api_version: Option<String>,
    /// Its kind.
    pub kind: Option<String>,
}

/// A leader and its workers per replica.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LeaderWorkerSet {
    /// Pods of a replica, the leader among them.
    pub size: Option<i32>,
    /// Over the leader's.
    pub patch_leader_template: Option<serde_json::Value>,
    /// Over the workers'.
    pub patch_worker_template: Option<serde_json::Value>,
}

/// One kind of pods of an InstanceSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", rename = "ComponentV1alpha1")]
pub struct Component {
    /// Unique in the role.
    pub name: String,
    /// How many; 1 when not given.
    pub size: Option<i32>,
    /// Its service.
    pub service_name: Option<String>,
    /// The pod.
    pub template: Option<PodTemplateSpec>,
}

/// Roles in step.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Coordination {
    /// Unique in the group.
    pub name: String,
    /// Which roles.
    pub roles: Option<Vec<String>>,
    /// How far apart they may be.
    pub strategy: Option<CoordinationStrategy>,
}

/// How far apart roles may be.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CoordinationStrategy {
    /// While a change rolls.
    pub rolling_update: Option<RollingSkew>,
    /// While they scale.
    pub scaling: Option<ScalingSkew>,
}

/// Percentages of a rolling change.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RollingSkew {
    /// As `10%`.
    pub max_skew: Option<String>,
    /// As `10%`.
    pub max_unavailable: Option<String>,
    /// As `10%`.
    pub partition: Option<String>,
}

/// Percentages of scaling.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScalingSkew {
    /// As `10%`.
    pub max_skew: Option<String>,
    /// `OrderScheduled` or `OrderReady`.
    pub progression: Option<String>,
}

/// Who schedules all or none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodGroupPolicy {
    /// The scheduler plugin.
    pub kube_scheduling: Option<KubeScheduling>,
    /// Volcano.
    pub volcano_scheduling: Option<VolcanoScheduling>,
}

/// Of the scheduler plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeScheduling {
    /// Seconds; 60 when not given.
    pub schedule_timeout_seconds: Option<i32>,
}

/// Of Volcano.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolcanoScheduling {
    /// The priority class.
    pub priority_class_name: Option<String>,
    /// The queue.
    pub queue: Option<String>,
}
