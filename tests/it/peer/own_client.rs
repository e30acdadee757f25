//! mcctl's client, as a command and as a library, against every pairing of master and nodes, with
//! the operations of the real client's suite. Each client reads what the other wrote.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mcctl::engine::base::{ByteSize, ErrorCode, HostPort, ObjectKey};
use mcctl::engine::env::RealEnv;
use mcctl::engine::store::{ClientConfig, Node, NodeConfig, PutOutcome, StoreError};
use mcctl::engine::sys::memory::Memory;
use mcctl::engine::transfer::{Op, OpKind, RemoteAddr};
use mcctl::engine::wire::Text;
use mcctl::engine::wire::types::{ObjectMeta, ReplicaLocation, ReplicaType, ReplicateConfig};
use nix::sys::signal::Signal;

use super::cluster::{Cluster, Make, Metadata};
use super::payload::payload;
use super::process::{PATIENCE, Process, free_port, http_get, run, wait_until_async};
use super::wheel::{mcctl, wheel};
use mcctl::engine::wire::types::{SliceLength, Tenant};

const MIB: usize = 1 << 20;

/// `mcctl store ...` at a cluster.
struct Store<'a> {
    cluster: &'a Cluster,
    dir: &'a Path,
}

impl Store<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut c = mcctl();
        c.arg("store").args(args).args(["--master", &self.cluster.master.address()]);
        c.args(["--admin", &format!("127.0.0.1:{}", self.cluster.master.admin)]);
        if matches!(args[0], "put" | "get") {
            c.args([
                "--metadata-server",
                &self.cluster.master.metadata(self.cluster.how),
                "--local-hostname",
                "127.0.0.1",
            ]);
        }
        c
    }

    /// Exit code and complete output.
    fn run(&self, args: &[&str]) -> (i32, String) {
        // A new log, so that the text belongs to this run.
        let _ = std::fs::remove_file(self.dir.join("store.log"));
        let (status, text) = run("store", self.command(args), self.dir, PATIENCE);
        (status.code().unwrap_or(-1), text)
    }

    fn succeeds(&self, args: &[&str]) -> String {
        let (code, text) = self.run(args);
        assert_eq!(code, 0, "mcctl store {args:?}: {text}");
        text
    }

    fn answers_no(&self, args: &[&str]) -> String {
        let (code, text) = self.run(args);
        assert_eq!(code, 1, "mcctl store {args:?}: {text}");
        text
    }

    fn put(&self, key: &str, value: &[u8], more: &[&str]) {
        let file = self.dir.join("put");
        std::fs::write(&file, value).unwrap();
        self.succeeds(&[&["put", key, file.to_str().unwrap()], more].concat());
    }

    fn get(&self, key: &str) -> Vec<u8> {
        let file = self.dir.join("got");
        self.succeeds(&["get", key, "-o", file.to_str().unwrap()]);
        std::fs::read(&file).unwrap()
    }
}

/// Run all operations with the `store` commands.
fn commands(master: Make, node: Make, how: Metadata, nodes: usize) {
    let cluster = Cluster::start(master, node, how, nodes, 512 << 20);
    let store = Store { cluster: &cluster, dir: cluster.dir.path() };
    let mut python = cluster.client("client", 0, 80 << 20);
    for (i, size) in [1, 4096, MIB, 64 * MIB].into_iter().enumerate() {
        let seed = 300 + i as u64;
        let key = format!("size/{size}");
        let value = payload(seed, size);
        store.put(&key, &value, &[]);
        assert!(store.get(&key) == value, "{key} differs");
        assert_eq!(python.get(&key, seed, size), (size as u64, true), "{key} read by the real client");
        store.succeeds(&["exists", &key]);
        assert!(store.succeeds(&["stat", &key]).contains("127.0.0.1"), "stat shows the node of the replica");
        // The real client writes, mcctl reads.
        let key = format!("python/{size}");
        assert_eq!(python.put(&key, seed, size), 0);
        assert!(store.get(&key) == value, "{key} differs");
        store.succeeds(&["rm", "--force", &key, &format!("size/{size}")]);
        assert_eq!(python.exist(&key), 0);
    }
    // An empty value is refused before the master is called.
    let empty = cluster.dir.path().join("empty");
    std::fs::write(&empty, b"").unwrap();
    assert_eq!(store.run(&["put", "empty", empty.to_str().unwrap()]).0, 2);
    // A key is written once. --upsert replaces it.
    store.succeeds(&["put", "once", "--value", "first"]);
    assert!(store.answers_no(&["put", "once", "--value", "second"]).contains("once"));
    assert_eq!(store.get("once"), b"first");
    store.succeeds(&["put", "once", "--value", "the second", "--upsert"]);
    assert_eq!(store.get("once"), b"the second");
    // Missing keys.
    store.answers_no(&["get", "none"]);
    store.answers_no(&["exists", "once", "none"]);
    store.answers_no(&["rm", "none"]);
    store.answers_no(&["stat", "none"]);
    // Two copies if there are two segments.
    store.put("two", &payload(9, MIB), &["--replicas", "2", "--allow-fewer"]);
    let a = python.ask(serde_json::json!({"do": "replicas", "key": "two"}));
    assert_eq!(a["endpoints"].as_array().unwrap().len(), nodes.min(2));
    assert!(store.get("two") == payload(9, MIB));
    // Lists and patterns.
    for i in 0..5 {
        store.succeeds(&["put", &format!("list/{i}"), "--value", "x"]);
    }
    let listed = store.succeeds(&["ls"]);
    assert_eq!(listed.lines().filter(|l| l.starts_with("list/")).count(), 5, "{listed}");
    store.succeeds(&["rm", "--regex", "^list/[0-2]$"]);
    assert_eq!(python.exist("list/1") + python.exist("list/3"), 1);
    store.answers_no(&["rm", "list/3"]);
    store.succeeds(&["rm", "--force", "list/3"]);
    store.succeeds(&["rm", "--all", "--force", "--yes"]);
    assert_eq!(python.exist("once"), 0);
    python.close();
}

/// A client of the library that contributes `segment` bytes.
async fn library(cluster: &Cluster, segment: u64) -> Node<RealEnv> {
    let master: HostPort = cluster.master.address().parse().unwrap();
    library_of(cluster, segment, ClientConfig::new(master)).await
}

async fn library_of(cluster: &Cluster, segment: u64, mut client: ClientConfig) -> Node<RealEnv> {
    client.local_hostname = "127.0.0.1".to_owned();
    client.engine.metadata = cluster.master.metadata(cluster.how).parse().unwrap();
    client.engine.announce_host = Some("127.0.0.1".to_owned());
    client.max_wait = PATIENCE;
    let config = NodeConfig { client, segment_bytes: ByteSize(segment) };
    Node::start(config, RealEnv::new()).await.unwrap()
}

/// Run batch operations of the library over the caller's memory.
async fn batches(master: Make, node: Make, how: Metadata, nodes: usize) {
    let cluster = Cluster::start(master, node, how, nodes, 512 << 20);
    let own = library(&cluster, 0).await;
    let client = own.client();
    let n = 128;
    let key = |i: usize| ObjectKey::from(format!("batch/{i}").as_str());
    let keys: Vec<ObjectKey> = (0..n).map(key).collect();
    let memory = Arc::new(Memory::from_vec(payload(1, n * MIB)));
    let objects: Vec<_> =
        keys.iter().enumerate().map(|(i, k)| (k.clone(), memory.slice(i * MIB, MIB).unwrap())).collect();
    let outcomes = client.batch_put(&objects, &ReplicateConfig::default()).await.unwrap();
    assert!(outcomes.iter().all(|o| matches!(o, Ok(PutOutcome::Stored { replicas: 1 }))), "{outcomes:?}");
    let again = client.put(&objects[0].0, objects[0].1.clone(), &ReplicateConfig::default()).await.unwrap();
    assert_eq!(again, PutOutcome::AlreadyExists);
    let room = Arc::new(Memory::from_vec(vec![0; n * MIB]));
    let into: Vec<_> = keys.iter().enumerate().map(|(i, k)| (k.clone(), room.slice(i * MIB, MIB).unwrap())).collect();
    let sizes = client.batch_get_into(&into).await.unwrap();
    assert!(sizes.iter().all(|s| matches!(s, Ok(MIB))), "{sizes:?}");
    assert!(room.whole().to_vec() == payload(1, n * MIB), "the batch differs");
    let there = client.batch_exists(&[key(0), key(n), key(1)]).await.unwrap();
    assert!(matches!(&there[..], [Ok(true), Ok(false), Ok(true)]), "{there:?}");
    let stats = client.batch_stat(&[key(3), key(n)]).await.unwrap();
    assert_eq!(stats[0].as_ref().unwrap().size, MIB as u64);
    assert!(stats[1].as_ref().unwrap_err().is_not_found());
    let small = room.slice(0, MIB - 1).unwrap();
    assert!(matches!(client.get_into(&key(0), small).await, Err(StoreError::TooSmall { .. })));
    // The real client finds an object of the batch.
    let mut python = cluster.client("client", 0, 80 << 20);
    let value = client.get(&key(77)).await.unwrap();
    let at = memory.slice(77 * MIB, MIB).unwrap().to_vec();
    assert!(value == at);
    assert_eq!(python.exist("batch/77"), 1);
    // Removal.
    let code = |e: Result<(), StoreError>| e.unwrap_err().code();
    assert_eq!(code(client.remove(&key(0), false).await), ErrorCode(-706));
    client.remove(&key(0), true).await.unwrap();
    assert_eq!(code(client.remove(&key(0), true).await), ErrorCode(-704));
    assert_eq!(client.remove_by_regex("^batch/1$", true).await.unwrap(), 1);
    assert_eq!(client.remove_all(true).await.unwrap(), n as i64 - 2);
    // Two replicas on different segments, one of which this process contributes.
    let lender = library(&cluster, 64 << 20).await;
    cluster.master.wait_segments(nodes + 1);
    let two = ReplicateConfig { replica_num: 2, ..ReplicateConfig::default() };
    let value = memory.slice(0, 3 * MIB + 5).unwrap();
    let outcome = lender.client().put(&key(500), value.clone(), &two).await.unwrap();
    assert_eq!(outcome, PutOutcome::Stored { replicas: 2 });
    assert!(client.get(&key(500)).await.unwrap() == value.to_vec());
    assert!(lender.client().get(&key(500)).await.unwrap() == value.to_vec());
    // The real client also reads from the contributed segment.
    for i in 0..6u64 {
        assert_eq!(python.put(&format!("spread/{i}"), i, MIB), 0);
        assert_eq!(python.get(&format!("spread/{i}"), i, MIB), (MIB as u64, true));
        let read = client.get(&ObjectKey::from(format!("spread/{i}").as_str())).await.unwrap();
        assert!(read == payload(i, MIB));
    }
    lender.stop().await;
    cluster.master.wait_segments(nodes);
    own.stop().await;
    python.close();
}

/// A suspended process still accepts connections, but does not answer. Each command ends after its
/// time limit with exit code 3, and works again when the process is resumed.
fn a_hung_peer(node: Make) {
    // A long time to live, so that the suspended node does not expire.
    let cluster = Cluster::with_flags(Make::Ours, node, Metadata::P2p, 1, 64 << 20, &["--client_ttl=120"]);
    let store = Store { cluster: &cluster, dir: cluster.dir.path() };
    store.put("there", &payload(1, MIB), &[]);
    for (process, args) in [
        (&cluster.nodes[0].process, ["get", "there", "-o", "hung"].as_slice()),
        (&cluster.nodes[0].process, &["put", "new", "--value", "x"]),
        (&cluster.master.process, &["get", "there", "-o", "hung"]),
        (&cluster.master.process, &["exists", "there"]),
    ] {
        process.suspend();
        let (code, text) = store.run(&[args, &["--timeout", "2s"]].concat());
        process.resume();
        assert_eq!(code, 3, "{args:?}: {text}");
    }
    assert!(store.get("there") == payload(1, MIB));
}

/// A node is suspended, a put to it times out, and the node resumes: the bytes arrive late. The
/// master has not allocated their memory to another object meanwhile. It is used again after the
/// release timeout of an unfinished put.
async fn late_bytes(node: Make) {
    // The memory must be filled before the release timeout. On a slow machine that needs a longer
    // one.
    for release_s in [8, 16, 32, 64] {
        if late_bytes_arrive(node, release_s).await {
            return;
        }
    }
    panic!("the memory was not filled before the release timeout");
}

/// Returns false if the memory was not filled before the release timeout.
async fn late_bytes_arrive(node: Make, release_s: u64) -> bool {
    /// A seed far from the other, because neighbouring seeds share most of their bytes.
    const LATE: u64 = 1 << 40;
    let release = format!("--put_start_release_timeout_sec={release_s}");
    let flags = ["--client_ttl=120", "--put_start_discard_timeout_sec=1", &release];
    let cluster = Cluster::with_flags(Make::Ours, node, Metadata::P2p, 1, 16 << 20, &flags);
    let master: HostPort = cluster.master.address().parse().unwrap();
    let config = ClientConfig { transfer_deadline: Duration::from_secs(1), ..ClientConfig::new(master) };
    let own = library_of(&cluster, 0, config).await;
    let client = own.client();
    let pinned = ReplicateConfig { with_hard_pin: true, ..ReplicateConfig::default() };
    let value = |seed| Arc::new(Memory::from_vec(payload(seed, MIB))).whole();
    client.put(&ObjectKey::from("first"), value(1), &pinned).await.unwrap();
    let found = client.stat(&ObjectKey::from("first")).await.unwrap().found;
    let ReplicaLocation::Memory(first) = found.replicas[0].location.clone() else { panic!("{found:?}") };

    tokio::task::block_in_place(|| cluster.nodes[0].process.suspend());
    let began = Instant::now();
    let timed_out = client.put(&ObjectKey::from("late"), value(LATE), &pinned).await.unwrap_err();
    assert!(timed_out.may_still_land(), "{timed_out}");
    // Fill the rest of the memory with other objects.
    let room = async |key: String| {
        let started = client.master().put_start(
            client.id(),
            Text(key.as_bytes()),
            SliceLength(MIB as u64),
            pinned.clone(),
            Tenant(Text(b"")),
        );
        let replicas = started.await.unwrap()?;
        let end = ObjectMeta { key: Text(key.as_bytes()), object_checksum: None };
        client.master().put_end(client.id(), end, ReplicaType::ALL, Tenant(Text(b""))).await.unwrap().unwrap();
        match &replicas[0].location {
            ReplicaLocation::Memory(buffer) => Ok::<u64, ErrorCode>(buffer.buffer_address),
            other => panic!("{other:?}"),
        }
    };
    let mut taken = vec![first.buffer_address];
    let refusal: ErrorCode = loop {
        match room(format!("other/{}", taken.len())).await {
            Ok(address) => taken.push(address),
            Err(code) => break code,
        }
    };
    assert_eq!(refusal, ErrorCode::NO_AVAILABLE_HANDLE);
    assert!(taken.len() > 8, "{taken:x?}");
    if began.elapsed() >= Duration::from_secs(release_s) {
        return false;
    }

    cluster.nodes[0].process.resume();
    let begin = payload(LATE, MIB)[..4096].to_vec();
    let (base, size) = segment(&cluster);
    let seen = Arc::new(Memory::from_vec(vec![0; size]));
    let endpoint = first.transport_endpoint.to_string_lossy().into_owned();
    let mut landed = 0;
    wait_until_async("bytes that arrive late", PATIENCE, async || {
        let read = Op { kind: OpKind::Read, local: seen.whole(), remote: RemoteAddr(base) };
        // The engine reconnects when the peer is back.
        if own.client().engine().transfer(&endpoint, vec![read], PATIENCE).await.is_err() {
            return false;
        }
        let bytes = seen.whole().to_vec();
        let found = bytes.windows(begin.len()).position(|window| window == begin);
        landed = base + found.unwrap_or(0) as u64;
        found.is_some()
    })
    .await;
    for address in &taken {
        assert!(landed.abs_diff(*address) >= MIB as u64, "late bytes at {landed:x} in the room at {address:x}");
    }
    assert!(client.get(&ObjectKey::from("first")).await.unwrap() == payload(1, MIB));
    let mut again = 0;
    wait_until_async("the release of the memory", PATIENCE + Duration::from_secs(release_s), async || {
        match room("again".to_owned()).await {
            Ok(address) => again = address,
            Err(code) => assert_eq!(code, ErrorCode::NO_AVAILABLE_HANDLE),
        }
        again != 0
    })
    .await;
    assert!(began.elapsed() >= Duration::from_secs(release_s), "after {:?}", began.elapsed());
    assert_eq!(again, landed);
    own.stop().await;
    true
}

/// Base address and length of the only segment.
fn segment(cluster: &Cluster) -> (u64, usize) {
    let detail = http_get(cluster.master.admin, "/get_segments_detail").unwrap().1;
    let detail: serde_json::Value = serde_json::from_str(&detail).unwrap();
    let segment = &detail["segments"][0];
    let base = u64::from_str_radix(segment["base_address"].as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
    (base, segment["size_bytes"].as_u64().unwrap() as usize)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn late_bytes_do_not_overwrite_other_objects_on_a_real_node() {
    late_bytes(Make::Real).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_bytes_do_not_overwrite_other_objects_on_our_node() {
    late_bytes(Make::Ours).await;
}

#[test]
fn a_command_times_out_if_our_node_or_master_hangs() {
    a_hung_peer(Make::Ours);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn a_command_times_out_if_a_real_node_hangs() {
    a_hung_peer(Make::Real);
}

/// The environment that `mcctl up` prints is sufficient for the real client.
#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_real_client_uses_the_store_of_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = mcctl();
    c.args(["up", "--json", "--segment-size", "512mb", "--rpc-port"]).arg(free_port().to_string());
    c.arg("--metrics-port").arg(free_port().to_string()).arg("--metadata-port").arg(free_port().to_string());
    c.arg("--rest-port").arg(free_port().to_string());
    let mut up = Process::start("up", c, dir.path());
    let line = up.wait_line("mcctl.up/1");
    let document: serde_json::Value = serde_json::from_str(line.trim_start_matches(|c| c != '{')).unwrap();
    let env = |name: &str| document["environment"][name].as_str().unwrap().to_owned();
    let mut suite = wheel().script("client_suite.py");
    suite.args(["--master", &env("MOONCAKE_MASTER"), "--metadata", &env("MOONCAKE_TE_META_DATA_SERVER")]);
    suite.args(["--hostname", &env("MOONCAKE_LOCAL_HOSTNAME"), "--segment-size", &env("MOONCAKE_GLOBAL_SEGMENT_SIZE")]);
    let (status, text) = run("suite", suite, dir.path(), Duration::from_secs(180));
    assert!(status.success(), "{text}");
    up.signal(Signal::SIGINT);
    assert!(up.ended(PATIENCE).success());
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn commands_with_our_master_and_node() {
    commands(Make::Ours, Make::Ours, Metadata::P2p, 1);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn commands_with_our_master_and_three_real_nodes() {
    commands(Make::Ours, Make::Real, Metadata::Http, 3);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn commands_with_the_real_master_and_a_real_node() {
    commands(Make::Real, Make::Real, Metadata::P2p, 1);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn commands_with_the_real_master_metadata_and_our_three_nodes() {
    commands(Make::Real, Make::Ours, Metadata::Http, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn batches_with_our_master_and_two_of_our_nodes() {
    batches(Make::Ours, Make::Ours, Metadata::Http, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn batches_with_the_real_master_and_two_real_nodes() {
    batches(Make::Real, Make::Real, Metadata::P2p, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn batches_with_the_real_master_and_a_real_node_over_http_metadata() {
    batches(Make::Real, Make::Real, Metadata::Http, 1).await;
}
