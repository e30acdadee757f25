//! Settings of pods that a deployment file passes through: tolerations and extra volumes.

use serde::{Deserialize, Serialize};

/// A toleration of pods, with the fields of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PodToleration {
    /// The key of the taint. Empty with the operator `Exists` tolerates every taint.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// `Equal` (the default of Kubernetes) or `Exists`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator: String,
    /// The value of the taint, for `Equal`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`. Empty tolerates all effects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// For `NoExecute`: seconds until the pod is evicted. Unset means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// A volume that is mounted in the containers of some roles. Exactly one source is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtraVolume {
    /// Name of the volume: a DNS label.
    pub name: String,
    /// Where the volume is mounted.
    pub mount_path: String,
    /// The source: a PersistentVolumeClaim.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// The source: a directory of the node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host_path: String,
    /// The source: a ConfigMap.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub config_map: String,
    /// The source: a Secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub secret: String,
    /// Whether containers may write to the volume.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub writable: bool,
    /// The roles whose pods have the volume: master, store, server, prefill, decode, router. Empty
    /// means the servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
}

impl ExtraVolume {
    /// The sources that are set, with their keys.
    pub fn sources(&self) -> Vec<(&'static str, &String)> {
        let all = [
            ("claim", &self.claim),
            ("host_path", &self.host_path),
            ("config_map", &self.config_map),
            ("secret", &self.secret),
        ];
        all.into_iter().filter(|(_, name)| !name.is_empty()).collect()
    }
}
