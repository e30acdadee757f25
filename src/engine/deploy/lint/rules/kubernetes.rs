//! Probes, Services, host names and memory limits.

use std::collections::BTreeSet;

use crate::lint::findings::Findings;
use crate::lint::model::{KubeService, LocatedValue, ProbeMethod, Process, ProcessRole, RuntimeKind, Variable};
use crate::lint::quantity;
use crate::lint::settings::{ProcessView, SettingValue, host_of};
use crate::lint::view::DeploymentView;
use mcctl_base::ByteSize;
use mcctl_base::addr::host_is_loopback;
use mcctl_base::check::listed;

/// A probe of a port on which the master does not listen never succeeds.
pub(super) fn probe_port(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.masters() {
        let admin = member.master_port("metrics_port");
        let metadata = match member.master_switch("enable_http_metadata_server") {
            Some(true) => member.master_port("http_metadata_server_port").map(Some),
            Some(false) => Some(None),
            None => None,
        };
        // The ports of the master must be known, and no other container of the pod may listen.
        let (Some(rpc), Some(admin), Some(metadata)) = (member.rpc_port(), admin, metadata) else { continue };
        let alone = !view.same_network(member.process).any(|other| other.process.role != ProcessRole::Master);
        for probe in &member.process.probes {
            let port = match &probe.how {
                ProbeMethod::Tcp { port: Some(port) } | ProbeMethod::Http { port: Some(port), .. } => *port,
                ProbeMethod::Exec(text) => match probed_port(text) {
                    Some(port) => port,
                    None => continue,
                },
                _ => continue,
            };
            if !alone || port == rpc || port == admin || Some(port) == metadata {
                continue;
            }
            let would_be = member.master_port("http_metadata_server_port");
            let remedy = if metadata.is_none() && would_be == Some(port) {
                format!("add --enable_http_metadata_server=true, or probe /health on the metrics port {admin}")
            } else {
                format!("probe /health on the metrics port {admin}")
            };
            let mut listening = format!("the master listens on {rpc} (RPC) and {admin} (metrics)");
            if let Some(port) = metadata {
                listening = format!("the master listens on {rpc} (RPC), {admin} (metrics) and {port} (metadata)");
            }
            let key = if member.process.runtime == RuntimeKind::Compose { "healthcheck" } else { probe.what.key() };
            out.error(
                &probe.place,
                format!("{key} never succeeds: the master does not listen on port {port}"),
                listening,
                remedy,
            );
        }
        let wanted = member.process.describe();
        if metadata.is_some() || !alone {
            continue;
        }
        for client in view.clients() {
            let SettingValue::Is(url) = client.client("metadata_server") else { continue };
            if url.text.starts_with("http") && same_host(view, member.process, host_of(&url.text)) {
                out.error(
                    &url.place,
                    format!("{} cannot reach a metadata service: {wanted} does not run one", client.process.describe()),
                    format!("metadata_server is {}, and --enable_http_metadata_server is not set", url.text),
                    "pass --enable_http_metadata_server=true to the master, or set P2PHANDSHAKE on the clients",
                );
            }
        }
    }
}

/// The single local port that a command connects to.
fn probed_port(text: &str) -> Option<u16> {
    let mut asked = ["localhost:", "127.0.0.1:"].iter().flat_map(|host| text.split(host).skip(1));
    let rest = asked.next()?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    if asked.next().is_some() { None } else { rest[..digits].parse().ok() }
}

/// A client must not look for the master in its own container if the master runs in another one.
fn master_elsewhere(view: &DeploymentView<'_>, out: &mut Findings) {
    let has_a_network = |process: &Process| {
        matches!(process.runtime, RuntimeKind::Kubernetes | RuntimeKind::Compose) && !process.limits.host_network
    };
    for member in view.clients().filter(|member| has_a_network(member.process) && member.uses_mooncake() == Some(true))
    {
        let SettingValue::Is(located) = member.client("master_server_address") else { continue };
        let is_here = !located.text.contains("://") && host_is_loopback(host_of(&located.text));
        // A container in the same pod may forward to the master.
        if !is_here || view.same_network(member.process).next().is_some() {
            continue;
        }
        let other = view.masters().map(|master| master.process);
        let Some(other) = other.into_iter().find(|p| p.runtime == member.process.runtime && has_a_network(p)) else {
            continue;
        };
        out.error(
            &located.place,
            format!("{} cannot reach the master: the address points to its own container", member.process.describe()),
            format!("{}; the master is {} at {}", located.text, other.name, other.place),
            match other.name.strip_prefix("service ") {
                Some(name) => format!("replace {} with {name}", host_of(&located.text)),
                None => format!("replace {} with the name of the master's Service", host_of(&located.text)),
            },
        );
    }
}

/// Whether `host` resolves to `process`.
pub(super) fn same_host(view: &DeploymentView<'_>, process: &Process, host: &str) -> bool {
    let Some(pods) = process.pod.and_then(|at| view.deployment.pods.get(at)) else {
        return match process.runtime {
            RuntimeKind::Compose => process.name.strip_prefix("service ") == Some(host),
            _ => false,
        };
    };
    let first = host.split('.').next().unwrap_or(host);
    let by_role = pods.group.as_ref().is_some_and(|(group, role)| {
        let service = view.deployment.groups.iter().find(|g| g.name == *group).map(|g| g.service_of(role));
        service.as_deref().is_some_and(|service| host.split('.').take(2).any(|part| part == service))
    });
    let leads = |service: &&KubeService| service.name == first && selects(service, &pods.labels);
    by_role || view.deployment.services.iter().any(|service| leads(&service))
}

/// Whether the Service selects pods with these labels.
pub(super) fn selects(service: &KubeService, labels: &std::collections::BTreeMap<String, String>) -> bool {
    !service.selector.is_empty()
        && service.selector.iter().all(|(key, value)| labels.get(key).is_some_and(|label| *label == value.text))
}

/// Label keys that select a role, as pairs of group and role.
const ROLE_KEYS: [(&str, &str); 2] = [
    ("rbg.workloads.x-k8s.io/group-name", "rbg.workloads.x-k8s.io/role-name"),
    ("rolebasedgroup.workloads.x-k8s.io/name", "rolebasedgroup.workloads.x-k8s.io/role"),
];

/// A Service whose selector matches no pod has no endpoints.
pub(super) fn selector(view: &DeploymentView<'_>, out: &mut Findings) {
    let deployment = view.deployment;
    'services: for service in deployment.services.iter().filter(|service| !service.selector.is_empty()) {
        let reach = |pods: &&crate::lint::model::PodSet| match (&pods.namespace, &service.namespace) {
            (Some(theirs), Some(ours)) => theirs == ours,
            _ => true,
        };
        if deployment.pods.is_empty() || deployment.pods.iter().filter(reach).any(|pods| selects(service, &pods.labels))
        {
            continue;
        }
        for (group_key, role_key) in ROLE_KEYS {
            let (Some(role), group) = (service.selector.get(role_key), service.selector.get(group_key)) else {
                continue;
            };
            let group = match group {
                Some(located) => deployment.groups.iter().find(|g| g.name == located.text),
                None => deployment.groups.first(),
            };
            let Some(group) = group else { continue };
            if group.roles.iter().any(|known| known.text == role.text) {
                continue;
            }
            let roles: Vec<&str> = group.roles.iter().map(|r| r.text.as_str()).collect();
            out.error(
                &role.place,
                format!("Service {} selects no pods: group {} has no role {}", service.name, group.name, role.text),
                format!("the group's roles are {}", listed(&roles)),
                format!("select one of these roles, e.g. {role_key}: {}", roles.last().unwrap_or(&"")),
            );
            continue 'services;
        }
        // Pods with the same label keys are candidates. If they are in other files, the matching
        // pods may be in a missing file.
        let keys: BTreeSet<&str> = service.selector.keys().map(String::as_str).collect();
        let alike: Vec<_> = deployment
            .pods
            .iter()
            .filter(reach)
            .filter(|pods| keys.iter().all(|key| pods.labels.contains_key(*key)))
            .collect();
        if alike.is_empty() {
            continue;
        }
        let is_here = alike.iter().any(|pods| pods.place.file == service.place.file);
        let first = service.selector.values().next().map_or(&service.place, |located| &located.place);
        let wanted: Vec<String> = service.selector.iter().map(|(key, value)| format!("{key}={}", value.text)).collect();
        let evidence = format!("selector {}", wanted.join(", "));
        if is_here {
            out.error(
                first,
                format!("Service {} selects no pods: no pod has these labels", service.name),
                evidence,
                "use the pod template's labels in the selector",
            );
        } else {
            let labels = |pods: &crate::lint::model::PodSet| {
                let labels = keys.iter().filter_map(|key| Some(format!("{key}={}", pods.labels.get(*key)?)));
                format!("{} has {}", pods.name, labels.collect::<Vec<_>>().join(", "))
            };
            let shown: Vec<String> = alike.iter().map(|pods| labels(pods)).collect();
            out.warning(
                first,
                format!("Service {} selects no pods in the provided files", service.name),
                format!("{evidence}; {}", listed(&shown)),
                "use the pod template's labels in the selector, or add the file that defines those pods",
            );
        }
    }
}

/// Minimum memory of a process in addition to the memory it contributes.
const PROCESS_BYTES: u64 = 512 * ByteSize::MIB;
/// Default size of the SSD tier's staging buffer.
const STAGING_BYTES: u64 = 1_342_177_280;
/// Free memory that SGLang requires in addition to its pools.
const SGLANG_SPARE_BYTES: u64 = 10 * ByteSize::GIB;

/// A limit that does not exceed the contributed memory causes an OOM kill hours later, because
/// pages are touched lazily.
pub(super) fn memory_limit(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.clients() {
        let Some((limit, located)) = quantity::memory_limit(member.process) else { continue };
        let Some((parts, total)) = need(member) else { continue };
        let shown = |bytes: u64| ByteSize(bytes).to_string();
        let advised = total.saturating_add((total / 10).max(PROCESS_BYTES));
        let list: Vec<String> = parts.iter().map(|(name, bytes)| format!("{name} {}", shown(*bytes))).collect();
        let evidence = format!("memory limit {} ({}); {}", located.text, shown(limit), list.join(" + "));
        let gib = advised.div_ceil(ByteSize::GIB);
        let remedy = match member.process.runtime {
            RuntimeKind::Kubernetes => format!("set limits: {{memory: {gib}Gi}} or more, or contribute less memory"),
            _ => format!("set a limit of {gib}g or more, or contribute less memory"),
        };
        let who = member.process.describe();
        let bytes_of = |names: &[&str]| -> u64 {
            let chosen = parts.iter().filter(|(name, _)| names.contains(name));
            chosen.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
        };
        // The L2 pool is pinned at startup. The pages of a segment are used as it fills, and never
        // returned.
        if limit <= bytes_of(&[L2]) {
            let finding = format!("{who} cannot start: its L2 pool does not fit into its memory limit");
            out.error(&located.place, finding, evidence, remedy);
        } else if limit <= bytes_of(&[L2, SEGMENT]) {
            let finding = format!(
                "{who} is OOM-killed at the latest when its segment has been used in full: its memory limit does not \
                 exceed its allocations"
            );
            out.error(&located.place, finding, evidence, remedy);
        } else if limit <= total {
            let finding = match bytes_of(&[L2]) {
                0 => format!("{who} may be OOM-killed: its memory limit does not exceed its segment and buffers"),
                _ => format!("{who} may refuse to start, or be OOM-killed: its memory limit leaves too little free"),
            };
            out.warning(&located.place, finding, evidence, remedy);
        } else if limit < advised {
            out.warning(
                &located.place,
                format!("{who} has little headroom: its allocations may exceed 90% of the memory limit"),
                evidence,
                remedy,
            );
        }
    }
}

const SEGMENT: &str = "segment";
const L2: &str = "HiCache L2";

/// The allocations of a client that count against its memory limit, and their sum.
fn need(member: &ProcessView<'_>) -> Option<(Vec<(&'static str, u64)>, u64)> {
    let huge = member.huge_pages()?;
    let mut parts = Vec::new();
    let (segment, _) = member.segment()?;
    if !huge {
        parts.push((SEGMENT, segment));
    }
    match member.process.role {
        ProcessRole::Store => {
            let buffer = member.local_buffer()?;
            if !huge && buffer > 0 {
                parts.push(("local buffer", buffer));
            }
            if let SettingValue::Is(located) = member.client("enable_ssd_offload")
                && is_yes(&located.text)
            {
                let staging = member.process.var("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES");
                parts.push(("SSD staging", staging.and_then(|s| s.text.parse().ok()).unwrap_or(STAGING_BYTES)));
            }
        }
        ProcessRole::Sglang(_) => {
            let ranks = member.ranks_per_host()?;
            if !huge {
                parts[0].1 = (segment / member.ranks()?.max(1)).checked_mul(ranks)?;
            }
            if let Some(size) = member.value(&["hicache_size"]).and_then(|located| located.text.parse::<u64>().ok())
                && !huge
            {
                parts.push((L2, size.checked_mul(1_000_000_000)?.checked_mul(ranks)?));
            }
            if !huge {
                parts.push(("local buffers", ranks.checked_mul(16 * ByteSize::MIB)?));
            }
            // With huge pages, SGLang still requires this much regular memory. `huge-page-memory`
            // reports that.
            if parts.is_empty() {
                return None;
            }
            if parts.iter().any(|(name, _)| *name == L2) {
                parts.push(("SGLang reserve", SGLANG_SPARE_BYTES));
            }
        }
        _ => {}
    }
    let total = parts.iter().try_fold(0u64, |sum, (_, bytes)| sum.checked_add(*bytes))?;
    (total > 0).then_some((parts, total))
}

/// Whether the store service parses `text` as true.
pub(super) fn is_yes(text: &str) -> bool {
    matches!(text.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on" | "enable")
}

/// A host name that no Service of the deployment provides.
pub(super) fn unknown_host(view: &DeploymentView<'_>, out: &mut Findings) {
    let deployment = view.deployment;
    master_elsewhere(view, out);
    let of_roles: Vec<String> =
        deployment.groups.iter().flat_map(|g| g.roles.iter().map(|role| g.service_of(&role.text))).collect();
    for member in &view.member {
        let process = member.process;
        for located in addresses(member) {
            let host = host_of(&located.text);
            let parts: Vec<&str> = host.split('.').collect();
            match process.runtime {
                RuntimeKind::Kubernetes if !deployment.groups.is_empty() => {
                    let Some(named) = parts.iter().take(2).find(|part| part.starts_with("s-")) else { continue };
                    let known =
                        of_roles.iter().any(|s| s == named) || deployment.services.iter().any(|s| s.name == **named);
                    // `s-<group>-<role>.<namespace>` of another group is valid if the namespace is
                    // specified.
                    let foreign = parts.first() == Some(named)
                        && parts.len() > 1
                        && !deployment.groups.iter().any(|g| named.contains(&g.name));
                    // The whole name may be that of another group, which the files do not have. It
                    // is a mistake if a group here has the role.
                    let own_role =
                        |role: &LocatedValue| named.strip_suffix(&role.text).is_some_and(|rest| rest.ends_with('-'));
                    let is_own = deployment.groups.iter().any(|group| group.roles.iter().any(own_role));
                    if known || foreign || !is_own {
                        continue;
                    }
                    let near = nearest_role(named, &of_roles);
                    out.error(
                        &located.place,
                        format!(
                            "{} uses a Service of another group: {named} does not exist in this group",
                            process.describe()
                        ),
                        format!("{} (group {})", located.text, group_names(view)),
                        match near {
                            Some(near) => format!("use {}", located.text.replacen(*named, near, 1)),
                            None => format!("the group's Services are {}", listed(&of_roles)),
                        },
                    );
                }
                RuntimeKind::Compose => {
                    let Some(names) = &deployment.compose_names else { continue };
                    let plain = parts.len() == 1 && !host.is_empty() && host.parse::<std::net::IpAddr>().is_err();
                    let builtin = matches!(host, "localhost" | "host" | "gateway") || process.limits.host_network;
                    if !plain || builtin || names.iter().any(|name| name == host) {
                        continue;
                    }
                    out.error(
                        &located.place,
                        format!("{} uses a host that the Compose file does not define: {host}", process.describe()),
                        format!("{}; the services are {}", located.text, listed(names)),
                        "use the name of a service, or define the host under extra_hosts",
                    );
                }
                _ => {}
            }
        }
    }
}

fn group_names(view: &DeploymentView<'_>) -> String {
    let names: Vec<&str> = view.deployment.groups.iter().map(|g| g.name.as_str()).collect();
    listed(&names)
}

/// The Service whose name has the longest common suffix with `named`.
fn nearest_role<'n>(named: &str, of_roles: &'n [String]) -> Option<&'n str> {
    let common = |name: &str| named.bytes().rev().zip(name.bytes().rev()).take_while(|(a, b)| a == b).count();
    let best = of_roles.iter().max_by_key(|name| common(name))?;
    (common(best) >= 4).then_some(best)
}

/// All addresses of other processes in the arguments and variables of a process.
fn addresses(member: &ProcessView<'_>) -> Vec<LocatedValue> {
    let mut out = Vec::new();
    for name in ["MOONCAKE_MASTER", "MOONCAKE_TE_META_DATA_SERVER", "MOONCAKE_CLIENT"] {
        if let Some(Variable::Text(located)) = member.process.env.get(name) {
            out.push(located.clone());
        }
    }
    let flags = [
        "master_server_address",
        "master",
        "metadata_server",
        "dist_init_addr",
        "prefill",
        "decode",
        "worker_urls",
        "etcd_endpoints",
        "ha_backend_connstring",
    ];
    out.extend(member.flags.iter().filter(|f| flags.contains(&f.name.as_str())).filter_map(|f| f.value.clone()));
    if member.process.role.is_client() {
        for key in ["master_server_address", "metadata_server"] {
            if let SettingValue::Is(located) = member.client(key) {
                out.push(located);
            }
        }
    }
    out.retain(|located| {
        !host_of(&located.text).contains('$') && !located.text.trim().eq_ignore_ascii_case("p2phandshake")
    });
    let mut known = BTreeSet::new();
    out.retain(|located| known.insert((located.place.clone(), located.text.clone())));
    out
}

/// Time that a process needs to unmount its segment, in seconds.
const UNMOUNT_SECONDS: u64 = 5;

/// A process that is killed before it unmounts its segment leaves a dead segment behind.
pub(super) fn grace(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.clients() {
        let process = member.process;
        let drain = process.pre_stop.as_ref().and_then(|located| {
            let wait = |after: &str| {
                let rest = located.text.split_once(after)?.1;
                let rest = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
                rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse::<u64>().ok()
            };
            wait("grace_period_seconds").or_else(|| wait("sleep"))
        });
        let wanted = drain.unwrap_or(0).saturating_add(UNMOUNT_SECONDS);
        let (place, given) = match &process.limits.grace {
            Some(located) => match quantity::seconds(&located.text) {
                Some(seconds) => (&located.place, seconds),
                None => continue,
            },
            None if drain.is_some() => (process.pre_stop.as_ref().map_or(&process.place, |located| &located.place), 30),
            None => continue,
        };
        if given >= wanted {
            continue;
        }
        let key = match process.runtime {
            RuntimeKind::Unit => "TimeoutStopSec",
            RuntimeKind::Compose => "stop_grace_period",
            RuntimeKind::Docker => "--stop-timeout",
            _ => "terminationGracePeriodSeconds",
        };
        let evidence = match drain {
            Some(drain) => {
                format!("SIGKILL after {given} s; preStop takes {drain} s, and the unmount up to 3 s")
            }
            None => format!("SIGKILL after {given} s; the unmount takes up to 3 s"),
        };
        out.warning(
            place,
            format!(
                "{} is killed before it unmounts its segment; clients then read from a dead segment",
                process.describe()
            ),
            evidence,
            format!("set {key} to {} or more", wanted.max(30)),
        );
    }
}
