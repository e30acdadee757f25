//! Tests of both sides in one process, with a node's server and no transfer engine.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use crate::local::TransferEra;
use crate::region::Regions;
use crate::shared_memory::codec::{
    ClientMessage, LinkPurpose, LinkReply, LinkRequest, VERSION, WriteMessage, WriteOutcome, WriteRequest,
    decode_outcomes,
};
use crate::shared_memory::server::CONNECTIONS_MAX;
use crate::shared_memory::{SharedMemoryPeer, SharedMemoryServer, SharedMemorySettings};
use crate::transport::{DataPeer, FaultClass, OpCompletion, PendingOps};
use crate::types::{Access, BatchRules, Deadline, Op, OpKind, RegionKeys, RemoteAddr};
use crate::{MonoClock, TransferError};
use mcctl_base::Mono;
use mcctl_sys::packet_socket::{PacketSocket, UnixSocketAddress};
use mcctl_sys::{Memory, MemoryPolicy, MemorySource, Slice, clock};
use mcctl_wire::json::{SegmentDescriptor, SharedMemoryDescriptor};

const TOKEN: [u8; 16] = [7; 16];

/// A node without an engine.
struct TestNode {
    memory: Arc<Memory>,
    regions: Arc<RwLock<Regions>>,
    eras: Arc<TransferEra>,
    server: SharedMemoryServer,
}

fn shareable(len: u64) -> Arc<Memory> {
    let memory = MemorySource::new(MemoryPolicy::default()).buffer(len).unwrap();
    assert!(memory.shared_file().is_some());
    Arc::new(memory)
}

fn ordinary(len: usize) -> Arc<Memory> {
    Arc::new(Memory::from_vec(vec![0; len]))
}

impl TestNode {
    fn start() -> TestNode {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let address = UnixSocketAddress::Abstract(format!("mcctl-test-shm-{}-{number}", std::process::id()));
        let (memory, regions, eras) = (shareable(1 << 20), Arc::<RwLock<Regions>>::default(), Arc::default());
        let server = SharedMemoryServer::start(&address, TOKEN, Arc::clone(&regions), Arc::clone(&eras)).unwrap();
        let node = TestNode { memory: Arc::clone(&memory), regions, eras, server };
        node.register(&memory);
        node
    }

    fn register(&self, memory: &Arc<Memory>) {
        self.regions.write().unwrap().insert(Arc::clone(memory), Access::Remote, RegionKeys::default()).unwrap();
    }

    fn address(&self) -> UnixSocketAddress {
        UnixSocketAddress::parse(&self.server.descriptor().socket)
    }

    /// Performs the steps of a node before it mounts its memory again.
    fn end_inbound(&self) {
        self.server.end_generation();
        self.eras.end();
        self.server.end_inbound();
    }

    fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr(self.memory.address() + offset)
    }

    fn wait_for_connections(&self, count: u64) {
        wait_until(|| self.server.counters().open == count);
    }
}

/// A transport that does nothing, and counts the operations.
#[derive(Default)]
struct CountingTransport {
    ops: Mutex<Vec<Op>>,
    forgotten: AtomicUsize,
}

impl DataPeer for CountingTransport {
    fn submit(self: Arc<Self>, ops: Vec<Op>, _: BatchRules) -> Box<dyn PendingOps> {
        self.ops.lock().unwrap().extend(ops.iter().cloned());
        Box::new(CountedOps(ops))
    }

    fn reaches(&self, _: &SegmentDescriptor) -> bool {
        true
    }

    fn probe(&self, _: &SegmentDescriptor, _: Deadline) -> Result<(), TransferError> {
        Ok(())
    }

    fn forget(&self) {
        self.forgotten.fetch_add(1, Ordering::Relaxed);
    }
}

struct CountedOps(Vec<Op>);

impl PendingOps for CountedOps {
    fn wait(self: Box<Self>) -> Vec<OpCompletion> {
        self.0.into_iter().map(|op| OpCompletion { op, shared: false, result: Ok(()) }).collect()
    }
}

/// A client of a node, with a clock that a test can set.
struct TestClient {
    peer: Arc<SharedMemoryPeer>,
    transport: Arc<CountingTransport>,
    now: Arc<AtomicU64>,
}

impl TestClient {
    fn new(descriptor: &SharedMemoryDescriptor) -> TestClient {
        let (transport, now) = (Arc::<CountingTransport>::default(), Arc::new(AtomicU64::new(5_000_000_000)));
        let clock: MonoClock = {
            let now = Arc::clone(&now);
            Arc::new(move || Mono(now.load(Ordering::Relaxed)))
        };
        let settings = SharedMemorySettings::default();
        let peer =
            SharedMemoryPeer::new(Arc::clone(&transport) as _, descriptor.clone(), "node".into(), &settings, clock);
        TestClient { peer: Arc::new(peer), transport, now }
    }

    fn advance(&self, seconds: u64) {
        self.now.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
    }

    fn submit(&self, ops: Vec<Op>) -> Box<dyn PendingOps> {
        let now = Mono(self.now.load(Ordering::Relaxed));
        let rules = BatchRules::until(Deadline::after(now, Duration::from_secs(5)));
        (Arc::clone(&self.peer) as Arc<dyn DataPeer>).submit(ops, rules)
    }

    fn run(&self, kind: OpKind, local: &Slice, remote: RemoteAddr) -> Result<(), (FaultClass, TransferError)> {
        let mut done = self.submit(vec![Op { kind, local: local.clone(), remote }]).wait();
        assert_eq!(done.len(), 1);
        done.remove(0).result.map_err(|fault| (fault.class, fault.error))
    }

    fn over_transport(&self) -> usize {
        self.transport.ops.lock().unwrap().len()
    }
}

#[expect(clippy::disallowed_methods, reason = "real sockets and threads")]
fn wait_until(holds: impl Fn() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("the condition does not hold after four seconds");
}

#[test]
fn reads_and_writes_do_not_use_the_transport() {
    let node = TestNode::start();
    let client = TestClient::new(node.server.descriptor());
    let buffer = shareable(100_000);
    buffer.write_at(50_000, b"written").unwrap();
    client.run(OpKind::Write, &buffer.slice(50_000, 7).unwrap(), node.remote(99)).unwrap();
    assert_eq!(node.memory.slice(99, 8).unwrap().to_vec(), b"written\0");
    let into = ordinary(7).whole();
    client.run(OpKind::Read, &into, node.remote(99)).unwrap();
    assert_eq!((into.to_vec().as_slice(), client.over_transport()), (&b"written"[..], 0));
    let flow = node.server.counters().flow;
    assert_eq!((flow.writes, flow.written_bytes, client.peer.transport()), (1, 7, Some("shared-memory")));
}

#[test]
fn a_mixed_batch_keeps_its_order_and_sends_the_rest_over_the_transport() {
    let node = TestNode::start();
    let other = ordinary(100);
    node.register(&other);
    let client = TestClient::new(node.server.descriptor());
    node.memory.write_at(0, &[5; 64]).unwrap();
    let buffer = shareable(64);
    let plain = ordinary(64);
    buffer.fill(0, 64, 6).unwrap();
    let op =
        |kind, local: &Arc<Memory>, at: usize, len, remote| Op { kind, local: local.slice(at, len).unwrap(), remote };
    let ops = vec![
        op(OpKind::Write, &plain, 0, 1, node.remote(100)),
        op(OpKind::Read, &plain, 8, 4, node.remote(0)),
        op(OpKind::Write, &buffer, 0, 4, node.remote(200)),
        op(OpKind::Read, &plain, 16, 2, RemoteAddr(other.address())),
        op(OpKind::Read, &plain, 0, 0, node.remote(0)),
        op(OpKind::Write, &buffer, 8, 8, node.remote(300)),
    ];
    let lengths: Vec<usize> = ops.iter().map(|op| op.local.len()).collect();
    let done = client.submit(ops).wait();
    assert_eq!(done.iter().map(|done| done.op.local.len()).collect::<Vec<_>>(), lengths);
    assert!(done.iter().all(|done| done.result.is_ok()));
    let others: Vec<usize> = client.transport.ops.lock().unwrap().iter().map(|op| op.local.len()).collect();
    assert_eq!(others, [1, 2, 0]);
    assert_eq!(plain.slice(8, 4).unwrap().to_vec(), [5; 4]);
    assert_eq!(node.memory.slice(200, 5).unwrap().to_vec(), [6, 6, 6, 6, 0]);
    assert_eq!(node.memory.slice(300, 8).unwrap().to_vec(), [6; 8]);
}

#[test]
fn a_batch_may_exceed_a_request_and_the_buffers_of_a_connection() {
    let node = TestNode::start();
    let client = TestClient::new(node.server.descriptor());
    let buffers: Vec<_> = (0..40).map(|_| shareable(4096)).collect();
    for (buffer, value) in buffers.iter().zip(1..) {
        buffer.fill(0, 4096, value).unwrap();
    }
    let op = |index: usize| Op {
        kind: OpKind::Write,
        local: buffers[index % 40].slice(0, 64).unwrap(),
        remote: node.remote(index as u64 * 64),
    };
    let done = client.submit((0..3000).map(op).collect()).wait();
    assert!(done.iter().all(|done| done.result.is_ok()));
    for index in [0, 1, 39, 40, 2999] {
        let expected = u8::try_from(index % 40 + 1).unwrap();
        assert_eq!(node.memory.slice(index * 64, 64).unwrap().to_vec(), [expected; 64], "{index}");
    }
    assert_eq!((client.over_transport(), node.server.counters().flow.writes), (0, 3000));
}

#[test]
fn a_read_fails_if_the_node_ends_transfers_in_the_meantime() {
    let node = TestNode::start();
    let client = TestClient::new(node.server.descriptor());
    let into = ordinary(64);
    into.fill(0, 64, 3).unwrap();
    let into = into.whole();
    let pending = client.submit(vec![Op { kind: OpKind::Read, local: into.clone(), remote: node.remote(0) }]);
    node.end_inbound();
    let fault = pending.wait().remove(0).result.unwrap_err();
    assert!(fault.class == FaultClass::Ended && fault.error.is_ended() && !fault.error.may_still_land());
    assert_eq!(into.to_vec(), [3; 64], "the batch stops before its first copy");
    // The next read is a new transfer.
    client.run(OpKind::Read, &into, node.remote(0)).unwrap();
    client.advance(2);
    client.run(OpKind::Read, &into, node.remote(0)).unwrap();
    assert_eq!((client.over_transport(), client.peer.transport()), (1, Some("shared-memory")));
}

#[test]
fn a_write_after_the_end_of_transfers_uses_a_new_connection() {
    let node = TestNode::start();
    let client = TestClient::new(node.server.descriptor());
    let buffer = shareable(64);
    let write = || client.run(OpKind::Write, &buffer.whole(), node.remote(0));
    write().unwrap();
    node.wait_for_connections(2);
    node.end_inbound();
    client.advance(2);
    write().unwrap();
    assert_eq!((client.over_transport(), node.server.counters().flow.writes), (0, 2));
}

#[test]
fn a_write_is_not_carried_into_a_later_generation() {
    // With a connection that the node closes meanwhile, and without one.
    for connected in [true, false] {
        let node = TestNode::start();
        let client = TestClient::new(node.server.descriptor());
        let buffer = shareable(64);
        let plain = ordinary(64);
        buffer.fill(0, 64, 9).unwrap();
        let op = |local: &Arc<Memory>, at| Op { kind: OpKind::Write, local: local.whole(), remote: node.remote(at) };
        client.run(OpKind::Read, &plain.whole(), node.remote(0)).unwrap();
        if connected {
            client.run(OpKind::Write, &shareable(64).whole(), node.remote(0)).unwrap();
        }
        let served = node.server.counters().flow.writes;
        let pending = client.submit(vec![op(&buffer, 0), op(&buffer, 100)]);
        node.end_inbound();
        for done in pending.wait() {
            let fault = done.result.unwrap_err();
            assert!(fault.class == FaultClass::Ended && fault.error.is_ended(), "{connected}: {}", fault.error);
            assert!(!fault.error.may_still_land(), "nothing was sent");
        }
        assert_eq!(node.memory.slice(0, 164).unwrap().to_vec(), [0; 164]);
        assert_eq!((client.over_transport(), node.server.counters().flow.writes), (0, served));
        client.advance(2);
        client.run(OpKind::Write, &buffer.whole(), node.remote(0)).unwrap();
        assert_eq!(node.server.counters().flow.writes, served + 1);
    }
}

#[test]
fn a_bound_peer_ends_with_the_generation_of_its_link() {
    let node = TestNode::start();
    let client = TestClient::new(node.server.descriptor());
    assert!(Arc::clone(&client.peer).bound().is_none(), "no link yet");
    let into = shareable(64).whole();
    let plain = ordinary(64).whole();
    client.run(OpKind::Read, &into, node.remote(0)).unwrap();
    let bound = Arc::clone(&client.peer).bound().unwrap();
    let run = |kind, local: &Slice| {
        let rules = BatchRules::until(Deadline::after(Mono(5_000_000_000), Duration::from_secs(5)));
        let op = Op { kind, local: local.clone(), remote: node.remote(0) };
        Arc::clone(&bound).submit(vec![op], rules).wait().remove(0).result
    };
    run(OpKind::Read, &plain).unwrap();
    run(OpKind::Write, &into).unwrap();
    assert!(!bound.has_ended());
    node.end_inbound();
    assert!(bound.has_ended() && Arc::clone(&client.peer).bound().is_none());
    client.advance(2);
    client.run(OpKind::Read, &into, node.remote(0)).unwrap();
    for (kind, local) in [(OpKind::Read, &plain), (OpKind::Write, &into), (OpKind::Write, &plain)] {
        assert!(run(kind, local).unwrap_err().error.is_ended(), "{kind:?}");
    }
    assert_eq!(client.over_transport(), 0, "the transport would need a new connection, too");
}

#[test]
fn a_connection_accepted_as_transfers_end_does_not_serve_earlier_writes() {
    let node = TestNode::start();
    let earlier = RawClient::greet(&node).1;
    node.server.end_generation();
    let (between, generation) = RawClient::greet(&node);
    assert_ne!(generation, earlier);
    node.eras.end();
    let after = RawClient::greet(&node).1;
    assert_ne!(after, earlier);
    node.server.end_inbound();
    assert!(between.is_closed());
}

#[test]
fn removed_memory_is_neither_read_nor_written() {
    let node = TestNode::start();
    let client = TestClient::new(node.server.descriptor());
    let buffer = shareable(64);
    let more = shareable(4096);
    node.register(&more);
    let remote = RemoteAddr(more.address());
    client.run(OpKind::Write, &buffer.whole(), remote).unwrap();
    node.regions.write().unwrap().remove(more.address()).unwrap();
    // The node's check applies even if the client has not noticed the removal.
    let (class, error) = client.run(OpKind::Write, &buffer.whole(), remote).unwrap_err();
    assert!(class == FaultClass::Refused && !error.may_still_land(), "{error}");
    assert_eq!(node.server.counters().rejected, 1);
    node.server.end_inbound();
    client.advance(2);
    client.run(OpKind::Read, &buffer.whole(), remote).unwrap();
    assert_eq!(client.over_transport(), 1, "it is no longer among the regions");
}

#[test]
fn added_memory_is_shared_after_a_reconnect() {
    let node = TestNode::start();
    let client = TestClient::new(node.server.descriptor());
    let into = ordinary(10).whole();
    client.run(OpKind::Read, &into, node.remote(0)).unwrap();
    let more = shareable(4096);
    more.write_at(0, b"more bytes").unwrap();
    node.register(&more);
    node.server.regions_added();
    wait_until(|| client.peer.transport().is_none());
    client.advance(2);
    client.run(OpKind::Read, &into, RemoteAddr(more.address())).unwrap();
    assert_eq!((into.to_vec().as_slice(), client.over_transport()), (&b"more bytes"[..], 0));
}

#[test]
fn the_end_of_a_node_is_detected_and_its_memory_released() {
    let node = TestNode::start();
    let client = TestClient::new(node.server.descriptor());
    let into = ordinary(10).whole();
    node.memory.write_at(0, b"0123456789").unwrap();
    let pending = client.submit(vec![Op { kind: OpKind::Read, local: into.clone(), remote: node.remote(0) }]);
    let remote = node.remote(0);
    let gone = node.server.descriptor().clone();
    drop(node);
    // The mapping is still valid, but its contents are no longer used.
    assert_eq!(pending.wait().remove(0).result.unwrap_err().class, FaultClass::Ended);
    assert_eq!(into.to_vec(), [0; 10]);
    wait_until(|| client.peer.transport().is_none());
    client.advance(2);
    client.run(OpKind::Read, &into, remote).unwrap();
    assert_eq!((client.over_transport(), gone.token), (1, TOKEN));
}

#[test]
fn another_process_at_the_same_address_is_not_used() {
    let node = TestNode::start();
    let other = SharedMemoryDescriptor { token: [8; 16], ..node.server.descriptor().clone() };
    let client = TestClient::new(&other);
    let into = ordinary(10).whole();
    for _ in 0..3 {
        client.run(OpKind::Read, &into, node.remote(0)).unwrap();
    }
    assert_eq!((client.over_transport(), client.peer.transport()), (3, None));
    assert_eq!(node.server.counters().accepted, 1, "it is tried once in 30 seconds");
    client.advance(31);
    client.run(OpKind::Read, &into, node.remote(0)).unwrap();
    assert_eq!(node.server.counters().accepted, 2);
}

#[test]
fn a_changed_announcement_is_another_peer() {
    let node = TestNode::start();
    let client = TestClient::new(node.server.descriptor());
    let descriptor = |shared_memory| SegmentDescriptor { shared_memory, ..SegmentDescriptor::default() };
    assert!(client.peer.reaches(&descriptor(Some(node.server.descriptor().clone()))));
    assert!(!client.peer.reaches(&descriptor(None)));
    let other = SharedMemoryDescriptor { token: [8; 16], ..node.server.descriptor().clone() };
    assert!(!client.peer.reaches(&descriptor(Some(other))));
}

#[test]
fn released_buffers_are_released_by_the_node_too() {
    let node = TestNode::start();
    let client = TestClient::new(node.server.descriptor());
    let buffer = shareable(64);
    client.run(OpKind::Write, &buffer.whole(), node.remote(0)).unwrap();
    node.wait_for_connections(2);
    client.peer.slot.writes.close_outdated();
    client.run(OpKind::Write, &buffer.whole(), node.remote(0)).unwrap();
    assert_eq!(node.server.counters().accepted, 2, "the buffer exists");
    drop(buffer);
    // Called every few seconds.
    client.peer.slot.writes.close_outdated();
    node.wait_for_connections(1);
    let other = shareable(64);
    client.run(OpKind::Write, &other.whole(), node.remote(0)).unwrap();
    node.wait_for_connections(2);
    client.peer.forget();
    node.wait_for_connections(1);
    assert_eq!(client.transport.forgotten.load(Ordering::Relaxed), 1);
}

/// A client that does not follow the protocol.
struct RawClient(PacketSocket);

impl RawClient {
    fn connect(node: &TestNode) -> RawClient {
        let socket = PacketSocket::connect(&node.address(), Duration::from_secs(1)).unwrap();
        socket.limit_receive(Some(Duration::from_secs(5))).unwrap();
        RawClient(socket)
    }

    /// Returns the generation that the node reports, too.
    fn greet(node: &TestNode) -> (RawClient, u64) {
        let client = RawClient::connect(node);
        client.send(&LinkRequest { version: VERSION, purpose: LinkPurpose::Writes, token: TOKEN }.encode(), &[]);
        let reply = LinkReply::decode(&client.receive()).unwrap();
        assert_eq!(reply.regions, 0);
        (client, reply.generation)
    }

    fn send(&self, message: &[u8], files: &[&OwnedFd]) {
        self.0.send(message, &files.iter().map(|file| file.as_fd()).collect::<Vec<_>>()).unwrap();
    }

    fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 100_000];
        let received = self.0.receive(&mut bytes).unwrap();
        bytes.truncate(received.len);
        bytes
    }

    fn is_closed(&self) -> bool {
        match self.0.receive(&mut [0; 64]) {
            Ok(received) => received.len == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    fn set_buffer(&self, memory: &Memory) {
        let file = memory.shared_file().unwrap().try_clone_to_owned().unwrap();
        self.send(&ClientMessage::Buffer { slot: 0, length: memory.len() as u64 }.encode(), &[&file]);
    }

    fn write(&self, deadline: Duration, writes: &[WriteMessage]) -> Vec<WriteOutcome> {
        let deadline_ns = u64::try_from(deadline.as_nanos()).unwrap();
        self.send(&ClientMessage::Writes(WriteRequest { deadline_ns, writes: writes.to_vec() }).encode(), &[]);
        decode_outcomes(&self.receive(), writes.len()).unwrap()
    }
}

fn soon() -> Duration {
    clock::monotonic() + Duration::from_secs(10)
}

#[test]
fn a_writer_that_was_stopped_past_its_deadline_changes_nothing() {
    let node = TestNode::start();
    let (client, _) = RawClient::greet(&node);
    let buffer = shareable(64);
    buffer.fill(0, 64, 1).unwrap();
    client.set_buffer(&buffer);
    let write = WriteMessage { remote: node.remote(0).0, length: 64, slot: 0, offset: 0 };
    assert_eq!(client.write(clock::monotonic(), &[write]), [WriteOutcome::Late]);
    assert_eq!(node.memory.slice(0, 64).unwrap().to_vec(), [0; 64]);
    assert_eq!(client.write(soon(), &[write]), [WriteOutcome::Done]);
    assert_eq!(node.memory.slice(0, 64).unwrap().to_vec(), [1; 64]);
}

#[test]
fn a_request_of_an_earlier_era_changes_nothing() {
    let node = TestNode::start();
    let (client, _) = RawClient::greet(&node);
    let buffer = shareable(64);
    buffer.fill(0, 64, 1).unwrap();
    client.set_buffer(&buffer);
    // The connection is ended after this request, so it may still be served.
    node.eras.end();
    let write = WriteMessage { remote: node.remote(0).0, length: 64, slot: 0, offset: 0 };
    assert_eq!(client.write(soon(), &[write]), [WriteOutcome::Ended]);
    assert_eq!(node.memory.slice(0, 64).unwrap().to_vec(), [0; 64]);
    node.server.end_inbound();
    assert!(client.is_closed());
}

#[test]
fn out_of_range_and_unreadable_writes_are_refused_one_by_one() {
    let node = TestNode::start();
    let (client, _) = RawClient::greet(&node);
    let buffer = shareable(4096);
    client.set_buffer(&buffer);
    let end = node.remote(node.memory.len() as u64).0;
    let good = WriteMessage { remote: node.remote(0).0, length: 64, slot: 0, offset: 0 };
    let outcomes = client.write(
        soon(),
        &[
            WriteMessage { remote: end - 63, ..good },
            WriteMessage { slot: 1, ..good },
            WriteMessage { offset: 4033, ..good },
            WriteMessage { offset: u64::MAX, ..good },
            WriteMessage { length: u64::MAX, ..good },
            WriteMessage { length: 0, ..good },
            good,
        ],
    );
    let refused = WriteOutcome::Refused;
    let unreadable = WriteOutcome::Unreadable;
    assert_eq!(outcomes, [refused, unreadable, unreadable, unreadable, refused, refused, WriteOutcome::Done]);
}

#[test]
fn malformed_messages_end_the_connection_and_nothing_else() {
    let node = TestNode::start();
    let request = LinkRequest { version: VERSION, purpose: LinkPurpose::Writes, token: TOKEN };
    for first in [
        b"garbage".to_vec(),
        vec![0; 100_000],
        LinkRequest { version: 99, ..request }.encode(),
        LinkRequest { token: [0; 16], ..request }.encode(),
    ] {
        let client = RawClient::connect(&node);
        client.send(&first, &[]);
        assert!(client.is_closed());
    }
    let file = shareable(64).shared_file().unwrap().try_clone_to_owned().unwrap();
    let buffer = ClientMessage::Buffer { slot: 0, length: 64 }.encode();
    let many = vec![&file; 200];
    for (message, files) in [
        (&b"garbage"[..], &many[..1]),
        (&buffer, &many[..0]),
        (&buffer, &many[..2]),
        (&buffer, &many),
        (&buffer[..9], &many[..1]),
    ] {
        let (client, _) = RawClient::greet(&node);
        client.send(message, files);
        assert!(client.is_closed(), "{} bytes, {} files", message.len(), files.len());
    }
    node.wait_for_connections(0);
    let client = TestClient::new(node.server.descriptor());
    client.run(OpKind::Read, &ordinary(10).whole(), node.remote(0)).unwrap();
    assert_eq!(client.over_transport(), 0);
}

#[test]
fn silent_clients_do_not_delay_others_and_are_disconnected() {
    let node = TestNode::start();
    let silent: Vec<RawClient> = (0..CONNECTIONS_MAX).map(|_| RawClient::connect(&node)).collect();
    node.wait_for_connections(CONNECTIONS_MAX as u64);
    let one_more = RawClient::connect(&node);
    assert!(one_more.is_closed());
    wait_until(|| node.server.counters().refused == 1);
    node.wait_for_connections(0);
    assert!(silent.iter().all(RawClient::is_closed));
    drop(RawClient::greet(&node));
}
