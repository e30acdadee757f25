//! Damaged directories, and data of an unknown version.

use crate::change::MetadataChangeProblem;
use crate::restore::{MetadataJournalError, restore as read};
use crate::store::tests::{AT, RAM, RPC, meta, open, options, restore, restored};
use mcctl_journal::{CHUNK_KIND, Corruption, Crash, DiskErrorPolicy, JournalError, SimulatedStorage, SyncMode};

fn refusal(storage: &SimulatedStorage) -> MetadataJournalError {
    restore(storage, options(SyncMode::Never, DiskErrorPolicy::Stop)).map(|(store, _)| store.len()).unwrap_err()
}

#[test]
fn a_damaged_log_is_refused_with_file_and_offset() {
    let storage = SimulatedStorage::new(1);
    let (mut store, _) = restored(&storage);
    store.fill(0..3).unwrap();
    let storage = storage.crash(Crash::Kill);
    let mut bytes = storage.contents("log-0000000001").unwrap();
    // In the first frame, after the file's header.
    bytes[512 + 50] ^= 1;
    storage.damage("log-0000000001", bytes);
    match refusal(&storage) {
        MetadataJournalError::Journal(JournalError::Corrupt { file, offset, what }) => {
            assert_eq!((&*file, offset), ("log-0000000001", 512));
            assert_eq!(what, Corruption::Frame { expected: 1, next: 2 });
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_damaged_newest_snapshot_is_replaced_by_the_older_one_and_the_log() {
    let storage = SimulatedStorage::new(2);
    let (mut store, _) = restored(&storage);
    for names in [0..5, 5..8] {
        store.fill(names).unwrap();
        assert!(store.write_snapshot());
    }
    store.fill(8..10).unwrap();
    let storage = storage.crash(Crash::Kill);
    let name = "snapshot-00000000000000000008";
    let bytes = storage.contents(name).unwrap();
    storage.damage(name, bytes[..bytes.len() - 1].to_vec());
    let (store, report) = restored(&storage);
    let sequence = report.recovery.snapshot.map(|snapshot| snapshot.sequence);
    assert_eq!((report.records, store.len(), sequence), (10, 10, Some(5)));
    assert_eq!(report.recovery.damaged_snapshots.len(), 1);
}

/// The refusal of a directory whose log has this payload after one of the service.
fn refusal_of(payload: &[u8]) -> MetadataJournalError {
    let storage = SimulatedStorage::new(3);
    let (mut store, _) = restored(&storage);
    store.put(RPC, &meta(1), AT).unwrap();
    store.commit().unwrap();
    let storage = storage.crash(Crash::Kill);
    let mut dir = open(&storage).unwrap();
    let recovered = read(&dir).unwrap().recovery;
    let log = dir.start_log(&recovered, options(SyncMode::Never, DiskErrorPolicy::Stop).log).unwrap();
    log.append(payload, AT).unwrap();
    log.sync(2).unwrap();
    refusal(&storage.crash(Crash::Power))
}

#[test]
fn a_change_of_an_unknown_version_is_refused_with_its_position() {
    for (payload, position, problem) in [
        (&b"\x09\x01"[..], 0, MetadataChangeProblem::UnknownFormat(9)),
        (b"\x01\x09", 1, MetadataChangeProblem::UnknownTag(9)),
        (b"\x01\x02\x01\0\0\0k", 1, MetadataChangeProblem::NoRecord),
        (b"\x01\x02\x02\0\0\0k", 6, MetadataChangeProblem::Short),
    ] {
        match refusal_of(payload) {
            MetadataJournalError::Change { file, offset, sequence, writer, source } => {
                assert!(writer.is_some_and(|writer| writer.starts_with("mcctl ")));
                assert_eq!((&*file, offset, sequence), ("log-0000000002", 512, 2));
                assert_eq!((source.position, source.problem), (position, problem));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_snapshot_of_an_unknown_version_is_refused_with_its_chunk() {
    let cases = [
        (CHUNK_KIND, &b"\x09"[..], MetadataChangeProblem::UnknownFormat(9)),
        (CHUNK_KIND + 1, b"\x01", MetadataChangeProblem::UnknownChunk(CHUNK_KIND + 1)),
    ];
    for (kind, payload, problem) in cases {
        let storage = SimulatedStorage::new(4);
        let mut dir = open(&storage).unwrap();
        let recovered = read(&dir).unwrap().recovery;
        let log = dir.start_log(&recovered, options(SyncMode::Never, DiskErrorPolicy::Stop).log).unwrap();
        log.append(b"\x01", AT).unwrap();
        let mut snapshot = dir.begin_snapshot(1, AT).unwrap();
        snapshot.chunk(CHUNK_KIND, b"\x01").unwrap();
        snapshot.chunk(kind, payload).unwrap();
        dir.publish_snapshot(snapshot, mcctl_journal::SnapshotTrailer { items: 0, digest: 0 }, &log).unwrap();
        match refusal(&storage.crash(Crash::Kill)) {
            MetadataJournalError::Chunk { file, chunk, writer, source } => {
                assert!(writer.is_some_and(|writer| writer.starts_with("mcctl ")));
                assert_eq!((&*file, chunk), ("snapshot-00000000000000000001", 1));
                assert_eq!(source.problem, problem);
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_snapshot_with_other_records_than_written_is_refused() {
    let storage = SimulatedStorage::new(5);
    let mut dir = open(&storage).unwrap();
    let recovered = read(&dir).unwrap().recovery;
    let log = dir.start_log(&recovered, options(SyncMode::Never, DiskErrorPolicy::Stop).log).unwrap();
    log.append(b"\x01", AT).unwrap();
    let snapshot = dir.begin_snapshot(1, AT).unwrap();
    dir.publish_snapshot(snapshot, mcctl_journal::SnapshotTrailer { items: 1, digest: 0 }, &log).unwrap();
    match refusal(&storage.crash(Crash::Kill)) {
        MetadataJournalError::Digest { expected: 1, found: 0, .. } => {}
        other => panic!("{other}"),
    }
}

#[test]
fn the_mark_of_an_expired_owner_is_not_kept() {
    let storage = SimulatedStorage::new(6);
    let (mut store, _) = restored(&storage);
    store.put(RPC, &meta(1), AT).unwrap();
    store.put(RAM, b"descriptor", AT).unwrap();
    store.table().lock().mark_owner_expired(&crate::KeySpace::default(), "a");
    store.commit().unwrap();
    let (store, _) = restored(&storage.crash(Crash::Kill));
    // The owner is probed, and its name is then taken over.
    let put = store.put(RPC, &meta(2), AT).unwrap();
    assert!(matches!(put, crate::records::WriteOutcome::Conflict { owner: Some(_), .. }));
}
