//! Pods: containers as a set, volumes.

use serde_json::Value;

use super::{Field, Violation, ViolationKind, grammar};
use mcctl_base::text::Quoted;

/// Rules for a pod as a whole.
pub(super) fn spec(target: &Field<'_>, whole: &Value, out: &mut Vec<Violation>) {
    if target.value.get("containers").is_some_and(|c| c.as_array().is_some_and(Vec::is_empty)) {
        target.report(out, ViolationKind::Missing, "containers is empty");
    }
    target.check_one_of("restartPolicy", &["Always", "OnFailure", "Never"], out);
    target.check_one_of("dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"], out);
    target.check_min("terminationGracePeriodSeconds", 0, out);
    target.check_min("activeDeadlineSeconds", 1, out);
    if target.text("dnsPolicy") == Some("None") && target.find(&["dnsConfig", "nameservers"]).is_none() {
        target.report(out, ViolationKind::Missing, "dnsPolicy None requires dnsConfig.nameservers");
    }
    super::meta::pairs(target, "nodeSelector", out);
    target.check_unique("volumes", "name", out);
    let containers: Vec<Field<'_>> =
        ["initContainers", "containers"].iter().flat_map(|list| target.list(list)).collect();
    check_unique_names(&containers, out);
    let mut volumes: Vec<&str> = target.list("volumes").iter().filter_map(|volume| volume.text("name")).collect();
    // The claim templates of a StatefulSet, which are next to template.spec, also define volumes of
    // its pods.
    let owner = target.at.up(2);
    if let Some(value) = owner.find(whole) {
        let claims = Field { at: owner, value }.list("volumeClaimTemplates");
        volumes.extend(claims.iter().filter_map(|claim| claim.value.get("metadata")?.get("name")?.as_str()));
    }
    for container in &containers {
        for (list, what) in [("volumeMounts", "volume"), ("volumeDevices", "volume")] {
            for mount in container.list(list) {
                if let Some(name) = mount.text("name").filter(|name| !name.is_empty() && !volumes.contains(name)) {
                    mount.report(out, ViolationKind::Reference, format!("the pod has no {what} {}", Quoted(name)));
                }
            }
        }
    }
    if target.value.get("hostNetwork") == Some(&Value::Bool(true)) {
        for port in containers.iter().flat_map(|container| container.list("ports")) {
            if let (Some(inside), Some(host)) = (port.number("containerPort"), port.number("hostPort"))
                && inside != host
            {
                port.report(out, ViolationKind::Conflict, "with hostNetwork, hostPort must equal containerPort");
            }
        }
    }
}

fn check_unique_names(containers: &[Field<'_>], out: &mut Vec<Violation>) {
    let mut seen = Vec::new();
    for container in containers {
        let Some(name) = container.text("name") else { continue };
        if seen.contains(&name) {
            container.report(out, ViolationKind::Duplicate, format!("duplicate name {}", Quoted(name)));
        }
        seen.push(name);
    }
}

/// The volume sources of Kubernetes 1.34. Other members are unknown fields.
const VOLUME_SOURCES: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "persistentVolumeClaim",
    "photonPersistentDisk",
    "portworxVolume",
    "projected",
    "quobyte",
    "rbd",
    "scaleIO",
    "secret",
    "storageos",
    "vsphereVolume",
];

/// Rules for a volume: a name and exactly one source.
pub(super) fn volume(target: &Field<'_>, out: &mut Vec<Violation>) {
    target.check_text("name", |name| (!name.is_empty()).then(|| grammar::dns_label(name)).flatten(), out);
    match target.keys().iter().filter(|key| VOLUME_SOURCES.contains(key)).count() {
        1 => {}
        0 => target.report(out, ViolationKind::Missing, "a volume requires a source, e.g. emptyDir: {}"),
        _ => target.report(out, ViolationKind::Conflict, "a volume must have only one source"),
    }
}
