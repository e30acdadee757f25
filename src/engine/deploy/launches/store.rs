//! The nodes that only lend memory.

use crate::engine::deploy::launches::Place;
use crate::engine::deploy::{
    DeployError, Drain, Image, Launch, Mount, Port, Probe, ProbeBy, Probes, Release, Resources, Role, need,
};

/// A process for each NUMA node of each host.
pub(crate) fn launches(place: &Place<'_>) -> Result<Vec<Launch>, DeployError> {
    let nodes = &place.wanted.nodes;
    let workload = place.workload(Role::Store);
    let numa: Vec<Option<u32>> =
        if nodes.numa.is_empty() { vec![None] } else { nodes.numa.iter().copied().map(Some).collect() };
    let hosts: Vec<(&str, String)> = if place.on_hosts() {
        nodes.hosts.iter().enumerate().map(|(i, host)| (host.as_str(), format!("{workload}-{i}"))).collect()
    } else {
        vec![("", workload.clone())]
    };
    let on_cluster = if nodes.replicas > 0 { nodes.replicas } else { u32::try_from(nodes.hosts.len()).unwrap_or(0) };
    let replicas = if place.on_hosts() { 1 } else { on_cluster };
    let mut all = Vec::new();
    if replicas == 0 {
        return Ok(all);
    }
    for (host, base) in hosts {
        for (node, at) in numa.iter().zip(0..) {
            let name = node.map_or_else(|| base.clone(), |node| format!("{base}-numa{node}"));
            all.push(Launch { replicas, numa: *node, ..launch(place, host, name, at)? });
        }
    }
    Ok(all)
}

/// The `at`-th process of its host.
fn launch(place: &Place<'_>, host: &str, name: String, at: u16) -> Result<Launch, DeployError> {
    let (wanted, nodes) = (place.wanted, &place.wanted.nodes);
    let (rest, client_http) = (nodes.rest_port + at, nodes.client_http_port + at);
    let taken = need::node(wanted)?;
    let mut argv = place.program("mc_store_rest_server", ["serve", "store"]);
    argv.extend(["--port".to_owned(), rest.to_string(), "--max-wait-time".to_owned(), super::WAIT_S.to_string()]);
    let mut env = place.client_env(host);
    let mut set = |name: &str, value: String| env.push((name.to_owned(), value));
    // Bytes are what every reader of these agrees on.
    set("MOONCAKE_GLOBAL_SEGMENT_SIZE", nodes.segment.0.to_string());
    set("MOONCAKE_LOCAL_BUFFER_SIZE", nodes.local_buffer.0.to_string());
    let mut ports = vec![Port { name: "rest", number: rest }];
    let has_client_http = !place.is_ours() && place.has(Release::V0_3_13Post1);
    if has_client_http {
        set("MOONCAKE_ENABLE_CLIENT_HTTP_SERVER", "true".to_owned());
        set("MOONCAKE_CLIENT_HTTP_PORT", client_http.to_string());
        ports.push(Port { name: "client-http", number: client_http });
    }
    let (mut mounts, mut drain) = (Vec::new(), None);
    if !nodes.ssd_path.is_empty() {
        // A folder for each process: buckets of two in one destroy each other.
        let path = if nodes.numa.len() > 1 { format!("{}/{at}", nodes.ssd_path) } else { nodes.ssd_path.clone() };
        set("MOONCAKE_OFFLOAD_ENABLED", "true".to_owned());
        set("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", path.clone());
        // Its documentation names two defaults.
        set("MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY", "fifo".to_owned());
        mounts.push(Mount { path, writes: true });
        let body = format!("{{\"grace_period_seconds\":{DRAIN_GRACE_S}}}");
        drain = Some(Drain { port: rest, path: "/api/unmount_local_disk", body, seconds: DRAIN_GRACE_S + 15 });
    }
    let ask = |by, period_s, failures| Probe { by, period_s, timeout_s: 5, failures };
    let listens = || ProbeBy::Tcp { port: rest };
    let ready = if place.is_ours() {
        ProbeBy::Http { port: rest, path: "/health" }
    } else if has_client_http {
        ProbeBy::Http { port: client_http, path: "/health" }
    } else {
        listens()
    };
    Ok(Launch {
        role: Role::Store,
        workload: place.workload(Role::Store),
        host: host.to_owned(),
        replicas: 1,
        size: 1,
        numa: None,
        image: if place.is_ours() { Image::Mcctl } else { Image::Store },
        argv,
        env,
        ports,
        resources: Resources {
            memory: taken.memory,
            cpus: 2,
            hugepages: taken.hugepages,
            gpus: 0,
            rdma: wanted.transfer.protocol == crate::engine::deploy::Protocol::Rdma,
            shm: 0,
            memlock: true,
        },
        mounts,
        // The REST port opens when the segment is mounted. A master that is away makes the node unready and does not restart it: its
        // objects would be lost.
        probes: Probes {
            startup: ask(listens(), 10, 90),
            readiness: ask(ready, 5, 3),
            liveness: ask(listens(), 10, 6),
        },
        after: place.master_names(),
        // mcctl's waits by itself.
        wait: if place.is_ours() { Default::default() } else { place.wait_for_master() },
        stop_s: 30 + drain.as_ref().map_or(0, |drain: &Drain| drain.seconds),
        drain,
        name,
    })
}

/// Seconds that readers of the SSD tier have to finish.
const DRAIN_GRACE_S: u32 = 10;
