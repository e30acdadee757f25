//! The masters.

use crate::engine::base::text::Quoted;
use crate::engine::deploy::error::wrong;
use crate::engine::deploy::launches::Place;
use crate::engine::deploy::{
    DeployError, Image, Launch, MetadataKind, Port, Probe, ProbeBy, Probes, Release, Resources, Role, Wait,
};

/// A master, or one on each of its hosts.
pub(crate) fn launches(place: &Place<'_>) -> Result<Vec<Launch>, DeployError> {
    let master = &place.wanted.master;
    if !place.on_hosts() {
        let replicas = master.ha.as_ref().map_or(1, |ha| ha.replicas);
        let name = place.workload(Role::Master);
        return Ok(vec![Launch { replicas, ..launch(place, "", name)? }]);
    }
    let names = place.master_names();
    master.hosts.iter().zip(names).map(|(host, name)| launch(place, host, name)).collect()
}

fn launch(place: &Place<'_>, host: &str, name: String) -> Result<Launch, DeployError> {
    let (wanted, master) = (place.wanted, &place.wanted.master);
    let bind = place.bind_address(host);
    // With high availability the bound address is published to clients.
    let address = if master.ha.is_some() { place.own_address(host) } else { bind.to_owned() };
    let mut argv = place.program("mooncake_master", ["serve", "master"]);
    let mut flag = |name: &str, value: String| argv.push(format!("--{name}={value}"));
    flag("rpc_address", address);
    flag("rpc_port", master.rpc_port.to_string());
    flag("rpc_thread_num", master.rpc_threads.to_string());
    if place.has(Release::V0_3_13Post1) {
        flag("metrics_host", bind.to_owned());
    }
    flag("metrics_port", master.admin_port.to_string());
    flag("default_kv_lease_ttl", master.lease_ttl_ms.to_string());
    flag("eviction_high_watermark_ratio", master.high_watermark.to_string());
    flag("client_ttl", master.client_ttl_s.to_string());
    let embedded = wanted.metadata.kind == MetadataKind::Http && wanted.metadata.url.is_empty();
    if embedded {
        flag("enable_http_metadata_server", "true".to_owned());
        flag("http_metadata_server_host", bind.to_owned());
        flag("http_metadata_server_port", wanted.metadata.port.to_string());
    }
    if let Some(ha) = &master.ha {
        flag("enable_ha", "true".to_owned());
        flag("etcd_endpoints", ha.etcd.join(";"));
        flag("cluster_id", ha.cluster_id.clone());
        if ha.oplog {
            flag("enable_oplog", "true".to_owned());
        }
    }
    if !wanted.nodes.ssd_path.is_empty() {
        flag("enable_offload", "true".to_owned());
    }
    extra(place, &mut argv)?;
    let mut ports =
        vec![Port { name: "rpc", number: master.rpc_port }, Port { name: "admin", number: master.admin_port }];
    if embedded {
        ports.push(Port { name: "metadata", number: wanted.metadata.port });
    }
    Ok(Launch {
        role: Role::Master,
        workload: place.workload(Role::Master),
        host: host.to_owned(),
        replicas: 1,
        size: 1,
        numa: None,
        image: if place.is_ours() { Image::Mcctl } else { Image::Store },
        argv,
        env: Vec::new(),
        ports,
        resources: Resources { memory: Some(master.memory.0), cpus: master.rpc_threads, ..Resources::default() },
        mounts: Vec::new(),
        probes: probes(place),
        after: Vec::new(),
        wait: etcd(place),
        // It ends within half a second; upstream's with high availability dies by the signal at once.
        stop_s: 30,
        drain: None,
        name,
    })
}

/// Flags that came with 0.3.13.
const NEW_FLAGS: &[&str] = &[
    "batch_oplog_retry_timeout_sec",
    "dynamic_replication_mode",
    "dynamic_replication_heat_window_seconds",
    "dynamic_replication_admission_qps_threshold",
    "dynamic_replication_max_memory_replicas",
    "enable_oplog",
    "max_kv_soft_pin_ttl",
    "metrics_host",
    "oplog_batch_max_entries",
    "oplog_poll_interval_ms",
];

/// The flags that the file adds. An unknown flag ends a master, and of two the last one counts.
fn extra(place: &Place<'_>, argv: &mut Vec<String>) -> Result<(), DeployError> {
    let key = "master.extra_flags";
    let name_of = |arg: &str| {
        let name = arg.strip_prefix("--")?.split('=').next()?;
        Some(name.replace('-', "_"))
    };
    let set: Vec<String> = argv.iter().filter_map(|arg| name_of(arg)).collect();
    for arg in &place.wanted.master.extra_flags {
        let Some(name) = name_of(arg) else {
            return Err(wrong(key, format!("{} is not --FLAG=VALUE", Quoted(arg))));
        };
        if set.contains(&name) {
            return Err(wrong(key, format!("--{name} is set by another key of this file")));
        }
        if !place.has(Release::V0_3_13Post1) && NEW_FLAGS.contains(&name.as_str()) {
            return Err(wrong(key, format!("release {} has no --{name} yet", place.wanted.mooncake.text())));
        }
        argv.push(arg.clone());
    }
    Ok(())
}

/// A master that is elected needs the place of the election.
fn etcd(place: &Place<'_>) -> Wait {
    let members = place.wanted.master.ha.iter().flat_map(|ha| &ha.etcd);
    let any_of: Vec<_> = members.filter_map(|member| member.parse().ok()).collect();
    Wait { any_of, seconds: super::WAIT_S }
}

fn probes(place: &Place<'_>) -> Probes {
    let port = place.wanted.master.admin_port;
    let ask = |by, period_s, failures| Probe { by, period_s, timeout_s: 5, failures };
    let health = || ProbeBy::Http { port, path: "/health" };
    // Upstream's /health is 200 whatever it does. Without an election that is as good as ready; a stand-by must not get requests.
    let ready = if place.is_ours() {
        ProbeBy::Http { port, path: "/ready" }
    } else if place.wanted.master.ha.is_some() {
        let script = format!(
            "import json,sys,urllib.request as u; \
             sys.exit(not json.load(u.urlopen('http://127.0.0.1:{port}/health', timeout=4))['service_ready'])"
        );
        ProbeBy::Exec { argv: vec!["python3".to_owned(), "-c".to_owned(), script] }
    } else {
        health()
    };
    Probes { startup: ask(health(), 1, 120), readiness: ask(ready, 5, 2), liveness: ask(health(), 10, 6) }
}
