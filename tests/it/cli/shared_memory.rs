//! Memory that is shared with a node in another process.

use std::sync::Arc;
use std::time::Duration;

use mcctl::engine::env::RealEnv;
use mcctl::engine::metadata::MetadataUri;
use mcctl::engine::sys::{Memory, MemoryPolicy, MemorySource};
use mcctl::engine::transfer::{
    Op, OpKind, RemoteAddr, TransferConfig, TransferEngine, TransferError, TransferProtocol, TransferSettings,
    TransportOptions, WriteRetry,
};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::service::Service;
use super::{command, mcctl, mcctl_in_time};
use crate::peer::process::PATIENCE;

#[test]
fn a_socket_directory_that_does_not_exist_is_a_start_error() {
    for args in [&["serve", "store"][..], &["store", "get", "key"]] {
        let flags = ["--master=127.0.0.1:1", "--shared-memory-socket=missing"];
        let run = mcctl_in_time(&[args, &flags].concat());
        assert_eq!(run.code, 2, "{}", run.stderr);
        let absolute = std::env::current_dir().unwrap().join("missing");
        for part in [absolute.to_str().unwrap(), "--shared-memory-socket", "create the directory"] {
            assert!(run.stderr.contains(part), "{part} not in {}", run.stderr);
        }
    }
}

/// A node that shares its memory, and a client of it in this process.
struct SharedNode {
    node: Service,
    segment: String,
    client: TransferEngine,
    /// Address of the node's memory.
    address: u64,
    buffer: Arc<Memory>,
}

impl SharedNode {
    async fn start() -> SharedNode {
        let args = ["bench", "transfer", "--mode=target", "--buffer-size=16mb", "--json", "--shared-memory"];
        let mut node = Service::start(command(&args));
        let ready: Value = serde_json::from_str(&node.line_with("\"segment\"")).expect("one JSON document");
        let segment = ready["segment"].as_str().expect("a name").to_owned();
        let config = TransferConfig {
            local_server_name: "127.0.0.1".to_owned(),
            metadata: MetadataUri::P2p,
            protocol: TransferProtocol::Tcp,
            announce_host: None,
            transport: TransportOptions::default(),
            settings: TransferSettings::default(),
        };
        let client = TransferEngine::start(config, RealEnv::new()).await.expect("an engine");
        let address = client.open(&segment).await.expect("it runs").buffers[0].address;
        let buffer = Arc::new(MemorySource::new(MemoryPolicy::default()).buffer(1 << 20).expect("memory"));
        SharedNode { node, segment, client, address, buffer }
    }

    fn op(&self, kind: OpKind) -> Op {
        Op { kind, local: self.buffer.whole(), remote: RemoteAddr(self.address) }
    }

    async fn run(&self, kind: OpKind, limit: Duration) -> Result<(), TransferError> {
        let submitted = self.client.submit(&self.segment, vec![self.op(kind)], limit);
        submitted.write_retry(WriteRetry::Forbidden).finish().await.remove(0)
    }

    fn transport(&self) -> &'static str {
        self.client.peers()[0].transport
    }

    async fn write(&self, value: u8) {
        self.buffer.fill(0, self.buffer.len(), value).expect("in range");
        self.run(OpKind::Write, PATIENCE).await.expect("written");
    }

    async fn read(&self) -> u8 {
        self.buffer.fill(0, self.buffer.len(), 0).expect("in range");
        self.run(OpKind::Read, PATIENCE).await.expect("read");
        let bytes = self.buffer.whole().to_vec();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_does_not_harm_its_clients() {
    let mut shared = SharedNode::start().await;
    shared.write(7).await;
    assert_eq!((shared.read().await, shared.transport()), (7, "shared-memory"));
    let reads: Vec<Op> = (0..500).map(|_| shared.op(OpKind::Read)).collect();
    let client = shared.client.clone();
    let segment = shared.segment.clone();
    let reading = tokio::spawn(async move { client.submit(&segment, reads, PATIENCE).finish().await });
    tokio::time::sleep(Duration::from_millis(10)).await;
    shared.node.stop(Signal::SIGKILL);
    // Reads in progress end in either way, but without SIGBUS.
    assert_eq!(reading.await.expect("no panic").len(), 500);
    crate::peer::process::wait_until("the mapping to be released", PATIENCE, || shared.transport() == "tcp");
    assert!(shared.run(OpKind::Read, PATIENCE).await.is_err_and(|error| error.is_retryable()));
}

/// Whether all threads of a process are stopped.
fn is_stopped(process: nix::unistd::Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let status = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("status"));
    threads.flatten().all(|thread| status(thread).is_ok_and(|status| status.contains("State:\tT")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_node_does_not_copy_after_the_deadline() {
    let shared = SharedNode::start().await;
    shared.write(7).await;
    let node = nix::unistd::Pid::from_raw(i32::try_from(shared.node.pid()).expect("a process ID"));
    nix::sys::signal::kill(node, Signal::SIGSTOP).expect("it runs");
    // The signal stops each thread a little later.
    crate::peer::process::wait_until("the node to be stopped", PATIENCE, || is_stopped(node));
    shared.buffer.fill(0, shared.buffer.len(), 8).expect("in range");
    let error = shared.run(OpKind::Write, Duration::from_millis(200)).await.expect_err("it is stopped");
    assert!(matches!(error, TransferError::Timeout { .. }) && error.may_still_land(), "{error}");
    nix::sys::signal::kill(node, Signal::SIGCONT).expect("it is stopped");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(shared.read().await, 7);
    shared.write(9).await;
    assert_eq!((shared.read().await, shared.transport()), (9, "shared-memory"));
}

#[test]
fn a_transfer_benchmark_uses_shared_memory_only_on_request() {
    let mut node = Service::start(command(&[
        "bench",
        "transfer",
        "--mode=target",
        "--buffer-size=16mb",
        "--json",
        "--shared-memory",
    ]));
    let ready: Value = serde_json::from_str(&node.line_with("\"segment\"")).expect("one JSON document");
    let segment = ready["segment"].as_str().expect("a name");
    for (flag, operation, transport) in [
        (Some("--shared-memory"), "read", "shared-memory"),
        (Some("--shared-memory"), "write", "shared-memory"),
        (None, "read", "tcp"),
    ] {
        let mut args =
            vec!["bench", "transfer", "--segment-id", segment, "--duration=1", "--buffer-size=16mb", "--verify"];
        args.extend(["--json", "--operation", operation].into_iter().chain(flag));
        let report: Value = serde_json::from_str(mcctl(&args).succeeds()).expect("one JSON document");
        assert_eq!((&report["protocol"], &report["verified"]), (&transport.into(), &true.into()));
    }
}
