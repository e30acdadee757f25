//! Writes and reads of a record of the metadata service, at any master: a value that only grows.
//!
//! One writer writes one value after the other. A read must find the last value that was
//! acknowledged when it began, or a later one. After a copy was promoted that may lack changes, it
//! may find an earlier one.

use std::borrow::Cow;

use bytes::Bytes;

use super::env::SimEnv;
use super::event::Event;
use super::report::Violation;
use super::world::World;
use crate::server::shared::MasterShared;
use mcctl_base::rng::Rng;
use mcctl_metadata::backend::{NotServed, RecordBackend};
use mcctl_metadata::change::MetadataChange;
use mcctl_metadata::records::MetadataTable;

const KEY: &[u8] = b"mooncake/ram/r";

/// The writer and the readers of the record.
pub(super) struct RecordModel {
    pub rng: Rng,
    /// The last value that the writer has sent.
    sent: u64,
    /// The last value whose write was acknowledged and cannot have been lost.
    acked: u64,
    /// Increased when acknowledged values may have been lost.
    epoch: u64,
    /// The write in progress: its node, and the number of its process.
    writing: Option<(usize, u64)>,
}

/// A read in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordRead {
    node: usize,
    floor: u64,
    epoch: u64,
}

impl RecordModel {
    pub(super) fn new(seed: u64) -> RecordModel {
        RecordModel { rng: Rng::new(seed ^ 0x7ec0), sent: 0, acked: 0, epoch: 0, writing: None }
    }

    /// Acknowledged values may have been lost.
    pub(super) fn lose_all(&mut self) {
        self.acked = 0;
        self.epoch += 1;
    }
}

impl World {
    /// Begins a write or a read at a random master, and plans the next one.
    pub(super) fn step_records(&mut self) {
        let next = 20_000 + self.records.rng.below(400_000) as u64;
        self.after(next, Event::Records);
        // The outcome of a write at a process that has ended is not known, but it takes no effect
        // any more.
        self.records.writing =
            self.records.writing.filter(|(node, incarnation)| self.nodes[*node].incarnation == *incarnation);
        let node = self.records.rng.below(self.nodes.len());
        let Some(process) = &self.nodes[node].process else { return };
        if self.records.writing.is_none() && self.records.rng.below(2) == 0 {
            self.records.sent += 1;
            self.records.writing = Some((node, self.nodes[node].incarnation));
            process.write_record(self.records.sent);
        } else {
            let RecordModel { acked: floor, epoch, .. } = self.records;
            process.read_record(RecordRead { node, floor, epoch });
        }
        self.run_node(node);
    }

    /// Handles the result of the write in progress.
    pub(super) fn end_record_write(&mut self, value: u64, result: &Result<(), NotServed>) {
        if value != self.records.sent {
            return;
        }
        self.records.writing = None;
        if result.is_ok() {
            self.records.acked = value;
            self.totals.record_writes += 1;
        }
    }

    /// Checks a value that was read.
    ///
    /// # Errors
    /// It is an earlier one than it may be.
    pub(super) fn check_record(&mut self, read: RecordRead, found: Option<u64>) -> Result<(), Violation> {
        let RecordRead { node, floor, epoch } = read;
        self.totals.record_reads += 1;
        let found = found.unwrap_or(0);
        if epoch == self.records.epoch && found < floor || found > self.records.sent {
            return Err(Violation::OldRecord { node, floor, found });
        }
        if epoch == self.records.epoch {
            // What was shown must not be lost.
            self.records.acked = self.records.acked.max(found);
        }
        Ok(())
    }
}

/// Writes the value at a master.
pub(super) async fn write(shared: &MasterShared<SimEnv>, value: u64) -> Result<(), NotServed> {
    let put = move |_: &mut MetadataTable| {
        let value = Cow::Owned(value.to_le_bytes().to_vec());
        vec![MetadataChange::Put { key: Cow::Borrowed(KEY), value }]
    };
    shared.change(Box::new(put)).await
}

/// Reads the value at a master.
pub(super) async fn read(shared: &MasterShared<SimEnv>) -> Result<Option<u64>, NotServed> {
    let number = |value: Bytes| u64::from_le_bytes(value.as_ref().try_into().expect("eight bytes were written"));
    Ok(shared.get(KEY).await?.map(number))
}
