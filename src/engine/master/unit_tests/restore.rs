//! After a restart: confirmation of segments, leases of restored objects, quarantines and damaged
//! data.

use super::follow::Followed;
use super::*;
use crate::alloc::RangeError;
use crate::object::ReplicaRecord;
use crate::record::MasterRecord;
use crate::slots::SegmentSlot;
use crate::{DATA_FORMAT, MissingClients, RecordBuffer, RestoreError, UnmountReason};
use mcctl_base::ClientId;
use mcctl_wire::types::ClientStatus;

const OK: ClientStatus = ClientStatus::OK;
const NEED_REMOUNT: ClientStatus = ClientStatus::NEED_REMOUNT;

fn ping(m: &mut Master, client: ClientId) -> ClientStatus {
    m.call().ping(client).expect("ping never fails").client_status
}

/// A master with a segment of `A` and an object "k" in it.
fn with_object() -> (Followed, u64) {
    let mut f = Followed::of(MIB);
    let replica = f.master.put("k", 100);
    (f, address(&replica))
}

#[test]
fn a_restored_object_is_found_once_its_owner_pings() {
    let (f, at) = with_object();
    let mut m = f.restart();
    assert_eq!((m.get("k"), m.exists("k"), m.has_object("k")), (Err(NOT_FOUND), false, false));
    assert_eq!(m.state.lease_replicas(m.now, b"k"), None);
    let mut keys = Vec::new();
    m.state.keys(0, 10, &mut |key| keys.push(key.to_vec()));
    assert!(keys.is_empty());
    assert_eq!(m.start(B, "k", 100), Err(EXISTS), "the object is kept");
    assert_eq!(m.remove("k", false), Err(LEASED));
    assert_eq!(m.start(B, "other", 100), Err(NO_SPACE), "an unconfirmed segment accepts no objects");
    assert_eq!(ping(&mut m, A), OK);
    assert_eq!(m.get("k").map(|replicas| address(&replicas[0])), Ok(at));
    assert!(m.start(B, "other", 100).is_ok());
    m.pass_ms(9_999);
    assert_eq!((ping(&mut m, A), m.has_object("k"), m.state.counters.unconfirmed_keys), (OK, true, 0));
}

#[test]
fn missing_clients_are_reported_once_and_then_their_return() {
    let (f, _) = with_object();
    let mut m = f.restart();
    let mut unconfirmed = Vec::new();
    m.state.view_segments(m.now, 0, 10, &mut |segment| unconfirmed.extend(segment.unconfirmed));
    assert_eq!((unconfirmed.len(), unconfirmed[0].replicas), (1, 1));
    m.state.view_heartbeats(m.now, 0, 10, &mut |heartbeat| panic!("{heartbeat:?}: no client has called"));
    let is_report =
        |effect: &StateEffect| matches!(effect, StateEffect::ClientsMissing(_) | StateEffect::NoClientMissing);
    let reports = |m: &mut Master| m.effects().into_iter().filter(is_report).collect::<Vec<_>>();
    m.pass_ms(2_900);
    assert_eq!(reports(&mut m), []);
    m.pass_ms(100);
    let expected = MissingClients {
        names: vec!["a:1".into()],
        segments: 1,
        replicas: 1,
        dropped_in: Duration::from_millis(7_000),
    };
    assert_eq!(reports(&mut m), [StateEffect::ClientsMissing(expected)]);
    m.pass_ms(2_000);
    assert_eq!(reports(&mut m), []);
    assert_eq!(ping(&mut m, A), OK);
    m.pass_ms(1_000);
    assert_eq!(reports(&mut m), [StateEffect::NoClientMissing]);
    assert_eq!(m.state.missing_clients(m.now), None);
}

#[test]
fn a_client_of_the_leader_before_keeps_the_age_of_its_last_call() {
    let (f, _) = with_object();
    let mut m = f.restart();
    m.pass_ms(5_000);
    m.state.wait_for_clients(m.now + Duration::from_secs(40));
    m.state.confirm_recent(m.now, A, m.now - Duration::from_secs(4));
    let heartbeats = |m: &Master| {
        let mut heartbeats = Vec::new();
        m.state.view_heartbeats(m.now, 0, 10, &mut |heartbeat| {
            heartbeats.push((heartbeat.client, heartbeat.age.as_secs(), heartbeat.expires_in.as_secs()));
        });
        heartbeats
    };
    assert_eq!(heartbeats(&m), [(A, 4, 40)]);
    m.pass_ms(3_000);
    assert_eq!(heartbeats(&m), [(A, 7, 37)]);
    assert_eq!(ping(&mut m, A), OK);
    assert_eq!(heartbeats(&m), [(A, 0, 10)]);
}

#[test]
fn clients_that_call_at_once_are_not_reported() {
    let (f, _) = with_object();
    let mut m = f.restart();
    assert_eq!(ping(&mut m, A), OK);
    m.pass_ms(5_000);
    assert_eq!(m.effects(), []);
}

#[test]
fn the_pings_of_other_clients_confirm_nothing() {
    let (mut f, _) = with_object();
    f.register(B, vec![segment(2, "b:1", MIB)]);
    let mut m = f.restart();
    assert_eq!((ping(&mut m, B), ping(&mut m, ClientId(9, 9))), (OK, NEED_REMOUNT));
    assert_eq!(m.get("k"), Err(NOT_FOUND));
}

#[test]
fn a_client_that_had_not_registered_must_remount() {
    let mut f = Followed::new();
    f.master.mount(A, segment(1, "a:1", MIB));
    f.master.put("k", 100);
    let mut m = f.restart();
    assert_eq!((ping(&mut m, A), m.has_object("k")), (NEED_REMOUNT, false));
    assert_eq!(m.call().remount_segment(vec![segment(1, "a:1", MIB)], A), Ok(()));
    assert_eq!((ping(&mut m, A), m.has_object("k")), (OK, true));
}

#[test]
fn a_superseded_client_must_remount_after_a_restart_too() {
    let mut f = Followed::of(MIB);
    f.register(A, vec![segment(3, "c:1", MIB)]);
    f.master.mount(B, segment(2, "a:1", MIB));
    f.follow();
    assert_eq!(ping(&mut f.restart(), A), NEED_REMOUNT);
}

#[test]
fn a_remount_confirms_only_the_equal_segments_that_it_lists() {
    let mut f = Followed::of(MIB);
    for (nth, other) in [(2, "b:1"), (3, "c:1")] {
        f.master.mount(A, segment(nth, other, MIB));
    }
    for key in keys(0..3) {
        f.master.put_with(&key, 100, copies(1));
    }
    let on = |m: &mut Master, name: &str| {
        let mut on = |key: &String| m.get(key).is_ok_and(|replicas| endpoint(&replicas[0]) == name);
        keys(0..3).iter().filter(|key| on(key)).count() as u64
    };
    let before = ["a:1", "b:1", "c:1"].map(|name| on(&mut f.master, name));
    let mut m = f.restart();
    let moved = Segment { base: 1 << 50, ..segment(2, "b:1", MIB) };
    assert_eq!(m.call().remount_segment(vec![segment(1, "a:1", MIB), moved.clone()], A), Ok(()));
    assert_eq!(["a:1", "b:1", "c:1"].map(|name| on(&mut m, name)), [before[0], 0, 0]);
    assert_eq!(m.call().remount_segment(vec![moved], B), Err(BAD), "the id belongs to another client now");
    m.pass_ms(9_999);
    assert_eq!(ping(&mut m, A), OK, "the ping does not confirm the third segment");
    assert_eq!(on(&mut m, "c:1"), 0);
    m.pass_ms(1);
    let dropped = m.effects().into_iter().filter_map(|effect| match effect {
        StateEffect::Unmounted { segment, reason: UnmountReason::Unconfirmed, .. } => Some(segment),
        _ => None,
    });
    assert_eq!(dropped.collect::<Vec<_>>(), [SegmentId(3, 3)]);
    assert_eq!((m.state.gauges().keys, m.state.counters.unconfirmed_keys), (before[0], before[1] + before[2]));
    assert_eq!(m.state.counters.lost_replicas, before[1] + before[2]);
}

#[test]
fn mounting_a_segment_again_confirms_it_alone() {
    let mut f = Followed::of(MIB);
    f.master.put("k", 100);
    f.register(B, vec![segment(2, "b:1", MIB)]);
    let mut m = f.restart();
    m.mount(A, segment(1, "a:1", MIB));
    assert!(m.get("k").is_ok());
    m.mount(ClientId(3, 3), segment(2, "b:1", MIB));
    assert_eq!(ping(&mut m, B), NEED_REMOUNT, "another client has mounted a segment with this id");
}

#[test]
fn unconfirmed_segments_are_dropped_after_the_client_ttl_and_counted() {
    let mut f = Followed::of(MIB);
    for key in keys(0..7) {
        f.master.put(&key, 100);
    }
    let mut m = f.restart();
    m.pass_ms(9_999);
    let effects = m.effects();
    assert!(matches!(effects[..], [StateEffect::ClientsMissing(_)]), "{effects:?}");
    assert_eq!(m.state.gauges().keys, 7);
    m.pass_ms(1);
    assert_eq!((m.state.gauges().keys, m.state.counters.unconfirmed_keys), (0, 7));
    let is_expired = |effect: &StateEffect| matches!(effect, StateEffect::ClientExpired { client: A, segments: 1, .. });
    assert!(m.effects().iter().any(is_expired));
    assert_eq!((m.state.gauges().capacity_bytes, m.state.gauges().clients), (0, 0));
    assert_eq!(ping(&mut m, A), NEED_REMOUNT);
}

#[test]
fn a_stall_of_the_new_master_extends_the_time_to_confirm() {
    let (f, _) = with_object();
    let mut m = f.restart();
    m.state.extend_client_deadlines(Duration::from_secs(60));
    m.pass_ms(69_999);
    assert_eq!((ping(&mut m, A), m.has_object("k")), (OK, true));
}

#[test]
fn a_restarted_node_replaces_its_unconfirmed_segment() {
    let (f, _) = with_object();
    let mut m = f.restart();
    m.mount(B, segment(2, "a:1", MIB));
    m.settle();
    assert_eq!((m.get("k"), m.state.counters.unconfirmed_keys), (Err(NOT_FOUND), 1));
    assert!(m.start(B, "k", 100).is_ok());
}

#[test]
fn restored_objects_are_leased_for_one_lease() {
    let mut f = Followed::of(10 * MIB);
    for key in keys(0..9) {
        f.master.put(&key, MIB);
    }
    f.master.put_with("member", MIB / 2, grouped("g"));
    let mut m = f.restart();
    assert_eq!(ping(&mut m, A), OK);
    m.start_with(A, "new", 1_000, grouped("g")).expect("room");
    assert_eq!(m.end(A, "new"), Ok(()));
    m.pass_ms(9_999);
    assert_eq!((ping(&mut m, A), m.start(A, "large", MIB)), (OK, Err(NO_SPACE)));
    m.settle();
    assert_eq!(m.state.counters.evicted_keys, 0, "an object of the same group is not evicted either");
    assert_eq!((m.remove("key-0", false), m.remove("member", false)), (Err(LEASED), Err(LEASED)));
    m.pass_ms(1);
    assert_eq!((ping(&mut m, A), m.remove("key-8", false)), (OK, Ok(())));
    m.pass_ms(10);
    assert!(m.state.counters.evicted_keys > 0);
}

#[test]
fn restored_objects_are_leased_for_the_longest_earlier_lease() {
    let mut f = Followed::with(|policy| policy.lease_ttl = Duration::from_secs(60));
    f.register(A, vec![segment(1, "a:1", MIB)]);
    f.master.put("k", 100);
    let mut m = f.restart_with(|policy| policy.lease_ttl = Duration::from_secs(1));
    assert_eq!(ping(&mut m, A), OK);
    m.state.extend_client_deadlines(Duration::from_secs(100));
    m.pass_ms(59_999);
    assert_eq!(m.remove("k", false), Err(LEASED));
    m.pass_ms(1);
    assert_eq!(m.remove("k", false), Ok(()));
    let lease_ms = |m: &Master| match m.state.process_record(m.now) {
        MasterRecord::ProcessTerms { lease_ms, .. } => lease_ms,
        other => panic!("{other:?}"),
    };
    assert_eq!(lease_ms(&m), 1_000, "the earlier leases have ended");
    m.now = Mono::from_ms(50);
    assert_eq!(lease_ms(&m), 60_000);
}

#[test]
fn restored_objects_are_evicted_in_the_order_of_their_last_use() {
    let mut f = Followed::of(10 * MIB);
    for key in keys(0..9) {
        f.master.put(&key, MIB);
        f.master.pass_ms(1);
        f.follow();
    }
    let mut m = f.restart();
    for _ in 0..2 {
        ping(&mut m, A);
        m.pass_ms(9_000);
    }
    m.start(A, "large", 2 * MIB).expect_err("full");
    m.settle();
    let left: Vec<bool> = keys(0..9).iter().map(|key| m.has_object(key)).collect();
    assert_eq!((left[0], &left[1..]), (false, &[true; 8][..]));
}

#[test]
fn an_unfinished_write_continues_after_a_restart() {
    let mut f = Followed::of(MIB);
    f.master.start(A, "k", 100).expect("room");
    f.master.start(B, "other", 100).expect("room");
    let mut m = f.restart_after(Duration::from_secs(3_600), Duration::ZERO);
    assert_eq!((m.end(B, "k"), m.end(A, "k")), (Err(STRANGER), Ok(())));
    assert_eq!((m.get("k"), ping(&mut m, A)), (Err(NOT_FOUND), OK));
    assert!(m.get("k").is_ok());
    m.pass_ms(9_000);
    ping(&mut m, A);
    m.state.extend_client_deadlines(Duration::from_secs(60));
    m.pass_ms(21_000);
    assert_eq!(m.start(A, "other", 100), Err(EXISTS), "the write counts as started at the restart");
    m.pass_ms(1);
    assert!(m.start(A, "other", 100).is_ok());
}

#[test]
fn quarantines_grace_periods_and_pins_continue_after_a_restart() {
    let mut f = Followed::of(1_000);
    f.master.start(A, "k", 600).expect("room");
    f.master.upsert(A, "k", 300).expect("room");
    f.register(B, vec![segment(2, "b:1", MIB)]);
    assert_eq!(f.master.call().graceful_unmount_segment(SegmentId(2, 2), B, 5_000), Ok(()));
    let mut m = f.restart_after(Duration::from_secs(2), Duration::ZERO);
    assert_eq!((ping(&mut m, A), ping(&mut m, B)), (OK, OK));
    assert_eq!(m.start(B, "x", 600), Err(NO_SPACE), "neither quarantined nor closing memory is given out");
    m.pass_ms(2_999);
    assert!(m.state.has_segment_named(b"b:1"));
    m.pass_ms(1);
    assert!(!m.state.has_segment_named(b"b:1"));
    m.state.extend_client_deadlines(Duration::from_secs(700));
    m.pass_ms(596_999);
    assert_eq!(m.state.gauges().discarded_staging_bytes, 600, "a quarantine counts in full from the restart");
    m.pass_ms(1);
    assert_eq!(m.state.gauges().discarded_staging_bytes, 0);
}

#[test]
fn a_soft_pin_ends_at_the_same_time_after_a_restart() {
    let mut f = Followed::of(MIB);
    f.master.put_with("k", 100, pinned(Some(60_000)));
    let mut m = f.restart_after(Duration::from_secs(20), Duration::ZERO);
    assert_eq!((ping(&mut m, A), m.state.gauges().soft_pinned_keys), (OK, 1));
    m.state.extend_client_deadlines(Duration::from_secs(60));
    m.pass_ms(39_999);
    assert_eq!(m.state.gauges().soft_pinned_keys, 1);
    m.pass_ms(1);
    assert_eq!(m.state.gauges().soft_pinned_keys, 0);
}

#[test]
fn an_upsert_of_an_unconfirmed_object_gets_other_memory() {
    let (mut f, at) = with_object();
    f.register(B, vec![segment(2, "b:1", MIB)]);
    let mut m = f.restart();
    assert_eq!(ping(&mut m, B), OK);
    let replicas = m.upsert(B, "k", 100).expect("room");
    assert_ne!(address(&replicas[0]) >> 40, at >> 40);
    assert_eq!((m.end(B, "k"), m.get("k").is_ok()), (Ok(()), true));
    assert_eq!(m.state.gauges().discarded_staging_bytes, 100);
}

#[test]
fn one_confirmed_replica_is_enough_to_read() {
    let mut f = Followed::of(MIB);
    f.register(B, vec![segment(2, "b:1", MIB)]);
    f.master.put_with("k", 100, copies(2));
    let mut m = f.restart();
    assert_eq!(ping(&mut m, B), OK);
    let read = m.get("k").expect("one replica is confirmed");
    assert_eq!((read.len(), endpoint(&read[0])), (1, "b:1".to_owned()));
    assert_eq!(ping(&mut m, A), OK);
    assert_eq!(m.get("k").map(|replicas| replicas.len()), Ok(2));
}

#[test]
fn restored_segments_accept_no_objects_during_the_hold() {
    let (f, _) = with_object();
    let mut m = f.restart_after(Duration::from_secs(1), Duration::from_secs(15));
    assert_eq!(ping(&mut m, A), OK);
    assert!(m.get("k").is_ok(), "the hold does not delay reads");
    m.mount(B, segment(2, "b:1", MIB));
    assert_eq!(m.start(A, "new", 100).map(|replicas| endpoint(&replicas[0])), Ok("b:1".to_owned()));
    m.pass_ms(9_000);
    ping(&mut m, A);
    m.pass_ms(6_000);
    let names: Vec<String> = keys(0..40).iter().map(|key| endpoint(&m.put(key, 100))).collect();
    assert!(names.contains(&"a:1".to_owned()));
}

#[test]
fn memory_of_two_objects_is_damaged_data() {
    let mut f = Followed::of(1_000);
    f.master.put("k", 100);
    f.follow();
    let replica = ReplicaRecord { segment: SegmentSlot(0), ticket: 0, offset: 96, id: 70 };
    let discard = MasterRecord::DiscardSaved { replica, bytes: 10, remaining_ms: 5 };
    assert_eq!(f.standby.apply(f.master.now, Duration::ZERO, &discard), Ok(()));
    let error = f.standby.activate(f.master.now, Duration::ZERO).expect_err("overlap");
    let source = RangeError::Overlap { offset: 96, previous_end: 100 };
    assert_eq!(error, RestoreError::Ranges { segment: SegmentId(1, 1), source });
}

#[test]
fn freed_memory_waits_until_its_change_is_durable() {
    let mut m = Followed::of(1_000).master;
    m.put("small", 100);
    m.put("k", 600);
    assert_eq!(m.remove("k", false), Ok(()));
    assert_eq!(m.state.gauges().allocated_bytes, 100, "it counts as free");
    let sequence = m.state.close_change(|change| change.sequence).expect("changed");
    m.state.durable(sequence - 1);
    assert_eq!(m.start(A, "other", 600), Err(NO_SPACE));
    m.settle();
    assert_eq!(m.state.counters.eviction_attempts, 0, "evictions would not help");
    m.state.durable(sequence);
    assert!(m.start(A, "other", 600).is_ok());
}

#[test]
fn freed_memory_of_an_unmounted_segment_is_dropped() {
    let mut m = Followed::of(1_000).master;
    m.put("k", 600);
    assert_eq!(m.remove("k", false), Ok(()));
    assert_eq!(m.call().unmount_segment(SegmentId(1, 1), A), Ok(()));
    m.mount(A, segment(2, "a:2", 1_000));
    let sequence = m.state.close_change(|change| change.sequence).expect("changed");
    m.put("other", 600);
    m.state.durable(sequence);
    assert_eq!((m.state.gauges().allocated_bytes, m.has_object("other")), (600, true));
}

#[test]
fn a_discarded_restored_write_cannot_end() {
    let mut f = Followed::of(MIB);
    f.master.put("complete", 100);
    f.master.start(A, "k", 50).expect("room");
    f.follow();
    let sequence = f.log.len() as u64 + 1;
    let mut m = f.restart_after(Duration::from_secs(1), Duration::from_secs(600));
    m.state.start_recording(m.now, RecordBuffer::new(DATA_FORMAT, sequence), false);
    assert!(!m.state.discard_restored_writes(m.now));
    assert_eq!((ping(&mut m, A), m.has_object("complete")), (OK, true));
    // The client may have revoked that write and started another, and both records may be missing.
    assert_eq!(m.end(A, "k"), Err(NOT_FOUND));
    let gauges = m.state.gauges();
    assert_eq!((gauges.allocated_bytes, gauges.discarded_staging_bytes), (150, 50));
}
