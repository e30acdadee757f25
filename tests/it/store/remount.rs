//! Memory that is mounted again: earlier transfers do not reach its new objects, and clients do not
//! use answers of a master that is gone.

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::runtime::Builder;
use tokio::task::JoinHandle;

use mcctl::engine::store::TransferThreads;
use mcctl::engine::transfer::tcp::{FramingVersion, RequestFrame};
use mcctl::engine::transfer::{Op, OpKind, RemoteAddr};
use mcctl::engine::wire::types::{BufferDescriptor, ReplicaDescriptor, ReplicaLocation};

use super::*;
use mcctl::engine::wire::types::SliceLength;

/// A master with other settings.
async fn master_with(port: u16, change: impl Fn(&mut MasterConfig)) -> MasterServer<RealEnv> {
    let mut config = MasterConfig::new(HostPort::new("127.0.0.1", port));
    change(&mut config);
    let end = Instant::now() + PATIENCE;
    loop {
        match MasterServer::start(config.clone(), RealEnv::new()).await {
            Ok(master) => return master,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A master without holds, so that only nodes and clients protect the bytes.
async fn careless_master(port: u16) -> MasterServer<RealEnv> {
    master_with(port, |config| {
        config.policy.lease_ttl = Duration::ZERO;
        config.policy.put_discard_after = Duration::ZERO;
    })
    .await
}

/// Starts a put without writing anything. Returns the memory that it was assigned.
pub(crate) async fn put_start(client: &StoreClient<RealEnv>, name: &str, bytes: usize) -> BufferDescriptor {
    let sizes = vec![bytes as u64];
    let config = ReplicateConfig::default();
    let started = client.master().batch_put_start(
        client.id(),
        vec![name.into()],
        sizes.into_iter().map(SliceLength).collect(),
        config,
        "default".into(),
    );
    memory_of(&started.await.unwrap().pop().unwrap().unwrap())
}

/// The memory of an object's first replica.
pub(crate) fn memory_of(replicas: &[ReplicaDescriptor]) -> BufferDescriptor {
    match &replicas[0].location {
        ReplicaLocation::Memory(buffer) => buffer.clone(),
        other => panic!("{other:?}"),
    }
}

/// A write that stops half way.
pub(crate) struct StalledWrite {
    stream: TcpStream,
    left: Vec<u8>,
}

impl StalledWrite {
    /// Sends half of `value`, and waits until it has arrived.
    pub(crate) async fn start(client: &StoreClient<RealEnv>, at: &BufferDescriptor, value: &[u8]) -> StalledWrite {
        let descriptor = client.engine().open(&at.transport_endpoint.to_string_lossy()).await.unwrap();
        let port = u16::try_from(descriptor.tcp_data_port).unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let address = at.buffer_address;
        let size = value.len() as u64;
        let header = RequestFrame { kind: OpKind::Write, version: FramingVersion::V2, address, size };
        let (first, left) = value.split_at(value.len() / 2);
        stream.write_all(&[&header.encode()[..], first].concat()).unwrap();
        until("the first half to arrive", async || read(client, at).await[..first.len()] == *first).await;
        StalledWrite { stream, left: left.to_vec() }
    }

    /// Sends the other half. It may be refused.
    pub(crate) fn send_rest(&mut self) {
        let _ = self.stream.write_all(&self.left);
    }

    /// Receives the status of the write.
    pub(crate) fn status(&mut self) -> [u8; 8] {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut status = [1; 8];
        self.stream.read_exact(&mut status).unwrap();
        status
    }

    /// Sends the other half. Waits until the node has closed the connection.
    fn finish(mut self) {
        self.send_rest();
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = Vec::new();
        let end = self.stream.read_to_end(&mut answer);
        let reset = std::io::ErrorKind::ConnectionReset;
        assert!(end.is_ok() || end.is_err_and(|error| error.kind() == reset));
        assert_eq!(answer, [0; 0], "the write did not succeed");
    }
}

async fn transfer(client: &StoreClient<RealEnv>, kind: OpKind, at: &BufferDescriptor, local: &Arc<Memory>) {
    let op = Op { kind, local: local.whole(), remote: RemoteAddr(at.buffer_address) };
    client.engine().transfer(&at.transport_endpoint.to_string_lossy(), vec![op], PATIENCE).await.unwrap();
}

/// The bytes of an object, without regard to leases.
pub(crate) async fn read(client: &StoreClient<RealEnv>, at: &BufferDescriptor) -> Vec<u8> {
    let memory = Arc::new(Memory::from_vec(vec![0; at.size as usize]));
    transfer(client, OpKind::Read, at, &memory).await;
    memory.whole().to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_write_does_not_reach_an_object_of_the_restarted_master() {
    let first = careless_master(free_port()).await;
    let port = first.rpc_port();
    let _node = node(port, 32).await;
    let client = node(port, 0).await;
    let at = put_start(client.client(), "old", MIB).await;
    let old = StalledWrite::start(client.client(), &at, &bytes(MIB, 1)).await;
    first.stop().await.unwrap();
    let second = careless_master(port).await;
    until("the segment is remounted", async || segments(&second) == 1).await;
    let again = put_start(client.client(), "new", MIB).await;
    assert_eq!(again, at, "the same memory");
    transfer(client.client(), OpKind::Write, &at, &Arc::new(Memory::from_vec(bytes(MIB, 2)))).await;
    old.finish();
    assert_eq!(read(client.client(), &at).await, bytes(MIB, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_write_does_not_survive_the_expiry_of_its_node() {
    // The node's client expires between two heartbeats, as if it had been suspended.
    let master = master_with(0, |config| {
        config.policy.client_ttl = Duration::from_millis(300);
        config.policy.put_discard_after = Duration::ZERO;
        config.policy.lease_ttl = Duration::ZERO;
    })
    .await;
    let _node = node(master.rpc_port(), 32).await;
    let client = node(master.rpc_port(), 0).await;
    let at = put_start(client.client(), "old", MIB).await;
    let old = StalledWrite::start(client.client(), &at, &bytes(MIB, 1)).await;
    until("the node's client expires", async || segments(&master) == 0).await;
    until("the segment is remounted", async || segments(&master) == 1).await;
    transfer(client.client(), OpKind::Write, &at, &Arc::new(Memory::from_vec(bytes(MIB, 2)))).await;
    old.finish();
    assert_eq!(read(client.client(), &at).await, bytes(MIB, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_registration_of_a_new_node_closes_no_connection() {
    use mcctl::engine::master::view::AdminView;
    let master = master(0).await;
    let node = node(master.rpc_port(), 32).await;
    let base = node.segment().unwrap().base;
    let mut stream = TcpStream::connect(("127.0.0.1", node.client().engine().data_port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let pings = || master.handle().metrics().0.ping.requests;
    until("the node has sent three pings", async || pings() >= 3).await;
    let header = RequestFrame { kind: OpKind::Read, version: FramingVersion::V2, address: base, size: 8 };
    stream.write_all(&header.encode()).unwrap();
    let mut answer = [1; 16];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((&answer[..8], &answer[8..]), (&b"\0\0\0\0VTCM"[..], &[0; 8][..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_stored_again_when_the_hold_ends() {
    let quick = |config: &mut MasterConfig| config.policy.put_discard_after = Duration::from_secs(2);
    let port = free_port();
    let first = master_with(port, quick).await;
    let node = node(port, 32).await;
    let config = ReplicateConfig::default();
    node.client().put(&key("before"), slice(vec![1; 100]), &config).await.unwrap();
    first.stop().await.unwrap();
    let hold = Duration::from_secs(2);
    let second = master_with(port, |config| {
        config.policy.put_discard_after = hold;
        config.policy.lease_ttl = Duration::from_secs(1);
    })
    .await;
    let started = Instant::now();
    until("the segment is remounted", async || segments(&second) == 1).await;
    let refused = node.client().put(&key("early"), slice(vec![2; 100]), &config).await;
    assert!(started.elapsed() >= hold || refused.is_err_and(|error| error.code() == ErrorCode::NO_AVAILABLE_HANDLE));
    let put = async || node.client().put(&key("after"), slice(vec![2; 100]), &config).await.is_ok();
    until("puts are accepted", put).await;
    assert!(started.elapsed() >= hold);
    assert_eq!(node.client().get(&key("after")).await.unwrap(), vec![2; 100]);
}

/// A node whose answers the test controls.
pub(crate) struct SlowNode {
    name: String,
    requests: Mutex<Receiver<SlowRequest>>,
}

/// A request that waits for its answer.
pub(crate) struct SlowRequest {
    kind: OpKind,
    stream: TcpStream,
}

impl SlowRequest {
    /// Answers with success and these bytes.
    pub(crate) fn answer(mut self, bytes: &[u8]) {
        self.stream.write_all(&[&b"\0\0\0\0VTCM"[..], bytes].concat()).unwrap();
    }
}

impl SlowNode {
    fn start() -> SlowNode {
        let (data, (arrivals, requests)) = (TcpListener::bind("127.0.0.1:0").unwrap(), channel());
        let name = peer_at(data.local_addr().unwrap().port(), false);
        std::thread::spawn(move || {
            for stream in data.incoming().map(Result::unwrap) {
                let arrivals = arrivals.clone();
                std::thread::spawn(move || SlowNode::serve(stream, &arrivals));
            }
        });
        SlowNode { name, requests: Mutex::new(requests) }
    }

    fn serve(mut stream: TcpStream, arrivals: &Sender<SlowRequest>) {
        let mut header = [0; 24];
        while stream.read_exact(&mut header).is_ok() {
            let RequestFrame { kind, size, .. } = RequestFrame::decode(&header);
            if kind == OpKind::Write {
                stream.read_exact(&mut vec![0; size as usize]).unwrap();
            }
            if arrivals.send(SlowRequest { kind, stream: stream.try_clone().unwrap() }).is_err() {
                return;
            }
        }
    }

    /// Mounts the node's memory as that of a new process.
    async fn mount(&self, client: &StoreClient<RealEnv>) {
        let segment = Segment {
            id: SegmentId(1, 2),
            name: self.name.as_str().into(),
            base: 4096,
            size: 1 << 20,
            te_endpoint: self.name.as_str().into(),
            protocol: "tcp".into(),
            host_id: "".into(),
        };
        client.master().mount_segment(segment, ClientId(3, 4)).await.unwrap().unwrap();
    }

    /// Waits for the next request.
    pub(crate) fn request(&self, kind: OpKind) -> SlowRequest {
        let request =
            tokio::task::block_in_place(|| self.requests.lock().unwrap().recv_timeout(PATIENCE)).expect("a request");
        assert_eq!(request.kind, kind);
        request
    }

    /// Waits a moment for a request.
    pub(crate) fn next_request(&self, kind: OpKind) -> Option<SlowRequest> {
        let wait = || self.requests.lock().unwrap().recv_timeout(Duration::from_millis(20)).ok();
        tokio::task::block_in_place(wait).filter(|request| request.kind == kind)
    }

    /// Puts an object of four bytes.
    async fn put(&self, client: &StoreClient<RealEnv>, name: &str) {
        let put = start_put(client, name);
        self.request(OpKind::Write).answer(&[]);
        assert_eq!(in_time("the put", put).await.unwrap().unwrap(), PutOutcome::Stored { replicas: 1 });
    }
}

fn start_put(client: &StoreClient<RealEnv>, name: &str) -> JoinHandle<Result<PutOutcome, StoreError>> {
    let client = client.clone();
    let key = key(name);
    tokio::spawn(async move { client.put(&key, slice(b"good".to_vec()), &ReplicateConfig::default()).await })
}

pub(crate) fn start_get(client: &Node<RealEnv>, name: &str) -> JoinHandle<Result<Vec<u8>, StoreError>> {
    let client = client.client().clone();
    let key = key(name);
    tokio::spawn(async move { client.get(&key).await })
}

/// Runs `operation` on a thread of its own, which also transfers the bytes. The client's runtime
/// does not run while the thread is blocked.
fn on_own_thread<T: Send + 'static>(
    client: &Node<RealEnv>,
    operation: impl AsyncFnOnce(&StoreClient<RealEnv>) -> T + Send + 'static,
) -> JoinHandle<T> {
    let client = client.client().clone();
    tokio::task::spawn_blocking(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(client.with_own_connection(TransferThreads::Caller)).unwrap();
        runtime.block_on(operation(&client))
    })
}

/// A master with the object `k` on a node whose answers the test controls, and two clients.
pub(crate) async fn with_slow_node() -> (MasterServer<RealEnv>, SlowNode, Node<RealEnv>, Node<RealEnv>) {
    let master = master(free_port()).await;
    let slow = SlowNode::start();
    let port = master.rpc_port();
    let client = node(port, 0).await;
    let other = node(port, 0).await;
    slow.mount(other.client()).await;
    slow.put(other.client(), "k").await;
    (master, slow, client, other)
}

/// Restarts the master. Both clients notice it.
async fn restarted(first: MasterServer<RealEnv>, clients: [&Node<RealEnv>; 2]) -> MasterServer<RealEnv> {
    let port = first.rpc_port();
    first.stop().await.unwrap();
    let second = master(port).await;
    for client in clients {
        until("the client reaches the new master", async || client.client().exists(&key("none")).await.is_ok()).await;
    }
    second
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_during_which_the_master_restarts_does_not_return_its_bytes() {
    let (first, slow, client, other) = with_slow_node().await;
    let get = start_get(&client, "k");
    let request = slow.request(OpKind::Read);
    let _second = restarted(first, [&client, &other]).await;
    // The memory may belong to another key by now. The lease of the lookup has not ended.
    request.answer(b"else");
    let error = in_time("the read", get).await.unwrap().expect_err("the new master has no objects");
    assert!(error.is_not_found(), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_is_looked_up_again_at_the_restarted_master() {
    let (first, slow, client, other) = with_slow_node().await;
    let buffer = Arc::new(Memory::from_vec(vec![0; 8]));
    let (one, batch) = (start_get(&client, "k"), {
        let client = client.client().clone();
        let into = buffer.whole();
        tokio::spawn(async move { client.batch_get_into(&[(key("k"), into)]).await })
    });
    let requests = [slow.request(OpKind::Read), slow.request(OpKind::Read)];
    let _second = restarted(first, [&client, &other]).await;
    slow.mount(other.client()).await;
    slow.put(other.client(), "k").await;
    requests.into_iter().for_each(|request| request.answer(b"else"));
    for _ in 0..2 {
        slow.request(OpKind::Read).answer(b"good");
    }
    assert_eq!(in_time("the read", one).await.unwrap().unwrap(), b"good");
    assert_eq!(in_time("the batch", batch).await.unwrap().unwrap()[0].as_ref().unwrap(), &4);
    assert_eq!(buffer.slice(0, 4).unwrap().to_vec(), b"good");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_fails_if_the_master_is_gone_at_its_end() {
    let (first, slow, client, _other) = with_slow_node().await;
    let get = start_get(&client, "k");
    let request = slow.request(OpKind::Read);
    first.stop().await.unwrap();
    until("the client notices it", async || client.client().exists(&key("k")).await.is_err()).await;
    request.answer(b"late");
    let error = in_time("the read", get).await.unwrap().expect_err("the lookup is no longer valid");
    assert!(error.is_transient(), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_transfers_bytes_notices_that_the_master_is_gone() {
    let (first, slow, client, _other) = with_slow_node().await;
    let read = on_own_thread(&client, async |client| {
        let keys = [key("k")];
        let lookup = client.look_up(&keys).await.unwrap();
        let parts = vec![Ok(ObjectPart::consecutive([slice(vec![0; 4])]))];
        client.read_parts(&keys, &lookup, parts).await.remove(0)
    });
    let request = slow.request(OpKind::Read);
    first.stop().await.unwrap();
    // The kernel delivers the end of the connection asynchronously.
    tokio::time::sleep(Duration::from_millis(50)).await;
    request.answer(b"late");
    let result = in_time("the read", read).await.unwrap();
    assert!(matches!(result, Err(StoreError::LookupLost { .. })), "{result:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_not_written_if_the_master_went_away_while_the_thread_waited() {
    let (first, _slow, client, _other) = with_slow_node().await;
    let (allocated, is_allocated) = tokio::sync::oneshot::channel();
    let (stopped, is_stopped) = channel();
    let check = on_own_thread(&client, async move |client| {
        let keys = [key("new")];
        let config = ReplicateConfig::default();
        let mut allocation = client.allocate(WriteMethod::Put, &keys, vec![4], &config, KeyHold::Call).await.unwrap();
        client.check_connection();
        client.check(&keys, &mut allocation, HOUR);
        let first = allocation.replicas[0].clone();
        allocated.send(()).unwrap();
        is_stopped.recv().unwrap();
        client.check_connection();
        client.check(&keys, &mut allocation, HOUR);
        (first, allocation.replicas.remove(0))
    });
    is_allocated.await.unwrap();
    first.stop().await.unwrap();
    // The kernel delivers the end of the connection asynchronously.
    tokio::time::sleep(Duration::from_millis(50)).await;
    stopped.send(()).unwrap();
    let (before, after) = in_time("the check", check).await.unwrap();
    assert!(before.is_ok(), "{before:?}");
    assert!(matches!(after, Err(StoreError::AllocationLost { .. })), "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_does_not_succeed_at_a_master_that_does_not_know_it() {
    let (first, slow, client, other) = with_slow_node().await;
    let put = start_put(client.client(), "new");
    let request = slow.request(OpKind::Write);
    let _second = restarted(first, [&client, &other]).await;
    slow.mount(other.client()).await;
    request.answer(&[]);
    let error = in_time("the put", put).await.unwrap().expect_err("the new master has no such put");
    assert_eq!(error.code(), ErrorCode::OBJECT_NOT_FOUND, "{error}");
    assert!(!client.client().exists(&key("new")).await.unwrap());
}
