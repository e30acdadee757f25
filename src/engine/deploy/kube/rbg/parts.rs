//! Types shared by both API versions.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;

/// A template that roles share.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RoleTemplate {
    /// Name by which roles refer to the template.
    pub name: String,
    pub template: Option<PodTemplateSpec>,
}

/// A reference to a shared template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TemplateRef {
    pub name: String,
    /// A strategic merge patch, without a schema (v1alpha2).
    pub patch: Option<serde_json::Value>,
}

/// How a change is rolled out to the pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RolloutStrategy {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub rolling_update: Option<RollingUpdate>,
}

/// Limits of a rolling update.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RollingUpdate {
    /// `RecreatePod`, `InPlaceIfPossible` or `InPlaceOnly`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Pods that may be unavailable at the same time. Default 1.
    pub max_unavailable: Option<IntOrString>,
    /// Pods above the replica count. Default 0.
    pub max_surge: Option<IntOrString>,
    /// Pods below this ordinal are not updated.
    pub partition: Option<IntOrString>,
    pub paused: Option<bool>,
    pub in_place_update_strategy: Option<InPlaceUpdate>,
}

/// An in-place update, which does not recreate the pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InPlaceUpdate {
    /// Seconds between marking the pod unready and updating it.
    pub grace_period_seconds: Option<i32>,
}

/// Containers of a cluster-wide profile that are injected into the pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EngineRuntime {
    pub profile_name: String,
    /// Names of the containers to inject.
    pub inject_containers: Option<Vec<String>>,
    /// Patches for containers of the profile.
    pub containers: Option<Vec<Container>>,
}

/// An adapter through which autoscalers set the replica count.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScalingAdapter {
    pub enable: Option<bool>,
    /// Labels of the adapter (v1alpha2).
    pub labels: Option<BTreeMap<String, String>>,
}
