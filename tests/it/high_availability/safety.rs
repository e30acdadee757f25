//! What a failover must not do: return the bytes of other objects, or lose keys that a running
//! master has.

use std::time::Duration;

use mcctl::engine::etcd::{EtcdOp, EtcdTxn};
use nix::sys::signal::Signal;

use super::{ClusterMaster, HaCluster, KEYS};

/// Number of objects of 1 MiB that are put while all masters are in sync, and by a leader alone.
/// Together they do not fit into the node, so the later ones get memory of the earlier ones, which
/// are removed.
const EARLIER: usize = 8;
const LATER: usize = 12;
/// After this time, a standby that was stopped is not in sync.
const OUT_OF_SYNC: Duration = Duration::from_millis(2500);

/// A cluster whose standby is stopped, and whose leader has given memory to other objects since.
async fn with_a_stale_standby(policy: &str) -> HaCluster {
    let flag = format!("--when-not-in-sync={policy}");
    let cluster = HaCluster::start_with(&[&flag], &[&flag]).await;
    let put = |name: &str, nth: usize| {
        let file = tempfile::NamedTempFile::new().unwrap();
        let value = format!("{name}{nth:04}-").repeat(1 << 17);
        std::fs::write(file.path(), &value.as_bytes()[..1 << 20]).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        cluster.transfer(&["store", "put", &format!("{name}{nth}"), &path]).succeeds();
    };
    (0..EARLIER).for_each(|nth| put("earlier", nth));
    cluster.standby.service.signal(Signal::SIGSTOP);
    tokio::time::sleep(OUT_OF_SYNC).await;
    for nth in 0..EARLIER {
        cluster.run(&["store", "rm", &format!("earlier{nth}"), "--force"]).succeeds();
    }
    (0..LATER).for_each(|nth| put("later", nth));
    cluster.leader.service.signal(Signal::SIGKILL);
    cluster.standby.service.signal(Signal::SIGCONT);
    cluster
}

/// The standby leads, and no earlier object can be read.
fn check_dropped(cluster: &HaCluster) {
    cluster.standby.wait("the standby to lead", |status| status["serving"] == true);
    let status = cluster.standby.status();
    // The standby may have received removals that were on their way when it was stopped.
    assert!(status["dropped_objects"].as_u64() > Some(0), "{status}");
    for nth in 0..EARLIER {
        let read = cluster.transfer(&["store", "get", &format!("earlier{nth}")]);
        assert_ne!(read.code, 0, "{read:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_copy_that_was_not_in_sync_returns_no_bytes_of_other_objects() {
    let cluster = with_a_stale_standby("promote-after=4s").await;
    check_dropped(&cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_copy_promoted_without_a_record_returns_no_bytes_of_other_objects() {
    let cluster = with_a_stale_standby("wait").await;
    cluster.standby.wait("the end of the leader's lease", |status| status["leader"].is_null());
    assert_eq!(cluster.standby.status()["promotable"], false);
    let delete = EtcdOp::Delete("mcctl/mooncake_cluster/sync".to_owned());
    let deleted = cluster.etcd.client().txn(&EtcdTxn { success: vec![delete], ..EtcdTxn::default() }).await.unwrap();
    assert!(deleted.succeeded);
    check_dropped(&cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_pause_of_a_leader_or_an_idle_standby_leaves_the_standby_in_sync() {
    let mut cluster = HaCluster::start().await;
    let member = cluster.standby.status()["member"].clone();
    cluster.leader.service.signal(Signal::SIGSTOP);
    tokio::time::sleep(Duration::from_millis(1300)).await;
    cluster.leader.service.signal(Signal::SIGCONT);
    for _ in 0..20 {
        assert_eq!(cluster.standby.status()["in_sync"], true);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.standby.service.signal(Signal::SIGSTOP);
    tokio::time::sleep(OUT_OF_SYNC).await;
    cluster.leader.service.stop(Signal::SIGKILL);
    cluster.standby.service.signal(Signal::SIGCONT);
    // The leader's process begins again at its address, without its state.
    cluster.leader = ClusterMaster::start_at(&cluster.etcd, cluster.leader.rpc, cluster.leader.admin, &[]);
    cluster.standby.wait("the standby to lead", |status| status["serving"] == true);
    assert_eq!(cluster.standby.status()["member"], member);
    cluster.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_copy_that_was_not_in_sync_keeps_its_objects_if_no_memory_was_used_again() {
    let flag = "--when-not-in-sync=promote-after=4s";
    let cluster = HaCluster::start_with(&[flag], &[flag]).await;
    cluster.standby.service.signal(Signal::SIGSTOP);
    tokio::time::sleep(OUT_OF_SYNC).await;
    // This response waits until the record does not list the standby.
    cluster.transfer(&["store", "put", "later", "--value", "x"]).succeeds();
    cluster.leader.service.signal(Signal::SIGKILL);
    cluster.standby.service.signal(Signal::SIGCONT);
    cluster.standby.wait("the standby to lead", |status| status["serving"] == true);
    assert_eq!(cluster.standby.status()["dropped_objects"], 0);
    // The node registers again with its next heartbeat.
    let is_readable = || cluster.transfer(&["store", "get", "k0"]).code == 0;
    for _ in 0..100 {
        if is_readable() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for nth in 0..KEYS {
        assert_eq!(cluster.transfer(&["store", "get", &format!("k{nth}")]).succeeds(), format!("v{nth}"));
    }
    // The standby may have received this put while it was stopped.
    let later = cluster.transfer(&["store", "get", "later"]);
    assert!(later.code != 0 || later.stdout == "x", "{later:?}");
}
