//! Tests of a store of records with a log on a simulated disk.

mod crash;
mod damage;
mod errors;
mod threads;

use std::ops::{Deref, Range};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use crate::KeySpace;
use crate::records::{MetadataTable, PlannedWrite, RemovedRecords, TableImage, WriteOutcome};
use crate::restore::{MetadataJournalError, MetadataRestoreReport};
use crate::store::RecordStore;
use mcctl_base::Unix;
use mcctl_journal::{
    CommitLog, CommitLogOptions, DataDir, DataDirOptions, DiskErrorPolicy, ExistingData, JournalError, LogConfig,
    LogThread, SimulatedStorage, StateSnapshots, SyncMode, Uuid,
};
use mcctl_sys::env::{Env, RealEnv};

/// Files of 2 KiB, so that a few records fill one.
const SMALL: LogConfig = LogConfig { file_bytes: 2048, buffer_bytes: 64 << 10 };
const AT: Unix = Unix(1_000_000);
const RPC: &[u8] = b"mooncake/rpc_meta/a";
const RAM: &[u8] = b"mooncake/ram/a";

/// A snapshot is due after each change.
fn options(sync: SyncMode, on_error: DiskErrorPolicy) -> CommitLogOptions {
    CommitLogOptions { sync, on_error, log: SMALL, snapshot_interval: Duration::ZERO, ..CommitLogOptions::default() }
}

fn open(storage: &SimulatedStorage) -> Result<DataDir, JournalError> {
    let options = DataDirOptions {
        cluster_id: "cluster",
        boot_id: storage.boot_id(),
        new_uuid: Uuid(77),
        existing: ExistingData::Keep,
    };
    DataDir::open(Arc::new(storage.clone()), &options)
}

/// The operations of the service on a store.
impl RecordStore {
    fn write<'a>(
        &self,
        at: Unix,
        plan: impl FnOnce(&mut MetadataTable) -> PlannedWrite<'a> + Send,
    ) -> Result<WriteOutcome, JournalError> {
        let mut outcome = None;
        let plan = |table: &mut MetadataTable| {
            let planned = plan(table);
            outcome = Some(planned.outcome);
            planned.changes
        };
        self.change(Box::new(plan), at)?;
        Ok(outcome.expect("the plan was called"))
    }

    fn put(&self, key: &[u8], value: &[u8], at: Unix) -> Result<WriteOutcome, JournalError> {
        self.write(at, |table| table.plan_put(key, value))
    }

    fn take_over(&self, key: &[u8], current: &[u8], value: &[u8], at: Unix) -> Result<WriteOutcome, JournalError> {
        self.write(at, |table| table.plan_take_over(key, current, value))
    }

    fn remove(&self, key: &[u8], at: Unix) -> Result<bool, JournalError> {
        let mut is_found = false;
        let plan = |table: &mut MetadataTable| {
            let change = table.plan_remove(key);
            is_found = change.is_some();
            change.into_iter().collect()
        };
        self.change(Box::new(plan), at)?;
        Ok(is_found)
    }

    fn remove_segment(&self, keys: &KeySpace, name: &str, at: Unix) -> Result<RemovedRecords, JournalError> {
        let mut removed = RemovedRecords::default();
        let plan = |table: &mut MetadataTable| {
            let (found, changes) = table.plan_remove_segment(keys, name);
            removed = found;
            changes
        };
        self.change(Box::new(plan), at)?;
        Ok(removed)
    }

    fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.table().lock().get(key)
    }

    fn len(&self) -> usize {
        self.table().lock().len()
    }

    fn image(&self) -> TableImage {
        self.table().lock().image()
    }
}

/// A store, and the thread for its log, which runs while a write is committed.
struct SteppedStore {
    store: Arc<RecordStore>,
    log: Arc<CommitLog>,
    thread: LogThread<RealEnv, Arc<RecordStore>, Arc<CommitLog>>,
    thread_has_ended: bool,
}

impl Deref for SteppedStore {
    type Target = RecordStore;

    fn deref(&self) -> &RecordStore {
        &self.store
    }
}

impl SteppedStore {
    /// Waits until all writes are stored.
    fn commit(&mut self) -> Result<(), JournalError> {
        let store = self.store.clone();
        let mut commit = pin!(store.commit());
        for nth in 0..10 {
            if let Poll::Ready(committed) = commit.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return committed;
            }
            // The first poll lets other tasks run.
            if nth > 0 {
                assert!(!self.thread_has_ended, "no thread ends this wait");
                self.thread_has_ended = !self.thread.run(self.log.next_work(Duration::ZERO));
            }
        }
        panic!("a write is not stored");
    }

    /// Writes `count` records of other names, and stores each.
    fn fill(&mut self, names: Range<usize>) -> Result<(), JournalError> {
        for name in names {
            self.put(format!("mooncake/ram/n-{name:04}").as_bytes(), &[7; 60], AT)?;
            self.commit()?;
        }
        Ok(())
    }

    /// Writes a snapshot if there are new changes. Returns false after an error of the disk.
    fn write_snapshot(&self) -> bool {
        let snapshots = StateSnapshots::new(RealEnv::new(), &*self.store, &*self.log);
        if snapshots.is_due() {
            let mut run = snapshots.start();
            while snapshots.step(&mut run, true) {}
        }
        !self.log.has_failed() && !snapshots.is_due()
    }
}

fn restore(
    storage: &SimulatedStorage,
    options: CommitLogOptions,
) -> Result<(SteppedStore, MetadataRestoreReport), MetadataJournalError> {
    let env = RealEnv::new();
    let (store, report) = RecordStore::restored(open(storage)?, options, env.now())?;
    let store = Arc::new(store);
    let log = store.log().clone();
    let thread = LogThread::new(env, store.clone(), log.clone());
    Ok((SteppedStore { store, log, thread, thread_has_ended: false }, report))
}

fn restored(storage: &SimulatedStorage) -> (SteppedStore, MetadataRestoreReport) {
    restore(storage, options(SyncMode::Never, DiskErrorPolicy::Stop)).unwrap()
}

fn meta(port: u16) -> Bytes {
    format!("{{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":{port}}}").into()
}

/// The number of snapshots on the disk.
fn snapshots(storage: &SimulatedStorage) -> usize {
    let names = mcctl_journal::JournalStorage::list(storage).unwrap();
    names.iter().filter(|name| name.starts_with("snapshot-")).count()
}
