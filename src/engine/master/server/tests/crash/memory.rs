//! The nodes' memory as a map, and the readers and writers that use it.

use std::collections::BTreeMap;

use mcctl_wire::types::{BufferDescriptor, ReplicaDescriptor, ReplicaLocation};

/// The value that one write of a key stores. The numbers are unique.
pub(super) type ValueId = u64;

/// First address, and the address after the last one.
pub(super) type AddressRange = (u64, u64);

/// The ranges of replicas.
pub(super) fn ranges(replicas: &[ReplicaDescriptor]) -> Vec<AddressRange> {
    let range = |replica: &ReplicaDescriptor| match &replica.location {
        ReplicaLocation::Memory(BufferDescriptor { size, buffer_address, .. }) => {
            (*buffer_address, buffer_address + size)
        }
        other => panic!("not in memory: {other:?}"),
    };
    replicas.iter().map(range).collect()
}

/// The value to which the bytes of each range belong.
#[derive(Debug, Default)]
pub(super) struct NodeMemory(BTreeMap<u64, (u64, ValueId)>);

impl NodeMemory {
    pub(super) fn write(&mut self, (begin, end): AddressRange, value: ValueId) {
        let overlapping: Vec<(u64, (u64, ValueId))> = self
            .0
            .range(..end)
            .rev()
            .take_while(|(_, (old_end, _))| *old_end > begin)
            .map(|(at, old)| (*at, *old))
            .collect();
        for (old_begin, (old_end, old)) in overlapping {
            self.0.remove(&old_begin);
            if old_begin < begin {
                self.0.insert(old_begin, (begin, old));
            }
            if old_end > end {
                self.0.insert(end, (old_end, old));
            }
        }
        self.0.insert(begin, (end, value));
    }

    /// The values in a range, without those of bytes that were never written.
    pub(super) fn read(&self, (begin, end): AddressRange) -> impl Iterator<Item = ValueId> + '_ {
        let overlapping = self.0.range(..end).rev().take_while(move |(_, (old_end, _))| *old_end > begin);
        overlapping.map(|(_, (_, value))| *value)
    }
}

/// A client that looked up an object and may read its memory until the lease ends.
#[derive(Clone, Debug)]
pub(super) struct LeasedReader {
    pub key: u64,
    /// End of the lease, in milliseconds.
    pub until: u64,
    pub ranges: Vec<AddressRange>,
}

/// A client that may write to the memory of an object until `until`.
#[derive(Clone, Debug)]
pub(super) struct SlowWriter {
    pub key: u64,
    pub client: u64,
    pub value: ValueId,
    /// Time after which the client no longer writes, in milliseconds.
    pub until: u64,
    pub ranges: Vec<AddressRange>,
    /// It has written its value.
    pub is_written: bool,
}

#[test]
fn a_write_replaces_only_the_overlapping_bytes() {
    let mut memory = NodeMemory::default();
    let read = |memory: &NodeMemory, begin, end| {
        let mut values: Vec<ValueId> = memory.read((begin, end)).collect();
        values.sort_unstable();
        values
    };
    memory.write((0, 100), 1);
    memory.write((100, 200), 2);
    memory.write((40, 150), 3);
    memory.write((60, 70), 4);
    assert_eq!(read(&memory, 0, 40), [1]);
    assert_eq!(read(&memory, 39, 61), [1, 3, 4]);
    assert_eq!(read(&memory, 70, 150), [3]);
    assert_eq!(read(&memory, 149, 300), [2, 3]);
    assert_eq!(read(&memory, 200, 300), [0; 0]);
}
