//! SIGKILL of a node, of the master, and of a client during a put, as other clients observe it.
//!
//! Each scenario is a function of the implementations of master and nodes. With both real it
//! validates the scenario; with mcctl's it is the test.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::cluster::{Client, Cluster, Make, Metadata, Node};
use super::process::{PATIENCE, http_get, wait_until};

const MIB: usize = 1 << 20;
/// A short time to live, so that a killed client expires soon.
const TTL_S: u64 = 3;

/// Assert that the address ranges of all replicas of `keys` are disjoint on each endpoint.
fn no_byte_belongs_to_two(client: &mut Client, keys: &[String]) {
    let mut ranges: Vec<(String, u64, u64, &str)> = Vec::new();
    for key in keys {
        let a = client.ask(json!({"do": "replicas", "key": key}));
        for ((endpoint, address), size) in list(&a["endpoints"]).zip(list(&a["addresses"])).zip(list(&a["sizes"])) {
            let start = address.as_u64().unwrap();
            ranges.push((endpoint.as_str().unwrap().to_owned(), start, start + size.as_u64().unwrap(), key));
        }
    }
    ranges.sort();
    for pair in ranges.windows(2) {
        assert!(
            pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1,
            "{} and {} share bytes: {pair:x?}",
            pair[0].3,
            pair[1].3
        );
    }
}

fn list(value: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    value.as_array().unwrap().iter()
}

/// A node is killed: its objects are gone after its time to live, other objects stay intact, and
/// puts continue.
fn a_node_dies(master: Make, node: Make, how: Metadata) {
    let flags = [format!("--client_ttl={TTL_S}")];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut cluster = Cluster::with_flags(master, node, how, 2, 256 << 20, &flags);
    let mut client = cluster.client("client", 0, 64 << 20);
    let keys: Vec<String> = (0..24).map(|i| format!("before/{i}")).collect();
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(client.put(key, i as u64, MIB + i), 0);
    }
    no_byte_belongs_to_two(&mut client, &keys);
    cluster.nodes[0].process.kill();
    // Until the node expires, a put may go to it and fail. It must not hang.
    for i in 0..4u64 {
        let rc = client.put(&format!("between/{i}"), i, MIB);
        assert!(rc == 0 || rc == -800, "put answered {rc}");
    }
    cluster.master.wait_segments(1);
    let mut kept = 0;
    for (i, key) in keys.iter().enumerate() {
        match client.exist(key) {
            0 => {}
            1 => {
                assert_eq!(client.get(key, i as u64, MIB + i), ((MIB + i) as u64, true), "{key}");
                kept += 1;
            }
            rc => panic!("exist of {key} answered {rc}"),
        }
    }
    assert!((1..keys.len()).contains(&kept), "{kept} of {} objects are left", keys.len());
    for i in 0..8u64 {
        assert_eq!(client.put(&format!("after/{i}"), i, MIB), 0);
        assert_eq!(client.get(&format!("after/{i}"), i, MIB), (MIB as u64, true));
    }
    // A new node replaces it.
    cluster.nodes[0].restart();
    cluster.master.wait_segments(2);
    for i in 8..16u64 {
        assert_eq!(client.put(&format!("after/{i}"), i, MIB), 0);
        assert_eq!(client.get(&format!("after/{i}"), i, MIB), (MIB as u64, true));
    }
    client.close();
}

/// A client is killed during a put: each of its objects is complete or absent, and its unfinished
/// key can be put again. The node is suspended meanwhile, so that the put is in progress. Bytes in
/// socket buffers reach the node after the client's death.
fn a_client_dies_in_the_middle_of_a_put(master: Make, node: Make, how: Metadata) {
    let flags = ["--put_start_discard_timeout_sec=2", "--put_start_release_timeout_sec=5"];
    let cluster = Cluster::with_flags(master, node, how, 1, 768 << 20, &flags);
    let mut reader = cluster.client("reader", 0, 64 << 20);
    let mut writer = cluster.client("writer", 0, 64 << 20);
    let size = 16 * MIB;
    let mut whole: Vec<String> = (0..8).map(|i| format!("whole/{i}")).collect();
    for (i, key) in whole.iter().enumerate() {
        assert_eq!(writer.put(key, i as u64, size), 0);
    }
    cluster.nodes[0].process.suspend();
    writer.dialogue.send(&json!({"do": "put", "key": "cut", "seed": 50, "size": size}).to_string());
    wait_until("the put to be under way", PATIENCE, || {
        let (_, text) = http_get(cluster.master.admin, "/query_key?key=cut").unwrap();
        text.contains("REPLICA_IS_NOT_READY")
    });
    writer.dialogue.process().kill();
    cluster.nodes[0].process.resume();
    for (i, key) in whole.iter().enumerate() {
        assert_eq!(reader.get(key, i as u64, size), (size as u64, true), "{key}");
    }
    assert_eq!(reader.exist("cut"), 0, "an unfinished object does not exist");
    no_byte_belongs_to_two(&mut reader, &whole);
    // After the discard timeout the key is free again, and a new put of it is complete.
    let next = "cut".to_owned();
    wait_until("the unfinished key to be free", PATIENCE, || {
        // A put of a key with an unfinished put returns 0 without writing, as in upstream's client.
        assert_eq!(reader.put(&next, 99, size), 0);
        reader.exist(&next) == 1
    });
    assert_eq!(reader.get(&next, 99, size), (size as u64, true));
    whole.push(next);
    no_byte_belongs_to_two(&mut reader, &whole);
    reader.close();
}

/// The master is killed and restarted: nodes and a contributing client mount again, and clients
/// continue. mcctl's master accepts objects again after the longer of these times. mcctl's nodes
/// close their connections, so a real client's next transfer to each of them fails.
fn the_master_dies_and_comes_back(master: Make, node: Make, how: Metadata) {
    let flags = ["--default_kv_lease_ttl=3000", "--put_start_discard_timeout_sec=3"];
    let mut cluster = Cluster::with_flags(master, node, how, 2, 128 << 20, &flags);
    let mut lender = cluster.client("lender", 64 << 20, 64 << 20);
    let mut client = cluster.client("client", 0, 64 << 20);
    cluster.master.wait_segments(3);
    assert_eq!(client.put("before", 1, MIB), 0);
    cluster.master.kill();
    let answer = client.exist("before");
    assert_eq!(answer, -900, "exist while the master is away");
    cluster.master.restart();
    let back = Instant::now();
    cluster.master.wait_segments(3);
    eprintln!("{master:?} master, {node:?} nodes, {how:?}: all three segments are back after {:?}", back.elapsed());
    assert_eq!(client.exist("before"), 0, "a master without a snapshot loses its objects");
    let mut attempts = 0u64..;
    for i in 0..6u64 {
        let mut stored = String::new();
        wait_until("a put to be accepted", PATIENCE, || {
            stored = format!("after/{i}/{}", attempts.next().unwrap());
            client.put(&stored, i, MIB) == 0
        });
        let value = (MIB as u64, true);
        let read = lender.get(&stored, i, MIB);
        assert!(read == value || lender.get(&stored, i, MIB) == value, "{stored}: {read:?}");
    }
    lender.close();
    cluster.master.wait_segments(2);
    client.close();
}

/// The master is suspended for longer than the time to live of its clients. After it resumes, it
/// reads their heartbeats before it expires any client, so that nothing is lost.
#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_stands_still_and_loses_nothing_of_real_nodes() {
    let cluster = Cluster::with_flags(Make::Ours, Make::Real, Metadata::P2p, 2, 128 << 20, &["--client_ttl=4"]);
    let mut client = cluster.client("client", 0, 64 << 20);
    let keys: Vec<String> = (0..8).map(|i| format!("before/{i}")).collect();
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(client.put(key, i as u64, MIB), 0);
    }
    cluster.master.process.suspend();
    // More than twice the time to live of a client.
    std::thread::sleep(Duration::from_secs(10));
    cluster.master.process.resume();
    // A client that was wrongly expired would show within the time to live.
    let end = Instant::now() + Duration::from_secs(6);
    while Instant::now() < end {
        assert_eq!(cluster.master.segments().len(), 2);
        std::thread::sleep(Duration::from_millis(50));
    }
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(client.get(key, i as u64, MIB), (MIB as u64, true), "{key}");
    }
    client.close();
}

/// A node with a fixed name is killed and restarted at once. It is reachable before its time to
/// live has passed. With HTTP metadata a real client caches the descriptor of the old process by
/// name, so a new client connects each time.
fn the_same_name_comes_back_at_once(master: Make, node: Make, how: Metadata) {
    // A put to the segment of the killed process takes the wheel's transfer timeout of 60 s if
    // another process, such as one of another test, has its port by then.
    const LIMIT: Duration = Duration::from_secs(2 * PATIENCE.as_secs());
    let mut cluster = Cluster::start(master, node, how, 0, 0);
    let name = format!("127.0.0.1:{}", super::process::free_port());
    let dir = cluster.dir.path().to_owned();
    cluster.nodes.push(Node::start_as(node, &dir, "fixed", &name, &cluster.master, how, 128 << 20, 0));
    cluster.master.wait_segments(1);
    let mut client = cluster.client("client", 0, 64 << 20);
    assert_eq!(client.put("first", 1, MIB), 0);
    for round in 0..3u64 {
        cluster.nodes[0].process.kill();
        cluster.nodes[0].restart();
        // The old segment is listed until its client expires; the new one works before that.
        let t = Instant::now();
        if how == Metadata::Http {
            let rest = cluster.nodes[0].rest;
            cluster.nodes[0].process.wait_port(rest);
            client = cluster.client(&format!("client{round}"), 0, 64 << 20);
        }
        loop {
            let key = format!("round/{round}/{:?}", t.elapsed());
            let put = client.put(&key, round, MIB);
            let got = if put == 0 { client.get(&key, round, MIB) } else { (0, false) };
            if got == (MIB as u64, true) {
                break;
            }
            let node = &mut cluster.nodes[0].process;
            assert!(node.runs(), "the node ended in round {round}: {}", node.log());
            let segments = cluster.master.segments();
            let log = cluster.nodes[0].process.log();
            assert!(
                Instant::now() < t + LIMIT,
                "round {round}: put {put}, get {got:?}; segments {segments:?}; node: {log}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{master:?} master, {node:?} node, {how:?}: {name} serves again after {:?}", t.elapsed());
    }
    client.close();
}

/// A node is suspended, another process takes over its name, and the first one is stopped: the
/// records of the second stay.
#[test]
fn a_suspended_node_does_not_remove_the_records_of_its_successor() {
    let how = Metadata::Http;
    let make = Make::Ours;
    let mut cluster = Cluster::start(make, make, how, 0, 0);
    let name = format!("127.0.0.1:{}", super::process::free_port());
    let dir = cluster.dir.path().to_owned();
    for (node, nth) in [("first", 1.0), ("second", 2.0)] {
        let node = Node::start_as(make, &dir, node, &name, &cluster.master, how, 64 << 20, 0);
        // Its first heartbeat publishes the records again. If it were suspended during that, it
        // would overwrite its successor's records later: the metadata protocol has no conditional
        // write.
        wait_until("the node's first heartbeat", PATIENCE, || {
            cluster.master.metric("master_remount_segment_requests_total") == nth
        });
        if cluster.nodes.is_empty() {
            node.process.suspend();
        }
        cluster.nodes.push(node);
    }
    let metadata = cluster.master.metadata;
    let records = || {
        ["ram", "rpc_meta"].map(|folder| {
            let (status, text) = http_get(metadata, &format!("/metadata?key=mooncake/{folder}/{name}")).unwrap();
            assert_eq!(status, 200, "{folder}: {text}");
            text
        })
    };
    let before = records();
    cluster.nodes[0].process.signal(Signal::SIGTERM);
    cluster.nodes[0].process.resume();
    cluster.nodes[0].process.ended(PATIENCE);
    assert_eq!(records(), before);
    assert_eq!(cluster.master.segments(), [name]);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn real_a_node_dies() {
    a_node_dies(Make::Real, Make::Real, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn real_a_client_dies_in_the_middle_of_a_put() {
    a_client_dies_in_the_middle_of_a_put(Make::Real, Make::Real, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn real_the_master_dies_and_comes_back() {
    the_master_dies_and_comes_back(Make::Real, Make::Real, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn real_the_same_name_comes_back_at_once() {
    the_same_name_comes_back_at_once(Make::Real, Make::Real, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_when_a_real_node_dies() {
    a_node_dies(Make::Ours, Make::Real, Metadata::Http);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_when_a_client_dies_in_the_middle_of_a_put() {
    a_client_dies_in_the_middle_of_a_put(Make::Ours, Make::Real, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_dies_and_comes_back_to_real_nodes() {
    the_master_dies_and_comes_back(Make::Ours, Make::Real, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_and_metadata_die_and_come_back_to_real_nodes() {
    the_master_dies_and_comes_back(Make::Ours, Make::Real, Metadata::Http);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_when_the_same_name_comes_back_at_once_with_peer_handshakes() {
    the_same_name_comes_back_at_once(Make::Ours, Make::Real, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_metadata_when_the_same_name_comes_back_at_once() {
    the_same_name_comes_back_at_once(Make::Ours, Make::Real, Metadata::Http);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_node_dies() {
    a_node_dies(Make::Ours, Make::Ours, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_node_dies_under_the_real_master() {
    a_node_dies(Make::Real, Make::Ours, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn ours_when_a_client_dies_in_the_middle_of_a_put() {
    a_client_dies_in_the_middle_of_a_put(Make::Ours, Make::Ours, Metadata::Http);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_dies_and_comes_back_to_our_nodes() {
    the_master_dies_and_comes_back(Make::Ours, Make::Ours, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_and_metadata_die_and_come_back_to_our_nodes() {
    the_master_dies_and_comes_back(Make::Ours, Make::Ours, Metadata::Http);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_real_master_dies_and_comes_back_to_our_nodes() {
    the_master_dies_and_comes_back(Make::Real, Make::Ours, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_node_comes_back_under_its_name_at_once_with_peer_handshakes() {
    the_same_name_comes_back_at_once(Make::Ours, Make::Ours, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_node_comes_back_under_its_name_at_once() {
    the_same_name_comes_back_at_once(Make::Ours, Make::Ours, Metadata::Http);
}
