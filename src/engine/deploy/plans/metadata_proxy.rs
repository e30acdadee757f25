//! The proxies for the metadata services inside elected masters, one on each host with clients.
//!
//! A Mooncake client accepts only one URL. In Kubernetes, that of a Service leads to a master that
//! is alive; on hosts, that of a proxy does.

use crate::host_address::host_key;
use crate::plans::{METADATA_VARIABLE, PlanContext};
use crate::{ComponentRole, NamedPort, ProbeAction, ProbeSet, ProbeSpec, ProcessPlan, ProcessResources, StartupWait};

/// Memory for connections, and for records that pass at the same time, in bytes.
const MEMORY_BYTES: u64 = 256 << 20;
/// The address of the proxies. Only the processes of their own host use them.
pub(crate) const HOST: &str = "127.0.0.1";

/// Plans a proxy for each host of the processes in `clients` that use the metadata service. They
/// start after it.
pub(crate) fn plans(context: &PlanContext<'_>, clients: &mut [ProcessPlan]) -> Vec<ProcessPlan> {
    if !context.on_hosts() || !context.spec.replicates_metadata() {
        return Vec::new();
    }
    let mut hosts: Vec<(String, String)> = Vec::new();
    for client in clients.iter_mut().filter(|client| client.variable(METADATA_VARIABLE).is_some()) {
        client.after.push(ComponentRole::MetadataProxy);
        let key = host_key(&client.host);
        if !hosts.iter().any(|(known, _)| *known == key) {
            hosts.push((key, client.host.clone()));
        }
    }
    hosts.into_iter().enumerate().map(|(at, (_, host))| plan(context, host, at)).collect()
}

fn plan(context: &PlanContext<'_>, host: String, at: usize) -> ProcessPlan {
    let port = context.spec.metadata.proxy_port;
    let workload = context.workload(ComponentRole::MetadataProxy);
    let masters: Vec<String> = context.masters(context.spec.metadata.port).iter().map(ToString::to_string).collect();
    let mut argv = context.program("mcctl", ["serve", "metadata"]);
    argv.push(format!("--host={HOST}"));
    argv.push(format!("--port={port}"));
    argv.push(format!("--forward-to={}", masters.join(",")));
    let listens = |period_s, failures| ProbeSpec { by: ProbeAction::Tcp { port }, period_s, timeout_s: 5, failures };
    ProcessPlan {
        role: ComponentRole::MetadataProxy,
        name: format!("{workload}-{at}"),
        workload,
        host,
        replicas: 1,
        size: 1,
        numa: None,
        image: context.store_image(),
        argv,
        env: Vec::new(),
        ports: vec![NamedPort { name: "metadata", number: port, key: "metadata.proxy_port" }],
        resources: ProcessResources { memory: Some(MEMORY_BYTES), cpus: 1, ..ProcessResources::default() },
        mounts: Vec::new(),
        secret: None,
        access: Vec::new(),
        model_cache: None,
        data: None,
        // /health depends on the masters, and a restart would not help.
        probes: ProbeSet { startup: listens(1, 60), readiness: listens(5, 3), liveness: listens(10, 6) },
        after: vec![ComponentRole::Master],
        // The masters may start later.
        wait: StartupWait::default(),
        stop_s: 30,
        drain: None,
    }
}
