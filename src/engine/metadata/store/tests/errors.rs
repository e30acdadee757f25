//! The reactions of the service to an error of the disk.

use crate::store::tests::{AT, RAM, SteppedStore, open, options, restore, restored, snapshots};
use mcctl_journal::{Crash, DiskErrorPolicy, DiskFault, JournalError, SimulatedStorage, StorageOperation, SyncMode};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn fail(storage: &SimulatedStorage, operation: StorageOperation, errno: i32) {
    storage.set_fault(Some(DiskFault { operation, after: 0, errno, is_permanent: true }));
}

fn started(storage: &SimulatedStorage, sync: SyncMode, on_error: DiskErrorPolicy) -> SteppedStore {
    restore(storage, options(sync, on_error)).unwrap().0
}

fn operation(error: &JournalError) -> StorageOperation {
    match error {
        JournalError::Storage { operation, .. } => *operation,
        other => panic!("{other}"),
    }
}

#[test]
fn after_an_error_of_the_disk_no_write_is_accepted() {
    for sync in [SyncMode::Always, SyncMode::Never] {
        let storage = SimulatedStorage::new(1);
        let mut store = started(&storage, sync, DiskErrorPolicy::Stop);
        store.fill(0..1).unwrap();
        let broken = if sync == SyncMode::Always { StorageOperation::Sync } else { StorageOperation::Write };
        fail(&storage, broken, EIO);
        assert_eq!(operation(&store.fill(1..2).unwrap_err()), broken);
        storage.set_fault(None);
        assert_eq!(operation(&store.put(RAM, b"d", AT).unwrap_err()), broken);
        // A response that changes nothing may follow from a write that was not stored.
        assert_eq!(operation(&store.commit().unwrap_err()), broken);
        assert!(store.get(RAM).is_none());
        assert!(!store.write_snapshot());
        assert_eq!(snapshots(&storage), 0);
        let (store, _) = restored(&storage.crash(Crash::Kill));
        assert!(store.len() >= 1);
    }
}

#[test]
fn a_service_that_continues_in_memory_marks_its_directory_first() {
    for broken in [StorageOperation::Write, StorageOperation::Sync] {
        let storage = SimulatedStorage::new(2);
        let mut store = started(&storage, SyncMode::Always, DiskErrorPolicy::ContinueMemoryOnly);
        store.fill(0..1).unwrap();
        storage.set_fault(Some(DiskFault { operation: broken, after: 0, errno: EIO, is_permanent: false }));
        store.fill(1..4).unwrap();
        assert_eq!(storage.contents("validity").unwrap(), b"invalid\n");
        assert_eq!((store.log.unstored(0), store.len()), (None, 4));
        assert!(!store.write_snapshot());
        assert_eq!(snapshots(&storage), 0);
        let storage = storage.crash(Crash::Power);
        assert!(matches!(open(&storage), Err(JournalError::Invalidated { .. })));
    }
}

#[test]
fn a_write_after_an_unnoticed_error_waits_for_the_decision() {
    let storage = SimulatedStorage::new(3);
    let mut store = started(&storage, SyncMode::Never, DiskErrorPolicy::ContinueMemoryOnly);
    store.fill(0..1).unwrap();
    // The error reaches the snapshot, and not yet the service.
    store.put(RAM, b"1", AT).unwrap();
    storage.set_fault(Some(DiskFault {
        operation: StorageOperation::Write,
        after: 0,
        errno: EIO,
        is_permanent: false,
    }));
    assert!(!store.write_snapshot());
    store.put(RAM, b"2", AT).unwrap();
    assert!(store.log.unstored(0).is_some());
    assert_eq!(storage.contents("validity").unwrap(), b"valid  \n".to_vec());
    assert!(!store.write_snapshot());
    assert_eq!(snapshots(&storage), 0, "a snapshot would contain a change that is not in the log");
    store.commit().unwrap();
    assert_eq!((store.get(RAM), storage.contents("validity").unwrap()), (Some("2".into()), b"invalid\n".to_vec()));
}

#[test]
fn a_service_that_cannot_mark_its_directory_stops() {
    let storage = SimulatedStorage::new(4);
    let mut store = started(&storage, SyncMode::Never, DiskErrorPolicy::ContinueMemoryOnly);
    fail(&storage, StorageOperation::Write, EIO);
    assert_eq!(operation(&store.fill(0..1).unwrap_err()), StorageOperation::Write);
    assert!(store.put(RAM, b"d", AT).is_err());
}

#[test]
fn a_full_disk_is_an_error_only_when_no_file_has_room() {
    let storage = SimulatedStorage::new(5);
    let mut store = started(&storage, SyncMode::Never, DiskErrorPolicy::Stop);
    fail(&storage, StorageOperation::Create, ENOSPC);
    for name in 0.. {
        let result = store.fill(name..name + 1);
        let _ = store.log.writer.prepare_next();
        if let Err(error) = result {
            assert_eq!(operation(&error), StorageOperation::Create);
            assert!(name > 5, "{name}");
            break;
        }
    }
    let stored = store.len() - 1;
    let (store, _) = restored(&storage.crash(Crash::Kill));
    assert_eq!(store.len(), stored);
}

#[test]
fn a_snapshot_that_fails_does_not_end_the_log() {
    let storage = SimulatedStorage::new(6);
    let mut store = started(&storage, SyncMode::Never, DiskErrorPolicy::Stop);
    store.fill(0..2).unwrap();
    fail(&storage, StorageOperation::Rename, ENOSPC);
    assert!(!store.write_snapshot());
    storage.set_fault(None);
    store.fill(2..4).unwrap();
    assert!(store.write_snapshot());
    let (store, report) = restored(&storage.crash(Crash::Power));
    assert_eq!((store.len(), report.recovery.records), (4, 0));
}

#[test]
fn a_write_that_the_log_has_no_buffer_for_has_no_effect() {
    let storage = SimulatedStorage::new(7);
    let mut store = started(&storage, SyncMode::Never, DiskErrorPolicy::Stop);
    store.put(RAM, b"d", AT).unwrap();
    // Larger than a log file of this test.
    assert!(matches!(store.put(RAM, &[0; 4096], AT), Err(JournalError::PayloadTooLarge { .. })));
    assert_eq!(store.get(RAM), Some("d".into()));
    store.commit().unwrap();
    store.fill(0..1).unwrap();
}
