//! Puts and upserts: validation, completion, displacement and placement.

use super::*;
use mcctl_base::id::KEY_BYTES_MAX;
use mcctl_wire::types::SliceLength;

#[test]
fn put_start_refuses_contradictory_options() {
    let mut m = Master::of(MIB);
    assert_eq!(m.start(A, "", 1), Err(BAD));
    assert_eq!(m.start(A, "k", 0), Err(BAD));
    let with = |change: fn(&mut ReplicateConfig)| {
        let mut config = ReplicateConfig::default();
        change(&mut config);
        config
    };
    for config in [
        copies(0),
        with(|c| c.nof_replica_num = 1),
        with(|c| c.dfs_replica_num = 2),
        with(|c| (c.replica_num, c.dfs_replica_num) = (0, 1)),
        with(|c| c.soft_pin_ttl_ms = Some(5)),
        with(|c| (c.soft_pin_action, c.soft_pin_ttl_ms) = (SoftPinAction::DISABLE, Some(5))),
        with(|c| c.soft_pin_action = SoftPinAction(7)),
        pinned(Some(24 * 3_600_000 + 1)),
        with(|c| c.group_ids = Some(vec![])),
        with(|c| c.group_ids = Some(vec!["x".into(), "y".into()])),
    ] {
        assert_eq!(m.start_with(A, "k", 1, config.clone()), Err(BAD), "{config:?}");
    }
    let dfs = m.start_with(A, "k", 1, with(|c| c.dfs_replica_num = 1));
    assert_eq!(dfs, Err(ErrorCode::DFS_SERVICE_UNAVAILABLE));
    assert!(!m.exists("k"));
}

#[test]
fn put_start_refuses_keys_and_groups_above_the_limit() {
    let mut m = Master::of(MIB);
    let longest = "k".repeat(KEY_BYTES_MAX);
    let longer = "k".repeat(KEY_BYTES_MAX + 1);
    assert_eq!(m.start(A, &longer, 1), Err(BAD));
    assert_eq!(m.start_with(A, "k", 1, grouped(&longer)), Err(BAD));
    assert!(m.start_with(A, &longest, 1, grouped(&longest)).is_ok());
}

#[test]
fn an_unfinished_object_cannot_be_read_removed_or_put() {
    let mut m = Master::of(MIB);
    let replicas = m.start(A, "k", 100).expect("room");
    assert_eq!(replicas[0].status, PROCESSING);
    assert!(!m.exists("k"));
    assert_eq!(m.get("k"), Err(NOT_READY));
    assert_eq!(m.remove("k", true), Err(NOT_READY));
    assert_eq!(m.start(B, "k", 100), Err(EXISTS));
}

#[test]
fn only_the_writer_ends_its_put_and_may_repeat_the_end() {
    let mut m = Master::of(MIB);
    let replicas = m.start(A, "k", 100).expect("room");
    assert_eq!(m.end(A, "missing"), Err(NOT_FOUND));
    assert_eq!(m.end(B, "k"), Err(STRANGER));
    assert_eq!(m.end(A, "k"), Ok(()));
    assert_eq!(m.end(A, "k"), Ok(()));
    assert_eq!(m.end(B, "k"), Err(STRANGER));
    let got = m.get("k").expect("complete");
    assert_eq!((got[0].id, got[0].status, address(&got[0])), (replicas[0].id, COMPLETE, address(&replicas[0])));
    assert_eq!(m.start(A, "k", 100), Err(EXISTS));
}

#[test]
fn ending_the_write_of_another_tier_completes_nothing() {
    let mut m = Master::of(MIB);
    m.start(A, "k", 100).expect("room");
    assert_eq!(m.call().put_end(A, meta("k"), ReplicaType::DISK, T), Ok(()));
    assert!(!m.exists("k"));
    assert_eq!(m.call().put_end(A, meta("k"), ReplicaType::MEMORY, T), Ok(()));
    assert!(m.exists("k"));
    assert_eq!(m.call().put_end(A, meta("k"), ReplicaType::DISK, T), Err(NO_WRITE));
}

#[test]
fn a_revoked_put_leaves_nothing() {
    let mut m = Master::of(MIB);
    m.start(A, "k", 100).expect("room");
    assert_eq!(m.revoke(B, "k"), Err(STRANGER));
    assert_eq!(m.revoke(A, "k"), Ok(()));
    assert_eq!(m.revoke(A, "k"), Err(NOT_FOUND));
    assert_eq!(m.state.gauges().allocated_bytes, 0);
    m.put("k", 100);
    assert_eq!(m.revoke(A, "k"), Err(NO_WRITE));
}

#[test]
fn a_repeated_put_end_does_not_change_the_checksum() {
    let mut m = Master::of(MIB);
    m.start(A, "k", 100).expect("room");
    for checksum in [77, 78] {
        let object = ObjectMeta { key: "k".into(), object_checksum: Some(checksum) };
        assert_eq!(m.call().put_end(A, object, ReplicaType::ALL, T), Ok(()));
    }
    assert_eq!(m.call().get_replica_list("k".into(), T).expect("exists").object_checksum, Some(77));
}

#[test]
fn another_client_displaces_an_unfinished_put_after_the_discard_time() {
    let mut m = Master::with(|p| p.client_ttl = Duration::from_secs(100_000));
    m.mount(A, segment(1, "a:1", 1_000));
    let first = m.start(A, "k", 400).expect("room");
    m.pass_ms(30_000);
    assert_eq!(m.start(B, "k", 400), Err(EXISTS));
    m.pass_ms(1);
    let second = m.start(B, "k", 400).expect("the first put is displaced");
    assert_ne!(address(&first[0]), address(&second[0]));
    assert_eq!(m.end(A, "k"), Err(STRANGER));
    assert_eq!(m.end(B, "k"), Ok(()));
    // The first writer may still write, so its memory is not allocated before the release time.
    assert_eq!(m.start(A, "other", 400), Err(NO_SPACE));
    m.pass_ms(600_000 - 30_001 - 1);
    assert_eq!(m.state.gauges().discarded_staging_bytes, 400);
    m.pass_ms(1);
    assert_eq!(m.state.gauges().discarded_staging_bytes, 0);
    let third = m.start(A, "other", 400).expect("released");
    assert_eq!(address(&third[0]), address(&first[0]));
}

#[test]
fn an_unfinished_put_is_dropped_at_the_release_time() {
    let mut m = Master::with(|p| p.client_ttl = Duration::from_secs(100_000));
    m.mount(A, segment(1, "a:1", MIB));
    m.start(A, "k", 100).expect("room");
    m.pass_ms(599_999);
    assert_eq!(m.get("k"), Err(NOT_READY));
    m.pass_ms(1);
    assert_eq!(m.get("k"), Err(NOT_FOUND));
    assert_eq!((m.state.gauges().allocated_bytes, m.state.counters.put_start_releases), (0, 1));
}

#[test]
fn a_replica_is_inside_its_segment_and_has_the_requested_size() {
    let mut m = Master::of(MIB);
    for (key, bytes) in [("a", 1), ("b", 100), ("c", 4096), ("d", 4097)] {
        let replica = m.put(key, bytes);
        let ReplicaLocation::Memory(buffer) = &replica.location else { panic!("memory") };
        assert_eq!(buffer.size, bytes);
        assert!(buffer.buffer_address >= 1 << 40 && buffer.buffer_address + bytes <= (1 << 40) + MIB);
        assert_eq!((buffer.protocol.to_string(), buffer.transport_endpoint.to_string()), ("tcp".into(), "a:1".into()));
    }
    assert_eq!(m.state.gauges().allocated_bytes, 1 + 100 + 4096 + 4097);
}

#[test]
fn replica_ids_start_at_one_and_increase() {
    let mut m = Master::of(MIB);
    let ids: Vec<u64> = ["a", "b", "c"].map(|key| m.put(key, 10).id).to_vec();
    assert_eq!(ids, [1, 2, 3]);
}

#[test]
fn replicas_are_on_different_names_and_fewer_are_accepted() {
    let mut m = Master::of(MIB);
    let one = m.start_with(A, "one", 10, copies(2)).expect("best effort");
    assert_eq!(one.len(), 1);
    m.mount(A, segment(2, "a:1", MIB));
    assert_eq!(m.start_with(A, "still-one", 10, copies(2)).expect("best effort").len(), 1);
    m.mount(B, segment(3, "b:1", MIB));
    let two = m.start_with(A, "two", 10, copies(3)).expect("room");
    let mut names: Vec<String> = two.iter().map(endpoint).collect();
    names.sort();
    assert_eq!(names, ["a:1", "b:1"]);
    assert_eq!(m.end(A, "two"), Ok(()));
    assert_eq!(m.get("two").expect("exists").len(), 2);
    assert_eq!(m.state.counters.put_start_partial_allocations, 3);
}

#[test]
fn preferred_segments_come_first_and_unknown_ones_are_skipped() {
    let mut m = Master::new();
    for id in 1..=20 {
        m.mount(A, segment(id, &format!("s{id}:1"), MIB));
    }
    for i in 0..20 {
        let config = ReplicateConfig { preferred_segment: "s7:1".into(), ..ReplicateConfig::default() };
        assert_eq!(endpoint(&m.put_with(&format!("p{i}"), 10, config)), "s7:1");
        let several = vec!["unknown".into(), "s9:1".into()];
        let config = ReplicateConfig { preferred_segments: several, ..ReplicateConfig::default() };
        assert_eq!(endpoint(&m.put_with(&format!("q{i}"), 10, config)), "s9:1");
    }
}

#[test]
fn a_put_without_space_is_refused_and_leaves_nothing() {
    let mut m = Master::new();
    assert_eq!(m.start(A, "k", 10), Err(NO_SPACE));
    m.mount(A, segment(1, "a:1", 1000));
    assert_eq!(m.start(A, "k", 1001), Err(NO_SPACE));
    assert_eq!(m.get("k"), Err(NOT_FOUND));
    assert_eq!(m.state.counters.put_start_alloc_failures, 2);
}

#[test]
fn uniform_sizes_fill_the_store_to_98_percent() {
    for bytes in [4_096, 100_000, 1_100_000] {
        let mut m = Master::with(|p| p.watermark = 1.0);
        for id in 1..=8 {
            m.mount(A, segment(id, &format!("s{id}:1"), 64 * MIB));
        }
        let mut stored = 0;
        while m.start(A, &format!("k{stored}"), bytes).is_ok() {
            stored += 1;
        }
        let share = (stored * bytes) as f64 / (8 * 64 * MIB) as f64;
        assert!(share >= 0.98, "{bytes}: {share}");
    }
}

#[test]
fn a_batch_returns_one_independent_result_per_key_in_order() {
    let mut m = Master::of(MIB);
    let mut start = |keys: &[&'static str], lengths: &[u64]| {
        let keys = keys.iter().map(|key| Text::from(*key)).collect();
        let answers = m.call().batch_put_start(
            A,
            keys,
            lengths.iter().copied().map(SliceLength).collect(),
            ReplicateConfig::default(),
            T,
        );
        answers.into_iter().map(|answer| answer.map(|replicas| replicas.len())).collect::<Vec<_>>()
    };
    assert_eq!(start(&["x", "x", "", "y"], &[5, 5, 5, 2 * MIB]), [Ok(1), Err(EXISTS), Err(BAD), Err(NO_SPACE)]);
    assert_eq!(start(&["u", "v"], &[5]), [Err(BAD), Err(BAD)]);
    assert_eq!(start(&[], &[]), []);
    let ends = m.call().batch_put_end(A, vec![meta("x"), meta("none")], ReplicaType::ALL, T);
    assert_eq!(ends, [Ok(()), Err(NOT_FOUND)]);
    let exist = m.call().batch_exist_key(vec!["x".into(), "none".into()], T);
    assert_eq!(exist, [Ok(true), Ok(false)]);
    let batch = m.state.counters.batch_put_start;
    assert_eq!(
        (batch.requests, batch.failures, batch.partial_successes, batch.items, batch.failed_items),
        (3, 1, 1, 6, 5)
    );
}

#[test]
fn a_batch_longer_than_one_lock_acquisition_is_completed() {
    let mut m = Master::of(MIB);
    let names = keys(0..1_000);
    let texts: Vec<Text<'_>> = names.iter().map(|key| key.as_str().into()).collect();
    let answers =
        m.call().batch_put_start(A, texts.clone(), vec![SliceLength(10); 1_000], ReplicateConfig::default(), T);
    assert!(answers.len() == 1_000 && answers.iter().all(Result::is_ok));
    let metas = names.iter().map(|key| meta(key)).collect();
    assert!(m.call().batch_put_end(A, metas, ReplicaType::ALL, T).iter().all(Result::is_ok));
    assert_eq!(m.call().batch_exist_key(texts, T), vec![Ok(true); 1_000]);
    assert_eq!(m.state.counters.batch_put_start.requests, 1);
}

#[test]
fn an_upsert_of_the_same_size_reuses_the_buffer_and_hides_the_key() {
    let mut m = Master::of(MIB);
    let before = m.put("k", 100);
    let during = m.upsert(B, "k", 100).expect("in place");
    assert_eq!((during[0].id, address(&during[0]), during[0].status), (before.id, address(&before), PROCESSING));
    assert!(!m.exists("k"));
    assert_eq!(m.get("k"), Err(NOT_READY));
    assert_eq!(m.end(A, "k"), Err(STRANGER));
    assert_eq!(m.call().upsert_end(B, meta("k"), ReplicaType::ALL, T), Ok(()));
    assert_eq!(m.get("k").expect("exists")[0].status, COMPLETE);
}

#[test]
fn an_upsert_of_another_size_uses_new_memory_and_revoke_removes_it() {
    let mut m = Master::of(MIB);
    let before = m.put("k", 100);
    let during = m.upsert(A, "k", 200).expect("room");
    assert_ne!(during[0].id, before.id);
    assert_ne!(address(&during[0]), address(&before));
    assert_eq!(m.get("k"), Err(NOT_READY));
    assert_eq!(m.call().upsert_revoke(A, "k".into(), ReplicaType::ALL, T), Ok(()));
    assert_eq!(m.get("k"), Err(NOT_FOUND));
    // Readers may still read the old bytes.
    assert_eq!(m.state.gauges().discarded_staging_bytes, 100);
}

#[test]
fn an_upsert_of_a_missing_key_is_a_put() {
    let mut m = Master::of(MIB);
    assert_eq!(m.upsert(A, "k", 100).expect("room")[0].status, PROCESSING);
    assert_eq!(m.end(A, "k"), Ok(()));
    assert!(m.exists("k"));
}

#[test]
fn an_upsert_displaces_an_unfinished_write_at_once() {
    let mut m = Master::of(MIB);
    let first = m.start(A, "k", 100).expect("room");
    let second = m.upsert(B, "k", 100).expect("displaced");
    assert_ne!(address(&first[0]), address(&second[0]));
    assert_eq!(m.end(A, "k"), Err(STRANGER));
    assert_eq!(m.end(B, "k"), Ok(()));
}

#[test]
fn an_upsert_cannot_change_the_group() {
    let mut m = Master::of(MIB);
    m.put_with("k", 100, grouped("g"));
    assert_eq!(m.call().upsert_start(A, "k".into(), SliceLength(100), grouped("h"), T), Err(BAD));
    assert!(m.call().upsert_start(A, "k".into(), SliceLength(100), grouped("g"), T).is_ok());
    assert!(m.upsert(A, "k", 300).is_ok(), "without a group name, the group remains");
    assert_eq!(m.end(A, "k"), Ok(()));
    assert_eq!(m.call().upsert_start(A, "k".into(), SliceLength(300), grouped("h"), T), Err(BAD));
}

#[test]
fn an_upsert_keeps_the_pins() {
    let mut m = Master::of(MIB);
    m.put_with("soft", 100, pinned(None));
    m.put_with("hard", 100, hard_pinned());
    for key in ["soft", "hard"] {
        for bytes in [100, 200] {
            m.upsert(A, key, bytes).expect("room");
            assert_eq!(m.end(A, key), Ok(()));
        }
    }
    assert_eq!(m.state.gauges().soft_pinned_keys, 1);
    let at = m.state.objects.find(m.state.objects.hash(b"hard")).expect("exists");
    assert!(m.state.objects[at].eviction.hard_pin());
}

fn on_host(id: u64, name: &str, host: &str) -> mcctl_wire::types::Segment {
    mcctl_wire::types::Segment { host_id: host.into(), ..segment(id, name, MIB) }
}

fn from_host(host: &str) -> ReplicateConfig {
    ReplicateConfig { host_id: host.into(), ..ReplicateConfig::default() }
}

#[test]
fn local_first_fills_the_writers_host_then_the_next_hosts() {
    let mut m = Master::with(|policy| policy.strategy = crate::alloc::placement::Strategy::LocalFirst);
    m.mount(A, on_host(1, "b:1", "host-b"));
    m.mount(B, on_host(2, "d:1", "host-d"));
    let mut place = |key: &str, client, host: &str| {
        let replicas = m.start_with(client, key, MIB / 4, from_host(host)).expect("room");
        endpoint(&replicas[0])
    };
    assert_eq!(place("1", A, "host-d"), "d:1");
    assert_eq!(place("2", A, "host-c"), "d:1", "the next host in order");
    assert_eq!(place("3", A, "host-e"), "b:1", "wraps around");
    assert_eq!(place("4", B, ""), "d:1", "the host of the writer's own segments");
    assert_eq!(place("5", B, "host-d"), "d:1");
    assert_eq!(place("6", B, "host-d"), "b:1", "the preferred host is full");
}

#[test]
fn a_host_without_open_segments_is_not_chosen() {
    let mut m = Master::with(|policy| policy.strategy = crate::alloc::placement::Strategy::LocalFirst);
    m.mount(A, on_host(1, "b:1", "host-b"));
    m.mount(A, on_host(2, "b:1", "host-b"));
    m.mount(B, on_host(3, "d:1", "host-d"));
    for (id, place) in [(1, "b:1"), (2, "d:1")] {
        assert_eq!(m.call().graceful_unmount_segment(mcctl_base::SegmentId(id, id), A, 1000), Ok(()));
        let replicas = m.start_with(A, &format!("k{id}"), 100, from_host("host-b")).expect("room");
        assert_eq!(endpoint(&replicas[0]), place);
    }
    m.pass_ms(2000);
    let replicas = m.start_with(A, "late", 100, from_host("host-b")).expect("room");
    assert_eq!(endpoint(&replicas[0]), "d:1");
}

/// Finding M4 of the adversarial review: a reader with a lease received another key's bytes.
#[test]
fn revoking_an_upsert_in_place_quarantines_leased_memory() {
    let mut m = Master::of(1_000);
    let first = m.put("k", 600);
    m.get("k").expect("complete");
    m.upsert(A, "k", 600).expect("in place");
    assert_eq!((m.revoke(A, "k"), m.exists("k")), (Ok(()), false));
    m.pass_ms(9_999);
    m.state.ping(m.now, A);
    assert_eq!(m.start(A, "other", 600), Err(NO_SPACE), "the reader's lease lasts");
    m.pass_ms(1);
    let other = m.start(A, "other", 600).expect("the lease has ended");
    assert_eq!(address(&other[0]), address(&first));
}

#[test]
fn revoking_an_upsert_of_an_unread_object_frees_its_memory() {
    let mut m = Master::of(1_000);
    m.put("k", 600);
    m.pass_ms(1);
    m.upsert(A, "k", 600).expect("in place");
    assert_eq!(m.revoke(A, "k"), Ok(()));
    assert!(m.start(A, "other", 600).is_ok());
}

#[test]
fn a_write_of_a_client_without_an_id_is_not_discarded_for_another_one() {
    let mut m = Master::of(MIB);
    let unnamed = crate::owner::unnamed_client(1);
    m.state.extend_client_deadlines(Duration::from_secs(700));
    assert!(m.start(unnamed, "k", 100).is_ok());
    m.pass(m.state.policy().put_discard_after * 2);
    assert_eq!(m.start(unnamed, "k", 100), Err(ErrorCode::OBJECT_ALREADY_EXISTS), "it may be another client");
    assert_eq!(m.end(unnamed, "k"), Ok(()));
    // A named client's write is discarded.
    assert!(m.start(A, "named", 100).is_ok());
    m.pass(m.state.policy().put_discard_after * 2);
    assert!(m.start(unnamed, "named", 100).is_ok());
    assert_eq!(m.end(A, "named"), Err(ErrorCode::ILLEGAL_CLIENT));
}
