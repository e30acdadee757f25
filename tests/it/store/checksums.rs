//! Checksums of objects: wrong bytes are never returned, and a mismatch is examined before it is
//! reported.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use mcctl::engine::store::client_metrics::ClientMetrics;
use mcctl::engine::store::{OnCorruption, ReplicaState, VerifyPace};
use mcctl::engine::transfer::{Op, OpKind, RemoteAddr};
use mcctl::engine::wire::types::{BufferDescriptor, ReplicaLocation};

use super::remount::{start_get, with_slow_node};
use super::*;

/// Number of flipped bits per transport and setting.
const FLIPS: u64 = 50;

/// Changes a bit of the byte at `offset` of a replica.
pub(crate) async fn flip(client: &StoreClient<RealEnv>, replica: &BufferDescriptor, offset: u64) {
    let engine = client.engine();
    let endpoint = replica.transport_endpoint.to_string_lossy().into_owned();
    let byte = slice(vec![0]);
    for kind in [OpKind::Read, OpKind::Write] {
        let op = Op { kind, local: byte.clone(), remote: RemoteAddr(replica.buffer_address + offset) };
        let moved = engine.submit(&endpoint, vec![op], PATIENCE).finish().await;
        moved.into_iter().for_each(|moved| moved.unwrap());
        byte.copy_from_bytes(&[byte.to_vec()[0] ^ 0x10]);
    }
}

/// A client with metrics that reads with these settings.
async fn reader(master: u16, change: impl Fn(&mut NodeConfig)) -> (Node<RealEnv>, Arc<ClientMetrics>) {
    let metrics = Arc::new(ClientMetrics::new(None));
    let mut config = config(master, 0);
    config.client.metrics = Some(Arc::clone(&metrics));
    change(&mut config);
    (Node::start(config, RealEnv::new()).await.unwrap(), metrics)
}

/// The samples of the families of checksums, without `mcctl_client_` and common labels.
fn counts(metrics: &ClientMetrics) -> BTreeMap<String, u64> {
    let text = metrics.exposition();
    let samples = text.lines().filter_map(|line| line.strip_prefix("mcctl_client_")?.rsplit_once(' '));
    let samples =
        samples.filter(|(name, _)| name.contains("checksum") || name.contains("check") || name.contains("withdrawn"));
    let short = |name: &str| name.split_once('{').map_or(name, |(name, _)| name).trim_end_matches("_total").to_owned();
    let mut counts = BTreeMap::new();
    samples.for_each(|(name, value)| *counts.entry(short(name)).or_default() += value.parse::<u64>().unwrap());
    counts
}

pub(crate) fn replicas(found: &mcctl::engine::store::ObjectStat) -> Vec<BufferDescriptor> {
    let memory = |replica: &mcctl::engine::wire::types::ReplicaDescriptor| match &replica.location {
        ReplicaLocation::Memory(buffer) => buffer.clone(),
        other => panic!("{other:?}"),
    };
    found.found.replicas.iter().map(memory).collect()
}

/// Each flipped bit of an object is found by a client that reads over `transport`. `change` sets
/// the transport of the node and of the client.
pub(crate) async fn every_flipped_bit_is_found(transport: &str, flips: u64, change: impl Fn(&mut NodeConfig)) {
    let master = master(0).await;
    let mut config = config(master.rpc_port(), 64);
    change(&mut config);
    let node = Node::start(config, RealEnv::new()).await.unwrap();
    let size = 70_000;
    let config = ReplicateConfig::default();
    for on_corruption in [OnCorruption::Report, OnCorruption::Withdraw] {
        let (reader, metrics) = reader(master.rpc_port(), |config| {
            change(config);
            config.client.on_corruption = on_corruption;
        })
        .await;
        let offsets = (0..flips - 1).map(|flip| flip * size as u64 / flips).chain([size as u64 - 1]);
        for offset in offsets {
            let key = key(&format!("k{offset}"));
            node.client().upsert(&key, slice(bytes(size, 1)), &config).await.unwrap();
            assert!(reader.client().get(&key).await.unwrap() == bytes(size, 1));
            let stat = node.client().stat(&key).await.unwrap();
            flip(node.client(), &replicas(&stat)[0], offset).await;
            let error = reader.client().get(&key).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::CHECKSUM_MISMATCH, "{error}");
        }
        let counts = counts(&metrics);
        let count = |name: &str| counts.get(name).copied().unwrap_or(0);
        // Ten replicas are withdrawn per minute.
        let withdrawn = if on_corruption == OnCorruption::Report { 0 } else { flips.min(10) };
        assert_eq!([count("checksum_mismatches"), count("replicas_withdrawn")], [flips, withdrawn], "{counts:?}");
        assert_eq!([count("checked_reads"), count("unchecked_reads")], [flips, 0], "{counts:?}");
        assert_eq!(reader.client().engine().peers()[0].transport, transport);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_is_found_over_every_transport_and_the_replica_withdrawn() {
    every_flipped_bit_is_found("shared-memory", FLIPS, |_| {}).await;
    every_flipped_bit_is_found("tcp", FLIPS, |config| {
        config.client.engine.settings.shared_memory.enabled = false;
    })
    .await;
}

/// The bytes are right at the node, and wrong only in the buffer of the caller: both halves are
/// read into the same memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_of_the_reader_is_not_reported_as_damage_of_the_node() {
    let master = master(0).await;
    let node = node(master.rpc_port(), 64).await;
    let (reader, metrics) = reader(master.rpc_port(), |_| {}).await;
    let client = reader.client();
    let keys = [key("k")];
    node.client().put(&keys[0], slice(bytes(100_000, 1)), &ReplicateConfig::default()).await.unwrap();
    let half = slice(vec![0; 50_000]);
    let lookup = client.look_up(&keys).await.unwrap();
    let parts = [0, 50_000].map(|offset| ObjectPart { offset, local: half.clone() }).to_vec();
    let error = client.read_parts(&keys, &lookup, vec![Ok(parts)]).await.pop().unwrap().unwrap_err();
    assert!(matches!(error, StoreError::WrongBuffer { .. }), "{error}");
    assert_eq!(error.code(), ErrorCode::CHECKSUM_MISMATCH);
    assert!(!counts(&metrics).contains_key("checksum_mismatches"));
    assert!(client.get(&keys[0]).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_replica_is_read_instead_of_a_damaged_one() {
    let master = master(0).await;
    let mut nodes = Vec::new();
    for _ in 0..2 {
        nodes.push(node(master.rpc_port(), 64).await);
    }
    let config = ReplicateConfig { replica_num: 2, ..ReplicateConfig::default() };
    let (reader, metrics) =
        reader(master.rpc_port(), |config| config.client.on_corruption = OnCorruption::Report).await;
    nodes[0].client().put(&key("k"), slice(bytes(5000, 1)), &config).await.unwrap();
    let stat = nodes[0].client().stat(&key("k")).await.unwrap();
    flip(nodes[0].client(), &replicas(&stat)[0], 4999).await;
    for _ in 0..20 {
        assert!(reader.client().get(&key("k")).await.unwrap() == bytes(5000, 1));
    }
    let counts = counts(&metrics);
    assert!(counts["checksum_mismatches"] == 1 && counts["checked_reads"] >= 20, "{counts:?}");
    for replica in replicas(&stat) {
        flip(nodes[0].client(), &replica, 0).await;
    }
    assert_eq!(reader.client().get(&key("k")).await.unwrap_err().code(), ErrorCode::CHECKSUM_MISMATCH);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_with_many_damaged_replicas_is_read_from_the_others() {
    let master = master(0).await;
    let nodes = [node(master.rpc_port(), 64).await, node(master.rpc_port(), 64).await];
    let config = ReplicateConfig { replica_num: 2, ..ReplicateConfig::default() };
    let (reader, metrics) =
        reader(master.rpc_port(), |config| config.client.on_corruption = OnCorruption::Report).await;
    let keys: Vec<_> = (0..300).map(|number| key(&format!("k{number}"))).collect();
    for (seed, one) in keys.iter().enumerate() {
        nodes[0].client().put(one, slice(bytes(4096, seed)), &config).await.unwrap();
        let stat = nodes[0].client().stat(one).await.unwrap();
        flip(nodes[0].client(), &replicas(&stat)[0], 17).await;
    }
    for _ in 0..5 {
        let objects: Vec<_> = keys.iter().map(|one| (one.clone(), slice(vec![0; 4096]))).collect();
        for result in reader.client().batch_get_into(&objects).await.unwrap() {
            assert_eq!(result.unwrap(), 4096);
        }
        for (seed, (_, found)) in objects.iter().enumerate() {
            assert!(found.to_vec() == bytes(4096, seed), "{seed}");
        }
    }
    assert!(counts(&metrics)["checksum_mismatches"] > 0);
}

/// The node's memory is right; something between it and the client changes bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_changed_on_the_way_are_read_again_and_never_returned() {
    let (_master, slow, client, _other) = with_slow_node().await;
    let once = start_get(&client, "k");
    slow.request(OpKind::Read).answer(b"g0od");
    slow.request(OpKind::Read).answer(b"good");
    assert_eq!(in_time("the read", once).await.unwrap().unwrap(), b"good");
    let always = start_get(&client, "k");
    while !always.is_finished() {
        if let Some(request) = slow.next_request(OpKind::Read) {
            request.answer(b"g0od");
        }
    }
    let error = always.await.unwrap().unwrap_err();
    assert_eq!(error.code(), ErrorCode::CHECKSUM_MISMATCH);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_compared_is_returned_and_counted() {
    let master = master(0).await;
    let node = node(master.rpc_port(), 64).await;
    let config = ReplicateConfig::default();
    let (unchecked, unchecked_metrics) = reader(master.rpc_port(), |config| config.client.checksums = false).await;
    let (checked, metrics) = reader(master.rpc_port(), |_| {}).await;
    unchecked.client().put(&key("without"), slice(bytes(100, 1)), &config).await.unwrap();
    checked.client().put(&key("with"), slice(bytes(100, 1)), &config).await.unwrap();
    let stat = async |name: &str| node.client().stat(&key(name)).await.unwrap();
    assert_eq!(stat("without").await.found.object_checksum, None);
    let with = stat("with").await;
    flip(node.client(), &replicas(&with)[0], 50).await;
    for client in [unchecked.client(), checked.client()] {
        assert!(client.get(&key("without")).await.is_ok());
        let keys = [key("with")];
        let lookup = client.look_up(&keys).await.unwrap();
        let parts = vec![Ok(vec![ObjectPart { offset: 0, local: slice(vec![0; 99]) }])];
        assert_eq!(client.read_parts(&keys, &lookup, parts).await.pop().unwrap().unwrap(), 99);
    }
    assert!(unchecked.client().get(&key("with")).await.is_ok());
    let reasons = |metrics: &ClientMetrics, name: &str, reason: &str| {
        let text = metrics.exposition();
        let line = text.lines().find(|line| line.contains(name) && line.contains(&format!("reason=\"{reason}\"")));
        line.map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
    };
    assert_eq!(reasons(&metrics, "unchecked_reads", "no-checksum"), 1);
    assert_eq!(reasons(&metrics, "unchecked_reads", "part"), 1);
    assert_eq!(reasons(&unchecked_metrics, "unchecked_reads", "off"), 3);
    assert_eq!(reasons(&unchecked_metrics, "unchecked_writes", "off"), 1);
}

/// A second client rewrites the object in place all the time, with two values in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn an_upsert_in_place_during_a_read_is_not_reported_as_damage() {
    let master = master(0).await;
    let node = node(master.rpc_port(), 64).await;
    let (reader, metrics) = reader(master.rpc_port(), |_| {}).await;
    let size = 200_000;
    let is_done = Arc::new(AtomicBool::new(false));
    let config = ReplicateConfig::default();
    node.client().put(&key("k"), slice(bytes(size, 0)), &config).await.unwrap();
    let writing = tokio::spawn({
        let client = node.client().clone();
        let is_done = Arc::clone(&is_done);
        async move {
            let values = [1, 2].map(|seed| slice(bytes(size, seed)));
            for value in values.iter().cycle() {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                client.upsert(&key("k"), value.clone(), &ReplicateConfig::default()).await.unwrap();
            }
        }
    });
    let end = Instant::now() + Duration::from_secs(3);
    let mut right = 0;
    let mut pace = VerifyPace::new(None);
    while Instant::now() < end {
        match reader.client().get(&key("k")).await {
            Ok(value) => {
                assert!((0..3).any(|seed| value == bytes(size, seed)), "a mixture of two values");
                right += 1;
            }
            Err(error) => assert_ne!(error.code(), ErrorCode::CHECKSUM_MISMATCH),
        }
        if let Ok(object) = reader.client().verify(&[key("k")], &mut pace).await.unwrap().pop().unwrap() {
            assert!(matches!(object.replicas[0].state, ReplicaState::Intact), "{object:?}");
        }
    }
    is_done.store(true, Ordering::Relaxed);
    writing.await.unwrap();
    let counts = counts(&metrics);
    assert!(right > 0 && counts["checksum_retries"] > 0 && !counts.contains_key("checksum_mismatches"), "{counts:?}");
}
