//! Applying records: every change of a master is repeated by its standby.

use super::follow::Followed;
use super::*;
use crate::ApplyError;
use crate::eviction::index::PendingPin;
use crate::object::ReplicaRecord;
use crate::record::{MasterRecord, ObjectContent, ReplicaList, SegmentContent};
use crate::slots::{ObjectSlot, SegmentSlot};
use mcctl_base::id::RECORDED_KEY_BYTES_MAX;
use mcctl_wire::types::SegmentStatus;

#[test]
fn puts_and_their_ends_are_repeated() {
    let mut f = Followed::of(MIB);
    f.register(B, vec![segment(2, "b:1", MIB)]);
    f.master.start_with(A, "k", 100, copies(2)).expect("room");
    f.follow();
    let checked = ObjectMeta { key: "k".into(), object_checksum: Some(77) };
    assert_eq!(f.master.call().put_end(A, checked, ReplicaType::ALL, T), Ok(()));
    f.follow();
    f.master.start_with(B, "pinned", 100, pinned(Some(500))).expect("room");
    f.master.start_with(B, "hard", 100, hard_pinned()).expect("room");
    f.master.start_with(B, "member", 100, grouped("g")).expect("room");
    f.follow();
    assert_eq!(f.master.end(B, "pinned"), Ok(()));
    assert_eq!(f.master.revoke(B, "hard"), Ok(()));
    f.follow();
    let at = f.standby.state.objects.find(f.standby.state.objects.hash(b"pinned")).expect("applied");
    assert_eq!(f.standby.state.objects[at].soft_pin(), Some(f.master.now + Duration::from_millis(500)));
    assert_eq!(f.standby.objects(), 3);
}

#[test]
fn removals_and_upserts_are_repeated() {
    let mut f = Followed::of(MIB);
    f.register(B, vec![segment(2, "b:1", MIB)]);
    for key in ["in-place", "resized", "removed", "cleared", "half"] {
        f.master.put_with(key, 100, copies(2));
    }
    f.follow();
    f.master.upsert(B, "in-place", 100).expect("in place");
    f.master.upsert(B, "resized", 200).expect("room");
    assert_eq!(f.master.remove("removed", false), Ok(()));
    let cleared = f.master.call().batch_replica_clear(vec!["cleared".into()], A, "".into(), T);
    assert_eq!(cleared.map(|keys| keys.len()), Ok(1));
    let half = f.master.call().batch_replica_clear(vec!["half".into()], A, "b:1".into(), T);
    assert_eq!(half.map(|keys| keys.len()), Ok(1));
    f.follow();
    assert_eq!((f.standby.objects(), f.standby.state.discards.bytes()), (3, 200));
    f.master.upsert(A, "in-place", 100).expect("displaces the write");
    f.follow();
    assert_eq!(f.standby.state.discards.bytes(), 400);
    f.master.state.extend_client_deadlines(Duration::from_secs(700));
    f.master.pass(Duration::from_secs(600));
    f.follow();
    assert_eq!((f.standby.state.discards.bytes(), f.master.state.discards.bytes()), (0, 0));
    assert_eq!(f.standby.objects(), 1, "unfinished writes were removed");
}

#[test]
fn evictions_are_repeated() {
    let mut f = Followed::of(100 * MIB);
    for key in keys(0..95) {
        f.master.put(&key, MIB);
    }
    f.follow();
    f.master.settle();
    f.follow();
    assert!(f.master.state.counters.evicted_keys > 0);
    assert_eq!(f.standby.objects(), f.master.state.gauges().keys);
}

#[test]
fn mounts_unmounts_and_expiries_are_repeated() {
    let mut f = Followed::of(MIB);
    f.register(B, vec![segment(2, "b:1", MIB), segment(3, "b:1", MIB)]);
    for key in keys(0..20) {
        f.master.put_with(&key, 100, copies(2));
    }
    f.follow();
    assert_eq!(f.master.call().graceful_unmount_segment(SegmentId(2, 2), B, 700), Ok(()));
    f.follow();
    assert_eq!(f.standby.state.grace.first().map(|grace| grace.0), Some(f.master.now + Duration::from_millis(700)));
    f.master.mount(ClientId(3, 3), segment(4, "a:1", MIB));
    f.follow();
    assert_eq!(f.standby.state.clients.get(A).map(|client| client.ok), Some(false), "superseded");
    f.master.pass_ms(700);
    f.follow();
    assert_eq!(f.master.call().unmount_segment(SegmentId(3, 3), B), Ok(()));
    f.follow();
    assert_eq!(f.standby.objects(), 0, "the segment of the last replicas was unmounted");
    f.master.pass_ms(20_000);
    f.follow();
    assert_eq!((f.standby.state.clients.len(), f.standby.state.segments.capacity()), (0, 0));
}

#[test]
fn expired_clients_segments_are_condemned_before_they_are_retired() {
    let mut f = Followed::of(MIB);
    f.master.put("k", 100);
    f.follow();
    f.master.state.expire(A, &mut f.master.effects);
    f.follow();
    let status = f.standby.state.segment_status_by_id(SegmentId(1, 1));
    assert_eq!(status, Some(SegmentStatus::UNMOUNTING));
    f.master.settle();
    f.follow();
    assert_eq!((f.standby.state.segment_status_by_id(SegmentId(1, 1)), f.standby.objects()), (None, 0));
}

#[test]
fn slots_are_reused_at_the_same_numbers() {
    let mut f = Followed::of(MIB);
    for key in keys(0..50) {
        f.master.put(&key, 10);
    }
    for key in keys(0..50).iter().step_by(3) {
        assert_eq!(f.master.remove(key, false), Ok(()));
    }
    for key in keys(100..110) {
        f.master.put(&key, 10);
    }
    f.follow();
    let slots = |state: &MasterState| {
        let slot = |key: &String| state.objects.find(state.objects.hash(key.as_bytes()));
        keys(0..110).iter().map(slot).collect::<Vec<_>>()
    };
    assert_eq!(slots(&f.standby.state), slots(&f.master.state));
}

#[test]
fn records_that_do_not_fit_the_state_are_refused() {
    let mut f = Followed::of(1_000);
    f.master.put("k", 100);
    f.start_and_follow("unfinished");
    let replica = ReplicaRecord { segment: SegmentSlot(0), ticket: 0, offset: 500, id: 9 };
    let beyond = ReplicaRecord { offset: 951, ..replica };
    let nowhere = ReplicaRecord { segment: SegmentSlot(1), ..replica };
    let started = |slot, key: &'static [u8], replica: &'static ReplicaRecord| {
        MasterRecord::ObjectStarted(ObjectContent {
            slot: ObjectSlot(slot),
            key,
            client: A,
            size: 50,
            replicas: ReplicaList::Records { first: replica, rest: &[] },
            hard_pin: false,
            group: None,
            pin_ms: None,
            pending: PendingPin::Keep,
        })
    };
    let [replica, beyond, nowhere]: [&'static ReplicaRecord; 3] =
        [replica, beyond, nowhere].map(|replica| &*Box::leak(Box::new(replica)));
    let valid = segment(7, "a:1", 10);
    let no_base = Segment { base: 0, ..valid.clone() };
    let mounted = |slot, segment| MasterRecord::SegmentMounted {
        slot: SegmentSlot(slot),
        client: A,
        segment: SegmentContent::of(segment),
    };
    let same_id = segment(1, "a:1", 10);
    let cases = [
        (started(0, b"new", replica), ApplyError::ObjectSlotInUse(0)),
        (started(3, b"new", replica), ApplyError::ObjectSlotTooHigh(3)),
        (started(2, b"k", replica), ApplyError::BadKey(2)),
        (started(2, b"", replica), ApplyError::BadKey(2)),
        (started(2, b"new", beyond), ApplyError::BadReplica { slot: 2, segment: 0 }),
        (started(2, b"new", nowhere), ApplyError::BadReplica { slot: 2, segment: 1 }),
        (MasterRecord::ObjectErased { slot: ObjectSlot(2) }, ApplyError::NoObject(2)),
        (MasterRecord::ObjectDiscarded { slot: ObjectSlot(9), remaining_ms: 1 }, ApplyError::NoObject(9)),
        (MasterRecord::ObjectCompleted { slot: ObjectSlot(0), checksum: None }, ApplyError::NotWriting(0)),
        (
            MasterRecord::ObjectRewritten { slot: ObjectSlot(1), client: A, pending: PendingPin::Keep },
            ApplyError::Writing(1),
        ),
        (
            MasterRecord::ReplicasDropped {
                slot: ObjectSlot(0),
                kept: ReplicaList::Records { first: replica, rest: &[] },
            },
            ApplyError::UnknownReplica(0),
        ),
        (MasterRecord::DiscardReleased { replica_id: 5 }, ApplyError::BadDiscard(5)),
        (MasterRecord::SegmentRetired { slot: SegmentSlot(1) }, ApplyError::NoSegment(1)),
        (MasterRecord::SegmentClosed { slot: SegmentSlot(1), remaining_ms: 1 }, ApplyError::NoSegment(1)),
        (mounted(0, &valid), ApplyError::BadSegment(0)),
        (mounted(2, &valid), ApplyError::BadSegment(2)),
        (mounted(1, &no_base), ApplyError::BadSegment(1)),
        (mounted(1, &same_id), ApplyError::BadSegment(1)),
        (MasterRecord::ClientExpired { client: B }, ApplyError::NoClient(B)),
        (
            MasterRecord::TableSizes { objects: 1, segments: 1, next_replica: 0 },
            ApplyError::BadSizes { objects: 1, segments: 1 },
        ),
    ];
    let digest = f.standby.digest();
    for (record, error) in cases {
        assert_eq!(f.standby.apply(f.master.now, Duration::ZERO, &record), Err(error), "{record:?}");
        assert_eq!(f.standby.digest(), digest, "{record:?} changed the state");
    }
}

/// The record of a new object with two replicas.
fn two_replicas<'a>(size: u64, replicas: &'a [ReplicaRecord; 2]) -> MasterRecord<'a> {
    two_replicas_of(b"k", size, replicas)
}

fn two_replicas_of<'a>(key: &'a [u8], size: u64, replicas: &'a [ReplicaRecord; 2]) -> MasterRecord<'a> {
    MasterRecord::ObjectStarted(ObjectContent {
        slot: ObjectSlot(0),
        key,
        client: A,
        size,
        replicas: ReplicaList::Records { first: &replicas[0], rest: &replicas[1..] },
        hard_pin: false,
        group: None,
        pin_ms: None,
        pending: PendingPin::Keep,
    })
}

#[test]
fn records_of_earlier_builds_may_have_longer_keys() {
    let mut f = Followed::of(1_000);
    let first = ReplicaRecord { segment: SegmentSlot(0), ticket: 0, offset: 0, id: 1 };
    let replicas = [first, ReplicaRecord { offset: 400, id: 2, ..first }];
    let key = vec![b'k'; RECORDED_KEY_BYTES_MAX + 1];
    let mut apply =
        |bytes| f.standby.apply(f.master.now, Duration::ZERO, &two_replicas_of(&key[..bytes], 1, &replicas));
    assert_eq!(apply(RECORDED_KEY_BYTES_MAX + 1), Err(ApplyError::BadKey(0)));
    assert_eq!(apply(RECORDED_KEY_BYTES_MAX), Ok(()));
    assert_eq!(f.standby.objects(), 1);
}

#[test]
fn the_replicas_of_an_object_must_fit_into_their_segment_together() {
    let mut f = Followed::of(1_000);
    let first = ReplicaRecord { segment: SegmentSlot(0), ticket: 0, offset: 0, id: 1 };
    let replicas = [first, ReplicaRecord { offset: 496, id: 2, ..first }];
    let mut apply = |size| f.standby.apply(f.master.now, Duration::ZERO, &two_replicas(size, &replicas));
    assert_eq!(apply(504), Err(ApplyError::BadReplica { slot: 0, segment: 0 }));
    assert_eq!(apply(496), Ok(()));
    assert_eq!(f.standby.state.segments.used(), 992);
}

#[test]
fn an_object_with_two_replicas_of_one_id_cannot_be_discarded() {
    let mut f = Followed::of(1_000);
    let first = ReplicaRecord { segment: SegmentSlot(0), ticket: 0, offset: 0, id: 1 };
    let replicas = [first, ReplicaRecord { offset: 400, ..first }];
    let discarded = MasterRecord::ObjectDiscarded { slot: ObjectSlot(0), remaining_ms: 1 };
    let mut apply = |record: &MasterRecord<'_>| f.standby.apply(f.master.now, Duration::ZERO, record);
    assert_eq!(apply(&two_replicas(100, &replicas)), Ok(()));
    assert_eq!(apply(&discarded), Err(ApplyError::BadDiscard(1)));
    assert_eq!((f.standby.objects(), f.standby.state.discards.bytes()), (1, 0));
}

#[test]
fn a_payload_reports_the_position_of_a_damaged_record() {
    let mut f = Followed::of(1_000);
    f.master.put("k", 100);
    let mut payload = f.master.state.close_change(|change| change.payload.to_vec()).expect("changed");
    payload.push(200);
    let error = f.standby.apply_payload(f.master.now, Duration::ZERO, &payload).expect_err("unknown record");
    assert!(matches!(error, ApplyError::Record(error) if error.position == payload.len() - 1), "{error}");
}

impl Followed {
    fn start_and_follow(&mut self, key: &str) {
        self.master.start(A, key, 10).expect("room");
        self.follow();
    }
}
