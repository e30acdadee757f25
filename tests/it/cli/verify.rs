//! `mcctl store verify`, with nodes in this process.

use mcctl::engine::env::RealEnv;
use mcctl::engine::store::Node;
use mcctl::engine::wire::types::ReplicateConfig;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::objects::begin_put;
use super::serve::master;
use super::service::{Service, get};
use super::{Run, command, mcctl};
use crate::peer::process::{PATIENCE, wait_until};
use crate::store::checksums::{flip, replicas};
use crate::store::{bytes, config, key, node, slice};

/// The flags of the store with these ports.
fn link(rpc: u16, admin: u16) -> [String; 4] {
    [
        format!("--master=127.0.0.1:{rpc}"),
        format!("--admin=127.0.0.1:{admin}"),
        "--metadata-server=P2PHANDSHAKE".to_owned(),
        "--local-hostname=127.0.0.1".to_owned(),
    ]
}

fn verify(link: &[String], more: &[&str]) -> Run {
    let link: Vec<&str> = link.iter().map(String::as_str).collect();
    mcctl(&[&["store", "verify"], more, &link].concat())
}

/// The document of a run with this exit code.
#[track_caller]
fn document(link: &[String], code: i32, more: &[&str]) -> Value {
    let run = verify(link, &[&["--json"], more].concat());
    assert_eq!(run.code, code, "{run:?}");
    let document: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(document["schema"], "mcctl.store.verify/1");
    document
}

/// The numbers of intact, damaged, unchecked and unreadable replicas.
fn counts(part: &Value) -> [u64; 4] {
    ["intact", "damaged", "no_checksum", "unreadable"].map(|name| part[name].as_u64().expect(name))
}

async fn put(node: &Node<RealEnv>, name: &str, size: usize, replica_num: u64) {
    let config = ReplicateConfig { replica_num, ..ReplicateConfig::default() };
    node.client().put(&key(name), slice(bytes(size, 1)), &config).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_replica_is_reported_with_its_key_and_node() {
    let (_master, rpc, admin) = master(&[]);
    let link = link(rpc, admin);
    let nodes = [node(rpc, 64).await, node(rpc, 64).await];
    let mut without = config(rpc, 0);
    without.client.checksums = false;
    let without = Node::start(without, RealEnv::new()).await.unwrap();
    put(&nodes[0], "two", 70_000, 2).await;
    put(&nodes[0], "one", 5000, 1).await;
    put(&without, "plain", 100, 1).await;
    let found = document(&link, 0, &["--all", "--rate=1tb"]);
    assert_eq!(counts(&found), [3, 0, 1, 0], "{found}");
    assert_eq!((&found["complete"], &found["objects"], &found["replicas"]), (&json!(true), &json!(3), &json!(4)));
    assert_eq!((&found["bytes"], &found["damaged_replicas"]), (&json!(145_000), &json!([])));
    let stat = nodes[0].client().stat(&key("two")).await.unwrap();
    let damaged = replicas(&stat)[1].clone();
    flip(nodes[0].client(), &damaged, 69_999).await;
    let found = document(&link, 1, &["--all"]);
    assert_eq!(counts(&found), [2, 1, 1, 0], "{found}");
    let at = damaged.transport_endpoint.to_string_lossy().into_owned();
    let expected = json!([{"key": "two", "node": at, "address": damaged.buffer_address, "bytes": 70_000}]);
    assert_eq!(found["damaged_replicas"], expected);
    let entry = found["nodes"].as_array().expect("a list").iter().find(|entry| entry["node"] == json!(at));
    assert_eq!(entry.expect("its node")["damaged"], 1, "{found}");
    assert_eq!(counts(&document(&link, 0, &["one", "plain"]))[..3], [1, 0, 1]);
    let text = verify(&link, &["two", "plain"]);
    assert_eq!((text.code, text.stdout.lines().next()), (1, Some("1 of 3 replicas damaged")), "{text:?}");
    // Nothing was withdrawn.
    let after = nodes[0].client().stat(&key("two")).await.unwrap();
    assert_eq!(replicas(&after), replicas(&stat));
    drop(nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_exist_is_skipped_and_an_unreachable_node_is_3() {
    let (_master, rpc, admin) = master(&[]);
    let link = link(rpc, admin);
    assert_eq!(document(&link, 0, &["--all"])["objects"], 0);
    let node = node(rpc, 64).await;
    put(&node, "k", 100, 1).await;
    begin_put_elsewhere(rpc, "half").await;
    let found = document(&link, 1, &["k", "nothing", "half"]);
    assert_eq!(counts(&found), [1, 0, 0, 0], "{found}");
    let skipped = json!([{"key": "nothing", "reason": "missing"}, {"key": "half", "reason": "unfinished"}]);
    assert_eq!(found["skipped"], skipped);
    assert_eq!(document(&link, 0, &["--all"])["objects"], 1);
    // The segment remains mounted until the master misses the client.
    node.client().clone().stop().await;
    let found = document(&link, 3, &["k"]);
    assert_eq!(counts(&found), [0, 0, 0, 1], "{found}");
    assert!(found["nodes"][0]["error"].as_str().is_some_and(|error| !error.is_empty()), "{found}");
}

async fn begin_put_elsewhere(rpc: u16, key: &'static str) {
    let begun = tokio::task::spawn_blocking(move || begin_put(&format!("127.0.0.1:{rpc}"), key));
    begun.await.expect("begun");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_ends_a_verification_with_the_report_so_far() {
    let (_master, rpc, admin) = master(&[]);
    let node = node(rpc, 64).await;
    for index in 0..300 {
        put(&node, &format!("k{index}"), 1024, 1).await;
    }
    let link = link(rpc, admin);
    let flags = link.iter().map(String::as_str);
    let words: Vec<&str> = ["store", "verify", "--all", "--rate=1kb", "--json"].into_iter().chain(flags).collect();
    let mut running = Service::start(command(&words));
    // The first lookups, of no keys, find out the release, once for each of two connections. The
    // fourth one begins after the first object was verified.
    wait_until("four lookups", PATIENCE, || {
        let text = get(admin, "/metrics").1;
        let line = text.lines().find(|line| line.starts_with("master_batch_get_replica_list_requests_total "));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).is_some_and(|count| count >= 4)
    });
    assert_eq!(running.stop(Signal::SIGINT), 1);
    let document: Value = serde_json::from_str(&running.line_with("mcctl.store.verify/1")).expect("JSON");
    assert_eq!(document["complete"], false);
    let objects = document["objects"].as_u64().expect("a number");
    assert!((1..300).contains(&objects) && counts(&document) == [objects, 0, 0, 0], "{document}");
    running.line_with("SIGINT: stopped");
}

#[test]
fn a_verification_needs_keys_and_a_rate_above_0() {
    for flags in [&[][..], &["k", "--all"], &["k", "--rate=0"], &["k", "--rate=fast"]] {
        mcctl(&[&["store", "verify", "--master=127.0.0.1:1"], flags].concat()).fails(2);
    }
}
