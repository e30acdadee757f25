//! Master processes.

use crate::error::invalid_value;
use crate::host_address::own_url_host;
use crate::plan::master_disk;
use crate::plans::PlanContext;
use crate::{
    ComponentRole, DataVolume, DeployError, DeploymentSpec, NamedPort, ProbeAction, ProbeSet, ProbeSpec, ProcessPlan,
    ProcessResources, SecretFile, StartupWait,
};
use mcctl_base::text::Quoted;

/// Seconds in which a master without data stops. mcctl's needs half a second. Upstream's HA master
/// terminates immediately on SIGTERM.
const STOP_S: u32 = 30;
/// Seconds in which a master without data starts.
const START_S: u32 = 120;
/// Seconds for a million keys that a master reads from its data directory: twice what a slow host
/// needs.
const RESTORE_S_PER_MILLION: u64 = 4;

/// Plans a single master, or one per host.
pub(crate) fn plans(context: &PlanContext<'_>) -> Result<Vec<ProcessPlan>, DeployError> {
    let master = &context.spec.master;
    if !context.on_hosts() {
        let replicas = master.ha.as_ref().map_or(1, |ha| ha.replicas);
        let name = context.workload(ComponentRole::Master);
        return Ok(vec![ProcessPlan { replicas, ..plan(context, "", name, 0)? }]);
    }
    let hosts = master.hosts.iter().enumerate().zip(context.master_names());
    hosts.map(|((i, host), name)| plan(context, host, name, context.earlier_masters(i))).collect()
}

/// Plans a master on `host`, where `earlier` other masters run.
fn plan(context: &PlanContext<'_>, host: &str, name: String, earlier: u16) -> Result<ProcessPlan, DeployError> {
    let spec = context.spec;
    let master = &context.spec.master;
    let own_port = |key, first: u16| {
        let port = first.checked_add(earlier);
        port.ok_or_else(|| invalid_value(key, "too high: no ports are left for the other masters on this host"))
    };
    let rpc_port = own_port("master.rpc_port", master.rpc_port)?;
    let admin_port = own_port("master.admin_port", master.admin_port)?;
    let bind = context.bind_address(host);
    // With high availability, the master publishes its bind address to clients.
    let address = if master.ha.is_some() { context.own_address(host) } else { bind.to_owned() };
    let mut argv = context.program("mooncake_master", ["serve", "master"]);
    let mut flag = |name: &str, value: String| argv.push(format!("--{name}={value}"));
    flag("rpc_address", address);
    flag("rpc_port", rpc_port.to_string());
    flag("rpc_thread_num", master.rpc_threads.to_string());
    if context.has_flag("metrics_host") {
        flag("metrics_host", bind.to_owned());
    }
    flag("metrics_port", admin_port.to_string());
    flag("default_kv_lease_ttl", master.lease_ttl_ms.to_string());
    flag("eviction_high_watermark_ratio", master.high_watermark.to_string());
    flag("client_ttl", master.client_ttl_s.to_string());
    let embedded = spec.embeds_metadata();
    let metadata_port = own_port("metadata.port", spec.metadata.port)?;
    if embedded {
        flag("enable_http_metadata_server", "true".to_owned());
        flag("http_metadata_server_host", bind.to_owned());
        flag("http_metadata_server_port", metadata_port.to_string());
    }
    if let Some(ha) = &master.ha {
        flag("enable_ha", "true".to_owned());
        flag("etcd_endpoints", ha.etcd.join(";"));
        flag("cluster_id", ha.cluster_id.clone());
        if ha.oplog && !context.is_mcctl() {
            flag("enable_oplog", "true".to_owned());
        }
    }
    if !spec.nodes.ssd_path.is_empty() {
        flag("enable_offload", "true".to_owned());
    }
    let access = context.access_arguments();
    argv.extend(access.argv);
    let mut flag = |name: &str, value: String| argv.push(format!("--{name}={value}"));
    let data = data_volume(context, earlier);
    if let Some(data) = &data {
        flag("data-dir", data.path.clone());
    }
    let secret = secret(context);
    add_extra_flags(context, &mut argv)?;
    let mut ports = vec![
        NamedPort { name: "rpc", number: rpc_port, key: "master.rpc_port" },
        NamedPort { name: "admin", number: admin_port, key: "master.admin_port" },
    ];
    if embedded {
        ports.push(NamedPort { name: "metadata", number: metadata_port, key: "metadata.port" });
    }
    Ok(ProcessPlan {
        role: ComponentRole::Master,
        workload: context.workload(ComponentRole::Master),
        host: host.to_owned(),
        replicas: 1,
        size: 1,
        numa: None,
        image: context.store_image(),
        argv,
        env: Vec::new(),
        ports,
        resources: ProcessResources {
            memory: Some(master.memory.0),
            cpus: master.rpc_threads,
            ..ProcessResources::default()
        },
        mounts: Vec::new(),
        secret,
        access: access.files,
        model_cache: None,
        probes: probes(context, host, &MasterPorts { admin: admin_port, metadata: metadata_port }, data.is_some()),
        after: Vec::new(),
        wait: etcd(context),
        // The log already has every key. The final snapshot makes the next start faster.
        stop_s: STOP_S + data.as_ref().map_or(0, |_| STOP_S + master_disk::snapshot_seconds(keys(spec))),
        data,
        drain: None,
        name,
    })
}

/// The secret of the replication between masters.
fn secret(context: &PlanContext<'_>) -> Option<SecretFile> {
    let ha = context.spec.master.ha.as_ref()?;
    let source = if context.on_hosts() { &ha.secret_file } else { &context.spec.kubernetes.ha_secret };
    (!source.is_empty()).then(|| SecretFile { flag: "ha-secret-file", source: source.clone() })
}

/// Number of keys that fit into the master's memory.
fn keys(spec: &DeploymentSpec) -> u64 {
    master_disk::keys_in(spec.master.memory.0)
}

/// The volume for a master's data directory. Its name stays the same if the order of the hosts
/// changes.
fn data_volume(context: &PlanContext<'_>, earlier: u16) -> Option<DataVolume> {
    let spec = context.spec;
    // In a lab, each master on a host has a directory of its own.
    let own = |name: String| if earlier > 0 { format!("{name}-{earlier}") } else { name };
    let path = own(spec.data_dir(context.platform)?.trim_end_matches('/').to_owned());
    let keys = keys(spec);
    let volume_bytes = spec.kubernetes.master_storage.map_or_else(|| master_disk::volume_bytes(keys), |size| size.0);
    Some(DataVolume {
        name: own(format!("{}-master-data", spec.name)),
        path,
        bytes: master_disk::disk_bytes(keys),
        volume_bytes,
    })
}

/// Adds the flags from the deployment file. A master exits on an unknown flag and uses the last
/// occurrence of a flag.
fn add_extra_flags(context: &PlanContext<'_>, argv: &mut Vec<String>) -> Result<(), DeployError> {
    let key = "master.extra_flags";
    let name_of = |arg: &str| {
        let name = arg.strip_prefix("--")?.split('=').next()?;
        Some(name.replace('-', "_"))
    };
    let set: Vec<String> = argv.iter().filter_map(|arg| name_of(arg)).collect();
    for arg in &context.spec.master.extra_flags {
        let Some(name) = name_of(arg) else {
            return Err(invalid_value(key, format!("{} is not in the form --FLAG=VALUE", Quoted(arg))));
        };
        if set.contains(&name) {
            return Err(invalid_value(key, format!("--{name} is already set by another key")));
        }
        if let Some(why) = conflict(context, &name) {
            return Err(invalid_value(key, format!("--{name} {why}")));
        }
        if !context.has_flag(&name) {
            return Err(invalid_value(
                key,
                format!("release {} does not support --{name}", context.spec.mooncake.text()),
            ));
        }
        argv.push(arg.clone());
    }
    Ok(())
}

/// Why mcctl's master would exit at startup with the flag `name`.
fn conflict(context: &PlanContext<'_>, name: &str) -> Option<&'static str> {
    let has_data = context.spec.data_dir(context.platform).is_some();
    let is_elected = context.spec.master.ha.is_some();
    match name {
        _ if !context.is_mcctl() => None,
        "enable_snapshot" | "enable_snapshot_restore" if is_elected => {
            Some("conflicts with master.ha: remove it; master.data_dir also contains snapshots")
        }
        "enable_snapshot" | "enable_snapshot_restore" if has_data => {
            Some("conflicts with master.data_dir; to use it, set data_dir = \"\"")
        }
        "enable_http_metadata_server" if is_elected => Some(
            "conflicts with master.ha, where clients would not find the service: set metadata.kind = \"http\" instead",
        ),
        "fsync" | "on_disk_error" | "disk_stall_timeout" | "discard_data" if is_elected && !has_data => {
            Some("requires a data directory, which these masters do not have: remove it")
        }
        _ => None,
    }
}

/// Elected masters wait for etcd.
fn etcd(context: &PlanContext<'_>) -> StartupWait {
    let members = context.spec.master.ha.iter().flat_map(|ha| &ha.etcd);
    let any_of: Vec<_> = members.filter_map(|member| member.parse().ok()).collect();
    StartupWait { any_of, seconds: super::WAIT_S }
}

/// The HTTP ports of a master.
struct MasterPorts {
    admin: u16,
    metadata: u16,
}

fn probes(context: &PlanContext<'_>, host: &str, ports: &MasterPorts, restores: bool) -> ProbeSet {
    let port = ports.admin;
    let ask = |by, period_s, failures| ProbeSpec { by, period_s, timeout_s: 5, failures };
    let health = || context.http_probe(port, "/health");
    // Upstream's /health always returns 200. This status is sufficient without leader election.
    // With leader election, the probe must fail on a standby, which must not receive requests.
    let ready = if context.spec.replicates_metadata() {
        // The Service for metadata records leads to all masters that can serve them: the leader,
        // and standbys in sync. Nothing else depends on the readiness of a master.
        context.http_probe(ports.metadata, "/health")
    } else if context.is_mcctl() {
        context.http_probe(port, "/ready")
    } else if context.spec.master.ha.is_some() {
        let script = format!(
            "import json,sys,urllib.request as u; \
             sys.exit(not json.load(u.urlopen('http://{}:{port}/health', timeout=4))['service_ready'])",
            own_url_host(host)
        );
        ProbeAction::Exec { argv: vec!["python3".to_owned(), "-c".to_owned(), script] }
    } else {
        health()
    };
    let restore_s = if restores { (keys(context.spec) / 1_000_000).saturating_mul(RESTORE_S_PER_MILLION) } else { 0 };
    let start_s = START_S.saturating_add(u32::try_from(restore_s).unwrap_or(u32::MAX));
    ProbeSet { startup: ask(health(), 1, start_s), readiness: ask(ready, 5, 2), liveness: ask(health(), 10, 6) }
}
