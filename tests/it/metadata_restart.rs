//! The metadata service with a data directory: restarts over HTTP, in this process and through the
//! command line.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use mcctl::engine::base::HostPort;
use mcctl::engine::env::{Env, RealEnv};
use mcctl::engine::http::HttpServer;
use mcctl::engine::journal::{
    CommitLogOptions, DataDir, DataDirOptions, DiskErrorPolicy, DiskFault, DiskStorage, ExistingData, JournalError,
    JournalStorage, SimulatedStorage, StorageOperation, SyncMode, Uuid,
};
use mcctl::engine::metadata::{KeyParsing, KeySpace, MetadataClient, MetadataError, MetadataService};
use nix::sys::signal::Signal;
use tokio::net::TcpListener;

use crate::cli::service::{Service, get, put};
use crate::cli::{command, mcctl};
use crate::peer::process::in_time;

/// A running service with a client.
struct Restored {
    service: MetadataService<RealEnv>,
    http: HttpServer,
    client: MetadataClient,
}

impl Restored {
    /// Restores a service. Waits until the process before it has unlocked the directory.
    async fn start(storage: impl Fn() -> Arc<dyn JournalStorage>, options: CommitLogOptions) -> Restored {
        let cluster =
            DataDirOptions { cluster_id: "cluster", boot_id: Uuid(1), new_uuid: Uuid(2), existing: ExistingData::Keep };
        let open = async {
            loop {
                match DataDir::open(storage(), &cluster) {
                    Err(JournalError::Locked { .. }) => RealEnv::new().sleep(std::time::Duration::from_millis(5)).await,
                    opened => return opened.unwrap(),
                }
            }
        };
        let dir = in_time("the directory is unlocked", open).await;
        let keys = KeySpace::default();
        let restored = MetadataService::restored(RealEnv::new(), keys, KeyParsing::Plain, dir, options);
        let (service, report) = restored.unwrap();
        assert_eq!(report.records, service.records());
        let http = service.start(&HostPort::new("127.0.0.1", 0)).await.unwrap();
        let client = MetadataClient::http(&format!("http://{}/metadata", http.at())).unwrap();
        Restored { service, http, client }
    }

    /// Ends the service like a killed process: nothing more is stored.
    async fn kill(self) {
        self.http.stop().await;
    }

    async fn stop(self) {
        self.http.stop().await;
        self.service.close().await.unwrap();
    }
}

fn on_disk(root: &Path) -> impl Fn() -> Arc<dyn JournalStorage> {
    move || Arc::new(DiskStorage::open(root).unwrap())
}

fn options(sync: SyncMode, on_error: DiskErrorPolicy) -> CommitLogOptions {
    CommitLogOptions { sync, on_error, ..CommitLogOptions::default() }
}

fn rpc_meta(port: u16) -> Bytes {
    format!("{{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":{port}}}").into()
}

const RPC: &str = "mooncake/rpc_meta/n";
const RAM: &str = "mooncake/ram/n";

#[tokio::test]
async fn acknowledged_writes_survive_a_kill_and_a_stop_in_every_mode() {
    for sync in [SyncMode::Always, SyncMode::default(), SyncMode::Never] {
        let root = tempfile::tempdir().unwrap();
        let storage = on_disk(root.path());
        let options = options(sync, DiskErrorPolicy::Stop);
        let first = Restored::start(&storage, options).await;
        first.client.put(RPC, rpc_meta(1)).await.unwrap();
        first.client.put(RAM, Bytes::from(vec![7; 1 << 20])).await.unwrap();
        first.client.put("mooncake/ram/gone", "d".into()).await.unwrap();
        assert!(first.client.remove("mooncake/ram/gone").await.unwrap());
        first.kill().await;

        let second = Restored::start(&storage, options).await;
        assert_eq!(second.service.records(), 2, "{sync}");
        assert_eq!(second.client.get(RAM).await.unwrap().map(|value| value.len()), Some(1 << 20));
        second.client.put(RAM, "new".into()).await.unwrap();
        second.service.remove_segment("other").await;
        second.stop().await;

        let third = Restored::start(&storage, options).await;
        assert_eq!(third.client.get(RAM).await.unwrap(), Some("new".into()));
        assert_eq!(third.client.get(RPC).await.unwrap(), Some(rpc_meta(1)));
        third.stop().await;
    }
}

#[tokio::test]
async fn a_restored_name_belongs_to_its_owner_while_the_owner_responds() {
    let root = tempfile::tempdir().unwrap();
    let storage = on_disk(root.path());
    let options = options(SyncMode::Never, DiskErrorPolicy::Stop);
    // A listener that accepts is a live process that has not yet responded.
    let owner = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = owner.local_addr().unwrap().port();
    let first = Restored::start(&storage, options).await;
    first.client.put(RPC, rpc_meta(port)).await.unwrap();
    first.client.put(RAM, "descriptor".into()).await.unwrap();
    first.service.mark_owner_expired("n");
    first.kill().await;

    let second = Restored::start(&storage, options).await;
    // The mark is not kept, so the owner is probed.
    let closes = tokio::spawn(async move { drop(owner.accept().await.unwrap()) });
    let refused = second.client.put(RPC, rpc_meta(1)).await.unwrap_err();
    assert!(refused.is_duplicate(), "{refused}");
    closes.await.unwrap();
    // The listener is closed now.
    second.client.put(RPC, rpc_meta(1)).await.unwrap();
    assert_eq!(second.client.get(RAM).await.unwrap(), None);
    second.kill().await;

    let third = Restored::start(&storage, options).await;
    assert_eq!(third.client.get(RPC).await.unwrap(), Some(rpc_meta(1)));
    assert_eq!(third.client.get(RAM).await.unwrap(), None);
    third.stop().await;
}

#[tokio::test]
async fn a_write_that_is_not_stored_is_refused_and_the_service_reports_it() {
    let disk = SimulatedStorage::new(1);
    let running = Restored::start(|| Arc::new(disk.clone()), options(SyncMode::Always, DiskErrorPolicy::Stop)).await;
    running.client.put(RAM, "1".into()).await.unwrap();
    disk.set_fault(Some(DiskFault { operation: StorageOperation::Sync, after: 0, errno: 5, is_permanent: true }));
    let put = running.client.put(RAM, "2".into()).await;
    let removal = running.client.remove(RAM).await.map(drop);
    // The first write is in the log file, although the sync failed.
    for (write, expected) in [(put, 504), (removal, 503)] {
        let error = write.unwrap_err();
        let is_expected = matches!(error, MetadataError::Refused { status, .. } if status == expected);
        assert!(is_expected && error.is_retryable(), "{error}");
    }
    let error = in_time("the service reports the error", running.service.failed()).await;
    assert!(error.to_string().starts_with("cannot sync log-"), "{error}");
    assert!(running.service.close().await.is_err());
}

#[tokio::test]
async fn a_service_may_continue_in_memory_and_its_directory_is_refused_later() {
    let disk = SimulatedStorage::new(2);
    let memory_only = options(SyncMode::default(), DiskErrorPolicy::ContinueMemoryOnly);
    let running = Restored::start(|| Arc::new(disk.clone()), memory_only).await;
    disk.set_fault(Some(DiskFault { operation: StorageOperation::Write, after: 0, errno: 5, is_permanent: false }));
    running.client.put(RAM, "1".into()).await.unwrap();
    assert_eq!(running.client.get(RAM).await.unwrap(), Some("1".into()));
    assert_eq!(disk.contents("validity"), Some(b"invalid\n".to_vec()));
    running.stop().await;
}

/// `serve metadata` with this data directory, and its port.
fn serve(root: &Path, more: &[&str]) -> (Service, u16) {
    let dir = format!("--data-dir={}", root.display());
    let args = [&["serve", "metadata", "--host=127.0.0.1", "--port=0", &*dir], more].concat();
    let mut service = Service::start(command(&args));
    let port = service.port_after("http://127.0.0.1:");
    (service, port)
}

#[test]
fn a_separate_service_keeps_its_records() {
    let root = tempfile::tempdir().unwrap();
    let (mut first, port) = serve(root.path(), &["--fsync=never"]);
    assert_eq!(put(port, "/metadata?key=a", "1"), 200);
    assert_eq!(first.stop(Signal::SIGKILL), -1);
    let (mut second, port) = serve(root.path(), &[]);
    assert_eq!(get(port, "/metadata?key=a"), (200, "1".to_owned()));
    assert_eq!(put(port, "/metadata?key=b", "2"), 200);
    assert_eq!(second.stop(Signal::SIGTERM), 0);
    let (mut third, port) = serve(root.path(), &["--fsync=always"]);
    assert_eq!((get(port, "/metadata?key=a").0, get(port, "/metadata?key=b").0), (200, 200));
    assert_eq!(third.stop(Signal::SIGTERM), 0);
    let (mut fourth, port) = serve(root.path(), &["--discard-data"]);
    assert_eq!(get(port, "/metadata?key=a").0, 404);
    assert_eq!(fourth.stop(Signal::SIGTERM), 0);
}

/// Runs `serve metadata` with these flags, which it must refuse.
fn refused(root: &Path, more: &[&str], code: i32) -> String {
    let dir = format!("--data-dir={}", root.display());
    let run = mcctl(&[&["serve", "metadata", "--host=127.0.0.1", "--port=0", &*dir], more].concat());
    assert_eq!(run.code, code, "{run:?}");
    run.stderr
}

#[test]
fn a_directory_that_is_in_use_or_damaged_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let (mut first, port) = serve(root.path(), &[]);
    assert!(refused(root.path(), &[], 4).contains("another process uses the data directory"));
    for key in ["a", "b", "c"] {
        assert_eq!(put(port, &format!("/metadata?key={key}"), "value"), 200);
    }
    assert_eq!(first.stop(Signal::SIGKILL), -1);
    let log = root.path().join("log-0000000001");
    let mut bytes = fs::read(&log).unwrap();
    bytes[512 + 40] ^= 1;
    fs::write(&log, bytes).unwrap();
    let error = refused(root.path(), &[], 4);
    assert!(error.contains("log-0000000001 is corrupt at offset 512"), "{error}");
    assert!(refused(root.path(), &["--fsync=sometimes"], 2).contains("--fsync"));
}
