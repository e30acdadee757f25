//! Rendered pods against the `restricted` pod security standard of Kubernetes.

use serde::Deserialize;
use serde_json::Value;

use super::{all_fixtures, fixture};
use crate::cli::mcctl;

/// A rule of the standard, or a stricter one of mcctl: its name, and whether a pod and one of its
/// containers satisfy it.
type ProfileRule = (&'static str, fn(&Value, &Value) -> bool);

const RULES: &[ProfileRule] = &[
    ("host namespaces", |pod, _| ["hostNetwork", "hostPID", "hostIPC"].iter().all(|key| pod[*key] != true)),
    ("privileged", |_, container| container["securityContext"]["privileged"] != true),
    ("capabilities", has_no_capabilities),
    ("volume types", |pod, _| list(&pod["volumes"]).iter().all(is_allowed_volume)),
    ("host ports", |_, container| list(&container["ports"]).iter().all(|port| port["hostPort"].is_null())),
    ("privilege escalation", |_, container| container["securityContext"]["allowPrivilegeEscalation"] == false),
    ("non-root", |pod, container| secured(pod, container, "runAsNonRoot") == true),
    ("user", |pod, container| secured(pod, container, "runAsUser").as_u64().is_some_and(|user| user > 0)),
    ("seccomp", |pod, container| secured(pod, container, "seccompProfile")["type"] == "RuntimeDefault"),
    // Not part of the standard.
    ("read-only image", |_, container| container["securityContext"]["readOnlyRootFilesystem"] == true),
];

/// Capabilities are dropped. Only NET_BIND_SERVICE may be added.
fn has_no_capabilities(_: &Value, container: &Value) -> bool {
    let capabilities = &container["securityContext"]["capabilities"];
    let drops_all = list(&capabilities["drop"]).contains(&"ALL".into());
    drops_all && list(&capabilities["add"]).iter().all(|name| name == "NET_BIND_SERVICE")
}

fn is_allowed_volume(volume: &Value) -> bool {
    ["emptyDir", "persistentVolumeClaim", "configMap", "secret", "projected"]
        .iter()
        .any(|kind| volume[*kind].is_object())
}

/// A security setting of the container, or else of its pod.
fn secured<'a>(pod: &'a Value, container: &'a Value, key: &str) -> &'a Value {
    let own = &container["securityContext"][key];
    if own.is_null() { &pod["securityContext"][key] } else { own }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The pod templates in a document, at any depth.
fn templates(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(map) if map.contains_key("template") => vec![&map["template"]],
        Value::Object(map) => map.values().flat_map(templates).collect(),
        Value::Array(items) => items.iter().flat_map(templates).collect(),
        _ => Vec::new(),
    }
}

/// The violated rules of each workload of a deployment.
fn violations(format: &str, name: &str, more: &[&str]) -> Vec<(String, Vec<&'static str>)> {
    let run = mcctl(&[&["render", format, &fixture(name)], more].concat());
    let documents: Vec<Value> = serde_yaml_ng::Deserializer::from_str(run.succeeds())
        .map(|one| Value::deserialize(one).expect("YAML"))
        .collect();
    let of = |template: &Value| {
        let pod = &template["spec"];
        let is_violated = |rule: &&ProfileRule| list(&pod["containers"]).iter().any(|one| !rule.1(pod, one));
        let role = template["metadata"]["labels"]["app.kubernetes.io/component"].as_str().expect("a role");
        (role.to_owned(), RULES.iter().filter(is_violated).map(|rule| rule.0).collect())
    };
    documents.iter().flat_map(templates).map(of).collect()
}

/// The exceptions of masters and store nodes, by deployment and role.
const EXCEPTIONS: &[(&str, &str, &[&str])] = &[
    // RDMA: locked memory requires root.
    ("mcctl-rdma.toml", "store", &["capabilities", "non-root", "user"]),
    ("eight-gpus.toml", "store", &["capabilities", "non-root", "user"]),
    ("rdma-hugepages.toml", "store", &["capabilities", "non-root", "user"]),
    // An SSD tier in a directory of the host, and processes bound to NUMA nodes.
    ("store-nodes.toml", "store", &["capabilities", "volume types", "non-root", "user"]),
];

#[test]
fn pods_of_masters_and_nodes_meet_the_restricted_profile() {
    let mut restricted = 0;
    for name in all_fixtures() {
        for format in ["k8s", "rbg"] {
            for (role, found) in violations(format, &name, &[]) {
                if role != "master" && role != "store" {
                    continue;
                }
                let expected = EXCEPTIONS.iter().find(|known| known.0 == name && known.1 == role);
                assert_eq!(found, expected.map_or(&[][..], |known| known.2), "{format} {name} {role}");
                restricted += usize::from(found.is_empty());
            }
        }
    }
    assert!(restricted >= 20, "{restricted}");
}

#[test]
fn a_node_bound_to_a_numa_node_adds_one_capability_as_any_user() {
    let found = violations("k8s", "mcctl.toml", &["--set", "nodes.numa=[0]"]);
    let store = found.iter().find(|(role, _)| role == "store").expect("a store");
    assert_eq!(store.1, ["capabilities"]);
}

#[test]
fn the_host_network_is_the_only_violation_that_it_adds() {
    for (role, found) in violations("k8s", "mcctl.toml", &["--set", "kubernetes.host_network=true"]) {
        assert!(role == "server" || found == ["host namespaces"], "{role}: {found:?}");
    }
}
