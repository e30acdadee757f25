//! Renders a RoleBasedGroup, in either API version. Each workload becomes a role.

use serde_yaml_ng::Value;

use crate::kube::rbg::{
    GROUP_LABEL, GROUP_LABEL_V1ALPHA1, KIND, ROLE_LABEL, ROLE_LABEL_V1ALPHA1, V1ALPHA1, V1ALPHA2, service_name,
};
use crate::render::k8s::{ONE_DRAIN, RECORDS_READY, RECORDS_SERVICE, metadata_service};
use crate::render::pod::PodWorkload;
use crate::render::yaml::{self, map, pairs};
use crate::render::{RenderContext, RenderedFile, network_policy, notes, requirements};
use crate::{ComponentRole, DeployError, Programs, RbgApi};

/// Variables for leader and worker pods in v1alpha2, with their LeaderWorkerSet names.
const LEADER_WORKER_SET: [(&str, &str); 2] =
    [("$(RBG_LWP_LEADER_ADDRESS)", "$(LWS_LEADER_ADDRESS)"), ("$(RBG_LWP_WORKER_INDEX)", "$(LWS_WORKER_INDEX)")];
/// The label with the pod index in a LeaderWorkerSet.
const WORKER_INDEX_LABEL: &str = "leaderworkerset.sigs.k8s.io/worker-index";

/// Renders a single file, rbg.yaml.
pub(crate) fn files(context: &RenderContext<'_>) -> Result<Vec<RenderedFile>, DeployError> {
    let spec = context.spec;
    let old = spec.kubernetes.rbg_api == RbgApi::V1alpha1;
    let workloads = PodWorkload::all(context);
    let roles: Result<Vec<Value>, _> = workloads.iter().map(|workload| role(context, workload, old)).collect();
    let mut group = map! {
        "apiVersion": if old { V1ALPHA1 } else { V1ALPHA2 },
        "kind": KIND,
        "metadata": map! { "name": &spec.name, "namespace": &spec.kubernetes.namespace },
        "spec": map! { "roles": roles? },
    };
    if old {
        rename_variables(&mut group);
    }
    let mut documents = vec![(comment(context, &workloads, old), group)];
    documents.extend(workloads.iter().filter_map(|workload| claim(context, workload)));
    documents.extend(workloads.iter().filter_map(|workload| entry(context, workload, old)));
    documents.extend(workloads.iter().filter_map(|workload| {
        let service = metadata_service(context, workload, pairs(role_selector(context, workload, old)));
        service.map(|service| (RECORDS_SERVICE.to_owned(), service))
    }));
    documents.extend(workloads.iter().filter_map(|workload| disruption_budget(context, workload)));
    documents.extend(workloads.iter().filter_map(|workload| network_policy::policy(context, workload)));
    let head = format!("{}\n# kubectl apply -f rbg.yaml", context.head);
    Ok(vec![RenderedFile { name: "rbg.yaml".to_owned(), text: yaml::file(&head, &documents) }])
}

fn comment(context: &RenderContext<'_>, workloads: &[PodWorkload<'_>], old: bool) -> String {
    let mut lines = Vec::new();
    if old {
        lines.push("v1alpha1 is for rbg up to 0.6. It has been deprecated since 0.7.".to_owned());
    }
    for workload in workloads {
        lines.extend(workload.plans.iter().map(|plan| format!("{} needs {}.", plan.name, requirements(plan))));
        lines.extend(workload.plans.iter().flat_map(|plan| notes(context, plan)));
        lines.extend(workload.model_note(context));
        if workload.role == ComponentRole::Decode {
            lines.push("Decode servers do not use HiCache; prefill servers query the store.".to_owned());
        }
        if workload.is_elected(context) && context.spec.replicates_metadata() {
            lines.push(RECORDS_READY.to_owned());
            lines.push("Clients find the leader through etcd, and no role depends on the masters.".to_owned());
            lines.push(
                "They keep their state in memory, because the pods of a role share their volumes. An update waits until each is ready."
                    .to_owned(),
            );
        } else if workload.is_elected(context) {
            lines.push(
                "Only the leading master is ready. Clients find it through etcd, and no role depends on the masters."
                    .to_owned(),
            );
            lines.push("To update the masters, delete the standby pods, then the leader pod.".to_owned());
            lines.push(ONE_DRAIN.to_owned());
            if context.spec.programs == Programs::Mcctl {
                lines.push(
                    "They keep their state in memory, because the pods of a role share their volumes.".to_owned(),
                );
            }
        }
        if workload.size > 1 && !old {
            let service = service_name(&context.spec.name, workload.role.word());
            lines.push(format!("Send requests to the leaders of {} through Service {service}.", workload.role.word()));
        }
    }
    for workload in workloads {
        let role = workload.role.word();
        lines.extend(workload.root_reason().map(|reason| format!("The role {role} runs as root, {reason}.")));
    }
    lines.join("\n")
}

fn role(context: &RenderContext<'_>, workload: &PodWorkload<'_>, old: bool) -> Result<Value, DeployError> {
    let template = workload.template(context)?;
    let group_of_pods = workload.size > 1;
    let rolling = map! {
        "type": (workload.role == ComponentRole::Store && !old).then_some("InPlaceIfPossible"),
        "maxUnavailable": 1u32,
        "maxSurge": 0u32,
    };
    let mut role = map! {
        "name": workload.role.word(),
        "replicas": workload.replicas,
        "dependencies": dependencies(context, workload),
        "rolloutStrategy": map! { "type": "RollingUpdate", "rollingUpdate": rolling },
        "servicePorts": workload.service_ports(context),
    };
    // If one rank is lost, its whole server terminates.
    let together = "RecreateRoleInstanceOnPodRestart";
    let pods = match (old, group_of_pods) {
        (false, false) => map! { "standalonePattern": map! { "template": template } },
        (false, true) => map! {
            "leaderWorkerPattern": map! {
                "size": workload.size,
                "sharedServiceSelection": "LeaderOnly",
                "restartPolicyConfig": map! { "type": together },
                "template": template,
            },
        },
        (true, false) => {
            map! { "workload": map! { "apiVersion": "apps/v1", "kind": "StatefulSet" }, "template": template }
        }
        (true, true) => map! {
            "restartPolicy": together,
            "workload": map! { "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet" },
            "leaderWorkerSet": map! { "size": workload.size },
            "template": template,
        },
    };
    if let (Value::Mapping(role), Value::Mapping(pods)) = (&mut role, pods) {
        role.extend(pods);
    }
    Ok(role)
}

/// Roles that must be ready first. Elected masters are excluded: standbys are never ready, so the
/// group would wait forever. The processes wait for the leader themselves.
fn dependencies(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> Vec<String> {
    let mut names = Vec::new();
    for role in workload.plans.iter().flat_map(|plan| &plan.after) {
        let skipped = *role == ComponentRole::Master && context.spec.master.ha.is_some();
        if !skipped && !names.contains(&role.word()) {
            names.push(role.word());
        }
    }
    names.into_iter().map(str::to_owned).collect()
}

/// The Service for client requests, in front of the router or of the servers.
fn entry(context: &RenderContext<'_>, workload: &PodWorkload<'_>, old: bool) -> Option<(String, Value)> {
    let leaders = workload.size > 1;
    if !matches!(workload.role, ComponentRole::Router | ComponentRole::Server) || (leaders && !old) {
        return None;
    }
    let spec = context.spec;
    let first = leaders.then_some((WORKER_INDEX_LABEL, "0"));
    let http = workload.ports().into_iter().find(|(name, _)| name == "http")?;
    let service = map! {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": map! { "name": workload.name, "namespace": &spec.kubernetes.namespace },
        "spec": map! {
            "selector": pairs(role_selector(context, workload, old).into_iter().chain(first)),
            "ports": vec![map! { "name": http.0, "port": http.1 }],
        },
    };
    Some(("Client entry point.".to_owned(), service))
}

/// The labels that select the pods of a role.
fn role_selector<'a>(
    context: &'a RenderContext<'_>,
    workload: &PodWorkload<'_>,
    old: bool,
) -> [(&'static str, &'a str); 2] {
    let (group, role) = if old { (GROUP_LABEL_V1ALPHA1, ROLE_LABEL_V1ALPHA1) } else { (GROUP_LABEL, ROLE_LABEL) };
    [(group, context.spec.name.as_str()), (role, workload.role.word())]
}

/// The claim for a workload's data, which RoleBasedGroups cannot contain.
fn claim(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> Option<(String, Value)> {
    let data = workload.data()?;
    let metadata = map! { "name": &data.name, "namespace": &context.spec.kubernetes.namespace };
    let mut document = map! { "apiVersion": "v1", "kind": "PersistentVolumeClaim" };
    if let (Value::Mapping(document), Value::Mapping(claim)) = (&mut document, workload.claim(context, metadata)?) {
        document.extend(claim);
    }
    let comment = format!("The log and snapshots of {}. kubectl delete -f rbg.yaml deletes them, too.", workload.name);
    Some((comment, document))
}

/// A disruption budget that allows one disrupted pod at a time. For pods without a scale
/// subresource, only an absolute number is supported.
fn disruption_budget(context: &RenderContext<'_>, workload: &PodWorkload<'_>) -> Option<(String, Value)> {
    if !workload.has_budget(context) {
        return None;
    }
    let document = map! {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": map! { "name": workload.name, "namespace": &context.spec.kubernetes.namespace },
        "spec": map! {
            "minAvailable": workload.replicas - 1,
            "selector": map! { "matchLabels": workload.selector() },
        },
    };
    Some((String::new(), document))
}

/// Replaces the variables for leaders and workers with their v1alpha1 names.
fn rename_variables(value: &mut Value) {
    match value {
        Value::String(text) => {
            for (new, old) in LEADER_WORKER_SET {
                *text = text.replace(new, old);
            }
        }
        Value::Sequence(items) => items.iter_mut().for_each(rename_variables),
        Value::Mapping(map) => map.values_mut().for_each(rename_variables),
        _ => {}
    }
}
