//! Snapshots, the standby, crashes and restarts, and the checks of a state.

use super::world::{RELEASE, SLOTS, SavedSnapshot, World, name};
use crate::engine::master::record::buffer::RecordBuffer;
use crate::engine::master::slots::{ObjectSlot, SegmentSlot};
use crate::engine::master::tests::*;
use crate::engine::master::{DATA_FORMAT, SnapshotStep, StandbyState};

impl World {
    pub(super) fn begin_snapshot(&mut self) {
        self.close();
        let Some(sequence) = self.master.state.begin_snapshot(self.master.now, DATA_FORMAT) else { return };
        let digest = self.master.state.digest();
        self.snapshot = Some(SavedSnapshot { sequence, wall: self.wall, chunks: Vec::new(), digest });
    }

    pub(super) fn continue_snapshot(&mut self) {
        let Some(mut snapshot) = self.snapshot.take() else { return };
        match self.master.state.snapshot_slots(SLOTS).expect("in progress") {
            SnapshotStep::More => {}
            SnapshotStep::Chunk(chunk) => snapshot.chunks.push(chunk),
            SnapshotStep::Done(summary) => {
                assert_eq!(summary.digest, snapshot.digest);
                self.counts.count("snapshots");
                self.make_durable(snapshot.sequence);
                self.saved = Some(snapshot);
                return;
            }
        }
        self.snapshot = Some(snapshot);
    }

    /// The standby applies what has been logged.
    pub(super) fn follow(&mut self) {
        if !self.chance(4) {
            return;
        }
        for change in &self.log[self.applied..] {
            let age = Duration::from_millis(self.wall - change.wall);
            self.standby.apply_payload(self.master.now, age, &change.payload).expect("applies");
        }
        self.applied = self.log.len();
        assert_eq!(self.standby.digest(), self.master.state.digest());
    }

    /// The master is killed, or its host loses power. Then it starts again.
    pub(super) fn crash(&mut self) {
        self.close();
        let is_power_loss = self.chance(2);
        let mut kept = self.log.len();
        if is_power_loss {
            let unsynced = kept - self.durable as usize;
            kept = self.durable as usize + self.rng.below(unsynced + 1);
            self.counts.count("power losses");
            (kept..self.log.len()).for_each(|_| self.counts.count("lost changes"));
        } else {
            self.counts.count("kills");
        }
        let before = self.master.state.counters.unconfirmed_keys;
        (0..before).for_each(|_| self.counts.count("dropped unconfirmed keys"));
        self.log.truncate(kept);
        (self.durable, self.snapshot) = (kept as u64, None);
        let away = if self.chance(2) { 2_000 } else { 100 };
        self.wall += self.rng.below(away) as u64;
        (self.started, self.restarts) = (self.wall, self.restarts + 1);
        let now = Mono::from_ms(10);
        self.standby = self.read_log(now);
        self.applied = kept;
        #[allow(unused_mut, reason = "changed only with the feature")]
        let mut standby = self.read_log(now);
        #[cfg(feature = "planted-mistakes")]
        if let Some(mistake) = self.planted {
            standby.plant(mistake);
        }
        let hold = Duration::from_millis(if is_power_loss { RELEASE } else { 0 });
        let (mut state, report) = standby.activate(now, hold).expect("the ranges are valid");
        assert_eq!(report.objects, state.gauges().keys);
        state.start_recording(now, RecordBuffer::new(DATA_FORMAT, self.durable + 1), false);
        self.master = Master { state, now, effects: Effects::default() };
        self.close();
    }

    /// Reads the snapshot and the log behind it.
    pub(super) fn read_log(&mut self, now: Mono) -> StandbyState {
        let mut standby = StandbyState::new(self.master.state.policy().clone());
        let mut from = 0;
        if let Some(saved) = &self.saved {
            let age = Duration::from_millis(self.wall - saved.wall);
            for chunk in &saved.chunks {
                standby.apply_payload(now, age, chunk).expect("applies");
            }
            assert_eq!(standby.digest(), saved.digest);
            from = saved.sequence as usize;
            self.counts.count("restarts from a snapshot");
        }
        for change in &self.log[from..] {
            let age = Duration::from_millis(self.wall - change.wall);
            standby.apply_payload(now, age, &change.payload).expect("applies");
            assert!(change.digest.is_none_or(|digest| digest == standby.digest()));
        }
        standby
    }

    /// Checks the bytes of all objects and readers, and the sums.
    pub(super) fn check(&mut self) {
        self.readers.retain(|reader| reader.until > self.wall);
        for reader in &self.readers {
            for value in reader.ranges.iter().flat_map(|range| self.memory.read(*range)) {
                let found = self.key_of[&value];
                assert_eq!(found, reader.key, "a reader of key {} finds bytes of key {found}", reader.key);
            }
        }
        let state = &self.master.state;
        let (mut used, mut replicas, mut evictable) = (0, 0, 0);
        for at in (0..state.objects.slots()).map(ObjectSlot) {
            let Some(object) = state.objects.get(at) else { continue };
            let complete = !object.eviction.is_writing();
            let mut values = Vec::new();
            for replica in object.replicas() {
                let mounted = state.segments.get(replica.segment).expect("swept");
                let begin = mounted.segment.base + replica.offset;
                values.extend(self.memory.read((begin, begin + object.size)));
                used += object.size;
                replicas += u64::from(complete);
            }
            evictable += u64::from(complete && !object.eviction.hard_pin());
            if complete {
                let key = String::from_utf8_lossy(state.objects.key(at)).into_owned();
                assert!(!values.is_empty(), "{key} was never written");
                for value in &values {
                    let found = name(self.key_of[value]);
                    assert_eq!(found, key, "the memory of {key} contains bytes of key {found}");
                    assert_eq!(value, &values[0], "the memory of {key} contains bytes of two writes");
                }
            }
        }
        let mounted = |slot: u32| state.segments.get(SegmentSlot(slot)).is_some();
        let quarantined = state.discards.iter().filter(|discarded| mounted(discarded.replica.segment.0));
        used += quarantined.map(|discarded| discarded.bytes).sum::<u64>();
        let gauges = state.gauges();
        assert_eq!((gauges.allocated_bytes, gauges.mem_replicas, state.evictable), (used, replicas, evictable));
    }
}
