//! Tests of whole data directories on a simulated disk.

mod crash;
mod damage;
mod directory;
mod disk;
mod live_reader;
mod log;
mod log_end;
mod mistakes;
mod snapshots;
mod threads;

use std::sync::Arc;

use crate::{
    DataDir, DataDirOptions, ExistingData, JournalError, LogConfig, LogWriter, RecoveredItem, RecoveryReport,
    SimulatedStorage, SnapshotTrailer, Uuid,
};
use mcctl_base::Unix;

/// Files of 2 KiB, so that a few frames fill one.
const SMALL: LogConfig = LogConfig { file_bytes: 2048, buffer_bytes: 64 << 10 };

/// An entry that the tests append: a payload and its time.
type Entry = (Vec<u8>, Unix);

pub(super) fn options(boot_id: Uuid) -> DataDirOptions<'static> {
    DataDirOptions { cluster_id: "cluster", boot_id, new_uuid: Uuid(77), existing: ExistingData::Keep }
}

fn open(storage: &SimulatedStorage) -> Result<DataDir, JournalError> {
    DataDir::open(Arc::new(storage.clone()), &options(storage.boot_id()))
}

/// The recovered entries. Snapshots of the tests contain all entries up to their sequence number.
struct RecoveredEntries {
    entries: Vec<Entry>,
    /// The first sequence number that is not the next one.
    gap: Option<u64>,
    report: RecoveryReport,
}

fn recover(dir: &DataDir) -> Result<RecoveredEntries, JournalError> {
    let mut entries = Vec::new();
    let mut gap = None;
    let report = dir.recover(|item| {
        match item {
            RecoveredItem::SnapshotBegin { .. } => assert_eq!(entries, [], "a snapshot comes first"),
            RecoveredItem::SnapshotChunk { payload, .. } => entries.extend(decode(payload)),
            RecoveredItem::SnapshotEnd(_) => {}
            RecoveredItem::Record { sequence, at, payload, .. } => {
                if sequence != entries.len() as u64 + 1 {
                    gap.get_or_insert(sequence);
                }
                entries.push((payload.to_vec(), at));
            }
        }
        Ok::<(), JournalError>(())
    })?;
    if gap.is_none() && report.last_sequence != entries.len() as u64 {
        gap = Some(report.last_sequence + 1);
    }
    Ok(RecoveredEntries { entries, gap, report })
}

/// Opens a directory, and begins a log after the frames that it contains.
fn start(storage: &SimulatedStorage, config: LogConfig) -> (DataDir, LogWriter, Vec<Entry>) {
    let mut dir = open(storage).unwrap();
    let recovered = recover(&dir).unwrap();
    assert_eq!(recovered.gap, None);
    let log = dir.start_log(&recovered.report, config).unwrap();
    (dir, log, recovered.entries)
}

/// Appends entries with the payloads `entry-N`, and returns all entries.
fn append(log: &LogWriter, count: usize) -> Vec<Entry> {
    for _ in 0..count {
        let (payload, at) = entry(log.appended() + 1);
        log.append(&payload, at).unwrap();
    }
    entries(log.appended())
}

fn entry(sequence: u64) -> Entry {
    (format!("entry-{sequence:060}").into_bytes(), Unix(1_000_000 + sequence.cast_signed()))
}

/// The first entries, as [`append`] writes them.
fn entries(count: u64) -> Vec<Entry> {
    (1..=count).map(entry).collect()
}

/// Writes a snapshot of `entries`, with `per_chunk` of them in each chunk.
fn snapshot(dir: &DataDir, log: &LogWriter, entries: &[Entry], per_chunk: usize) -> Result<(), JournalError> {
    let mut snapshot = dir.begin_snapshot(entries.len() as u64, Unix(5))?;
    for chunk in entries.chunks(per_chunk) {
        snapshot.chunk(1, &encode(chunk))?;
    }
    dir.publish_snapshot(snapshot, summary(entries), log)
}

fn summary(entries: &[Entry]) -> SnapshotTrailer {
    SnapshotTrailer { items: entries.len() as u64, digest: u64::from(crc32c::crc32c(&encode(entries))) }
}

fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for (payload, at) in entries {
        out.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        out.extend_from_slice(&at.0.to_le_bytes());
        out.extend_from_slice(payload);
    }
    out
}

fn decode(mut bytes: &[u8]) -> Vec<Entry> {
    let mut out = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<16>() {
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
        let (payload, rest) = rest.split_at(usize::try_from(word(0)).unwrap());
        out.push((payload.to_vec(), Unix(word(8).cast_signed())));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    out
}
