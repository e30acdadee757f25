//! A RoleBasedGroup, in either version of its API: a role for each workload.

use serde_yaml_ng::Value;

use crate::engine::deploy::render::pod::Workload;
use crate::engine::deploy::render::yaml::{self, map, pairs};
use crate::engine::deploy::render::{Context, File, takes};
use crate::engine::deploy::{DeployError, RbgApi, Role};
use crate::engine::kube::rbg::{
    GROUP_LABEL, GROUP_LABEL_V1ALPHA1, KIND, ROLE_LABEL, ROLE_LABEL_V1ALPHA1, V1ALPHA1, V1ALPHA2, service_name,
};

/// Names of v1alpha2 for the pods of a leader and its workers, and those that a LeaderWorkerSet gives them.
const LEADER_WORKER_SET: [(&str, &str); 2] =
    [("$(RBG_LWP_LEADER_ADDRESS)", "$(LWS_LEADER_ADDRESS)"), ("$(RBG_LWP_WORKER_INDEX)", "$(LWS_WORKER_INDEX)")];
/// The label by which a LeaderWorkerSet numbers pods.
const WORKER_INDEX_LABEL: &str = "leaderworkerset.sigs.k8s.io/worker-index";

/// The file: rbg.yaml.
pub(crate) fn files(context: &Context<'_>) -> Result<Vec<File>, DeployError> {
    let wanted = context.wanted;
    let old = wanted.kubernetes.rbg_api == RbgApi::V1alpha1;
    let workloads = Workload::all(context);
    let roles: Result<Vec<Value>, _> = workloads.iter().map(|workload| role(context, workload, old)).collect();
    let mut group = map! {
        "apiVersion": if old { V1ALPHA1 } else { V1ALPHA2 },
        "kind": KIND,
        "metadata": map! { "name": &wanted.name, "namespace": &wanted.kubernetes.namespace },
        "spec": map! { "roles": roles? },
    };
    if old {
        renamed(&mut group);
    }
    let mut documents = vec![(said(context, &workloads, old), group)];
    documents.extend(workloads.iter().filter_map(|workload| entry(context, workload, old)));
    documents.extend(workloads.iter().filter_map(|workload| disruption_budget(context, workload)));
    let head = format!("{}\n# kubectl apply -f rbg.yaml", context.head);
    Ok(vec![File { name: "rbg.yaml".to_owned(), text: yaml::file(&head, &documents) }])
}

fn said(context: &Context<'_>, workloads: &[Workload<'_>], old: bool) -> String {
    let mut lines = Vec::new();
    if old {
        lines.push("v1alpha1 is for rbg up to 0.6; it is deprecated from 0.7 on.".to_owned());
    }
    for workload in workloads {
        lines.extend(workload.launches.iter().map(|launch| format!("{} takes {}.", launch.name, takes(launch))));
        lines.extend(workload.model_in_image(context));
        if workload.role == Role::Decode {
            lines.push(
                "decode has no HiCache: what it decodes was looked up in the store by the prefill servers.".to_owned(),
            );
        }
        if workload.is_elected(context) {
            lines.push(
                "Of the masters the leader alone is ready. Clients find it in etcd; nothing depends on the role."
                    .to_owned(),
            );
            lines.push("To change the masters, delete the pods of the stand-bys, then the leader's.".to_owned());
        }
        if workload.size > 1 && !old {
            let service = service_name(&context.wanted.name, workload.role.word());
            lines.push(format!("Requests go to the leaders of {}: {service}.", workload.role.word()));
        }
    }
    let as_root: Vec<&str> = workloads
        .iter()
        .filter(|workload| workload.launches.iter().any(|launch| launch.resources.memlock))
        .map(|workload| workload.role.word())
        .collect();
    lines.push(format!("As root, since IPC_LOCK has no effect for other users: {}.", as_root.join(", ")));
    lines.join("\n")
}

fn role(context: &Context<'_>, workload: &Workload<'_>, old: bool) -> Result<Value, DeployError> {
    let template = workload.template(context)?;
    let group_of_pods = workload.size > 1;
    let rolling = map! {
        "type": (workload.role == Role::Store && !old).then_some("InPlaceIfPossible"),
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
    // A rank that is lost takes its server along.
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

/// Roles that must be ready before. Elected masters are no such role: a stand-by never is, and the group would wait for it for ever.
/// The processes wait for the leader themselves.
fn dependencies(context: &Context<'_>, workload: &Workload<'_>) -> Vec<String> {
    let prefix = format!("{}-", context.wanted.name);
    let mut names = Vec::new();
    for before in workload.launches.iter().flat_map(|launch| &launch.after) {
        let Some(role) = before.strip_prefix(&prefix) else { continue };
        let skipped = role == Role::Master.word() && context.wanted.master.ha.is_some();
        if !skipped && !names.contains(&role) {
            names.push(role);
        }
    }
    names.into_iter().map(str::to_owned).collect()
}

/// The Service to which requests go: before the router, or the servers themselves.
fn entry(context: &Context<'_>, workload: &Workload<'_>, old: bool) -> Option<(String, Value)> {
    let leaders = workload.size > 1;
    if !matches!(workload.role, Role::Router | Role::Server) || (leaders && !old) {
        return None;
    }
    let wanted = context.wanted;
    let (group, role) = if old { (GROUP_LABEL_V1ALPHA1, ROLE_LABEL_V1ALPHA1) } else { (GROUP_LABEL, ROLE_LABEL) };
    let selector = [(group, wanted.name.as_str()), (role, workload.role.word())];
    let first = leaders.then_some((WORKER_INDEX_LABEL, "0"));
    let http = workload.ports().into_iter().find(|(name, _)| name == "http")?;
    let service = map! {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": map! { "name": workload.name, "namespace": &wanted.kubernetes.namespace },
        "spec": map! {
            "selector": pairs(selector.into_iter().chain(first)),
            "ports": vec![map! { "name": http.0, "port": http.1 }],
        },
    };
    Some(("Where requests go.".to_owned(), service))
}

/// Nodes are drained one pod at a time. A number of pods, not a share: for pods whose owner cannot be asked, only that counts.
fn disruption_budget(context: &Context<'_>, workload: &Workload<'_>) -> Option<(String, Value)> {
    if !workload.has_budget(context) {
        return None;
    }
    let document = map! {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": map! { "name": workload.name, "namespace": &context.wanted.kubernetes.namespace },
        "spec": map! {
            "minAvailable": workload.replicas - 1,
            "selector": map! { "matchLabels": workload.selector() },
        },
    };
    Some((String::new(), document))
}

/// Gives the variables of leaders and workers the names of v1alpha1.
fn renamed(value: &mut Value) {
    match value {
        Value::String(text) => {
            for (new, old) in LEADER_WORKER_SET {
                *text = text.replace(new, old);
            }
        }
        Value::Sequence(items) => items.iter_mut().for_each(renamed),
        Value::Mapping(map) => map.values_mut().for_each(renamed),
        _ => {}
    }
}
