//! The master: its flags, its settings file, high availability.

use crate::engine::check::Place;
use crate::engine::lint::quantity;
use crate::engine::lint::rules::restart::{self, has_oplog};
use crate::engine::lint::rules::{Findings, View};
use crate::engine::lint::scene::{Make, ProbeFor, ProbeHow, Said, Variable};
use crate::engine::lint::settings::{Origin, Setting, is_here_only};

/// A standby of an HA master listens and answers 200; only `service_ready` tells that it serves.
pub fn ha_readiness(view: &View<'_>, out: &mut Findings) {
    for seen in view.upstream_masters().filter(|seen| seen.master_switch("enable_ha") == Some(true)) {
        for probe in seen.process.probes.iter().filter(|probe| probe.what == ProbeFor::Readiness) {
            let evidence = match &probe.how {
                ProbeHow::Tcp { port } => match port {
                    Some(port) => format!("tcpSocket on port {port}; the admin port of a standby is open, too"),
                    None => "tcpSocket; the admin port of a standby is open, too".to_owned(),
                },
                ProbeHow::Http { path, .. } if path.starts_with("/health") => {
                    "GET /health answers 200 on a standby and while the leader warms up".to_owned()
                }
                _ => continue,
            };
            out.warning(
                &probe.place,
                "the readiness probe of a master with HA does not tell the leader from a standby",
                evidence,
                "use an exec probe: curl -s localhost:9003/health | grep -q '\"service_ready\":true'",
            );
        }
    }
}

/// The least threads that keep pings alive when many servers start at once.
const THREADS_MIN: u64 = 4;
/// The least CPU, thousandths.
const CPU_MIN: u64 = 2000;

/// A master that is short of CPU misses pings, and takes living clients for dead.
pub fn threads(view: &View<'_>, out: &mut Findings) {
    let remedy = "give it 4 threads and 2 CPUs or more, and --client_ttl=30 where that cannot be";
    for seen in view.masters() {
        if let Setting::Is(said) = seen.master("rpc_thread_num")
            && let Some(threads) = said.text.parse::<u64>().ok().filter(|n| (1..THREADS_MIN).contains(n))
        {
            out.warning(
                &said.place,
                "the master may take clients for dead when many start at once: it has few RPC threads",
                format!(
                    "rpc_thread_num is {threads}; a ping that waits longer than client_ttl (10 s) counts as missed"
                ),
                remedy,
            );
        }
        if let Some((cpu, said)) = quantity::cpu_limit(seen.process)
            && cpu < CPU_MIN
        {
            out.warning(
                &said.place,
                "the master may take clients for dead when it is throttled: its CPU limit is low",
                format!("CPU limit {}; a ping that waits longer than client_ttl (10 s) counts as missed", said.text),
                remedy,
            );
        }
    }
}

/// Without `rpc_port` in it, a settings file makes the master listen on any port.
pub fn config_rpc_port(view: &View<'_>, out: &mut Findings) {
    for seen in view.masters() {
        let (Origin::File(node, file), Make::Upstream) = (&seen.origin, seen.process.make) else { continue };
        if seen.flag(&["rpc_port"]).is_some() || node.get("rpc_port").is_some() {
            continue;
        }
        out.error(
            &Place { file: file.clone(), line: node.line },
            "the master listens on any free port: with a settings file the default port does not count",
            "there is no rpc_port in it, and the flag --rpc_port is not given",
            "add rpc_port: 50051",
        );
    }
}

/// Flags of high availability that contradict each other, or lose what they are for.
pub fn ha(view: &View<'_>, out: &mut Findings) {
    for seen in view.upstream_masters() {
        let Some(on) = seen.master_switch("enable_ha") else { continue };
        let place = |name: &str| match seen.master(name) {
            Setting::Is(said) => said.place,
            _ => seen.process.place.clone(),
        };
        if !on {
            if seen.master_switch("enable_oplog") == Some(true) {
                out.error(
                    &place("enable_oplog"),
                    "the master aborts: an oplog needs high availability",
                    "enable_oplog without enable_ha",
                    "add --enable_ha=true and --ha_backend_connstring, or take the oplog away",
                );
            }
            continue;
        }
        let unset = |name: &str| match seen.master(name) {
            Setting::Is(said) => said.text.trim().is_empty(),
            Setting::Unset => true,
            Setting::Unknown => false,
        };
        if unset("ha_backend_connstring") && unset("etcd_endpoints") {
            out.error(
                &place("enable_ha"),
                "the master aborts: high availability needs a place where leaders are elected",
                "enable_ha without ha_backend_connstring",
                "add --ha_backend_connstring=HOST:2379",
            );
        }
        if let Setting::Is(said) = seen.master("ha_backend_type")
            && said.text != "etcd"
        {
            match said.text.as_str() {
                "redis" | "k8s" => out.warning(
                    &said.place,
                    format!("the wheel's master ends at once: it has no {} backend", said.text),
                    "releases from the package index are built with etcd only; they exit with 255",
                    "use etcd, or a master that is built with that backend",
                ),
                other => out.error(
                    &said.place,
                    format!("the master ends at once: there is no HA backend '{other}'"),
                    "the backends are etcd, redis and k8s",
                    "write --ha_backend_type=etcd",
                ),
            }
        }
        if seen.master_switch("enable_oplog") == Some(false) {
            let remedy = match has_oplog(view.release(seen).as_deref()) {
                true => "add --enable_oplog=true",
                false => "none in this release: --enable_oplog came with 0.3.13",
            };
            out.warning(
                &place("enable_ha"),
                "a fail-over loses every key: a standby does not have the leader's metadata",
                "enable_ha without enable_oplog",
                remedy,
            );
        }
        let address = match (seen.master("rpc_address"), seen.master("rpc_interface")) {
            (_, Setting::Is(said)) if !said.text.is_empty() => None,
            (Setting::Is(said), Setting::Unset | Setting::Is(_)) => is_here_only(&said.text).then_some(said.text),
            (Setting::Unset, Setting::Unset | Setting::Is(_)) => Some("0.0.0.0, the default".to_owned()),
            _ => None,
        };
        if let Some(address) = address {
            out.error(
                &place(if unset("rpc_address") { "enable_ha" } else { "rpc_address" }),
                "clients cannot call the leader: its address is published as it is bound",
                format!("rpc_address is {address}"),
                "set --rpc_address to an address of this host that clients can call, $(POD_IP) in a pod",
            );
        }
    }
}

/// The address of clients of masters with HA, and the namespace of both.
pub fn ha_clients(view: &View<'_>, out: &mut Findings) {
    let leaders: Vec<_> =
        view.upstream_masters().filter(|seen| seen.master_switch("enable_ha") == Some(true)).collect();
    let Some(master) = leaders.first() else { return };
    let id = match master.master("cluster_id") {
        Setting::Is(said) => Some(said),
        Setting::Unset => Some(Said::new("mooncake_cluster", master.process.place.clone())),
        Setting::Unknown => None,
    };
    for other in &leaders[1..] {
        if let (Some(id), Setting::Is(said)) = (&id, other.master("cluster_id"))
            && said.text != id.text
        {
            out.error(
                &said.place,
                "two masters with HA never meet: their cluster ids differ",
                format!("{} here, {} at {}", said.text, id.text, id.place),
                "give all masters of a store one cluster_id",
            );
        }
    }
    for seen in view.clients() {
        let Setting::Is(address) = seen.client("master_server_address") else { continue };
        let who = seen.process.called();
        let here = address.text.contains("://");
        if !here {
            let through =
                view.scene.services.iter().find(|s| address.text.split([':', '.']).next() == Some(s.name.as_str()));
            let found = match through {
                Some(service) => format!("{} is Service {}, which leads to any master", address.text, service.name),
                None => format!("{} is one address of masters that elect a leader", address.text),
            };
            out.warning(
                &address.place,
                format!("{who} does not follow the leader: it calls one address, and not the one that is elected"),
                found,
                match seen.process.make {
                    Make::Upstream => "write etcd://HOST:2379, the masters' etcd, without a Service between",
                    Make::Mcctl => {
                        "run mooncake_store_service with etcd://HOST:2379: mcctl's nodes do not follow a leader"
                    }
                },
            );
            continue;
        }
        let Some(id) = &id else { continue };
        let differs = match seen.process.env.get("MC_STORE_CLUSTER_ID") {
            Some(Variable::Text(said)) if said.is_known() => {
                (said.text != id.text).then(|| (said.place.clone(), said.text.clone()))
            }
            Some(_) => None,
            None if seen.process.env_whole && id.text != "mooncake_cluster" => {
                Some((seen.process.place.clone(), "not set, so mooncake_cluster".to_owned()))
            }
            None => None,
        };
        if let Some((place, theirs)) = differs {
            out.error(
                &place,
                format!("{who} finds no master: it looks in another cluster"),
                format!("MC_STORE_CLUSTER_ID is {theirs}; cluster_id is {} at {}", id.text, id.place),
                format!("set MC_STORE_CLUSTER_ID={}", id.text),
            );
        }
    }
}

/// More than one master without an election are as many stores.
pub fn replicas(view: &View<'_>, out: &mut Findings) {
    for seen in view.masters() {
        let (Some(said), Some(on)) = (&seen.process.replicas, seen.master_switch("enable_ha")) else { continue };
        let Ok(count) = said.text.parse::<u64>() else { continue };
        let is_mcctl = seen.process.make == Make::Mcctl;
        if count > 1 && (is_mcctl || !on) {
            let (why, remedy) = match (is_mcctl, has_oplog(view.release(seen).as_deref())) {
                (true, _) => ("mcctl serve master has no high availability", "write 1"),
                (false, true) => {
                    ("enable_ha is off", "write 1, or give the masters --enable_ha=true, --enable_oplog=true and etcd")
                }
                (false, false) => ("enable_ha is off", "write 1, or give the masters --enable_ha=true and etcd"),
            };
            out.error(&said.place, format!("without HA, {count} replicas are {count} independent stores"), why, remedy);
        } else if count == 1 && on && !is_mcctl && view.masters().count() == 1 {
            out.info(
                &said.place,
                "a master with HA and no standby has nobody to take over",
                "one replica, enable_ha",
                "run two or more",
            );
        }
    }
}

/// Switches that work against each other, or not at all.
pub fn switches(view: &View<'_>, out: &mut Findings) {
    for seen in view.masters() {
        let on = |name: &str| {
            (seen.master_switch(name) == Some(true)).then(|| match seen.master(name) {
                Setting::Is(said) => said.place,
                _ => seen.process.place.clone(),
            })
        };
        let text = |name: &str| match seen.master(name) {
            Setting::Is(said) if !said.text.trim().is_empty() => Some(said),
            _ => None,
        };
        if let (Some(place), Some(dfs), Make::Upstream) = (on("enable_offload"), text("root_fs_dir"), seen.process.make)
        {
            out.error(
                &dfs.place,
                "objects go to two disk tiers at once: root_fs_dir is the old one, and not to be combined with offload",
                format!("root_fs_dir {}, enable_offload at {place}", dfs.text),
                "take root_fs_dir away",
            );
        }
        let is_mcctl = seen.process.make == Make::Mcctl;
        for tuned in ["offload_on_evict", "promotion_on_hit", "offload_force_evict"] {
            if let (Some(place), Some(false)) = (on(tuned), seen.master_switch("enable_offload")) {
                let (why, remedy) = match is_mcctl {
                    true if tuned == "promotion_on_hit" => continue,
                    true => ("mcctl serve master has no SSD tier", "remove it, or run mooncake_master"),
                    false => ("enable_offload is off", "add --enable_offload=true"),
                };
                out.warning(&place, format!("{tuned} has no effect: the SSD tier is off"), why, remedy);
            }
        }
        restart::check(view, seen, out);
        if is_mcctl {
            continue;
        }
        if let (Some(place), Some(_)) = (on("enable_metadata_cleanup_on_timeout"), on("enable_http_metadata_server")) {
            out.warning(
                &place,
                "records of dead nodes stay: the cleanup deletes other names than the embedded service keeps",
                "enable_metadata_cleanup_on_timeout with enable_http_metadata_server in 0.3.13",
                "use P2PHANDSHAKE, or a metadata service of its own",
            );
        }
        let local = text("snapshot_object_store_type").is_some_and(|said| said.text == "local");
        if let (Some(place), true) = (on("enable_snapshot"), local)
            && seen.process.lacks_var("MOONCAKE_SNAPSHOT_LOCAL_PATH")
        {
            out.error(
                &place,
                "there are no snapshots: local ones need a folder",
                "MOONCAKE_SNAPSHOT_LOCAL_PATH is not set",
                "set MOONCAKE_SNAPSHOT_LOCAL_PATH to a folder that outlives the master",
            );
        }
    }
}
