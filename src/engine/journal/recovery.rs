//! Recovery: the newest valid snapshot, and the log after it.

use crate::emptying::list;
use crate::error::JournalError;
use crate::log_end::{LogEnd, TornTail};
use crate::log_reader::LogReader;
use crate::names;
use crate::snapshot::SnapshotTrailer;
use crate::snapshot_reader::{SnapshotPart, SnapshotReader};
use crate::storage::JournalStorage;
use crate::uuid::Uuid;
use mcctl_base::Unix;

/// A part of the recovered data. A snapshot, if there is one, is delivered first: its beginning,
/// its chunks and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveredItem<'a> {
    /// A snapshot of the state after frame `sequence`, begun at `written`. `file` is its name, for
    /// error messages.
    SnapshotBegin { sequence: u64, written: Unix, file: &'a str },
    /// A chunk as it was passed to `SnapshotWriter::chunk`.
    SnapshotChunk { kind: u8, payload: &'a [u8] },
    /// All chunks were delivered. The reader compares the summary with what it has read.
    SnapshotEnd(SnapshotTrailer),
    /// A payload of the log, with its position for error messages.
    Record { sequence: u64, at: Unix, payload: &'a [u8], file: &'a str, offset: u64 },
}

/// The snapshot that the state was recovered from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredSnapshot {
    pub sequence: u64,
    pub written: Unix,
    pub chunks: u64,
    pub summary: SnapshotTrailer,
}

/// The result of a recovery.
#[derive(Clone, Debug)]
pub struct RecoveryReport {
    pub snapshot: Option<RecoveredSnapshot>,
    /// Newer snapshots that are damaged, newest first, with the reason. The log contains the same
    /// changes.
    pub damaged_snapshots: Vec<(u64, JournalError)>,
    /// The number of log payloads that were delivered.
    pub records: u64,
    /// The sequence number of the last payload, or that of the snapshot if none follows it.
    pub last_sequence: u64,
    /// The last frame was written since the kernel started, or there is none. Otherwise, the host
    /// may have lost power, and frames that were not durable may be missing.
    pub same_boot: bool,
    /// The incomplete end of the log, which is not recovered.
    pub torn: Option<TornTail>,
    /// Snapshots that are not known to be damaged, oldest first.
    pub(super) generations: Vec<u64>,
    pub(super) log: LogEnd,
}

impl RecoveryReport {
    /// Number of log files that were read and contain frames.
    pub fn log_files(&self) -> usize {
        self.log.kept.saturating_sub(self.log.read_from)
    }

    /// Logs what could not be recovered. `of`: what the data is of, as in
    /// [`LogSubject::of`](crate::LogSubject::of).
    pub fn log_damage(&self, of: &str) {
        for (sequence, error) in &self.damaged_snapshots {
            tracing::warn!(%error, sequence, "a snapshot{of} is damaged; an older one and the log contain the same changes");
        }
        if let Some(torn) = &self.torn {
            tracing::warn!(
                file = torn.file,
                offset = torn.offset,
                bytes = torn.bytes,
                "the end of the log{of} is incomplete and was ignored: the last process, or its host, ended while writing it"
            );
        }
    }
}

/// The files of a directory that recovery reads.
pub(super) struct RecoverySource<'a> {
    pub storage: &'a dyn JournalStorage,
    pub directory: Uuid,
    pub boot: Uuid,
}

impl RecoverySource<'_> {
    /// Delivers the newest valid snapshot and the log after it.
    ///
    /// # Errors
    /// Errors of `visit`; `Corrupt` if no snapshot and log together are complete; `UnknownFormat`;
    /// the disk reports an error. After an error, the delivered items are not the complete state.
    pub(super) fn recover<E: From<JournalError>>(
        &self,
        mut visit: impl FnMut(RecoveredItem<'_>) -> Result<(), E>,
    ) -> Result<RecoveryReport, E> {
        let names = list(self.storage)?;
        let mut generations: Vec<u64> = names.iter().filter_map(|name| names::snapshot_sequence(name)).collect();
        generations.sort_unstable();
        let damaged = self.drop_damaged(&mut generations)?;
        let snapshot = match generations.last() {
            Some(sequence) => Some(self.deliver_snapshot(*sequence, &mut visit)?),
            None => None,
        };
        let numbers = names.iter().filter_map(|name| names::log_number(name)).collect();
        let reader = LogReader::new(self.storage, self.directory, self.boot, numbers)?;
        let needed = snapshot.map_or(1, |snapshot| snapshot.sequence + 1);
        // If the log cannot replace a damaged snapshot, the snapshot is the cause.
        let cause = |error: JournalError| damaged.first().map_or(error, |(_, cause)| cause.clone());
        let read_from = reader.first_needed_file(needed).map_err(cause)?;
        let log = reader.read(needed, read_from, |logged| {
            let frame = logged.frame;
            let file = logged.file;
            let offset = logged.offset;
            visit(RecoveredItem::Record {
                sequence: frame.sequence,
                at: frame.at,
                payload: frame.payload,
                file,
                offset,
            })
        })?;
        if let Some((_, error)) = damaged.first().filter(|(sequence, _)| *sequence > log.last) {
            return Err(error.clone().into());
        }
        Ok(RecoveryReport {
            snapshot,
            damaged_snapshots: damaged,
            records: log.frames,
            last_sequence: log.last,
            same_boot: log.same_boot,
            torn: log.torn.clone(),
            generations,
            log,
        })
    }

    /// Removes the damaged snapshots from the end of `generations`, until the last one is valid.
    fn drop_damaged(&self, generations: &mut Vec<u64>) -> Result<Vec<(u64, JournalError)>, JournalError> {
        let mut damaged = Vec::new();
        while let Some(&sequence) = generations.last() {
            match self.open(sequence).and_then(SnapshotReader::verify) {
                Ok(()) => break,
                Err(error @ JournalError::Corrupt { .. }) => damaged.push((sequence, error)),
                Err(error) => return Err(error),
            }
            generations.pop();
        }
        Ok(damaged)
    }

    fn open(&self, sequence: u64) -> Result<SnapshotReader, JournalError> {
        SnapshotReader::open(self.storage, self.directory, sequence)
    }

    fn deliver_snapshot<E: From<JournalError>>(
        &self,
        sequence: u64,
        visit: &mut impl FnMut(RecoveredItem<'_>) -> Result<(), E>,
    ) -> Result<RecoveredSnapshot, E> {
        let mut reader = self.open(sequence)?;
        let written = reader.written();
        let mut chunks = 0;
        let mut payload = Vec::new();
        visit(RecoveredItem::SnapshotBegin { sequence, written, file: &names::snapshot_name(sequence) })?;
        loop {
            match reader.next(&mut payload)? {
                SnapshotPart::Chunk(kind) => {
                    visit(RecoveredItem::SnapshotChunk { kind, payload: &payload })?;
                    chunks += 1;
                }
                SnapshotPart::End(summary) => {
                    visit(RecoveredItem::SnapshotEnd(summary))?;
                    return Ok(RecoveredSnapshot { sequence, written, chunks, summary });
                }
            }
        }
    }
}
