//! Objects keep their bytes if memory is mounted again during earlier transfers: a master without
//! records, a suspended node.
//!
//! Each scenario is a function of the node's implementation. The master is mcctl's. A write that
//! was stopped half way goes on after the remount, while another client puts an object of the same
//! size.

use std::time::{Duration, Instant};

use mcctl::engine::env::RealEnv;
use mcctl::engine::store::{Node, StoreClient};
use mcctl::engine::wire::types::{BufferDescriptor, ObjectMeta, ReplicaType, ReplicateConfig};

use super::cluster::{Cluster, Make, Metadata};
use super::process::{PATIENCE, wait_until_async};
use crate::store::remount::{StalledWrite, memory_of, put_start, read};
use crate::store::{bytes, key, node, slice};

const MIB: usize = 1 << 20;
/// The lease, the discard time of puts, and so the hold of a segment that is mounted again.
const HOLD: Duration = Duration::from_secs(5);

/// A master, a node that expires after 3 s without a heartbeat, and a client in this process.
async fn start(make: Make) -> (Cluster, Node<RealEnv>) {
    let flags = ["--client_ttl=3", "--default_kv_lease_ttl=5000", "--put_start_discard_timeout_sec=5"];
    let cluster = Cluster::with_flags(Make::Ours, make, Metadata::P2p, 1, 64 << 20, &flags);
    let client = node(cluster.master.rpc, 0).await;
    (cluster, client)
}

/// Puts an object as soon as the master accepts it.
async fn put_when_possible(client: &StoreClient<RealEnv>, name: &str, value: Vec<u8>) {
    let put = async || client.put(&key(name), slice(value.clone()), &ReplicateConfig::default()).await.is_ok();
    wait_until_async("a put to be accepted", PATIENCE, put).await;
}

/// While `old` continues, another object gets the same memory, and keeps its bytes.
async fn the_next_object_keeps_its_bytes(client: &StoreClient<RealEnv>, at: BufferDescriptor, mut old: StalledWrite) {
    let rest = tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_secs(2));
        old.send_rest();
        old
    });
    put_when_possible(client, "new", bytes(MIB, 2)).await;
    let _old = rest.await.unwrap();
    assert_eq!(memory_of(&client.stat(&key("new")).await.unwrap().found.replicas), at, "the same memory");
    // A write that goes on would have arrived by now.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(read(client, &at).await == bytes(MIB, 2), "bytes of another write");
    assert!(client.get(&key("new")).await.unwrap() == bytes(MIB, 2));
}

/// The master loses its records while a write is in progress.
async fn a_write_outlives_the_master(make: Make) {
    let (mut cluster, client) = start(make).await;
    let client = client.client();
    let at = put_start(client, "old", MIB).await;
    let old = StalledWrite::start(client, &at, &bytes(MIB, 1)).await;
    cluster.master.kill();
    cluster.master.restart();
    cluster.master.wait_segments(1);
    the_next_object_keeps_its_bytes(client, at, old).await;
}

/// The node is suspended until it expires, while a write is in progress.
async fn a_write_outlives_its_node(make: Make) {
    let (cluster, client) = start(make).await;
    let client = client.client();
    let at = put_start(client, "old", MIB).await;
    let old = StalledWrite::start(client, &at, &bytes(MIB, 1)).await;
    cluster.nodes[0].process.suspend();
    cluster.master.wait_segments(0);
    cluster.nodes[0].process.resume();
    cluster.master.wait_segments(1);
    the_next_object_keeps_its_bytes(client, at, old).await;
}

/// A reader has looked up an object before the master loses its records. Until the lease ends, it
/// finds the object's bytes.
async fn a_lease_outlives_the_master(make: Make) {
    let (mut cluster, client) = start(make).await;
    let client = client.client();
    put_when_possible(client, "k", bytes(MIB, 1)).await;
    let looked_up = Instant::now();
    let at = memory_of(&client.stat(&key("k")).await.unwrap().found.replicas);
    cluster.master.kill();
    cluster.master.restart();
    cluster.master.wait_segments(1);
    let config = ReplicateConfig::default();
    wait_until_async("a put to be accepted", PATIENCE, async || {
        let accepted = client.put(&key("other"), slice(bytes(MIB, 2)), &config).await.is_ok();
        let found = read(client, &at).await;
        assert!(looked_up.elapsed() >= HOLD || found == bytes(MIB, 1), "bytes of another object within the lease");
        accepted
    })
    .await;
    assert!(looked_up.elapsed() >= HOLD);
    assert_eq!(memory_of(&client.stat(&key("other")).await.unwrap().found.replicas), at, "the same memory");
}

/// The master keeps its records. The node does not mount its memory again, and the put succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_continues_at_a_master_that_recovers_its_records() {
    let mut cluster = Cluster::with_flags(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 << 20, &["--data-dir=data"]);
    let client = node(cluster.master.rpc, 0).await;
    let client = client.client();
    wait_until_async("the registration of the node", PATIENCE, async || {
        cluster.master.metric("master_remount_segment_requests_total") > 0.0
    })
    .await;
    let at = put_start(client, "k", MIB).await;
    let mut write = StalledWrite::start(client, &at, &bytes(MIB, 1)).await;
    cluster.master.kill();
    cluster.master.restart();
    let pings = async || cluster.master.metric("master_ping_requests_total") >= 2.0;
    wait_until_async("the node's heartbeats", PATIENCE, pings).await;
    write.send_rest();
    assert_eq!(write.status(), *b"\0\0\0\0VTCM", "success");
    let end = async || {
        let object = vec![ObjectMeta { key: "k".into(), object_checksum: None }];
        let ended = client.master().batch_put_end(client.id(), object, ReplicaType::ALL, "default".into()).await;
        ended.is_ok_and(|ends| ends == [Ok(())])
    };
    wait_until_async("the client's new connection", PATIENCE, end).await;
    assert!(client.get(&key("k")).await.unwrap() == bytes(MIB, 1));
    assert_eq!(cluster.master.metric("master_remount_segment_requests_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_outlives_the_master_harmlessly() {
    a_write_outlives_the_master(Make::Ours).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn a_write_to_a_real_node_outlives_the_master_harmlessly() {
    a_write_outlives_the_master(Make::Real).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_outlives_the_expiry_of_its_node_harmlessly() {
    a_write_outlives_its_node(Make::Ours).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn a_write_outlives_the_expiry_of_a_real_node_harmlessly() {
    a_write_outlives_its_node(Make::Real).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_protects_bytes_after_the_master_is_gone() {
    a_lease_outlives_the_master(Make::Ours).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn a_lease_on_a_real_node_outlives_the_master() {
    a_lease_outlives_the_master(Make::Real).await;
}
