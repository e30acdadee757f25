//! What roles of both versions are made of.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;

/// A template that roles share.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RoleTemplate {
    /// The name that roles refer to.
    pub name: String,
    /// The pods.
    pub template: Option<PodTemplateSpec>,
}

/// The use of a shared template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TemplateRef {
    /// Which.
    pub name: String,
    /// A strategic merge patch over it, free in form (v1alpha2).
    pub patch: Option<serde_json::Value>,
}

/// How a change reaches the pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RolloutStrategy {
    /// `RollingUpdate`, the only one.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Its numbers.
    pub rolling_update: Option<RollingUpdate>,
}

/// How many pods change at a time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RollingUpdate {
    /// `RecreatePod`, `InPlaceIfPossible` or `InPlaceOnly`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Pods away at a time; 1 when not given.
    pub max_unavailable: Option<IntOrString>,
    /// Pods more than wanted; 0 when not given.
    pub max_surge: Option<IntOrString>,
    /// Pods below this ordinal stay as they are.
    pub partition: Option<IntOrString>,
    /// Stop here.
    pub paused: Option<bool>,
    /// Of an update in place.
    pub in_place_update_strategy: Option<InPlaceUpdate>,
}

/// An update of a pod that is not made anew.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InPlaceUpdate {
    /// Seconds between unready and changed.
    pub grace_period_seconds: Option<i32>,
}

/// Containers of a cluster-wide profile that come into the pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EngineRuntime {
    /// The profile.
    pub profile_name: String,
    /// Which of its containers.
    pub inject_containers: Option<Vec<String>>,
    /// Laid over those of the profile.
    pub containers: Option<Vec<Container>>,
}

/// An adapter through which autoscalers set the replicas.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScalingAdapter {
    /// Is there one?
    pub enable: Option<bool>,
    /// Its labels (v1alpha2).
    pub labels: Option<BTreeMap<String, String>>,
}
