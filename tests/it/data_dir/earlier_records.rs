//! The metadata records that an earlier release kept beside a master's log.

use std::fs;
use std::path::Path;

use mcctl::engine::base::HostPort;
use mcctl::engine::env::RealEnv;
use mcctl::engine::journal::{CommitLogOptions, DataDirPlan, ExistingDataChoice};
use mcctl::engine::metadata::{
    KeyParsing, KeySpace, METADATA_DIRECTORY, MetadataClient, MetadataService, open_data_dir,
};
use nix::sys::signal::Signal;

use crate::cli::service::{Service, get, put};
use crate::cli::{command, mcctl};
use crate::peer::process::free_port;

const KEYS: [&str; 2] = ["mooncake/rpc_meta/a", "mooncake/ram/a"];

/// Stores records as an earlier release did.
async fn store_as_before(root: &Path) {
    let plan = DataDirPlan {
        path: root.join(METADATA_DIRECTORY),
        cluster_id: "mooncake_cluster".to_owned(),
        existing: ExistingDataChoice::Restore,
    };
    let env = RealEnv::new();
    let dir = open_data_dir(&plan, &env).unwrap();
    let options = CommitLogOptions::default();
    let (service, _) = MetadataService::restored(env, KeySpace::default(), KeyParsing::Plain, dir, options).unwrap();
    let http = service.start(&HostPort::new("127.0.0.1", 0)).await.unwrap();
    let client = MetadataClient::http(&format!("http://{}/metadata", http.at())).unwrap();
    for key in KEYS {
        client.put(key, key.into()).await.unwrap();
    }
    http.stop().await;
    service.close().await.unwrap();
}

fn args(root: &Path, more: &[&str]) -> Vec<String> {
    let dir = format!("--data-dir={}", root.display());
    let rpc = format!("--rpc_port={}", free_port());
    let fixed = ["serve", "master", "--rpc_address=127.0.0.1", &*rpc, "--metrics_port=0", &*dir];
    [&fixed, more].concat().into_iter().map(str::to_owned).collect()
}

/// A master with an embedded metadata service, and the port of that service.
fn start(root: &Path, more: &[&str]) -> (Service, u16) {
    let port = free_port();
    let text = port.to_string();
    let flags = ["--enable_http_metadata_server", "--http_metadata_server_host=127.0.0.1"];
    let args = args(root, &[&flags, &["--http_metadata_server_port", &*text], more].concat());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut service = Service::start(command(&args));
    service.line_with("Master service started");
    (service, port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_move_into_the_masters_log_once() {
    let root = tempfile::tempdir().unwrap();
    store_as_before(root.path()).await;
    let (mut first, port) = start(root.path(), &["--fsync=never"]);
    for key in KEYS {
        assert_eq!(get(port, &format!("/metadata?key={key}")), (200, key.to_owned()));
    }
    assert!(!root.path().join(METADATA_DIRECTORY).exists());
    assert_eq!(put(port, "/metadata?key=mooncake/ram/a", "newer"), 200);
    assert_eq!(first.stop(Signal::SIGKILL), -1);
    let (mut second, port) = start(root.path(), &[]);
    assert_eq!(get(port, "/metadata?key=mooncake/ram/a"), (200, "newer".to_owned()));
    assert_eq!(get(port, &format!("/metadata?key={}", KEYS[0])), (200, KEYS[0].to_owned()));
    assert_eq!(second.stop(Signal::SIGTERM), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_whose_records_were_moved_is_not_read_again() {
    let root = tempfile::tempdir().unwrap();
    store_as_before(root.path()).await;
    let moved = root.path().join("metadata.moved");
    fs::rename(root.path().join(METADATA_DIRECTORY), &moved).unwrap();
    // The removal was interrupted.
    let first = fs::read_dir(&moved).unwrap().next().unwrap().unwrap();
    fs::remove_file(first.path()).unwrap();
    let (mut master, port) = start(root.path(), &[]);
    assert_eq!(get(port, &format!("/metadata?key={}", KEYS[0])).0, 404);
    assert!(!moved.exists());
    assert_eq!(master.stop(Signal::SIGTERM), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_others_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let foreign = root.path().join(METADATA_DIRECTORY).join("notes.txt");
    fs::create_dir(foreign.parent().unwrap()).unwrap();
    fs::write(&foreign, "text").unwrap();
    let (mut master, _) = start(root.path(), &[]);
    assert_eq!(master.stop(Signal::SIGTERM), 0);
    assert!(foreign.exists(), "the directory contains no records");
    store_as_before(root.path()).await;
    let (mut master, port) = start(root.path(), &[]);
    assert_eq!(get(port, &format!("/metadata?key={}", KEYS[0])), (200, KEYS[0].to_owned()));
    assert_eq!(master.stop(Signal::SIGTERM), 0);
    let left = fs::read_dir(root.path().join("metadata.moved")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_are_kept_with_the_data_of_the_master_that_is_set_aside() {
    let root = tempfile::tempdir().unwrap();
    store_as_before(root.path()).await;
    let data = root.path().join("mcctl").join("mooncake_cluster");
    fs::create_dir_all(&data).unwrap();
    fs::rename(root.path().join(METADATA_DIRECTORY), data.join(METADATA_DIRECTORY)).unwrap();
    let port = free_port();
    let mut command = command(&[
        "serve",
        "master",
        "--rpc_address=127.0.0.1",
        &format!("--rpc_port={}", free_port()),
        "--metrics_port=0",
        "--enable_snapshot",
        "--enable_http_metadata_server",
        "--http_metadata_server_host=127.0.0.1",
        &format!("--http_metadata_server_port={port}"),
    ]);
    command.env("MOONCAKE_SNAPSHOT_LOCAL_PATH", root.path());
    let mut master = Service::start(command);
    master.line_with("Master service started");
    assert_eq!(get(port, &format!("/metadata?key={}", KEYS[0])).0, 404);
    assert_eq!(master.stop(Signal::SIGTERM), 0);
    let names: Vec<String> =
        fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name.starts_with("metadata.")), "{names:?}");
    assert!(!data.join(METADATA_DIRECTORY).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_are_removed_with_the_data_of_the_master() {
    let root = tempfile::tempdir().unwrap();
    store_as_before(root.path()).await;
    let (mut master, port) = start(root.path(), &["--discard-data"]);
    assert_eq!(get(port, &format!("/metadata?key={}", KEYS[0])).0, 404);
    assert!(!root.path().join(METADATA_DIRECTORY).exists());
    assert_eq!(master.stop(Signal::SIGTERM), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_of_a_cluster_refuses_them_and_keeps_them() {
    let root = tempfile::tempdir().unwrap();
    store_as_before(root.path()).await;
    let flags = ["--enable_ha", "--etcd_endpoints=127.0.0.1:1", "--enable_http_metadata_server"];
    let flags = [&flags[..], &["--http_metadata_server_host=127.0.0.1", "--http_metadata_server_port=0"]].concat();
    let args = args(root.path(), &flags);
    let run = mcctl(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(run.fails(2).contains("without --enable-ha"), "{run:?}");
    assert!(fs::read_dir(root.path().join(METADATA_DIRECTORY)).unwrap().count() > 1);
}
