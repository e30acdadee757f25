//! The running master: concurrent callers, the events of an expired client, and stalls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mcctl::engine::base::{ClientId, ErrorCode, HostPort, SegmentId};
use mcctl::engine::env::RealEnv;
use mcctl::engine::master::view::AdminView;
use mcctl::engine::master::{MasterConfig, MasterHandle, MasterServer, StateEffect, UnmountReason};
use mcctl::engine::wire::types::{ClientStatus, ObjectMeta, ReplicaType, ReplicateConfig, Segment};

use crate::peer::process::{PATIENCE, in_time, wait_until, wait_until_async};
use crate::sim::AdjustableClock;
use mcctl::engine::wire::types::SliceLength;
use mcctl::engine::wire::types::Tenant;

const T: Tenant<'static> = Tenant::DEFAULT;
const ME: ClientId = ClientId(1, 1);
const KIB: u64 = 1 << 10;

async fn server(change: impl FnOnce(&mut MasterConfig)) -> MasterServer<RealEnv> {
    let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
    config.threads = 1;
    change(&mut config);
    MasterServer::start(config, RealEnv::new()).await.unwrap()
}

fn segment(id: u64, size: u64) -> Segment {
    let name = format!("127.0.0.{id}:1");
    Segment {
        id: SegmentId(id, id),
        name: name.as_str().into(),
        base: id << 40,
        size,
        te_endpoint: name.as_str().into(),
        protocol: "tcp".into(),
        host_id: "".into(),
    }
}

/// Puts a key. Returns false if there was no space.
fn put(master: &MasterHandle<RealEnv>, client: ClientId, key: &str, bytes: u64) -> bool {
    match master.call(|call| call.put_start(client, key.into(), SliceLength(bytes), ReplicateConfig::default(), T)).0 {
        Ok(_) => {
            let object = ObjectMeta { key: key.into(), object_checksum: None };
            master.call(|call| call.put_end(client, object, ReplicaType::ALL, T)).0.unwrap();
            true
        }
        Err(error) => {
            assert_eq!(error, ErrorCode::NO_AVAILABLE_HANDLE, "{key}");
            false
        }
    }
}

/// Address and length of every replica.
fn ranges(master: &MasterHandle<RealEnv>) -> BTreeMap<u64, u64> {
    let mut keys = Vec::new();
    let mut cursor = 0;
    while let Some(next) = master.keys(cursor, 1_000, &mut |key| keys.push(key.to_vec())) {
        cursor = next;
    }
    let mut ranges = BTreeMap::new();
    for replica in keys.iter().filter_map(|key| master.replicas(key).ok()).flatten() {
        assert_eq!(ranges.insert(replica.address, replica.bytes), None);
    }
    ranges
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_puts_never_allocate_a_byte_twice() {
    let server = server(|config| config.policy.lease_ttl = Duration::from_millis(20)).await;
    let handle = server.handle();
    for id in 1..=4 {
        handle.call(|call| call.mount_segment(segment(id, 256 * KIB), ME)).0.unwrap();
    }
    let stored = AtomicU64::new(0);
    let work = |thread: u64| {
        let client = ClientId(7, thread);
        for i in 0..3_000u64 {
            let key = format!("{thread}-{i}");
            if put(&handle, client, &key, 500 + (i * 37 + thread) % 3_000) {
                stored.fetch_add(1, Ordering::Relaxed);
            }
            match i % 7 {
                0 => drop(handle.call(|call| call.exist_key(key.as_str().into(), T))),
                1 => drop(handle.call(|call| call.remove(key.as_str().into(), true, T))),
                2 => drop(handle.call(|call| {
                    let regex = format!("^{thread}-{}$", i.saturating_sub(5));
                    call.remove_by_regex(regex.as_str().into(), false, T)
                })),
                _ => {}
            }
        }
    };
    let work = &work;
    tokio::task::block_in_place(|| std::thread::scope(|scope| (0..4).for_each(|t| drop(scope.spawn(move || work(t))))));
    assert!(stored.load(Ordering::Relaxed) > 2_000, "most puts succeed");
    // Eviction may still run, so the ranges count only if the sums before and after are equal.
    let mut found = BTreeMap::new();
    tokio::task::block_in_place(|| {
        wait_until("the end of eviction", PATIENCE, || {
            let before = handle.metrics().1;
            found = ranges(&handle);
            let is_still = handle.metrics().1 == before;
            assert!(!is_still || before.allocated_bytes == found.values().sum::<u64>(), "{before:?}");
            is_still
        });
    });
    let ends = found.iter().map(|(at, bytes)| at + bytes);
    assert!(ends.zip(found.keys().skip(1)).all(|(end, next)| end <= *next), "a byte is allocated twice");
    assert!(handle.metrics().0.evicted_keys > 0);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn subscribers_get_the_events_of_an_expired_client() {
    let server = server(|config| config.policy.client_ttl = Duration::from_millis(50)).await;
    let handle = server.handle();
    let mut events_receiver = handle.unmount_events();
    handle.call(|call| call.mount_segment(segment(1, KIB), ME)).0.unwrap();
    assert!(handle.has_segment_named("127.0.0.1:1"));
    let mut events = Vec::new();
    while events.len() < 2 {
        events.push(in_time("an event", events_receiver.recv()).await.unwrap());
    }
    let unmounted = |effect: &StateEffect| match effect {
        StateEffect::Unmounted { name, reason: UnmountReason::ClientExpired, last_of_name: true, .. } => {
            name.0 == "127.0.0.1:1"
        }
        _ => false,
    };
    assert!(
        events.iter().any(unmounted)
            && events.iter().any(|event| matches!(event, StateEffect::ClientExpired { client: ME, .. })),
        "{events:?}"
    );
    assert!(!handle.has_segment_named("127.0.0.1:1"));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_failed_allocation_triggers_eviction() {
    let server = server(|config| config.policy.watermark = 1.0).await;
    let handle = server.handle();
    handle.call(|call| call.mount_segment(segment(1, 100 * KIB), ME)).0.unwrap();
    let mut nth = 0;
    while put(&handle, ME, &format!("k{nth}"), KIB) {
        nth += 1;
    }
    assert!(nth >= 98);
    wait_until_async("an eviction", PATIENCE, async || put(&handle, ME, "another", KIB)).await;
    server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_expires_in_a_stall_while_its_ping_is_unread() {
    let env = AdjustableClock::default();
    let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
    config.threads = 1;
    config.policy.client_ttl = Duration::from_secs(2);
    let server = MasterServer::start(config, env.clone()).await.unwrap();
    let handle = server.handle();
    let mut events_receiver = handle.unmount_events();
    let mounted = segment(1, 256 * KIB);
    handle.call(|call| call.mount_segment(mounted.clone(), ME)).0.unwrap();
    handle.call(|call| call.remount_segment(vec![mounted], ME)).0.unwrap();
    for _ in 0..3 {
        env.advance(Duration::from_secs(60));
        // Either the ticker runs first or the ping is read first.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(handle.call(|call| call.ping(ME)).0.unwrap().client_status, ClientStatus::OK);
        env.advance(Duration::from_secs(60));
        assert_eq!(handle.call(|call| call.ping(ME)).0.unwrap().client_status, ClientStatus::OK);
    }
    assert!(events_receiver.try_recv().is_err());
    // Without further pings the client expires after two seconds.
    let gone = in_time("the event", events_receiver.recv()).await.unwrap();
    assert!(matches!(gone, StateEffect::ClientExpired { client: ME, .. }), "{gone:?}");
    server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_stuck_until_it_polls_again() {
    let env = AdjustableClock::default();
    let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
    config.threads = 1;
    let server = MasterServer::start(config, env.clone()).await.unwrap();
    let handle = server.handle();
    assert_eq!(handle.stuck_for(), None);
    // The worker may poll between the two steps, but not every time.
    let detected = (0..20).any(|_| {
        env.advance(Duration::from_secs(10));
        handle.stuck_for().is_some()
    });
    assert!(detected);
    wait_until_async("the worker's next poll", PATIENCE, async || handle.stuck_for().is_none()).await;
    server.stop().await.unwrap();
}
