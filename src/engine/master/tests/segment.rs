use super::*;
use crate::engine::master::Departure;
use crate::engine::master::standstill::Standstills;
use crate::engine::wire::types::{ClientStatus, SegmentStatus};

fn ping(m: &mut Master, client: ClientId) -> ClientStatus {
    m.call().ping(client).expect("always answers").client_status
}

fn remount(m: &mut Master, client: ClientId, segments: &[Segment]) -> Expected<()> {
    m.call().remount_segment(segments.to_vec(), client)
}

#[test]
fn a_client_is_told_to_remount_until_it_has() {
    let mut m = Master::new();
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    let s = segment(1, "a:1", MIB);
    m.mount(A, s.clone());
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    assert_eq!(remount(&mut m, A, std::slice::from_ref(&s)), Ok(()));
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    assert_eq!(remount(&mut m, A, &[segment(9, "z:1", MIB)]), Ok(()), "said again, nothing is done");
    assert_eq!(m.call().query_segment_status("z:1".into()), Err(ErrorCode::SEGMENT_NOT_FOUND));
}

#[test]
fn a_mount_can_be_said_twice_but_not_make_no_sense() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    assert_eq!(m.call().mount_segment(segment(1, "a:1", MIB), A), Ok(()));
    assert!(m.is_there("k"));
    let bad = |change: fn(&mut Segment)| {
        let mut s = segment(5, "e:1", MIB);
        change(&mut s);
        s
    };
    // five of 2^62 bytes would be more than a total can hold
    let refused =
        [bad(|s| s.base = 0), bad(|s| s.size = 0), bad(|s| s.base = u64::MAX - 5), bad(|s| s.size = (1 << 45) + 1)];
    for s in refused {
        assert_eq!(m.call().mount_segment(s.clone(), A), Err(BAD), "{s:?}");
        assert_eq!(remount(&mut m, B, &[s]), Err(BAD));
    }
}

#[test]
fn a_remount_must_agree_with_what_is_mounted() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, B, &[segment(1, "a:1", MIB)]), Err(BAD), "another's");
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", 2 * MIB)]), Err(BAD), "another size");
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
}

#[test]
fn a_silent_client_is_gone_after_its_ttl_with_all_it_lent() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    m.put("k", 10);
    m.pass_ms(9_999);
    assert!(m.is_there("k"));
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    m.pass_ms(9_999);
    assert!(m.is_there("k"));
    m.pass_ms(1);
    assert!(!m.exists("k"));
    assert_eq!((m.get("k"), m.start(A, "new", 10).err()), (Err(NOT_FOUND), Some(NO_SPACE)));
    assert_eq!((m.state.gauges().keys, m.state.gauges().capacity_bytes, m.state.gauges().clients), (0, 0, 0));
    let effects = m.effects();
    assert!(effects.contains(&Effect::ClientExpired { client: A }));
    assert!(
        effects.iter().any(|e| matches!(e, Effect::Unmounted { reason: Departure::Expired, last_of_name: true, .. }))
    );
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    assert!(!m.exists("k"), "what was lost stays lost");
    assert_eq!(m.state.used_ratio(), 0.0);
}

#[test]
fn a_master_that_restarts_gets_its_segments_back_from_the_clients() {
    let mut m = Master::new();
    let segments = [segment(1, "a:1", MIB), segment(2, "a:1", MIB)];
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    assert_eq!(remount(&mut m, A, &segments), Ok(()));
    assert_eq!(m.state.gauges().capacity_bytes, 2 * MIB);
    m.put("k", 10);
}

#[test]
fn an_unmounted_segments_objects_are_gone_at_once_whoever_says_so() {
    let mut m = Master::of(MIB);
    m.mount(B, segment(2, "b:1", MIB));
    m.put_with("both", 10, copies(2));
    for key in keys(0..50) {
        m.put(&key, 10);
    }
    let on_a = keys(0..50).into_iter().filter(|key| endpoint(&m.get(key).expect("there")[0]) == "a:1").count();
    m.start(A, "writing", 10).expect("room");
    assert_eq!(m.call().unmount_segment(SegmentId(9, 9), A), Ok(()), "an unknown one is fine");
    assert_eq!(m.call().unmount_segment(SegmentId(1, 1), B), Ok(()));
    assert_eq!(m.count_there(keys(0..50)), 50 - on_a);
    let left = m.get("both").expect("a replica is left");
    assert_eq!(left.iter().map(endpoint).collect::<Vec<_>>(), ["b:1"]);
    m.settle();
    let writing = m.get("writing") == Err(NOT_READY);
    assert_eq!(m.state.gauges().keys as usize, 50 - on_a + 1 + usize::from(writing));
    assert_eq!(m.end(A, "writing").is_ok(), writing);
    assert_eq!(m.state.gauges().capacity_bytes, MIB);
}

#[test]
fn a_segment_that_leaves_gracefully_is_read_but_not_filled_until_its_time() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    m.mount(B, segment(2, "b:1", MIB));
    let id = SegmentId(1, 1);
    let mut leave = |id, client| m.call().graceful_unmount_segment(id, client, 5_000);
    assert_eq!(leave(id, ClientId(9, 9)), Err(ErrorCode::SEGMENT_NOT_FOUND), "who lends nothing");
    assert_eq!(leave(id, B), Err(BAD), "not its own");
    assert_eq!(leave(id, A), Ok(()));
    assert_eq!(leave(id, A), Ok(()));
    assert_eq!(m.call().query_segment_status_by_id(id), Ok(SegmentStatus::GRACEFULLY_UNMOUNTING));
    assert_eq!(m.call().mount_segment(segment(1, "a:1", MIB), A), Err(ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS));
    for i in 0..20 {
        assert_eq!(endpoint(&m.put(&format!("n{i}"), 10)), "b:1");
    }
    m.pass_ms(4_999);
    assert!(m.is_there("k"));
    m.pass_ms(1);
    assert!(!m.is_there("k"));
    assert_eq!(m.call().query_segment_status_by_id(id), Err(ErrorCode::SEGMENT_NOT_FOUND));
}

#[test]
fn a_graceful_leave_can_be_cut_short() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    assert_eq!(m.call().graceful_unmount_segment(SegmentId(1, 1), A, 60_000), Ok(()));
    assert_eq!(m.call().unmount_segment(SegmentId(1, 1), A), Ok(()));
    assert!(!m.is_there("k"));
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
fn the_hosts_of_clients_come_from_their_endpoints() {
    let mut m = Master::of(MIB);
    m.mount(A, segment(2, "a:2", MIB));
    m.mount(B, segment(3, "[::1]:5", MIB));
    let found = m.call().batch_query_ip(vec![A, ClientId(9, 9), B]).expect("always");
    let text: Vec<_> =
        found.0.iter().map(|(id, ips)| (*id, ips.iter().map(ToString::to_string).collect::<Vec<_>>())).collect();
    assert_eq!(text, [(A, vec!["a".to_owned()]), (B, vec!["::1".to_owned()])]);
}

#[test]
fn a_process_that_is_back_under_its_name_takes_over_at_once() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    m.put("k", 10);
    // Killed, and back with another client id and segment id, before its time to live was over.
    m.mount(B, segment(2, "a:1", MIB));
    assert!(!m.exists("k"), "its bytes died with the process");
    assert_eq!(m.state.gauges().capacity_bytes, MIB);
    let superseded = |e: &Effect| matches!(e, Effect::Unmounted { reason: Departure::Superseded { .. }, .. });
    assert!(m.effects().iter().any(superseded));
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    // The old client's end takes nothing of the new one's along.
    m.put("new", 10);
    for _ in 0..3 {
        ping(&mut m, B);
        m.pass_ms(5_000);
    }
    assert!(m.is_there("new"));
    assert_eq!(m.state.gauges().clients, 1);
}

#[test]
fn two_live_clients_of_one_name_end_up_side_by_side() {
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
fn one_client_may_lend_many_segments_under_one_name() {
    let mut m = Master::new();
    for id in 1..=5 {
        m.mount(A, segment(id, "a:1", MIB));
    }
    assert_eq!(m.state.gauges().capacity_bytes, 5 * MIB);
}

#[test]
fn an_address_range_belongs_to_the_segment_that_claimed_it_last() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    let overlapping = Segment { base: (1 << 40) + MIB - 1, ..segment(2, "a:1", MIB) };
    m.mount(A, overlapping);
    assert!(!m.is_there("k"));
    assert_eq!(m.state.gauges().capacity_bytes, MIB);
    let beside = Segment { base: (1 << 40) + 2 * MIB - 1, ..segment(3, "a:1", MIB) };
    m.mount(A, beside);
    assert_eq!(m.state.gauges().capacity_bytes, 2 * MIB);
    let elsewhere = Segment { base: 1 << 40, ..segment(4, "b:1", MIB) };
    m.mount(B, elsewhere);
    assert_eq!(m.state.gauges().capacity_bytes, 3 * MIB, "addresses of different processes do not meet");
}

#[test]
fn a_stale_replica_is_never_taken_for_one_of_a_later_segment() {
    let mut m = Master::of(MIB);
    for key in keys(0..5_000) {
        m.put(&key, 10);
    }
    m.state.sweep_left = 0;
    let mut waste = Effects::default();
    m.state.unmount(SegmentId(1, 1), &mut waste);
    m.state.sweep_left = 0;
    // Many records still point to the first slot; the next segments must get others.
    for id in 2..=4 {
        m.mount(A, segment(id, &format!("n{id}:1"), MIB));
    }
    assert_eq!(m.count_there(keys(0..5_000)), 0);
    assert!(keys(0..5_000).iter().all(|key| m.get(key) == Err(NOT_FOUND)));
    assert_eq!(m.state.gauges().keys, 0);
    assert_eq!(m.state.gauges().allocated_bytes, 0);
}

#[test]
fn a_lost_segments_records_are_swept_in_slices() {
    let mut m = Master::of(MIB);
    for key in keys(0..3_000) {
        m.put(&key, 10);
    }
    m.mount(B, segment(2, "b:1", MIB));
    m.pass_ms(10_000);
    let slices = 3_000 / 128;
    assert_eq!(m.state.gauges().keys, 0);
    for key in keys(0..3_000) {
        assert!(!m.is_there(&key));
    }
    let mut again = Master::of(MIB);
    for key in keys(0..3_000) {
        again.put(&key, 10);
    }
    again.now = again.now + Duration::from_secs(10);
    assert!(again.settle() >= slices, "{slices}");
}

#[test]
fn a_condemned_segments_slot_can_be_used_again_before_the_clockwork_comes() {
    let mut m = Master::new();
    for id in 1..=100 {
        m.mount(A, segment(id, "a:1", MIB));
    }
    m.now = m.now + Duration::from_secs(10);
    assert!(m.state.tick(m.now, m.now, &mut m.effects), "a hundred take more than a slice");
    for id in 1..=100 {
        m.call().unmount_segment(SegmentId(id, id), A).expect("always");
    }
    let again: Vec<Segment> = (1..=100).map(|id| segment(id, "a:1", MIB)).collect();
    assert_eq!(remount(&mut m, A, &again), Ok(()));
    m.settle();
    assert_eq!(m.state.gauges().capacity_bytes, 100 * MIB);
}

#[test]
fn a_clients_time_does_not_run_while_the_master_stands_still() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    m.put("k", 100);
    m.pass_ms(4_000);
    for _ in 0..3 {
        // stopped for a minute; whoever has the state next is told before anything is due
        m.now = m.now + Duration::from_secs(60);
        m.state.resume(Duration::from_secs(60));
        m.settle();
    }
    assert!(m.exists("k"));
    // six of its ten seconds are left
    m.pass_ms(5_999);
    assert!(m.exists("k"));
    m.pass_ms(1);
    assert!(!m.exists("k"));
}

#[test]
fn a_ping_after_a_standstill_counts_from_when_it_was_read() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    m.mount(B, segment(2, "b:1", MIB));
    m.now = m.now + Duration::from_secs(60);
    m.state.resume(Duration::from_secs(60));
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    m.pass_ms(10_000);
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT, "ten seconds, and not seventy");
    assert_eq!(m.state.gauges().clients, 0);
}

/// A master whose clockwork never gets the state before nothing has run for `late`; for how long does it keep a client that is gone?
fn kept_by_a_master_that_is_always_late(late: Duration) -> Duration {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    let (began, pause) = (m.now, Duration::from_millis(1));
    let mut standstills = Standstills::new(m.now, Duration::from_secs(10));
    while m.state.gauges().clients > 0 {
        standstills.expect(m.now + pause);
        m.now = m.now + pause + late;
        m.state.resume(standstills.look(m.now));
        m.settle();
        assert!(m.now.since(began) < Duration::from_secs(1_000), "for ever");
    }
    m.now.since(began)
}

#[test]
fn a_client_that_is_gone_is_found_out_by_a_master_that_is_late_for_ever() {
    let seconds = Duration::from_secs;
    for late in [99, 100, 150, 1_000, 2_249].map(Duration::from_millis) {
        let kept = kept_by_a_master_that_is_always_late(late);
        assert!((seconds(10)..=seconds(10) + late).contains(&kept), "{late:?}: {kept:?}");
    }
    for late in [3_000, 4_000, 4_500].map(Duration::from_millis) {
        let kept = kept_by_a_master_that_is_always_late(late);
        assert!((seconds(10)..=seconds(20) + late).contains(&kept), "{late:?}: {kept:?}");
    }
    // there it is five looks
    let kept = kept_by_a_master_that_is_always_late(seconds(60));
    assert!((seconds(300)..seconds(301)).contains(&kept), "{kept:?}");
}

#[test]
fn a_client_that_pings_between_standstills_lives() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    let mut standstills = Standstills::new(m.now, Duration::from_secs(10));
    for _ in 0..100 {
        m.pass_ms(999);
        standstills.look(m.now);
        standstills.expect(m.now);
        m.now = m.now + Duration::from_secs(60);
        m.state.resume(standstills.look(m.now));
        m.settle();
        assert_eq!(ping(&mut m, A), ClientStatus::OK);
    }
}

#[test]
fn no_client_expires_while_its_ping_may_lie_unread() {
    let mut m = Master::of(MIB);
    assert_eq!(remount(&mut m, A, &[segment(1, "a:1", MIB)]), Ok(()));
    let deadline = m.now + Duration::from_secs(10);
    m.now = m.now + Duration::from_secs(60);
    let unread = deadline - Duration::from_millis(1);
    assert!(!m.state.tick(m.now, unread, &mut m.effects));
    assert_eq!(m.state.gauges().clients, 1);
    assert!(m.state.next_wakeup(m.now, unread) > m.now, "the clockwork does not spin");
    assert_eq!(ping(&mut m, A), ClientStatus::OK, "the ping that lay unread counts");
    m.settle();
    assert_eq!(m.state.gauges().clients, 1);
    // once all calls before the deadline are answered, silence is silence
    m.now = m.now + Duration::from_secs(10);
    m.state.tick(m.now, m.now, &mut m.effects);
    assert_eq!(m.state.gauges().clients, 0);
}
