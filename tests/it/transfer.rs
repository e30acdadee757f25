//! The transfer engine against itself: bytes, refusals, and peers that hang, die and recover.

mod connections;
mod faulty_peers;
mod inbound;
mod metadata_records;
mod shared_memory;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mcctl::engine::base::HostPort;
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::{
    self, Handler, HttpLimits, HttpRequest, HttpServer, Method, Response, StatusCode, answer, decode,
};
use mcctl::engine::metadata::{KeySpace, MetadataClient, MetadataService, MetadataUri};
use mcctl::engine::sys::Memory;
use mcctl::engine::transfer::tcp::Framing;
use mcctl::engine::transfer::tcp::{FramingVersion, RequestFrame};
use mcctl::engine::transfer::{
    Access, Op, OpKind, RemoteAddr, TransferConfig, TransferEngine, TransferError, TransferProtocol, TransferSettings,
    TransportOptions,
};
use mcctl::engine::wire::json::SegmentDescriptor;

use crate::peer::process::{PATIENCE, in_time, wait_until_async};
use crate::sim::{AdjustableClock, PatientEnv};

const LIMIT: Duration = PATIENCE;
/// A deadline that no test reaches.
const HOUR: Duration = Duration::from_secs(3600);

fn config(name: &str) -> TransferConfig {
    TransferConfig {
        local_server_name: name.to_owned(),
        metadata: MetadataUri::P2p,
        protocol: TransferProtocol::Tcp,
        announce_host: None,
        transport: TransportOptions::default(),
        settings: TransferSettings::default(),
    }
}

async fn start(config: TransferConfig) -> TransferEngine {
    TransferEngine::start(config, RealEnv::new()).await.unwrap()
}

async fn engine() -> TransferEngine {
    start(config("127.0.0.1")).await
}

/// An engine with `len` bytes of memory open to peers.
async fn target(len: usize) -> (TransferEngine, Arc<Memory>) {
    let engine = engine().await;
    let memory = Arc::new(Memory::from_vec(pattern(len, 0)));
    engine.register(&memory, Access::Remote).await.unwrap();
    (engine, memory)
}

pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 ^ (i / 251 % 249) as u8 ^ seed).collect()
}

pub(crate) fn memory(len: usize, seed: u8) -> Arc<Memory> {
    Arc::new(Memory::from_vec(pattern(len, seed)))
}

pub(crate) fn op(kind: OpKind, local: &Arc<Memory>, offset: usize, len: usize, remote: u64) -> Op {
    Op { kind, local: local.slice(offset, len).unwrap(), remote: RemoteAddr(remote) }
}

fn is_rejected(result: &Result<(), TransferError>) -> bool {
    matches!(result, Err(TransferError::Rejected { .. }))
}

/// Writes and reads every size and offset in one batch each. Adjacent bytes must not change.
async fn moves_bytes(ours: &TransferEngine, segment: &str, theirs: &Arc<Memory>) {
    let sizes = [1, 7, 24, 4096, 65_535, 65_537, 1 << 20, (3 << 20) + 5];
    let mut expected = theirs.whole().to_vec();
    let buffer = memory(sizes.iter().sum::<usize>(), 99);
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
}

#[tokio::test]
async fn bytes_arrive_at_every_size_and_offset_and_nowhere_else() {
    let ((theirs, memory), ours) = (target(6 << 20).await, engine().await);
    moves_bytes(&ours, theirs.segment_name(), &memory).await;
    let issued = ours.counters().issued;
    assert_eq!((issued.reads, issued.writes), (8, 8));
    // The target counts a read when its last byte is sent, which the initiator may observe first.
    wait_until_async("the target's counters", PATIENCE, async || theirs.counters().served == issued).await;
    assert_eq!(ours.peers()[0].flow, issued);
}

#[tokio::test]
async fn a_large_batch_uses_several_threads() {
    let (theirs, memory) = target(64 << 20).await;
    let mut shared = config("127.0.0.1");
    shared.settings.transports.tcp.movers_per_batch = 4;
    let ours = start(shared).await;
    moves_bytes(&ours, theirs.segment_name(), &memory).await;
    let buffer = Arc::new(Memory::from_vec(vec![0; 40 << 20]));
    let ops = vec![
        op(OpKind::Read, &buffer, 0, 33 << 20, memory.address() + 5),
        op(OpKind::Read, &buffer, 33 << 20, 7 << 20, memory.address()),
    ];
    ours.transfer(theirs.segment_name(), ops, LIMIT).await.unwrap();
    let all = memory.whole().to_vec();
    let got = buffer.whole().to_vec();
    assert!(got[..33 << 20] == all[5..5 + (33 << 20)] && got[33 << 20..] == all[..7 << 20]);
    assert!(theirs.counters().connections_accepted >= 2);
}

#[tokio::test]
async fn framing_version_1_uses_a_connection_per_request() {
    let (theirs, memory) = target(6 << 20).await;
    let mut old = config("127.0.0.1");
    old.settings.transports.tcp.framing = Framing::V1;
    let ours = start(old).await;
    moves_bytes(&ours, theirs.segment_name(), &memory).await;
    assert_eq!(theirs.counters().connections_accepted, 16);
    let buffer = Arc::new(Memory::from_vec(vec![0; 10]));
    let out = memory.address() + memory.len() as u64;
    let refused = async |kind| ours.transfer(theirs.segment_name(), vec![op(kind, &buffer, 0, 10, out)], LIMIT).await;
    assert!(is_rejected(&refused(OpKind::Read).await), "closed in order, which means refused");
    assert!(matches!(refused(OpKind::Write).await, Err(TransferError::Lost { .. })), "reset");
}

#[tokio::test]
async fn at_most_four_connections_stay_open() {
    let mut spread = config("127.0.0.1");
    spread.settings.transports.tcp.connections_nearby = 16;
    let ((theirs, memory), ours) = (target(1 << 20).await, start(spread).await);
    let buffer = Arc::new(Memory::from_vec(vec![0; 1 << 20]));
    for _ in 0..20 {
        let ops =
            (0..64).map(|i| op(OpKind::Read, &buffer, i * 4096, 4096, memory.address() + i as u64 * 4096)).collect();
        ours.transfer(theirs.segment_name(), ops, LIMIT).await.unwrap();
    }
    let counters = theirs.counters();
    assert_eq!((counters.connections_accepted, counters.connections_open), (4, 4));
    assert_eq!(buffer.slice(0, 64 * 4096).unwrap().to_vec(), memory.slice(0, 64 * 4096).unwrap().to_vec());
}

#[tokio::test]
async fn only_memory_registered_for_remote_access_is_accessible() {
    let ((theirs, shared), ours) = (target(10_000).await, engine().await);
    let private = memory(10_000, 1);
    theirs.register(&private, Access::Local).await.unwrap();
    let gone = memory(10_000, 2);
    let registration = theirs.register(&gone, Access::Remote).await.unwrap();
    let buffer = Arc::new(Memory::from_vec(vec![0; 10_000]));
    let name = theirs.segment_name();
    let batch = |remote: u64, len| [OpKind::Read, OpKind::Write].map(|kind| op(kind, &buffer, 0, len, remote)).to_vec();
    assert!(ours.submit(name, batch(gone.address(), 10), LIMIT).finish().await.iter().all(Result::is_ok));
    theirs.deregister(registration).await.unwrap();
    let at = shared.address();
    let len = shared.len() as u64;
    for remote in [at + len - 9, at - 1, at + len, private.address(), gone.address(), 0, u64::MAX - 5] {
        let results = ours.submit(name, batch(remote, 10), LIMIT).finish().await;
        assert!(results.iter().all(is_rejected), "{remote:#x}: {results:?}");
    }
    assert_eq!(theirs.counters().rejected, 14);
    assert_eq!(private.whole().to_vec(), pattern(10_000, 1));
    // A refusal does not mark the peer as down: the next request is served. Zero bytes need no
    // request.
    let good = vec![op(OpKind::Read, &buffer, 0, 10_000, at), op(OpKind::Read, &buffer, 5, 0, 1)];
    ours.transfer(name, good, LIMIT).await.unwrap();
    assert_eq!(buffer.whole().to_vec(), shared.whole().to_vec());
}

#[tokio::test]
async fn one_bad_operation_of_a_batch_fails_alone() {
    let ((theirs, memory), ours) = (target(1 << 20).await, engine().await);
    for kind in [OpKind::Read, OpKind::Write] {
        let buffer = self::memory(40_000, 77);
        let ops = (0..40)
            .map(|i| {
                let remote = if i % 10 == 3 { 16 } else { memory.address() + i as u64 * 1000 };
                op(kind, &buffer, i * 1000, 1000, remote)
            })
            .collect();
        let results = ours.submit(theirs.segment_name(), ops, LIMIT).finish().await;
        for (i, result) in results.iter().enumerate() {
            assert_eq!(is_rejected(result), i % 10 == 3, "{i}: {result:?}");
            let same = buffer.slice(i * 1000, 1000).unwrap().to_vec() == memory.slice(i * 1000, 1000).unwrap().to_vec();
            assert_eq!(same, i % 10 != 3, "{kind:?} {i}");
        }
    }
    let served = theirs.counters().served;
    assert_eq!((served.reads, served.writes, served.read_bytes, served.written_bytes), (36, 36, 36_000, 36_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_arrive_together_are_served_in_order() {
    let ((theirs, memory), ours) = (target(10_000).await, engine().await);
    let before = memory.slice(0, 16).unwrap().to_vec();
    let (mut stream, descriptor) = raw(&theirs, &ours).await;
    let header = |kind, at, size| {
        RequestFrame { kind, version: FramingVersion::V2, address: descriptor.buffers[0].address + at, size }.encode()
    };
    let mut sent = header(OpKind::Read, 0, 16).to_vec();
    sent.extend_from_slice(&header(OpKind::Write, 4, 8));
    sent.extend_from_slice(b"newbytes");
    sent.extend_from_slice(&header(OpKind::Read, 0, 16));
    sent.extend_from_slice(&header(OpKind::Write, 100, 9000));
    sent.extend_from_slice(&[5; 9000]);
    sent.extend_from_slice(&header(OpKind::Read, 9095, 10));
    let done = b"\0\0\0\0VTCM";
    let mut wanted = [done, &before[..], done, done, &before[..4], b"newbytes", &before[12..], done, done].concat();
    wanted.extend_from_slice(&[5; 5]);
    wanted.extend_from_slice(&memory.slice(9100, 5).unwrap().to_vec());
    // Split at any point: a header or a body may arrive in two parts.
    for cut in [1, 20, 24, 30, 50, 56, 57, 100, sent.len() - 10, sent.len()] {
        memory.write_at(0, &before).unwrap();
        stream.write_all(&sent[..cut]).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        stream.write_all(&sent[cut..]).unwrap();
        let mut got = vec![0; wanted.len()];
        stream.read_exact(&mut got).unwrap();
        assert!(got == wanted, "cut at {cut}");
    }
}

#[tokio::test]
async fn a_refused_large_write_does_not_wait_for_its_deadline() {
    let ((theirs, _memory), ours) = (target(1 << 20).await, engine().await);
    let buffer = Arc::new(Memory::from_vec(vec![0; 64 << 20]));
    let batch = ours.submit(theirs.segment_name(), vec![op(OpKind::Write, &buffer, 0, 64 << 20, 4096)], HOUR);
    let results = in_time("the refusal", batch.finish()).await;
    assert!(is_rejected(&results[0]), "{results:?}");
}

#[tokio::test]
async fn the_local_segment_is_copied_without_a_connection() {
    let (ours, memory) = target(6 << 20).await;
    let name = ours.segment_name().to_owned();
    moves_bytes(&ours, &name, &memory).await;
    let buffer = Arc::new(Memory::from_vec(vec![0; 10]));
    let results = ours.submit(&name, vec![op(OpKind::Read, &buffer, 0, 10, 1)], LIMIT).finish().await;
    assert!(is_rejected(&results[0]));
    let counters = ours.counters();
    assert_eq!((counters.connections_accepted, counters.local.reads, counters.issued.reads), (0, 8, 0));
}

#[tokio::test]
async fn overlapping_and_empty_memory_cannot_be_registered() {
    let (ours, memory) = target(1000).await;
    let again = ours.register(&memory, Access::Remote).await;
    assert!(matches!(again, Err(TransferError::Overlap { .. })), "{again:?}");
    let empty = ours.register(&Arc::new(Memory::from_vec(Vec::new())), Access::Remote).await;
    assert!(matches!(empty, Err(TransferError::EmptyMemory)), "{empty:?}");
    // All or none.
    let other = self::memory(10, 0);
    let both = [(Arc::clone(&other), Access::Remote), (memory, Access::Remote)];
    assert!(ours.register_all(&both).await.is_err());
    ours.register(&other, Access::Remote).await.unwrap();
}

#[tokio::test]
async fn rdma_does_not_fall_back_to_tcp_by_default() {
    let config = TransferConfig { protocol: TransferProtocol::Rdma, ..config("127.0.0.1") };
    let error = TransferEngine::start(config, RealEnv::new()).await.err().unwrap();
    assert!(matches!(error, TransferError::Unavailable { .. }), "{error}");
}

#[tokio::test]
async fn rdma_falls_back_to_tcp_only_if_allowed() {
    let transport = TransportOptions { devices: vec!["none_such".to_owned()], allow_tcp_fallback: true };
    let config = TransferConfig { protocol: TransferProtocol::Rdma, transport, ..config("127.0.0.1") };
    let engine = TransferEngine::start(config, RealEnv::new()).await.unwrap();
    assert_eq!(engine.protocol(), "tcp");
    assert_ne!(engine.data_port(), 0);
}

#[tokio::test]
async fn notify_and_probe_reach_a_live_engine_and_only_that() {
    let a = engine().await;
    let b = engine().await;
    assert!(a.notify(b.segment_name(), "n1", "hello").await.unwrap());
    let notifications = b.take_notifications();
    assert_eq!(
        (notifications.len(), notifications[0].name.as_str(), notifications[0].message.as_str()),
        (1, "n1", "hello")
    );
    assert!(b.take_notifications().is_empty());
    a.probe(b.segment_name()).await.unwrap();
    let name = b.segment_name().to_owned();
    b.shutdown().await.unwrap();
    assert!(a.probe(&name).await.is_err());
}

#[tokio::test]
async fn ipv6_peers_find_each_other_in_both_forms_of_the_address() {
    let mut v6 = config("[::1]:1");
    v6.settings.ipv6 = true;
    let theirs = start(v6).await;
    let memory = memory(6 << 20, 0);
    theirs.register(&memory, Access::Remote).await.unwrap();
    assert!(theirs.segment_name().starts_with("[::1]:"));
    assert_eq!(theirs.endpoint(), theirs.segment_name().replace(['[', ']'], ""));
    let ours = engine().await;
    moves_bytes(&ours, theirs.segment_name(), &memory).await;
    moves_bytes(&ours, theirs.endpoint(), &memory).await;
}

/// A connection to the data port and the descriptor of the memory behind it, for a hand-made peer.
async fn raw(theirs: &TransferEngine, ours: &TransferEngine) -> (TcpStream, Arc<SegmentDescriptor>) {
    let descriptor = ours.open(theirs.segment_name()).await.unwrap();
    (TcpStream::connect(("127.0.0.1", theirs.data_port())).unwrap(), descriptor)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_data_port_survives_every_kind_of_garbage() {
    let ((theirs, memory), ours) = (target(10_000).await, engine().await);
    for garbage in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 24], &[0; 24], &[0; 7], b"\x16\x03\x01"] {
        let (mut stream, _) = raw(&theirs, &ours).await;
        stream.write_all(garbage).unwrap();
        // It may be closed already.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let (mut stream, descriptor) = raw(&theirs, &ours).await;
    let address = descriptor.buffers[0].address;
    // A body that breaks off: only the received bytes are written.
    let header = RequestFrame { kind: OpKind::Write, version: FramingVersion::V2, address, size: 100 };
    stream.write_all(&header.encode()).unwrap();
    stream.write_all(&[7; 40]).unwrap();
    drop(stream);
    moves(&ours, &theirs, &memory).await;
    assert_eq!(theirs.counters().served.writes, 0);
}

async fn moves(ours: &TransferEngine, theirs: &TransferEngine, memory: &Arc<Memory>) {
    let buffer = Arc::new(Memory::from_vec(vec![0; 100]));
    let ops = vec![op(OpKind::Read, &buffer, 0, 100, memory.address() + 500)];
    ours.transfer(theirs.segment_name(), ops, LIMIT).await.unwrap();
    assert_eq!(buffer.whole().to_vec(), memory.slice(500, 100).unwrap().to_vec());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_handshake_port_survives_garbage_and_silence() {
    // No silent connection reaches its time limit.
    let theirs = TransferEngine::start(config("127.0.0.1"), PatientEnv::default()).await.unwrap();
    let memory = memory(10_000, 0);
    theirs.register(&memory, Access::Remote).await.unwrap();
    let ours = engine().await;
    let at = ("127.0.0.1", theirs.handshake().port);
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(at).unwrap()).collect();
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 64],
        &[0; 8],
        b"\x03\0\0\0\0\0\0\0\x01{}",
        b"\x05\0\0\0\0\0\0\0\x01abcd",
    ] {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(garbage).unwrap();
        // It may be closed already.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    in_time("a connection besides twenty silent ones", moves(&ours, &theirs, &memory)).await;
    drop(silent);
}

fn read_10() -> Vec<Op> {
    vec![op(OpKind::Read, &Arc::new(Memory::from_vec(vec![0; 10])), 0, 10, 4096)]
}

#[tokio::test]
async fn shutdown_closes_the_ports_and_refuses_more_work() {
    let ((theirs, memory), ours) = (target(1000).await, engine().await);
    moves(&ours, &theirs, &memory).await;
    theirs.shutdown().await.unwrap();
    let ports = [theirs.data_port(), theirs.handshake().port];
    for port in ports {
        let is_closed = async || TcpStream::connect(("127.0.0.1", port)).is_err();
        wait_until_async("the port to be closed", PATIENCE, is_closed).await;
    }
    let error = theirs.transfer(ours.segment_name(), read_10(), LIMIT).await.unwrap_err();
    assert!(matches!(error, TransferError::Stopped));
    assert_eq!(Arc::strong_count(&memory), 1, "the engine has released it");
}

#[tokio::test]
async fn connections_to_unused_segments_are_closed() {
    let ((first, theirs), (second, others)) = (target(1000).await, target(1000).await);
    let env = AdjustableClock::default();
    let ours = TransferEngine::start(config("127.0.0.1"), env.clone()).await.unwrap();
    let local = memory(1000, 1);
    let read = |of: &Arc<Memory>| vec![op(OpKind::Read, &local, 0, 1000, of.address())];
    ours.transfer(first.segment_name(), read(&theirs), LIMIT).await.unwrap();
    assert_eq!(first.counters().connections_open, 1);
    env.advance(Duration::from_secs(6 * 60));
    ours.transfer(second.segment_name(), read(&others), LIMIT).await.unwrap();
    let is_closed = async || first.counters().connections_open == 0;
    wait_until_async("the connection to be closed", PATIENCE, is_closed).await;
    assert_eq!((ours.peers().len(), second.counters().connections_open), (1, 1));
    ours.transfer(first.segment_name(), read(&theirs), LIMIT).await.unwrap();
}

#[tokio::test]
async fn queued_messages_are_bounded_by_bytes() {
    let a = engine().await;
    let b = engine().await;
    let text = "m".repeat(300 << 10);
    for name in ["n1", "n2", "n3", "n4"] {
        assert!(a.notify(b.segment_name(), name, &text).await.unwrap());
    }
    let names: Vec<String> = b.take_notifications().into_iter().map(|message| message.name).collect();
    assert_eq!((names, b.counters().notices_dropped), (vec!["n2".into(), "n3".into(), "n4".into()], 1));
}
