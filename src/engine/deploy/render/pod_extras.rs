//! The parts of a pod that the deployment file passes through: volumes, tolerations, and the
//! Secrets of access control and of the Hub.

use serde_yaml_ng::Value;

use crate::render::RenderContext;
use crate::render::yaml::map;
use crate::{AccessFile, ComponentRole, ExtraVolume, PodToleration, ProcessPlan};

/// The volume for downloaded models.
const CACHE_VOLUME: &str = "model-cache";
/// The key of a Secret with a token of the Hub.
const HUB_TOKEN_KEY: &str = "token";

/// The extra volumes of the pods with `role`.
fn extra<'a>(context: &'a RenderContext<'_>, role: ComponentRole) -> impl Iterator<Item = &'a ExtraVolume> {
    let is_used = move |volume: &&ExtraVolume| match volume.roles.is_empty() {
        true => role.is_engine(),
        false => volume.roles.iter().any(|name| name == role.word()),
    };
    context.spec.kubernetes.volumes.iter().filter(is_used)
}

/// The mounts of a container, in addition to those of its plan.
pub(super) fn mounts(context: &RenderContext<'_>, plan: &ProcessPlan) -> Vec<Value> {
    let mut mounts = Vec::new();
    if plan.role.is_engine() && cache_source(context).is_some() {
        mounts.push(map! { "name": CACHE_VOLUME, "mountPath": ProcessPlan::MODEL_CACHE });
    }
    for (name, _) in secrets(&[plan]) {
        let path = format!("{}/{name}", AccessFile::DIRECTORY);
        mounts.push(map! { "name": name, "mountPath": path, "readOnly": true });
    }
    for volume in extra(context, plan.role) {
        let read_only = (!volume.writable).then_some(true);
        mounts.push(map! { "name": &volume.name, "mountPath": &volume.mount_path, "readOnly": read_only });
    }
    mounts
}

/// The volumes of a pod, in addition to those of its plans.
pub(super) fn volumes(context: &RenderContext<'_>, role: ComponentRole, plans: &[&ProcessPlan]) -> Vec<Value> {
    let mut volumes = Vec::new();
    if role.is_engine() {
        volumes.extend(cache_source(context));
    }
    for (name, secret) in secrets(plans) {
        volumes.push(map! { "name": name, "secret": map! { "secretName": secret } });
    }
    for volume in extra(context, role) {
        let host = (!volume.host_path.is_empty()).then(|| map! { "path": &volume.host_path });
        let claim = (!volume.claim.is_empty()).then(|| {
            let read_only = (!volume.writable).then_some(true);
            map! { "claimName": &volume.claim, "readOnly": read_only }
        });
        let config = (!volume.config_map.is_empty()).then(|| map! { "name": &volume.config_map });
        let secret = (!volume.secret.is_empty()).then(|| map! { "secretName": &volume.secret });
        volumes.push(map! {
            "name": &volume.name, "persistentVolumeClaim": claim, "hostPath": host, "configMap": config, "secret": secret,
        });
    }
    volumes
}

/// The Secrets of access control, each once, with the names of their volumes.
fn secrets<'a>(plans: &[&'a ProcessPlan]) -> Vec<(&'static str, &'a str)> {
    let files = plans.iter().flat_map(|plan| &plan.access).filter_map(|file| file.secret.as_ref());
    let mut all: Vec<(&'static str, &str)> = files.map(|volume| (volume.volume, volume.secret.as_str())).collect();
    all.dedup();
    all.sort_unstable();
    all.dedup();
    all
}

fn cache_source(context: &RenderContext<'_>) -> Option<Value> {
    let kubernetes = &context.spec.kubernetes;
    if !kubernetes.cache_claim.is_empty() {
        let claim = map! { "claimName": &kubernetes.cache_claim };
        Some(map! { "name": CACHE_VOLUME, "persistentVolumeClaim": claim })
    } else if !kubernetes.cache_host_path.is_empty() {
        let directory = map! { "path": &kubernetes.cache_host_path, "type": "DirectoryOrCreate" };
        Some(map! { "name": CACHE_VOLUME, "hostPath": directory })
    } else {
        None
    }
}

/// The variable with the token of the Hub, if a Secret has it.
pub(super) fn hub_token(context: &RenderContext<'_>, plan: &ProcessPlan) -> Option<Value> {
    let secret = &context.spec.kubernetes.hf_token_secret;
    (plan.role.is_engine() && !secret.is_empty()).then(|| {
        let key = map! { "name": secret, "key": HUB_TOKEN_KEY };
        map! { "name": "HF_TOKEN", "valueFrom": map! { "secretKeyRef": key } }
    })
}

/// A note that each new pod downloads the model, if no volume keeps it.
pub(super) fn download_note(context: &RenderContext<'_>, role: ComponentRole) -> Option<String> {
    let path = &context.spec.model.path;
    let is_downloaded = role.is_engine() && !path.starts_with('/') && cache_source(context).is_none();
    is_downloaded.then(|| {
        format!(
            "Each new pod of {} downloads {path} again: kubernetes.cache_claim and cache_host_path are not set.",
            role.word()
        )
    })
}

/// The tolerations of all pods.
pub(super) fn tolerations(context: &RenderContext<'_>) -> Vec<Value> {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let one = |toleration: &PodToleration| {
        let seconds = toleration.toleration_seconds.map(Value::from);
        map! {
            "key": given(&toleration.key),
            "operator": given(&toleration.operator),
            "value": given(&toleration.value),
            "effect": given(&toleration.effect),
            "tolerationSeconds": seconds,
        }
    };
    context.spec.kubernetes.tolerations.iter().map(one).collect()
}

/// The Secrets for pulling images.
pub(super) fn pull_secrets(context: &RenderContext<'_>) -> Vec<Value> {
    context.spec.kubernetes.pull_secrets.iter().map(|name| map! { "name": name }).collect()
}
