//! SGLang server processes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::error::invalid_value;
use crate::host_address::host_key;
use crate::need::ProcessMemory;
use crate::plans::PlanContext;
use crate::{
    ComponentRole, ComputeDevice, DeployError, HostMount, ImageSource, NamedPort, PdServersSection, Platform,
    ProbeAction, ProbeSet, ProbeSpec, ProcessPlan, ProcessResources, ServingMode, SglangClient, StartupWait,
    StoreProtocol, need,
};
use mcctl_base::HostPort;
use mcctl_base::upstream::python_client;

/// A server process before its plan is computed.
struct ServerSpec<'a> {
    role: ComponentRole,
    host: &'a str,
    name: String,
    workload: String,
    replicas: u32,
    size: u32,
    port: u16,
    /// Rendezvous address and rank, for a server on several hosts.
    rendezvous: Option<(String, String)>,
}

/// Plans the processes of all servers.
pub(crate) fn plans(context: &PlanContext<'_>) -> Result<Vec<ProcessPlan>, DeployError> {
    let serving = &context.spec.serving;
    let servers = match serving.mode {
        ServingMode::Single => single(context),
        ServingMode::Distributed => distributed(context),
        ServingMode::Pd => [
            pd_servers(context, ComponentRole::Prefill, &serving.prefill),
            pd_servers(context, ComponentRole::Decode, &serving.decode),
        ]
        .concat(),
    };
    // Servers on the same host use consecutive GPUs.
    let mut next_gpu: BTreeMap<String, u64> = BTreeMap::new();
    let mut all = Vec::new();
    // Servers of one role are contiguous, and have the same settings. A copy of the file per server
    // would make the run time quadratic.
    for servers in servers.chunk_by(|one, other| one.role == other.role) {
        let Some(role) = servers.first().map(|server| server.role) else { continue };
        let spec = context.spec.for_role(role);
        let context = PlanContext { spec: &spec, platform: context.platform };
        let ranks = need::ranks_on_host(&spec)?;
        let needed = need::engine(&spec, spec.uses_store(role))?;
        let given = spec.servers_of(role).and_then(|servers| servers.first_gpu);
        for server in servers {
            let next = if context.on_hosts() { next_gpu.entry(host_key(server.host)).or_default() } else { &mut 0 };
            let first = given.filter(|_| context.on_hosts()).unwrap_or(*next);
            all.push(plan(&context, server, first, &needed)?);
            *next = (*next).max(first.saturating_add(ranks));
        }
    }
    Ok(all)
}

impl Clone for ServerSpec<'_> {
    fn clone(&self) -> Self {
        ServerSpec {
            name: self.name.clone(),
            workload: self.workload.clone(),
            rendezvous: self.rendezvous.clone(),
            ..*self
        }
    }
}

fn single<'a>(context: &PlanContext<'a>) -> Vec<ServerSpec<'a>> {
    let serving = &context.spec.serving;
    let workload = context.workload(ComponentRole::Server);
    let server = |host, name, replicas| ServerSpec {
        role: ComponentRole::Server,
        host,
        name,
        workload: workload.clone(),
        replicas,
        size: 1,
        port: serving.port,
        rendezvous: None,
    };
    if !context.on_hosts() {
        return vec![server("", workload.clone(), serving.replicas)];
    }
    let hosts = serving.hosts.iter().enumerate();
    hosts.map(|(i, host)| server(host.as_str(), format!("{workload}-{i}"), 1)).collect()
}

fn distributed<'a>(context: &PlanContext<'a>) -> Vec<ServerSpec<'a>> {
    let serving = &context.spec.serving;
    let group = context.workload(ComponentRole::Server);
    let server = |host, name, workload, replicas, size, rendezvous| ServerSpec {
        role: ComponentRole::Server,
        host,
        name,
        workload,
        replicas,
        size,
        port: serving.port,
        rendezvous: Some(rendezvous),
    };
    let at = |host: &str| HostPort::new(host, serving.dist_port).to_string();
    match context.platform {
        Platform::Hosts => {
            let servers = serving.hosts.chunks(serving.nnodes.max(1) as usize).enumerate();
            let of = |(i, hosts): (usize, &'a [String])| {
                let workload = format!("{group}-{i}");
                let first = hosts.first().map(|host| at(host)).unwrap_or_default();
                hosts
                    .iter()
                    .enumerate()
                    .map(|(rank, host)| {
                        let name = format!("{workload}-node{rank}");
                        server(host.as_str(), name, workload.clone(), 1, 1, (first.clone(), rank.to_string()))
                    })
                    .collect::<Vec<_>>()
            };
            servers.flat_map(of).collect()
        }
        // One StatefulSet per server. Its first pod is the rendezvous point for the ranks.
        Platform::Kubernetes => (0..serving.replicas)
            .map(|i| {
                let workload = format!("{group}-{i}");
                let rendezvous = (at(&context.pod(&workload, 0)), "$(NODE_RANK)".to_owned());
                server("", workload.clone(), workload, 1, serving.nnodes, rendezvous)
            })
            .collect(),
        Platform::Rbg => {
            let rendezvous = (at("$(RBG_LWP_LEADER_ADDRESS)"), "$(RBG_LWP_WORKER_INDEX)".to_owned());
            vec![server("", group.clone(), group, serving.replicas, serving.nnodes, rendezvous)]
        }
    }
}

/// The key that sets the HTTP port of the servers with `role`.
fn port_key(role: ComponentRole) -> &'static str {
    match role {
        ComponentRole::Prefill => "serving.prefill.port",
        ComponentRole::Decode => "serving.decode.port",
        _ => "serving.port",
    }
}

/// The HTTP port of the prefill or decode servers.
pub(crate) fn side_port(role: ComponentRole, servers: &PdServersSection) -> u16 {
    match (servers.port, role) {
        (0, ComponentRole::Decode) => 30001,
        (0, _) => 30000,
        (port, _) => port,
    }
}

fn pd_servers<'a>(
    context: &PlanContext<'a>,
    role: ComponentRole,
    servers: &'a PdServersSection,
) -> Vec<ServerSpec<'a>> {
    let workload = context.workload(role);
    let port = side_port(role, servers);
    let server = |host, name, replicas| ServerSpec {
        role,
        host,
        name,
        workload: workload.clone(),
        replicas,
        size: 1,
        port,
        rendezvous: None,
    };
    if !context.on_hosts() {
        return vec![server("", workload.clone(), servers.replicas)];
    }
    let hosts = servers.hosts.iter().enumerate();
    hosts.map(|(i, host)| server(host.as_str(), format!("{workload}-{i}"), 1)).collect()
}

fn plan(
    context: &PlanContext<'_>,
    server: &ServerSpec<'_>,
    first_gpu: u64,
    needed: &ProcessMemory,
) -> Result<ProcessPlan, DeployError> {
    let spec = context.spec;
    let serving = &context.spec.serving;
    let uses_store = spec.uses_store(server.role);
    let gpus = if serving.device == ComputeDevice::Cuda { need::ranks_on_host(spec)? } else { 0 };
    let mut ports = vec![NamedPort { name: "http", number: server.port, key: port_key(server.role) }];
    if server.role == ComponentRole::Prefill {
        ports.push(NamedPort { name: "bootstrap", number: serving.bootstrap_port, key: "serving.bootstrap_port" });
    }
    if server.rendezvous.as_ref().is_some_and(|(_, rank)| !context.on_hosts() || rank == "0") {
        ports.push(NamedPort { name: "dist-init", number: serving.dist_port, key: "serving.dist_port" });
    }
    let health = |period_s, failures| ProbeSpec {
        by: ProbeAction::Http { port: server.port, path: "/health", tls: false },
        period_s,
        // SGLang generates a token for this request, with a timeout of 20 s.
        timeout_s: 25,
        failures,
    };
    let after = match uses_store {
        true if has_nodes(context) => vec![ComponentRole::Master, ComponentRole::Store],
        true => vec![ComponentRole::Master],
        false => Vec::new(),
    };
    Ok(ProcessPlan {
        role: server.role,
        name: server.name.clone(),
        workload: server.workload.clone(),
        host: server.host.to_owned(),
        replicas: server.replicas,
        size: server.size,
        numa: None,
        image: ImageSource::Sglang,
        argv: argv(context, server, uses_store, if serving.device == ComputeDevice::Cuda { first_gpu } else { 0 })?,
        env: env(context, server, uses_store)?,
        ports,
        resources: ProcessResources {
            memory: needed.memory,
            firm: needed.firm,
            cpus: 8,
            hugepages: needed.hugepages,
            gpus,
            rdma: spec.transfer.protocol == StoreProtocol::Rdma,
            shm: serving.shm.0,
            memlock: true,
        },
        mounts: mounts(context),
        secret: None,
        access: Vec::new(),
        model_cache: model_cache(context),
        data: None,
        probes: ProbeSet { startup: health(10, STARTUP_S / 10), readiness: health(10, 3), liveness: health(30, 6) },
        after,
        wait: match uses_store {
            true if waits_for_nodes(context) => StartupWait { any_of: node_ports(context), seconds: super::WAIT_S },
            true => context.wait_for_master(),
            false => StartupWait::default(),
        },
        // Time allowed for running requests to finish.
        stop_s: 120,
        drain: None,
    })
}

/// Startup timeout in seconds: loading a large model from a cold disk can take half an hour.
const STARTUP_S: u32 = 1800;
/// Seconds until a server responds, including its wait for the master.
pub(crate) const STARTS_WITHIN_S: u32 = STARTUP_S + super::WAIT_S;

/// The directories and files of the host that a server needs.
fn mounts(context: &PlanContext<'_>) -> Vec<HostMount> {
    let model = &context.spec.model;
    if !context.on_hosts() {
        return Vec::new();
    }
    let is_local = model.path.starts_with('/');
    let all = [
        (is_local, &model.path, false),
        (!model.cache_dir.is_empty(), &model.cache_dir, true),
        (!model.token_file.is_empty(), &model.token_file, false),
    ];
    let used = all.into_iter().filter(|(is_used, ..)| *is_used);
    used.map(|(_, path, writes)| HostMount { path: path.clone(), writes }).collect()
}

/// The volume for downloaded models, without which each new container would download them again.
fn model_cache(context: &PlanContext<'_>) -> Option<String> {
    let model = &context.spec.model;
    let is_downloaded = !model.path.starts_with('/') && model.cache_dir.is_empty() && context.on_hosts();
    // The variable moves the directory.
    let is_moved = model.env.keys().any(|name| name == "HF_HOME" || name == "HF_HUB_CACHE");
    (is_downloaded && !is_moved).then(|| format!("{}-model-cache", context.spec.name))
}

/// Whether servers wait for a node instead of asking the master for its segments, because that
/// request would need a token or TLS.
fn waits_for_nodes(context: &PlanContext<'_>) -> bool {
    context.is_mcctl() && context.protects_http() && has_nodes(context)
}

/// Maximum number of nodes for which a server waits. One of them suffices, and a command line may
/// not exceed 128 KiB.
const NODES_MAX: usize = 32;

/// REST ports of nodes, which open when their segments are mounted.
fn node_ports(context: &PlanContext<'_>) -> Vec<HostPort> {
    let nodes = &context.spec.nodes;
    if context.on_hosts() {
        return nodes.hosts.iter().take(NODES_MAX).map(|host| HostPort::new(host, nodes.rest_port)).collect();
    }
    let workload = context.workload(ComponentRole::Store);
    let count = if nodes.replicas > 0 { nodes.replicas } else { u32::try_from(nodes.hosts.len()).unwrap_or(0) };
    (0..count).take(NODES_MAX).map(|i| HostPort::new(context.pod(&workload, i), nodes.rest_port)).collect()
}

fn has_nodes(context: &PlanContext<'_>) -> bool {
    let nodes = &context.spec.nodes;
    !nodes.hosts.is_empty() || (!context.on_hosts() && nodes.replicas > 0)
}

fn argv(
    context: &PlanContext<'_>,
    server: &ServerSpec<'_>,
    uses_store: bool,
    first_gpu: u64,
) -> Result<Vec<String>, DeployError> {
    let model = &context.spec.model;
    let serving = &context.spec.serving;
    let mut argv = vec![context.python(), "-m".to_owned()];
    if uses_store && serving.client == SglangClient::Mcctl {
        argv.extend([python_client::LAUNCHER, "--", "-m"].map(str::to_owned));
    }
    argv.push("sglang.launch_server".to_owned());
    let mut flag = |name: &str, value: String| argv.extend([format!("--{name}"), value]);
    flag("model-path", model.path.clone());
    if !model.served_name.is_empty() {
        flag("served-model-name", model.served_name.clone());
    }
    flag("host", context.bind_address(server.host).to_owned());
    flag("port", server.port.to_string());
    if serving.device == ComputeDevice::Cpu {
        flag("device", "cpu".to_owned());
    }
    for (name, value) in [("tp-size", model.tp), ("pp-size", model.pp), ("dp-size", model.dp)] {
        if value > 1 {
            flag(name, value.to_string());
        }
    }
    if first_gpu > 0 {
        flag("base-gpu-id", first_gpu.to_string());
    }
    if let Some((at, rank)) = &server.rendezvous {
        flag("nnodes", serving.nnodes.to_string());
        flag("node-rank", rank.clone());
        flag("dist-init-addr", at.clone());
    }
    flag("page-size", model.page_size.to_string());
    if model.kv_cache != Default::default() {
        flag("kv-cache-dtype", model.kv_cache.text().to_owned());
    }
    match server.role {
        ComponentRole::Prefill => flag("disaggregation-mode", "prefill".to_owned()),
        ComponentRole::Decode => flag("disaggregation-mode", "decode".to_owned()),
        _ => {}
    }
    if matches!(server.role, ComponentRole::Prefill | ComponentRole::Decode) {
        flag("disaggregation-transfer-backend", "mooncake".to_owned());
        flag("disaggregation-bootstrap-port", serving.bootstrap_port.to_string());
        let devices = if serving.ib_devices.is_empty() { &context.spec.transfer.devices } else { &serving.ib_devices };
        if !devices.is_empty() {
            flag("disaggregation-ib-device", devices.join(","));
        }
    }
    if uses_store {
        match model.hicache_size_gb {
            Some(gb) => flag("hicache-size", gb.to_string()),
            None => flag("hicache-ratio", need::ratio(context.spec).to_string()),
        }
        flag("hicache-mem-layout", model.layout.clone());
        flag("hicache-io-backend", model.io_backend.clone());
        flag("hicache-write-policy", model.write_policy.clone());
        let is_dynamic = serving.client == SglangClient::McctlDynamic;
        flag("hicache-storage-backend", if is_dynamic { "dynamic" } else { "mooncake" }.to_owned());
        flag("hicache-storage-prefetch-policy", model.prefetch_policy.clone());
        // The extra config contains no address, so the environment remains the source of all other
        // settings.
        let threshold = format!("\"prefetch_threshold\":{}", model.prefetch_threshold);
        let extra = match is_dynamic {
            true => python_client::dynamic_config(&format!(",{threshold}")),
            false => format!("{{{threshold}}}"),
        };
        flag("hicache-storage-backend-extra-config", extra);
    }
    if model.dp_attention {
        argv.push("--enable-dp-attention".to_owned());
    }
    if uses_store {
        // A decode server has no radix cache to look up: it only writes.
        let is_decode = server.role == ComponentRole::Decode;
        let switch =
            if is_decode { "--disaggregation-decode-enable-offload-kvcache" } else { "--enable-hierarchical-cache" };
        argv.push(switch.to_owned());
    }
    argv.push("--enable-metrics".to_owned());
    for arg in &model.extra_args {
        let flag = arg.split('=').next().unwrap_or_default();
        if let Some((_, key)) = OF_KEYS.iter().find(|(known, _)| flag.len() > 3 && known.starts_with(flag)) {
            return Err(invalid_value(
                args_key(context, server.role, arg),
                format!("{flag} conflicts with the key {key}"),
            ));
        }
    }
    argv.extend(model.extra_args.iter().cloned());
    Ok(argv)
}

/// The key that contains the additional flag `arg`.
fn args_key(context: &PlanContext<'_>, role: ComponentRole, arg: &str) -> &'static str {
    let has = |section: Option<&PdServersSection>| {
        section.is_some_and(|servers| servers.extra_args.iter().any(|known| known == arg))
    };
    match role {
        ComponentRole::Prefill if has(context.spec.servers_of(role)) => "serving.prefill.extra_args",
        ComponentRole::Decode if has(context.spec.servers_of(role)) => "serving.decode.extra_args",
        _ => "model.extra_args",
    }
}

/// Flags of SGLang 0.5.23, with aliases, and the keys that set them. `extra_args` must not contain
/// them: SGLang silently uses the last occurrence of a flag and accepts flag prefixes. Even if the
/// corresponding key is not set, a flag would invalidate sizes that were computed here.
const OF_KEYS: &[(&str, &str)] = &[
    ("--model-path", "model.path"),
    ("--served-model-name", "model.served_name"),
    ("--host", "serving.hosts"),
    ("--port", "serving.port"),
    ("--device", "serving.device"),
    ("--tp-size", "model.tp"),
    ("--tensor-parallel-size", "model.tp"),
    ("--pp-size", "model.pp"),
    ("--pipeline-parallel-size", "model.pp"),
    ("--dp-size", "model.dp"),
    ("--data-parallel-size", "model.dp"),
    ("--enable-dp-attention", "model.dp_attention"),
    ("--base-gpu-id", "serving.hosts"),
    ("--nnodes", "serving.nnodes"),
    ("--node-rank", "serving.hosts"),
    ("--dist-init-addr", "serving.dist_port"),
    ("--nccl-init-addr", "serving.dist_port"),
    ("--page-size", "model.page_size"),
    ("--kv-cache-dtype", "model.kv_cache"),
    ("--disaggregation-mode", "serving.mode"),
    ("--disaggregation-transfer-backend", "serving.mode"),
    ("--disaggregation-bootstrap-port", "serving.bootstrap_port"),
    ("--disaggregation-ib-device", "serving.ib_devices"),
    ("--enable-hierarchical-cache", "serving.mode"),
    ("--enable-hicache", "serving.mode"),
    ("--hicache-size", "model.hicache_size_gb"),
    ("--hicache-ratio", "model.hicache_ratio"),
    ("--hicache-mem-layout", "model.layout"),
    ("--hicache-io-backend", "model.io_backend"),
    ("--hicache-write-policy", "model.write_policy"),
    ("--hicache-storage-backend", "serving.client"),
    ("--hicache-storage-backend-extra-config", "model.prefetch_threshold"),
    ("--hicache-storage-prefetch-policy", "model.prefetch_policy"),
];

fn env(
    context: &PlanContext<'_>,
    server: &ServerSpec<'_>,
    uses_store: bool,
) -> Result<Vec<(String, String)>, DeployError> {
    let spec = context.spec;
    let mut env = Vec::new();
    if uses_store {
        env = context.client_env(server.host);
        env.push(("MOONCAKE_GLOBAL_SEGMENT_SIZE".to_owned(), sglang_size(spec.segment.engines.0)));
        env.extend(context.checksum_env(spec.serving.client != SglangClient::Upstream));
        // With a dynamic backend, SGLang allocates L2 itself, and does not read Mooncake's
        // variables for huge pages.
        if let (SglangClient::McctlDynamic, Some(page)) = (spec.serving.client, spec.hugepages.size.text()) {
            env.push(("SGLANG_HUGEPAGE_SIZE".to_owned(), page.to_owned()));
        }
        if spec.master.ha.is_none() {
            env.push(("MOONCAKE_MASTER_METRICS_PORT".to_owned(), spec.master.admin_port.to_string()));
            // If there are store nodes, SGLang must wait until one of them has mounted its segment:
            // SGLang fails on an empty store.
            if has_nodes(context) && !waits_for_nodes(context) {
                env.push(("MOONCAKE_CHECK_SERVER".to_owned(), "1".to_owned()));
            }
        }
    } else {
        // KV cache transfers from prefill servers use the same transport.
        env.push(("MOONCAKE_PROTOCOL".to_owned(), spec.transfer.protocol.text().to_owned()));
        if let Some(index) = spec.transfer.gid_index {
            env.push(("MC_GID_INDEX".to_owned(), index.to_string()));
        }
    }
    if matches!(server.role, ComponentRole::Prefill | ComponentRole::Decode)
        && spec.transfer.protocol == StoreProtocol::Tcp
    {
        env.push(("MC_FORCE_TCP".to_owned(), "1".to_owned()));
    }
    // Peers connect to this address. By default, SGLang announces the address of the default route,
    // which may be in another network.
    let own = context.own_address(server.host);
    let is_dialled = server.role != ComponentRole::Server || server.rendezvous.is_some();
    if is_dialled && (!context.on_hosts() || own.parse::<IpAddr>().is_ok()) {
        env.push(("SGLANG_HOST_IP".to_owned(), own));
    }
    env.extend(hub_env(context));
    for (name, value) in &spec.model.env {
        if env.iter().any(|(known, _)| known == name) {
            return Err(invalid_value("model.env", format!("{name} is already set by another key")));
        }
        env.push((name.clone(), value.clone()));
    }
    Ok(env)
}

/// The variables of the Hugging Face Hub's client: where models are downloaded to, and which file
/// contains the token.
fn hub_env(context: &PlanContext<'_>) -> Vec<(String, String)> {
    let model = &context.spec.model;
    let kubernetes = &context.spec.kubernetes;
    let has_volume = !kubernetes.cache_claim.is_empty() || !kubernetes.cache_host_path.is_empty();
    let (home, token) = match context.on_hosts() {
        true => (model.cache_dir.as_str(), model.token_file.as_str()),
        false => (if has_volume { ProcessPlan::MODEL_CACHE } else { "" }, ""),
    };
    let all = [("HF_HOME", home), ("HF_TOKEN_PATH", token)].into_iter().filter(|(_, value)| !value.is_empty());
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// A size in SGLang's syntax: a whole number of `gb` (1024^3 bytes), or bytes.
fn sglang_size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes > 0 && bytes.is_multiple_of(GIB) { format!("{}gb", bytes / GIB) } else { bytes.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::size_text;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sglang_parses_the_intended_bytes(bytes in 0u64..1 << 56, gib in 0u64..1 << 20) {
            prop_assert_eq!(size_text::sglang_segment(&sglang_size(bytes)), Ok(bytes));
            prop_assert_eq!(size_text::sglang_segment(&sglang_size(gib << 30)), Ok(gib << 30));
        }
    }
}
