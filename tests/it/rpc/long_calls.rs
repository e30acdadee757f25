//! Long calls on separate threads, and the times of the workers' last polls.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcctl::engine::base::{ErrorCode, HostPort};
use mcctl::engine::env::{Env, RealEnv};
use mcctl::engine::rpc::connection::LONG_CALLS_MAX;
use mcctl::engine::rpc::{Receipt, RpcCall, RpcClient, RpcServer, RpcService, ServerConfig, Timeouts};
use mcctl::engine::wire::pack::{self, DecodeError, Wire};
use mcctl::engine::wire::{MasterCalls, Method};

use super::Ready;
use crate::peer::process::{PATIENCE, wait_until_async};
use mcctl::engine::wire::Release;

/// The result of `RemoveAll`.
const REMOVED: i64 = 7;

/// `RemoveAll` and `ExistKey` wait until the test releases them; only the first is a long call.
struct Gated {
    release: Mutex<Receiver<()>>,
    begun: AtomicUsize,
}

impl Gated {
    fn new() -> (SyncSender<()>, Arc<Gated>) {
        let (release, released) = sync_channel(100);
        (release, Arc::new(Gated { release: Mutex::new(released), begun: AtomicUsize::new(0) }))
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }
}

impl RpcService for Gated {
    fn answer(&self, call: RpcCall<'_>, out: &mut Vec<u8>) -> Result<Receipt, DecodeError> {
        let RpcCall { method, layout, .. } = call;
        if matches!(method, Method::RemoveAll | Method::ExistKey) {
            self.begun.fetch_add(1, Ordering::SeqCst);
            self.release.lock().unwrap().recv_timeout(PATIENCE).expect("the test releases the call");
        }
        if method == Method::RemoveAll {
            pack::encode(out, layout.response(), false, REMOVED.longest(), |packer| REMOVED.put(packer));
            return Ok(Receipt::default());
        }
        let method = Method::ServiceReady;
        let layout = method.layout(layout.release()).expect("all releases have it");
        Ready("2.0.0").answer(RpcCall { method, layout, ..call }, out)
    }

    fn is_long(&self, method: Method) -> bool {
        method == Method::RemoveAll
    }
}

async fn serve(service: Arc<Gated>) -> RpcServer {
    let config = ServerConfig {
        listen: HostPort::new("127.0.0.1", 0),
        threads: 1,
        idle_timeout: None,
        client_release: Release::LATEST,
    };
    RpcServer::start(config, RealEnv::new(), service).await.unwrap()
}

fn client(server: &RpcServer) -> MasterCalls<RpcClient<RealEnv>> {
    let timeouts = Timeouts { connect: PATIENCE, call: PATIENCE };
    MasterCalls(RpcClient::new(RealEnv::new(), HostPort::new("127.0.0.1", server.port()), timeouts))
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_until_async(what, PATIENCE, async || holds()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_call_delays_its_own_connection_only() {
    let (release, service) = Gated::new();
    let server = serve(service.clone()).await;
    let caller = client(&server);
    let other = client(&server);
    let long = tokio::spawn({
        let caller = caller.clone();
        async move { caller.remove_all(true, "default".into()).await }
    });
    until("the long call starts", || service.begun() == 1).await;
    // Sent on the same connection, so it is answered later.
    let behind = tokio::spawn(async move { caller.service_ready().await });
    for _ in 0..50 {
        assert!(other.service_ready().await.unwrap().is_ok());
    }
    assert!(!long.is_finished() && !behind.is_finished());
    release.send(()).unwrap();
    assert!(behind.await.unwrap().unwrap().is_ok());
    assert_eq!(long.await.unwrap().unwrap(), REMOVED);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_calls_above_the_limit_wait() {
    let (release, service) = Gated::new();
    let server = serve(service.clone()).await;
    let calls: Vec<_> = (0..LONG_CALLS_MAX + 2)
        .map(|_| {
            let caller = client(&server);
            tokio::spawn(async move { caller.remove_all(true, "default".into()).await })
        })
        .collect();
    until("the maximum number of calls starts", || service.begun() == LONG_CALLS_MAX).await;
    until("all are connected", || server.connections() == LONG_CALLS_MAX + 2).await;
    client(&server).service_ready().await.unwrap().unwrap();
    assert_eq!(service.begun(), LONG_CALLS_MAX);
    for _ in &calls {
        release.send(()).unwrap();
    }
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), REMOVED);
    }
    assert_eq!(service.begun(), LONG_CALLS_MAX + 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_call_of_a_disconnected_caller_never_starts() {
    let (release, service) = Gated::new();
    let server = serve(service.clone()).await;
    let call = || {
        let caller = client(&server);
        tokio::spawn(async move { caller.remove_all(true, "default".into()).await })
    };
    let running: Vec<_> = (0..LONG_CALLS_MAX).map(|_| call()).collect();
    until("the calls start", || service.begun() == LONG_CALLS_MAX).await;
    let gone = call();
    until("the call waits", || server.connections() == LONG_CALLS_MAX + 1).await;
    gone.abort();
    until("the caller is gone", || server.connections() == LONG_CALLS_MAX).await;
    for _ in 0..=LONG_CALLS_MAX {
        release.send(()).unwrap();
    }
    for call in running {
        assert_eq!(call.await.unwrap().unwrap(), REMOVED);
    }
    assert!(client(&server).service_ready().await.unwrap().is_ok());
    assert_eq!(service.begun(), LONG_CALLS_MAX);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_worker_has_not_polled() {
    let (release, service) = Gated::new();
    let server = serve(service.clone()).await;
    let polls = server.polls();
    let env = RealEnv::new();
    let caller = client(&server);
    let blocked = tokio::spawn(async move { caller.exist_key("k".into(), "default".into()).await });
    until("the worker is blocked", || service.begun() == 1).await;
    let since = env.now();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(polls.oldest().unwrap() <= since);
    release.send(()).unwrap();
    // The answer has another method's type, or is an error. Only its arrival matters.
    assert_ne!(blocked.await.unwrap().map_err(|error| error.code()), Err(ErrorCode::RPC_TIMEOUT));
    until("the worker polls again", || polls.oldest().unwrap() > since).await;
    server.stop().await;
}
