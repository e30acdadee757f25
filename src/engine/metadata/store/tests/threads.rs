//! The threads of a store: they store changes, and write snapshots.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::RecordBackend;
use crate::store::tests::{AT, RAM, open, options, restored, snapshots};
use crate::store::{RecordStore, RecordThreads, StoredRecords};
use mcctl_journal::{
    CommitLogOptions, Crash, DiskErrorPolicy, DiskFault, JournalError, SimulatedStorage, StorageOperation, SyncMode,
};
use mcctl_sys::env::{Env, RealEnv, deadline};

const HOUR: Duration = Duration::from_secs(3600);

fn start(storage: &SimulatedStorage, options: CommitLogOptions) -> (Arc<RecordStore>, RecordThreads) {
    let env = RealEnv::new();
    let store = Arc::new(RecordStore::restored(open(storage).unwrap(), options, env.now()).unwrap().0);
    let threads = RecordThreads::start(store.clone(), &env);
    (store, threads)
}

async fn put(store: &RecordStore, name: usize) -> Result<(), JournalError> {
    store.put(format!("mooncake/ram/n-{name:04}").as_bytes(), &[7; 60], AT)?;
    store.commit().await
}

/// Waits for a condition, for at most ten seconds.
async fn wait_until(what: &str, mut is_met: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if is_met() {
            return;
        }
        RealEnv::new().sleep(Duration::from_millis(5)).await;
    }
    panic!("not within ten seconds: {what}");
}

#[tokio::test]
async fn a_change_of_the_service_is_stored_when_it_returns() {
    for sync in [SyncMode::Always, SyncMode::Interval(Duration::from_millis(1)), SyncMode::Never] {
        let storage = SimulatedStorage::new(1);
        let options = CommitLogOptions { snapshot_interval: HOUR, ..options(sync, DiskErrorPolicy::Stop) };
        let (store, threads) = start(&storage, options);
        let records = StoredRecords { store: store.clone(), threads, env: RealEnv::new() };
        store.put(RAM, b"d", AT).unwrap();
        records.change(Box::new(|table| table.plan_remove(RAM).into_iter().collect())).await.unwrap();
        let writer = &store.log().writer;
        match sync {
            SyncMode::Never => assert_eq!(writer.flushed(), writer.appended()),
            _ => wait_until("durable", || writer.durable() == writer.appended()).await,
        }
        let crash = if sync == SyncMode::Never { Crash::Kill } else { Crash::Power };
        assert_eq!(restored(&storage.crash(crash)).0.len(), 0);
    }
}

#[tokio::test]
async fn snapshots_are_written_while_changes_arrive() {
    let storage = SimulatedStorage::new(2);
    let (store, threads) = start(&storage, options(SyncMode::default(), DiskErrorPolicy::Stop));
    let mut name = 0;
    while snapshots(&storage) < 2 {
        put(&store, name).await.unwrap();
        name += 1;
        RealEnv::new().sleep(Duration::from_millis(5)).await;
    }
    threads.close(&RealEnv::new()).await.unwrap();
    let (store, report) = restored(&storage.crash(Crash::Power));
    assert_eq!((store.len(), report.recovery.records), (name, 0), "the last snapshot contains everything");
}

#[tokio::test]
async fn a_stop_writes_a_snapshot_only_of_changes() {
    let storage = SimulatedStorage::new(3);
    for (names, expected) in [(0..0, 0), (0..2, 1), (0..0, 1), (2..3, 2)] {
        let options = options(SyncMode::Never, DiskErrorPolicy::Stop);
        let (store, threads) = start(&storage, CommitLogOptions { snapshot_interval: HOUR, ..options });
        for name in names.clone() {
            put(&store, name).await.unwrap();
        }
        threads.close(&RealEnv::new()).await.unwrap();
        threads.close(&RealEnv::new()).await.unwrap();
        assert_eq!(snapshots(&storage), expected, "{names:?}");
    }
}

#[tokio::test]
async fn an_error_in_the_background_is_reported() {
    let storage = SimulatedStorage::new(4);
    let sync = SyncMode::Interval(Duration::from_millis(1));
    let (store, threads) = start(&storage, options(sync, DiskErrorPolicy::Stop));
    storage.set_fault(Some(DiskFault { operation: StorageOperation::Sync, after: 0, errno: 5, is_permanent: true }));
    store.put(RAM, b"d", AT).unwrap();
    let failure = store.log().failure();
    let error = deadline(&RealEnv::new(), Duration::from_secs(10), failure).await.unwrap();
    assert!(error.to_string().starts_with("cannot sync log-"), "{error}");
    assert!(store.put(RAM, b"e", AT).is_err());
    assert!(threads.close(&RealEnv::new()).await.is_err());
}

#[tokio::test]
async fn dropped_threads_end_and_free_their_store() {
    let storage = SimulatedStorage::new(5);
    let (store, threads) = start(&storage, options(SyncMode::Never, DiskErrorPolicy::Stop));
    drop(threads);
    wait_until("the threads end", || Arc::strong_count(&store) == 1).await;
}
