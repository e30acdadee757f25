//! A client and nodes with a master, all in this process over loopback sockets.

pub(crate) mod attempts;
pub(crate) mod checksums;
pub(crate) mod remount;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use mcctl::engine::base::{ByteSize, ClientId, ErrorCode, HostPort, ObjectKey, SegmentId};
use mcctl::engine::env::RealEnv;
use mcctl::engine::master::{MasterConfig, MasterServer};
use mcctl::engine::metadata::{KeySpace, MetadataClient, MetadataService, MetadataUri};
use mcctl::engine::rpc::Timeouts;
use mcctl::engine::store::{
    KeyHold, Node, NodeConfig, ObjectPart, PutOutcome, StoreClient, StoreError, StoreStartError, WriteEnd, WriteMethod,
};
use mcctl::engine::sys::memory::{Memory, Slice};
use mcctl::engine::transfer::{TransferConfig, TransferEngine};
use mcctl::engine::wire::types::{ReplicateConfig, Segment};

use crate::peer::process::{PATIENCE, free_port, in_time, wait_until_async};
use crate::sim::AdjustableClock;

const MIB: usize = 1 << 20;
/// A limit that no test reaches.
const HOUR: Duration = Duration::from_secs(3600);

/// A master on `port`. A process that another test is starting may still hold a copy of the
/// previous master's socket.
async fn master(port: u16) -> MasterServer<RealEnv> {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut config = MasterConfig::new(HostPort::new("127.0.0.1", port));
        // No test waits for the end of a lease. On a busy machine, the copy of a large object takes
        // seconds.
        config.policy.lease_ttl = Duration::from_secs(60);
        match MasterServer::start(config, RealEnv::new()).await {
            Ok(master) => return master,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn config(master: u16, segment_mib: u64) -> NodeConfig {
    let timeouts = Timeouts { connect: PATIENCE, call: PATIENCE };
    let client = StoreClient::builder(HostPort::new("127.0.0.1", master))
        .local_hostname("127.0.0.1")
        .timeouts(timeouts)
        .max_wait(PATIENCE)
        .config();
    NodeConfig { client, segment_bytes: ByteSize(segment_mib * ByteSize::MIB) }
}

pub(crate) async fn node(master: u16, segment_mib: u64) -> Node<RealEnv> {
    Node::start(config(master, segment_mib), RealEnv::new()).await.unwrap()
}

pub(crate) fn key(text: &str) -> ObjectKey {
    ObjectKey::from(text)
}

pub(crate) fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 131) ^ (i >> 8) ^ seed) as u8).collect()
}

pub(crate) fn slice(value: Vec<u8>) -> mcctl::engine::sys::memory::Slice {
    Arc::new(Memory::from_vec(value)).whole()
}

async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    wait_until_async(what, PATIENCE, condition).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_round_trips_between_two_pure_clients() {
    let master = master(0).await;
    let nodes = [node(master.rpc_port(), 96).await, node(master.rpc_port(), 96).await];
    let writer = node(master.rpc_port(), 0).await;
    let reader = node(master.rpc_port(), 0).await;
    let config = ReplicateConfig::default();
    for (index, len) in [1, 4096, 4097, MIB, 64 * MIB].into_iter().enumerate() {
        let key = key(&format!("object-{len}"));
        let value = bytes(len, index);
        let put = writer.client().put(&key, slice(value.clone()), &config).await.unwrap();
        assert_eq!(put, PutOutcome::Stored { replicas: 1 });
        assert!(reader.client().exists(&key).await.unwrap());
        assert_eq!(reader.client().stat(&key).await.unwrap().size, len as u64);
        assert!(reader.client().get(&key).await.unwrap() == value, "{len} bytes differ");
        reader.client().remove(&key, true).await.unwrap();
        let gone = reader.client().get(&key).await.expect_err("removed");
        assert!(gone.is_not_found(), "{gone}");
    }
    // The reader has mapped the nodes' memory. Other memory than a memfd is written over TCP.
    let engines = nodes.iter().map(|node| node.client().engine());
    let written: u64 = engines.map(|engine| engine.counters().served.written_bytes).sum();
    let read = reader.client().engine().counters().issued.read_bytes;
    assert!(written.min(read) >= 65 * MIB as u64, "{written} bytes written, {read} bytes read");
    assert!(reader.client().engine().peers().iter().all(|peer| peer.transport == "shared-memory"));
    for node in nodes.into_iter().chain([writer, reader]) {
        node.stop().await;
    }
    assert_eq!(segments(&master), 0);
    master.stop().await.unwrap();
}

/// The reader's only blocking thread is in use, so its read waits until the node has ended
/// transfers.
#[test]
fn a_read_that_the_node_ended_is_a_lost_lookup() {
    let runtime = |blocking| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).max_blocking_threads(blocking).enable_all().build().unwrap()
    };
    let serving = runtime(16);
    let reading = runtime(1);
    let key = key("object");
    let value = bytes(4096, 1);
    let (master, holder) = serving.block_on(async {
        let master = master(0).await;
        let holder = node(master.rpc_port(), 96).await;
        holder.client().put(&key, slice(value.clone()), &ReplicateConfig::default()).await.unwrap();
        (master, holder)
    });
    reading.block_on(async {
        let reader = node(master.rpc_port(), 0).await;
        let client = reader.client();
        assert!(client.get(&key).await.unwrap() == value);
        assert_eq!(client.engine().peers()[0].transport, "shared-memory");
        let keys = [key.clone()];
        let lookup = client.look_up(&keys).await.unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let blocker = tokio::task::spawn_blocking(move || held.recv());
        let parts = vec![Ok(ObjectPart::consecutive([slice(vec![0; 4096])]))];
        let mut read = Box::pin(client.read_parts(&keys, &lookup, parts));
        let submitted = std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context).is_pending())).await;
        assert!(submitted, "it waits for the blocking thread");
        let holder = serving.spawn(async move {
            holder.client().engine().end_inbound(PATIENCE).await.unwrap();
            holder
        });
        let holder = holder.await.unwrap();
        release.send(()).unwrap();
        blocker.await.unwrap().unwrap();
        let result = read.as_mut().await.remove(0);
        drop(read);
        assert!(matches!(&result, Err(StoreError::LookupLost { key: found }) if *found == key), "{result:?}");
        assert!(!client.engine().peers()[0].down);
        // The kernel measures the age of TCP connections in ticks.
        tokio::time::sleep(Duration::from_millis(25)).await;
        assert!(client.get(&key).await.unwrap() == value, "another lookup finds the object");
        serving.spawn(holder.stop()).await.unwrap();
        reader.stop().await;
    });
    serving.block_on(master.stop()).unwrap();
}

fn segments(master: &MasterServer<RealEnv>) -> usize {
    use mcctl::engine::master::view::AdminView;
    let mut count = 0;
    let _ = master.handle().segments(0, 1000, &mut |_| count += 1);
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_uses_several_nodes_and_returns_one_result_per_object() {
    let master = master(0).await;
    let _nodes =
        [node(master.rpc_port(), 64).await, node(master.rpc_port(), 64).await, node(master.rpc_port(), 64).await];
    let client = node(master.rpc_port(), 0).await;
    let objects: Vec<_> = (0..128).map(|i| (key(&format!("k{i}")), slice(bytes(100_000 + i, i)))).collect();
    let config = ReplicateConfig { replica_num: 2, ..ReplicateConfig::default() };
    let puts = client.client().batch_put(&objects, &config).await.unwrap();
    assert!(puts.iter().all(|put| matches!(put, Ok(PutOutcome::Stored { replicas: 2 }))), "{puts:?}");
    let again = client.client().put(&objects[0].0, slice(vec![1]), &config).await.unwrap();
    assert_eq!(again, PutOutcome::AlreadyExists);
    let memory = Arc::new(Memory::from_vec(vec![0; 128 * 101_000]));
    let mut wanted: Vec<_> =
        (0..128).map(|i| (key(&format!("k{i}")), memory.slice(i * 101_000, 101_000).unwrap())).collect();
    wanted.push((key("absent"), slice(vec![0; 8])));
    wanted.push((key("k5"), slice(vec![0; 8])));
    let mut got = client.client().batch_get_into(&wanted).await.unwrap();
    assert!(matches!(got.pop(), Some(Err(StoreError::TooSmall { buffer: 8, .. }))));
    assert_eq!(got.pop().unwrap().expect_err("absent").code(), ErrorCode::OBJECT_NOT_FOUND);
    for (i, len) in got.into_iter().enumerate() {
        let len = len.unwrap();
        assert_eq!(wanted[i].1.part(0, len).unwrap().to_vec(), bytes(100_000 + i, i));
    }
    assert_eq!(client.client().remove_by_regex("^k1", true).await.unwrap(), 39);
    assert_eq!(client.client().remove_all(true).await.unwrap(), 89);
    let empty = client.client().put(&key("empty"), slice(Vec::new()), &config).await.expect_err("no bytes");
    assert_eq!(empty.code(), ErrorCode::INVALID_PARAMS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_read_after_the_lease_are_not_returned() {
    let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
    config.policy.lease_ttl = Duration::ZERO;
    let master = MasterServer::start(config, RealEnv::new()).await.unwrap();
    let node = node(master.rpc_port(), 32).await;
    node.client().put(&key("k"), slice(vec![1; 100]), &ReplicateConfig::default()).await.unwrap();
    assert_eq!(node.client().get(&key("k")).await.expect_err("too late").code(), ErrorCode::LEASE_EXPIRED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_was_allocated_long_ago_is_not_written() {
    let master = master(0).await;
    let node = node(master.rpc_port(), 32).await;
    let client = node.client();
    let keys = [key("k")];
    let config = ReplicateConfig::default();
    let mut allocation = client.allocate(WriteMethod::Put, &keys, vec![100], &config, KeyHold::Call).await.unwrap();
    assert!(client.check(&keys, &mut allocation, HOUR) > HOUR / 2 && allocation.replicas[0].is_ok());
    assert_eq!(client.check(&keys, &mut allocation, Duration::ZERO), Duration::ZERO);
    assert!(matches!(allocation.replicas[0], Err(StoreError::AllocationLost { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_was_suspended_returns_no_bytes_under_an_old_lease() {
    let master = master(0).await;
    let node = node(master.rpc_port(), 32).await;
    node.client().put(&key("k"), slice(bytes(100, 1)), &ReplicateConfig::default()).await.unwrap();
    let env = AdjustableClock::default();
    let client = Node::start(config(master.rpc_port(), 0), env.clone()).await.unwrap();
    let keys = [key("k")];
    let read = async |suspended: Duration| {
        let lookup = client.client().look_up(&keys).await.unwrap();
        env.suspend(suspended);
        let parts = vec![Ok(vec![ObjectPart { offset: 0, local: slice(vec![0; 100]) }])];
        client.client().read_parts(&keys, &lookup, parts).await.pop().unwrap()
    };
    assert_eq!(read(Duration::ZERO).await.unwrap(), 100);
    assert!(read(Duration::from_secs(61)).await.is_err());
    // The lease of the master's clock has not ended, but the margin is not left.
    assert!(read(Duration::from_millis(59_500)).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_was_suspended_does_not_write_to_memory_allocated_before() {
    let master = master(0).await;
    let node = node(master.rpc_port(), 32).await;
    let env = AdjustableClock::default();
    let client = Node::start(config(master.rpc_port(), 0), env.clone()).await.unwrap();
    let client = client.client();
    let keys = [key("k")];
    let config = ReplicateConfig::default();
    let mut allocation = client.allocate(WriteMethod::Put, &keys, vec![100], &config, KeyHold::Call).await.unwrap();
    assert!(!client.check(&keys, &mut allocation, client.transfer_deadline()).is_zero());
    env.suspend(client.transfer_deadline());
    assert!(client.check(&keys, &mut allocation, client.transfer_deadline()).is_zero());
    assert!(matches!(allocation.replicas[0], Err(StoreError::AllocationLost { .. })));
    drop(node);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_write_of_a_client_at_a_time_has_a_key() {
    let master = master(0).await;
    let node = node(master.rpc_port(), 32).await;
    let client = node.client();
    let keys = [key("k")];
    let config = ReplicateConfig::default();
    let allocate = async |hold| client.allocate(WriteMethod::Put, &keys, vec![100], &config, hold).await.unwrap();
    let unfinished = allocate(KeyHold::Call).await;
    let other = client.clone();
    let value = bytes(3000, 1);
    let upsert = tokio::spawn({
        let config = config.clone();
        let value = value.clone();
        async move { other.upsert(&key("k"), slice(value), &config).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Otherwise, the upsert would displace the put, and its memory would be lost for the release
    // time.
    assert!(!upsert.is_finished());
    let end = WriteEnd { key: &keys[0], replicas: &[], checksum: None };
    assert!(client.complete(WriteMethod::Put, unfinished.writer, &[end]).await[0].is_ok());
    drop(unfinished);
    upsert.await.unwrap().unwrap();
    assert_eq!(client.get(&keys[0]).await.unwrap(), value);
    let other = [key("s")];
    let hold = KeyHold::Session { limit: HOUR };
    let session = client.allocate(WriteMethod::Put, &other, vec![100], &config, hold).await.unwrap();
    let put = client.put(&other[0], slice(bytes(10, 0)), &config).await.unwrap_err();
    let upsert = client.upsert(&other[0], slice(bytes(10, 0)), &config).await.unwrap_err();
    assert_eq!([put.code(), upsert.code()], [ErrorCode::REPLICA_IS_NOT_READY; 2], "nothing is stored");
    let second = client.allocate(WriteMethod::Put, &other, vec![100], &config, hold).await.unwrap();
    let second = second.replicas[0].as_ref().unwrap_err();
    assert_eq!(second.code(), ErrorCode::OBJECT_ALREADY_EXISTS);
    client.revoke(WriteMethod::Put, session.writer, &other).await;
    drop(session);
    client.put(&other[0], slice(bytes(10, 0)), &config).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_objects_are_written_and_read_at_their_offsets() {
    let master = master(0).await;
    let node = node(master.rpc_port(), 32).await;
    let client = node.client();
    let value = bytes(1000, 3);
    let pieces = ObjectPart::consecutive([slice(value[..300].to_vec()), slice(value[300..].to_vec())]);
    let objects = [(key("k"), pieces)];
    let stored = client.write(WriteMethod::Put, &objects, &ReplicateConfig::default()).await.unwrap();
    assert!(matches!(stored[0], Ok(PutOutcome::Stored { replicas: 1 })));
    let keys = [key("k"), key("k"), key("none")];
    let lookup = client.look_up(&keys).await.unwrap();
    let part = slice(vec![0; 50]);
    let past = slice(vec![0; 51]);
    let at = |local: &Slice| vec![ObjectPart { offset: 950, local: local.clone() }];
    let read = client.read_parts(&keys, &lookup, vec![Ok(at(&part)), Ok(at(&past)), Ok(at(&part))]).await;
    assert_eq!((read[0].as_ref().unwrap(), part.to_vec()), (&50, value[950..].to_vec()));
    assert!(matches!(read[1], Err(StoreError::NoReplica { .. })));
    assert!(read[2].as_ref().is_err_and(StoreError::is_not_found));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upsert_replaces_an_object_with_one_of_any_size() {
    let master = master(0).await;
    let node = node(master.rpc_port(), 32).await;
    let config = ReplicateConfig::default();
    for (seed, len) in [1000, 1000, 3000, 10].into_iter().enumerate() {
        let value = bytes(len, seed);
        node.client().upsert(&key("k"), slice(value.clone()), &config).await.unwrap();
        assert_eq!(node.client().get(&key("k")).await.unwrap(), value);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_uses_the_other_replica_when_a_node_is_gone() {
    let master = master(0).await;
    let first = node(master.rpc_port(), 32).await;
    let second = node(master.rpc_port(), 32).await;
    let client = node(master.rpc_port(), 0).await;
    let config = ReplicateConfig { replica_num: 2, ..ReplicateConfig::default() };
    client.client().put(&key("k"), slice(bytes(50_000, 3)), &config).await.unwrap();
    // The engine stops without an unmount, as after a kill.
    first.client().engine().shutdown().await.unwrap();
    for _ in 0..8 {
        assert_eq!(client.client().get(&key("k")).await.unwrap(), bytes(50_000, 3));
    }
    drop(second);
}

/// A peer whose data port accepts bytes and never answers, like a stopped process. With
/// `at_handshake`, its handshake port does so.
fn hung_peer(at_handshake: bool) -> String {
    let data = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = peer_at(data.local_addr().unwrap().port(), at_handshake);
    std::thread::spawn(move || data.incoming().collect::<Vec<_>>());
    name
}

/// A peer with memory of 1 MiB at address 4096 and this data port. With `is_silent`, its handshake
/// port never answers.
fn peer_at(data_port: u16, is_silent: bool) -> String {
    let handshake = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = handshake.local_addr().unwrap().to_string();
    let document = format!(
        r#"{{"buffers":[{{"addr":4096,"length":1048576,"name":"{name}"}}],"name":"{name}","protocol":"tcp","tcp_data_host":"127.0.0.1","tcp_data_port":{data_port},"tcp_proto_version":2,"timestamp":""}}"#
    );
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in handshake.incoming() {
            let mut stream = stream.unwrap();
            if is_silent {
                held.push(stream);
                continue;
            }
            let mut length = [0; 8];
            stream.read_exact(&mut length).unwrap();
            let mut body = vec![0; u64::from_le_bytes(length) as usize];
            stream.read_exact(&mut body).unwrap();
            let length = (document.len() as u64 + 1).to_le_bytes();
            stream.write_all(&[&length[..], &[body[0]], document.as_bytes()].concat()).unwrap();
        }
    });
    name
}

async fn put_to_hung_peer(at_handshake: bool) -> (StoreError, Result<PutOutcome, StoreError>) {
    let master = master(0).await;
    let mut config = config(master.rpc_port(), 0);
    config.client.transfer_deadline = Duration::from_millis(700);
    let client = Node::start(config, RealEnv::new()).await.unwrap();
    let endpoint = hung_peer(at_handshake);
    let segment = Segment {
        id: SegmentId(1, 2),
        name: endpoint.as_str().into(),
        base: 4096,
        size: 1 << 20,
        te_endpoint: endpoint.as_str().into(),
        protocol: "tcp".into(),
        host_id: "".into(),
    };
    client.client().master().mount_segment(segment, ClientId(3, 4)).await.unwrap().unwrap();
    let config = ReplicateConfig::default();
    let failed =
        client.client().put(&key("k"), slice(vec![7; 1000]), &config).await.expect_err("the peer never answers");
    (failed, client.client().put(&key("k"), slice(vec![7; 1000]), &config).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_may_still_receive_bytes_is_not_released() {
    let (failed, again) = put_to_hung_peer(false).await;
    assert!(failed.may_still_land(), "{failed}");
    // At the master, the write is still in progress.
    assert!(matches!(again, Ok(PutOutcome::AlreadyExists)), "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_received_nothing_is_released_at_once() {
    let (failed, again) = put_to_hung_peer(true).await;
    assert!(!failed.may_still_land(), "{failed}");
    assert!(matches!(again, Err(StoreError::Transfer { .. })), "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_waits_for_a_silent_master_at_most_max_wait() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config(silent.local_addr().unwrap().port(), 16);
    config.client.max_wait = Duration::from_millis(500);
    config.client.timeouts = Timeouts { connect: HOUR, call: HOUR };
    in_time("max_wait", Node::start(config, RealEnv::new())).await.err().expect("the peer never answers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_remount_after_a_restart_of_the_master() {
    let first = master(free_port()).await;
    let port = first.rpc_port();
    let node = node(port, 32).await;
    let config = ReplicateConfig::default();
    node.client().put(&key("before"), slice(vec![1; 100]), &config).await.unwrap();
    first.stop().await.unwrap();
    let second = master(port).await;
    until("the segment is remounted", async || segments(&second) == 1).await;
    assert!(node.client().get(&key("before")).await.expect_err("the new master has no objects").is_not_found());
    until("heartbeats are answered", async || node.heartbeat_status().is_healthy()).await;
}

/// Number of heartbeats that a master has received.
fn pings(master: &MasterServer<RealEnv>) -> u64 {
    use mcctl::engine::master::view::AdminView;
    master.handle().metrics().0.ping.requests
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_mounts_nothing_while_another_process_has_its_name() {
    let service = MetadataService::new(RealEnv::new(), KeySpace::default());
    let running = service.start(&HostPort::new("127.0.0.1", 0)).await.unwrap();
    let first = master(free_port()).await;
    let port = first.rpc_port();
    let mut config = config(port, 32);
    config.client.engine.metadata = MetadataUri::Service(format!("http://{}/metadata", running.at()));
    config.client.engine.announce_host = Some("127.0.0.1".to_owned());
    let engine = config.client.engine.clone();
    let node = Node::start(config, RealEnv::new()).await.unwrap();
    // The registration after the first heartbeat claims the name once more. The second heartbeat
    // follows it.
    until("the node has registered", async || pings(&first) >= 2).await;
    first.stop().await.unwrap();
    // As if the node had been paused until it expired, and another process had claimed its name.
    let name = node.name().to_string();
    service.remove_segment(&name).await;
    let other = TransferConfig { local_server_name: name.clone(), ..engine };
    let other = TransferEngine::start(other, RealEnv::new()).await.unwrap();
    let client = MetadataClient::http(&format!("http://{}/metadata", running.at())).unwrap();
    let key = format!("mooncake/ram/{name}");
    let record = client.get(&key).await.unwrap();
    let second = master(port).await;
    until("the node has sent three pings", async || pings(&second) >= 3).await;
    assert_eq!((segments(&second), node.heartbeat_status().is_healthy()), (0, false));
    assert_eq!(client.get(&key).await.unwrap(), record);
    other.shutdown().await.unwrap();
    until("the segment is remounted", async || segments(&second) == 1).await;
    assert!(client.get(&key).await.unwrap().is_some_and(|now| Some(now) != record));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_master_fails_after_max_wait_with_its_address() {
    let free = free_port();
    let mut config = config(free, 16);
    config.client.max_wait = Duration::from_millis(600);
    let error = in_time("max_wait", Node::start(config, RealEnv::new())).await.err().expect("no master is running");
    assert!(error.to_string().contains(&format!("127.0.0.1:{free}")), "{error}");
}

#[tokio::test]
async fn a_loopback_name_is_refused_with_a_remote_master() {
    let mut config = config(1, 16);
    config.client.master = HostPort::new("192.0.2.1", 50051);
    let error = Node::start(config, RealEnv::new()).await.err().expect("refused");
    assert!(matches!(error, StoreStartError::LoopbackName { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_mounted_at_run_time_is_remounted_and_unmounted_alone() {
    use mcctl::engine::store::object_store::ObjectStore;
    let first = master(free_port()).await;
    let port = first.rpc_port();
    // A pure client at first, without memory and heartbeats.
    let node = node(port, 0).await;
    let store = node.store();
    let (one, bytes) = store.mount(1).await.expect("memory");
    assert_eq!((bytes, segments(&first)), (16 << 20, 1));
    let (two, _) = store.mount((16 << 20) + 1).await.expect("memory");
    assert_eq!((segments(&first), store.metrics().segment_bytes), (2, 48 << 20));
    let config = ReplicateConfig::default();
    node.client().put(&key("k"), slice(bytes_of(100)), &config).await.unwrap();
    assert_eq!(node.client().get(&key("k")).await.unwrap(), bytes_of(100));
    first.stop().await.unwrap();
    let second = master(port).await;
    until("both segments are remounted", async || segments(&second) == 2).await;
    store.unmount(one, Duration::ZERO).await.expect("mounted");
    assert_eq!((segments(&second), store.metrics().segment_bytes), (1, 32 << 20));
    assert!(store.unmount(one, Duration::ZERO).await.is_err(), "already unmounted");
    store.unmount(two, Duration::from_millis(10)).await.expect("mounted");
    until("the grace period ends", async || segments(&second) == 0).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_of_unmounted_memory_are_not_reused() {
    use mcctl::engine::master::view::AdminView;
    use mcctl::engine::store::object_store::ObjectStore;
    let master = master(0).await;
    let node = node(master.rpc_port(), 0).await;
    let mut bases = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let (id, _) = node.store().mount(32 << 20).await.expect("memory");
        master.handle().segments(0, 10, &mut |segment| assert!(bases.insert(segment.base), "{:#x}", segment.base));
        node.store().unmount(id, Duration::ZERO).await.expect("mounted");
    }
    assert_eq!(bases.len(), 4);
    node.stop().await;
}

// Single-threaded, so that the mount does not continue before its caller is gone.
#[tokio::test]
async fn memory_is_unmounted_if_the_caller_of_mount_is_gone() {
    use mcctl::engine::master::view::AdminView;
    use mcctl::engine::store::object_store::ObjectStore;
    let master = master(0).await;
    let node = node(master.rpc_port(), 0).await;
    let store = node.store();
    // Started and dropped at once, as when an HTTP client disconnects.
    assert!(futures_util::FutureExt::now_or_never(store.mount(1)).is_none());
    let counts = || master.handle().metrics().0;
    until("the segment is unmounted", async || counts().unmount_segment.requests == 1).await;
    assert_eq!((counts().mount_segment.requests, segments(&master)), (1, 0));
    until("the memory is released", async || store.metrics().segment_bytes == 0).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_segment_of_a_node_cannot_be_unmounted_alone() {
    use mcctl::engine::store::object_store::ObjectStore;
    let master = master(0).await;
    let node = node(master.rpc_port(), 16).await;
    let id = node.segment().expect("the node has a segment").id;
    assert!(node.store().unmount(id, Duration::ZERO).await.is_err());
    assert_eq!(segments(&master), 1);
    node.stop().await;
    assert_eq!(segments(&master), 0);
}

fn bytes_of(len: usize) -> Vec<u8> {
    bytes(len, 9)
}
