//! The writer of an object: who may end a write, how long the writer is known, and the checksum
//! that it sends.

use super::follow::Followed;
use super::*;
use crate::digest::object_digest;
use crate::ended_writes::EndedWrites;
use crate::record::buffer::RecordBuffer;
use crate::record::{MasterRecord, read_payload};
use crate::{ConnectionId, DataFormat, SnapshotStep, StandbyState, StateAccess};
use mcctl_wire::types::SliceLength;
use mcctl_wire::withdrawal::ReplicaWithdrawal;

/// Another id of the process with the id `A`.
const A2: ClientId = ClientId(1, 2);
const A3: ClientId = ClientId(1, 3);

impl Master {
    fn end_with(&mut self, client: ClientId, key: &str, object_checksum: Option<u64>) -> Expected<()> {
        let object = ObjectMeta { key: key.into(), object_checksum };
        self.call().put_end(client, object, ReplicaType::ALL, T)
    }

    fn checksum(&mut self, key: &str) -> Option<u64> {
        self.call().get_replica_list(key.into(), T).expect("complete").object_checksum
    }

    /// A call over this connection.
    fn call_over(&mut self, peer: &'static str) -> MasterCall<PeerAccess<'_>> {
        let access = DirectAccess { state: &mut self.state, now: self.now, effects: &mut self.effects };
        MasterCall(PeerAccess { access, peer })
    }

    /// The chunks of a snapshot, and the digest at its end.
    fn snapshot(&mut self, format: DataFormat) -> (Vec<Vec<u8>>, u64) {
        self.state.close_change(|_| ());
        self.state.begin_snapshot(self.now, format).expect("begins");
        let mut chunks = Vec::new();
        loop {
            match self.state.snapshot_slice().expect("in progress") {
                SnapshotStep::More => {}
                SnapshotStep::Chunk(chunk) => chunks.push(chunk),
                SnapshotStep::Done(summary) => return (chunks, summary.digest),
            }
        }
    }

    fn restored(&self, chunks: &[Vec<u8>]) -> StandbyState {
        let mut standby = StandbyState::new(self.state.policy().clone());
        for chunk in chunks {
            standby.apply_payload(self.now, Duration::ZERO, chunk).expect("applies");
        }
        standby
    }

    /// A master that begins with a copy.
    fn serving(&self, standby: StandbyState) -> Master {
        let (state, _) = standby.activate(self.now, Duration::ZERO).expect("the ranges are valid");
        let mut master = Master { state, now: self.now, effects: Effects::default() };
        assert_eq!(master.call().remount_segment(vec![segment(1, "a:1", MIB)], A), Ok(()));
        master
    }
}

struct PeerAccess<'a> {
    access: DirectAccess<'a>,
    peer: &'static str,
}

impl StateAccess for PeerAccess<'_> {
    fn with_state<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R {
        self.access.with_state(work)
    }

    fn connection(&self) -> ConnectionId {
        ConnectionId::of(Some(self.peer))
    }
}

#[test]
fn a_late_end_of_an_earlier_write_completes_no_later_one() {
    let mut m = Master::with(|policy| policy.client_ttl = Duration::from_secs(100));
    m.mount(A, segment(1, "a:1", MIB));
    m.start(A, "k", 100).expect("room");
    m.pass_ms(30_001);
    m.start(A2, "k", 100).expect("the first put is displaced");
    assert_eq!((m.end(A, "k"), m.get("k")), (Err(STRANGER), Err(NOT_READY)));
    assert_eq!(m.end(A2, "k"), Ok(()));
    assert_eq!(m.end(A, "k"), Err(STRANGER), "the object is that of the second put");
    m.pass_ms(10_000);
    assert_eq!(m.remove("k", false), Ok(()));
    m.upsert(A3, "k", 100).expect("room");
    assert_eq!((m.end(A2, "k"), m.get("k")), (Err(STRANGER), Err(NOT_READY)));
    assert_eq!(m.end(A3, "k"), Ok(()));
    // An upsert in place has the replica of the object that it replaces.
    m.upsert(A2, "k", 100).expect("in place");
    assert_eq!((m.end(A3, "k"), m.revoke(A3, "k"), m.get("k")), (Err(STRANGER), Err(STRANGER), Err(NOT_READY)));
    assert_eq!(m.end(A2, "k"), Ok(()));
    assert_eq!((m.end(A3, "k"), m.end(A2, "k")), (Err(STRANGER), Ok(())));
}

#[test]
fn a_repeated_end_is_refused_when_the_writer_is_no_longer_known() {
    let mut m = Master::of(MIB);
    m.put("k", 100);
    assert_eq!((m.end(A, "k"), m.revoke(A, "k"), m.revoke(B, "k")), (Ok(()), Err(NO_WRITE), Err(STRANGER)));
    m.state.ended = EndedWrites::default();
    assert_eq!((m.end(A, "k"), m.revoke(A, "k"), m.exists("k")), (Err(STRANGER), Err(STRANGER), true));
}

#[test]
fn the_writer_is_known_after_the_first_replica_is_lost() {
    let mut m = Master::of(MIB);
    m.mount(B, segment(2, "b:1", MIB));
    let names = m.start_with(A, "k", 100, copies(2)).expect("room").iter().map(endpoint).collect::<Vec<_>>();
    assert_eq!(m.end(A, "k"), Ok(()));
    let cleared = m.call().batch_replica_clear(vec!["k".into()], B, names[0].as_str().into(), T);
    assert_eq!(cleared.map(|keys| keys.len()), Ok(1));
    assert_eq!((m.end(A, "k"), m.end(B, "k")), (Ok(()), Err(STRANGER)));
}

#[test]
fn the_end_of_a_write_may_be_repeated_after_a_failover() {
    let mut f = Followed::of(MIB);
    f.master.put("k", 100);
    f.master.start(A2, "writing", 100).expect("room");
    f.follow();
    let mut standby = StandbyState::new(f.master.state.policy().clone());
    std::mem::swap(&mut standby, &mut f.standby);
    for mut m in [f.master.serving(standby), f.restart()] {
        assert_eq!((m.end(A, "k"), m.end(A2, "k")), (Ok(()), Err(STRANGER)));
        assert_eq!((m.end(A, "writing"), m.end(A2, "writing")), (Err(STRANGER), Ok(())));
    }
}

#[test]
fn a_writer_is_stored_only_while_it_writes() {
    let mut f = Followed::of(MIB);
    let m = &mut f.master;
    for (nth, key) in (1..).zip(["ended", "revoked", "removed", "displaced", "rewritten", "timed out"]) {
        m.start(ClientId(9, nth), key, 100).expect("room");
    }
    assert_eq!(m.state.owners.len(), 6);
    assert_eq!((m.end(ClientId(9, 1), "ended"), m.revoke(ClientId(9, 2), "revoked")), (Ok(()), Ok(())));
    assert_eq!((m.end(ClientId(9, 3), "removed"), m.remove("removed", false)), (Ok(()), Ok(())));
    m.upsert(A2, "displaced", 100).expect("room");
    assert_eq!((m.end(A2, "displaced"), m.end(ClientId(9, 5), "rewritten")), (Ok(()), Ok(())));
    m.upsert(A2, "rewritten", 100).expect("in place");
    assert_eq!(m.state.owners.len(), 2);
    assert_eq!(m.end(A2, "rewritten"), Ok(()));
    m.state.extend_client_deadlines(Duration::from_secs(700));
    m.pass(Duration::from_secs(600));
    assert_eq!((m.state.owners.len(), m.state.gauges().keys), (0, 3));
    f.follow();
    assert_eq!(f.standby.state.owners.len(), 0);
    let chunks = f.master.snapshot(DataFormat::V1).0;
    assert_eq!(f.master.restored(&chunks).state.owners.len(), 0);
}

#[test]
fn a_checksum_needs_no_memory_and_survives_the_log_and_snapshots() {
    for format in [DataFormat::V1, DataFormat::V2] {
        let mut f = Followed::of(MIB);
        for (key, checksum) in [("with", Some(77)), ("without", None), ("max", Some(u64::MAX))] {
            f.master.start(A, key, 100).expect("room");
            assert_eq!(f.master.end_with(A, key, checksum), Ok(()));
            let at = f.master.state.objects.find(f.master.state.objects.hash(key.as_bytes())).expect("exists");
            assert!(f.master.state.objects[at].extra.is_none());
        }
        f.follow();
        let (chunks, digest) = f.master.snapshot(format);
        let snapshot = f.master.restored(&chunks);
        assert_eq!((snapshot.digest(), snapshot.snapshot_digest()), (digest, digest));
        let read = f.master.serving(snapshot);
        for mut m in [read, f.restart()] {
            assert_eq!(m.call().remount_segment(vec![segment(1, "a:1", MIB)], A), Ok(()));
            assert_eq!(["with", "without", "max"].map(|key| m.checksum(key)), [Some(77), None, Some(u64::MAX)]);
        }
    }
}

#[test]
fn an_upsert_in_place_drops_the_checksum_when_it_starts() {
    let mut f = Followed::of(MIB);
    f.master.start(A, "k", 100).expect("room");
    assert_eq!(f.master.end_with(A, "k", Some(77)), Ok(()));
    f.follow();
    f.master.upsert(A2, "k", 100).expect("in place");
    f.follow();
    for state in [&f.master.state, &f.standby.state] {
        let at = state.objects.find(state.objects.hash(b"k")).expect("exists");
        assert_eq!(state.objects[at].eviction.checksum(), None);
    }
    assert_eq!(f.master.end(A2, "k"), Ok(()));
    f.follow();
    assert_eq!(f.master.checksum("k"), None);
    assert_eq!(
        (f.master.state.counters.completed_with_checksum, f.master.state.counters.completed_without_checksum),
        (1, 1)
    );
}

#[test]
fn a_damaged_object_is_withdrawn_only_as_read_and_keeps_leased_memory() {
    let mut m = Master::of(MIB);
    let id = m.start(A, "k", 100).expect("room")[0].id;
    assert_eq!(m.end_with(A, "k", Some(77)), Ok(()));
    let withdraw = |m: &mut Master, replica_id, checksum| {
        let damaged = ReplicaWithdrawal { replica_id, checksum }.to_string();
        m.call().batch_replica_clear(vec!["k".into()], B, damaged.as_str().into(), T).expect("a list").len()
    };
    assert!(m.exists("k"));
    assert_eq!([withdraw(&mut m, id + 1, 77), withdraw(&mut m, id, 78)], [0, 0], "another replica or value");
    m.upsert(A2, "k", 100).expect("in place");
    assert_eq!(withdraw(&mut m, id, 77), 0, "it is being written");
    assert_eq!(m.end_with(A2, "k", Some(78)), Ok(()));
    assert_eq!(withdraw(&mut m, id, 77), 0, "it was rewritten");
    assert!(m.exists("k"));
    assert_eq!(withdraw(&mut m, id, 78), 1);
    assert!(!m.exists("k") && m.state.gauges().allocated_bytes > 0, "a reader has a lease");
    assert_eq!(m.state.discards.bytes(), 100);

    let config = ReplicateConfig { replica_num: 2, ..ReplicateConfig::default() };
    let mut m = Master::of(MIB);
    m.mount(B, segment(2, "b:1", MIB));
    let ids: Vec<u64> = m.start_with(A, "k", 100, config).expect("room").iter().map(|replica| replica.id).collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(m.end_with(A, "k", Some(77)), Ok(()));
    assert_eq!(withdraw(&mut m, ids[0], 77), 0, "readers use the other replica");
    assert!(m.exists("k"));
}

/// Earlier releases saved the writers of complete objects, and the checksum of an object that is
/// written again.
#[test]
fn a_snapshot_of_an_earlier_release_has_the_digest_of_what_is_read() {
    for format in [DataFormat::V1, DataFormat::V2] {
        let mut f = Followed::of(MIB);
        for key in keys(0..20) {
            f.master.put(&key, 100);
        }
        f.master.upsert(A2, "key-3", 100).expect("in place");
        let (chunks, mut digest) = f.master.snapshot(format);
        let mut earlier = Vec::new();
        for chunk in &chunks {
            let mut buffer = RecordBuffer::new(format, 1);
            for record in read_payload(chunk).expect("known format") {
                let mut record = record.expect("valid");
                if let MasterRecord::ObjectSaved { content, writing, checksum, .. } = &mut record {
                    digest = digest.wrapping_sub(object_digest(content, *writing, *checksum));
                    if *writing {
                        *checksum = Some(5)
                    } else {
                        content.client = A
                    }
                    digest = digest.wrapping_add(object_digest(content, *writing, *checksum));
                }
                buffer.add(&record);
            }
            earlier.push(buffer.close(|change| change.payload.to_vec()).expect("not empty"));
        }
        let restored = f.master.restored(&earlier);
        assert_eq!(restored.snapshot_digest(), digest);
        assert_eq!(restored.digest(), f.master.state.digest());
        assert_eq!(restored.state.owners.len(), 1);
        let mut m = f.master.serving(restored);
        assert_eq!((m.end(A2, "key-3"), m.end(A, "key-4"), m.exists("key-4")), (Ok(()), Err(STRANGER), true));
    }
}

#[test]
fn ends_over_another_connection_than_a_repeated_start_are_counted() {
    let mut m = Master::of(MIB);
    let start = |m: &mut Master, peer, key: &'static str| {
        let started = m.call_over(peer).upsert_start(A, key.into(), SliceLength(100), ReplicateConfig::default(), T);
        started.expect("room");
    };
    let end = |m: &mut Master, peer, key: &'static str| {
        assert_eq!(m.call_over(peer).put_end(A, meta(key), ReplicaType::ALL, T), Ok(()));
        m.state.counters.suspicious_put_ends
    };
    let one = "10.0.0.1:1";
    let two = "10.0.0.1:2";
    start(&mut m, one, "once");
    assert_eq!(end(&mut m, two, "once"), 0, "the key was started once");
    for key in ["a", "b", "c"] {
        start(&mut m, one, key);
        start(&mut m, two, key);
    }
    assert_eq!(end(&mut m, two, "a"), 0, "the connection of the last start");
    assert_eq!((end(&mut m, one, "b"), end(&mut m, one, "b")), (1, 1));
    let is_report = |effect: &StateEffect| matches!(effect, StateEffect::SuspiciousEnd { client: A, .. });
    m.settle();
    assert_eq!(m.effects().iter().filter(|effect| is_report(effect)).count(), 1);
    assert_eq!(end(&mut m, one, "c"), 2);
    m.pass_ms(999);
    assert_eq!(m.effects().iter().filter(|effect| is_report(effect)).count(), 0);
    m.pass_ms(1);
    assert!(m.effects().contains(&StateEffect::SuspiciousEnd { client: A, total: 2 }));
}
