//! The RDMA transport on verbs, between two engines of this process: bytes, refusals, and devices
//! and peers that fail. Some tests take links down.

mod doctor;
mod faults;
mod handshake;
mod inbound;
mod leaks;
mod process;
mod retry;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mcctl::engine::env::RealEnv;
use mcctl::engine::metadata::MetadataUri;
use mcctl::engine::sys::Memory;
use mcctl::engine::transfer::{
    Access, Op, OpKind, TransferConfig, TransferEngine, TransferError, TransferProtocol, TransferSettings,
    TransportOptions,
};

use crate::transfer::{memory, op};

/// Limit for any transfer. The machine is emulated.
const LIMIT: Duration = Duration::from_secs(60);

/// Limit for detecting a dead peer: the device retries for some seconds.
const NOTICED: Duration = Duration::from_secs(20);

fn config(devices: &[&str]) -> TransferConfig {
    TransferConfig {
        local_server_name: "127.0.0.1".to_owned(),
        metadata: MetadataUri::P2p,
        protocol: TransferProtocol::Rdma,
        announce_host: None,
        transport: TransportOptions {
            devices: devices.iter().map(|name| (*name).to_owned()).collect(),
            ..TransportOptions::default()
        },
        settings: TransferSettings::default(),
    }
}

async fn start(config: TransferConfig) -> TransferEngine {
    TransferEngine::start(config, RealEnv::new()).await.unwrap()
}

async fn engine(devices: &[&str]) -> TransferEngine {
    start(config(devices)).await
}

/// An engine on `devices` with `len` bytes of memory open to peers.
async fn target(devices: &[&str], len: usize) -> (TransferEngine, Arc<Memory>) {
    let engine = engine(devices).await;
    let memory = memory(len, 0);
    engine.register(&memory, Access::Remote).await.unwrap();
    (engine, memory)
}

/// Writes and reads every size at odd offsets in one batch each. Adjacent bytes must not change.
async fn moves_bytes(ours: &TransferEngine, segment: &str, theirs: &Arc<Memory>, registered: bool) {
    let sizes = [1, 7, 24, 63, 64, 65, 4096, 65_535, 65_537, 100_000, 1 << 20];
    let mut expected = theirs.whole().to_vec();
    let buffer = memory(sizes.iter().sum::<usize>(), 99);
    let registration = if registered { Some(ours.register(&buffer, Access::Local).await.unwrap()) } else { None };
    let source = buffer.whole().to_vec();
    let mut ops = Vec::new();
    let mut offset = 0;
    let mut at = 13;
    for size in sizes {
        ops.push(op(OpKind::Write, &buffer, offset, size, theirs.address() + at as u64));
        expected[at..at + size].copy_from_slice(&source[offset..offset + size]);
        offset += size;
        at += size + 3;
    }
    let back: Vec<Op> = ops.iter().cloned().map(|op| Op { kind: OpKind::Read, ..op }).collect();
    ours.transfer(segment, ops, LIMIT).await.unwrap();
    assert!(theirs.whole().to_vec() == expected, "written");
    buffer.fill(0, buffer.len(), 0).unwrap();
    ours.transfer(segment, back, LIMIT).await.unwrap();
    assert!(buffer.whole().to_vec() == source, "read back");
    if let Some(registration) = registration {
        ours.deregister(registration).await.unwrap();
    }
}

/// The number of `what` (`qp`, `mr`) on all devices, as counted by the kernel.
fn resources<const N: usize>(what: [&str; N]) -> [u64; N] {
    let output = Command::new("rdma").args(["resource", "show"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    what.map(|what| words.windows(2).filter(|pair| pair[0] == what).map(|pair| pair[1].parse::<u64>().unwrap()).sum())
}

/// Packets sent by a device, from its counters.
fn sent(device: &str) -> u64 {
    let file = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts");
    std::fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

async fn poll(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn bytes_arrive_at_every_size_and_offset_and_nowhere_else() {
    let before = sent("rxe1");
    let ((theirs, memory), ours) = (target(&["rxe0"], 3 << 20).await, engine(&["rxe1"]).await);
    moves_bytes(&ours, theirs.segment_name(), &memory, true).await;
    let issued = ours.counters().issued;
    assert_eq!((issued.reads, issued.writes, issued.failures), (11, 11, 0));
    assert!(sent("rxe1") > before + 300, "packets of 4096 bytes were sent by the device");
    for engine in [ours, theirs] {
        engine.shutdown().await.unwrap();
    }
}

/// Small enough for valgrind; see tests/rdma-vm/memcheck.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn a_few_bytes_are_written_and_read_and_memory_is_released() {
    let ((theirs, there), ours) = (target(&["rxe0"], 2000).await, engine(&["rxe1"]).await);
    let source = memory(1003, 7);
    let back = memory(1003, 0);
    let registration = ours.register(&source, Access::Local).await.unwrap();
    let at = there.address() + 13;
    // Under valgrind the first exchange of connection data may exceed the engine's limit.
    let put = || vec![op(OpKind::Write, &source, 0, 1003, at)];
    let mut written = ours.transfer(theirs.segment_name(), put(), LIMIT).await;
    let end = Instant::now() + LIMIT;
    while matches!(written, Err(TransferError::Timeout { .. } | TransferError::Down { .. })) && Instant::now() < end {
        tokio::time::sleep(Duration::from_secs(1)).await;
        written = ours.transfer(theirs.segment_name(), put(), LIMIT).await;
    }
    written.unwrap();
    ours.transfer(theirs.segment_name(), vec![op(OpKind::Read, &back, 0, 1003, at)], LIMIT).await.unwrap();
    assert!(back.whole().to_vec() == source.whole().to_vec());
    ours.deregister(registration).await.unwrap();
    for engine in [ours, theirs] {
        engine.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn unregistered_memory_is_registered_for_its_batch() {
    let ((theirs, memory), ours) = (target(&["rxe0"], 3 << 20).await, engine(&["rxe0"]).await);
    let before = resources(["mr"]);
    moves_bytes(&ours, theirs.segment_name(), &memory, false).await;
    assert_eq!(resources(["mr"]), before);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn a_batch_uses_several_devices_of_both_ends() {
    let ((theirs, memory), ours) = (target(&["rxe0", "rxe1"], 3 << 20).await, engine(&["rxe1", "rxe0"]).await);
    let before = (sent("rxe0"), sent("rxe1"));
    moves_bytes(&ours, theirs.segment_name(), &memory, true).await;
    assert!(sent("rxe0") > before.0 + 50 && sent("rxe1") > before.1 + 50);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn memory_larger_than_a_region_is_split() {
    let mut small = config(&["rxe0"]);
    small.settings.transports.rdma.region_bytes_max = 100_000;
    let theirs = start(small.clone()).await;
    let there = memory(3 << 20, 0);
    theirs.register(&there, Access::Remote).await.unwrap();
    small.transport.devices = vec!["rxe1".to_owned()];
    let ours = start(small).await;
    let descriptor = ours.open(theirs.segment_name()).await.unwrap();
    assert_eq!(descriptor.buffers.len(), (3usize << 20).div_ceil(100_000));
    moves_bytes(&ours, theirs.segment_name(), &there, true).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn threads_share_a_connection_and_get_their_own_bytes() {
    const THREADS: usize = 6;
    const PART: usize = 300_000;
    let (theirs, there) = target(&["rxe0"], THREADS * PART).await;
    let ours = engine(&["rxe1"]).await;
    let segment = theirs.segment_name().to_owned();
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let ours = ours.clone();
            let segment = segment.clone();
            let at = there.address() + (thread * PART) as u64;
            std::thread::spawn(move || {
                for round in 0..4u8 {
                    let buffer = memory(PART, round * 16 + thread as u8);
                    let parts = [(0, 1000), (1000, 99_000), (100_000, 150_001), (250_001, 49_999)];
                    let ops = |kind, local: &Arc<Memory>| {
                        parts
                            .iter()
                            .map(|(from, len)| op(kind, local, *from, *len, at + *from as u64))
                            .collect::<Vec<_>>()
                    };
                    let done = ours.submit(&segment, ops(OpKind::Write, &buffer), LIMIT).wait();
                    assert!(done.iter().all(Result::is_ok), "{done:?}");
                    let back = Arc::new(Memory::from_vec(vec![0; PART]));
                    let done = ours.submit(&segment, ops(OpKind::Read, &back), LIMIT).wait();
                    assert!(done.iter().all(Result::is_ok), "{done:?}");
                    assert!(back.whole().to_vec() == buffer.whole().to_vec(), "thread {thread}, round {round}");
                }
            })
        })
        .collect();
    for thread in threads {
        tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn two_engines_that_dial_each_other_at_once_both_succeed() {
    for _ in 0..5 {
        let (one, first) = target(&["rxe0"], 200_000).await;
        let (two, second) = target(&["rxe1"], 200_000).await;
        let mine = memory(100_000, 7);
        let yours = memory(100_000, 8);
        let there =
            one.transfer(two.segment_name(), vec![op(OpKind::Write, &mine, 0, 100_000, second.address())], LIMIT);
        let here =
            two.transfer(one.segment_name(), vec![op(OpKind::Write, &yours, 0, 100_000, first.address())], LIMIT);
        let (there, here) = tokio::join!(there, here);
        there.unwrap();
        here.unwrap();
        assert!(second.slice(0, 100_000).unwrap().to_vec() == mine.whole().to_vec());
        assert!(first.slice(0, 100_000).unwrap().to_vec() == yours.whole().to_vec());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn unregistered_remote_memory_is_refused() {
    let ((theirs, there), ours) = (target(&["rxe0"], 1 << 20).await, engine(&["rxe1"]).await);
    let buffer = memory(4096, 1);
    let ops = vec![
        op(OpKind::Write, &buffer, 0, 4096, there.address()),
        op(OpKind::Write, &buffer, 0, 4096, there.address() + (1 << 20) - 4095),
        op(OpKind::Read, &buffer, 0, 1, 4096),
    ];
    let done = ours.submit(theirs.segment_name(), ops, LIMIT).finish().await;
    assert!(done[0].is_ok(), "{done:?}");
    assert!(done[1..].iter().all(|one| matches!(one, Err(TransferError::Rejected { .. }))), "{done:?}");
}
