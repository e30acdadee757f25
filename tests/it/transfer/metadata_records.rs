//! Engines with a metadata service: their records, their names, and takeovers.

use super::*;
use crate::peer::process::free_port;

/// A metadata service and the configuration of engines that use it. A live owner of a name gets all
/// the time it needs to answer.
struct Cluster {
    _service: MetadataService<PatientEnv>,
    running: HttpServer,
}

impl Cluster {
    async fn start() -> Cluster {
        let service = MetadataService::new(PatientEnv::default(), KeySpace::default());
        let running = service.start(&HostPort::new("127.0.0.1", 0)).await.unwrap();
        Cluster { _service: service, running }
    }

    fn url(&self) -> String {
        format!("http://{}/metadata", self.running.at())
    }

    fn config(&self, name: &str) -> TransferConfig {
        TransferConfig {
            metadata: MetadataUri::Service(self.url()),
            announce_host: Some("127.0.0.1".into()),
            ..config(name)
        }
    }

    async fn record(&self, key: &str) -> Option<String> {
        let client = MetadataClient::http(&self.url()).unwrap();
        client.get(key).await.unwrap().map(|b| String::from_utf8(b.to_vec()).unwrap())
    }
}

#[tokio::test]
async fn records_exist_as_long_as_the_engine() {
    let cluster = Cluster::start().await;
    let theirs = start(cluster.config("node-a:17")).await;
    let ram = "mooncake/ram/node-a:17";
    let rpc = "mooncake/rpc_meta/node-a:17";
    let handshake = theirs.handshake().port;
    let meta = format!("{{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":{handshake}}}");
    assert_eq!(cluster.record(rpc).await.unwrap(), meta);
    assert!(
        cluster.record(ram).await.unwrap().starts_with("{\"buffers\":[],\"name\":\"node-a:17\",\"protocol\":\"tcp\"")
    );
    let memory = memory(6 << 20, 0);
    let registration = theirs.register(&memory, Access::Remote).await.unwrap();
    let buffer = format!("{{\"addr\":{},\"length\":{},\"name\":\"node-a:17\"}}", memory.address(), memory.len());
    assert!(cluster.record(ram).await.unwrap().starts_with(&format!("{{\"buffers\":[{buffer}],")));
    let ours = start(cluster.config("node-b")).await;
    assert_eq!(theirs.endpoint(), "node-a:17");
    moves_bytes(&ours, "node-a:17", &memory).await;
    ours.probe("node-a:17").await.unwrap();
    theirs.deregister(registration).await.unwrap();
    assert!(cluster.record(ram).await.unwrap().starts_with("{\"buffers\":[],"));
    theirs.shutdown().await.unwrap();
    assert_eq!((cluster.record(ram).await, cluster.record(rpc).await), (None, None));
    let unknown = ours.open("no-such-node").await.unwrap_err();
    assert!(matches!(&unknown, TransferError::UnknownSegment { segment } if segment == "no-such-node"), "{unknown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_peer_is_found_again_under_its_name() {
    let cluster = Cluster::start().await;
    let ours = start(cluster.config("client")).await;
    for round in 0..3 {
        let theirs = start(cluster.config("node")).await;
        let memory = memory(100_000, round);
        theirs.register(&memory, Access::Remote).await.unwrap();
        // The first use after a restart uses the cached descriptor, fails, and fetches it again.
        let buffer = Arc::new(Memory::from_vec(vec![0; 100_000]));
        ours.transfer("node", vec![op(OpKind::Read, &buffer, 0, 100_000, memory.address())], LIMIT).await.unwrap();
        assert!(buffer.whole().to_vec() == pattern(100_000, round));
        theirs.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_peer_fails_fast_and_its_return_is_detected() {
    let cluster = Cluster::start().await;
    let ours = start(cluster.config("client")).await;
    let theirs = start(cluster.config("node")).await;
    let memory = memory(1000, 0);
    theirs.register(&memory, Access::Remote).await.unwrap();
    let buffer = Arc::new(Memory::from_vec(vec![0; 10]));
    let read = |at: &Arc<Memory>| vec![op(OpKind::Read, &buffer, 0, 10, at.address())];
    ours.transfer("node", read(&memory), LIMIT).await.unwrap();
    // Its records stay, as after kill -9.
    let client = MetadataClient::http(&cluster.url()).unwrap();
    let keys = ["mooncake/ram/node", "mooncake/rpc_meta/node"];
    let mut bodies = Vec::new();
    for key in keys {
        bodies.push(client.get(key).await.unwrap().unwrap());
    }
    theirs.shutdown().await.unwrap();
    for (key, body) in keys.into_iter().zip(bodies) {
        client.put(key, body).await.unwrap();
    }
    // The first call finds the closed port. Until a probe succeeds, the others fail without a
    // request.
    let first = in_time("the first failure", ours.transfer("node", read(&memory), HOUR)).await.unwrap_err();
    assert!(matches!(first, TransferError::Lost { .. }), "{first}");
    for _ in 0..30 {
        let error = in_time("a later failure", ours.transfer("node", read(&memory), HOUR)).await.unwrap_err();
        assert!(matches!(error, TransferError::Down { .. }), "{error}");
    }
    let theirs = start(cluster.config("node")).await;
    let back = self::memory(1000, 3);
    theirs.register(&back, Access::Remote).await.unwrap();
    wait_until_async("the recovery to be detected", PATIENCE, async || {
        ours.transfer("node", read(&back), LIMIT).await.is_ok()
    })
    .await;
    assert_eq!(buffer.whole().to_vec(), pattern(1000, 3)[..10]);
}

#[tokio::test]
async fn the_name_of_a_live_engine_cannot_be_claimed() {
    let cluster = Cluster::start().await;
    let _theirs = start(cluster.config("node")).await;
    let error = TransferEngine::start(cluster.config("node"), RealEnv::new()).await.err().unwrap();
    assert!(matches!(&error, TransferError::NameTaken { name, .. } if name == "node"), "{error}");
}

#[tokio::test]
async fn republish_restores_lost_records() {
    let cluster = Cluster::start().await;
    let theirs = start(cluster.config("node")).await;
    theirs.register(&memory(1000, 0), Access::Remote).await.unwrap();
    let client = MetadataClient::http(&cluster.url()).unwrap();
    for key in ["mooncake/ram/node", "mooncake/rpc_meta/node"] {
        assert!(client.remove(key).await.unwrap());
    }
    theirs.republish().await.unwrap();
    assert!(cluster.record("mooncake/ram/node").await.unwrap().contains("\"length\":1000"));
    assert!(cluster.record("mooncake/rpc_meta/node").await.is_some());
}

#[tokio::test]
async fn an_engine_that_lost_its_name_leaves_the_new_records_alone() {
    let ram = "mooncake/ram/node";
    let rpc = "mooncake/rpc_meta/node";
    let cluster = Cluster::start().await;
    let paused = start(cluster.config("node")).await;
    let lent = paused.register(&memory(1000, 0), Access::Remote).await.unwrap();
    let client = MetadataClient::http(&cluster.url()).unwrap();
    for key in [ram, rpc] {
        assert!(client.remove(key).await.unwrap());
    }
    let owner = start(cluster.config("node")).await;
    owner.register(&memory(2000, 0), Access::Remote).await.unwrap();
    let records = (cluster.record(ram).await, cluster.record(rpc).await);
    let error = paused.republish().await.unwrap_err();
    assert!(matches!(&error, TransferError::NameTaken { name, .. } if name == "node"), "{error}");
    let error = paused.deregister(lent).await.unwrap_err();
    assert!(matches!(&error, TransferError::NameTaken { .. }), "{error}");
    paused.shutdown().await.unwrap();
    assert_eq!((cluster.record(ram).await, cluster.record(rpc).await), records);
    owner.shutdown().await.unwrap();
    assert_eq!((cluster.record(ram).await, cluster.record(rpc).await), (None, None));
}

#[tokio::test]
async fn a_name_lost_unnoticed_is_left_alone_at_shutdown() {
    let ram = "mooncake/ram/node";
    let rpc = "mooncake/rpc_meta/node";
    let cluster = Cluster::start().await;
    let client = MetadataClient::http(&cluster.url()).unwrap();
    let paused = start(cluster.config("node")).await;
    let other = memory(500, 0);
    let lent = paused.register(&memory(1000, 0), Access::Remote).await.unwrap();
    let early = paused.register(&other, Access::Remote).await.unwrap();
    for key in [ram, rpc] {
        assert!(client.remove(key).await.unwrap());
    }
    // The name has no owner and may be claimed at this moment: nothing is written.
    paused.deregister(early).await.unwrap();
    assert_eq!((cluster.record(ram).await, cluster.record(rpc).await), (None, None));
    let owner = start(cluster.config("node")).await;
    owner.register(&memory(2000, 0), Access::Remote).await.unwrap();
    let records = (cluster.record(ram).await, cluster.record(rpc).await);
    for error in [
        paused.register(&other, Access::Remote).await.map(drop).unwrap_err(),
        paused.deregister(lent).await.unwrap_err(),
    ] {
        assert!(matches!(&error, TransferError::NameTaken { name, .. } if name == "node"), "{error}");
    }
    assert_eq!((cluster.record(ram).await, cluster.record(rpc).await), records);
    // As if it were between its two writes.
    assert!(client.remove(rpc).await.unwrap());
    paused.shutdown().await.unwrap();
    assert_eq!((cluster.record(ram).await, cluster.record(rpc).await), (records.0, None));
}

#[tokio::test]
async fn memory_announced_by_a_stale_document_is_refused() {
    let cluster = Cluster::start().await;
    let theirs = start(cluster.config("node")).await;
    let gone = memory(1000, 0);
    let stays = memory(2000, 1);
    let lent = theirs.register(&gone, Access::Remote).await.unwrap();
    theirs.register(&stays, Access::Remote).await.unwrap();
    let client = MetadataClient::http(&cluster.url()).unwrap();
    assert!(client.remove("mooncake/rpc_meta/node").await.unwrap());
    let document = cluster.record("mooncake/ram/node").await.unwrap();
    theirs.deregister(lent).await.unwrap();
    assert_eq!(cluster.record("mooncake/ram/node").await.unwrap(), document);
    let ours = start(cluster.config("client")).await;
    let buffer = memory(10, 2);
    let read = |of: &Arc<Memory>| vec![op(OpKind::Read, &buffer, 0, 10, of.address())];
    let refused = ours.transfer("node", read(&gone), LIMIT).await;
    assert!(is_rejected(&refused), "{refused:?}");
    ours.transfer("node", read(&stays), LIMIT).await.unwrap();
    theirs.republish().await.unwrap();
    assert!(!cluster.record("mooncake/ram/node").await.unwrap().contains("\"length\":1000"));
}

type Records = HashMap<String, Bytes>;
/// Called before a record is answered. Returns the status if it is not the usual one.
type Rig = Box<dyn FnMut(&Method, &str, &mut Records) -> Option<StatusCode> + Send>;

/// A metadata service with injected behaviour.
#[derive(Clone)]
struct Rigged(Arc<Mutex<(Records, Rig)>>);

impl Rigged {
    /// Starts it, and an engine `node` that uses it.
    async fn with_an_engine() -> (Rigged, HttpServer, TransferEngine) {
        let rigged = Rigged(Arc::new(Mutex::new((Records::new(), Box::new(|_, _, _| None)))));
        let at = HostPort::new("127.0.0.1", 0);
        let running = http::start(RealEnv::new(), &at, HttpLimits::SMALL, Arc::new(rigged.clone())).await.unwrap();
        let config = TransferConfig {
            metadata: MetadataUri::Service(format!("http://{}/metadata", running.at())),
            announce_host: Some("127.0.0.1".into()),
            ..config("node")
        };
        (rigged, running, start(config).await)
    }

    fn rig(&self, rig: impl FnMut(&Method, &str, &mut Records) -> Option<StatusCode> + Send + 'static) {
        self.0.lock().unwrap().1 = Box::new(rig);
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.lock().unwrap().0.keys().cloned().collect();
        names.sort();
        names
    }
}

impl Handler for Rigged {
    async fn handle(&self, request: HttpRequest) -> Response {
        let key = String::from_utf8(decode(request.param("key").unwrap()).into_owned()).unwrap();
        let (records, rig) = &mut *self.0.lock().unwrap();
        if let Some(status) = rig(&request.method, &key, records) {
            return answer(status, "", "");
        }
        let found = match request.method {
            Method::PUT => {
                records.insert(key, request.body);
                Some(Bytes::new())
            }
            Method::DELETE => records.remove(&key).map(|_| Bytes::new()),
            _ => records.get(&key).cloned(),
        };
        found.map_or_else(|| answer(StatusCode::NOT_FOUND, "", ""), |body| answer(StatusCode::OK, "", body))
    }
}

#[tokio::test]
async fn a_name_claimed_during_withdrawal_is_left_alone() {
    let ram = "mooncake/ram/node";
    let rpc = "mooncake/rpc_meta/node";
    let (rigged, _running, engine) = Rigged::with_an_engine().await;
    rigged.0.lock().unwrap().0.remove(rpc);
    // Between reading the name and reading the document.
    rigged.rig(move |method, key, records| {
        if (method, key) == (&Method::GET, ram) {
            records.insert(rpc.to_owned(), "{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":1}".into());
        }
        None
    });
    engine.shutdown().await.unwrap();
    assert_eq!(rigged.names(), [rpc]);
}

#[tokio::test]
async fn a_name_is_kept_if_its_document_cannot_be_removed() {
    let ram = "mooncake/ram/node";
    let rpc = "mooncake/rpc_meta/node";
    let (rigged, _running, engine) = Rigged::with_an_engine().await;
    rigged.rig(move |method, key, _| {
        ((method, key) == (&Method::DELETE, ram)).then_some(StatusCode::INTERNAL_SERVER_ERROR)
    });
    let error = engine.shutdown().await.unwrap_err();
    assert!(matches!(error, TransferError::Metadata(_)), "{error}");
    assert_eq!(rigged.names(), [ram, rpc]);
}

#[tokio::test]
async fn reclaiming_a_dead_engines_name_writes_both_records() {
    let ram = "mooncake/ram/node";
    let rpc = "mooncake/rpc_meta/node";
    let cluster = Cluster::start().await;
    let theirs = start(cluster.config("node")).await;
    theirs.register(&memory(1000, 0), Access::Remote).await.unwrap();
    let meta = cluster.record(rpc).await;
    let client = MetadataClient::http(&cluster.url()).unwrap();
    for key in [ram, rpc] {
        assert!(client.remove(key).await.unwrap());
    }
    let dead = format!("{{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":{}}}", free_port());
    client.put(rpc, dead.into()).await.unwrap();
    theirs.republish().await.unwrap();
    assert!(cluster.record(ram).await.unwrap().contains("\"length\":1000"));
    assert_eq!(cluster.record(rpc).await, meta);
}
