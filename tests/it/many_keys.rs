//! Planned hand-overs of a store with many keys. Needs some minutes and 8 GiB of memory:
//! `.ci/release many-keys`.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::high_availability::{ClusterMaster, HaCluster};

/// Number of keys, unless `MCCTL_HA_KEYS` is set.
const KEYS: u64 = 6_000_000;
/// Number of hand-overs of each kind.
const ROUNDS: usize = 5;
/// A standby has joined, or has taken over, within this time.
const LONG: Duration = Duration::from_secs(300);

fn wait_long(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "waited {LONG:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd, 8 GiB of memory and minutes: .ci/release many-keys"]
async fn planned_hand_overs_of_many_keys_lose_none() {
    let keys = std::env::var("MCCTL_HA_KEYS").map_or(KEYS, |text| text.parse().expect("MCCTL_HA_KEYS is a number"));
    let mut cluster = HaCluster::start_with_node("4gb", &[], &[]).await;
    let address = format!("etcd://127.0.0.1:{}", cluster.etcd.port);
    let fill = [
        "bench",
        "store",
        "--metadata-server",
        &address,
        "--object-size=256b",
        "--batch=256",
        "--clients=2",
        "--keep",
        "--duration=1s",
    ];
    let count = format!("--objects={keys}");
    cluster.run_for(LONG, &[&fill[..], &[&count]].concat()).succeeds();
    let objects = cluster.leader.status()["objects"].as_u64().expect("a leader counts its objects");
    assert!(objects >= keys, "{objects}");
    for round in 0..2 * ROUNDS {
        wait_long("a standby in sync with all keys", || {
            let status = cluster.standby.status();
            status["in_sync"] == true && status["objects"] == objects
        });
        let begun = Instant::now();
        let is_signal = round % 2 == 0;
        if is_signal {
            assert_eq!(cluster.leader.service.stop(Signal::SIGTERM), 0);
        } else {
            let admin = format!("127.0.0.1:{}", cluster.leader.admin);
            cluster.run_for(LONG, &["master", "step-down", "--admin", &admin]).succeeds();
        }
        // A change waits until the successor serves.
        cluster.transfer(&["store", "put", "after", "--value", "x", "--upsert"]).succeeds();
        let waited = begun.elapsed();
        let status = cluster.standby.status();
        println!("hand-over {round} ({}): {waited:?}", if is_signal { "SIGTERM" } else { "step-down" });
        assert_eq!(status["serving"], true, "{status}");
        assert!(status["objects"].as_u64() >= Some(objects), "{status}");
        assert_eq!(status["dropped_objects"], 0, "{status}");
        if is_signal {
            let rpc = cluster.leader.rpc;
            let admin = cluster.leader.admin;
            cluster.leader = ClusterMaster::start_at(&cluster.etcd, rpc, admin, &[]);
        }
        std::mem::swap(&mut cluster.leader, &mut cluster.standby);
        cluster.check();
        assert_eq!(cluster.run(&["store", "rm", "after", "--force"]).code, 0);
    }
}
