//! Deployments, StatefulSets, Services and disruption budgets.
//!
//! What is addressed pod by pod (nodes of the store, elected masters, servers of a disaggregated or distributed deployment) is a
//! StatefulSet behind a headless Service of its name; what is one address is a Deployment behind a ClusterIP Service of its name.

use serde_yaml_ng::Value;

use crate::engine::deploy::render::pod::{POD_INDEX_LABEL, Workload, started};
use crate::engine::deploy::render::yaml::{self, map, pairs};
use crate::engine::deploy::render::{Context, File, takes};
use crate::engine::deploy::{DeployError, Launch, Mode, Role};

/// A document and what is said above it.
type Document = (String, Value);

/// The file: k8s.yaml.
pub(crate) fn files(context: &Context<'_>) -> Result<Vec<File>, DeployError> {
    let mut documents = Vec::new();
    for workload in Workload::all(context) {
        documents.push((String::new(), service(context, &workload)));
        documents.push(match by_pod(context, &workload) {
            true => stateful_set(context, &workload)?,
            false => deployment(context, &workload)?,
        });
        documents.extend(disruption_budget(context, &workload));
    }
    if context.wanted.serving.mode == Mode::Distributed {
        documents.push(first_ranks(context));
    }
    let head = format!("{}\n# kubectl apply -f k8s.yaml", context.head);
    Ok(vec![File { name: "k8s.yaml".to_owned(), text: yaml::file(&head, &documents) }])
}

/// Do others call its pods one by one?
fn by_pod(context: &Context<'_>, workload: &Workload<'_>) -> bool {
    match workload.role {
        Role::Master => workload.is_elected(context),
        Role::Store | Role::Prefill | Role::Decode => true,
        Role::Server => context.wanted.serving.mode == Mode::Distributed,
        Role::Router => false,
    }
}

fn metadata(context: &Context<'_>, name: &str, labels: Option<Value>) -> Value {
    map! { "name": name, "namespace": &context.wanted.kubernetes.namespace, "labels": labels }
}

/// What a process takes, and what is particular about its role.
fn said(context: &Context<'_>, workload: &Workload<'_>) -> String {
    let mut lines: Vec<String> =
        workload.launches.iter().map(|launch| format!("{} takes {}.", launch.name, takes(launch))).collect();
    lines.extend(workload.model_in_image(context));
    if workload.role == Role::Decode {
        lines.push("It has no HiCache: what it decodes was looked up in the store by the prefill servers.".to_owned());
    }
    if workload.is_elected(context) {
        lines.push(
            "One of them is ready: the leader. Clients find it in etcd, so no Service stands before its RPC port."
                .to_owned(),
        );
        lines.push("Stand-bys are never ready, so changes do not roll by themselves: delete the pods of the stand-bys, then the leader's.".to_owned());
    }
    if workload.launches.iter().any(|launch| launch.resources.memlock) {
        lines.push("It runs as root, since IPC_LOCK has no effect for other users.".to_owned());
    }
    lines.join("\n")
}

fn service(context: &Context<'_>, workload: &Workload<'_>) -> Value {
    let headless = by_pod(context, workload);
    map! {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(context, workload.name, pairs(workload.labels(context))),
        "spec": map! {
            "clusterIP": headless.then_some("None"),
            // Ranks, routers and clients look for pods before these are ready.
            "publishNotReadyAddresses": headless.then_some(true),
            "selector": workload.selector(),
            "ports": workload.service_ports(context),
        },
    }
}

fn deployment(context: &Context<'_>, workload: &Workload<'_>) -> Result<Document, DeployError> {
    // Two masters would each know half of the objects. Servers roll one by one, and there are no GPUs for one more.
    let strategy = if workload.role == Role::Master {
        map! { "type": "Recreate" }
    } else {
        map! { "type": "RollingUpdate", "rollingUpdate": map! { "maxUnavailable": 1u32, "maxSurge": 0u32 } }
    };
    let document = map! {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(context, workload.name, pairs(workload.labels(context))),
        "spec": map! {
            "replicas": workload.replicas,
            "strategy": strategy,
            // A server that loads its model makes no progress for longer than Kubernetes waits by default.
            "progressDeadlineSeconds": starts_within(workload),
            "selector": map! { "matchLabels": workload.selector() },
            "template": workload.template(context)?,
        },
    };
    Ok((said(context, workload), document))
}

/// Seconds after which a pod that is not ready has failed: longer than its startup probe waits.
fn starts_within(workload: &Workload<'_>) -> u32 {
    let of = |launch: &&Launch| {
        let startup = started(launch);
        startup.period_s.saturating_mul(startup.failures)
    };
    workload.launches.iter().map(of).max().unwrap_or(0).saturating_add(600)
}

fn stateful_set(context: &Context<'_>, workload: &Workload<'_>) -> Result<Document, DeployError> {
    let ranks = workload.size > 1;
    let mut comment = said(context, workload);
    let update = if workload.is_elected(context) {
        map! { "type": "OnDelete" }
    } else if ranks {
        comment.push_str("\nIts pods are ranks of one server and change together: after an apply, delete them all.");
        map! { "type": "OnDelete" }
    } else {
        map! { "type": "RollingUpdate" }
    };
    let document = map! {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(context, workload.name, pairs(workload.labels(context))),
        "spec": map! {
            "replicas": workload.replicas * workload.size,
            "serviceName": workload.name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": update,
            "selector": map! { "matchLabels": workload.selector() },
            "template": workload.template(context)?,
        },
    };
    Ok((comment, document))
}

/// Nodes are drained one pod at a time.
fn disruption_budget(context: &Context<'_>, workload: &Workload<'_>) -> Option<Document> {
    if !workload.has_budget(context) {
        return None;
    }
    let document = map! {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(context, workload.name, pairs(workload.labels(context))),
        "spec": map! { "maxUnavailable": 1u32, "selector": map! { "matchLabels": workload.selector() } },
    };
    Some((String::new(), document))
}

/// Requests go to the first rank of a server; the others answer /health only.
fn first_ranks(context: &Context<'_>) -> Document {
    let wanted = context.wanted;
    let name = format!("{}-{}", wanted.name, Role::Server.word());
    let labels =
        [("app.kubernetes.io/part-of", wanted.name.as_str()), ("app.kubernetes.io/component", Role::Server.word())];
    let selector = labels.into_iter().chain([(POD_INDEX_LABEL, "0")]);
    let document = map! {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(context, &name, pairs(labels)),
        "spec": map! {
            "selector": pairs(selector),
            "ports": vec![map! { "name": "http", "port": wanted.serving.port }],
        },
    };
    ("Where requests go: the first rank of each server (its label is from Kubernetes 1.28 on).".to_owned(), document)
}
