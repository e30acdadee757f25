//! Checksums of objects between mcctl's client and the real one, in both directions.

use std::sync::Arc;

use mcctl::engine::base::{ErrorCode, HostPort, ObjectKey};
use mcctl::engine::env::RealEnv;
use mcctl::engine::store::StoreClient;
use mcctl::engine::sys::memory::Memory;
use mcctl::engine::transfer::{Op, OpKind, RemoteAddr};
use mcctl::engine::wire::types::{ReplicaLocation, ReplicateConfig};

use super::cluster::{Client, Cluster, Make, Metadata};
use super::payload::payload;
use super::process::PATIENCE;

const SIZE: usize = 300_001;

/// Changes a bit of the object's byte at `offset`.
async fn flip(client: &StoreClient<RealEnv>, key: &ObjectKey, offset: u64) {
    let found = client.stat(key).await.unwrap().found;
    let ReplicaLocation::Memory(replica) = &found.replicas[0].location else { panic!("{found:?}") };
    let endpoint = replica.transport_endpoint.to_string_lossy().into_owned();
    let byte = Arc::new(Memory::from_vec(vec![0])).whole();
    for kind in [OpKind::Read, OpKind::Write] {
        let op = Op { kind, local: byte.clone(), remote: RemoteAddr(replica.buffer_address + offset) };
        let moved = client.engine().submit(&endpoint, vec![op], PATIENCE).finish().await;
        moved.into_iter().for_each(|moved| moved.unwrap());
        byte.copy_from_bytes(&[byte.to_vec()[0] ^ 1]);
    }
}

/// Each client finds a changed bit in an object that the other one has written.
async fn each_finds_damage_in_objects_of_the_other(make: Make) {
    let cluster = Cluster::start(make, make, Metadata::P2p, 1, 256 << 20);
    let start = |name: &str, checksums| {
        let sizes = [0, 64 << 20];
        Client::start_with(name, cluster.dir.path(), &cluster.master, cluster.how, sizes, checksums)
    };
    let mut real = start("with", Some(true));
    let mut without = start("without", None);
    let address: HostPort = cluster.master.address().parse().unwrap();
    let ours = StoreClient::builder(address).local_hostname("127.0.0.1").max_wait(PATIENCE).start(RealEnv::new()).await;
    let ours = ours.unwrap();
    let config = ReplicateConfig::default();
    for (seed, offset) in [0, 1, 65_536, SIZE as u64 - 1].into_iter().enumerate() {
        let name = format!("real/{seed}");
        let seed = seed as u64;
        let key = ObjectKey::from(name.as_str());
        assert_eq!(real.put(&name, seed, SIZE), 0);
        assert!(ours.stat(&key).await.unwrap().found.object_checksum.is_some());
        assert!(ours.get(&key).await.unwrap() == payload(seed, SIZE));
        flip(&ours, &key, offset).await;
        assert_eq!(ours.get(&key).await.unwrap_err().code(), ErrorCode::CHECKSUM_MISMATCH);

        let name = format!("ours/{seed}");
        let value = payload(seed, SIZE);
        let key = ObjectKey::from(name.as_str());
        ours.put(&key, Arc::new(Memory::from_vec(value)).whole(), &config).await.unwrap();
        assert_eq!(real.get(&name, seed, SIZE), (SIZE as u64, true));
        flip(&ours, &key, offset).await;
        assert_eq!(real.get(&name, seed, SIZE).0, 0, "the real client returns no bytes");
        assert_eq!(without.get(&name, seed, SIZE), (SIZE as u64, false), "the bit was changed");
    }
    assert_eq!(without.put("unchecked", 9, SIZE), 0);
    assert_eq!(ours.stat(&ObjectKey::from("unchecked")).await.unwrap().found.object_checksum, None);
    assert!(ours.get(&ObjectKey::from("unchecked")).await.unwrap() == payload(9, SIZE));
    ours.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn both_clients_find_damage_at_our_node() {
    each_finds_damage_in_objects_of_the_other(Make::Ours).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn both_clients_find_damage_at_a_real_node() {
    each_finds_damage_in_objects_of_the_other(Make::Real).await;
}
