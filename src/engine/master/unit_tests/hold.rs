//! Segments that are mounted again accept no new objects while transfers to their earlier objects
//! may be in progress.

use super::follow::Followed;
use super::*;
use crate::{DATA_FORMAT, SnapshotStep, StandbyState};
use mcctl_wire::types::ClientStatus;

/// The longer of the default lease and the default discard time.
const HOLD_MS: u64 = 30_000;

fn remount(m: &mut Master, client: ClientId, segments: &[Segment]) {
    assert_eq!(m.call().remount_segment(segments.to_vec(), client), Ok(()));
}

fn ping(m: &mut Master, client: ClientId) -> ClientStatus {
    m.call().ping(client).expect("never fails").client_status
}

/// Passes time in which the clients stay alive.
fn pass_alive(m: &mut Master, clients: &[ClientId], mut ms: u64) {
    while ms > 0 {
        let step = ms.min(1_000);
        m.pass_ms(step);
        for client in clients {
            ping(m, *client);
        }
        ms -= step;
    }
}

/// Asserts that a put succeeds in exactly `ms` milliseconds.
#[track_caller]
fn opens_after(m: &mut Master, clients: &[ClientId], ms: u64) {
    assert_eq!(m.start(A, "early", 10), Err(NO_SPACE));
    pass_alive(m, clients, ms - 1);
    assert_eq!(m.start(A, "early", 10), Err(NO_SPACE));
    pass_alive(m, clients, 1);
    m.put("late", 10);
}

#[test]
fn a_master_without_records_holds_the_segments_that_come_back() {
    // A writer or a reader of the master before may still use the memory.
    let mut m = Master::new();
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    remount(&mut m, A, &[segment(1, "a:1", MIB), segment(2, "a:1", MIB)]);
    assert_eq!((ping(&mut m, A), m.state.gauges().capacity_bytes), (ClientStatus::OK, 2 * MIB));
    let held = |effect: &StateEffect| match effect {
        StateEffect::Mounted { held_for, .. } => Some(*held_for),
        _ => None,
    };
    assert_eq!(m.effects().iter().filter_map(held).collect::<Vec<_>>(), [Duration::from_millis(HOLD_MS); 2]);
    opens_after(&mut m, &[A], HOLD_MS);
    assert_eq!(m.state.counters.eviction_attempts, 0, "evictions would not help");
}

#[test]
fn the_segment_of_an_expired_client_is_held_when_it_returns() {
    let mut m = Master::of(MIB);
    remount(&mut m, A, &[segment(1, "a:1", MIB)]);
    m.start(A, "k", 100).expect("room");
    m.pass_ms(10_000);
    assert_eq!((ping(&mut m, A), m.state.gauges().clients), (ClientStatus::NEED_REMOUNT, 0));
    remount(&mut m, A, &[segment(1, "a:1", MIB)]);
    assert_eq!(m.end(A, "k"), Err(NOT_FOUND), "the writer may still write, but its put does not end");
    opens_after(&mut m, &[A], HOLD_MS);
}

#[test]
fn the_admin_view_shows_the_time_left_of_a_hold() {
    let mut m = Master::new();
    remount(&mut m, A, &[segment(1, "a:1", MIB)]);
    m.mount(B, segment(2, "b:1", MIB));
    remount(&mut m, B, &[segment(2, "b:1", MIB)]);
    pass_alive(&mut m, &[A, B], 7_000);
    let holds = |m: &Master| {
        let mut holds = Vec::new();
        m.state.view_segments(m.now, 0, 10, &mut |segment| holds.push((segment.id, segment.held_for)));
        holds
    };
    let left = Some(Duration::from_millis(HOLD_MS - 7_000));
    assert_eq!(holds(&m), [(SegmentId(1, 1), left), (SegmentId(2, 2), None)]);
    pass_alive(&mut m, &[A, B], HOLD_MS - 7_000);
    assert_eq!(holds(&m).iter().filter(|(_, held)| held.is_some()).count(), 0);
}

#[test]
fn a_superseded_segment_is_held_when_it_returns() {
    let mut m = Master::of(MIB);
    remount(&mut m, A, &[segment(1, "a:1", MIB)]);
    m.mount(B, segment(2, "a:1", MIB));
    remount(&mut m, B, &[segment(2, "a:1", MIB)]);
    remount(&mut m, A, &[segment(1, "a:1", MIB)]);
    assert_eq!(m.call().unmount_segment(SegmentId(2, 2), B), Ok(()));
    opens_after(&mut m, &[A, B], HOLD_MS);
}

#[test]
fn a_new_process_is_not_held() {
    let mut m = Master::new();
    m.mount(A, segment(1, "a:1", MIB));
    assert_eq!(ping(&mut m, A), ClientStatus::NEED_REMOUNT);
    m.put("before", 10);
    remount(&mut m, A, &[segment(1, "a:1", MIB)]);
    m.put("after", 10);
    m.mount(A, segment(2, "a:1", MIB));
    assert_eq!(m.call().unmount_segment(SegmentId(1, 1), A), Ok(()));
    m.put("on a later segment", 10);
}

#[test]
fn a_hold_does_not_close_the_other_segments() {
    let mut m = Master::of(MIB);
    remount(&mut m, B, &[segment(2, "b:1", MIB)]);
    for key in keys(0..20) {
        assert_eq!(endpoint(&m.put(&key, 10)), "a:1");
    }
    assert_eq!(m.start(A, "large", 2 * MIB), Err(NO_SPACE));
    m.settle();
    assert_eq!(m.state.counters.eviction_attempts, 1, "the open segment may be full");
}

#[test]
fn a_hold_lasts_at_least_one_lease() {
    let mut m = Master::with(|policy| policy.lease_ttl = Duration::from_secs(60));
    remount(&mut m, A, &[segment(1, "a:1", MIB)]);
    opens_after(&mut m, &[A], 60_000);
    let mut m = Master::with(|policy| {
        policy.lease_ttl = Duration::ZERO;
        policy.put_discard_after = Duration::ZERO;
    });
    remount(&mut m, A, &[segment(1, "a:1", MIB)]);
    m.put("at once", 10);
}

#[test]
fn leases_of_an_earlier_process_lengthen_a_hold() {
    let mut f = Followed::with(|policy| policy.lease_ttl = Duration::from_secs(60));
    f.register(A, vec![segment(1, "a:1", MIB)]);
    let mut m = f.restart_with(|policy| policy.lease_ttl = Duration::from_secs(1));
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    m.pass_ms(10_000);
    remount(&mut m, A, &[segment(1, "a:1", MIB)]);
    opens_after(&mut m, &[A], 60_000);
}

#[test]
fn a_confirmed_segment_is_not_held_and_a_changed_one_is() {
    let mut f = Followed::new();
    f.master.mount(A, segment(1, "a:1", MIB));
    f.master.mount(A, segment(2, "a:1", MIB));
    f.follow();
    let mut m = f.restart();
    let changed = Segment { base: 7 << 40, ..segment(2, "a:1", MIB) };
    remount(&mut m, A, &[segment(1, "a:1", MIB), changed]);
    for key in keys(0..20) {
        assert_eq!(address(&m.put(&key, 10)) >> 40, 1);
    }
}

#[test]
fn a_held_segment_can_be_unmounted() {
    let mut m = Master::new();
    remount(&mut m, A, &[segment(1, "a:1", MIB), segment(2, "a:1", MIB)]);
    assert_eq!(m.call().graceful_unmount_segment(SegmentId(1, 1), A, 60_000), Ok(()));
    assert_eq!(m.call().unmount_segment(SegmentId(2, 2), A), Ok(()));
    pass_alive(&mut m, &[A], HOLD_MS);
    assert_eq!(m.start(A, "k", 10), Err(NO_SPACE));
    assert!(m.state.holds.is_empty());
    m.mount(A, segment(2, "a:1", MIB));
    m.put("k", 10);
}

#[test]
fn many_holds_end_in_slices() {
    let mut m = Master::new();
    let all: Vec<Segment> = (1..=100).map(|id| segment(id, "a:1", MIB)).collect();
    remount(&mut m, A, &all);
    m.state.extend_client_deadlines(Duration::from_secs(60));
    m.now = m.now + Duration::from_millis(HOLD_MS);
    assert!(m.settle() >= 3);
    let bases: std::collections::BTreeSet<u64> = keys(0..2_000).iter().map(|k| address(&m.put(k, 10)) >> 40).collect();
    assert_eq!(bases.len(), 100);
}

/// A master that holds a segment.
fn holding() -> Followed {
    let mut f = Followed::new();
    remount(&mut f.master, A, &[segment(1, "a:1", MIB)]);
    f.follow();
    f
}

#[test]
fn a_hold_counts_in_full_after_a_restart() {
    let mut f = holding();
    pass_alive(&mut f.master, &[A], HOLD_MS - 1);
    let mut m = f.restart();
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    opens_after(&mut m, &[A], HOLD_MS);
}

#[test]
fn a_hold_that_has_ended_is_not_repeated_after_a_restart() {
    let mut f = holding();
    pass_alive(&mut f.master, &[A], HOLD_MS);
    f.master.put("k", 10);
    let mut m = f.restart();
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    m.put("new", 10);
}

#[test]
fn a_snapshot_contains_holds() {
    let mut f = holding();
    f.master.state.begin_snapshot(f.master.now, DATA_FORMAT).expect("no snapshot is in progress");
    let mut standby = StandbyState::new(f.master.state.policy().clone());
    loop {
        match f.master.state.snapshot_slice().expect("in progress") {
            SnapshotStep::More => {}
            SnapshotStep::Chunk(chunk) => drop(standby.apply_payload(f.master.now, Duration::ZERO, &chunk)),
            SnapshotStep::Done(summary) => break assert_eq!(standby.digest(), summary.digest),
        }
    }
    let (state, _) = standby.activate(f.master.now, Duration::ZERO).expect("valid");
    let mut m = Master { state, now: f.master.now, effects: Effects::default() };
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    opens_after(&mut m, &[A], HOLD_MS);
}

#[test]
fn a_hold_ends_no_earlier_than_that_of_all_restored_segments() {
    let f = holding();
    let mut m = f.restart_after(Duration::ZERO, Duration::from_secs(40));
    assert_eq!(ping(&mut m, A), ClientStatus::OK);
    opens_after(&mut m, &[A], 40_000);
}
