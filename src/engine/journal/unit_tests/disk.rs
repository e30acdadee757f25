//! The contents that a simulated disk keeps, loses and returns.

use std::io;
use std::sync::Arc;

use crate::{Crash, DiskFault, JournalFile, JournalStorage, SimulatedStorage, StorageOperation};

const SECTOR: usize = 512;

fn open(seed: u64) -> (SimulatedStorage, Arc<dyn JournalFile>) {
    let storage = SimulatedStorage::new(seed);
    let file = storage.create("f", 4 * SECTOR as u64).unwrap();
    file.sync().unwrap();
    storage.sync_directory("").unwrap();
    (storage, file)
}

/// The results of a power loss with many seeds, each once.
fn outcomes<T: Ord>(prepare: impl Fn(u64) -> SimulatedStorage, read: impl Fn(&SimulatedStorage) -> T) -> Vec<T> {
    let mut all: Vec<T> = (0..400).map(|seed| read(&prepare(seed).crash(Crash::Power))).collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn a_killed_process_loses_nothing() {
    let (storage, file) = open(1);
    file.write_at(100, b"abc").unwrap();
    storage.create("g", 0).unwrap();
    let next = storage.crash(Crash::Kill);
    assert_eq!(next.list().unwrap(), ["f", "g"]);
    assert_eq!(&next.contents("f").unwrap()[100..103], b"abc");
    assert_eq!(next.boot_id(), SimulatedStorage::new(1).boot_id());
    assert!(file.write_at(0, b"x").is_err(), "the process is dead");
    assert!(storage.list().is_err());
}

#[test]
fn synced_bytes_and_names_survive_a_power_loss() {
    for seed in 0..100 {
        let (storage, file) = open(seed);
        file.write_at(SECTOR as u64 - 2, b"abcd").unwrap();
        file.sync().unwrap();
        storage.rename("f", "g").unwrap();
        storage.sync_directory("").unwrap();
        let boot = storage.boot_id();
        let next = storage.crash(Crash::Power);
        assert_ne!(next.boot_id(), boot);
        assert_eq!(next.list().unwrap(), ["g"]);
        assert_eq!(&next.contents("g").unwrap()[SECTOR - 2..SECTOR + 2], b"abcd");
    }
}

#[test]
fn sectors_are_kept_lost_and_torn_independently() {
    let write = |seed| {
        let (storage, file) = open(seed);
        file.write_at(0, &[1; 2 * SECTOR]).unwrap();
        file.write_at(SECTOR as u64, &[2; SECTOR]).unwrap();
        storage
    };
    let sectors = |storage: &SimulatedStorage| {
        let bytes = storage.contents("f").unwrap();
        (bytes[0], bytes[SECTOR - 1], bytes[SECTOR], bytes[2 * SECTOR - 1])
    };
    let found = outcomes(write, sectors);
    for first in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for second in [(0, 0), (1, 1), (2, 2)] {
            let expected = (first.0, first.1, second.0, second.1);
            let is_torn = first.0 != first.1;
            assert!(is_torn || found.contains(&expected), "{expected:?}");
        }
    }
    assert!(found.iter().any(|(begin, end, ..)| begin != end), "no sector was torn");
}

#[test]
fn unsynced_names_are_kept_or_lost_in_any_combination() {
    let prepare = |seed| {
        let (storage, _) = open(seed);
        storage.create("t", 0).unwrap();
        storage.rename("t", "g").unwrap();
        storage.remove("f").unwrap();
        storage
    };
    let found = outcomes(prepare, |storage| storage.list().unwrap().concat());
    for expected in ["", "f", "fg", "g", "t", "ft"] {
        assert!(found.contains(&expected.to_owned()), "{expected}: {found:?}");
    }
}

#[test]
fn a_file_that_was_not_synced_may_be_empty_after_its_rename() {
    let prepare = |seed| {
        let (storage, _) = open(seed);
        storage.create("t", 0).unwrap().write_at(0, b"abc").unwrap();
        storage.rename("t", "g").unwrap();
        storage.sync_directory("").unwrap();
        storage
    };
    let found = outcomes(prepare, |storage| storage.contents("g").unwrap());
    assert!(found.contains(&Vec::new()) && found.contains(&b"abc".to_vec()), "{found:?}");
}

#[test]
fn a_process_stops_at_the_given_operation() {
    let (storage, file) = open(3);
    let before: u64 = storage.operations().values().sum();
    storage.stop_at(before + 2);
    file.write_at(0, b"a").unwrap();
    assert_eq!(storage.stopped_at(), None);
    assert!(file.sync().is_err());
    assert_eq!(storage.stopped_at(), Some(StorageOperation::Sync));
    assert!(file.write_at(0, b"b").is_err());
    let next = storage.crash(Crash::Kill);
    assert_eq!((next.stopped_at(), next.contents("f").unwrap()[0]), (None, b'a'));
    assert_eq!(next.operations()[&StorageOperation::Write], 1);
}

#[test]
fn faults_are_returned_once_or_forever() {
    let (storage, file) = open(4);
    let fault = DiskFault { operation: StorageOperation::Write, after: 1, errno: 28, is_permanent: false };
    let errno = |result: io::Result<()>| result.err().and_then(|error| error.raw_os_error());
    let writes = || [0; 4].map(|_| errno(file.write_at(0, b"a")));
    storage.set_fault(Some(fault));
    assert_eq!(writes(), [None, Some(28), None, None]);
    storage.set_fault(Some(DiskFault { is_permanent: true, ..fault }));
    assert_eq!(writes(), [None, Some(28), Some(28), Some(28)]);
    file.sync().unwrap();
    storage.set_fault(None);
    assert_eq!(writes(), [None; 4]);
}

#[test]
fn what_a_failed_sync_did_not_write_must_be_written_again() {
    for is_rewritten in [false, true] {
        let (storage, file) = open(6);
        file.write_at(0, b"a").unwrap();
        let operation = StorageOperation::Sync;
        storage.set_fault(Some(DiskFault { operation, after: 0, errno: 5, is_permanent: false }));
        assert!(file.sync().is_err());
        if is_rewritten {
            file.write_at(0, b"a").unwrap();
        }
        file.sync().unwrap();
        assert_eq!(storage.contents("f").unwrap()[0], b'a');
        let byte = storage.crash(Crash::Power).contents("f").unwrap()[0];
        assert_eq!(byte, if is_rewritten { b'a' } else { 0 });
    }
}

#[test]
fn one_process_locks_a_directory() {
    let (storage, _) = open(5);
    assert!(storage.lock().unwrap() && storage.lock().unwrap());
    let next = storage.crash(Crash::Kill);
    assert!(!storage.lock().unwrap(), "a dead process");
    assert!(next.lock().unwrap());
}
