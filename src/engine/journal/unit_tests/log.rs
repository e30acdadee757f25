//! The log of a running process: files, limits and errors.

use crate::unit_tests::{SMALL, append, entries, open, recover, snapshot, start};
use crate::{
    Crash, DataDir, DiskFault, JournalError, JournalStorage, LogConfig, LogWriter, SimulatedStorage, StorageOperation,
};
use mcctl_base::Unix;

/// A frame of [`append`] has 94 bytes, so 16 of them fit into a file of 2048 bytes.
const FRAMES_PER_FILE: usize = 16;

fn new(config: LogConfig) -> (SimulatedStorage, DataDir, LogWriter) {
    let storage = SimulatedStorage::new(1);
    let (dir, log, found) = start(&storage, config);
    assert_eq!(found, []);
    (storage, dir, log)
}

fn log_files(storage: &SimulatedStorage) -> Vec<String> {
    storage.list().unwrap().into_iter().filter(|name| name.starts_with("log-")).collect()
}

fn writes(storage: &SimulatedStorage) -> u64 {
    storage.operations()[&StorageOperation::Write]
}

#[test]
fn one_write_and_its_mark_flush_everything_that_was_appended() {
    let (storage, _dir, log) = new(SMALL);
    let before = writes(&storage);
    append(&log, 5);
    assert_eq!((log.appended(), log.flushed(), log.durable()), (5, 0, 0));
    assert_eq!(log.flush(1).unwrap(), 5);
    assert_eq!(log.flush(5).unwrap(), 5);
    assert_eq!(writes(&storage) - before, 2, "the frames and the mark");
    assert_eq!((log.appended(), log.flushed(), log.durable()), (5, 5, 0));
    assert_eq!(log.sync(3).unwrap(), 5);
    let syncs = storage.operations()[&StorageOperation::Sync];
    assert_eq!(log.sync(u64::MAX).unwrap(), 5, "nothing is left to sync");
    assert_eq!((storage.operations()[&StorageOperation::Sync], writes(&storage) - before), (syncs, 2));
}

#[test]
fn frames_are_read_in_order_with_their_times() {
    let (storage, _dir, log) = new(SMALL);
    let expected = append(&log, 40);
    log.sync(40).unwrap();
    let next = storage.crash(Crash::Power);
    let dir = open(&next).unwrap();
    let found = recover(&dir).unwrap();
    assert_eq!(found.entries, expected);
    assert_eq!((found.report.records, found.report.torn, found.report.snapshot), (40, None, None));
}

#[test]
fn a_log_continues_in_the_file_that_was_prepared() {
    let (storage, _dir, log) = new(SMALL);
    append(&log, 5);
    log.flush(5).unwrap();
    assert!(!log.needs_next());
    append(&log, 1);
    log.flush(6).unwrap();
    assert!(log.needs_next());
    log.prepare_next().unwrap();
    assert!(!log.needs_next());
    assert_eq!(log_files(&storage), ["log-0000000001", "log-0000000002"]);
    let expected = append(&log, FRAMES_PER_FILE);
    assert_eq!(log.flush(22).unwrap(), 22);
    assert_eq!(recover(&open(&storage.crash(Crash::Kill)).unwrap()).unwrap().entries, expected);
}

#[test]
fn frames_wait_in_the_buffer_until_a_file_is_prepared() {
    let (storage, _dir, log) = new(SMALL);
    append(&log, FRAMES_PER_FILE + 3);
    assert_eq!(log.flush(19).unwrap(), FRAMES_PER_FILE as u64);
    append(&log, 1);
    assert_eq!(log.flush(20).unwrap(), FRAMES_PER_FILE as u64);
    log.prepare_next().unwrap();
    let expected = append(&log, 1);
    assert_eq!(log.flush(18).unwrap(), 21);
    assert_eq!(recover(&open(&storage.crash(Crash::Kill)).unwrap()).unwrap().entries, expected);
}

#[test]
fn a_sync_creates_the_files_that_it_needs() {
    let (storage, _dir, log) = new(SMALL);
    let expected = append(&log, 5 * FRAMES_PER_FILE);
    assert_eq!(log.sync(1).unwrap(), FRAMES_PER_FILE as u64);
    assert_eq!(log.sync(80).unwrap(), 80);
    assert_eq!(recover(&open(&storage.crash(Crash::Power)).unwrap()).unwrap().entries, expected);
}

#[test]
fn a_full_buffer_refuses_frames_and_loses_none() {
    let (storage, _dir, log) = new(LogConfig { buffer_bytes: 1000, ..SMALL });
    append(&log, FRAMES_PER_FILE / 2);
    log.flush(8).unwrap();
    append(&log, 10);
    match log.append(&[1; 40], Unix(1)) {
        Err(JournalError::LogFull { buffered: 940, limit: 1000 }) => {}
        other => panic!("{other:?}"),
    }
    log.flush(18).unwrap();
    let expected = append(&log, 1);
    log.sync(19).unwrap();
    assert_eq!(recover(&open(&storage.crash(Crash::Power)).unwrap()).unwrap().entries, expected);
}

#[test]
fn a_log_has_room_while_its_files_and_its_buffer_have() {
    let (_storage, _dir, log) = new(SMALL);
    // 1536 bytes fit into the file, and 128 of them are reserved.
    append(&log, FRAMES_PER_FILE - 2);
    assert!(log.has_room());
    append(&log, 1);
    assert!(!log.has_room(), "before and after the flush");
    log.flush(15).unwrap();
    assert!(!log.has_room());
    log.prepare_next().unwrap();
    assert!(log.has_room() && !log.is_overfull());

    let (_storage, _dir, log) = new(LogConfig { buffer_bytes: 1000, ..SMALL });
    append(&log, 5);
    assert!(log.has_room());
    append(&log, 1);
    assert_eq!((log.has_room(), log.unflushed_bytes()), (false, 564));
    for _ in 0..5 {
        log.append_admitted(&[1; 66], Unix(1)).unwrap();
    }
    assert!(log.is_overfull(), "an admitted change is never refused");
    assert_eq!(log.flush(11).unwrap(), 11);
    assert!(log.has_room() && log.unflushed_bytes() == 0);
}

#[test]
fn a_payload_that_does_not_fit_into_a_file_is_refused() {
    let (_storage, _dir, log) = new(SMALL);
    let limit = log.payload_bytes_max();
    assert_eq!(limit, 2048 - 512 - 28);
    assert_eq!(log.append(&vec![1; limit], Unix(1)).unwrap(), 1);
    assert_eq!(log.flush(1).unwrap(), 1);
    match log.append(&vec![1; limit + 1], Unix(1)) {
        Err(JournalError::PayloadTooLarge { bytes, limit: found }) => assert_eq!((bytes, found), (limit + 1, limit)),
        other => panic!("{other:?}"),
    }
    assert_eq!(log.appended(), 1);
}

#[test]
fn a_full_disk_is_detected_before_the_file_is_needed() {
    let (storage, _dir, log) = new(SMALL);
    append(&log, FRAMES_PER_FILE);
    log.flush(16).unwrap();
    let operation = StorageOperation::Create;
    storage.set_fault(Some(DiskFault { operation, after: 0, errno: 28, is_permanent: true }));
    match log.prepare_next() {
        Err(JournalError::Storage { operation: StorageOperation::Create, file, cause, .. }) => {
            assert_eq!((&*file, cause.raw_os_error()), ("log-0000000002.tmp", Some(28)));
        }
        other => panic!("{other:?}"),
    }
    append(&log, 1);
    assert_eq!(log.flush(17).unwrap(), 16, "the log is usable");
    storage.set_fault(None);
    assert_eq!(log.sync(17).unwrap(), 17);
}

#[test]
fn after_a_failed_write_or_sync_the_log_is_unusable() {
    for operation in [StorageOperation::Write, StorageOperation::Sync] {
        let (storage, _dir, log) = new(SMALL);
        append(&log, 3);
        storage.set_fault(Some(DiskFault { operation, after: 0, errno: 5, is_permanent: false }));
        let is_same = |error: JournalError| match error {
            JournalError::Storage { operation: found, cause, .. } => {
                found == operation && cause.raw_os_error() == Some(5)
            }
            _ => false,
        };
        assert!(is_same(log.sync(3).unwrap_err()), "{operation}");
        assert!(is_same(log.append(b"x", Unix(1)).unwrap_err()), "{operation}");
        assert!(is_same(log.flush(4).unwrap_err()), "{operation}");
        assert!(is_same(log.sync(3).unwrap_err()), "{operation}");
        assert!(is_same(log.prepare_next().unwrap_err()), "{operation}");
        assert_eq!(log.durable(), 0);
    }
}

#[test]
fn the_log_is_trimmed_up_to_the_previous_snapshot() {
    let (storage, dir, log) = new(SMALL);
    let mut expected = append(&log, 3 * FRAMES_PER_FILE);
    log.sync(48).unwrap();
    assert_eq!(log_files(&storage).len(), 3);
    snapshot(&dir, &log, &expected, 7).unwrap();
    assert_eq!(log_files(&storage).len(), 3, "without this snapshot, the whole log is needed");
    expected = append(&log, FRAMES_PER_FILE);
    snapshot(&dir, &log, &expected, 7).unwrap();
    assert_eq!(log_files(&storage), ["log-0000000004"]);
    expected = append(&log, 1);
    snapshot(&dir, &log, &expected, 7).unwrap();
    let snapshots: Vec<String> = storage.list().unwrap().into_iter().filter(|name| name.starts_with("snap")).collect();
    assert_eq!(snapshots, ["snapshot-00000000000000000064", "snapshot-00000000000000000065"]);
    assert_eq!(log_files(&storage), ["log-0000000005"]);
    assert_eq!(recover(&open(&storage.crash(Crash::Power)).unwrap()).unwrap().entries, expected);
}

#[test]
fn a_restart_continues_the_sequence_in_a_new_file() {
    let mut storage = SimulatedStorage::new(9);
    for round in 0..5 {
        let (_dir, log, found) = start(&storage, SMALL);
        assert_eq!(found, entries(round * 3));
        assert_eq!((log.appended(), log.durable()), (round * 3, round * 3));
        append(&log, 3);
        log.flush(round * 3 + 3).unwrap();
        storage = storage.crash(Crash::Kill);
    }
    assert_eq!(log_files(&storage).len(), 5);
}

#[test]
fn restarts_without_appends_leave_one_log_file() {
    let mut storage = SimulatedStorage::new(9);
    for _ in 0..5 {
        start(&storage, SMALL);
        assert_eq!(log_files(&storage).len(), 1);
        storage = storage.crash(Crash::Kill);
    }
    assert_eq!(log_files(&storage), ["log-0000000005"]);
}
