//! Compares the master with a model of plain maps. Both get the same generated calls. After each
//! call the answers and sums must be equal, and no byte may be allocated twice.
//!
//! The model does not predict two choices of the master: the allocated memory, and the victim among
//! equally old objects. It checks that they are valid.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, missing_docs, reason = "tests")]

use std::collections::BTreeMap;
use std::time::Duration;

use mcctl_base::{ClientId, ErrorCode, Mono, SegmentId};
use mcctl_master::{DirectAccess, Effects, MasterCall, MasterState, StorePolicy};
use mcctl_wire::types::SliceLength;
use mcctl_wire::types::Tenant;
use mcctl_wire::types::{
    ClientStatus, ObjectMeta, ReplicaDescriptor, ReplicaLocation, ReplicaType, ReplicateConfig, Segment, SoftPinAction,
};
use mcctl_wire::{Expected, MasterApi, TextBuf};
use proptest::prelude::*;

const T: Tenant<'static> = Tenant::DEFAULT;
const LEASE: u64 = 1_000;
const CLIENT_TTL: u64 = 5_000;
const DISCARD: u64 = 3_000;
const RELEASE: u64 = 8_000;
const PIN: u64 = 2_500;
const WATERMARK: f64 = 0.8;
const RATIO: f64 = 0.2;
/// The segment of a discarded replica whose segment has been removed.
const REMOVED: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
enum Pins {
    None,
    Soft,
    Hard,
}

#[derive(Clone, Debug)]
enum Step {
    Mount { client: u64, segment: u64, size: u64 },
    Remount { client: u64 },
    Unmount { segment: u64 },
    Leave { segment: u64, grace: u64 },
    Ping { client: u64 },
    Put { client: u64, key: u64, size: u64, replicas: u64, pins: Pins, upsert: bool },
    End { client: u64, key: u64 },
    Revoke { client: u64, key: u64 },
    Exist { key: u64 },
    Get { key: u64 },
    Remove { key: u64, force: bool },
    RemoveAll { force: bool },
    Clear { client: u64, key: u64 },
    Pass { ms: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = 1u64..4;
    let key = 0u64..12;
    let segment = 1u64..5;
    let size = prop_oneof![Just(0u64), 1u64..300, 300u64..3_000];
    let pins = prop_oneof![6 => Just(Pins::None), 1 => Just(Pins::Soft), 1 => Just(Pins::Hard)];
    let step = prop_oneof![
        2 => (client.clone(), segment.clone(), 1_000u64..9_000).prop_map(|(client, segment, size)| Step::Mount { client, segment, size }),
        1 => client.clone().prop_map(|client| Step::Remount { client }),
        1 => segment.clone().prop_map(|segment| Step::Unmount { segment }),
        1 => (segment, 0u64..4_000).prop_map(|(segment, grace)| Step::Leave { segment, grace }),
        3 => client.clone().prop_map(|client| Step::Ping { client }),
        12 => (client.clone(), key.clone(), size, 1u64..3, pins, prop::bool::weighted(0.3)).prop_map(
            |(client, key, size, replicas, pins, upsert)| Step::Put { client, key, size, replicas, pins, upsert }),
        10 => (client.clone(), key.clone()).prop_map(|(client, key)| Step::End { client, key }),
        2 => (client.clone(), key.clone()).prop_map(|(client, key)| Step::Revoke { client, key }),
        3 => key.clone().prop_map(|key| Step::Exist { key }),
        3 => key.clone().prop_map(|key| Step::Get { key }),
        3 => (key.clone(), any::<bool>()).prop_map(|(key, force)| Step::Remove { key, force }),
        1 => prop::bool::weighted(0.2).prop_map(|force| Step::RemoveAll { force }),
        1 => (client, key).prop_map(|(client, key)| Step::Clear { client, key }),
        5 => prop_oneof![1u64..50, 100u64..3_000].prop_map(|ms| Step::Pass { ms }),
    ];
    prop::collection::vec(step, 1..120)
}

#[derive(Clone, Debug)]
struct Object {
    owner: u64,
    size: u64,
    /// Segment and address of each replica.
    at: Vec<(u64, u64)>,
    processing: bool,
    put_start: u64,
    lease: u64,
    hard: bool,
    soft_until: u64,
    pending_soft: bool,
}

#[derive(Debug, Default)]
struct Model {
    now: u64,
    /// Segment -> client, size, end of its grace period.
    segments: BTreeMap<u64, (u64, u64, Option<u64>)>,
    /// Client -> deadline, whether it is ok.
    clients: BTreeMap<u64, (u64, bool)>,
    objects: BTreeMap<u64, Object>,
    /// Segment, address, size, until. If the segment has been removed: [`REMOVED`].
    discards: Vec<(u64, u64, u64, u64)>,
    wanted: bool,
    not_before: u64,
}

impl Model {
    fn lose_segment(&mut self, segment: u64) {
        self.segments.remove(&segment);
        self.objects.retain(|_, object| {
            object.at.retain(|(there, _)| *there != segment);
            !object.at.is_empty()
        });
        // As in upstream, their release still counts as a released write.
        self.discards.iter_mut().filter(|discard| discard.0 == segment).for_each(|discard| discard.0 = REMOVED);
    }

    /// The allocated ranges of a segment with their lengths.
    fn taken(&self, segment: u64) -> Vec<(u64, u64)> {
        let live = self.objects.values().flat_map(|object| object.at.iter().map(|(s, a)| (*s, *a, object.size)));
        let waiting = self.discards.iter().map(|(s, a, size, _)| (*s, *a, *size));
        let mut ranges: Vec<_> = live.chain(waiting).filter(|(s, ..)| *s == segment).map(|(_, a, n)| (a, n)).collect();
        ranges.sort_unstable();
        ranges
    }

    fn used(&self) -> u64 {
        self.segments.keys().flat_map(|segment| self.taken(*segment)).map(|(_, size)| size).sum()
    }

    fn capacity(&self) -> u64 {
        self.segments.values().map(|(_, size, _)| size).sum()
    }

    /// Returns true if an open segment certainly has enough space.
    fn certainly_has_space(&self, size: u64) -> bool {
        self.segments.iter().filter(|(_, (_, _, leaves))| leaves.is_none()).any(|(segment, (_, length, _))| {
            let mut free_from = base(*segment);
            let mut longest = 0;
            for (address, size) in self.taken(*segment) {
                longest = longest.max(address - free_from);
                // Long blocks use up to 7 bytes more than requested.
                free_from = address + if size >= 400 { size.next_multiple_of(8) } else { size };
            }
            longest.max((base(*segment) + length).saturating_sub(free_from)) >= size + 8
        })
    }

    fn discard(&mut self, key: u64, until: u64) {
        let object = self.objects.remove(&key).expect("the object exists");
        self.discards.extend(object.at.iter().map(|(segment, address)| (*segment, *address, object.size, until)));
    }

    /// Does the work that is due before eviction. Returns the number of released writes.
    fn pass(&mut self) -> u64 {
        let now = self.now;
        let gone: Vec<u64> = self.clients.iter().filter(|(_, (until, _))| *until <= now).map(|(id, _)| *id).collect();
        for client in gone {
            self.clients.remove(&client);
            let lost: Vec<u64> = self.segments.iter().filter(|(_, s)| s.0 == client).map(|(id, _)| *id).collect();
            lost.into_iter().for_each(|segment| self.lose_segment(segment));
        }
        let left: Vec<u64> =
            self.segments.iter().filter(|(_, s)| s.2.is_some_and(|t| t <= now)).map(|(id, _)| *id).collect();
        left.into_iter().for_each(|segment| self.lose_segment(segment));
        let before = self.discards.len() + self.objects.len();
        self.discards.retain(|discard| discard.3 > now);
        self.objects.retain(|_, object| !object.processing || object.put_start + RELEASE > now);
        (before - self.discards.len() - self.objects.len()) as u64
    }

    /// Checks the evicted objects and removes them from the model.
    fn evict(&mut self, gone: &[u64], released: u64) {
        let used = self.used() as f64;
        let capacity = self.capacity() as f64;
        let ratio = if capacity == 0.0 { 0.0 } else { used / capacity };
        let base = self.objects.values().filter(|o| !o.processing && !o.hard).count();
        let due = (ratio > WATERMARK || self.wanted && ratio > 0.0) && base > 0 && self.now >= self.not_before;
        self.wanted &= base > 0 && !due;
        if !due {
            assert!(gone.is_empty(), "unnecessary eviction: {gone:?}");
            return;
        }
        self.not_before = self.now + 10;
        let over = ratio - WATERMARK;
        let target = RATIO.max(over + RATIO);
        let share = |ratio: f64| ((base as f64 * ratio).ceil().max(0.0) as usize).min(base);
        let now = self.now;
        let idle = |o: &Object| !o.processing && !o.hard && o.lease <= now;
        let mut plain: Vec<u64> =
            self.objects.values().filter(|o| idle(o) && o.soft_until <= now).map(|o| o.lease).collect();
        let mut soft: Vec<u64> =
            self.objects.values().filter(|o| idle(o) && o.soft_until > now).map(|o| o.lease).collect();
        plain.sort_unstable();
        soft.sort_unstable();
        plain.truncate(share(target));
        let short =
            share((target * 0.5).max(over)).saturating_sub(plain.len() + usize::try_from(released).expect("few"));
        soft.truncate(short);
        let mut leases = (Vec::new(), Vec::new());
        for key in gone {
            let object = self.objects.remove(key).expect("the object existed");
            assert!(idle(&object), "evicted a protected object: {object:?}");
            if object.soft_until > now { leases.1.push(object.lease) } else { leases.0.push(object.lease) }
        }
        leases.0.sort_unstable();
        leases.1.sort_unstable();
        assert_eq!(leases, (plain, soft), "upstream's number of victims, oldest first");
    }
}

/// Segments are one tebibyte apart.
fn base(segment: u64) -> u64 {
    segment << 40
}

fn descriptor(segment: u64, size: u64) -> Segment {
    let name = format!("node-{segment}:1");
    Segment {
        id: SegmentId(segment, 0),
        name: name.as_str().into(),
        base: base(segment),
        size,
        te_endpoint: name.as_str().into(),
        protocol: "tcp".into(),
        host_id: TextBuf::default(),
    }
}

fn name(key: u64) -> String {
    format!("key-{key}")
}

struct Pair {
    master: MasterState,
    effects: Effects,
    model: Model,
}

impl Pair {
    fn new() -> Pair {
        let ms = Duration::from_millis;
        let master = MasterState::new(StorePolicy {
            lease_ttl: ms(LEASE),
            soft_pin_ttl: ms(PIN),
            client_ttl: ms(CLIENT_TTL),
            put_discard_after: ms(DISCARD),
            put_release_after: ms(RELEASE),
            watermark: WATERMARK,
            eviction_ratio: RATIO,
            ..StorePolicy::default()
        });
        Pair { master, effects: Effects::default(), model: Model { now: 100_000, ..Model::default() } }
    }

    fn call(&mut self) -> MasterCall<DirectAccess<'_>> {
        MasterCall(DirectAccess {
            state: &mut self.master,
            now: Mono::from_ms(self.model.now),
            effects: &mut self.effects,
        })
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Mount { client, segment, size } => {
                let answer = self.call().mount_segment(descriptor(segment, size), ClientId(client, 0));
                let model = &mut self.model;
                let expected = match model.segments.get(&segment) {
                    Some((_, _, Some(_))) => Err(ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS),
                    Some(_) => {
                        if let Some(client) = model.clients.get_mut(&client) {
                            client.0 = model.now + CLIENT_TTL;
                        }
                        Ok(())
                    }
                    None => {
                        model.segments.insert(segment, (client, size, None));
                        let known = model.clients.get(&client).is_some_and(|client| client.1);
                        model.clients.insert(client, (model.now + CLIENT_TTL, known));
                        Ok(())
                    }
                };
                assert_eq!(answer, expected);
            }
            Step::Remount { client } => {
                let own: Vec<_> = self
                    .model
                    .segments
                    .iter()
                    .filter(|(_, s)| s.0 == client)
                    .map(|(id, s)| descriptor(*id, s.1))
                    .collect();
                assert_eq!(self.call().remount_segment(own, ClientId(client, 0)), Ok(()));
                self.model.clients.insert(client, (self.model.now + CLIENT_TTL, true));
            }
            Step::Unmount { segment } => {
                assert_eq!(self.call().unmount_segment(SegmentId(segment, 0), ClientId(9, 9)), Ok(()));
                self.model.lose_segment(segment);
            }
            Step::Leave { segment, grace } => {
                let Some(&(client, size, _)) = self.model.segments.get(&segment) else { return };
                let left = self.call().graceful_unmount_segment(SegmentId(segment, 0), ClientId(client, 0), grace);
                assert_eq!(left, Ok(()));
                self.model.segments.insert(segment, (client, size, Some(self.model.now + grace)));
            }
            Step::Ping { client } => {
                let answer = self.call().ping(ClientId(client, 0)).expect("ping never fails").client_status;
                let now = self.model.now;
                let known = self.model.clients.get_mut(&client).is_some_and(|client| {
                    client.0 = now + CLIENT_TTL;
                    client.1
                });
                assert_eq!(answer, if known { ClientStatus::OK } else { ClientStatus::NEED_REMOUNT });
            }
            Step::Put { client, key, size, replicas, pins, upsert } => {
                self.put(client, key, size, replicas, pins, upsert)
            }
            Step::End { client, key } => {
                let name = name(key);
                let meta = ObjectMeta { key: name.as_str().into(), object_checksum: None };
                let answer = self.call().put_end(ClientId(client, 0), meta, ReplicaType::ALL, T);
                let now = self.model.now;
                let expected = match self.model.objects.get_mut(&key) {
                    None => Err(ErrorCode::OBJECT_NOT_FOUND),
                    Some(object) if object.owner != client => Err(ErrorCode::ILLEGAL_CLIENT),
                    Some(object) => {
                        if object.processing {
                            object.processing = false;
                            object.lease = object.lease.max(now);
                            if object.pending_soft {
                                object.soft_until = now + PIN;
                            }
                        }
                        Ok(())
                    }
                };
                assert_eq!(answer, expected);
            }
            Step::Revoke { client, key } => {
                let answer =
                    self.call().put_revoke(ClientId(client, 0), name(key).as_str().into(), ReplicaType::ALL, T);
                let expected = match self.model.objects.get(&key) {
                    None => Err(ErrorCode::OBJECT_NOT_FOUND),
                    Some(object) if object.owner != client => Err(ErrorCode::ILLEGAL_CLIENT),
                    Some(object) if !object.processing => Err(ErrorCode::INVALID_WRITE),
                    Some(object) => {
                        // Readers of the value before an upsert in place may have a lease.
                        let lease = object.lease;
                        if lease > self.model.now {
                            self.model.discard(key, lease);
                        } else {
                            self.model.objects.remove(&key);
                        }
                        Ok(())
                    }
                };
                assert_eq!(answer, expected);
            }
            Step::Exist { key } => {
                let answer = self.call().exist_key(name(key).as_str().into(), T);
                assert_eq!(answer, Ok(self.read(key).is_ok()));
            }
            Step::Get { key } => {
                let answer = self.call().get_replica_list(name(key).as_str().into(), T);
                let places = answer.map(|list| places(&list.replicas).collect::<Vec<_>>());
                assert_eq!(places, self.read(key).map(|object| object.at.clone()));
            }
            Step::Remove { key, force } => {
                let answer = self.call().remove(name(key).as_str().into(), force, T);
                let now = self.model.now;
                let expected = match self.model.objects.get(&key) {
                    None => Err(ErrorCode::OBJECT_NOT_FOUND),
                    Some(object) if !force && object.lease > now => Err(ErrorCode::OBJECT_HAS_LEASE),
                    Some(object) if object.processing => Err(ErrorCode::REPLICA_IS_NOT_READY),
                    Some(_) => {
                        self.model.objects.remove(&key);
                        Ok(())
                    }
                };
                assert_eq!(answer, expected);
            }
            Step::RemoveAll { force } => {
                let answer = self.call().remove_all(force, T);
                let now = self.model.now;
                let before = self.model.objects.len();
                self.model.objects.retain(|_, object| object.processing || !force && object.lease > now);
                assert_eq!(answer, (before - self.model.objects.len()) as i64);
            }
            Step::Clear { client, key } => {
                let keys = name(key);
                let cleared =
                    self.call().batch_replica_clear(vec![keys.as_str().into()], ClientId(client, 0), "".into(), T);
                let now = self.model.now;
                let may = self.model.objects.get(&key).is_some_and(|o| !o.processing && o.lease <= now);
                assert_eq!(cleared.map(|keys| keys.len()), Ok(usize::from(may)));
                if may {
                    self.model.objects.remove(&key);
                }
            }
            Step::Pass { ms } => self.model.now += ms,
        }
        self.settle();
        self.check();
    }

    fn put(&mut self, client: u64, key: u64, size: u64, replicas: u64, pins: Pins, upsert: bool) {
        let config = ReplicateConfig {
            replica_num: replicas,
            with_hard_pin: matches!(pins, Pins::Hard),
            soft_pin_action: if matches!(pins, Pins::Soft) { SoftPinAction::ENABLE } else { SoftPinAction::PRESERVE },
            ..ReplicateConfig::default()
        };
        let id = ClientId(client, 0);
        let text = name(key);
        let answer: Expected<Vec<ReplicaDescriptor>> = if upsert {
            self.call().upsert_start(id, text.as_str().into(), SliceLength(size), config, T)
        } else {
            self.call().put_start(id, text.as_str().into(), SliceLength(size), config, T)
        };
        if size == 0 {
            assert_eq!(answer, Err(ErrorCode::INVALID_PARAMS));
            return;
        }
        let now = self.model.now;
        let model = &mut self.model;
        let soft = matches!(pins, Pins::Soft);
        let mut kept_hard = false;
        let mut kept_soft = 0;
        if let Some(object) = model.objects.get_mut(&key) {
            if !upsert && (!object.processing || object.put_start + DISCARD >= now) {
                assert_eq!(answer, Err(ErrorCode::OBJECT_ALREADY_EXISTS));
                return;
            }
            if upsert && !object.processing && object.size == size {
                assert_eq!(places(&answer.expect("in place")).collect::<Vec<_>>(), object.at);
                object.owner = client;
                object.put_start = now;
                object.processing = true;
                object.pending_soft = soft;
                return;
            }
            if upsert {
                kept_hard = object.hard && !object.processing;
                kept_soft = if object.soft_until > now { object.soft_until } else { 0 };
            }
            let until = if upsert { now } else { object.put_start } + RELEASE;
            model.discard(key, until);
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                assert_eq!(error, ErrorCode::NO_AVAILABLE_HANDLE);
                assert!(!model.certainly_has_space(size), "refused {size} bytes despite enough space");
                let open = model.segments.values().filter(|(_, _, leaves)| leaves.is_none()).count();
                model.wanted |= open as u64 >= replicas;
                return;
            }
        };
        assert!((1..=replicas).contains(&(answer.len() as u64)));
        let at: Vec<(u64, u64)> = places(&answer).collect();
        for (nth, (segment, address)) in at.iter().enumerate() {
            let (_, length, leaves) = model.segments[segment];
            assert_eq!(leaves, None, "a closed segment accepts no new objects");
            assert!(*address >= base(*segment) && address + size <= base(*segment) + length, "outside its segment");
            let overlaps = |(other, n): &(u64, u64)| *other < address + size && *address < other + n;
            assert_eq!(model.taken(*segment).iter().find(|range| overlaps(range)), None, "a byte is allocated twice");
            assert!(at[..nth].iter().all(|(other, _)| other != segment), "two replicas on one name");
        }
        let hard = matches!(pins, Pins::Hard) || kept_hard;
        let object = Object {
            owner: client,
            size,
            at,
            processing: true,
            put_start: now,
            lease: 0,
            hard,
            soft_until: kept_soft,
            pending_soft: soft,
        };
        model.objects.insert(key, object);
    }

    /// Reads and leases an object.
    fn read(&mut self, key: u64) -> Expected<&Object> {
        let now = self.model.now;
        match self.model.objects.get_mut(&key) {
            None => Err(ErrorCode::OBJECT_NOT_FOUND),
            Some(object) if object.processing => Err(ErrorCode::REPLICA_IS_NOT_READY),
            Some(object) => {
                object.lease = object.lease.max(now + LEASE);
                Ok(object)
            }
        }
    }

    fn exists(&self, key: u64) -> bool {
        self.master.peek(name(key).as_bytes()).map_err(|refusal| refusal.code()) != Err(ErrorCode::OBJECT_NOT_FOUND)
    }

    fn settle(&mut self) {
        let now = Mono::from_ms(self.model.now);
        while self.master.tick(now, now, &mut self.effects) {}
        let released = self.model.pass();
        let gone: Vec<u64> = self.model.objects.keys().copied().filter(|key| !self.exists(*key)).collect();
        self.model.evict(&gone, released);
    }

    fn check(&self) {
        for key in 0..12 {
            assert_eq!(self.exists(key), self.model.objects.contains_key(&key), "key {key}");
        }
        let gauges = self.master.gauges();
        let model = &self.model;
        let soft = |o: &&Object| !o.processing && !o.hard && o.soft_until > model.now;
        assert_eq!(gauges.allocated_bytes, model.used());
        assert_eq!(gauges.capacity_bytes, model.capacity());
        assert_eq!(gauges.keys, model.objects.len() as u64);
        assert_eq!(gauges.clients, model.clients.len() as u64);
        assert_eq!(gauges.soft_pinned_keys, model.objects.values().filter(soft).count() as u64);
        let complete = model.objects.values().filter(|o| !o.processing);
        assert_eq!(gauges.mem_replicas, complete.map(|o| o.at.len() as u64).sum::<u64>());
        let now = Mono::from_ms(model.now);
        assert!(self.master.next_wakeup(now, now) > now, "no work is left");
    }
}

fn places(replicas: &[ReplicaDescriptor]) -> impl Iterator<Item = (u64, u64)> + '_ {
    replicas.iter().map(|replica| match &replica.location {
        ReplicaLocation::Memory(buffer) => (buffer.buffer_address >> 40, buffer.buffer_address),
        other => panic!("not in memory: {other:?}"),
    })
}

/// Found by the property test below. Unswept records of a removed segment started an eviction
/// round. It evicted nothing, and the next, necessary round had to wait for the pause.
#[test]
fn records_of_removed_segments_do_not_use_up_an_eviction_round() {
    let put = |client, key, size, replicas, upsert| Step::Put { client, key, size, replicas, pins: Pins::None, upsert };
    let mut pair = Pair::new();
    for segment in 1..4 {
        pair.run(&Step::Mount { client: segment, segment, size: 6_000 });
    }
    for step in [
        put(3, 5, 1, 1, false),
        put(1, 3, 462, 2, false),
        Step::End { client: 3, key: 5 },
        put(3, 2, 1_778, 2, false),
        Step::Leave { segment: 3, grace: 954 },
        Step::Clear { client: 1, key: 0 },
        put(1, 4, 919, 2, false),
        put(1, 0, 431, 2, false),
        put(1, 0, 1_211, 2, true),
        Step::Pass { ms: 954 },
        Step::End { client: 3, key: 2 },
    ] {
        pair.run(&step);
    }
}

/// Found by the property test below. A discarded replica whose segment has been removed still
/// counts as a released write, so the round evicts no soft-pinned object. Only the model was wrong.
#[test]
fn discarded_replicas_on_removed_segments_count_as_released() {
    let put = |client, key, size, replicas, pins, upsert| Step::Put { client, key, size, replicas, pins, upsert };
    let mut pair = Pair::new();
    for segment in 1..4 {
        pair.run(&Step::Mount { client: segment, segment, size: 6_000 });
    }
    for step in [
        put(1, 3, 1, 1, Pins::None, false),
        Step::Mount { client: 1, segment: 1, size: 1_000 },
        Step::Leave { segment: 1, grace: 0 },
        Step::Mount { client: 1, segment: 4, size: 1_968 },
        Step::Pass { ms: 867 },
        Step::Unmount { segment: 2 },
        Step::Pass { ms: 2_134 },
        put(1, 3, 1, 1, Pins::None, false),
        put(1, 0, 1, 2, Pins::None, false),
        Step::Remount { client: 1 },
        Step::Mount { client: 1, segment: 1, size: 1_000 },
        Step::Unmount { segment: 3 },
        Step::Mount { client: 3, segment: 2, size: 2_800 },
        put(2, 8, 478, 1, Pins::Soft, false),
        Step::Pass { ms: 796 },
        put(1, 0, 1_763, 1, Pins::None, true),
        Step::Ping { client: 3 },
        Step::Pass { ms: 2_189 },
        Step::End { client: 2, key: 8 },
        Step::Pass { ms: 2_015 },
    ] {
        pair.run(&step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn the_master_behaves_like_a_model_of_maps(steps in steps()) {
        let mut pair = Pair::new();
        for segment in 1..4 {
            pair.run(&Step::Mount { client: segment, segment, size: 6_000 });
        }
        for step in &steps {
            pair.run(step);
        }
    }
}
