//! The master: flags, settings file, high availability.

use crate::lint::findings::Findings;
use crate::lint::model::{Implementation, KubeService, LocatedValue, ProbeMethod, ProbePurpose, RuntimeKind, Variable};
use crate::lint::quantity;
use crate::lint::rules::restart::{self, OPLOG_SINCE, has_oplog};
use crate::lint::settings::{SettingValue, SettingsOrigin, is_host_local};
use crate::lint::view::DeploymentView;
use mcctl_base::addr::host_is_loopback;
use mcctl_base::check::SourceLocation;

/// A standby HA master listens and returns 200. Only `service_ready` shows whether it is serving.
pub(super) fn ha_readiness(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.upstream_masters().filter(|member| member.master_switch("enable_ha") == Some(true)) {
        for probe in member.process.probes.iter().filter(|probe| probe.what == ProbePurpose::Readiness) {
            let evidence = match &probe.how {
                ProbeMethod::Tcp { port } => match port {
                    Some(port) => format!("tcpSocket on port {port}; a standby's admin port is open as well"),
                    None => "tcpSocket; a standby's admin port is open as well".to_owned(),
                },
                ProbeMethod::Http { path, .. } if path.starts_with("/health") => {
                    "GET /health returns 200 on a standby and while the leader warms up".to_owned()
                }
                _ => continue,
            };
            out.warning(
                &probe.place,
                "the readiness probe of an HA master does not distinguish the leader from a standby",
                evidence,
                "use an exec probe: curl -s localhost:9003/health | grep -q '\"service_ready\":true'",
            );
        }
    }
}

/// Minimum number of RPC threads with which a master handles heartbeats in time when many servers
/// start at once.
const THREADS_MIN: u64 = 4;
/// Minimum CPU limit, in thousandths of a CPU.
const CPU_MIN: u64 = 2000;

/// A master with too little CPU time handles heartbeats late and expires live clients.
pub(super) fn threads(view: &DeploymentView<'_>, out: &mut Findings) {
    let remedy = "use at least 4 threads and 2 CPUs; if that is not possible, set --client_ttl=30";
    for member in view.masters() {
        if let SettingValue::Is(located) = member.master("rpc_thread_num")
            && let Some(threads) = located.text.parse::<u64>().ok().filter(|n| (1..THREADS_MIN).contains(n))
        {
            out.warning(
                &located.place,
                "the master may expire live clients when many start at once: it has too few RPC threads",
                format!(
                    "rpc_thread_num is {threads}; a ping that waits longer than client_ttl (10 s) counts as missed"
                ),
                remedy,
            );
        }
        if let Some((cpu, located)) = quantity::cpu_limit(member.process)
            && cpu < CPU_MIN
        {
            out.warning(
                &located.place,
                "the master may expire live clients when it is throttled: its CPU limit is low",
                format!("CPU limit {}; a ping that waits longer than client_ttl (10 s) counts as missed", located.text),
                remedy,
            );
        }
    }
}

/// With a settings file that has no `rpc_port`, the master listens on an arbitrary port.
pub(super) fn config_rpc_port(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.masters() {
        let (SettingsOrigin::File(node, file), Implementation::Upstream) =
            (&member.origin, member.process.implementation)
        else {
            continue;
        };
        if member.flag(&["rpc_port"]).is_some() || node.get("rpc_port").is_some() {
            continue;
        }
        out.error(
            &SourceLocation { file: file.clone(), line: node.line },
            "the master listens on an arbitrary port: the default port does not apply with a settings file",
            "the file has no rpc_port, and --rpc_port is not set",
            "add rpc_port: 50051",
        );
    }
}

/// HA flags that contradict each other, or that lose data.
pub(super) fn ha(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.upstream_masters() {
        let Some(on) = member.master_switch("enable_ha") else { continue };
        let place = |name: &str| match member.master(name) {
            SettingValue::Is(located) => located.place,
            _ => member.process.place.clone(),
        };
        if !on {
            if member.master_switch("enable_oplog") == Some(true) {
                out.error(
                    &place("enable_oplog"),
                    "the master aborts: the oplog requires high availability",
                    "enable_oplog without enable_ha",
                    "add --enable_ha=true and --ha_backend_connstring, or disable the oplog",
                );
            }
            continue;
        }
        let unset = |name: &str| match member.master(name) {
            SettingValue::Is(located) => located.text.trim().is_empty(),
            SettingValue::Unset => true,
            SettingValue::Unknown => false,
        };
        if unset("ha_backend_connstring") && unset("etcd_endpoints") {
            out.error(
                &place("enable_ha"),
                "the master aborts: high availability requires a leader-election backend",
                "enable_ha without ha_backend_connstring",
                "add --ha_backend_connstring=HOST:2379",
            );
        }
        if let SettingValue::Is(located) = member.master("ha_backend_type")
            && located.text != "etcd"
        {
            match located.text.as_str() {
                "redis" | "k8s" => out.warning(
                    &located.place,
                    format!("the master from the Python wheel exits at startup: it has no {} backend", located.text),
                    "releases on PyPI support only etcd; they exit with code 255",
                    "use etcd, or a master built with that backend",
                ),
                other => out.error(
                    &located.place,
                    format!("the master exits at startup: unknown HA backend '{other}'"),
                    "valid backends are etcd, redis and k8s",
                    "use --ha_backend_type=etcd",
                ),
            }
        }
        if member.master_switch("enable_oplog") == Some(false) {
            let remedy = match has_oplog(view.release(member).as_deref()) {
                true => "add --enable_oplog=true".to_owned(),
                false => {
                    format!("no fix in this release: --enable_oplog was added in {}", OPLOG_SINCE.unwrap_or_default())
                }
            };
            out.warning(
                &place("enable_ha"),
                "a failover loses all keys: standbys do not replicate the leader's metadata",
                "enable_ha without enable_oplog",
                remedy,
            );
        }
        let address = match (member.master("rpc_address"), member.master("rpc_interface")) {
            (_, SettingValue::Is(located)) if !located.text.is_empty() => None,
            (SettingValue::Is(located), SettingValue::Unset | SettingValue::Is(_)) => {
                // A test on one host may run a whole cluster on loopback.
                let is_test = member.process.runtime == RuntimeKind::Shell && host_is_loopback(located.text.trim());
                (is_host_local(&located.text) && !is_test).then_some(located.text)
            }
            (SettingValue::Unset, SettingValue::Unset | SettingValue::Is(_)) => Some("0.0.0.0 (default)".to_owned()),
            _ => None,
        };
        if let Some(address) = address {
            out.error(
                &place(if unset("rpc_address") { "enable_ha" } else { "rpc_address" }),
                "clients cannot reach the leader: it publishes its bind address",
                format!("rpc_address is {address}"),
                "set --rpc_address to an address of this host that clients can reach, or to $(POD_IP) in a pod",
            );
        }
    }
}

/// The master address that clients of an HA cluster use, and the cluster id on both sides.
pub(super) fn ha_clients(view: &DeploymentView<'_>, out: &mut Findings) {
    let leaders: Vec<_> =
        view.upstream_masters().filter(|member| member.master_switch("enable_ha") == Some(true)).collect();
    let Some(master) = leaders.first() else { return };
    let id = match master.master("cluster_id") {
        SettingValue::Is(located) => Some(located),
        SettingValue::Unset => Some(LocatedValue::new("mooncake_cluster", master.process.place.clone())),
        SettingValue::Unknown => None,
    };
    for other in &leaders[1..] {
        if let (Some(id), SettingValue::Is(located)) = (&id, other.master("cluster_id"))
            && located.text != id.text
            && other.process.surely_meets(master.process)
        {
            out.error(
                &located.place,
                "two HA masters never join the same election: their cluster ids differ",
                format!("{} here, {} at {}", located.text, id.text, id.place),
                "use one cluster_id for all masters of a store",
            );
        }
    }
    for member in view.clients() {
        let SettingValue::Is(address) = member.client("master_server_address") else { continue };
        let who = member.process.describe();
        let here = address.text.contains("://");
        if !here {
            let through = view
                .deployment
                .services
                .iter()
                .find(|s| address.text.split([':', '.']).next() == Some(s.name.as_str()));
            let labels = |service: &KubeService| of_leader_only(view, service);
            // Masters with the Kubernetes lease backend set a label on the pod of the leader, and a
            // Service may select it.
            if through.is_some_and(labels) {
                continue;
            }
            let found = match through {
                Some(service) => format!("{} is Service {}, which routes to any master", address.text, service.name),
                None => format!("{} is a single address; the masters elect a leader", address.text),
            };
            out.warning(
                &address.place,
                format!("{who} does not follow the leader: its master address is fixed"),
                found,
                "use etcd://HOST:2379 (the masters' etcd), without a Service in between",
            );
            continue;
        }
        let Some(id) = &id else { continue };
        let differs = match member.process.env.get("MC_STORE_CLUSTER_ID") {
            Some(Variable::Text(located)) if located.is_known() => {
                (located.text != id.text).then(|| (located.place.clone(), located.text.clone()))
            }
            Some(_) => None,
            None if member.process.env_whole && id.text != "mooncake_cluster" => {
                Some((member.process.place.clone(), "unset (mooncake_cluster)".to_owned()))
            }
            None => None,
        };
        if let Some((place, theirs)) = differs {
            out.error(
                &place,
                format!("{who} cannot find a master: it looks up a different cluster id"),
                format!("MC_STORE_CLUSTER_ID is {theirs}; cluster_id is {} at {}", id.text, id.place),
                format!("set MC_STORE_CLUSTER_ID={}", id.text),
            );
        }
    }
}

/// Whether the Service may select only the leader: its labels match the masters' pods, except for
/// labels that no template has, and the masters elect a leader with the Kubernetes lease backend.
fn of_leader_only(view: &DeploymentView<'_>, service: &KubeService) -> bool {
    let by_lease = view.upstream_masters().filter(
        |member| matches!(member.master("ha_backend_type"), SettingValue::Is(located) if located.text.trim() == "k8s"),
    );
    let mut pods = by_lease.filter_map(|member| view.deployment.pods.get(member.process.pod?));
    !service.selector.is_empty()
        && pods.any(|pods| {
            let unset = |key: &String| !pods.labels.contains_key(key);
            let agrees =
                |(key, value): (&String, &LocatedValue)| pods.labels.get(key).is_none_or(|own| *own == value.text);
            service.selector.iter().all(agrees) && service.selector.keys().any(unset)
        })
}

/// Several masters without an election are independent stores.
pub(super) fn replicas(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.masters() {
        let (Some(located), Some(on)) = (&member.process.replicas, member.master_switch("enable_ha")) else { continue };
        let Ok(count) = located.text.parse::<u64>() else { continue };
        let is_mcctl = member.process.implementation == Implementation::Mcctl;
        if count > 1 && !on {
            let (why, remedy) = match (is_mcctl, has_oplog(view.release(member).as_deref())) {
                (true, _) => (
                    "enable_ha is off",
                    "set the number of replicas to 1, or run the masters with --enable-ha and --etcd-endpoints",
                ),
                (false, true) => (
                    "enable_ha is off",
                    "set the number of replicas to 1, or run the masters with --enable_ha=true, --enable_oplog=true and etcd",
                ),
                (false, false) => (
                    "enable_ha is off",
                    "set the number of replicas to 1, or run the masters with --enable_ha=true and etcd",
                ),
            };
            out.error(
                &located.place,
                format!("without HA, {count} replicas are {count} independent stores"),
                why,
                remedy,
            );
        } else if count == 1 && on && view.masters().count() == 1 {
            out.info(
                &located.place,
                "an HA master without a standby cannot fail over",
                "one replica with enable_ha",
                "run two or more replicas",
            );
        }
    }
}

/// Switches that conflict with each other or have no effect.
pub(super) fn switches(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.masters() {
        let on = |name: &str| {
            (member.master_switch(name) == Some(true)).then(|| match member.master(name) {
                SettingValue::Is(located) => located.place,
                _ => member.process.place.clone(),
            })
        };
        let text = |name: &str| match member.master(name) {
            SettingValue::Is(located) if !located.text.trim().is_empty() => Some(located),
            _ => None,
        };
        if let (Some(place), Some(dfs), Implementation::Upstream) =
            (on("enable_offload"), text("root_fs_dir"), member.process.implementation)
        {
            out.warning(
                &dfs.place,
                "objects are written to two disk tiers: root_fs_dir is the legacy tier and must not be combined with offload",
                format!("root_fs_dir {}, enable_offload at {place}", dfs.text),
                "remove root_fs_dir",
            );
        }
        let is_mcctl = member.process.implementation == Implementation::Mcctl;
        for tuned in ["offload_on_evict", "promotion_on_hit", "offload_force_evict"] {
            if let (Some(place), Some(false)) = (on(tuned), member.master_switch("enable_offload")) {
                let (why, remedy) = match is_mcctl {
                    true if tuned == "promotion_on_hit" => continue,
                    true => ("mcctl serve master does not support the SSD tier", "remove it, or run mooncake_master"),
                    false => ("enable_offload is off", "add --enable_offload=true"),
                };
                out.warning(&place, format!("{tuned} has no effect: the SSD tier is off"), why, remedy);
            }
        }
        restart::check(view, member, out);
        if is_mcctl {
            continue;
        }
        if let (Some(place), Some(_)) = (on("enable_metadata_cleanup_on_timeout"), on("enable_http_metadata_server")) {
            out.warning(
                &place,
                "records of dead nodes remain: the cleanup does not delete the keys that the embedded service stores",
                "enable_metadata_cleanup_on_timeout with enable_http_metadata_server in 0.3.13",
                "use P2PHANDSHAKE, or a separate metadata service",
            );
        }
        let local = text("snapshot_object_store_type").is_some_and(|located| located.text == "local");
        if let (Some(place), true) = (on("enable_snapshot"), local)
            && member.process.lacks_var("MOONCAKE_SNAPSHOT_LOCAL_PATH")
        {
            out.error(
                &place,
                "no snapshots are written: local snapshots require a directory",
                "MOONCAKE_SNAPSHOT_LOCAL_PATH is not set",
                "set MOONCAKE_SNAPSHOT_LOCAL_PATH to a directory that outlives the master",
            );
        }
    }
}
