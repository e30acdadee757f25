//! The checks of a running master: bytes, ranges and sums.

use std::collections::BTreeMap;

use super::process::Process;
use super::trace::{key_number, name};
use super::world::World;
use crate::MasterState;
use crate::slots::{ObjectSlot, SegmentSlot};
use mcctl_wire::types::SegmentStatus;

/// Ranges of a segment: offset, size and holder.
type HeldRanges = BTreeMap<u32, Vec<(u64, u64, String)>>;

impl World {
    /// Checks the bytes of all objects and readers, the ranges, and the sums.
    pub(super) fn check(&mut self, process: &Process<'_>) {
        self.check_readers();
        let guarded = process.shared.guarded.lock().expect("no panic");
        let state = &guarded.state;
        let mut used = 0;
        let mut replicas = 0;
        let mut evictable = 0;
        let mut held = HeldRanges::new();
        for at in (0..state.objects.slots()).map(ObjectSlot) {
            let Some(object) = state.objects.get(at) else { continue };
            let complete = !object.eviction.is_writing();
            let key = key_number(state.objects.key(at));
            let mut values = Vec::new();
            for replica in object.replicas() {
                held.entry(replica.segment.0).or_default().push((replica.offset, object.size, name(key)));
                // Between two slices of the ticker, an object may have replicas on removed
                // segments.
                let Some(mounted) = state.segments.get(replica.segment) else { continue };
                used += object.size;
                let begin = mounted.segment.base + replica.offset;
                values.extend(self.memory.read((begin, begin + object.size)));
            }
            replicas += u64::from(complete) * object.replicas().count() as u64;
            evictable += u64::from(complete && !object.eviction.hard_pin());
            if complete && object.replicas().any(|replica| state.segments.is_kept(replica.segment)) {
                self.check_object(key, &values);
            }
        }
        for discarded in state.discards.iter() {
            let replica = &discarded.replica;
            used += state.segments.get(replica.segment).map_or(0, |_| discarded.bytes);
            let quarantine = format!("quarantine {}", replica.id);
            held.entry(replica.segment.0).or_default().push((replica.offset, discarded.bytes, quarantine));
        }
        let gauges = state.gauges();
        assert_eq!((gauges.allocated_bytes, gauges.mem_replicas, state.evictable), (used, replicas, evictable));
        check_ranges(state, held);
    }

    fn check_readers(&mut self) {
        let now = self.ms();
        self.readers.retain(|reader| reader.until > now);
        for reader in &self.readers {
            for value in reader.ranges.iter().flat_map(|range| self.memory.read(*range)) {
                let found = self.key_of[&value];
                assert_eq!(found, reader.key, "a reader of key {} finds bytes of key {found}", reader.key);
            }
        }
    }

    /// Checks that the memory of a complete object contains the value of the last write that ended.
    fn check_object(&self, key: u64, values: &[u64]) {
        let expected = self.finished.iter().rfind(|write| write.key == key).map(|write| write.value);
        assert!(!values.is_empty(), "the object of key {key} was never written");
        for value in values {
            let found = self.key_of[value];
            assert_eq!(found, key, "the memory of key {key} contains bytes of key {found}");
            assert_eq!(Some(*value), expected, "the memory of key {key} contains bytes of another write");
        }
    }
}

/// Checks that no range has two holders, and that none is outside its segment.
fn check_ranges(state: &MasterState, held: HeldRanges) {
    for (slot, mut ranges) in held {
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            let [(begin, size, first), (next, _, second)] = pair else { unreachable!() };
            assert!(begin + size <= *next, "{first} and {second} own the same range");
        }
        let Some(mounted) = state.segments.get(SegmentSlot(slot)) else { continue };
        let end = ranges.last().map_or(0, |(begin, size, _)| begin + size);
        assert!(end <= mounted.segment.size || mounted.status == SegmentStatus::UNMOUNTING);
    }
}
