//! A pod: its containers as a set, its volumes.

use serde_json::Value;

use super::{Complaint, Spot, text};
use crate::engine::base::text::Quoted;

/// What belongs to the pod as a whole.
pub fn spec(spot: &Spot<'_>, whole: &Value, out: &mut Vec<Complaint>) {
    if spot.value.get("containers").is_some_and(|c| c.as_array().is_some_and(Vec::is_empty)) {
        spot.complain(out, "containers is empty");
    }
    spot.one_of("restartPolicy", &["Always", "OnFailure", "Never"], out);
    spot.one_of("dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"], out);
    spot.at_least("terminationGracePeriodSeconds", 0, out);
    spot.at_least("activeDeadlineSeconds", 1, out);
    if spot.text("dnsPolicy") == Some("None") && spot.find(&["dnsConfig", "nameservers"]).is_none() {
        spot.complain(out, "dnsPolicy None needs dnsConfig.nameservers");
    }
    super::meta::pairs(spot, "nodeSelector", out);
    spot.unique("volumes", "name", out);
    let containers: Vec<Spot<'_>> = ["initContainers", "containers"].iter().flat_map(|list| spot.list(list)).collect();
    names_once(&containers, out);
    let mut volumes: Vec<&str> = spot.list("volumes").iter().filter_map(|volume| volume.text("name")).collect();
    // A StatefulSet's claims are volumes of its pods: they stand beside template.spec.
    let owner = spot.at.up(2);
    if let Some(value) = owner.find(whole) {
        let claims = Spot { at: owner, value }.list("volumeClaimTemplates");
        volumes.extend(claims.iter().filter_map(|claim| claim.value.get("metadata")?.get("name")?.as_str()));
    }
    for container in &containers {
        for (list, what) in [("volumeMounts", "volume"), ("volumeDevices", "volume")] {
            for mount in container.list(list) {
                if let Some(name) = mount.text("name").filter(|name| !name.is_empty() && !volumes.contains(name)) {
                    mount.complain(out, format!("the pod has no {what} {}", Quoted(name)));
                }
            }
        }
    }
    if spot.value.get("hostNetwork") == Some(&Value::Bool(true)) {
        for port in containers.iter().flat_map(|container| container.list("ports")) {
            if let (Some(inside), Some(host)) = (port.number("containerPort"), port.number("hostPort"))
                && inside != host
            {
                port.complain(out, "on the host's network hostPort is containerPort");
            }
        }
    }
}

fn names_once(containers: &[Spot<'_>], out: &mut Vec<Complaint>) {
    let mut seen = Vec::new();
    for container in containers {
        let Some(name) = container.text("name") else { continue };
        if seen.contains(&name) {
            container.complain(out, format!("the name {} is there twice", Quoted(name)));
        }
        seen.push(name);
    }
}

/// One volume: a name and exactly one source.
pub fn volume(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    spot.held("name", |name| (!name.is_empty()).then(|| text::dns_label(name)).flatten(), out);
    match spot.keys().iter().filter(|key| **key != "name").count() {
        1 => {}
        0 => spot.complain(out, "a volume needs a source, as emptyDir: {}"),
        _ => spot.complain(out, "a volume has one source"),
    }
}
