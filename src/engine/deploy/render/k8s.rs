//! Renders Deployments, StatefulSets, Services and disruption budgets.
//!
//! Pods that are addressed individually (store nodes, elected masters, servers of a disaggregated
//! or distributed deployment) form a StatefulSet behind a headless Service of the same name. Other
//! pods form a Deployment behind a ClusterIP Service of the same name. Masters with data
//! directories are a StatefulSet with a claim template, so that each pod has a volume of its own.
//! The clients of a single master use a ClusterIP Service, whose address does not change when the
//! pod is replaced; a second, headless Service belongs to the StatefulSet.

use serde_yaml_ng::Value;

use crate::plan::master_disk::VOLUME_BYTES_MIN;
use crate::plans::PlanContext;
use crate::render::pod::{DATA_VOLUME, POD_INDEX_LABEL, PodWorkload, startup_probe};
use crate::render::yaml::{self, CommentedDocument, ToYaml, map, pairs};
use crate::render::{RenderContext, RenderedFile, network_policy, notes, requirements};
use crate::{ComponentRole, DeployError, ProcessPlan, ServingMode};
use mcctl_base::ByteSize;

/// Renders a single file, k8s.yaml.
pub(crate) fn files(context: &RenderContext<'_>) -> Result<Vec<RenderedFile>, DeployError> {
    let documents: Vec<CommentedDocument> =
        grouped_documents(context)?.into_iter().flat_map(|(_, documents)| documents).collect();
    let head = format!("{}\n# kubectl apply -f k8s.yaml", context.head);
    Ok(vec![RenderedFile { name: "k8s.yaml".to_owned(), text: yaml::file(&head, &documents) }])
}

/// All documents in order, grouped by workload. The last group may be the Service that clients use.
/// Each group has a unique name.
pub(crate) fn grouped_documents(
    context: &RenderContext<'_>,
) -> Result<Vec<(String, Vec<CommentedDocument>)>, DeployError> {
    let mut groups = Vec::new();
    for workload in PodWorkload::all(context) {
        let mut documents = vec![(String::new(), service(context, &workload))];
        documents.extend(governing_service(context, &workload));
        let records = metadata_service(context, &workload, workload.selector());
        documents.extend(records.map(|service| (RECORDS_SERVICE.to_owned(), service)));
        documents.push(match has_stable_pods(context, &workload) || workload.data().is_some() {
            true => stateful_set(context, &workload)?,
            false => deployment(context, &workload)?,
        });
        documents.extend(disruption_budget(context, &workload));
        documents.extend(network_policy::policy(context, &workload));
        groups.push((workload.name.to_owned(), documents));
    }
    if context.spec.serving.mode == ServingMode::Distributed {
        groups.push((entry_name(context), vec![first_ranks(context)]));
    }
    Ok(groups)
}

/// Whether peers address the pods individually.
fn has_stable_pods(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> bool {
    match workload.role {
        ComponentRole::Master => workload.is_elected(context),
        ComponentRole::Store | ComponentRole::Prefill | ComponentRole::Decode => true,
        ComponentRole::Server => context.spec.serving.mode == ServingMode::Distributed,
        ComponentRole::MetadataProxy | ComponentRole::Router => false,
    }
}

/// Why elected masters have no disruption budget.
pub(super) const ONE_DRAIN: &str =
    "No disruption budget: only the leader is ready, so a budget would block drains. Drain one node at a time.";

/// When elected masters with the metadata service are ready.
pub(super) const RECORDS_READY: &str =
    "A master is ready while it serves metadata records: the leader, and standbys in sync.";
/// The comment above [`metadata_service`].
pub(super) const RECORDS_SERVICE: &str = "The metadata service of the masters: each one that is ready serves it.";

/// The Service in front of the metadata services of elected masters, which selects pods by
/// `selector`.
pub(super) fn metadata_service(
    context: &RenderContext<'_>,
    workload: &PodWorkload<'_>,
    selector: impl ToYaml,
) -> Option<Value> {
    if !workload.is_elected(context) || !context.spec.replicates_metadata() {
        return None;
    }
    let plans = PlanContext { spec: context.spec, platform: context.platform };
    let (name, port) = workload.ports().into_iter().find(|(name, _)| name == "metadata")?;
    Some(map! {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(context, &plans.metadata_service(), pairs(workload.labels(context))),
        "spec": map! {
            "selector": selector,
            "ports": vec![map! { "name": name, "port": port }],
        },
    })
}

fn metadata(context: &RenderContext<'_>, name: &str, labels: Option<Value>) -> Value {
    map! { "name": name, "namespace": &context.spec.kubernetes.namespace, "labels": labels }
}

/// The comment above a workload: its requirements and notes on its role.
fn comment(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> String {
    let mut lines: Vec<String> =
        workload.plans.iter().map(|plan| format!("{} needs {}.", plan.name, requirements(plan))).collect();
    lines.extend(workload.plans.iter().flat_map(|plan| notes(context, plan)));
    lines.extend(workload.model_note(context));
    if workload.role == ComponentRole::Decode {
        lines.push("Decode servers do not use HiCache; prefill servers query the store.".to_owned());
    }
    if workload.is_elected(context) && context.spec.replicates_metadata() {
        lines.push(RECORDS_READY.to_owned());
        lines.push("Clients find the leader through etcd, so no Service exposes the RPC port.".to_owned());
        lines.push(
            "Updates do not roll out automatically: delete one standby pod after the other, wait until each is ready, then delete the \
             leader pod."
                .to_owned(),
        );
    } else if workload.is_elected(context) {
        lines.push(
            "Only the leader is ready. Clients find it through etcd, so no Service exposes the RPC port.".to_owned(),
        );
        lines.push(
            "Standbys are never ready, so updates do not roll out automatically: delete the standby pods, then the \
             leader pod."
                .to_owned(),
        );
        lines.push(ONE_DRAIN.to_owned());
    }
    if workload.data().is_some() {
        if context.spec.kubernetes.master_storage.is_none() {
            let claim = if workload.replicas > 1 { "The claim of each pod" } else { "The claim" };
            lines.push(format!("{claim} is twice that disk space, and at least {}.", ByteSize(VOLUME_BYTES_MIN)));
        }
        lines.push("The grace period includes the time for a final snapshot.".to_owned());
    }
    lines.extend(workload.root_reason().map(|reason| format!("Runs as root, {reason}.")));
    lines.join("\n")
}

fn service(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> Value {
    let headless = has_stable_pods(context, workload);
    map! {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(context, workload.name, pairs(workload.labels(context))),
        "spec": map! {
            "clusterIP": headless.then_some("None"),
            // Ranks, routers and clients look up pods before they are ready.
            "publishNotReadyAddresses": headless.then_some(true),
            "selector": workload.selector(),
            "ports": workload.service_ports(context),
        },
    }
}

/// Whether clients use a Service with an address, so that the StatefulSet or Prometheus needs a
/// headless one, too.
fn has_two_services(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> bool {
    let is_needed = workload.data().is_some() || workload.role == ComponentRole::Server;
    is_needed && !has_stable_pods(context, workload)
}

/// The name of the headless Service that a StatefulSet refers to.
fn governing_name(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> String {
    if has_two_services(context, workload) { format!("{}-pods", workload.name) } else { workload.name.to_owned() }
}

/// The second, headless Service of a StatefulSet whose clients use a Service with an address.
fn governing_service(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> Option<CommentedDocument> {
    if !has_two_services(context, workload) {
        return None;
    }
    let document = map! {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(context, &governing_name(context, workload), pairs(workload.labels(context))),
        "spec": map! {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": workload.selector(),
            "ports": workload.service_ports(context),
        },
    };
    let what = match workload.role {
        ComponentRole::Server => "The addresses of all pods, for Prometheus",
        _ => "The DNS name of the pod",
    };
    Some((format!("{what}. Clients use {}.", workload.name), document))
}

fn deployment(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> Result<CommentedDocument, DeployError> {
    // Two masters would each hold part of the objects. Servers are replaced one by one, because no
    // GPUs are left for additional pods.
    let strategy = if workload.role == ComponentRole::Master {
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
            // Loading a model takes longer than the default progress deadline.
            "progressDeadlineSeconds": starts_within(workload),
            "selector": map! { "matchLabels": workload.selector() },
            "template": workload.template(context)?,
        },
    };
    Ok((comment(context, workload), document))
}

/// Seconds until an unready pod counts as failed. Must exceed the maximum duration of its startup
/// probe.
fn starts_within(workload: &PodWorkload<'_>) -> u32 {
    let of = |plan: &&ProcessPlan| {
        let startup = startup_probe(plan);
        startup.period_s.saturating_mul(startup.failures)
    };
    workload.plans.iter().map(of).max().unwrap_or(0).saturating_add(600)
}

fn stateful_set(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> Result<CommentedDocument, DeployError> {
    let ranks = workload.size > 1;
    let mut comment = comment(context, workload);
    let update = if workload.is_elected(context) {
        map! { "type": "OnDelete" }
    } else if ranks {
        comment.push_str(
            "\nThe pods are ranks of one server and must change together: after an apply, delete all of them.",
        );
        map! { "type": "OnDelete" }
    } else {
        map! { "type": "RollingUpdate" }
    };
    let claim = workload.claim(context, map! { "name": DATA_VOLUME, "labels": workload.labels(context) });
    let document = map! {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(context, workload.name, pairs(workload.labels(context))),
        "spec": map! {
            "replicas": workload.replicas * workload.size,
            "serviceName": governing_name(context, workload),
            "podManagementPolicy": "Parallel",
            "updateStrategy": update,
            "selector": map! { "matchLabels": workload.selector() },
            "template": workload.template(context)?,
            "volumeClaimTemplates": claim.map(|claim| vec![claim]),
        },
    };
    Ok((comment, document))
}

/// A disruption budget that allows one disrupted pod at a time.
fn disruption_budget(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> Option<CommentedDocument> {
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

/// The name of the Service for the first ranks.
fn entry_name(context: &RenderContext<'_>) -> String {
    format!("{}-{}", context.spec.name, ComponentRole::Server.word())
}

/// A Service for the first rank of each server. The other ranks only serve /health.
fn first_ranks(context: &RenderContext<'_>) -> CommentedDocument {
    let spec = context.spec;
    let name = entry_name(context);
    let labels = [
        ("app.kubernetes.io/part-of", spec.name.as_str()),
        ("app.kubernetes.io/component", ComponentRole::Server.word()),
    ];
    let selector = labels.into_iter().chain([(POD_INDEX_LABEL, "0")]);
    let document = map! {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(context, &name, pairs(labels)),
        "spec": map! {
            "selector": pairs(selector),
            "ports": vec![map! { "name": "http", "port": spec.serving.port }],
        },
    };
    ("Client entry point: the first rank of each server (label available since Kubernetes 1.28).".to_owned(), document)
}
