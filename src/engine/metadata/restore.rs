//! Reads the records from a data directory: the newest snapshot, and the changes after it.

use bytes::Bytes;
use crc32c::crc32c_append;

use crate::change::{ChangeReader, MetadataChangeError, MetadataChangeProblem};
use crate::records::MetadataTable;
use crate::store::SUBJECT;
use mcctl_journal::{CHUNK_KIND, DataDir, JournalError, RecoveredItem, RecoveryReport, WrittenBy};

/// Why a metadata service cannot start from its data directory.
#[derive(Debug, thiserror::Error)]
pub enum MetadataJournalError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A change in the log does not fit the records, or an unknown program wrote it.
    #[error("{file}: cannot apply change {sequence} at offset {offset}{}: {source}", WrittenBy(.writer))]
    Change { file: String, offset: u64, sequence: u64, writer: Option<String>, source: MetadataChangeError },
    /// A chunk of a snapshot does not contain records, or an unknown program wrote it.
    #[error("{file}: cannot apply chunk {chunk}{}: {source}", WrittenBy(.writer))]
    Chunk { file: String, chunk: u64, writer: Option<String>, source: MetadataChangeError },
    /// The records in a snapshot differ from those that were written.
    #[error("{file}: the snapshot contains {found} records instead of {expected}, or their digest is different")]
    Digest { file: String, expected: u64, found: u64 },
}

/// What a metadata service was restored from.
#[derive(Clone, Debug)]
pub struct MetadataRestoreReport {
    /// Number of records in the restored table.
    pub records: usize,
    pub recovery: RecoveryReport,
}

impl MetadataRestoreReport {
    /// Logs what was restored, and what could not be.
    pub(crate) fn log(&self) {
        self.recovery.log_damage(SUBJECT.of);
        tracing::info!(records = self.records, log_changes = self.recovery.records, "metadata records restored");
    }
}

/// The records of a data directory.
#[derive(Debug)]
pub(crate) struct RestoredTable {
    pub table: MetadataTable,
    pub recovery: RecoveryReport,
    /// Size of the chunks of the snapshot, in bytes.
    pub snapshot_bytes: u64,
}

/// Reads the records. Changes nothing on the disk.
///
/// # Errors
/// The directory is damaged or of an unknown version, or the disk reports an error.
pub(crate) fn restore(dir: &DataDir) -> Result<RestoredTable, MetadataJournalError> {
    let mut table = MetadataTable::default();
    let mut snapshot_bytes = 0;
    let mut snapshot = String::new();
    let mut chunk = 0;
    let recovery = dir.recover(|item| {
        match item {
            RecoveredItem::SnapshotBegin { file, .. } => file.clone_into(&mut snapshot),
            RecoveredItem::SnapshotChunk { kind, payload } => {
                let applied = check_kind(kind).and_then(|()| apply(&mut table, payload));
                applied.map_err(|source| {
                    let file = snapshot.clone();
                    let writer = dir.writer_of(&snapshot);
                    MetadataJournalError::Chunk { file, chunk, writer, source }
                })?;
                chunk += 1;
                snapshot_bytes += payload.len() as u64;
            }
            RecoveredItem::SnapshotEnd(summary) => {
                let records = table.image().into_records();
                let found = records.len() as u64;
                if (found, digest(&records)) != (summary.items, summary.digest) {
                    let file = snapshot.clone();
                    return Err(MetadataJournalError::Digest { file, expected: summary.items, found });
                }
            }
            RecoveredItem::Record { sequence, payload, file, offset, .. } => {
                apply(&mut table, payload).map_err(|source| {
                    let (file, writer) = (file.to_owned(), dir.writer_of(file));
                    MetadataJournalError::Change { file, offset, sequence, writer, source }
                })?;
            }
        }
        Ok(())
    })?;
    Ok(RestoredTable { table, recovery, snapshot_bytes })
}

fn check_kind(kind: u8) -> Result<(), MetadataChangeError> {
    let problem = MetadataChangeProblem::UnknownChunk(kind);
    if kind == CHUNK_KIND { Ok(()) } else { Err(MetadataChangeError { position: 0, problem }) }
}

/// Applies the changes of a payload.
fn apply(table: &mut MetadataTable, payload: &[u8]) -> Result<(), MetadataChangeError> {
    let mut reader = ChangeReader::new(payload)?;
    loop {
        let position = reader.position();
        let Some(change) = reader.next()? else { return Ok(()) };
        if !table.apply(&change) {
            return Err(MetadataChangeError { position, problem: MetadataChangeProblem::NoRecord });
        }
    }
}

/// The digest of records in the order in which they were written, because later decisions depend on
/// the order.
pub(crate) fn digest(records: &[(Bytes, Bytes)]) -> u64 {
    let parts = records.iter().flat_map(|(key, value)| [key, value]);
    let crc = parts.fold(0, |crc, part| crc32c_append(crc32c_append(crc, &(part.len() as u64).to_le_bytes()), part));
    u64::from(crc)
}

/// The records in a directory, in the order in which they were written. Changes nothing on the
/// disk.
///
/// # Errors
/// The directory is damaged or of an unknown version, or the disk reports an error.
pub fn read_records(dir: &DataDir) -> Result<Vec<(Bytes, Bytes)>, MetadataJournalError> {
    Ok(restore(dir)?.table.image().into_records())
}
