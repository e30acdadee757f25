//! Rendered Kubernetes manifests: valid by our rules and by the CRD schema, and equal to reviewed
//! snapshots.

use std::fs;
use std::path::Path;

use mcctl::engine::deploy::render::{RenderFormat, render};
use mcctl::engine::deploy::{DeploymentSpec, FileFormat, parse};
use mcctl::engine::kube::rbg;
use serde_json::Value;

use super::{assert_matches_schema, assert_valid, documents};
use crate::cli::mcctl;

/// Deployments with features that the fixtures lack.
const MORE: &[(&str, &str)] = &[
    (
        "pd with nodes and huge pages of 1 GiB",
        "name = 'chat'\n[model]\npath = '/models/Qwen3-32B'\nknown_as = 'Qwen3-32B'\ntp = 2\nhicache_size_gb = 32\n\
         [nodes]\nreplicas = 2\n[serving]\nmode = 'pd'\n[serving.prefill]\nreplicas = 2\n[serving.decode]\nreplicas = 2\n\
         [hugepages]\nsize = '1GiB'\n[kubernetes]\nnamespace = 'inference'\nmodel_claim = 'models'\n\
         node_selector = { pool = 'gpu' }\n",
    ),
    (
        "elected masters and nodes",
        "[model]\npath = 'Qwen/Qwen3-32B'\nhicache_size_gb = 64\n[master]\nhosts = ['10.0.0.1', '10.0.0.2']\n[master.ha]\n\
         etcd = ['etcd-0.etcd:2379', 'etcd-1.etcd:2379']\nreplicas = 3\ncluster_id = 'chat'\n[nodes]\nreplicas = 2\n",
    ),
    (
        "host network and host folder",
        "programs = 'mcctl'\n[model]\npath = 'Qwen/Qwen3-0.6B'\nhicache_ratio = 2.0\nextra_args = ['--chat-template=$(HOME) $$']\n\
         [metadata]\nkind = 'http'\n[nodes]\nreplicas = 1\n[images]\nmcctl = 'registry.example/mcctl:0.1.0'\n\
         [kubernetes]\nhost_network = true\nmodel_host_path = '/data/models'\nstorage_class = 'fast'\n\
         master_storage = '20GiB'\n",
    ),
    (
        "memory only",
        "programs = 'mcctl'\n[model]\npath = 'Qwen/Qwen3-0.6B'\nhicache_ratio = 2.0\n[master]\ndata_dir = ''\n\
         [images]\nmcctl = 'registry.example/mcctl:0.1.0'\n",
    ),
];

/// The API of a rendered manifest.
#[derive(Clone, Copy)]
enum Target {
    K8s,
    Rbg,
    OldRbg,
}

/// All deployments with their names.
fn deployments(to: Target) -> Vec<(String, DeploymentSpec)> {
    let set = if matches!(to, Target::OldRbg) { vec!["kubernetes.rbg_api=v1alpha1".to_owned()] } else { Vec::new() };
    let mut all = Vec::new();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/deploy")).unwrap() {
        let path = file.unwrap().path();
        let format = FileFormat::of_extension(path.extension().unwrap().to_str().unwrap()).unwrap();
        let spec = parse(&fs::read_to_string(&path).unwrap(), format, &set).unwrap();
        all.push((path.file_stem().unwrap().to_str().unwrap().to_owned(), spec));
    }
    let more = |(name, text): &(&str, &str)| ((*name).to_owned(), parse(text, FileFormat::Toml, &set).unwrap());
    all.extend(MORE.iter().map(more));
    assert!(all.len() >= 8);
    all
}

fn manifest(spec: &DeploymentSpec, to: Target) -> String {
    let kind = if matches!(to, Target::K8s) { RenderFormat::K8s } else { RenderFormat::Rbg };
    let files = render(spec, kind, "deployment.toml").unwrap();
    assert_eq!(files.len(), 1);
    files[0].text.clone()
}

fn manifests(to: Target) -> Vec<(String, String)> {
    deployments(to).into_iter().map(|(name, spec)| (name, manifest(&spec, to))).collect()
}

#[track_caller]
fn named(name: &str, to: Target) -> String {
    manifests(to).into_iter().find(|(known, _)| known == name).unwrap().1
}

#[test]
fn every_manifest_is_valid() {
    for (name, text) in manifests(Target::K8s) {
        assert_valid(&name, &text);
    }
    for (to, version) in [(Target::Rbg, rbg::V1ALPHA2), (Target::OldRbg, rbg::V1ALPHA1)] {
        for (name, text) in manifests(to) {
            assert_valid(&format!("{name}, {version}"), &text);
            assert_eq!(documents(&text)[0]["apiVersion"], version);
        }
    }
}

#[test]
#[ignore = "needs the schema folder: set MCCTL_RBG_SCHEMA_DIR"]
fn rendered_groups_match_the_crd_schema() {
    for to in [Target::Rbg, Target::OldRbg] {
        for (name, text) in manifests(to) {
            assert_eq!(assert_matches_schema(&name, &text), 1, "{name}");
        }
    }
}

#[test]
fn manifests_match_their_snapshots() {
    for (name, to, word) in [
        ("store-nodes", Target::K8s, "k8s"),
        ("ha", Target::K8s, "k8s"),
        ("mcctl", Target::K8s, "k8s"),
        ("mcctl-ha", Target::K8s, "k8s"),
        ("mcctl", Target::Rbg, "rbg"),
        ("pd", Target::Rbg, "rbg"),
        ("distributed", Target::Rbg, "rbg"),
        ("distributed", Target::OldRbg, "rbg-v1alpha1"),
    ] {
        insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
            insta::assert_snapshot!(format!("{name}-{word}"), named(name, to));
        });
    }
}

/// All pod templates in a document.
fn pods(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(map) => {
            let own = map.get("template").filter(|t| t["spec"]["containers"].is_array());
            own.into_iter().chain(map.values().flat_map(pods)).collect()
        }
        Value::Array(list) => list.iter().flat_map(pods).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn services_select_pods_that_listen_on_their_ports() {
    for (name, text) in manifests(Target::K8s) {
        let all = documents(&text);
        let pods: Vec<&Value> = all.iter().flat_map(pods).collect();
        let services: Vec<&Value> = all.iter().filter(|d| d["kind"] == "Service").collect();
        for service in &services {
            let selector = service["spec"]["selector"].as_object().unwrap();
            let chosen: Vec<_> = pods
                .iter()
                .filter(|pod| {
                    let labels = &pod["metadata"]["labels"];
                    selector.iter().all(|(k, v)| k == "apps.kubernetes.io/pod-index" || labels.get(k) == Some(v))
                })
                .collect();
            assert!(!chosen.is_empty(), "{name}: {} selects nothing", service["metadata"]["name"]);
            for port in service["spec"]["ports"].as_array().unwrap() {
                let of = |pod: &&&Value| pod["spec"]["containers"].as_array().unwrap().clone();
                let mut ports = chosen.iter().flat_map(of).flat_map(|c| c["ports"].as_array().unwrap().clone());
                assert!(
                    ports.any(|open| open["containerPort"] == port["port"]),
                    "{name}: no container listens on {port}"
                );
            }
        }
        for pod in &pods {
            for container in pod["spec"]["containers"].as_array().unwrap() {
                let master = container["env"].as_array().into_iter().flatten().find(|v| v["name"] == "MOONCAKE_MASTER");
                let Some(address) = master.and_then(|v| v["value"].as_str()) else { continue };
                let host = address.split(':').next().unwrap();
                assert!(
                    address.starts_with("etcd://") || services.iter().any(|s| s["metadata"]["name"] == host),
                    "{name}: {address}"
                );
            }
        }
    }
}

#[test]
fn requests_equal_limits_and_clients_have_their_settings() {
    for (name, text) in manifests(Target::K8s) {
        for document in documents(&text) {
            for pod in pods(&document) {
                let grace = pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
                for container in pod["spec"]["containers"].as_array().unwrap() {
                    let resources = &container["resources"];
                    for (what, limit) in resources["limits"].as_object().into_iter().flatten() {
                        assert_eq!(resources["requests"].get(what), Some(limit), "{name}: {what}");
                    }
                    let image = container["image"].as_str().unwrap();
                    assert!(image.contains(':') && !image.ends_with(":latest"), "{name}: {image}");
                    let has = |variable: &str| {
                        container["env"].as_array().into_iter().flatten().any(|v| v["name"] == variable)
                    };
                    if has("MOONCAKE_MASTER") {
                        assert!(
                            has("POD_IP") && has("MOONCAKE_LOCAL_HOSTNAME") && grace > 90 || image.contains("mcctl"),
                            "{name}"
                        );
                        let added = container["securityContext"]["capabilities"]["add"].as_array();
                        let locks = added.into_iter().flatten().any(|name| name == "IPC_LOCK");
                        let users = [container, &pod["spec"]].map(|at| &at["securityContext"]["runAsUser"]);
                        assert!(!locks || users.iter().any(|user| **user == 0), "{name}");
                    }
                    let huge =
                        resources["limits"].as_object().into_iter().flatten().any(|(k, _)| k.starts_with("hugepages-"));
                    assert_eq!(huge, has("MC_STORE_USE_HUGEPAGE"), "{name}");
                }
            }
        }
    }
}

/// The documents of `kind` whose names begin with `name`.
fn of_kind<'d>(documents: &'d [Value], kind: &str, name: &str) -> Vec<&'d Value> {
    let is_named = |document: &&Value| document["metadata"]["name"].as_str().is_some_and(|text| text.starts_with(name));
    documents.iter().filter(|document| document["kind"] == kind).filter(is_named).collect()
}

#[test]
fn a_master_with_a_data_directory_is_a_stateful_set_with_a_claim() {
    let all = documents(&named("mcctl", Target::K8s));
    let sets = of_kind(&all, "StatefulSet", "ours-master");
    let [set] = sets[..] else { panic!("{all:#?}") };
    let spec = &set["spec"];
    assert_eq!((spec["replicas"].as_u64(), spec["updateStrategy"]["type"].as_str()), (Some(1), Some("RollingUpdate")));
    let claim = &spec["volumeClaimTemplates"][0];
    assert_eq!(claim["spec"]["accessModes"], serde_json::json!(["ReadWriteOnce"]));
    let pod = &spec["template"]["spec"];
    assert!(pod["securityContext"]["fsGroup"].is_u64() && pod["terminationGracePeriodSeconds"].as_u64() > Some(60));
    let container = &pod["containers"][0];
    let mount = &container["volumeMounts"][0];
    assert_eq!(mount["name"], claim["metadata"]["name"]);
    let flag = format!("--data-dir={}", mount["mountPath"].as_str().unwrap());
    assert!(container["args"].as_array().unwrap().iter().any(|arg| *arg == flag.as_str()), "{container:#?}");
    // Clients connect to an address that does not change with the pod.
    let services = of_kind(&all, "Service", "ours-master");
    let is_headless = |service: &&&Value| service["spec"]["clusterIP"] == "None";
    let [governing] = services.iter().filter(is_headless).collect::<Vec<_>>()[..] else { panic!("{services:#?}") };
    assert_eq!(governing["metadata"]["name"], spec["serviceName"]);
    assert_eq!(services.len(), 2, "and one with an address");
}

#[test]
fn each_elected_master_has_a_claim_of_its_own() {
    let all = documents(&named("mcctl-ha", Target::K8s));
    let sets = of_kind(&all, "StatefulSet", "ha-master");
    let [set] = sets[..] else { panic!("{all:#?}") };
    let spec = &set["spec"];
    assert_eq!((spec["replicas"].as_u64(), spec["updateStrategy"]["type"].as_str()), (Some(3), Some("OnDelete")));
    let templates = spec["volumeClaimTemplates"].as_array().unwrap();
    let [claim] = &templates[..] else { panic!("{templates:#?}") };
    let pod = &spec["template"]["spec"];
    assert!(pod["volumes"].is_null() || pod["volumes"] == serde_json::json!([]), "no volume is shared: {pod:#?}");
    assert!(pod["securityContext"]["fsGroup"].is_u64() && pod["terminationGracePeriodSeconds"].as_u64() > Some(60));
    let mount = &pod["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["name"], claim["metadata"]["name"]);
    let flag = format!("--data-dir={}", mount["mountPath"].as_str().unwrap());
    assert!(pod["containers"][0]["args"].as_array().unwrap().iter().any(|arg| *arg == flag.as_str()), "{pod:#?}");
    // Clients wait for the pods by name.
    let services = of_kind(&all, "Service", "ha-master");
    let [service] = services[..] else { panic!("{services:#?}") };
    assert_eq!((&service["metadata"]["name"], &service["spec"]["clusterIP"]), (&spec["serviceName"], &"None".into()));
    for to in [Target::Rbg, Target::OldRbg] {
        let group = documents(&named("mcctl-ha", to));
        assert!(of_kind(&group, "PersistentVolumeClaim", "").is_empty());
        assert!(!serde_json::to_string(&group).unwrap().contains("data-dir"));
    }
}

#[test]
fn the_metadata_service_leads_to_every_ready_master() {
    for to in [Target::K8s, Target::Rbg, Target::OldRbg] {
        let all = documents(&named("mcctl-ha-metadata", to));
        let services = of_kind(&all, "Service", "records-master-metadata");
        let [service] = services[..] else { panic!("{services:#?}") };
        let spec = &service["spec"];
        assert!(spec["clusterIP"].is_null() && spec["publishNotReadyAddresses"].is_null(), "{spec}");
        assert_eq!(spec["ports"], serde_json::json!([{"name": "metadata", "port": 8080}]));
        let pods: Vec<&Value> = all.iter().flat_map(pods).collect();
        let container = |name: &str| {
            let mut all = pods.iter().flat_map(|pod| pod["spec"]["containers"].as_array().into_iter().flatten());
            all.find(|container| container["name"] == name).expect("a container")
        };
        let probe = &container("master")["readinessProbe"]["httpGet"];
        assert_eq!((&probe["path"], &probe["port"]), (&"/health".into(), &8080.into()));
        let env = serde_json::to_string(&container("server")["env"]).unwrap();
        assert!(env.contains("http://records-master-metadata:8080/metadata"), "{env}");
        assert_eq!(of_kind(&all, "PodDisruptionBudget", "records-master").len(), 1);
        if let Target::K8s = to {
            let own = &pods.iter().find(|pod| pod["spec"]["containers"][0]["name"] == "master").expect("a pod");
            let labels = &own["metadata"]["labels"];
            let selector = spec["selector"].as_object().expect("a selector");
            assert!(selector.iter().all(|(key, value)| labels[key] == *value), "{selector:?}");
        }
        assert!(of_kind(&documents(&named("mcctl-ha", to)), "Service", "ha-master-metadata").is_empty());
    }
}

#[test]
fn a_group_refers_to_the_claim_of_its_master() {
    for to in [Target::Rbg, Target::OldRbg] {
        let all = documents(&named("mcctl", to));
        let claims = of_kind(&all, "PersistentVolumeClaim", "ours-master-data");
        assert_eq!(claims.len(), 1, "{all:#?}");
        let pods = pods(&all[0]);
        let volumes = pods.iter().flat_map(|pod| pod["spec"]["volumes"].as_array().into_iter().flatten());
        let claimed: Vec<_> =
            volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str()).collect();
        assert_eq!(claimed, ["ours-master-data"]);
    }
}

#[test]
fn a_master_without_a_data_directory_has_no_volume() {
    let all = documents(&named("memory only", Target::K8s));
    assert!(of_kind(&all, "StatefulSet", "hicache-master").is_empty());
    assert_eq!(of_kind(&all, "Deployment", "hicache-master")[0]["spec"]["strategy"]["type"], "Recreate");
    let group = documents(&named("memory only", Target::Rbg));
    assert!(of_kind(&group, "PersistentVolumeClaim", "").is_empty());
}

#[test]
fn dollar_signs_are_escaped() {
    let text = named(MORE[2].0, Target::K8s);
    assert!(text.contains("--chat-template=$$(HOME) $$$"), "{text}");
}

#[test]
fn no_service_exposes_the_rpc_port_of_elected_masters() {
    for to in [Target::K8s, Target::Rbg, Target::OldRbg] {
        let all = documents(&named(MORE[1].0, to));
        let text = serde_json::to_string(&all).unwrap();
        let ports = all.iter().filter(|d| d["kind"] == "Service").flat_map(|d| d["spec"]["ports"].as_array().unwrap());
        assert!(ports.clone().all(|port| port["port"] != 50051), "{text}");
        assert!(text.contains("service_ready") && text.contains("etcd://etcd-0.etcd:2379;etcd-1.etcd:2379"));
    }
    let group = &documents(&named(MORE[1].0, Target::Rbg))[0];
    let waits = group["spec"]["roles"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|role| role["dependencies"].as_array().is_some_and(|on| on.iter().any(|name| name == "master")));
    assert_eq!(waits.count(), 0, "standbys are never ready");
}

#[test]
fn lint_finds_no_mistake_in_rendered_manifests() {
    let folder = tempfile::tempdir().unwrap();
    for to in [Target::K8s, Target::Rbg, Target::OldRbg] {
        for (name, text) in manifests(to) {
            let path = folder.path().join("manifest.yaml");
            fs::write(&path, &text).unwrap();
            let run = mcctl(&["lint", "--json", path.to_str().unwrap()]);
            let found: Value = serde_json::from_str(run.succeeds()).unwrap();
            let all = documents(&text);
            let containers = all.iter().flat_map(pods).map(|pod| pod["spec"]["containers"].as_array().unwrap().len());
            assert_eq!(
                found["processes"].as_array().unwrap().len(),
                containers.sum::<usize>(),
                "{name}: lint finds every container"
            );
            let findings = found["findings"].as_array().unwrap();
            let above: Vec<_> = findings.iter().filter(|finding| finding["severity"] != "info").collect();
            assert!(above.is_empty(), "{name}: {above:#?}");
        }
    }
}
