//! A slow disk: requests wait before they are processed, and nothing that was processed is lost.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::admin::AdminApi;
use crate::server::MasterServer;
use crate::server::data::MasterData;
use crate::server::shared::MasterShared;
use crate::server::tests::crash::env::{CrashEnv, RunClock};
use crate::server::tests::log::{open, start_in};
use crate::server::ticker::log_permits_tick;
use crate::unit_tests::{T, segment};
use crate::view::AdminView;
use crate::{DATA_FORMAT, Effects, MasterConfig, MasterHandle};
use mcctl_base::{ClientId, HostPort};
use mcctl_journal::{
    CommitLogOptions, Crash, DiskFault, LogConfig, LogThread, SimulatedStorage, StorageOperation, SyncMode,
};
use mcctl_metadata::admin::AdminService;
use mcctl_net::rpc::{
    AdmissionWait, Admitted, ClientReleases, RpcClient, RpcLatency, RpcService, WorkerPolls, master_calls,
};
use mcctl_sys::env::{Env, RealEnv};
use mcctl_wire::Release;
use mcctl_wire::types::ReplicateConfig;
use mcctl_wire::types::SliceLength;
use mcctl_wire::{MasterApi, Method};

const NODE: ClientId = ClientId(1, 1);
const PATIENCE: Duration = Duration::from_secs(60);
const FILE_BYTES: u64 = 16 << 10;

/// A log of files of 16 KiB, which are synced only before they are used.
fn options(buffer_bytes: usize) -> CommitLogOptions {
    let log = LogConfig { file_bytes: FILE_BYTES, buffer_bytes };
    CommitLogOptions { sync: SyncMode::Never, log, ..CommitLogOptions::default() }
}

fn poll(wait: &mut (impl Future<Output = Admitted> + Unpin)) -> Poll<Admitted> {
    Pin::new(wait).poll(&mut Context::from_waker(Waker::noop()))
}

/// Starts a put, although the log may have no room.
fn put<E: Env>(shared: &MasterShared<E>, key: &str) {
    let started =
        shared.call(None, |call| call.put_start(NODE, key.into(), SliceLength(100), ReplicateConfig::default(), T)).0;
    assert!(started.is_ok(), "{key}: {started:?}");
}

/// Mounts a segment, and starts puts until the log has no room. Returns their number.
fn fill<E: Env>(shared: &MasterShared<E>) -> u64 {
    let mounted = shared.call(None, |call| call.mount_segment(segment(1, "a:1", 1 << 30), NODE)).0;
    assert_eq!(mounted, Ok(()));
    let mut count = 0;
    while shared.admits(Method::PutStart) {
        put(shared, &format!("k{count}"));
        count += 1;
    }
    count
}

/// The number of puts in the directory after the process was killed.
fn found(disk: &SimulatedStorage) -> u64 {
    start_in(RealEnv::new(), &disk.crash(Crash::Kill), options(1 << 20))
        .0
        .lock(RealEnv::new().now())
        .0
        .state
        .gauges()
        .keys
}

/// The future that waits for the admission of a put.
fn admission<E: Env>(shared: &MasterShared<E>) -> AdmissionWait<'_> {
    let mut wait = shared.admission(Method::PutStart);
    assert_eq!(poll(&mut wait), Poll::Pending);
    wait
}

#[test]
fn changes_wait_until_the_log_thread_has_made_room_and_reads_do_not() {
    let disk = SimulatedStorage::new(1);
    let (shared, log) = start_in(RealEnv::new(), &disk, options(1 << 20));
    let mut thread = LogThread::new(shared.env.clone(), &shared, &*log);
    let count = fill(&shared);
    let mut first = admission(&shared);
    let mut second = admission(&shared);
    for method in [Method::ExistKey, Method::GetReplicaList, Method::Ping] {
        assert!(shared.admits(method));
        assert_eq!(poll(&mut shared.admission(method)), Poll::Ready(Admitted::Proceed));
    }
    for method in [Method::PutStart, Method::PutEnd, Method::Remove, Method::MountSegment, Method::RemoveAll] {
        assert!(!shared.admits(method));
    }
    // The changes of earlier requests fit into the file, so the response of a read does not wait
    // for the disk.
    log.writer.flush(log.writer.appended()).unwrap();
    assert!(!shared.admits(Method::PutStart));
    let (exists, receipt) = shared.call(None, |call| call.exist_key("k0".into(), T));
    assert!(exists.is_ok() && shared.commit(receipt).is_none());

    assert!(thread.run(log.next_work(Duration::ZERO)));
    for wait in [&mut first, &mut second] {
        assert_eq!(poll(wait), Poll::Ready(Admitted::Proceed));
    }
    assert!(shared.admits(Method::PutStart));
    put(&shared, "last");
    log.writer.flush(log.writer.appended()).unwrap();
    assert_eq!(found(&disk), count + 1);
}

#[test]
fn a_full_buffer_refuses_nothing_that_was_admitted() {
    let disk = SimulatedStorage::new(1);
    let (shared, log) = start_in(RealEnv::new(), &disk, options(64 << 10));
    let mut thread = LogThread::new(shared.env.clone(), &shared, &*log);
    let count = fill(&shared);
    let mut admitted = count;
    while log.writer.unflushed_bytes() < 3 * (64 << 10) {
        put(&shared, &format!("k{admitted}"));
        admitted += 1;
    }
    assert!(!log.has_failed() && log.writer.is_overfull());
    let mut wait = admission(&shared);
    assert!(thread.run(log.next_work(Duration::ZERO)));
    assert_eq!(poll(&mut wait), Poll::Ready(Admitted::Proceed));
    assert_eq!((log.writer.unflushed_bytes(), found(&disk)), (0, admitted));
}

#[test]
fn a_call_that_makes_many_changes_waits_for_the_disk_itself() {
    let disk = SimulatedStorage::new(1);
    let (shared, log) = start_in(RealEnv::new(), &disk, options(2 << 10));
    let mounted = shared.call(None, |call| call.mount_segment(segment(1, "a:1", 1 << 30), NODE)).0;
    assert_eq!(mounted, Ok(()));
    let keys: Vec<String> = (0..2_000).map(|key| format!("new{key}")).collect();
    let keys = keys.iter().map(|key| key.as_str().into()).collect();
    let sizes = vec![100; 2_000];
    let started = shared
        .call(None, |call| {
            call.batch_put_start(
                NODE,
                keys,
                sizes.into_iter().map(SliceLength).collect(),
                ReplicateConfig::default(),
                T,
            )
        })
        .0;
    assert!(started.iter().all(Result::is_ok));
    // Two of three acquisitions of the lock are not followed by a check of the buffer.
    assert!(log.writer.unflushed_bytes() < FILE_BYTES as usize, "{}", log.writer.unflushed_bytes());
}

#[test]
fn a_full_disk_ends_the_master_when_a_change_waits_for_room() {
    let disk = SimulatedStorage::new(1);
    let (shared, log) = start_in(RealEnv::new(), &disk, options(1 << 20));
    let mut thread = LogThread::new(shared.env.clone(), &shared, &*log);
    let operation = StorageOperation::Create;
    let count = fill(&shared);
    disk.set_fault(Some(DiskFault { operation, after: 0, errno: 28, is_permanent: true }));
    // Nothing waits, so the thread tries again later.
    assert!(thread.run(log.next_work(Duration::ZERO)));
    log.writer.flush(log.writer.appended()).unwrap();
    assert!(thread.run(log.next_work(Duration::ZERO)));
    assert!(!log.has_failed());
    let mut wait = admission(&shared);
    assert!(!thread.run(log.next_work(Duration::ZERO)));
    assert_eq!(poll(&mut wait), Poll::Ready(Admitted::Proceed), "the request sees the outcome");
    let (_, receipt) =
        shared.call(None, |call| call.put_start(NODE, "x".into(), SliceLength(9), ReplicateConfig::default(), T));
    let mut commit = shared.commit(receipt).expect("it is not stored");
    let mut context = Context::from_waker(Waker::noop());
    let _ = commit.as_mut().poll(&mut context);
    assert_eq!(commit.as_mut().poll(&mut context), Poll::Ready(false));
    disk.set_fault(None);
    assert_eq!(found(&disk), count);
}

/// Advances the time without a stall of the process.
fn advance(shared: &MasterShared<CrashEnv>, clock: &RunClock, ms: u64) {
    let now = shared.env.now();
    shared.lock(now).0.stalls.expect_by(now + Duration::from_millis(ms));
    clock.advance(ms);
}

#[test]
fn a_stall_is_reported_while_changes_wait_for_it() {
    let clock = RunClock::default();
    let disk = SimulatedStorage::new(1);
    let env = CrashEnv::new(&clock, 0);
    let (shared, log) = start_in(env.clone(), &disk, options(1 << 20));
    let shared = Arc::new(shared);
    let mut thread = LogThread::new(shared.env.clone(), shared.clone(), log.clone());
    let api = AdminApi::new(
        env,
        Arc::new(MasterHandle {
            shared: shared.clone(),
            polls: WorkerPolls::none(),
            latency: RpcLatency::none(),
            releases: ClientReleases::new(Release::LATEST),
        }),
    );
    let stalled = || {
        let is_shown = api.metrics().lines().any(|line| line == "mcctl_master_log_stalled 1");
        assert_eq!(is_shown, api.not_ready().is_some());
        log.stalled_for(shared.env.now())
    };
    fill(&shared);
    log.room.begin_work(shared.env.now());
    advance(&shared, &clock, 2_500);
    assert_eq!(stalled(), None, "nothing waits");
    let wait = admission(&shared);
    assert_eq!(stalled(), Some(Duration::from_millis(2_500)));
    drop(wait);
    assert_eq!(stalled(), None, "the connection was closed");
    let mut wait = admission(&shared);
    assert!(thread.run(log.next_work(Duration::ZERO)));
    assert_eq!((poll(&mut wait), stalled()), (Poll::Ready(Admitted::Proceed), None));
}

#[test]
fn the_ticker_waits_for_room_and_gives_clients_the_time_of_the_wait() {
    let clock = RunClock::default();
    let disk = SimulatedStorage::new(1);
    let (shared, log) = start_in(CrashEnv::new(&clock, 0), &disk, options(1 << 20));
    let mut thread = LogThread::new(shared.env.clone(), &shared, &*log);
    assert!(log_permits_tick(&shared));
    fill(&shared);
    let ttl = shared.lock(shared.env.now()).0.state.policy().client_ttl;
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap();
    let tick = || {
        shared.with_guarded(|guarded, now, _| while guarded.state.tick(now, now, &mut Effects::default()) {});
        shared.with_guarded(|guarded, _, _| guarded.state.has_segment_named(b"a:1"))
    };
    advance(&shared, &clock, ttl_ms / 2);
    let mut wait = admission(&shared);
    assert!(!log_permits_tick(&shared));
    advance(&shared, &clock, 3 * ttl_ms);
    assert!(!log_permits_tick(&shared));
    assert!(thread.run(log.next_work(Duration::ZERO)));
    assert_eq!(poll(&mut wait), Poll::Ready(Admitted::Proceed));
    assert!(log_permits_tick(&shared) && tick(), "the client's ping may be behind the request");
    for _ in 0..40 {
        advance(&shared, &clock, 2_000);
    }
    assert!(log_permits_tick(&shared) && !tick(), "the client no longer calls");
}

/// The same over connections, with the threads of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_a_stalled_disk_answers_reads_and_delays_puts() {
    let disk = SimulatedStorage::new(1);
    let data = MasterData { dir: open(&disk), options: options(1 << 20), format: DATA_FORMAT };
    let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
    config.threads = 1;
    config.policy.client_ttl = Duration::from_secs(3600);
    let env = RealEnv::new();
    let server = MasterServer::start_with(config, Some(data), env.clone()).await.unwrap();
    let shared = server.handle().shared;
    let client = || {
        let at = HostPort::new("127.0.0.1", server.rpc_port());
        master_calls::<RealEnv>(env.clone(), at, PATIENCE)
    };
    let (reads, changes): (_, mcctl_wire::MasterCalls<RpcClient<RealEnv>>) = (client(), client());
    // A disk that completes no sync from now on.
    disk.hold_syncs(true);
    let count = fill(&shared);
    let put = tokio::spawn(async move {
        changes
            .put_start(NODE, "waits".into(), SliceLength(100), ReplicateConfig::default(), T)
            .await
            .unwrap()
            .map(drop)
    });
    while !shared.log.as_ref().unwrap().room.has_waiting() {
        tokio::task::yield_now().await;
    }
    assert_eq!(reads.exist_key("k0".into(), T).await.unwrap(), Ok(false), "the answer of a put that is not complete");
    assert_eq!(server.handle().metrics().1.keys, count);
    assert!(!put.is_finished());
    disk.hold_syncs(false);
    assert_eq!(put.await.unwrap(), Ok(()));
    drop(server);
    assert_eq!(found(&disk), count + 1);
}
