//! Masters of a cluster, a node and commands as processes, with a real etcd. These tests need
//! `/usr/bin/etcd` (Debian: `etcd-server`), so `.ci/run` runs them by name.

mod metadata;
mod safety;

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::cli::service::{Service, get};
use crate::cli::{Run, command, mcctl_in_time, mcctl_within};
use crate::etcd::EtcdProcess;
use crate::peer::process::{PATIENCE, free_port, wait_until};

pub struct ClusterMaster {
    pub service: Service,
    pub rpc: u16,
    pub admin: u16,
}

impl ClusterMaster {
    pub fn start_at(etcd: &EtcdProcess, rpc: u16, admin: u16, more: &[&str]) -> ClusterMaster {
        let endpoints = format!("127.0.0.1:{}", etcd.port);
        let rpc_text = rpc.to_string();
        let admin_text = admin.to_string();
        let args = [
            "serve",
            "master",
            "--enable_ha",
            "--etcd_endpoints",
            &endpoints,
            "--rpc_address=127.0.0.1",
            "--rpc_port",
            &rpc_text,
            "--metrics_host=127.0.0.1",
            "--metrics_port",
            &admin_text,
        ];
        let service = Service::start(command(&[&args, more].concat()));
        ClusterMaster { service, rpc, admin }
    }

    pub fn status(&self) -> Value {
        std::panic::catch_unwind(|| get(self.admin, "/ha_status?format=json").1)
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default()
    }

    pub fn is_serving(&self) -> bool {
        self.status()["serving"] == true
    }

    pub fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        wait_until(what, PATIENCE, || is_so(&self.status()));
    }
}

/// A leader, a standby in sync and a node, with keys.
pub struct HaCluster {
    pub etcd: EtcdProcess,
    pub leader: ClusterMaster,
    pub standby: ClusterMaster,
    _node: Service,
}

const KEYS: usize = 5;

impl HaCluster {
    async fn start() -> HaCluster {
        HaCluster::start_with(&[], &[]).await
    }

    /// Starts the masters with these flags.
    async fn start_with(first: &[&str], second: &[&str]) -> HaCluster {
        HaCluster::start_with_node("16mb", first, second).await
    }

    /// Starts a node with this segment size, and the masters with these flags.
    pub async fn start_with_node(size: &str, first: &[&str], second: &[&str]) -> HaCluster {
        let etcd = EtcdProcess::start(&[]).await;
        let leader = ClusterMaster::start_at(&etcd, free_port(), free_port(), first);
        leader.wait("a leader", |status| status["serving"] == true);
        let standby = ClusterMaster::start_at(&etcd, free_port(), free_port(), second);
        standby.wait("a standby in sync", |status| status["in_sync"] == true);
        let address = format!("etcd://127.0.0.1:{}", etcd.port);
        let mut node = Service::start(command(&[
            "serve",
            "store",
            "--master",
            &address,
            "--metadata-server",
            &address,
            &format!("--segment-size={size}"),
            "--port=0",
            "--host=127.0.0.1",
        ]));
        node.port_after("127.0.0.1:");
        let cluster = HaCluster { etcd, leader, standby, _node: node };
        for nth in 0..KEYS {
            cluster.transfer(&["store", "put", &format!("k{nth}"), "--value", &format!("v{nth}")]).succeeds();
        }
        cluster
    }

    /// Runs a command with this cluster as its master.
    pub fn run(&self, args: &[&str]) -> Run {
        self.run_for(PATIENCE, args)
    }

    /// The same with a limit.
    pub fn run_for(&self, limit: Duration, args: &[&str]) -> Run {
        let address = format!("etcd://127.0.0.1:{}", self.etcd.port);
        mcctl_within(limit, &[args, &["--master", &address]].concat())
    }

    /// Runs a command that transfers data. The records of the transfer engines are in etcd, too.
    pub fn transfer(&self, args: &[&str]) -> Run {
        self.run(&[args, &["--metadata-server", &format!("etcd://127.0.0.1:{}", self.etcd.port)]].concat())
    }

    /// Checks that all keys have their values, and that a new one can be put.
    pub fn check(&self) {
        for nth in 0..KEYS {
            let value = self.transfer(&["store", "get", &format!("k{nth}")]);
            assert_eq!(value.succeeds(), format!("v{nth}"));
        }
        self.transfer(&["store", "put", "after", "--value", "x", "--upsert"]).succeeds();
        assert_eq!(self.transfer(&["store", "get", "after"]).succeeds(), "x");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_standby_serves_all_keys_after_the_leader_is_killed() {
    let cluster = HaCluster::start().await;
    assert_eq!(get(cluster.leader.admin, "/ready").0, 200);
    assert_eq!(get(cluster.standby.admin, "/ready").0, 503);
    let status =
        cluster.run(&["status", "--json", "--interval=0s", "--admin", &format!("127.0.0.1:{}", cluster.leader.admin)]);
    let status: Value = serde_json::from_str(status.succeeds()).unwrap();
    assert_eq!((&status["masters"][0]["role"], &status["masters"][1]["role"]), (&"leader".into(), &"standby".into()));
    assert_eq!(status["masters"][1]["in_sync"], true);
    let standby = format!("127.0.0.1:{}", cluster.standby.rpc);
    let refused = mcctl_in_time(&["store", "get", "k0", "--master", &standby, "--metadata-server=P2PHANDSHAKE"]);
    assert!(refused.fails(3).contains("it is a standby"), "{refused:?}");
    cluster.leader.service.signal(Signal::SIGKILL);
    cluster.standby.wait("the standby to lead", |status| status["serving"] == true);
    cluster.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_step_down_and_a_stopped_leader_keep_all_keys() {
    let mut cluster = HaCluster::start().await;
    let done =
        cluster.run(&["master", "step-down", "--json", "--admin", &format!("127.0.0.1:{}", cluster.leader.admin)]);
    let done: Value = serde_json::from_str(done.succeeds()).unwrap();
    let [from, to] = [&cluster.leader, &cluster.standby].map(|master| format!("127.0.0.1:{}", master.rpc));
    assert_eq!((&done["from"], &done["leader"]), (&from.into(), &to.into()));
    assert!(cluster.standby.is_serving());
    cluster.check();
    cluster
        .leader
        .wait("the former leader to follow", |status| status["in_sync"] == true && status["role"] == "standby");
    assert_eq!(cluster.standby.service.stop(Signal::SIGTERM), 0);
    assert!(cluster.leader.is_serving(), "the other master leads before the leader ends");
    for nth in 0..KEYS {
        assert_eq!(cluster.transfer(&["store", "get", &format!("k{nth}")]).succeeds(), format!("v{nth}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: .ci/run etcd"]
async fn all_masters_restart_with_their_data() {
    let root = tempfile::tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| format!("--data-dir={}", root.path().join(name).display()));
    let mut cluster = HaCluster::start_with(&[&dirs[0]], &[&dirs[1]]).await;
    for signals in [[Signal::SIGKILL; 2], [Signal::SIGKILL, Signal::SIGTERM]] {
        let before = [cluster.leader.status(), cluster.standby.status()].map(|status| status["member"].clone());
        cluster.leader.service.stop(signals[0]);
        cluster.standby.service.stop(signals[1]);
        let at = [(cluster.leader.rpc, cluster.leader.admin), (cluster.standby.rpc, cluster.standby.admin)];
        cluster.leader = ClusterMaster::start_at(&cluster.etcd, at[0].0, at[0].1, &[&dirs[0]]);
        cluster.standby = ClusterMaster::start_at(&cluster.etcd, at[1].0, at[1].1, &[&dirs[1]]);
        wait_until("a leader", PATIENCE, || cluster.leader.is_serving() || cluster.standby.is_serving());
        // The objects can be read again when the node has called the new leader.
        wait_until("a call of the node", PATIENCE, || cluster.transfer(&["store", "get", "k0"]).code == 0);
        cluster.check();
        let is_in_sync = |master: &ClusterMaster| master.status()["in_sync"] == true;
        wait_until("both in sync", PATIENCE, || is_in_sync(&cluster.leader) && is_in_sync(&cluster.standby));
        let after = [cluster.leader.status(), cluster.standby.status()].map(|status| status["member"].clone());
        assert!(
            before.iter().any(|id| after.contains(id)),
            "at least the leader's copy is the same: {before:?} {after:?}"
        );
        assert!(cluster.leader.status()["may_lack_records"].is_null());
    }
}
