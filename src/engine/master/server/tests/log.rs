//! The responses that wait for the log.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::server::data::{self, MasterData};
use crate::server::log::MasterLog;
use crate::server::shared::{LockedAccess, MasterShared};
use crate::server::tests::crash::env::{CrashEnv, RunClock};
use crate::unit_tests::{T, segment};
use crate::{DATA_FORMAT, MasterCall, StorePolicy};
use mcctl_base::{ClientId, SegmentId};
use mcctl_journal::{
    CommitLogOptions, Crash, DataDir, DataDirOptions, DiskFault, ExistingData, LogConfig, LogThread, LogWork,
    SNAPSHOT_LOG_BYTES, SimulatedStorage, StateSnapshots, StorageOperation, SyncMode, Uuid,
};
use mcctl_net::rpc::{CommitWait, Receipt};
use mcctl_sys::env::{Env, RealEnv};
use mcctl_wire::MasterApi;
use mcctl_wire::types::SliceLength;
use mcctl_wire::types::{ObjectMeta, ReplicaType, ReplicateConfig};

const NODE: ClientId = ClientId(1, 1);

/// A restored state behind its lock, with its log on `disk`.
fn start(disk: &SimulatedStorage, options: CommitLogOptions) -> (MasterShared<RealEnv>, Arc<MasterLog>) {
    start_in(RealEnv::new(), disk, options)
}

pub(super) fn start_in<E: Env>(
    env: E,
    disk: &SimulatedStorage,
    options: CommitLogOptions,
) -> (MasterShared<E>, Arc<MasterLog>) {
    let mut data = MasterData { dir: open(disk), options, format: DATA_FORMAT };
    let restored = data::restore(&mut data, StorePolicy::default(), &env).unwrap();
    let log = Arc::new(MasterLog::new(data, restored.writer, &restored.found, env.now()));
    (MasterShared::new(restored.state, Some(log.clone()), None, env), log)
}

pub(super) fn open(disk: &SimulatedStorage) -> DataDir {
    let boot_id = disk.boot_id();
    let existing = ExistingData::Keep;
    let open = DataDirOptions { cluster_id: "cluster", boot_id, new_uuid: Uuid(7), existing };
    DataDir::open(Arc::new(disk.clone()), &open).unwrap()
}

/// Makes a call and commits it. Returns the response's wait.
fn call<'a, E: Env, R>(
    shared: &'a MasterShared<E>,
    work: impl FnOnce(&mut MasterCall<LockedAccess<'_, E>>) -> R,
) -> (R, Option<CommitWait<'a>>) {
    let (result, receipt) = shared.call(None, work);
    (result, shared.log.as_ref().expect("it has a log").commit(receipt))
}

/// Polls a response's wait. The first poll lets the worker run its other tasks.
fn poll(wait: &mut Option<CommitWait<'_>>) -> Poll<bool> {
    let wait = wait.as_mut().expect("the response waits");
    let mut context = Context::from_waker(Waker::noop());
    match wait.as_mut().poll(&mut context) {
        Poll::Pending => wait.as_mut().poll(&mut context),
        ready => ready,
    }
}

#[test]
fn a_sync_by_another_thread_ends_the_wait_of_a_response() {
    let (shared, log) = start(&SimulatedStorage::new(1), CommitLogOptions::default());
    let mut thread = LogThread::new(shared.env.clone(), &shared, &*log);
    let (mounted, mut wait) = call(&shared, |call| call.mount_segment(segment(1, "a:1", 1000), NODE));
    assert_eq!((mounted, poll(&mut wait)), (Ok(()), Poll::Pending));
    // A snapshot syncs the log in the same way.
    log.writer.sync(log.writer.appended()).unwrap();
    assert!(thread.run(log.next_work(Duration::ZERO)));
    assert_eq!(poll(&mut wait), Poll::Ready(true));
}

#[test]
fn a_change_after_an_error_of_the_disk_is_not_acknowledged() {
    let disk = SimulatedStorage::new(1);
    let (shared, log) = start(&disk, CommitLogOptions::default());
    let mut thread = LogThread::new(shared.env.clone(), &shared, &*log);
    let (_, mut mounted) = call(&shared, |call| call.mount_segment(segment(1, "a:1", 1000), NODE));
    assert_eq!(poll(&mut mounted), Poll::Pending);
    log.writer.sync(log.writer.appended()).unwrap();
    assert!(thread.run(log.next_work(Duration::ZERO)));
    let operation = StorageOperation::Sync;
    disk.set_fault(Some(DiskFault { operation, after: 0, errno: 5, is_permanent: true }));
    assert_eq!(poll(&mut call(&shared, |call| call.unmount_segment(SegmentId(1, 1), NODE)).1), Poll::Pending);
    log.fail(log.writer.sync(log.writer.appended()).unwrap_err());
    let put = |call: &mut MasterCall<LockedAccess<'_, RealEnv>>| call.mount_segment(segment(2, "b:1", 1000), NODE);
    let (started, mut wait) = call(&shared, put);
    assert_eq!((started, poll(&mut wait)), (Ok(()), Poll::Pending), "the log thread has not decided");
    assert!(!thread.run(log.next_work(Duration::ZERO)));
    assert_eq!(poll(&mut wait), Poll::Ready(false));
}

#[test]
fn a_repeated_call_waits_for_the_change_of_the_first() {
    let options = |sync| CommitLogOptions { sync, ..CommitLogOptions::default() };
    let (shared, log) = start(&SimulatedStorage::new(1), options(SyncMode::Never));
    let mount = |call: &mut MasterCall<LockedAccess<'_, RealEnv>>| call.mount_segment(segment(1, "a:1", 1000), NODE);
    for _ in 0..2 {
        assert_eq!(poll(&mut call(&shared, mount).1), Poll::Pending);
    }
    log.writer.sync(log.writer.appended()).unwrap();
    for _ in 0..2 {
        assert_eq!(poll(&mut call(&shared, |call| call.unmount_segment(SegmentId(1, 1), NODE)).1), Poll::Pending);
    }

    let (shared, log) = start(&SimulatedStorage::new(1), options(SyncMode::Always));
    let put = |call: &mut MasterCall<LockedAccess<'_, RealEnv>>| {
        call.put_start(NODE, "k".into(), SliceLength(10), ReplicateConfig::default(), T)
    };
    assert_eq!(poll(&mut call(&shared, mount).1), Poll::Pending);
    assert_eq!(poll(&mut call(&shared, put).1), Poll::Pending);
    log.writer.sync(log.writer.appended()).unwrap();
    for _ in 0..2 {
        let meta = ObjectMeta { key: "k".into(), object_checksum: None };
        let (ended, mut wait) = call(&shared, |call| call.put_end(NODE, meta, ReplicaType::ALL, T));
        assert_eq!((ended, poll(&mut wait)), (Ok(()), Poll::Pending));
    }
    assert_eq!(poll(&mut call(&shared, put).1), Poll::Pending, "the object exists");
    assert!(call(&shared, |call| call.exist_key("k".into(), T)).1.is_none(), "reads do not wait");
}

#[test]
fn a_receipt_covers_all_lock_acquisitions_of_a_call() {
    let (shared, log) = start(&SimulatedStorage::new(1), CommitLogOptions::default());
    let first = log.writer.appended() + 1;
    let (_, receipt) = shared.call(None, |call| {
        call.mount_segment(segment(1, "a:1", 1000), NODE).unwrap();
        call.put_start(NODE, "k".into(), SliceLength(10), ReplicateConfig::default(), T).unwrap();
        call.exist_key("k".into(), T).unwrap();
    });
    assert_eq!(
        receipt,
        Receipt { last: first + 1, needs_sync: first, ..Receipt::default() },
        "only the mount needs a sync"
    );
    let (_, read) = shared.call(None, |call| call.exist_key("k".into(), T));
    assert_eq!(read, Receipt::default());
}

#[test]
fn the_log_contains_no_change_after_one_that_does_not_fit() {
    let log = LogConfig { file_bytes: 1024, buffer_bytes: 250 };
    let (shared, log) = start(&SimulatedStorage::new(1), CommitLogOptions { log, ..CommitLogOptions::default() });
    let long = "x".repeat(300);
    let first = log.writer.appended();
    assert_eq!(call(&shared, |call| call.mount_segment(segment(1, "a:1", 1000), NODE)).0, Ok(()));
    assert!(!log.has_failed());
    assert_eq!(call(&shared, |call| call.mount_segment(segment(2, &long, 1000), NODE)).0, Ok(()));
    assert!(log.has_failed());
    let (closed, mut wait) = call(&shared, |call| call.unmount_segment(SegmentId(2, 2), NODE));
    assert_eq!((closed, poll(&mut wait)), (Ok(()), Poll::Pending));
    assert_eq!(log.writer.appended(), first + 1);
}

#[test]
fn tasks_that_are_ready_share_one_write() {
    let disk = SimulatedStorage::new(1);
    let (shared, log) = start(&disk, CommitLogOptions { sync: SyncMode::Never, ..CommitLogOptions::default() });
    assert_eq!(poll(&mut call(&shared, |call| call.mount_segment(segment(1, "a:1", 1000), NODE)).1), Poll::Pending);
    log.writer.sync(log.writer.appended()).unwrap();
    let writes = || disk.operations()[&StorageOperation::Write];
    let before = writes();
    let mut waits = ["a", "b", "c"].map(|key| {
        call(&shared, |call| call.put_start(NODE, key.into(), SliceLength(10), ReplicateConfig::default(), T))
            .1
            .expect("it waits")
    });
    let mut poll_all = || waits.each_mut().map(|wait| wait.as_mut().poll(&mut Context::from_waker(Waker::noop())));
    assert_eq!((poll_all(), writes()), ([Poll::Pending; 3], before));
    assert_eq!((poll_all(), writes()), ([Poll::Ready(true); 3], before + 2), "the changes and their mark");
}

#[test]
fn freed_memory_waits_for_at_most_a_second_even_if_syncs_are_rarer() {
    let clock = RunClock::default();
    let sync = SyncMode::Interval(Duration::from_secs(3600));
    let disk = SimulatedStorage::new(1);
    let (shared, log) =
        start_in(CrashEnv::new(&clock, 0), &disk, CommitLogOptions { sync, ..CommitLogOptions::default() });
    let mut thread = LogThread::new(shared.env.clone(), &shared, &*log);
    assert_eq!(call(&shared, |call| call.mount_segment(segment(1, "a:1", 1000), NODE)).0, Ok(()));
    let put = |key: &'static str| {
        let started =
            call(&shared, |call| call.put_start(NODE, key.into(), SliceLength(600), ReplicateConfig::default(), T)).0;
        let meta = ObjectMeta { key: key.into(), object_checksum: None };
        started.is_ok() && call(&shared, |call| call.put_end(NODE, meta, ReplicaType::ALL, T)).0 == Ok(())
    };
    log.writer.sync(log.writer.appended()).unwrap();
    assert!(thread.run(LogWork::Periodic) && put("a"));
    assert_eq!(call(&shared, |call| call.remove("a".into(), true, T)).0, Ok(()));
    let mut put_after = |ms| {
        clock.advance(ms);
        assert!(thread.run(LogWork::Periodic));
        put("b")
    };
    assert_eq!((put_after(900), put_after(200)), (false, true));
}

#[test]
fn masters_that_are_killed_early_leave_a_log_of_limited_size() {
    let clock = RunClock::default();
    let mut disk = SimulatedStorage::new(1);
    // The last change of each process is in a file of its own.
    let file_bytes = SNAPSHOT_LOG_BYTES / 4;
    let log_config = LogConfig { file_bytes, ..LogConfig::default() };
    let mut due = Vec::new();
    for _ in 0..6 {
        let options = CommitLogOptions { log: log_config, ..CommitLogOptions::default() };
        let (shared, log) = start_in(CrashEnv::new(&clock, 0), &disk, options);
        let snapshots = StateSnapshots::new(shared.env.clone(), &shared, &*log);
        due.push(snapshots.is_due());
        if snapshots.is_due() {
            let mut run = snapshots.start();
            while snapshots.step(&mut run, true) {}
        }
        disk = disk.crash(Crash::Kill);
    }
    assert_eq!(due, [false, false, false, false, true, false]);
}

#[test]
fn restored_memory_is_held_for_the_lease_of_the_process_before() {
    let lease_ttl = Duration::from_secs(3600);
    let held = |lease_ttl| {
        let disk = SimulatedStorage::new(1);
        let policy = StorePolicy { lease_ttl, ..StorePolicy::default() };
        let restore = |disk: &SimulatedStorage, policy| {
            let options = CommitLogOptions::default();
            let mut data = MasterData { dir: open(disk), options, format: DATA_FORMAT };
            data::restore(&mut data, policy, &RealEnv::new()).unwrap().report
        };
        restore(&disk, policy);
        restore(&disk.crash(Crash::Power), StorePolicy::default()).hold
    };
    assert_eq!(held(lease_ttl), lease_ttl);
    assert_eq!(held(Duration::from_secs(1)), StorePolicy::default().put_release_after);
}
