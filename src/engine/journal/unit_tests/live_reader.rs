//! Reading the log of the running process.

use crate::unit_tests::{SMALL, append, entries, snapshot, start};
use crate::{
    Crash, DiskFault, JournalError, JournalStorage, LiveLogReader, LogConfig, LogWriter, SimulatedStorage,
    StorageOperation,
};
use mcctl_base::Unix;

/// Reads everything that the log has.
fn read(reader: &mut LiveLogReader, log: &LogWriter) -> Result<Vec<Vec<u8>>, JournalError> {
    let mut found = Vec::new();
    while reader.read(log, |payload| found.push(payload.to_vec()))?.is_some_and(|count| count > 0) {}
    Ok(found)
}

fn payloads(range: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    entries(range.end as u64).split_off(range.start).into_iter().map(|(payload, _)| payload).collect()
}

#[test]
fn a_reader_delivers_the_frames_from_any_number_on_and_follows_the_log() {
    let storage = SimulatedStorage::new(1);
    let (_dir, log, _) = start(&storage, SMALL);
    assert!(!log.has(1), "it has no frame yet");
    append(&log, 50);
    log.sync(50).unwrap();
    for next in [1, 2, 16, 17, 33, 50] {
        let mut reader = LiveLogReader::new(next as u64);
        assert_eq!(read(&mut reader, &log).unwrap(), payloads(next - 1..50), "{next}");
        assert_eq!((reader.next(), read(&mut reader, &log).unwrap()), (51, Vec::new()));
    }
    let mut reader = LiveLogReader::new(40);
    assert_eq!(read(&mut reader, &log).unwrap(), payloads(39..50));
    append(&log, 40);
    assert_eq!(read(&mut reader, &log).unwrap(), payloads(0..0), "the kernel does not have them");
    log.sync(90).unwrap();
    assert_eq!(read(&mut reader, &log).unwrap(), payloads(50..90), "it continues in later files");
}

#[test]
fn a_reader_continues_with_files_that_were_removed_meanwhile() {
    let storage = SimulatedStorage::new(1);
    let (dir, log, _) = start(&storage, SMALL);
    let expected = append(&log, 64);
    log.sync(64).unwrap();
    let mut early = LiveLogReader::new(1);
    assert_eq!(early.read(&log, |_| ()).unwrap(), Some(16), "the first file");
    snapshot(&dir, &log, &expected, 7).unwrap();
    let expected = append(&log, 1);
    snapshot(&dir, &log, &expected, 7).unwrap();
    assert!(!log.has(1), "its file was removed");
    assert_eq!(LiveLogReader::new(1).read(&log, |_| ()).unwrap(), None);
    log.sync(65).unwrap();
    assert_eq!(read(&mut early, &log).unwrap(), payloads(16..65));
}

#[test]
fn the_frames_of_an_earlier_process_are_not_read() {
    let mut storage = SimulatedStorage::new(9);
    let (_dir, log, _) = start(&storage, SMALL);
    append(&log, 3);
    log.sync(3).unwrap();
    storage = storage.crash(Crash::Kill);
    let (_dir, log, found) = start(&storage, SMALL);
    append(&log, 3);
    log.flush(6).unwrap();
    assert_eq!(found.len(), 3);
    assert!(!log.has(3), "the earlier log may have ended differently");
    assert_eq!(read(&mut LiveLogReader::new(4), &log).unwrap(), payloads(3..6));
}

#[test]
fn a_frame_that_is_longer_than_a_read_is_delivered() {
    let storage = SimulatedStorage::new(1);
    let (_dir, log, _) = start(&storage, LogConfig { file_bytes: 2 << 20, buffer_bytes: 4 << 20 });
    let long = vec![7; 1 << 20];
    log.append(&[1], Unix(0)).unwrap();
    log.append(&long, Unix(0)).unwrap();
    log.append(&[2], Unix(0)).unwrap();
    log.flush(3).unwrap();
    let found = read(&mut LiveLogReader::new(1), &log).unwrap();
    assert_eq!(found, [vec![1], long, vec![2]]);
}

#[test]
fn a_damaged_frame_is_an_error() {
    let storage = SimulatedStorage::new(1);
    let (_dir, log, _) = start(&storage, SMALL);
    append(&log, 40);
    log.sync(40).unwrap();
    let mut reader = LiveLogReader::new(1);
    let operation = StorageOperation::Read;
    storage.set_fault(Some(DiskFault { operation, after: 0, errno: 5, is_permanent: true }));
    assert!(matches!(read(&mut reader, &log), Err(JournalError::Storage { .. })));
    storage.set_fault(None);
    let name = storage.list().unwrap().into_iter().find(|name| name.starts_with("log-")).unwrap();
    let mut bytes = storage.contents(&name).unwrap();
    bytes[200] ^= 1;
    storage.damage(&name, bytes);
    let damaged = read(&mut LiveLogReader::new(1), &log);
    assert!(matches!(damaged, Err(JournalError::Corrupt { .. })), "{damaged:?}");
}
