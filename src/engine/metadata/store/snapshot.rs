//! Snapshots of the records.

use bytes::Bytes;

use crate::change::ChangePayload;
use crate::records::TableImage;
use crate::restore::digest;
use crate::store::RecordStore;
use mcctl_journal::{CommitLog, LoggedState, SnapshotBegin, SnapshotSlice, SnapshotSource, SnapshotTrailer};

/// A chunk of a snapshot is complete when it has this size.
const CHUNK_BYTES: usize = 1 << 20;

/// A snapshot that is being written.
pub(super) struct RecordSnapshot {
    records: Vec<(Bytes, Bytes)>,
    /// Number of records in the chunks so far.
    written: usize,
    /// The last chunk is complete.
    is_complete: bool,
}

impl RecordSnapshot {
    fn new(image: TableImage) -> RecordSnapshot {
        RecordSnapshot { records: image.into_records(), written: 0, is_complete: false }
    }

    /// The next chunk. The last one may contain no records.
    fn next(&mut self) -> SnapshotSlice {
        if self.is_complete {
            let items = self.records.len() as u64;
            return SnapshotSlice::Done(SnapshotTrailer { items, digest: digest(&self.records) });
        }
        let mut payload = ChangePayload::new();
        while let Some((key, value)) = self.records.get(self.written)
            && payload.bytes().len() < CHUNK_BYTES
        {
            payload.push_put(key, value);
            self.written += 1;
        }
        self.is_complete = payload.bytes().len() < CHUNK_BYTES;
        SnapshotSlice::Chunk(payload.into_bytes())
    }
}

impl LoggedState for RecordStore {}

impl SnapshotSource for RecordStore {
    type Log = CommitLog;

    /// A step writes one chunk. The table is locked only at the beginning.
    const SLOTS_PER_STEP: u32 = 1;

    fn begin(&self, log: &CommitLog, _: bool) -> SnapshotBegin {
        let table = self.table().lock();
        if log.has_failed() {
            // The table may contain changes that the log does not.
            return SnapshotBegin::NotNow;
        }
        let begun = SnapshotBegin::Begun { last: log.writer.appended(), log_bytes: log.log_bytes() };
        let image = table.image();
        drop(table);
        *self.snapshot() = Some(RecordSnapshot::new(image));
        begun
    }

    fn slots(&self, _: u32, _: bool) -> Option<SnapshotSlice> {
        let mut snapshot = self.snapshot();
        let slice = snapshot.as_mut()?.next();
        if matches!(slice, SnapshotSlice::Done(_)) {
            *snapshot = None;
        }
        Some(slice)
    }

    fn cancel(&self) {
        *self.snapshot() = None;
    }
}
