//! Snapshots: the state at the moment at which they begin, whatever changes while they are written.

use super::follow::Followed;
use super::*;
use crate::record::buffer::RecordBuffer;
use crate::{DATA_FORMAT, SnapshotStep, SnapshotSummary, StandbyState};

/// Continues the snapshot in progress until it is complete. `between` runs after each slice.
fn complete(m: &mut Master, mut between: impl FnMut(&mut Master)) -> (Vec<Vec<u8>>, SnapshotSummary) {
    let mut chunks = Vec::new();
    loop {
        match m.state.snapshot_slice().expect("in progress") {
            SnapshotStep::More => {}
            SnapshotStep::Chunk(chunk) => chunks.push(chunk),
            SnapshotStep::Done(summary) => return (chunks, summary),
        }
        between(m);
    }
}

fn restored(m: &Master, chunks: &[Vec<u8>]) -> StandbyState {
    let mut standby = StandbyState::new(m.state.policy().clone());
    for chunk in chunks {
        standby.apply_payload(m.now, Duration::ZERO, chunk).expect("applies");
    }
    standby
}

/// A master in which every kind of table entry and object exists.
fn full() -> Followed {
    let mut f = Followed::of(64 * MIB);
    f.register(B, vec![segment(2, "b:1", 64 * MIB), segment(3, "b:1", MIB)]);
    f.register(ClientId(3, 3), vec![segment(4, "c:1", MIB)]);
    for key in keys(0..2_000) {
        f.master.put(&key, 100);
    }
    for (key, config) in [("soft", pinned(None)), ("hard", hard_pinned()), ("member", grouped("g")), ("two", copies(2))]
    {
        f.master.put_with(key, 100, config);
    }
    let checked = ObjectMeta { key: "checked".into(), object_checksum: Some(5) };
    f.master.start(B, "checked", 100).expect("room");
    assert_eq!(f.master.call().put_end(B, checked, ReplicaType::ALL, T), Ok(()));
    f.master.start_with(A, "unfinished", 100, pinned(Some(70))).expect("room");
    f.master.upsert(A, "resized", 100).expect("room");
    f.master.upsert(A, "resized", 200).expect("room");
    for key in keys(0..2_000).iter().step_by(7) {
        assert_eq!(f.master.remove(key, false), Ok(()));
    }
    assert_eq!(f.master.call().graceful_unmount_segment(SegmentId(3, 3), B, 5_000), Ok(()));
    f.follow();
    f
}

#[test]
fn a_restored_snapshot_has_the_digest_of_the_state() {
    let mut f = full();
    let m = &mut f.master;
    // A client that has expired and come back, while its old segment waits to be retired.
    m.state.expire(ClientId(3, 3), &mut m.effects);
    m.mount(ClientId(3, 3), segment(5, "d:1", MIB));
    m.state.close_change(|_| ());
    let digest = m.state.digest();
    assert_eq!(m.state.begin_snapshot(m.now, DATA_FORMAT), Some(f.log.len() as u64 + 1));
    assert_eq!(m.state.begin_snapshot(m.now, DATA_FORMAT), None, "one at a time");
    let (chunks, summary) = complete(m, |_| {});
    assert_eq!(summary, SnapshotSummary { objects: m.state.gauges().keys, digest });
    assert_eq!(restored(m, &chunks).digest(), digest);
    assert!(m.state.snapshot_slice().is_none());
}

#[test]
fn a_snapshot_contains_no_change_made_after_it_began() {
    let mut f = full();
    let m = &mut f.master;
    let digest = m.state.digest();
    let objects = m.state.gauges().keys;
    m.state.begin_snapshot(m.now, DATA_FORMAT).expect("begins");
    // Each kind of change, to objects that the snapshot has not reached: the last slots.
    assert_eq!(m.end(A, "unfinished"), Ok(()));
    assert_eq!(m.revoke(A, "resized"), Ok(()));
    m.upsert(B, "two", 100).expect("in place");
    m.upsert(B, "checked", 300).expect("room");
    m.upsert(B, "checked", 400).expect("room");
    assert_eq!(m.remove("soft", true), Ok(()));
    let cleared = m.call().batch_replica_clear(vec!["two".into()], A, "b:1".into(), T);
    assert_eq!(cleared.map(|keys| keys.len()), Ok(0), "a write is in progress");
    let mut nth = 10_000;
    let (chunks, summary) = complete(m, |m| {
        for _ in 0..50 {
            nth += 1;
            m.put(&format!("new-{nth}"), 50);
            let _ = m.remove(&format!("key-{}", nth % 2_000), false);
        }
    });
    assert_eq!(summary, SnapshotSummary { objects, digest });
    assert_ne!(m.state.digest(), digest);
    assert_eq!(restored(m, &chunks).digest(), digest);
}

#[test]
fn quarantined_replicas_released_meanwhile_belong_to_the_snapshot() {
    let mut f = Followed::of(64 * MIB);
    for key in keys(0..700) {
        f.master.start(A, &key, 10).expect("room");
        f.master.upsert(A, &key, 20).expect("displaces the write");
    }
    f.follow();
    let digest = f.master.state.digest();
    let quarantined = f.master.state.gauges().discarded_staging_bytes;
    assert_eq!(quarantined, 7_000);
    f.master.state.extend_client_deadlines(Duration::from_secs(700));
    f.master.state.begin_snapshot(f.master.now, DATA_FORMAT).expect("begins");
    let (chunks, summary) = complete(&mut f.master, |m| m.pass(Duration::from_secs(600)));
    assert_eq!((summary.digest, f.master.state.gauges().discarded_staging_bytes), (digest, 0));
    let standby = restored(&f.master, &chunks);
    assert_eq!((standby.digest(), standby.state.gauges().discarded_staging_bytes), (digest, quarantined));
}

#[test]
fn a_chunk_is_at_most_256_kib() {
    let mut f = Followed::of(64 * MIB);
    for key in keys(0..8_000) {
        f.master.put(&key, 10);
    }
    f.follow();
    f.master.state.begin_snapshot(f.master.now, DATA_FORMAT).expect("begins");
    let (chunks, summary) = complete(&mut f.master, |_| {});
    assert_eq!(summary.objects, 8_000);
    assert!(chunks.len() > 1 && chunks.iter().all(|chunk| chunk.len() <= 256 << 10));
}

#[test]
fn no_snapshot_begins_while_a_change_is_open() {
    let mut m = Master::new();
    m.state.start_recording(m.now, RecordBuffer::new(DATA_FORMAT, 8), false);
    m.mount(A, segment(1, "a:1", MIB));
    assert_eq!(m.state.begin_snapshot(m.now, DATA_FORMAT), None);
    m.state.close_change(|_| ());
    assert_eq!(m.state.begin_snapshot(m.now, DATA_FORMAT), Some(8));
    m.state.cancel_snapshot();
    assert_eq!(m.state.begin_snapshot(m.now, DATA_FORMAT), Some(8));
}

#[test]
fn a_snapshot_of_a_standby_contains_no_change_applied_after_it_began() {
    let mut f = full();
    let digest = f.standby.digest();
    assert!(
        f.standby.begin_snapshot(f.master.now, DATA_FORMAT) && !f.standby.begin_snapshot(f.master.now, DATA_FORMAT)
    );
    let mut chunks = Vec::new();
    let mut nth = 0;
    let summary = loop {
        match f.standby.snapshot_slots(16).expect("in progress") {
            SnapshotStep::More => {}
            SnapshotStep::Chunk(chunk) => chunks.push(chunk),
            SnapshotStep::Done(summary) => break summary,
        }
        // Each kind of change, also to objects that the snapshot has not reached, and to slots that
        // become free.
        nth += 1;
        match nth {
            1 => assert_eq!(f.master.end(A, "unfinished"), Ok(())),
            2 => assert_eq!(f.master.revoke(A, "resized"), Ok(())),
            3 => drop(f.master.put("new", 100)),
            4 => assert_eq!(f.master.remove(&keys(1999..2000)[0], true), Ok(())),
            5 => drop(f.master.put("another", 100)),
            6 => f.master.upsert(A, &keys(1998..1999)[0], 100).map(drop).expect("room"),
            7 => assert_eq!(f.master.call().unmount_segment(SegmentId(2, 2), B), Ok(())),
            _ => {}
        }
        f.follow();
    };
    assert!(nth > 7 && f.standby.digest() != digest);
    assert_eq!(summary.digest, digest);
    assert_eq!(restored(&f.master, &chunks).digest(), digest);
}
