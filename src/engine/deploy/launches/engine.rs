//! The processes that serve a model: SGLang.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::engine::base::HostPort;
use crate::engine::deploy::error::wrong;
use crate::engine::deploy::launches::Place;
use crate::engine::deploy::{
    DeployError, Device, Ground, Image, Launch, Mode, Mount, Port, Probe, ProbeBy, Probes, Protocol, Resources, Role,
    Servers, need,
};

/// A process of a server.
struct Part<'a> {
    role: Role,
    host: &'a str,
    name: String,
    workload: String,
    replicas: u32,
    size: u32,
    port: u16,
    /// Where the ranks of a server over several hosts meet, and the number of this one.
    meeting: Option<(String, String)>,
}

/// The processes of all servers.
pub(crate) fn launches(place: &Place<'_>) -> Result<Vec<Launch>, DeployError> {
    let serving = &place.wanted.serving;
    let parts = match serving.mode {
        Mode::Single => single(place),
        Mode::Distributed => distributed(place),
        Mode::Pd => [side(place, Role::Prefill, &serving.prefill), side(place, Role::Decode, &serving.decode)].concat(),
    };
    // Servers on one host take GPUs one after the other.
    let mut first_gpu: BTreeMap<&str, u64> = BTreeMap::new();
    let gpus = need::ranks_on_host(place.wanted)?;
    let mut all = Vec::new();
    for part in &parts {
        let base = if place.on_hosts() { first_gpu.entry(part.host).or_default() } else { &mut 0 };
        all.push(launch(place, part, *base)?);
        *base += gpus;
    }
    Ok(all)
}

impl Clone for Part<'_> {
    fn clone(&self) -> Self {
        Part { name: self.name.clone(), workload: self.workload.clone(), meeting: self.meeting.clone(), ..*self }
    }
}

fn single<'a>(place: &Place<'a>) -> Vec<Part<'a>> {
    let serving = &place.wanted.serving;
    let workload = place.workload(Role::Server);
    let part = |host, name, replicas| Part {
        role: Role::Server,
        host,
        name,
        workload: workload.clone(),
        replicas,
        size: 1,
        port: serving.port,
        meeting: None,
    };
    if !place.on_hosts() {
        return vec![part("", workload.clone(), serving.replicas)];
    }
    let hosts = serving.hosts.iter().enumerate();
    hosts.map(|(i, host)| part(host.as_str(), format!("{workload}-{i}"), 1)).collect()
}

fn distributed<'a>(place: &Place<'a>) -> Vec<Part<'a>> {
    let serving = &place.wanted.serving;
    let group = place.workload(Role::Server);
    let part = |host, name, workload, replicas, size, meeting| Part {
        role: Role::Server,
        host,
        name,
        workload,
        replicas,
        size,
        port: serving.port,
        meeting: Some(meeting),
    };
    let at = |host: &str| HostPort::new(host, serving.dist_port).to_string();
    match place.ground {
        Ground::Hosts => {
            let servers = serving.hosts.chunks(serving.nnodes.max(1) as usize).enumerate();
            let of = |(i, hosts): (usize, &'a [String])| {
                let workload = format!("{group}-{i}");
                let first = hosts.first().map(|host| at(host)).unwrap_or_default();
                hosts
                    .iter()
                    .enumerate()
                    .map(|(rank, host)| {
                        let name = format!("{workload}-node{rank}");
                        part(host.as_str(), name, workload.clone(), 1, 1, (first.clone(), rank.to_string()))
                    })
                    .collect::<Vec<_>>()
            };
            servers.flat_map(of).collect()
        }
        // A set of pods for each server: the first is where the others meet.
        Ground::Kubernetes => (0..serving.replicas)
            .map(|i| {
                let workload = format!("{group}-{i}");
                let meeting = (at(&place.pod(&workload, 0)), "$(NODE_RANK)".to_owned());
                part("", workload.clone(), workload, 1, serving.nnodes, meeting)
            })
            .collect(),
        Ground::Rbg => {
            let meeting = (at("$(RBG_LWP_LEADER_ADDRESS)"), "$(RBG_LWP_WORKER_INDEX)".to_owned());
            vec![part("", group.clone(), group, serving.replicas, serving.nnodes, meeting)]
        }
    }
}

/// The port of the servers of one side of a disaggregated deployment.
pub(crate) fn side_port(role: Role, servers: &Servers) -> u16 {
    match (servers.port, role) {
        (0, Role::Decode) => 30001,
        (0, _) => 30000,
        (port, _) => port,
    }
}

fn side<'a>(place: &Place<'a>, role: Role, servers: &'a Servers) -> Vec<Part<'a>> {
    let workload = place.workload(role);
    let port = side_port(role, servers);
    let part = |host, name, replicas| Part {
        role,
        host,
        name,
        workload: workload.clone(),
        replicas,
        size: 1,
        port,
        meeting: None,
    };
    if !place.on_hosts() {
        return vec![part("", workload.clone(), servers.replicas)];
    }
    let hosts = servers.hosts.iter().enumerate();
    hosts.map(|(i, host)| part(host.as_str(), format!("{workload}-{i}"), 1)).collect()
}

fn launch(place: &Place<'_>, part: &Part<'_>, first_gpu: u64) -> Result<Launch, DeployError> {
    let (wanted, serving) = (place.wanted, &place.wanted.serving);
    // What decode servers have came from prefill servers, which are the ones that look into the store.
    let uses_store = part.role != Role::Decode;
    let taken = need::engine(wanted, uses_store)?;
    let gpus = if serving.device == Device::Cuda { need::ranks_on_host(wanted)? } else { 0 };
    let mut ports = vec![Port { name: "http", number: part.port }];
    if part.role == Role::Prefill {
        ports.push(Port { name: "bootstrap", number: serving.bootstrap_port });
    }
    if part.meeting.as_ref().is_some_and(|(_, rank)| !place.on_hosts() || rank == "0") {
        ports.push(Port { name: "dist-init", number: serving.dist_port });
    }
    let local = wanted.model.path.starts_with('/') && place.on_hosts();
    let model = Mount { path: wanted.model.path.clone(), writes: false };
    let health = |period_s, failures| Probe {
        by: ProbeBy::Http { port: part.port, path: "/health" },
        period_s,
        // SGLang makes a token for the answer and gives it 20 s.
        timeout_s: 25,
        failures,
    };
    let mut after = if uses_store { place.master_names() } else { Vec::new() };
    if uses_store && place.on_hosts() {
        let stores = super::store::launches(place)?;
        after.extend(stores.into_iter().map(|store| store.name));
    } else if uses_store && has_nodes(place) {
        after.push(place.workload(Role::Store));
    }
    Ok(Launch {
        role: part.role,
        name: part.name.clone(),
        workload: part.workload.clone(),
        host: part.host.to_owned(),
        replicas: part.replicas,
        size: part.size,
        numa: None,
        image: Image::Sglang,
        argv: argv(place, part, uses_store, if serving.device == Device::Cuda { first_gpu } else { 0 })?,
        env: env(place, part, uses_store)?,
        ports,
        resources: Resources {
            memory: taken.memory,
            cpus: 8,
            hugepages: taken.hugepages,
            gpus,
            rdma: wanted.transfer.protocol == Protocol::Rdma,
            shm: serving.shm.0,
            memlock: true,
        },
        mounts: if local { vec![model] } else { Vec::new() },
        probes: Probes { startup: health(10, STARTUP_S / 10), readiness: health(10, 3), liveness: health(30, 6) },
        after,
        wait: if uses_store { place.wait_for_master() } else { Default::default() },
        // Requests that are under way may end.
        stop_s: 120,
        drain: None,
    })
}

/// Seconds in which a server loads: a large model from a cold disk takes half an hour.
const STARTUP_S: u32 = 1800;
/// Seconds after which a server answers, its wait for the master included.
pub(crate) const STARTS_WITHIN_S: u32 = STARTUP_S + super::WAIT_S;

fn has_nodes(place: &Place<'_>) -> bool {
    let nodes = &place.wanted.nodes;
    !nodes.hosts.is_empty() || (!place.on_hosts() && nodes.replicas > 0)
}

fn argv(place: &Place<'_>, part: &Part<'_>, uses_store: bool, first_gpu: u64) -> Result<Vec<String>, DeployError> {
    let (model, serving) = (&place.wanted.model, &place.wanted.serving);
    let mut argv = vec![place.python(), "-m".to_owned(), "sglang.launch_server".to_owned()];
    let mut flag = |name: &str, value: String| argv.extend([format!("--{name}"), value]);
    flag("model-path", model.path.clone());
    if !model.served_name.is_empty() {
        flag("served-model-name", model.served_name.clone());
    }
    flag("host", place.bind_address(part.host).to_owned());
    flag("port", part.port.to_string());
    if serving.device == Device::Cpu {
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
    if let Some((at, rank)) = &part.meeting {
        flag("nnodes", serving.nnodes.to_string());
        flag("node-rank", rank.clone());
        flag("dist-init-addr", at.clone());
    }
    flag("page-size", model.page_size.to_string());
    if model.kv_cache != Default::default() {
        flag("kv-cache-dtype", model.kv_cache.text().to_owned());
    }
    match part.role {
        Role::Prefill => flag("disaggregation-mode", "prefill".to_owned()),
        Role::Decode => flag("disaggregation-mode", "decode".to_owned()),
        _ => {}
    }
    if matches!(part.role, Role::Prefill | Role::Decode) {
        flag("disaggregation-transfer-backend", "mooncake".to_owned());
        flag("disaggregation-bootstrap-port", serving.bootstrap_port.to_string());
        let devices = if serving.ib_devices.is_empty() { &place.wanted.transfer.devices } else { &serving.ib_devices };
        if !devices.is_empty() {
            flag("disaggregation-ib-device", devices.join(","));
        }
    }
    if uses_store {
        match model.hicache_size_gb {
            Some(gb) => flag("hicache-size", gb.to_string()),
            None => flag("hicache-ratio", need::ratio(place.wanted).to_string()),
        }
        flag("hicache-mem-layout", model.layout.clone());
        flag("hicache-io-backend", model.io_backend.clone());
        flag("hicache-write-policy", model.write_policy.clone());
        flag("hicache-storage-backend", "mooncake".to_owned());
        flag("hicache-storage-prefetch-policy", model.prefetch_policy.clone());
        // Without an address in it the environment stays the source of all others.
        let extra = format!("{{\"prefetch_threshold\":{}}}", model.prefetch_threshold);
        flag("hicache-storage-backend-extra-config", extra);
    }
    if model.dp_attention {
        argv.push("--enable-dp-attention".to_owned());
    }
    if uses_store {
        argv.push("--enable-hierarchical-cache".to_owned());
    }
    argv.push("--enable-metrics".to_owned());
    for arg in &model.extra_args {
        let flag = arg.split('=').next().unwrap_or_default();
        if let Some((_, key)) = OF_KEYS.iter().find(|(known, _)| flag.len() > 3 && known.starts_with(flag)) {
            return Err(wrong("model.extra_args", format!("{flag} is what {key} of this file sets")));
        }
    }
    argv.extend(model.extra_args.iter().cloned());
    Ok(argv)
}

/// Flags of SGLang 0.5.23, other spellings included, and the keys that they belong to. Of two it takes the last without a word, a
/// beginning of a flag for the whole, and one whose key is not set would change what was sized here.
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
    ("--hicache-storage-backend", "serving.mode"),
    ("--hicache-storage-backend-extra-config", "model.prefetch_threshold"),
    ("--hicache-storage-prefetch-policy", "model.prefetch_policy"),
];

fn env(place: &Place<'_>, part: &Part<'_>, uses_store: bool) -> Result<Vec<(String, String)>, DeployError> {
    let wanted = place.wanted;
    let mut env = Vec::new();
    if uses_store {
        env = place.client_env(part.host);
        env.push(("MOONCAKE_GLOBAL_SEGMENT_SIZE".to_owned(), sglang_size(wanted.segment.engines.0)));
        if wanted.master.ha.is_none() {
            env.push(("MOONCAKE_MASTER_METRICS_PORT".to_owned(), wanted.master.admin_port.to_string()));
            // Where others lend, it waits until one does; SGLang would take no memory for a failure.
            if has_nodes(place) {
                env.push(("MOONCAKE_CHECK_SERVER".to_owned(), "1".to_owned()));
            }
        }
    } else {
        // The cache that comes from prefill servers moves through the same transport.
        env.push(("MOONCAKE_PROTOCOL".to_owned(), wanted.transfer.protocol.text().to_owned()));
        if let Some(index) = wanted.transfer.gid_index {
            env.push(("MC_GID_INDEX".to_owned(), index.to_string()));
        }
    }
    if matches!(part.role, Role::Prefill | Role::Decode) && wanted.transfer.protocol == Protocol::Tcp {
        env.push(("MC_FORCE_TCP".to_owned(), "1".to_owned()));
    }
    // Peers dial it. Unless it is told, SGLang announces the address of the default route, whichever network that is in.
    let own = place.own_address(part.host);
    let is_dialled = part.role != Role::Server || part.meeting.is_some();
    if is_dialled && (!place.on_hosts() || own.parse::<IpAddr>().is_ok()) {
        env.push(("SGLANG_HOST_IP".to_owned(), own));
    }
    for (name, value) in &wanted.model.env {
        if env.iter().any(|(known, _)| known == name) {
            return Err(wrong("model.env", format!("{name} is set by another key of this file")));
        }
        env.push((name.clone(), value.clone()));
    }
    Ok(env)
}

/// As SGLang reads it: whole `gb`, which it takes for 1024^3, or bytes.
fn sglang_size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes > 0 && bytes.is_multiple_of(GIB) { format!("{}gb", bytes / GIB) } else { bytes.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::size_text;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sglang_reads_the_bytes_that_were_meant(bytes in 0u64..1 << 56, gib in 0u64..1 << 20) {
            prop_assert_eq!(size_text::sglang_segment(&sglang_size(bytes)), Ok(bytes));
            prop_assert_eq!(size_text::sglang_segment(&sglang_size(gib << 30)), Ok(gib << 30));
        }
    }
}
