//! The use of a data directory by one process of one cluster, and its emptying.

use std::sync::Arc;

use crate::unit_tests::{SMALL, append, entries, open, options, recover, snapshot, start};
use crate::{
    Corruption, Crash, DataDir, DataDirOptions, DiskFault, DiskStorage, ExistingData, JournalError, JournalStorage,
    SimulatedStorage, StorageOperation, Uuid,
};

/// A directory with two snapshots and ten frames, after its process was killed.
fn filled() -> SimulatedStorage {
    let storage = SimulatedStorage::new(3);
    let (dir, log, _) = start(&storage, SMALL);
    for count in [4, 3, 3] {
        let entries = append(&log, count);
        log.sync(entries.len() as u64).unwrap();
        if entries.len() < 10 {
            snapshot(&dir, &log, &entries, 2).unwrap();
        }
    }
    storage.crash(Crash::Kill)
}

fn open_with(storage: &SimulatedStorage, existing: ExistingData<'_>) -> Result<DataDir, JournalError> {
    let options = DataDirOptions { existing, new_uuid: Uuid(78), ..options(storage.boot_id()) };
    DataDir::open(Arc::new(storage.clone()), &options)
}

#[test]
fn a_directory_of_another_cluster_is_refused() {
    let storage = filled();
    for existing in [ExistingData::Keep, ExistingData::Discard, ExistingData::SetAside { date: "d" }] {
        let options = DataDirOptions { cluster_id: "other", existing, ..options(storage.boot_id()) };
        match DataDir::open(Arc::new(storage.clone()), &options).err() {
            Some(JournalError::OtherCluster { directory, found, expected }) => {
                assert_eq!((&*directory, &*found, &*expected), ("simulated", "cluster", "other"));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(recover(&open(&storage).unwrap()).unwrap().entries, entries(10));
}

#[test]
fn a_directory_is_used_by_one_process() {
    let root = tempfile::tempdir().unwrap();
    let new = || Arc::new(DiskStorage::open(root.path()).unwrap());
    let first = DataDir::open(new(), &options(Uuid(1))).unwrap();
    assert!(matches!(DataDir::open(new(), &options(Uuid(1))), Err(JournalError::Locked { .. })));
    drop(first);
    DataDir::open(new(), &options(Uuid(1))).unwrap();
}

#[test]
fn an_invalidated_directory_is_refused_even_after_a_power_loss() {
    let storage = filled();
    let (dir, ..) = start(&storage, SMALL);
    let full = DiskFault { operation: StorageOperation::Create, after: 0, errno: 28, is_permanent: true };
    storage.set_fault(Some(full));
    dir.invalidate().unwrap();
    let storage = storage.crash(Crash::Power);
    for _ in 0..2 {
        assert!(matches!(open(&storage), Err(JournalError::Invalidated { .. })));
    }
    let dir = open_with(&storage, ExistingData::Discard).unwrap();
    assert_eq!(recover(&dir).unwrap().entries, []);
    open(&storage).unwrap();
}

#[test]
fn a_failed_invalidation_is_reported() {
    for operation in [StorageOperation::Write, StorageOperation::Sync] {
        let storage = filled();
        let (dir, ..) = start(&storage, SMALL);
        storage.set_fault(Some(DiskFault { operation, after: 0, errno: 5, is_permanent: false }));
        match dir.invalidate() {
            Err(JournalError::Storage { operation: found, file, .. }) => {
                assert_eq!((found, &*file), (operation, "validity"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_start_completes_the_mark_of_an_interrupted_one() {
    for (seed, stop) in (0..10).flat_map(|seed| (1..30).map(move |stop| (seed, stop))) {
        let storage = SimulatedStorage::new(seed);
        storage.stop_at(stop);
        drop(open(&storage));
        let storage = storage.crash(Crash::Kill);
        start(&storage, SMALL);
        open(&storage.crash(Crash::Power)).unwrap();
    }
}

#[test]
fn a_start_after_a_failed_invalidation_makes_the_mark_durable() {
    for seed in 0..20 {
        let storage = SimulatedStorage::new(seed);
        let (dir, ..) = start(&storage, SMALL);
        let operation = StorageOperation::Sync;
        storage.set_fault(Some(DiskFault { operation, after: 0, errno: 5, is_permanent: false }));
        assert!(dir.invalidate().is_err());
        let storage = storage.crash(Crash::Kill);
        start(&storage, SMALL);
        open(&storage.crash(Crash::Power)).unwrap();
    }
}

#[test]
fn a_power_loss_after_interrupted_starts_leaves_a_usable_directory() {
    for (seed, first) in (0..10).flat_map(|seed| (1..16).map(move |first| (seed, first))) {
        for second in 1..20 {
            let storage = SimulatedStorage::new(seed);
            storage.stop_at(first);
            drop(open(&storage));
            let storage = storage.crash(Crash::Kill);
            storage.stop_at(first + second);
            let started = open(&storage).and_then(|mut dir| dir.start_log(&recover(&dir)?.report, SMALL).map(drop));
            let storage = storage.crash(Crash::Power);
            let found = open(&storage).and_then(|dir| recover(&dir)).map(|found| found.entries.len());
            assert_eq!(found.unwrap(), 0, "{seed} {first} {second} {started:?}");
        }
    }
}

#[test]
fn existing_data_is_set_aside_complete() {
    let storage = filled();
    let dir = open_with(&storage, ExistingData::SetAside { date: "20261123" }).unwrap();
    assert_eq!(dir.set_aside(), Some("20261123"));
    assert_eq!(recover(&dir).unwrap().entries, []);
    assert_eq!(storage.list().unwrap(), ["identity.json", "validity"]);
    let names = ["identity.json", "validity", "log-0000000001", "snapshot-00000000000000000004"];
    assert!(names.iter().all(|name| storage.contents(&format!("20261123/{name}")).is_some()));

    let (_dir, log, found) = start(&storage, SMALL);
    assert_eq!(found, []);
    append(&log, 1);
    log.sync(1).unwrap();
    let storage = storage.crash(Crash::Kill);
    let again = open_with(&storage, ExistingData::SetAside { date: "20261123" }).unwrap();
    assert_eq!(again.set_aside(), Some("20261123-2"));
    let nothing = open_with(&storage, ExistingData::SetAside { date: "20261123" }).unwrap();
    assert_eq!(nothing.set_aside(), None, "an empty directory");
}

#[test]
fn emptying_is_completed_after_a_crash_at_any_operation() {
    for (existing, is_kept) in [(ExistingData::Discard, false), (ExistingData::SetAside { date: "d" }, true)] {
        for stop in 1..80 {
            let storage = filled();
            let before: u64 = storage.operations().values().sum();
            storage.stop_at(before + stop);
            let is_done = open_with(&storage, existing).is_ok();
            let storage = storage.crash(Crash::Power);
            let found = recover(&open(&storage).unwrap()).unwrap().entries;
            assert!(found.is_empty() || (found == entries(10) && !is_done), "{stop}: {}", found.len());
            if is_kept && found.is_empty() {
                let aside = format!("d/{}", "snapshot-00000000000000000007");
                assert!(storage.contents(&aside).is_some(), "{stop}");
            }
        }
    }
}

#[test]
fn temporary_files_are_removed_and_other_files_are_kept() {
    let storage = filled();
    for name in ["log-0000000009.tmp", "identity.json.tmp", "snapshot-00000000000000000012.tmp", "notes.tmp"] {
        storage.create(name, 0).unwrap();
    }
    let dir = open(&storage).unwrap();
    let names = storage.list().unwrap();
    let temporary: Vec<&String> = names.iter().filter(|name| name.ends_with(".tmp")).collect();
    assert_eq!(temporary, ["notes.tmp"]);
    assert_eq!(recover(&dir).unwrap().entries, entries(10));
}

#[test]
fn data_without_its_identity_or_its_log_is_refused() {
    let what = |result: Result<_, JournalError>| match result.err() {
        Some(JournalError::Corrupt { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let storage = filled();
    storage.remove("identity.json").unwrap();
    assert_eq!(what(open(&storage).map(|_| ())), Corruption::NoIdentity);

    let storage = filled();
    storage.remove("log-0000000001").unwrap();
    assert_eq!(what(recover(&open(&storage).unwrap()).map(|_| ())), Corruption::NoLog);
    for name in storage.list().unwrap().iter().filter(|name| name.starts_with("snapshot-")) {
        storage.remove(name).unwrap();
    }
    assert_eq!(what(recover(&open(&storage).unwrap()).map(|_| ())), Corruption::NoLog);
}

#[test]
fn a_missing_log_file_is_corruption() {
    let storage = SimulatedStorage::new(4);
    let (_dir, log, _) = start(&storage, SMALL);
    append(&log, 50);
    log.sync(50).unwrap();
    let storage = storage.crash(Crash::Power);
    let without = |name: &str| {
        let bytes = storage.contents(name).unwrap();
        storage.remove(name).unwrap();
        let result = recover(&open(&storage).unwrap()).map(|_| ());
        storage.create(name, bytes.len() as u64).unwrap().write_at(0, &bytes).unwrap();
        match result.err() {
            Some(JournalError::Corrupt { file, offset, what }) => (file, offset, what),
            other => panic!("{other:?}"),
        }
    };
    let file = |number: u64| format!("log-{number:010}");
    for number in 1..=3 {
        assert_eq!(without(&file(number)), (file(number + 1), 0, Corruption::NoPrevious { number }));
    }
    assert_eq!(recover(&open(&storage).unwrap()).unwrap().entries, entries(50));
}

#[test]
fn a_log_without_frames_that_were_durable_is_refused() {
    let storage = filled();
    let (_dir, _log, found) = start(&storage, SMALL);
    assert_eq!(found.len(), 10);
    let storage = storage.crash(Crash::Kill);
    // Only the file that was created when ten frames were durable remains.
    for name in storage.list().unwrap().iter().filter(|name| name.starts_with("snap") || name.ends_with("01")) {
        storage.remove(name).unwrap();
    }
    match recover(&open(&storage).unwrap()).err() {
        Some(JournalError::Corrupt { file, what, .. }) => {
            assert_eq!((&*file, what), ("log-0000000002", Corruption::NoPrevious { number: 1 }));
        }
        other => panic!("{other:?}"),
    }
}
