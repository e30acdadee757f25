//! The transfer engine against the real one, in both directions, with both kinds of metadata.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use mcctl::engine::base::HostPort;
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::HttpServer;
use mcctl::engine::metadata::{KeySpace, MetadataService, MetadataUri};
use mcctl::engine::sys::Memory;
use mcctl::engine::transfer::{
    Access, Op, OpKind, RemoteAddr, TransferConfig, TransferEngine, TransferError, TransferProtocol, TransferSettings,
    TransportOptions,
};
use serde_json::{Value, json};

use crate::peer::cluster::{Make, Master, Metadata};
use crate::peer::process::{Dialogue, PATIENCE, Process, in_time, run, wait_until_async};
use crate::peer::wheel::{mcctl, wheel};

/// A deadline that no test reaches.
const HOUR: Duration = Duration::from_secs(3600);
/// Bytes offered by each end.
const BYTES: usize = 8 << 20;

/// The metadata used by a test.
enum Finding {
    P2p,
    Ours(HttpServer),
    Real(Box<Master>),
}

impl Finding {
    async fn ours() -> Finding {
        let service = MetadataService::new(RealEnv::new(), KeySpace::default());
        let running = service.start(&HostPort::new("127.0.0.1", 0)).await.unwrap();
        Finding::Ours(running)
    }

    fn text(&self) -> String {
        match self {
            Finding::P2p => "P2PHANDSHAKE".to_owned(),
            Finding::Ours(running) => format!("http://{}/metadata", running.at()),
            Finding::Real(master) => master.metadata(Metadata::Http),
        }
    }

    async fn engine(&self, name: &str) -> Result<TransferEngine, TransferError> {
        let config = TransferConfig {
            local_server_name: if let Finding::P2p = self { "127.0.0.1".to_owned() } else { name.to_owned() },
            metadata: self.text().parse::<MetadataUri>().unwrap(),
            protocol: TransferProtocol::Tcp,
            announce_host: Some("127.0.0.1".to_owned()),
            transport: TransportOptions::default(),
            settings: TransferSettings::default(),
        };
        TransferEngine::start(config, RealEnv::new()).await
    }
}

/// The real engine, loaded by a Python program.
struct Real {
    dialogue: Dialogue,
    segment: String,
    address: u64,
    _dir: tempfile::TempDir,
}

impl Real {
    fn start(finding: &Finding, name: &str, environment: &[(&str, &str)]) -> Real {
        let dir = tempfile::tempdir().unwrap();
        let mut command = wheel().script("engine_worker.py");
        command.env("MC_TCP_BIND_ADDRESS", "127.0.0.1").envs(environment.iter().copied());
        let mut dialogue = Dialogue::start("engine", command, dir.path());
        let p2p = matches!(finding, Finding::P2p);
        let name = if p2p { "127.0.0.1" } else { name };
        dialogue.send(&json!({ "do": "start", "name": name, "metadata": finding.text(), "bytes": BYTES }).to_string());
        let started = dialogue.receive(PATIENCE);
        assert_eq!(started["rc"], 0, "{started}");
        let segment = if p2p { format!("127.0.0.1:{}", started["port"]) } else { name.to_owned() };
        Real { dialogue, segment, address: started["address"].as_u64().unwrap(), _dir: dir }
    }

    fn ask(&mut self, question: Value) -> Value {
        self.dialogue.send(&question.to_string());
        self.dialogue.receive(PATIENCE)
    }

    fn fill(&mut self, at: usize, length: usize, seed: u64) {
        self.ask(json!({ "do": "fill", "at": at, "length": length, "seed": seed }));
    }

    fn holds(&mut self, at: usize, length: usize, seed: u64) -> bool {
        self.ask(json!({ "do": "check", "at": at, "length": length, "seed": seed }))["equal"] == true
    }

    fn moves(&mut self, kind: &str, segment: &str, at: usize, remote: u64, length: usize) -> i64 {
        let question = json!({ "do": kind, "segment": segment, "at": at, "remote": remote, "length": length });
        self.ask(question)["rc"].as_i64().unwrap()
    }
}

/// The bytes that `fill` writes.
fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| ((i % 251 * 31 + seed) % 251) as u8).collect()
}

fn bytes_of(memory: &Arc<Memory>, at: usize, length: usize) -> Vec<u8> {
    memory.slice(at, length).unwrap().to_vec()
}

const SIZES: [usize; 6] = [1, 4096, 65_535, 65_537, 1 << 20, (3 << 20) + 17];

/// A real engine reads and writes our memory: every byte is in its place, and unregistered memory
/// is refused.
async fn real_initiator(finding: &Finding, environment: &[(&str, &str)]) {
    let ours = finding.engine("ours").await.unwrap();
    let memory = Arc::new(Memory::from_vec(pattern(BYTES, 1)));
    ours.register(&memory, Access::Remote).await.unwrap();
    let segment = ours.segment_name().to_owned();
    let mut real = tokio::task::block_in_place(|| Real::start(finding, "real-initiator", environment));
    tokio::task::block_in_place(|| {
        for (i, length) in SIZES.into_iter().enumerate() {
            let at = 1000 + i;
            real.fill(0, length, 77 + i as u64);
            assert_eq!(real.moves("write", &segment, 0, memory.address() + at as u64, length), 0, "{length}");
            assert!(bytes_of(&memory, at, length) == pattern(length, 77 + i), "written {length}");
            memory.write_at(0, &pattern(length, 5 + i)).unwrap();
            assert_eq!(real.moves("read", &segment, 9, memory.address(), length), 0, "{length}");
            assert!(real.holds(9, length, 5 + i as u64), "read {length}");
        }
        let end = memory.address() + BYTES as u64;
        assert_ne!(real.moves("read", &segment, 0, end - 10, 11), 0, "a range that ends outside");
        assert_eq!(real.moves("read", &segment, 0, end - 10, 10), 0, "the last range inside");
    });
    let served = || {
        let counters = ours.counters();
        (counters.served.reads, counters.served.writes, counters.rejected)
    };
    // The last read is counted after its bytes are sent.
    wait_until_async("the counters", PATIENCE, async || served() == (7, 6, 1)).await;
}

/// Our engine reads and writes a real engine's memory.
async fn real_target(finding: &Finding, environment: &[(&str, &str)]) {
    let mut real = tokio::task::block_in_place(|| Real::start(finding, "real-target", environment));
    let ours = finding.engine("ours").await.unwrap();
    let memory = Arc::new(Memory::from_vec(vec![0; BYTES]));
    let limit = PATIENCE;
    let op = |kind, at: usize, length, remote| Op {
        kind,
        local: memory.slice(at, length).unwrap(),
        remote: RemoteAddr(remote),
    };
    for (i, length) in SIZES.into_iter().enumerate() {
        memory.write_at(3, &pattern(length, i)).unwrap();
        let at = 500 + 7 * i;
        ours.transfer(&real.segment, vec![op(OpKind::Write, 3, length, real.address + at as u64)], limit)
            .await
            .unwrap();
        tokio::task::block_in_place(|| {
            assert!(real.holds(at, length, i as u64), "written {length}");
            real.fill(0, length, 100 + i as u64);
        });
        ours.transfer(&real.segment, vec![op(OpKind::Read, 0, length, real.address)], limit).await.unwrap();
        assert!(bytes_of(&memory, 0, length) == pattern(length, 100 + i), "read {length}");
    }
    // A batch of small operations, on several connections.
    tokio::task::block_in_place(|| real.fill(0, BYTES, 8));
    let ops = (0..256).map(|i| op(OpKind::Read, i * 4096, 4096, real.address + i as u64 * 4096)).collect();
    ours.transfer(&real.segment, ops, limit).await.unwrap();
    assert!(bytes_of(&memory, 0, 256 * 4096) == pattern(256 * 4096, 8));
    // Runs in which some operations are refused: those after them are requested again.
    for kind in [OpKind::Write, OpKind::Read] {
        memory.write_at(0, &pattern(64 * 4096, 9)).unwrap();
        let remote = |i: usize| if i % 20 == 7 { 4096 } else { real.address + i as u64 * 4096 };
        let ops = (0..64).map(|i| op(kind, i * 4096, 4096, remote(i))).collect();
        let results = ours.submit(&real.segment, ops, limit).finish().await;
        for (i, result) in results.iter().enumerate() {
            let refused = matches!(result, Err(TransferError::Rejected { code: 1, .. }));
            assert!(if i % 20 == 7 { refused } else { result.is_ok() }, "{kind:?} {i}: {result:?}");
        }
    }
    assert!(bytes_of(&memory, 0, 64 * 4096) == pattern(64 * 4096, 9), "reads return what was written");
    for kind in [OpKind::Read, OpKind::Write] {
        let results = ours.submit(&real.segment, vec![op(kind, 0, 100, 4096)], limit).finish().await;
        assert!(matches!(results[0], Err(TransferError::Rejected { code: 1, .. })), "{results:?}");
    }
    ours.probe(&real.segment).await.unwrap();
    assert!(ours.notify(&real.segment, "n1", "hello").await.unwrap());
    let notifications = tokio::task::block_in_place(|| real.ask(json!({ "do": "notices" })));
    assert_eq!(notifications["notices"], json!([["n1", "hello"]]));
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn a_real_engine_accesses_our_memory() {
    real_initiator(&Finding::P2p, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn a_real_engine_accesses_our_memory_over_our_metadata() {
    real_initiator(&Finding::ours().await, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn a_real_engine_without_connection_pool_accesses_our_memory() {
    real_initiator(&Finding::P2p, &[("MC_TCP_ENABLE_CONNECTION_POOL", "0")]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn our_engine_accesses_a_real_ones_memory() {
    real_target(&Finding::P2p, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn our_engine_accesses_a_real_ones_memory_over_our_metadata() {
    real_target(&Finding::ours().await, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn both_directions_work_over_the_real_metadata_service() {
    let dir = tempfile::tempdir().unwrap();
    let master = tokio::task::block_in_place(|| Master::start(Make::Real, dir.path(), &[]));
    let finding = Finding::Real(Box::new(master));
    real_target(&finding, &[]).await;
    real_initiator(&finding, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn a_real_engine_probes_and_notifies_ours() {
    let ours = Finding::P2p.engine("").await.unwrap();
    let memory = Arc::new(Memory::from_vec(vec![0; 4096]));
    ours.register(&memory, Access::Remote).await.unwrap();
    let segment = ours.segment_name().to_owned();
    let mut real = tokio::task::block_in_place(|| Real::start(&Finding::P2p, "", &[]));
    tokio::task::block_in_place(|| {
        assert_eq!(real.ask(json!({ "do": "probe", "segment": segment }))["rc"], 0);
        let told = real.ask(json!({
            "do": "tell", "segment": segment, "at": 0, "remote": memory.address(), "length": 10, "name": "n", "message": "m",
        }));
        assert_eq!(told["rc"], 0);
    });
    let mut notifications = Vec::new();
    wait_until_async("the message", PATIENCE, async || {
        notifications = ours.take_notifications();
        !notifications.is_empty()
    })
    .await;
    assert_eq!((notifications[0].name.as_str(), notifications[0].message.as_str()), ("n", "m"));
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn a_killed_process_name_can_be_claimed_at_the_real_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let master = tokio::task::block_in_place(|| Master::start(Make::Real, dir.path(), &[]));
    let finding = Finding::Real(Box::new(master));
    let mut real = tokio::task::block_in_place(|| Real::start(&finding, "node-1", &[]));
    let taken = finding.engine("node-1").await.err().unwrap();
    assert!(matches!(taken, TransferError::NameTaken { .. }), "{taken}");
    tokio::task::block_in_place(|| real.dialogue.process().kill());
    let ours = finding.engine("node-1").await.unwrap();
    let descriptor = finding.engine("reader").await.unwrap().open("node-1").await.unwrap();
    assert_eq!((descriptor.buffers.len(), descriptor.tcp_data_port), (0, u64::from(ours.data_port())));
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn a_stopped_real_engine_costs_one_deadline_and_recovers() {
    let mut real = tokio::task::block_in_place(|| Real::start(&Finding::P2p, "", &[]));
    tokio::task::block_in_place(|| real.fill(0, 4096, 1));
    let ours = Finding::P2p.engine("").await.unwrap();
    let memory = Arc::new(Memory::from_vec(vec![0; 4096]));
    let read = || vec![Op { kind: OpKind::Read, local: memory.whole(), remote: RemoteAddr(real.address) }];
    ours.transfer(&real.segment, read(), PATIENCE).await.unwrap();
    tokio::task::block_in_place(|| real.dialogue.process().suspend());
    let read = || vec![Op { kind: OpKind::Read, local: memory.whole(), remote: RemoteAddr(real.address) }];
    let limit = Duration::from_secs(1);
    let first = ours.transfer(&real.segment, read(), limit).await.unwrap_err();
    assert!(matches!(first, TransferError::Timeout { limit: cause, .. } if cause == limit), "{first}");
    // Later calls fail without a request of their own, so none of them waits for its deadline.
    for _ in 0..20 {
        let error =
            in_time("a call to a peer that is down", ours.transfer(&real.segment, read(), HOUR)).await.unwrap_err();
        assert!(matches!(error, TransferError::Down { .. }), "{error}");
    }
    real.dialogue.process().resume();
    let read = || vec![Op { kind: OpKind::Read, local: memory.whole(), remote: RemoteAddr(real.address) }];
    wait_until_async("the recovery to be detected", PATIENCE, async || {
        ours.transfer(&real.segment, read(), PATIENCE).await.is_ok()
    })
    .await;
    assert!(bytes_of(&memory, 0, 4096) == pattern(4096, 1));
}

fn command_of_ours() -> Command {
    let mut command = mcctl();
    command.args(["bench", "transfer"]);
    command
}

fn link_of_ours() -> Command {
    let mut command = mcctl();
    std::os::unix::process::CommandExt::arg0(&mut command, "transfer_engine_bench");
    command
}

/// The two benchmarks as target and initiator, in both pairings of mcctl and the real one.
fn benches(finding: &Finding, ours: fn() -> Command) {
    fn real() -> Command {
        wheel().program("transfer_engine_bench")
    }
    let metadata = finding.text();
    let p2p = matches!(finding, Finding::P2p);
    let common = |mut command: Command, mode: &str, name: &str| {
        let name = if p2p { "127.0.0.1" } else { name };
        command.env("MC_TCP_BIND_ADDRESS", "127.0.0.1").args([
            &format!("--mode={mode}"),
            &format!("--metadata_server={metadata}"),
            &format!("--local_server_name={name}"),
            "--protocol=tcp",
            "--buffer_size=16777216",
        ]);
        command
    };
    for make in ["ours", "real"] {
        let (target, initiator) = if make == "ours" { (ours(), real as fn() -> Command) } else { (real(), ours) };
        let dir = tempfile::tempdir().unwrap();
        let name = format!("{make}-target");
        let mut server = Process::start("target", common(target, "target", &name), dir.path());
        let line = server.wait_line("listening on ");
        let at = line.split("listening on ").nth(1).unwrap().split_whitespace().next().unwrap();
        let segment = if p2p { at.to_owned() } else { name };
        if make == "real" {
            // It prints the address before it has registered its memory.
            server.wait_line("numa node");
        }
        for operation in ["read", "write"] {
            for (block, batch) in [("4096", "16"), ("1048576", "4")] {
                let mut command = common(initiator(), "initiator", &format!("{make}-initiator"));
                command.args([&format!("--segment_id={segment}"), &format!("--operation={operation}")]);
                command.args([&format!("--block_size={block}"), &format!("--batch_size={batch}")]);
                command.args(["--threads=2", "--duration=1"]);
                // The upstream-compatible name accepts upstream's flags only.
                if command.get_args().any(|word| word == "transfer") {
                    command.arg("--verify");
                }
                let (status, text) = run("initiator", command, dir.path(), PATIENCE);
                assert!(status.success() && text.contains("throughput"), "{make} {operation} {block}: {text}");
            }
        }
        assert!(server.runs());
    }
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_real_bench_and_ours_work_together() {
    benches(&Finding::P2p, command_of_ours);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_real_bench_and_our_compatible_command_work_together() {
    benches(&Finding::P2p, link_of_ours);
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn the_benches_work_together_over_our_metadata() {
    let finding = Finding::ours().await;
    tokio::task::block_in_place(|| benches(&finding, command_of_ours));
}
