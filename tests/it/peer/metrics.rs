//! After the same operations, the admin ports of a real master and of mcctl's report the same.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::cluster::{Client, Make, Master, Metadata};
use super::process::{PATIENCE, http_get, wait_until};

/// Responses of the admin port after a fixed list of operations of a real client.
struct AdminReport {
    metrics: BTreeMap<String, String>,
    keys: Vec<String>,
    segment: String,
    batch: Value,
    key: Value,
}

fn work(make: Make) -> AdminReport {
    let dir = tempfile::tempdir().unwrap();
    // The lease of k2 must not end before its removal is tried.
    let master = Master::start(make, dir.path(), &["--default_kv_lease_ttl=600000"]);
    let mut client = Client::start("client", dir.path(), &master, Metadata::P2p, 64 << 20, 16 << 20);
    for (n, size) in [(0, 100), (1, 5000), (2, 300_000), (3, 2 << 20)] {
        assert_eq!(client.put(&format!("k{n}"), n, size), 0);
    }
    assert_eq!(client.put("k0", 9, 100), 0);
    assert_eq!(client.ask(json!({"do": "put", "key": "two", "seed": 5, "size": 64, "replicas": 2}))["rc"], 0);
    assert_eq!(client.get("k2", 2, 300_000), (300_000, true));
    assert_eq!(client.get("none", 0, 0).0, 0);
    assert_eq!((client.exist("k3"), client.exist("none")), (1, 0));
    assert_eq!(client.ask(json!({"do": "remove", "key": "k1"}))["rc"], 0);
    assert_eq!(client.ask(json!({"do": "remove", "key": "k2"}))["rc"], -706);
    assert_eq!(client.ask(json!({"do": "remove", "key": "none"}))["rc"], -704);

    // A client is active after it has answered NEED_REMOUNT, the response to its first ping after a
    // second. The counter of its answers may increase after that.
    wait_until("the client to be active", PATIENCE, || {
        ["master_active_clients", "master_remount_segment_requests_total"].iter().all(|name| master.metric(name) > 0.0)
    });
    let read = |path: &str| http_get(master.admin, path).unwrap();
    let (_, metrics) = read("/metrics");
    let metrics = metrics.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.rsplit_once(' '));
    let metrics = metrics.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let mut keys: Vec<_> = read("/get_all_keys").1.lines().map(str::to_owned).collect();
    keys.sort();
    let (_, names) = read("/get_all_segments");
    let (_, segment) = read(&format!("/query_segment?segment={}", names.trim()));
    let parsed = |path: &str| without_places(serde_json::from_str(&read(path).1).unwrap());
    let batch = parsed("/batch_query_keys?keys=k0,none,k3");
    let key = parsed("/query_key?key=k2");
    client.close();
    AdminReport { metrics, keys, segment: segment.replace(names.trim(), "NAME"), batch, key }
}

/// Addresses and ports differ from run to run.
fn without_places(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let place = ["buffer_address_", "transport_endpoint_"].contains(&name.as_str());
                *field = if place { Value::Null } else { without_places(field.take()) };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_places(item.take())),
        _ => {}
    }
    value
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn after_the_same_work_our_admin_port_says_what_the_real_masters_says() {
    let real = work(Make::Real);
    let ours = work(Make::Ours);
    let mut compared = 0;
    for (name, value) in &real.metrics {
        // Heartbeats count time. Segment names have ports of the day. The histogram of sizes is
        // looked at below.
        let varies = ["master_ping_", "master_fetch_tasks_", "segment_", "master_value_size_"];
        if varies.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        assert_eq!(ours.metrics.get(name), Some(value), "{name}");
        compared += 1;
    }
    assert!(compared > 100, "{compared}");
    // The real one counts a size of 0 before the first object.
    let count = |seen: &AdminReport, name: &str| seen.metrics[name].parse::<u64>().unwrap();
    assert_eq!(count(&ours, "master_value_size_bytes_sum"), count(&real, "master_value_size_bytes_sum"));
    assert_eq!(count(&ours, "master_value_size_bytes_count") + 1, count(&real, "master_value_size_bytes_count"));

    assert_eq!(ours.keys, real.keys);
    assert_eq!(ours.segment, real.segment);
    assert_eq!(ours.batch, real.batch);
    assert_eq!(ours.key, real.key);
}

/// The sample names, and the families with their types, of a master that has just evicted from
/// memory.
fn exposed_after_evictions(make: Make) -> (BTreeSet<String>, BTreeSet<String>) {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--default_kv_lease_ttl=100", "--eviction_high_watermark_ratio=0.5"];
    let master = Master::start(make, dir.path(), &flags);
    let mut client = Client::start("client", dir.path(), &master, Metadata::P2p, 16 << 20, 16 << 20);
    for n in 0..24 {
        // A put into full memory triggers evictions.
        client.put(&format!("block/{n}"), n, 1 << 20);
    }
    wait_until("evictions", PATIENCE, || master.metric("master_evicted_key_count") > 0.0);
    client.get("block/23", 23, 1 << 20);
    client.exist("block/0");
    client.ask(json!({"do": "remove_all", "force": true}));
    let (status, text) = http_get(master.admin, "/metrics").unwrap();
    assert_eq!(status, 200);
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).map(str::to_owned).collect();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let names = samples.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect();
    client.close();
    (names, families)
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn all_series_of_a_real_master_and_its_dashboard_exist() {
    let (real, real_families) = exposed_after_evictions(Make::Real);
    let (ours, our_families) = exposed_after_evictions(Make::Ours);
    let missing: Vec<_> = real.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let other_type: Vec<_> = real_families.difference(&our_families).collect();
    assert!(other_type.is_empty(), "{other_type:?}");

    let dashboard = include_str!("../../../fixtures/http/dashboard-series.txt");
    let queried: Vec<_> = dashboard.lines().filter(|line| !line.starts_with('#')).collect();
    let answered = queried.iter().filter(|name| real.contains(**name)).count();
    let answered_by_us = queried.iter().filter(|name| ours.contains(**name)).count();
    // The other 14 are 12 of NVMe-oF and 2 that are newer than this release.
    assert_eq!((answered, answered_by_us), (queried.len() - 14, queried.len() - 14));
    assert!(ours.contains("master_evicted_size_bytes_mem"));
}
