//! The worker's thread: it stores what no response waits for, and writes snapshots.

use std::sync::Arc;
use std::time::Duration;

use crate::KeySpace;
use crate::journal::MetadataJournalOptions;
use crate::journal::tests::{AT, RAM, fill, options, restore, restored};
use crate::journal::worker::JournalWorker;
use crate::store::RecordStore;
use mcctl_journal::{Crash, DiskErrorPolicy, DiskFault, JournalStorage, SimulatedStorage, StorageOperation, SyncMode};
use mcctl_sys::env::{Env, RealEnv, deadline};

fn start(storage: &SimulatedStorage, options: MetadataJournalOptions) -> (Arc<RecordStore>, JournalWorker) {
    let store = Arc::new(restore(storage, options).unwrap().0);
    let worker = JournalWorker::start(store.clone(), RealEnv::new()).unwrap();
    (store, worker)
}

/// Waits for a condition, for at most ten seconds.
fn wait_until(what: &str, mut is_met: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if is_met() {
            return;
        }
        RealEnv::new().pause_thread(Duration::from_millis(5));
    }
    panic!("not within ten seconds: {what}");
}

#[test]
fn a_removal_without_a_response_is_stored() {
    for sync in [SyncMode::Always, SyncMode::Interval(Duration::from_millis(1)), SyncMode::Never] {
        let storage = SimulatedStorage::new(1);
        let (store, _worker) = start(&storage, options(sync, DiskErrorPolicy::Stop));
        store.put(RAM, b"d", AT).unwrap();
        store.commit().unwrap();
        store.remove_segment(&KeySpace::default(), "a", AT).unwrap();
        let journal = store.journal().unwrap();
        match sync {
            SyncMode::Never => wait_until("flushed", || !store.needs_commit()),
            _ => wait_until("durable", || !journal.has_undurable()),
        }
        let crash = if sync == SyncMode::Never { Crash::Kill } else { Crash::Power };
        assert_eq!(restored(&storage.crash(crash)).0.len(), 0);
    }
}

#[test]
fn snapshots_are_written_while_changes_arrive() {
    let storage = SimulatedStorage::new(2);
    let options =
        MetadataJournalOptions { snapshot_changes: 10, ..options(SyncMode::default(), DiskErrorPolicy::Stop) };
    let (store, worker) = start(&storage, options);
    let snapshots = || storage.list().unwrap().iter().filter(|name| name.starts_with("snapshot-")).count();
    let mut name = 0;
    wait_until("two snapshots", || {
        fill(&store, name..name + 1).unwrap();
        name += 1;
        snapshots() >= 2
    });
    worker.close().unwrap();
    let (store, report) = restored(&storage.crash(Crash::Power));
    assert_eq!((store.len(), report.recovery.records), (name, 0), "the last snapshot contains everything");
}

#[test]
fn a_stop_writes_a_snapshot_only_of_changes() {
    let storage = SimulatedStorage::new(3);
    for (names, snapshots) in [(0..0, 0), (0..2, 1), (0..0, 1), (2..3, 2)] {
        let (store, worker) = start(&storage, options(SyncMode::Never, DiskErrorPolicy::Stop));
        fill(&store, names.clone()).unwrap();
        worker.close().unwrap();
        worker.close().unwrap();
        let found = storage.list().unwrap().iter().filter(|name| name.starts_with("snapshot-")).count();
        assert_eq!(found, snapshots, "{names:?}");
    }
}

#[tokio::test]
async fn an_error_in_the_background_is_reported() {
    let storage = SimulatedStorage::new(4);
    let sync = SyncMode::Interval(Duration::from_millis(1));
    let (store, worker) = start(&storage, options(sync, DiskErrorPolicy::Stop));
    storage.set_fault(Some(DiskFault { operation: StorageOperation::Sync, after: 0, errno: 5, is_permanent: true }));
    store.put(RAM, b"d", AT).unwrap();
    let failure = store.journal().unwrap().failure();
    let error = deadline(&RealEnv::new(), Duration::from_secs(10), failure).await.unwrap();
    assert!(error.to_string().starts_with("cannot sync log-"), "{error}");
    assert!(store.put(RAM, b"e", AT).is_err());
    assert!(worker.close().is_err());
}

#[test]
fn a_dropped_worker_ends_and_frees_its_store() {
    let storage = SimulatedStorage::new(5);
    let (store, worker) = start(&storage, options(SyncMode::Never, DiskErrorPolicy::Stop));
    drop(worker);
    wait_until("the thread ends", || Arc::strong_count(&store) == 1);
}
