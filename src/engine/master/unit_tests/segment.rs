//! Segments and clients: mounts, unmounts, expiry and stalls.

use super::*;
use crate::UnmountReason;
use crate::stall::StallDetector;
use mcctl_wire::types::{ClientStatus, SegmentStatus};

fn ping(m: &mut Master, client: ClientId) -> ClientStatus {
    m.call().ping(client).expect("ping never fails").client_status
}

fn remount(m: &mut Master, client: ClientId, segments: &[Segment]) -> Expected<()> {
    m.call().remount_segment(segments.to_vec(), client)
}

#[test]
fn ping_requests_a_remount_until_the_client_has_remounted() {
    let mut m = Master::new();
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    let s = segment(1, "a:1", MIB);
    m.mount(A, s.clone());
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    assert_eq!(remount(&mut m, A, std::slice::from_ref(&s)), Ok(()));
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    assert_eq!(remount(&mut m, A, &[segment(9, "z:1", MIB)]), Ok(()), "a repetition has no effect");
    assert_eq!(m.call().query_segment_status("z:1".into()), Err(ErrorCode::SEGMENT_NOT_FOUND));
}

#[test]
fn a_mount_can_be_repeated_and_invalid_segments_are_refused() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    assert_eq!(m.call().mount_segment(segment(1, "a:1", MIB), A), Ok(()));
    assert!(m.has_object("k"));
    let bad = |change: fn(&mut Segment)| {
        let mut s = segment(5, "e:1", MIB);
        change(&mut s);
        s
    };
    // Five segments of 2^62 bytes would overflow the total capacity.
    let refused =
        [bad(|s| s.base = 0), bad(|s| s.size = 0), bad(|s| s.base = u64::MAX - 5), bad(|s| s.size = (1 << 45) + 1)];
    for s in refused {
        assert_eq!(m.call().mount_segment(s.clone(), A), Err(BAD), "{s:?}");
        assert_eq!(remount(&mut m, B, &[s]), Err(BAD));
    }
}

#[test]
fn a_remount_must_match_the_mounted_segment() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, B, &[segment(1, "a:1", MIB)]), Err(BAD), "another client's segment");
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", 2 * MIB)]), Err(BAD), "another size");
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
}

#[test]
fn a_client_expires_after_its_ttl_with_all_its_segments() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    m.put("k", 10);
    m.pass_ms(9_999);
    assert!(m.has_object("k"));
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    m.pass_ms(9_999);
    assert!(m.has_object("k"));
    m.pass_ms(1);
    assert!(!m.exists("k"));
    assert_eq!((m.get("k"), m.start(A, "new", 10).err()), (Err(NOT_FOUND), Some(NO_SPACE)));
    assert_eq!((m.state.gauges().keys, m.state.gauges().capacity_bytes, m.state.gauges().clients), (0, 0, 0));
    let effects = m.effects();
    let expired = StateEffect::ClientExpired { client: A, name: Some("a:1".into()), segments: 1 };
    assert!(effects.contains(&expired), "{effects:?}");
    assert!(effects.iter().any(|e| matches!(
        e,
        StateEffect::Unmounted { reason: UnmountReason::ClientExpired, last_of_name: true, replicas: 1, .. }
    )));
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    assert!(!m.exists("k"), "lost objects do not return");
    assert_eq!((m.state.used_ratio(), m.state.counters.lost_replicas), (0.0, 1));
}

#[test]
fn a_restarted_master_gets_its_segments_back_from_the_clients() {
    let mut m = Master::new();
    let segments = [segment(1, "a:1", MIB), segment(2, "a:1", MIB)];
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    assert_eq!(remount(&mut m, A, &segments), Ok(()));
    assert_eq!((ping(&mut m, A), m.state.gauges().capacity_bytes), (ClientStatus::OK, 2 * MIB));
}

#[test]
fn unmounting_a_segment_removes_its_objects_at_once() {
    let mut m = Master::of(MIB);
    m.mount(B, segment(2, "b:1", MIB));
    m.put_with("both", 10, copies(2));
    for key in keys(0..50) {
        m.put(&key, 10);
    }
    let on_a = keys(0..50).into_iter().filter(|key| endpoint(&m.get(key).expect("exists")[0]) == "a:1").count();
    m.start(A, "writing", 10).expect("room");
    assert_eq!(m.call().unmount_segment(SegmentId(9, 9), A), Ok(()), "an unknown id is accepted");
    assert_eq!(m.call().unmount_segment(SegmentId(1, 1), B), Ok(()));
    assert_eq!(m.count_existing(keys(0..50)), 50 - on_a);
    let left = m.get("both").expect("a replica remains");
    assert_eq!(left.iter().map(endpoint).collect::<Vec<_>>(), ["b:1"]);
    m.settle();
    let writing = m.get("writing") == Err(NOT_READY);
    assert_eq!(m.state.gauges().keys as usize, 50 - on_a + 1 + usize::from(writing));
    assert_eq!(m.end(A, "writing").is_ok(), writing);
    assert_eq!((m.state.gauges().capacity_bytes, m.state.counters.lost_replicas), (MIB, 0), "nothing was lost");
}

#[test]
fn a_gracefully_unmounting_segment_is_readable_but_closed() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    m.mount(B, segment(2, "b:1", MIB));
    let id = SegmentId(1, 1);
    let mut leave = |id, client| m.call().graceful_unmount_segment(id, client, 5_000);
    assert_eq!(leave(id, ClientId(9, 9)), Err(ErrorCode::SEGMENT_NOT_FOUND), "a client without segments");
    assert_eq!(leave(id, B), Err(BAD), "another client's segment");
    assert_eq!(leave(id, A), Ok(()));
    assert_eq!(leave(id, A), Ok(()));
    assert_eq!(m.call().query_segment_status_by_id(id), Ok(SegmentStatus::GRACEFULLY_UNMOUNTING));
    assert_eq!(m.call().mount_segment(segment(1, "a:1", MIB), A), Err(ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS));
    for i in 0..20 {
        assert_eq!(endpoint(&m.put(&format!("n{i}"), 10)), "b:1");
    }
    m.pass_ms(4_999);
    assert!(m.has_object("k"));
    m.pass_ms(1);
    assert!(!m.has_object("k"));
    assert_eq!(m.call().query_segment_status_by_id(id), Err(ErrorCode::SEGMENT_NOT_FOUND));
}

#[test]
fn unmount_ends_a_grace_period_early() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    assert_eq!(m.call().graceful_unmount_segment(SegmentId(1, 1), A, 60_000), Ok(()));
    assert_eq!(m.call().unmount_segment(SegmentId(1, 1), A), Ok(()));
    assert!(!m.has_object("k"));
    m.pass_ms(5_000);
}

#[test]
fn a_segments_status_is_found_by_name_and_by_id() {
    let mut m = Master::of(MIB);
    assert_eq!(m.call().query_segment_status("a:1".into()), Ok(SegmentStatus::OK));
    assert_eq!(m.call().query_segment_status("b:1".into()), Err(ErrorCode::SEGMENT_NOT_FOUND));
    assert_eq!(m.call().query_segment_status_by_id(SegmentId(1, 1)), Ok(SegmentStatus::OK));
    assert_eq!(m.call().query_segment_status_by_id(SegmentId(1, 2)), Err(ErrorCode::SEGMENT_NOT_FOUND));
}

#[test]
fn client_hosts_come_from_their_endpoints() {
    let mut m = Master::of(MIB);
    m.mount(A, segment(2, "a:2", MIB));
    m.mount(B, segment(3, "[::1]:5", MIB));
    let found = m.call().batch_query_ip(vec![A, ClientId(9, 9), B]).expect("never fails");
    let text: Vec<_> =
        found.0.iter().map(|(id, ips)| (*id, ips.iter().map(ToString::to_string).collect::<Vec<_>>())).collect();
    assert_eq!(text, [(A, vec!["a".to_owned()]), (B, vec!["::1".to_owned()])]);
}

#[test]
fn a_process_restarted_under_its_name_takes_over_at_once() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    m.put("k", 10);
    // The process was killed and came back with another client id and segment id before its time to
    // live had passed.
    m.mount(B, segment(2, "a:1", MIB));
    assert!(!m.exists("k"), "its memory was lost with the process");
    assert_eq!(m.state.gauges().capacity_bytes, MIB);
    let superseded =
        |e: &StateEffect| matches!(e, StateEffect::Unmounted { reason: UnmountReason::Superseded { .. }, .. });
    assert!(m.effects().iter().any(superseded));
    assert_eq!(m.state.counters.lost_replicas, 1);
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    // The expiry of the old client does not affect the new one.
    m.put("new", 10);
    for _ in 0..3 {
        ping(&mut m, B);
        m.pass_ms(5_000);
    }
    assert!(m.has_object("new"));
    assert_eq!(m.state.gauges().clients, 1);
}

#[test]
fn two_live_clients_with_one_name_coexist() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    m.mount(B, segment(2, "a:1", MIB));
    assert_eq!(remount(&mut m, B, &[segment(2, "a:1", MIB)]), Ok(()));
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    assert_eq!((ping(&mut m, A), ping(&mut m, B)), (ClientStatus::OK, ClientStatus::OK));
    assert_eq!(m.state.gauges().capacity_bytes, 2 * MIB);
}

#[test]
fn one_client_may_mount_many_segments_under_one_name() {
    let mut m = Master::new();
    for id in 1..=5 {
        m.mount(A, segment(id, "a:1", MIB));
    }
    assert_eq!(m.state.gauges().capacity_bytes, 5 * MIB);
}

#[test]
fn an_address_range_belongs_to_the_segment_mounted_last() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    let overlapping = Segment { base: (1 << 40) + MIB - 1, ..segment(2, "a:1", MIB) };
    m.mount(A, overlapping);
    assert!(!m.has_object("k"));
    assert_eq!(m.state.gauges().capacity_bytes, MIB);
    let beside = Segment { base: (1 << 40) + 2 * MIB - 1, ..segment(3, "a:1", MIB) };
    m.mount(A, beside);
    assert_eq!(m.state.gauges().capacity_bytes, 2 * MIB);
    let elsewhere = Segment { base: 1 << 40, ..segment(4, "b:1", MIB) };
    m.mount(B, elsewhere);
    assert_eq!(m.state.gauges().capacity_bytes, 3 * MIB, "address spaces of different processes do not conflict");
}

#[test]
fn a_stale_replica_is_never_mistaken_for_one_of_a_later_segment() {
    let mut m = Master::of(MIB);
    for key in keys(0..5_000) {
        m.put(&key, 10);
    }
    m.state.sweep_left = 0;
    let mut waste = Effects::default();
    m.state.unmount(SegmentId(1, 1), &mut waste);
    m.state.sweep_left = 0;
    // Many records still refer to the first slot, so the next segments must get other slots.
    for id in 2..=4 {
        m.mount(A, segment(id, &format!("n{id}:1"), MIB));
    }
    assert_eq!(m.count_existing(keys(0..5_000)), 0);
    assert!(keys(0..5_000).iter().all(|key| m.get(key) == Err(NOT_FOUND)));
    assert_eq!(m.state.gauges().keys, 0);
    assert_eq!(m.state.gauges().allocated_bytes, 0);
}

#[test]
fn the_records_of_a_lost_segment_are_swept_in_slices() {
    let mut m = Master::of(MIB);
    for key in keys(0..3_000) {
        m.put(&key, 10);
    }
    m.mount(B, segment(2, "b:1", MIB));
    m.pass_ms(10_000);
    let slices = 3_000 / 128;
    assert_eq!(m.state.gauges().keys, 0);
    for key in keys(0..3_000) {
        assert!(!m.has_object(&key));
    }
    let mut again = Master::of(MIB);
    for key in keys(0..3_000) {
        again.put(&key, 10);
    }
    again.now = again.now + Duration::from_secs(10);
    assert!(again.settle() >= slices, "{slices}");
}

#[test]
fn a_condemned_segments_slot_can_be_reused_before_the_next_tick() {
    let mut m = Master::new();
    for id in 1..=100 {
        m.mount(A, segment(id, "a:1", MIB));
    }
    m.now = m.now + Duration::from_secs(10);
    assert!(m.state.tick(m.now, m.now, &mut m.effects), "a hundred segments need more than one slice");
    for id in 1..=100 {
        m.call().unmount_segment(SegmentId(id, id), A).expect("never fails");
    }
    let again: Vec<Segment> = (1..=100).map(|id| segment(id, "a:1", MIB)).collect();
    assert_eq!(remount(&mut m, A, &again), Ok(()));
    m.settle();
    assert_eq!(m.state.gauges().capacity_bytes, 100 * MIB);
}

#[test]
fn a_stall_of_the_master_does_not_count_against_its_clients() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    m.put("k", 100);
    m.pass_ms(4_000);
    for _ in 0..3 {
        // The master was stopped for a minute. The first caller extends the deadlines before
        // anything expires.
        m.now = m.now + Duration::from_secs(60);
        m.state.extend_client_deadlines(Duration::from_secs(60));
        m.settle();
    }
    assert!(m.exists("k"));
    // Six of the client's ten seconds remain.
    m.pass_ms(5_999);
    assert!(m.exists("k"));
    m.pass_ms(1);
    assert!(!m.exists("k"));
}

#[test]
fn a_ping_after_a_stall_counts_from_when_it_was_read() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    m.mount(B, segment(2, "b:1", MIB));
    m.now = m.now + Duration::from_secs(60);
    m.state.extend_client_deadlines(Duration::from_secs(60));
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    m.pass_ms(10_000);
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT, "after ten seconds, not seventy");
    assert_eq!(m.state.gauges().clients, 0);
}

/// How long a master keeps a dead client if its ticker always locks the state `late` after the
/// announced time, and nothing runs in between.
fn kept_by_a_master_that_is_always_late(late: Duration) -> Duration {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    let began = m.now;
    let pause = Duration::from_millis(1);
    let mut stalls = StallDetector::new(m.now, Duration::from_secs(10));
    while m.state.gauges().clients > 0 {
        stalls.expect_by(m.now + pause);
        m.now = m.now + pause + late;
        m.state.extend_client_deadlines(stalls.observe(m.now));
        m.settle();
        assert!(m.now.since(began) < Duration::from_secs(1_000), "the client never expires");
    }
    m.now.since(began)
}

#[test]
fn a_master_that_is_always_late_still_detects_a_dead_client() {
    let seconds = Duration::from_secs;
    for late in [99, 100, 150, 1_000, 2_249].map(Duration::from_millis) {
        let kept = kept_by_a_master_that_is_always_late(late);
        assert!((seconds(10)..=seconds(10) + late).contains(&kept), "{late:?}: {kept:?}");
    }
    for late in [3_000, 4_000, 4_500].map(Duration::from_millis) {
        let kept = kept_by_a_master_that_is_always_late(late);
        assert!((seconds(10)..=seconds(20) + late).contains(&kept), "{late:?}: {kept:?}");
    }
    // With longer stalls, detection takes five ticks.
    let kept = kept_by_a_master_that_is_always_late(seconds(60));
    assert!((seconds(300)..seconds(301)).contains(&kept), "{kept:?}");
}

#[test]
fn a_client_that_pings_between_stalls_lives() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    let mut stalls = StallDetector::new(m.now, Duration::from_secs(10));
    for _ in 0..100 {
        m.pass_ms(999);
        stalls.observe(m.now);
        stalls.expect_by(m.now);
        m.now = m.now + Duration::from_secs(60);
        m.state.extend_client_deadlines(stalls.observe(m.now));
        m.settle();
        assert_eq!(ping(&mut m, A), ClientStatus::OK);
    }
}

#[test]
fn no_client_expires_while_its_ping_may_be_unread() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    let deadline = m.now + Duration::from_secs(10);
    m.now = m.now + Duration::from_secs(60);
    let unread = deadline - Duration::from_millis(1);
    assert!(!m.state.tick(m.now, unread, &mut m.effects));
    assert_eq!(m.state.gauges().clients, 1);
    assert!(m.state.next_wakeup(m.now, unread) > m.now, "the ticker does not spin");
    assert_eq!(ping(&mut m, A), ClientStatus::OK, "the unread ping counts");
    m.settle();
    assert_eq!(m.state.gauges().clients, 1);
    // Once all calls before the deadline have been answered, the client expires.
    m.now = m.now + Duration::from_secs(10);
    m.state.tick(m.now, m.now, &mut m.effects);
    assert_eq!(m.state.gauges().clients, 0);
}
