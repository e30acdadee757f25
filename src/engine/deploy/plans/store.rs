//! Storage-only nodes.

use crate::host_address::is_ipv6;
use crate::plans::PlanContext;
use crate::{
    ComponentRole, DeployError, DrainHook, HostMount, NamedPort, ProbeAction, ProbeSet, ProbeSpec, ProcessPlan,
    ProcessResources, StoreProtocol, need,
};
use mcctl_base::upstream::DeployedRelease;

/// Plans one process per host and NUMA node.
pub(crate) fn plans(context: &PlanContext<'_>) -> Result<Vec<ProcessPlan>, DeployError> {
    let nodes = &context.spec.nodes;
    let workload = context.workload(ComponentRole::Store);
    let numa: Vec<Option<u32>> =
        if nodes.numa.is_empty() { vec![None] } else { nodes.numa.iter().copied().map(Some).collect() };
    let hosts: Vec<(&str, String)> = if context.on_hosts() {
        nodes.hosts.iter().enumerate().map(|(i, host)| (host.as_str(), format!("{workload}-{i}"))).collect()
    } else {
        vec![("", workload.clone())]
    };
    let on_cluster = if nodes.replicas > 0 { nodes.replicas } else { u32::try_from(nodes.hosts.len()).unwrap_or(0) };
    let replicas = if context.on_hosts() { 1 } else { on_cluster };
    let mut all = Vec::new();
    if replicas == 0 {
        return Ok(all);
    }
    for (host, base) in hosts {
        for (node, at) in numa.iter().zip(0..) {
            let name = node.map_or_else(|| base.clone(), |node| format!("{base}-numa{node}"));
            all.push(ProcessPlan { replicas, numa: *node, ..plan(context, host, name, at)? });
        }
    }
    Ok(all)
}

/// Plans the `at`-th process on its host.
fn plan(context: &PlanContext<'_>, host: &str, name: String, at: u16) -> Result<ProcessPlan, DeployError> {
    let spec = context.spec;
    let nodes = &context.spec.nodes;
    let rest = nodes.rest_port + at;
    let client_http = nodes.client_http_port + at;
    let needed = need::node(spec)?;
    let rdma = spec.transfer.protocol == StoreProtocol::Rdma;
    let mut argv = context.program("mc_store_rest_server", ["serve", "store"]);
    if context.is_mcctl() && context.on_hosts() && is_ipv6(host) {
        // Upstream's server has no such option: its REST port is on IPv4 only.
        argv.push(format!("--host={}", context.bind_address(host)));
    }
    argv.extend(["--port".to_owned(), rest.to_string(), "--max-wait-time".to_owned(), super::WAIT_S.to_string()]);
    let access = context.access_arguments();
    argv.extend(access.argv);
    let mut env = context.client_env(host);
    let mut set = |name: &str, value: String| env.push((name.to_owned(), value));
    // All programs that read these variables parse a bare byte count the same way.
    set("MOONCAKE_GLOBAL_SEGMENT_SIZE", nodes.segment.0.to_string());
    set("MOONCAKE_LOCAL_BUFFER_SIZE", nodes.local_buffer.0.to_string());
    env.extend(context.checksum_env(context.is_mcctl()));
    let mut set = |name: &str, value: String| env.push((name.to_owned(), value));
    let mut ports = vec![NamedPort { name: "rest", number: rest, key: "nodes.rest_port" }];
    // 0.3.12.post1 reads these variables, too, but its server was not tested as a readiness probe.
    let has_client_http = !context.is_mcctl() && spec.mooncake >= DeployedRelease::V0_3_13Post1;
    if has_client_http {
        set("MOONCAKE_ENABLE_CLIENT_HTTP_SERVER", "true".to_owned());
        set("MOONCAKE_CLIENT_HTTP_PORT", client_http.to_string());
        ports.push(NamedPort { name: "client-http", number: client_http, key: "nodes.client_http_port" });
    }
    let mut mounts = Vec::new();
    let mut drain = None;
    if !nodes.ssd_path.is_empty() {
        // One directory per process: two processes in one directory would overwrite each other's
        // buckets.
        let path = if nodes.numa.len() > 1 { format!("{}/{at}", nodes.ssd_path) } else { nodes.ssd_path.clone() };
        set("MOONCAKE_OFFLOAD_ENABLED", "true".to_owned());
        set("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", path.clone());
        // Set explicitly, because upstream's documentation contradicts itself about the default.
        set("MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY", "fifo".to_owned());
        mounts.push(HostMount { path, writes: true });
        let body = format!("{{\"grace_period_seconds\":{DRAIN_GRACE_S}}}");
        drain = Some(DrainHook { port: rest, path: "/api/unmount_local_disk", body, seconds: DRAIN_GRACE_S + 15 });
    }
    let ask = |by, period_s, failures| ProbeSpec { by, period_s, timeout_s: 5, failures };
    let listens = || ProbeAction::Tcp { port: rest };
    let ready = if context.is_mcctl() {
        context.http_probe(rest, "/health")
    } else if has_client_http {
        context.http_probe(client_http, "/health")
    } else {
        listens()
    };
    Ok(ProcessPlan {
        role: ComponentRole::Store,
        workload: context.workload(ComponentRole::Store),
        host: host.to_owned(),
        replicas: 1,
        size: 1,
        numa: None,
        image: context.store_image(),
        argv,
        env,
        ports,
        resources: ProcessResources {
            memory: needed.memory,
            firm: needed.firm,
            cpus: 2,
            hugepages: needed.hugepages,
            gpus: 0,
            rdma,
            shm: 0,
            // Only memory that is registered with a device is locked.
            memlock: rdma,
        },
        mounts,
        secret: None,
        access: access.files,
        model_cache: None,
        data: None,
        // The REST port opens once the segment is mounted. If the master is unreachable, the node
        // becomes unready but is not restarted, because a restart would lose its objects.
        probes: ProbeSet {
            startup: ask(listens(), 10, 90),
            readiness: ask(ready, 5, 3),
            liveness: ask(listens(), 10, 6),
        },
        after: vec![ComponentRole::Master],
        // mcctl's node itself waits for the master.
        wait: if context.is_mcctl() { Default::default() } else { context.wait_for_master() },
        stop_s: 30 + drain.as_ref().map_or(0, |drain: &DrainHook| drain.seconds),
        drain,
        name,
    })
}

/// Time allowed for reads from the SSD tier to finish, in seconds.
const DRAIN_GRACE_S: u32 = 10;
