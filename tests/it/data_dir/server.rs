//! In this process, on a simulated disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mcctl::engine::base::id::KEY_BYTES_MAX;
use mcctl::engine::base::{ClientId, ErrorCode, HostPort, SegmentId};
use mcctl::engine::env::RealEnv;
use mcctl::engine::journal::{
    CommitLogOptions, Crash, DataDir, DataDirOptions, DiskErrorPolicy, DiskFault, ExistingData, JournalError,
    JournalFile, JournalStorage, LogConfig, SimulatedStorage, StorageOperation, SyncMode, Uuid,
};
use mcctl::engine::master::server::MasterData;
use mcctl::engine::master::view::AdminView;
use mcctl::engine::master::{DATA_FORMAT, MasterConfig, MasterServer};
use mcctl::engine::rpc::{CallError, RpcClient, master_calls};
use mcctl::engine::wire::types::{ClientStatus, ObjectMeta, ReplicaType, ReplicateConfig, Segment};
use mcctl::engine::wire::{MasterCalls, Text};

use crate::peer::process::{PATIENCE, in_time, wait_until_async};
use mcctl::engine::wire::types::SliceLength;
use mcctl::engine::wire::types::Tenant;

const T: Tenant<'static> = Tenant::DEFAULT;
const NODE: ClientId = ClientId(1, 1);
const HOUR: Duration = Duration::from_secs(3600);

/// A running master, and a connection to it.
struct Running {
    server: MasterServer<RealEnv>,
    calls: MasterCalls<RpcClient<RealEnv>>,
}

fn options(sync: SyncMode) -> CommitLogOptions {
    let log = LogConfig { file_bytes: 64 << 10, buffer_bytes: 1 << 20 };
    CommitLogOptions { sync, log, snapshot_interval: HOUR, ..CommitLogOptions::default() }
}

async fn start(storage: Arc<dyn JournalStorage>, boot_id: Uuid, options: CommitLogOptions) -> Running {
    let existing = ExistingData::Keep;
    let open = DataDirOptions { cluster_id: "c", boot_id, new_uuid: Uuid(7), existing };
    let dir = DataDir::open(storage, &open).unwrap();
    let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
    config.threads = 1;
    // No test waits for the end of a client. On a busy machine, a client without pings must not
    // expire.
    config.policy.client_ttl = HOUR;
    let env = RealEnv::new();
    let server = MasterServer::start_with(config, Some(MasterData { dir, options, format: DATA_FORMAT }), env.clone())
        .await
        .unwrap();
    let calls = master_calls(env, HostPort::new("127.0.0.1", server.rpc_port()), PATIENCE);
    Running { server, calls }
}

async fn on(disk: &SimulatedStorage, options: CommitLogOptions) -> Running {
    start(Arc::new(disk.clone()), disk.boot_id(), options).await
}

impl Running {
    async fn mount(&self) {
        let segment = Segment {
            id: SegmentId(1, 1),
            name: "127.0.0.1:1".into(),
            base: 1 << 40,
            size: 1 << 20,
            te_endpoint: "127.0.0.1:1".into(),
            protocol: "tcp".into(),
            host_id: "".into(),
        };
        self.calls.mount_segment(segment.clone(), NODE).await.unwrap().unwrap();
        self.calls.remount_segment(vec![segment], NODE).await.unwrap().unwrap();
    }

    async fn ping(&self) -> ClientStatus {
        self.calls.ping(NODE).await.unwrap().unwrap().client_status
    }

    async fn put(&self, key: &str) -> Result<(), CallError> {
        let started = self.calls.put_start(NODE, key.into(), SliceLength(100), ReplicateConfig::default(), T).await?;
        assert!(started.is_ok(), "{key}: {started:?}");
        let object = ObjectMeta { key: key.into(), object_checksum: None };
        assert_eq!(self.calls.put_end(NODE, object, ReplicaType::ALL, T).await?, Ok(()));
        Ok(())
    }

    async fn has(&self, key: &str) -> bool {
        match self.calls.get_replica_list(key.into(), T).await.unwrap() {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error, ErrorCode::OBJECT_NOT_FOUND, "{key}");
                false
            }
        }
    }
}

#[tokio::test]
async fn a_killed_master_keeps_every_key_in_every_mode() {
    for sync in [SyncMode::Always, SyncMode::Interval(HOUR), SyncMode::Never] {
        let mut disk = SimulatedStorage::new(1);
        for round in 0..3 {
            let master = on(&disk, options(sync)).await;
            if round == 0 {
                master.mount().await;
            }
            assert_eq!(master.ping().await, ClientStatus::OK, "the same process");
            for key in 0..round {
                assert!(master.has(&format!("k{key}")).await, "{sync}: k{key} in round {round}");
            }
            in_time("the put", master.put(&format!("k{round}"))).await.unwrap();
            disk = disk.crash(Crash::Kill);
        }
    }
}

#[tokio::test]
async fn a_power_loss_takes_no_key_if_every_response_waits_for_a_sync() {
    for seed in 0..10 {
        let disk = SimulatedStorage::new(seed);
        let master = on(&disk, options(SyncMode::Always)).await;
        master.mount().await;
        for key in 0..20 {
            master.put(&format!("k{key}")).await.unwrap();
        }
        let disk = disk.crash(Crash::Power);
        drop(master);
        let master = on(&disk, options(SyncMode::Always)).await;
        assert_eq!(master.ping().await, ClientStatus::OK);
        for key in 0..20 {
            assert!(master.has(&format!("k{key}")).await, "k{key}");
        }
        in_time("a put", master.put("new")).await.unwrap();
    }
}

#[tokio::test]
async fn restored_memory_is_held_after_a_power_loss_but_not_after_a_clean_end() {
    let disk = SimulatedStorage::new(3);
    let first = on(&disk, options(SyncMode::default())).await;
    first.mount().await;
    first.put("k").await.unwrap();
    first.server.stop().await.unwrap();
    let disk = disk.crash(Crash::Power);
    let second = on(&disk, options(SyncMode::default())).await;
    assert_eq!(second.ping().await, ClientStatus::OK);
    second.put("after a clean end").await.unwrap();
    wait_until_async("a sync", PATIENCE, async || {
        second.server.handle().data().is_some_and(|d| d.durable == d.appended)
    })
    .await;
    let disk = disk.crash(Crash::Power);
    drop(second);
    let third = on(&disk, options(SyncMode::default())).await;
    assert_eq!(third.ping().await, ClientStatus::OK);
    assert!(third.has("k").await && third.has("after a clean end").await);
    let refused =
        third.calls.put_start(NODE, "held".into(), SliceLength(100), ReplicateConfig::default(), T).await.unwrap();
    assert_eq!(refused.unwrap_err(), ErrorCode::NO_AVAILABLE_HANDLE);
}

#[tokio::test]
async fn a_stop_writes_a_snapshot_and_the_next_start_reads_no_log() {
    let disk = SimulatedStorage::new(4);
    let master = on(&disk, options(SyncMode::default())).await;
    master.mount().await;
    master.put("k").await.unwrap();
    assert_eq!(master.server.handle().data().unwrap().snapshots, 0);
    master.server.stop().await.unwrap();
    let snapshots = |disk: &SimulatedStorage| {
        let names = disk.list().unwrap();
        names.into_iter().filter(|name| name.starts_with("snapshot-")).count()
    };
    let disk = disk.crash(Crash::Kill);
    assert_eq!(snapshots(&disk), 1);
    let master = on(&disk, options(SyncMode::default())).await;
    assert_eq!(master.ping().await, ClientStatus::OK);
    assert!(master.has("k").await);
}

#[tokio::test]
async fn snapshots_are_written_while_calls_are_served() {
    let disk = SimulatedStorage::new(5);
    let every = Duration::from_millis(1);
    let master = on(&disk, CommitLogOptions { snapshot_interval: every, ..options(SyncMode::default()) }).await;
    master.mount().await;
    let mut key = 0;
    wait_until_async("three snapshots", PATIENCE, async || {
        master.put(&format!("k{key}")).await.unwrap();
        key += 1;
        master.server.handle().data().unwrap().snapshots >= 3
    })
    .await;
    let disk = disk.crash(Crash::Kill);
    drop(master);
    let master = on(&disk, options(SyncMode::default())).await;
    assert_eq!(master.ping().await, ClientStatus::OK);
    for key in 0..key {
        assert!(master.has(&format!("k{key}")).await, "k{key}");
    }
}

#[tokio::test]
async fn a_batch_with_the_longest_keys_fits_into_the_log() {
    let disk = SimulatedStorage::new(10);
    let large = CommitLogOptions { log: LogConfig::default(), ..options(SyncMode::default()) };
    let master = on(&disk, large).await;
    master.mount().await;
    let count = (40 << 20) / KEY_BYTES_MAX;
    let names: Vec<String> = (0..count).map(|n| format!("{}{n:04}", "k".repeat(KEY_BYTES_MAX - 4))).collect();
    let keys: Vec<Text<'_>> = names.iter().map(|name| name.as_str().into()).collect();
    let config = ReplicateConfig::default();
    let started = master
        .server
        .handle()
        .call(|call| call.batch_put_start(NODE, keys, vec![SliceLength(100); count], config, T))
        .0;
    assert!(started.iter().all(Result::is_ok));
    assert!(in_time("a put", master.put("k")).await.is_ok());
    let disk = disk.crash(Crash::Kill);
    drop(master);
    let master = on(&disk, large).await;
    assert_eq!(master.ping().await, ClientStatus::OK);
    assert_eq!(
        master.calls.exist_key(names[count - 1].as_str().into(), T).await.unwrap(),
        Ok(false),
        "it is not complete"
    );
    assert_eq!(master.server.handle().metrics().1.keys, count as u64 + 1);
}

#[tokio::test]
async fn after_an_error_of_the_disk_nothing_is_acknowledged_and_the_master_ends() {
    for operation in [StorageOperation::Write, StorageOperation::Sync] {
        let disk = SimulatedStorage::new(6);
        let mut master = on(&disk, options(SyncMode::Always)).await;
        master.mount().await;
        master.put("before").await.unwrap();
        disk.set_fault(Some(DiskFault { operation, after: 0, errno: 5, is_permanent: true }));
        assert!(in_time("the end of the connection", master.put("lost")).await.is_err(), "{operation}");
        let error = in_time("the failure", master.server.failed()).await;
        assert!(matches!(error, JournalError::Storage { operation: found, .. } if found == operation), "{error}");
        assert!(in_time("a read", master.calls.exist_key("before".into(), T)).await.is_err(), "{operation}");
        in_time("the stop", master.server.stop()).await.unwrap();
        let disk = disk.crash(Crash::Kill);
        disk.set_fault(None);
        let master = on(&disk, options(SyncMode::Always)).await;
        assert_eq!(master.ping().await, ClientStatus::OK);
        assert!(master.has("before").await);
    }
}

#[tokio::test]
async fn a_master_can_continue_in_memory_but_its_directory_cannot_be_used_again() {
    let disk = SimulatedStorage::new(7);
    let on_error = DiskErrorPolicy::ContinueMemoryOnly;
    let master = on(&disk, CommitLogOptions { on_error, ..options(SyncMode::default()) }).await;
    master.mount().await;
    // The marker is written and synced after these.
    disk.set_fault(Some(DiskFault { operation: StorageOperation::Write, after: 0, errno: 28, is_permanent: false }));
    in_time("the put", master.put("in memory")).await.unwrap();
    assert!(master.server.handle().data().unwrap().memory_only);
    assert!(master.has("in memory").await);
    in_time("the stop", master.server.stop()).await.unwrap();
    let disk = disk.crash(Crash::Kill);
    let open =
        DataDirOptions { cluster_id: "c", boot_id: disk.boot_id(), new_uuid: Uuid(7), existing: ExistingData::Keep };
    let refused = DataDir::open(Arc::new(disk), &open).err().unwrap();
    assert!(matches!(refused, JournalError::Invalidated { .. }), "{refused}");
}

#[tokio::test]
async fn a_master_that_cannot_mark_its_directory_ends() {
    let disk = SimulatedStorage::new(8);
    let on_error = DiskErrorPolicy::ContinueMemoryOnly;
    let mut master = on(&disk, CommitLogOptions { on_error, ..options(SyncMode::default()) }).await;
    master.mount().await;
    disk.set_fault(Some(DiskFault { operation: StorageOperation::Write, after: 0, errno: 5, is_permanent: true }));
    assert!(in_time("the end of the connection", master.put("lost")).await.is_err());
    in_time("the failure", master.server.failed()).await;
    disk.set_fault(None);
    let master = on(&disk.crash(Crash::Kill), options(SyncMode::default())).await;
    assert_eq!(master.ping().await, ClientStatus::OK, "the directory is complete");
}

/// A disk whose syncs wait until they are permitted.
struct SlowDisk {
    disk: SimulatedStorage,
    may_sync: Arc<AtomicBool>,
}

struct SlowFile {
    file: Arc<dyn JournalFile>,
    may_sync: Arc<AtomicBool>,
}

impl SlowDisk {
    fn file(&self, file: Arc<dyn JournalFile>) -> Arc<dyn JournalFile> {
        Arc::new(SlowFile { file, may_sync: self.may_sync.clone() })
    }
}

impl JournalStorage for SlowDisk {
    fn path(&self) -> String {
        self.disk.path()
    }
    fn lock(&self) -> io::Result<bool> {
        self.disk.lock()
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn create(&self, name: &str, size: u64) -> io::Result<Arc<dyn JournalFile>> {
        Ok(self.file(self.disk.create(name, size)?))
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn JournalFile>> {
        Ok(self.file(self.disk.open(name)?))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn create_directory(&self, name: &str) -> io::Result<()> {
        self.disk.create_directory(name)
    }
    fn sync_directory(&self, name: &str) -> io::Result<()> {
        self.disk.sync_directory(name)
    }
}

impl JournalFile for SlowFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }
    fn sync(&self) -> io::Result<()> {
        while !self.may_sync.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.file.sync()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_wait_for_the_sync_that_their_mode_requires() {
    for sync in [SyncMode::Always, SyncMode::default()] {
        let may_sync = Arc::new(AtomicBool::new(true));
        let disk = SimulatedStorage::new(9);
        let slow = Arc::new(SlowDisk { disk: disk.clone(), may_sync: may_sync.clone() });
        let master = start(slow, disk.boot_id(), options(sync)).await;
        master.mount().await;
        may_sync.store(false, Ordering::Relaxed);
        let before = master.server.handle().data().unwrap().appended;
        if sync == SyncMode::Always {
            let put = master.put("k");
            tokio::pin!(put);
            let appended = async || master.server.handle().data().unwrap().appended > before;
            tokio::select! {
                () = wait_until_async("the change in the log", PATIENCE, appended) => {}
                done = &mut put => panic!("a response before the sync: {done:?}"),
            }
            assert!(tokio::time::timeout(Duration::from_millis(100), &mut put).await.is_err());
            let other = master_calls(RealEnv::new(), HostPort::new("127.0.0.1", master.server.rpc_port()), PATIENCE);
            let read = in_time("a read", other.exist_key("k".into(), T)).await.unwrap();
            assert_eq!(read, Ok(false), "reads do not wait for a sync");
            may_sync.store(true, Ordering::Relaxed);
            in_time("the put", put).await.unwrap();
        } else {
            in_time("a put without a sync", master.put("k")).await.unwrap();
            let unmount = master.calls.unmount_segment(SegmentId(1, 1), NODE);
            tokio::pin!(unmount);
            assert!(tokio::time::timeout(Duration::from_millis(100), &mut unmount).await.is_err());
            may_sync.store(true, Ordering::Relaxed);
            in_time("the unmount", unmount).await.unwrap().unwrap();
        }
        in_time("the stop", master.server.stop()).await.unwrap();
    }
}
