//! What stands around processes: probes, Services, names, memory limits.

use std::collections::BTreeSet;

use crate::engine::base::ByteSize;
use crate::engine::base::addr::host_is_loopback;
use crate::engine::check::listed;
use crate::engine::lint::quantity;
use crate::engine::lint::rules::{Findings, View};
use crate::engine::lint::scene::{Habitat, ProbeHow, Process, Role, Said, Service, Variable};
use crate::engine::lint::settings::{Seen, Setting, host_of};

/// A probe of a master that asks a port on which it does not listen never succeeds.
pub fn probe_port(view: &View<'_>, out: &mut Findings) {
    for seen in view.masters() {
        let admin = seen.master_port("metrics_port", 9003);
        let metadata = match seen.master_switch("enable_http_metadata_server") {
            Some(true) => seen.master_port("http_metadata_server_port", 8080).map(Some),
            Some(false) => Some(None),
            None => None,
        };
        // All ports must be known, and those of the other containers of the pod, too.
        let (Some(rpc), Some(admin), Some(metadata)) = (seen.rpc_port(), admin, metadata) else { continue };
        let alone = !view.beside(seen.process).any(|other| other.process.role != Role::Master);
        for probe in &seen.process.probes {
            let port = match &probe.how {
                ProbeHow::Tcp { port: Some(port) } | ProbeHow::Http { port: Some(port), .. } => *port,
                ProbeHow::Exec(text) => match asked_port(text) {
                    Some(port) => port,
                    None => continue,
                },
                _ => continue,
            };
            if !alone || port == rpc || port == admin || Some(port) == metadata {
                continue;
            }
            let would_be = seen.master_port("http_metadata_server_port", 8080);
            let remedy = if metadata.is_none() && would_be == Some(port) {
                format!("add --enable_http_metadata_server=true, or probe /health on the metrics port {admin}")
            } else {
                format!("probe /health on the metrics port {admin}")
            };
            let mut listening = format!("it listens on {rpc} (RPC) and {admin} (metrics)");
            if let Some(port) = metadata {
                listening = format!("it listens on {rpc} (RPC), {admin} (metrics) and {port} (metadata)");
            }
            let key = if seen.process.habitat == Habitat::Compose { "healthcheck" } else { probe.what.key() };
            out.error(
                &probe.place,
                format!("{key} never succeeds: the master does not listen on port {port}"),
                listening,
                remedy,
            );
        }
        let wanted = seen.process.called();
        if metadata.is_some() || !alone {
            continue;
        }
        for client in view.clients() {
            let Setting::Is(url) = client.client("metadata_server") else { continue };
            if url.text.starts_with("http") && same_host(view, seen.process, host_of(&url.text)) {
                out.error(
                    &url.place,
                    format!("{} finds no metadata service: {wanted} does not serve one", client.process.called()),
                    format!("metadata_server is {}, and --enable_http_metadata_server is not given", url.text),
                    "give the master --enable_http_metadata_server=true, or set the clients to P2PHANDSHAKE",
                );
            }
        }
    }
}

/// The one port of its own container that a command asks.
fn asked_port(text: &str) -> Option<u16> {
    let mut asked = ["localhost:", "127.0.0.1:"].iter().flat_map(|host| text.split(host).skip(1));
    let rest = asked.next()?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    if asked.next().is_some() { None } else { rest[..digits].parse().ok() }
}

/// A client that asks its own container for a master that is in another one.
fn master_elsewhere(view: &View<'_>, out: &mut Findings) {
    let has_a_network = |process: &Process| {
        matches!(process.habitat, Habitat::Kubernetes | Habitat::Compose) && !process.limits.host_network
    };
    for seen in view.clients().filter(|seen| has_a_network(seen.process) && seen.uses_mooncake() == Some(true)) {
        let Setting::Is(said) = seen.client("master_server_address") else { continue };
        let is_here = !said.text.contains("://") && host_is_loopback(host_of(&said.text));
        // What stands beside it may lead to the master.
        if !is_here || view.beside(seen.process).next().is_some() {
            continue;
        }
        let other = view.masters().map(|master| master.process);
        let Some(other) = other.into_iter().find(|p| p.habitat == seen.process.habitat && has_a_network(p)) else {
            continue;
        };
        out.error(
            &said.place,
            format!("{} finds no master: it asks its own container", seen.process.called()),
            format!("{}; the master is {} at {}", said.text, other.name, other.place),
            match other.name.strip_prefix("service ") {
                Some(name) => format!("write {name} in place of {}", host_of(&said.text)),
                None => format!("write the name of its Service in place of {}", host_of(&said.text)),
            },
        );
    }
}

/// Is `host` the name of what leads to `process`?
pub fn same_host(view: &View<'_>, process: &Process, host: &str) -> bool {
    let Some(pods) = process.pod.and_then(|at| view.scene.pods.get(at)) else {
        return match process.habitat {
            Habitat::Compose => process.name.strip_prefix("service ") == Some(host),
            _ => false,
        };
    };
    let first = host.split('.').next().unwrap_or(host);
    let by_role = pods.group.as_ref().is_some_and(|(group, role)| {
        let service = view.scene.groups.iter().find(|g| g.name == *group).map(|g| g.service_of(role));
        service.as_deref().is_some_and(|service| host.split('.').take(2).any(|part| part == service))
    });
    let leads = |service: &&Service| service.name == first && selects(service, &pods.labels);
    by_role || view.scene.services.iter().any(|service| leads(&service))
}

/// Does the Service select pods with these labels?
pub fn selects(service: &Service, labels: &std::collections::BTreeMap<String, String>) -> bool {
    !service.selector.is_empty()
        && service.selector.iter().all(|(key, value)| labels.get(key).is_some_and(|label| *label == value.text))
}

/// The keys by which a Service names a role.
const ROLE_KEYS: [(&str, &str); 2] = [
    ("rbg.workloads.x-k8s.io/group-name", "rbg.workloads.x-k8s.io/role-name"),
    ("rolebasedgroup.workloads.x-k8s.io/name", "rolebasedgroup.workloads.x-k8s.io/role"),
];

/// A Service whose selector matches no pod has no endpoints.
pub fn selector(view: &View<'_>, out: &mut Findings) {
    let scene = view.scene;
    'services: for service in scene.services.iter().filter(|service| !service.selector.is_empty()) {
        let reach = |pods: &&crate::engine::lint::scene::Pods| match (&pods.namespace, &service.namespace) {
            (Some(theirs), Some(ours)) => theirs == ours,
            _ => true,
        };
        if scene.pods.is_empty() || scene.pods.iter().filter(reach).any(|pods| selects(service, &pods.labels)) {
            continue;
        }
        for (group_key, role_key) in ROLE_KEYS {
            let (Some(role), group) = (service.selector.get(role_key), service.selector.get(group_key)) else {
                continue;
            };
            let group = match group {
                Some(said) => scene.groups.iter().find(|g| g.name == said.text),
                None => scene.groups.first(),
            };
            let Some(group) = group else { continue };
            if group.roles.iter().any(|known| known.text == role.text) {
                continue;
            }
            let roles: Vec<&str> = group.roles.iter().map(|r| r.text.as_str()).collect();
            out.error(
                &role.place,
                format!("Service {} selects nothing: group {} has no role {}", service.name, group.name, role.text),
                format!("the roles are {}", listed(&roles)),
                format!("select one of them, e.g. {role_key}: {}", roles.last().unwrap_or(&"")),
            );
            continue 'services;
        }
        // Pods with labels of the same keys are the candidates. Where they are in other files, the right ones may be in a further file.
        let keys: BTreeSet<&str> = service.selector.keys().map(String::as_str).collect();
        let alike: Vec<_> = scene
            .pods
            .iter()
            .filter(reach)
            .filter(|pods| keys.iter().all(|key| pods.labels.contains_key(*key)))
            .collect();
        if alike.is_empty() {
            continue;
        }
        let is_here = alike.iter().any(|pods| pods.place.file == service.place.file);
        let first = service.selector.values().next().map_or(&service.place, |said| &said.place);
        let wanted: Vec<String> = service.selector.iter().map(|(key, value)| format!("{key}={}", value.text)).collect();
        let evidence = format!("selector {}", wanted.join(", "));
        if is_here {
            out.error(
                first,
                format!("Service {} selects nothing: no pod has these labels", service.name),
                evidence,
                "give the selector the labels of the pod template",
            );
        } else {
            let labels = |pods: &crate::engine::lint::scene::Pods| {
                let labels = keys.iter().filter_map(|key| Some(format!("{key}={}", pods.labels.get(*key)?)));
                format!("{} has {}", pods.name, labels.collect::<Vec<_>>().join(", "))
            };
            let seen: Vec<String> = alike.iter().map(|pods| labels(pods)).collect();
            out.warning(
                first,
                format!("Service {} selects no pod of the given files", service.name),
                format!("{evidence}; {}", listed(&seen)),
                "give the selector the labels of the pod template, or give the file of those pods, too",
            );
        }
    }
}

/// Memory that a process takes beside what it lends, at least.
const PROCESS_BYTES: u64 = 512 * ByteSize::MIB;
/// What the SSD tier allocates at start, unless it is told.
const STAGING_BYTES: u64 = 1_342_177_280;
/// What SGLang insists on beside its pools.
const SGLANG_SPARE_BYTES: u64 = 10 * ByteSize::GIB;

/// A limit that is no larger than what is lent ends in an OOM kill, hours later: memory is touched lazily.
pub fn memory_limit(view: &View<'_>, out: &mut Findings) {
    for seen in view.clients() {
        let Some((limit, said)) = quantity::memory_limit(seen.process) else { continue };
        let Some((parts, total)) = need(seen) else { continue };
        let shown = |bytes: u64| ByteSize(bytes).to_string();
        let advised = total.saturating_add((total / 10).max(PROCESS_BYTES));
        let list: Vec<String> = parts.iter().map(|(name, bytes)| format!("{name} {}", shown(*bytes))).collect();
        let evidence = format!("memory limit {} ({}); {}", said.text, shown(limit), list.join(" + "));
        let gib = advised.div_ceil(ByteSize::GIB);
        let remedy = match seen.process.habitat {
            Habitat::Kubernetes => format!("limits: {{memory: {gib}Gi}} or more, or lend less"),
            _ => format!("a limit of {gib}g or more, or lend less"),
        };
        let who = seen.process.called();
        if limit <= total {
            out.error(
                &said.place,
                format!("{who} will be killed for its memory: the limit is not more than what it allocates"),
                evidence,
                remedy,
            );
        } else if limit < advised {
            out.warning(
                &said.place,
                format!("{who} has under a tenth of its memory limit for itself beside what it allocates"),
                evidence,
                remedy,
            );
        }
    }
}

/// What a client allocates that counts against its memory limit, part by part, and the sum.
fn need(seen: &Seen<'_>) -> Option<(Vec<(&'static str, u64)>, u64)> {
    let huge = seen.huge_pages()?;
    let mut parts = Vec::new();
    let (segment, _) = seen.segment()?;
    if !huge {
        parts.push(("segment", segment));
    }
    match seen.process.role {
        Role::Store => {
            let buffer = match seen.client("local_buffer_size") {
                Setting::Is(said) => seen.size(&said.text)?,
                Setting::Unset => ByteSize::GIB,
                Setting::Unknown => return None,
            };
            if !huge && buffer > 0 {
                parts.push(("local buffer", buffer));
            }
            if let Setting::Is(said) = seen.client("enable_ssd_offload")
                && is_yes(&said.text)
            {
                let staging = seen.process.var("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES");
                parts.push(("SSD staging", staging.and_then(|s| s.text.parse().ok()).unwrap_or(STAGING_BYTES)));
            }
        }
        Role::Sglang(_) => {
            let ranks = seen.ranks_here()?;
            if !huge {
                parts[0].1 = (segment / seen.ranks()?.max(1)).checked_mul(ranks)?;
            }
            if let Some(size) = seen.value(&["hicache_size"]).and_then(|said| said.text.parse::<u64>().ok())
                && !huge
            {
                parts.push(("HiCache L2", size.checked_mul(1_000_000_000)?.checked_mul(ranks)?));
            }
            if !huge {
                parts.push(("local buffers", ranks.checked_mul(16 * ByteSize::MIB)?));
            }
            // With huge pages SGLang still asks for that much ordinary memory; `huge-page-memory` says so.
            if parts.is_empty() {
                return None;
            }
            if parts.iter().any(|(name, _)| *name == "HiCache L2") {
                parts.push(("what SGLang keeps free", SGLANG_SPARE_BYTES));
            }
        }
        _ => {}
    }
    let total = parts.iter().try_fold(0u64, |sum, (_, bytes)| sum.checked_add(*bytes))?;
    (total > 0).then_some((parts, total))
}

/// What the store service takes for true.
pub fn is_yes(text: &str) -> bool {
    matches!(text.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on" | "enable")
}

/// A name that no Service of the deployment has.
pub fn unknown_host(view: &View<'_>, out: &mut Findings) {
    let scene = view.scene;
    master_elsewhere(view, out);
    let of_roles: Vec<String> =
        scene.groups.iter().flat_map(|g| g.roles.iter().map(|role| g.service_of(&role.text))).collect();
    for seen in &view.seen {
        let process = seen.process;
        for said in addresses(seen) {
            let host = host_of(&said.text);
            let parts: Vec<&str> = host.split('.').collect();
            match process.habitat {
                Habitat::Kubernetes if !scene.groups.is_empty() => {
                    let Some(named) = parts.iter().take(2).find(|part| part.starts_with("s-")) else { continue };
                    let known = of_roles.iter().any(|s| s == named) || scene.services.iter().any(|s| s.name == **named);
                    // `s-<group>-<role>.<namespace>` of a group elsewhere is fine when it says the namespace.
                    let foreign = parts.first() == Some(named)
                        && parts.len() > 1
                        && !scene.groups.iter().any(|g| named.contains(&g.name));
                    if known || foreign {
                        continue;
                    }
                    let near = nearest_role(named, &of_roles);
                    out.error(
                        &said.place,
                        format!(
                            "{} calls a Service of another group: nothing here is called {named}",
                            process.called()
                        ),
                        format!("{} (group {})", said.text, group_names(view)),
                        match near {
                            Some(near) => format!("write {}", said.text.replacen(*named, near, 1)),
                            None => format!("the Services of the group are {}", listed(&of_roles)),
                        },
                    );
                }
                Habitat::Compose => {
                    let Some(names) = &scene.compose_names else { continue };
                    let plain = parts.len() == 1 && !host.is_empty() && host.parse::<std::net::IpAddr>().is_err();
                    let builtin = matches!(host, "localhost" | "host" | "gateway") || process.limits.host_network;
                    if !plain || builtin || names.iter().any(|name| name == host) {
                        continue;
                    }
                    out.error(
                        &said.place,
                        format!("{} calls a host that the compose file does not have: {host}", process.called()),
                        format!("{}; the services are {}", said.text, listed(names)),
                        "write the name of a service, or give the host with extra_hosts",
                    );
                }
                _ => {}
            }
        }
    }
}

fn group_names(view: &View<'_>) -> String {
    let names: Vec<&str> = view.scene.groups.iter().map(|g| g.name.as_str()).collect();
    listed(&names)
}

/// The Service that ends as the wrong one does.
fn nearest_role<'n>(named: &str, of_roles: &'n [String]) -> Option<&'n str> {
    let common = |name: &str| named.bytes().rev().zip(name.bytes().rev()).take_while(|(a, b)| a == b).count();
    let best = of_roles.iter().max_by_key(|name| common(name))?;
    (common(best) >= 4).then_some(best)
}

/// Every address of another process that a process is given.
fn addresses(seen: &Seen<'_>) -> Vec<Said> {
    let mut out = Vec::new();
    for name in ["MOONCAKE_MASTER", "MOONCAKE_TE_META_DATA_SERVER", "MOONCAKE_CLIENT"] {
        if let Some(Variable::Text(said)) = seen.process.env.get(name) {
            out.push(said.clone());
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
    out.extend(seen.flags.iter().filter(|f| flags.contains(&f.name.as_str())).filter_map(|f| f.value.clone()));
    if seen.process.role.is_client() {
        for key in ["master_server_address", "metadata_server"] {
            if let Setting::Is(said) = seen.client(key) {
                out.push(said);
            }
        }
    }
    out.retain(|said| !host_of(&said.text).contains('$') && !said.text.trim().eq_ignore_ascii_case("p2phandshake"));
    let mut seen_places = BTreeSet::new();
    out.retain(|said| seen_places.insert((said.place.clone(), said.text.clone())));
    out
}

/// The seconds that a store needs to take its segment back.
const UNMOUNT_SECONDS: u64 = 5;

/// A process that is killed before it has taken back what it lends leaves dead segments behind.
pub fn grace(view: &View<'_>, out: &mut Findings) {
    for seen in view.clients() {
        let process = seen.process;
        let drain = process.pre_stop.as_ref().and_then(|said| {
            let wait = |after: &str| {
                let rest = said.text.split_once(after)?.1;
                let rest = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
                rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse::<u64>().ok()
            };
            wait("grace_period_seconds").or_else(|| wait("sleep"))
        });
        let wanted = drain.unwrap_or(0).saturating_add(UNMOUNT_SECONDS);
        let (place, given) = match &process.limits.grace {
            Some(said) => match quantity::seconds(&said.text) {
                Some(seconds) => (&said.place, seconds),
                None => continue,
            },
            None if drain.is_some() => (process.pre_stop.as_ref().map_or(&process.place, |said| &said.place), 30),
            None => continue,
        };
        if given >= wanted {
            continue;
        }
        let key = match process.habitat {
            Habitat::Unit => "TimeoutStopSec",
            Habitat::Compose => "stop_grace_period",
            Habitat::Docker => "--stop-timeout",
            _ => "terminationGracePeriodSeconds",
        };
        let evidence = match drain {
            Some(drain) => {
                format!("{given} s until the kill; preStop waits {drain} s, taking the segment back up to 3 s")
            }
            None => format!("{given} s until the kill; taking the segment back needs up to 3 s"),
        };
        out.warning(
            place,
            format!("{} is killed before it has taken back what it lends: others read dead segments", process.called()),
            evidence,
            format!("write {key}: {} or more", wanted.max(30)),
        );
    }
}
