//! A recording master, nodes, readers and writers; and the log and snapshots from which the master restarts.

use std::collections::BTreeMap;

use super::memory::{AddressRange, LeasedReader, NodeMemory, SlowWriter, ValueId};
use crate::engine::alloc::placement::Rng;
use crate::engine::master::record::buffer::RecordBuffer;
use crate::engine::master::tests::*;
use crate::engine::master::{DATA_FORMAT, StandbyState};

pub const LEASE: u64 = 1_000;
const CLIENT_TTL: u64 = 5_000;
const DISCARD: u64 = 1_500;
pub const RELEASE: u64 = 8_000;
const KEYS: usize = 24;
pub const NODES: usize = 4;
/// Slots per slice of a snapshot. Small, so that many changes happen during one.
pub const SLOTS: u32 = 3;

/// How often things happened, to show that the test reaches them.
#[derive(Clone, Debug, Default)]
pub struct StepCounts(BTreeMap<&'static str, u64>);

impl StepCounts {
    pub(super) fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: &StepCounts) {
        other.0.iter().for_each(|(what, count)| *self.0.entry(what).or_default() += count);
    }

    pub(super) fn list(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let all = [
            "changes",
            "kills",
            "power losses",
            "lost changes",
            "restarts from a snapshot",
            "snapshots",
            "reads",
            "reads after a restart",
            "completed writes",
            "replacing upserts",
            "revokes",
            "evicted objects",
            "removals",
            "dropped unconfirmed keys",
            "remounts",
            "expired clients",
            "readers of removed segments",
            "writers of removed segments",
            "ended holds",
        ];
        all.into_iter().map(|what| (what, self.0.get(what).copied().unwrap_or(0)))
    }
}

pub struct LoggedChange {
    pub wall: u64,
    pub payload: Vec<u8>,
    pub digest: Option<u64>,
}

pub struct SavedSnapshot {
    /// Number of the last change in it.
    pub sequence: u64,
    pub wall: u64,
    pub chunks: Vec<Vec<u8>>,
    pub digest: u64,
}

pub struct Node {
    pub client: ClientId,
    pub segments: Vec<Segment>,
}

/// Everything that exists in a run.
pub struct World {
    pub rng: Rng,
    pub master: Master,
    /// Wall-clock time in milliseconds, and when the master's process started.
    pub wall: u64,
    pub started: u64,
    pub restarts: u64,
    /// Change number n is at index n - 1.
    pub log: Vec<LoggedChange>,
    pub durable: u64,
    pub standby: StandbyState,
    pub applied: usize,
    pub snapshot: Option<SavedSnapshot>,
    pub saved: Option<SavedSnapshot>,
    pub nodes: Vec<Node>,
    pub next_id: u64,
    pub memory: NodeMemory,
    pub readers: Vec<LeasedReader>,
    pub writers: Vec<SlowWriter>,
    /// The key of each value.
    pub key_of: BTreeMap<ValueId, u64>,
    pub counts: StepCounts,
    #[cfg(feature = "planted-mistakes")]
    pub planted: Option<crate::engine::master::planted::PlantedMistake>,
    pub scribble: bool,
}

fn policy(seed: u64) -> StorePolicy {
    let ms = Duration::from_millis;
    StorePolicy {
        lease_ttl: ms(LEASE),
        soft_pin_ttl: ms(2_500),
        client_ttl: ms(CLIENT_TTL),
        put_discard_after: ms(DISCARD),
        put_release_after: ms(RELEASE),
        watermark: 0.8,
        eviction_ratio: 0.2,
        seed,
        ..StorePolicy::default()
    }
}

pub(super) fn name(key: u64) -> String {
    format!("key-{key}")
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut state = MasterState::new(policy(seed));
        state.start_recording(Mono::from_ms(10), RecordBuffer::new(DATA_FORMAT, 1), false);
        let mut world = World {
            rng: Rng::new(seed),
            master: Master { state, now: Mono::from_ms(10), effects: Effects::default() },
            wall: 1_000_000,
            started: 1_000_000,
            restarts: 0,
            log: Vec::new(),
            durable: 0,
            standby: StandbyState::new(policy(seed)),
            applied: 0,
            snapshot: None,
            saved: None,
            nodes: Vec::new(),
            next_id: 1,
            memory: NodeMemory::default(),
            readers: Vec::new(),
            writers: Vec::new(),
            key_of: BTreeMap::new(),
            counts: StepCounts::default(),
            #[cfg(feature = "planted-mistakes")]
            planted: None,
            scribble: false,
        };
        for _ in 0..NODES {
            let client = ClientId(world.id(), 0);
            world.nodes.push(Node { client, segments: Vec::new() });
        }
        for node in 0..NODES {
            world.mount(node);
            world.ping(node);
        }
        world
    }

    #[cfg(feature = "planted-mistakes")]
    pub(super) fn plant(&mut self, mistake: crate::engine::master::planted::PlantedMistake) {
        self.planted = Some(mistake);
        self.master.state.plant(mistake);
    }

    /// From now on, each write goes to its replicas and to some memory around them.
    pub(super) fn scribble(&mut self) {
        self.scribble = true;
    }

    pub(super) fn payloads(&self) -> Vec<Vec<u8>> {
        self.log.iter().map(|change| change.payload.clone()).collect()
    }

    pub(super) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub(super) fn chance(&mut self, one_in: usize) -> bool {
        self.rng.below(one_in) == 0
    }

    pub(super) fn key(&mut self) -> u64 {
        self.rng.below(KEYS) as u64
    }

    /// One random call or event, and all checks.
    pub(super) fn step(&mut self) {
        match self.rng.below(100) {
            0..30 => self.put(),
            30..50 => self.end(),
            50..53 => self.revoke(),
            53..57 => self.write_again(),
            57..65 => self.get(),
            65..69 => self.remove(),
            69..71 => self.clear(),
            71..81 => {
                for _ in 0..2 {
                    let node = self.rng.below(NODES);
                    self.ping(node);
                }
            }
            81..83 => self.change_segments(),
            83..87 => self.sync(),
            87..89 => self.begin_snapshot(),
            89 => {
                // Some readers have leases at the restart, and some nodes confirm their segments right after it.
                (0..6).for_each(|_| self.get());
                self.crash();
                (0..self.rng.below(NODES + 1)).for_each(|node| self.ping(node));
            }
            _ => {
                let ms = if self.chance(2) { 4_000 } else { 200 };
                self.wall += self.rng.below(ms) as u64;
            }
        }
        self.master.now = Mono::from_ms(10 + self.wall - self.started);
        let held = self.master.state.holds.len();
        self.master.settle();
        (self.master.state.holds.len()..held).for_each(|_| self.counts.count("ended holds"));
        self.close();
        self.continue_snapshot();
        self.follow();
        self.check();
    }

    /// Ends the change: logs it, and syncs it if it must be durable.
    pub(super) fn close(&mut self) {
        let state = &mut self.master.state;
        let change = state.close_change(|change| (change.sequence, change.payload.to_vec(), change.needs_sync));
        for effect in self.master.effects() {
            match effect {
                StateEffect::Unmounted { segment, .. } => self.unmounted(segment),
                StateEffect::ClientExpired { .. } => self.counts.count("expired clients"),
                StateEffect::Evicted { .. } => self.counts.count("evicted objects"),
                StateEffect::Mounted { .. } => {}
            }
        }
        let Some((sequence, payload, needs_sync)) = change else { return };
        assert_eq!(sequence, self.log.len() as u64 + 1);
        let digest = self.chance(3).then(|| self.master.state.digest());
        self.log.push(LoggedChange { wall: self.wall, payload, digest });
        self.counts.count("changes");
        if needs_sync {
            self.make_durable(sequence);
        }
    }

    pub(super) fn make_durable(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence);
        self.master.state.durable(self.durable);
    }

    pub(super) fn sync(&mut self) {
        let waiting = self.log.len() + 1 - self.durable as usize;
        let sequence = self.durable + self.rng.below(waiting) as u64;
        self.make_durable(sequence);
    }

    /// Ends readers and writers of a segment that was unmounted, unless its process still serves the memory, and will mount it again.
    fn unmounted(&mut self, segment: SegmentId) {
        if !self.nodes.iter().any(|node| node.segments.iter().any(|held| held.id == segment)) {
            return self.dismiss(segment);
        }
        for writer in self.writers.iter_mut().filter(|writer| writer.ranges.iter().any(is_in(segment))) {
            // Its put cannot end any more. A write in progress ends within the discard time.
            writer.until = writer.until.min(self.wall + DISCARD);
            self.counts.count("writers of removed segments");
        }
        let readers = self.readers.iter().filter(|reader| reader.ranges.iter().any(is_in(segment))).count();
        (0..readers).for_each(|_| self.counts.count("readers of removed segments"));
    }

    fn dismiss(&mut self, segment: SegmentId) {
        self.readers.iter_mut().for_each(|reader| reader.ranges.retain(|range| !is_in(segment)(range)));
        self.writers.iter_mut().for_each(|writer| writer.ranges.retain(|range| !is_in(segment)(range)));
    }
}

fn is_in(segment: SegmentId) -> impl Fn(&AddressRange) -> bool {
    move |range| (range.0 >> 20) & 0xf_ffff == segment.0
}

pub(super) fn node_name(node: usize) -> String {
    format!("node-{node}:1")
}
