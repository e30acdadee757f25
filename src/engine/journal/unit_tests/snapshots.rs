//! Snapshots: their files, and which ones are kept.

use crate::unit_tests::{SMALL, append, open, recover, snapshot, start};
use crate::{
    CHUNK_BYTES_MAX, Crash, JournalError, JournalStorage, RecoveredItem, RecoveredSnapshot, SimulatedStorage,
    SnapshotTrailer, StorageOperation,
};
use mcctl_base::Unix;

const SUMMARY: SnapshotTrailer = SnapshotTrailer { items: 3, digest: u64::MAX };

#[test]
fn a_large_snapshot_is_written_and_synced_in_pieces() {
    let storage = SimulatedStorage::new(1);
    let (dir, log, _) = start(&storage, SMALL);
    let chunk = |number: u8| (number, vec![number; 300_000 + usize::from(number)]);
    let count = |operation| storage.operations()[&operation];
    let writes = count(StorageOperation::Write);
    let syncs = count(StorageOperation::Sync);
    let mut snapshot = dir.begin_snapshot(0, Unix(9)).unwrap();
    for (kind, payload) in (0..40).map(chunk) {
        snapshot.chunk(kind, &payload).unwrap();
    }
    dir.publish_snapshot(snapshot, SUMMARY, &log).unwrap();
    // 12 MB: one write for each chunk and one for the trailer, a sync after 8 MiB and one at the
    // end.
    assert_eq!((count(StorageOperation::Write) - writes, count(StorageOperation::Sync) - syncs), (41, 2));

    let storage = storage.crash(Crash::Power);
    let mut found = Vec::new();
    let report = open(&storage).unwrap().recover(|item| {
        if let RecoveredItem::SnapshotChunk { kind, payload } = item {
            found.push((kind, payload.to_vec()));
        }
        Ok::<(), JournalError>(())
    });
    assert!(found.iter().eq((0..40).map(chunk).collect::<Vec<_>>().iter()));
    let expected = RecoveredSnapshot { sequence: 0, written: Unix(9), chunks: 40, summary: SUMMARY };
    assert_eq!(report.unwrap().snapshot, Some(expected));
}

#[test]
fn chunks_are_delivered_between_begin_and_end_before_the_log() {
    let storage = SimulatedStorage::new(1);
    let (dir, log, _) = start(&storage, SMALL);
    append(&log, 2);
    let mut snapshot = dir.begin_snapshot(2, Unix(7)).unwrap();
    snapshot.chunk(254, b"").unwrap();
    append(&log, 1);
    snapshot.chunk(0, b"second").unwrap();
    dir.publish_snapshot(snapshot, SUMMARY, &log).unwrap();
    let mut items = Vec::new();
    let storage = storage.crash(Crash::Kill);
    let visit = |item: RecoveredItem<'_>| {
        items.push(match item {
            RecoveredItem::SnapshotBegin { sequence, written, .. } => format!("begin {sequence} {}", written.0),
            RecoveredItem::SnapshotChunk { kind, payload } => format!("chunk {kind} {}", payload.len()),
            RecoveredItem::SnapshotEnd(summary) => format!("end {}", summary.items),
            RecoveredItem::Record { sequence, at, file, offset, .. } => {
                format!("record {sequence} {} {file} {offset}", at.0)
            }
        });
        Ok::<(), JournalError>(())
    };
    open(&storage).unwrap().recover(visit).unwrap();
    let record = "record 3 1000003 log-0000000001 700";
    assert_eq!(items, ["begin 2 7", "chunk 254 0", "chunk 0 6", "end 3", record]);
}

#[test]
fn a_visitor_ends_the_recovery_with_its_error() {
    #[derive(Debug, PartialEq)]
    struct Refused(u64);
    impl From<JournalError> for Refused {
        fn from(_: JournalError) -> Refused {
            Refused(0)
        }
    }
    let storage = SimulatedStorage::new(1);
    let (_dir, log, _) = start(&storage, SMALL);
    append(&log, 3);
    log.flush(3).unwrap();
    let result = open(&storage.crash(Crash::Kill)).unwrap().recover(|item| match item {
        RecoveredItem::Record { sequence: 2, .. } => Err(Refused(2)),
        _ => Ok(()),
    });
    assert_eq!(result.err(), Some(Refused(2)));
}

#[test]
fn a_chunk_that_is_too_large_is_refused() {
    let storage = SimulatedStorage::new(1);
    let (dir, _log, _) = start(&storage, SMALL);
    let mut snapshot = dir.begin_snapshot(0, Unix(1)).unwrap();
    let result = snapshot.chunk(1, &vec![0; CHUNK_BYTES_MAX + 1]);
    assert!(matches!(result, Err(JournalError::PayloadTooLarge { limit: CHUNK_BYTES_MAX, .. })));
}

#[test]
fn a_second_snapshot_of_the_same_state_replaces_the_first() {
    let storage = SimulatedStorage::new(1);
    let (dir, log, _) = start(&storage, SMALL);
    let entries = append(&log, 20);
    for per_chunk in [3, 4] {
        snapshot(&dir, &log, &entries, per_chunk).unwrap();
    }
    assert_eq!(storage.list().unwrap().iter().filter(|name| name.starts_with("snapshot-")).count(), 1);
    let found = recover(&open(&storage.crash(Crash::Power)).unwrap()).unwrap();
    assert_eq!((found.entries, found.report.snapshot.map(|snapshot| snapshot.chunks)), (entries, Some(5)));
}

#[test]
fn a_snapshot_that_was_not_published_leaves_nothing() {
    let storage = SimulatedStorage::new(1);
    let (dir, log, _) = start(&storage, SMALL);
    let entries = append(&log, 3);
    log.flush(3).unwrap();
    dir.begin_snapshot(3, Unix(1)).unwrap().chunk(1, &[0; 300_000]).unwrap();
    let storage = storage.crash(Crash::Kill);
    let found = recover(&open(&storage).unwrap()).unwrap();
    assert_eq!((found.entries, found.report.snapshot), (entries, None));
    assert!(storage.list().unwrap().iter().all(|name| !name.starts_with("snapshot-")));
}

#[test]
fn an_interrupted_start_does_not_hide_that_the_host_has_restarted() {
    let storage = SimulatedStorage::new(1);
    let (dir, log, _) = start(&storage, SMALL);
    let entries = append(&log, 3);
    snapshot(&dir, &log, &entries, 2).unwrap();
    let mut storage = storage.crash(Crash::Power);
    for _ in 0..3 {
        assert!(!recover(&open(&storage).unwrap()).unwrap().report.same_boot);
        // The process ends before it writes a frame to its file.
        start(&storage, SMALL);
        storage = storage.crash(Crash::Kill);
    }
    let (_dir, log, _) = start(&storage, SMALL);
    append(&log, 1);
    log.sync(4).unwrap();
    assert!(recover(&open(&storage.crash(Crash::Kill)).unwrap()).unwrap().report.same_boot);
}
