//! Both roles of a master make the same changes: random calls to a leader, whose standby has equal
//! tables after each change.

use std::collections::{BTreeMap, BTreeSet};

use super::follow::Followed;
use super::*;
use crate::eviction::index::PendingPin;
use crate::object::GroupMembership;
use crate::record::{MasterRecord, read_payload};
use crate::slots::{ObjectSlot, OwnerSlot, SegmentSlot};
use mcctl_base::Rng;
use mcctl_wire::types::SliceLength;

const SEEDS: u64 = 40;
const STEPS: usize = 400;
const KEYS: usize = 24;
const CLIENTS: [ClientId; 3] = [A, B, ClientId(3, 3)];
const SEGMENT_BYTES: u64 = 3_000;

/// A replica without its allocator ticket, which a standby does not have.
type ReplicaPlace = (SegmentSlot, u64, u64);

/// What both roles have of an object. Missing: the lease, and the end of the soft pin.
#[derive(Debug, PartialEq)]
struct ObjectRow {
    slot: ObjectSlot,
    key: Vec<u8>,
    owner: OwnerSlot,
    client: ClientId,
    size: u64,
    replicas: Vec<ReplicaPlace>,
    hard_pin: bool,
    group: Option<(Vec<u8>, GroupMembership)>,
    pending: PendingPin,
    checksum: Option<u64>,
    writing: bool,
}

/// What both roles have.
#[derive(Debug, PartialEq)]
struct SharedTables {
    objects: Vec<ObjectRow>,
    object_slots: u32,
    /// The replicas in quarantine, with their size.
    discards: Vec<(ReplicaPlace, u64)>,
    discarded_bytes: u64,
    /// Used bytes of each mounted segment.
    used: BTreeMap<u32, u64>,
    used_bytes: u64,
    next_replica: u64,
    evictable: u64,
    hard_pinned_bytes: u64,
    mem_replicas: u64,
}

impl SharedTables {
    fn of(state: &MasterState) -> SharedTables {
        let slots = (0..state.segments.slots()).map(SegmentSlot);
        let discards = state.discards.iter().map(|discarded| {
            let replica = &discarded.replica;
            ((replica.segment, replica.offset, replica.id), discarded.bytes)
        });
        SharedTables {
            objects: object_slots(state).map(|at| row(state, at)).collect(),
            object_slots: state.objects.slots(),
            discards: discards.collect(),
            discarded_bytes: state.discards.bytes(),
            used: slots.filter_map(|slot| Some((slot.0, state.segments.get(slot)?.used))).collect(),
            used_bytes: state.segments.used(),
            next_replica: state.segments.next_replica(),
            evictable: state.evictable,
            hard_pinned_bytes: state.hard_pinned_bytes,
            mem_replicas: state.mem_replicas,
        }
    }

    /// Checks that the sums are those of the objects and of the replicas in quarantine.
    #[track_caller]
    fn check_sums(&self) {
        let complete = || self.objects.iter().filter(|object| !object.writing);
        let replicas: usize = complete().map(|object| object.replicas.len()).sum();
        let evictable = complete().filter(|object| !object.hard_pin).count();
        assert_eq!((self.mem_replicas, self.evictable), (replicas as u64, evictable as u64));
        let pinned = complete().filter(|object| object.hard_pin);
        let pinned: u64 = pinned.map(|object| object.size * object.replicas.len() as u64).sum();
        assert_eq!(self.hard_pinned_bytes, pinned);
        let mut used: BTreeMap<u32, u64> = self.used.keys().map(|slot| (*slot, 0)).collect();
        let of_objects =
            self.objects.iter().flat_map(|object| object.replicas.iter().map(|place| (*place, object.size)));
        for ((segment, ..), bytes) in of_objects.chain(self.discards.iter().copied()) {
            // Objects may have replicas on removed segments.
            used.entry(segment.0).and_modify(|used| *used += bytes);
        }
        assert_eq!((self.used_bytes, &self.used), (used.values().sum(), &used));
    }
}

fn object_slots(state: &MasterState) -> impl Iterator<Item = ObjectSlot> {
    (0..state.objects.slots()).map(ObjectSlot).filter(|at| state.objects.get(*at).is_some())
}

fn row(state: &MasterState, at: ObjectSlot) -> ObjectRow {
    let object = &state.objects[at];
    let membership = object.extra.as_ref().and_then(|extra| extra.group);
    let image = state.object_image(at, Mono::ZERO);
    ObjectRow {
        slot: at,
        key: state.objects.key(at).to_vec(),
        owner: object.owner,
        client: image.content.client,
        size: object.size,
        replicas: object.replicas().map(|replica| (replica.segment, replica.offset, replica.id)).collect(),
        hard_pin: image.content.hard_pin,
        group: membership.map(|membership| (state.groups.name(membership.group).to_vec(), membership)),
        pending: image.content.pending,
        checksum: image.checksum,
        writing: image.writing,
    }
}

/// The ends of the soft pins and of the quarantines.
fn ends(state: &MasterState) -> Vec<Option<Mono>> {
    let pins = object_slots(state).map(|at| state.objects[at].soft_pin());
    pins.chain(state.discards.iter().map(|discarded| Some(discarded.until))).collect()
}

/// Checks that each period of the standby ends less than a millisecond after the leader's: its
/// record has rounded it up.
#[track_caller]
fn compare_ends(leader: &MasterState, standby: &MasterState) {
    for (leader, standby) in ends(leader).into_iter().zip(ends(standby)) {
        let Some((leader, standby)) = leader.zip(standby) else {
            assert_eq!(leader, standby);
            continue;
        };
        assert!(leader <= standby && standby < leader + Duration::from_millis(1), "{leader:?} {standby:?}");
    }
}

/// Checks that the standby has what a leader needs to serve: memory, lists and free slots.
#[track_caller]
fn compare_what_serves(leader: &MasterState, standby: &MasterState) {
    let memory = |state: &MasterState| -> Vec<_> {
        let slots = (0..state.segments.slots()).map(SegmentSlot);
        slots.filter_map(|slot| Some(state.segments.get(slot)?.memory_report())).collect()
    };
    assert_eq!(memory(leader), memory(standby));
    assert_eq!(leader.order.writes(), standby.order.writes());
    let free = |state: &MasterState| state.objects.free_slots().into_iter().collect::<BTreeSet<ObjectSlot>>();
    assert_eq!(free(leader), free(standby));
    assert_eq!(free(standby).len() as u32, standby.objects.slots() - standby.objects.len());
}

/// The kind of an object record.
fn kind(record: &MasterRecord<'_>) -> Option<&'static str> {
    match record {
        MasterRecord::ObjectStarted(_) => Some("started"),
        MasterRecord::ObjectRewritten { .. } => Some("rewritten"),
        MasterRecord::ObjectCompleted { .. } => Some("completed"),
        MasterRecord::ObjectErased { .. } => Some("erased"),
        MasterRecord::ObjectDiscarded { .. } => Some("discarded"),
        MasterRecord::ReplicasDropped { .. } => Some("replicas dropped"),
        MasterRecord::DiscardReleased { .. } => Some("discard released"),
        _ => None,
    }
}

/// A leader that gets random calls, and its standby.
struct RandomCalls {
    followed: Followed,
    rng: Rng,
}

impl RandomCalls {
    fn new(seed: u64) -> RandomCalls {
        let followed = Followed::with(|policy| {
            policy.client_ttl = Duration::from_secs(40);
            policy.put_discard_after = Duration::from_secs(5);
            policy.put_release_after = Duration::from_secs(15);
        });
        let mut calls = RandomCalls { followed, rng: Rng::new(seed) };
        (0..CLIENTS.len()).for_each(|nth| calls.register(nth));
        calls
    }

    /// Registers a client with its segment. Does nothing if the client is registered.
    fn register(&mut self, nth: usize) {
        let id = nth as u64 + 1;
        let segment = segment(id, &format!("host-{id}:1"), SEGMENT_BYTES);
        // The call is refused while the segment of the expired client waits to be retired.
        let _ = self.followed.master.call().remount_segment(vec![segment], CLIENTS[nth]);
    }

    fn client(&mut self) -> ClientId {
        CLIENTS[self.rng.below(CLIENTS.len())]
    }

    fn config(&mut self) -> ReplicateConfig {
        let config = match self.rng.below(8) {
            0 => pinned(None),
            1 => pinned(Some(self.rng.next() % 20_000)),
            2 => ReplicateConfig { soft_pin_action: SoftPinAction::DISABLE, ..ReplicateConfig::default() },
            3 => hard_pinned(),
            4 | 5 => grouped(["g", "h"][self.rng.below(2)]),
            _ => ReplicateConfig::default(),
        };
        ReplicateConfig { replica_num: 1 + self.rng.next() % 3, ..config }
    }

    /// Makes one call, or lets some time pass. Calls may be refused.
    fn step(&mut self) {
        let key = format!("key-{}", self.rng.below(KEYS));
        let key = key.as_str();
        let client = self.client();
        let bytes = 100 * (1 + self.rng.next() % 3);
        let config = self.config();
        let checksum = (self.rng.below(2) == 0).then(|| self.rng.next());
        let nth = self.rng.below(CLIENTS.len());
        let segment = SegmentId(nth as u64 + 1, nth as u64 + 1);
        let name = format!("host-{}:1", nth + 1);
        let pause = Duration::from_nanos(self.rng.next() % 4_000_000_000);
        let m = &mut self.followed.master;
        match self.rng.below(100) {
            0..25 => drop(m.call().put_start(client, key.into(), SliceLength(bytes), config, T)),
            25..35 => drop(m.call().upsert_start(client, key.into(), SliceLength(bytes), config, T)),
            35..65 => {
                // One of them is the writer.
                for client in CLIENTS {
                    let object = ObjectMeta { key: key.into(), object_checksum: checksum };
                    let _ = m.call().put_end(client, object, ReplicaType::ALL, T);
                }
            }
            65..68 => drop(m.revoke(client, key)),
            68..74 => drop(m.get(key)),
            74..78 => drop(m.remove(key, checksum.is_some())),
            78..80 => drop(m.call().batch_replica_clear(vec![key.into()], client, "".into(), T)),
            80..84 => drop(m.call().batch_replica_clear(vec![key.into()], client, name.as_str().into(), T)),
            84 => drop(m.call().unmount_segment(segment, CLIENTS[nth])),
            85 => drop(m.call().graceful_unmount_segment(segment, CLIENTS[nth], bytes)),
            86..89 => self.register(nth),
            89..92 => drop(m.call().ping(client)),
            _ => m.pass(pause),
        }
    }

    /// Applies the change to the standby, and compares both.
    #[track_caller]
    fn follow(&mut self) {
        self.followed.follow();
        let leader = &self.followed.master.state;
        let standby = &self.followed.standby.state;
        let tables = SharedTables::of(leader);
        assert_eq!(SharedTables::of(standby), tables);
        compare_ends(leader, standby);
        compare_what_serves(leader, standby);
        tables.check_sums();
    }
}

#[test]
fn a_standby_has_the_tables_of_a_leader_after_each_change() {
    let mut kinds = BTreeSet::new();
    let mut evicted_keys = 0;
    for seed in 0..SEEDS {
        let mut calls = RandomCalls::new(seed);
        for _ in 0..STEPS {
            calls.step();
            calls.follow();
        }
        for change in &calls.followed.log {
            let records = read_payload(&change.payload).expect("known format").map(|record| record.expect("valid"));
            kinds.extend(records.filter_map(|record| kind(&record)));
        }
        evicted_keys += calls.followed.master.state.counters.evicted_keys;
        SharedTables::of(&calls.followed.restart().state).check_sums();
    }
    assert_eq!(kinds.len(), 7, "{kinds:?}");
    assert!(evicted_keys > 100, "{evicted_keys}");
}
