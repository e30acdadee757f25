//! Connection requests at the handshake port, which may need a call back to the requester.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use mcctl::engine::base::HostPort;
use mcctl::engine::env::{Env, Listener, Net, RealEnv};
use mcctl::engine::transfer::handshake::{HandshakeHandler, HandshakeLimits, RequestLimits, send_request, serve};
use mcctl::engine::wire::json::{ConnectionMessage, HandshakeKind, NotifyMessage};
use tokio::runtime::Handle;

use crate::peer::process::PATIENCE;

const LIMIT: Duration = PATIENCE;
/// A limit that no test reaches.
const HOUR: Duration = Duration::from_secs(3600);

type Work = Box<dyn Fn(ConnectionMessage) -> ConnectionMessage + Send + Sync>;

/// Answers connection requests with `work`, once it is set.
struct Working {
    work: OnceLock<Work>,
}

impl HandshakeHandler for Working {
    fn segment(&self) -> Option<String> {
        Some(r#"{"name":"me"}"#.to_owned())
    }
    fn on_connection(&self, request: ConnectionMessage) -> ConnectionMessage {
        self.work.get().expect("set before the first request")(request)
    }
    fn on_message(&self, _: NotifyMessage) -> bool {
        false
    }
}

async fn port(work: impl FnOnce(HostPort) -> Work) -> HostPort {
    port_with(HandshakeLimits::default(), work).await
}

async fn port_with(limits: HandshakeLimits, work: impl FnOnce(HostPort) -> Work) -> HostPort {
    let env = RealEnv::new();
    let listener = env.net().listen(&HostPort::new("127.0.0.1", 0)).await.unwrap();
    let at = HostPort::new("127.0.0.1", listener.port());
    let answers = Arc::new(Working { work: OnceLock::new() });
    assert!(answers.work.set(work(at.clone())).is_ok());
    tokio::spawn(serve(env, listener, answers, limits));
    at
}

async fn exchange(at: &HostPort, kind: HandshakeKind, json: &str) -> Vec<u8> {
    let limits = RequestLimits { connect: LIMIT, answer: LIMIT, bytes_max: 1 << 20 };
    send_request(&RealEnv::new(), at, kind, json, limits).await.unwrap()
}

async fn connect(at: &HostPort, path: &str) -> ConnectionMessage {
    let request = ConnectionMessage { local_nic_path: path.to_owned(), ..ConnectionMessage::default() };
    ConnectionMessage::from_json(&exchange(at, HandshakeKind::Connection, &request.to_json()).await).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_connection_request_may_trigger_a_call_back_to_its_sender() {
    let runtime = Handle::current();
    let at = port(|at| {
        Box::new(move |request| {
            let described = runtime.block_on(exchange(&at, HandshakeKind::Metadata, "{}"));
            let text = String::from_utf8_lossy(&described).trim().to_owned();
            ConnectionMessage {
                reply_msg: format!("{} is {text}", request.local_nic_path),
                ..ConnectionMessage::default()
            }
        })
    })
    .await;
    assert_eq!(connect(&at, "a@b").await.reply_msg, r#"a@b is {"name":"me"}"#);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn metadata_is_served_during_many_connection_requests() {
    let (release, released): (SyncSender<()>, Receiver<()>) = sync_channel(200);
    let released = Mutex::new(released);
    let at = port(|_| {
        Box::new(move |_| {
            released.lock().unwrap().recv_timeout(LIMIT).expect("released by the test");
            ConnectionMessage::default()
        })
    })
    .await;
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let at = at.clone();
            tokio::spawn(async move { connect(&at, "a@b").await })
        })
        .collect();
    for _ in 0..10 {
        assert_eq!(exchange(&at, HandshakeKind::Metadata, "{}").await.trim_ascii(), br#"{"name":"me"}"#);
    }
    for _ in &waiting {
        release.send(()).unwrap();
    }
    for request in waiting {
        assert!(request.await.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_full_handshake_port_closes_silent_connections() {
    // No silent connection reaches its time limit.
    let limits = HandshakeLimits { step: HOUR, ..HandshakeLimits::default() };
    let at = port_with(limits, |_| Box::new(|_| ConnectionMessage::default())).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(RealEnv::new().net().connect(&at).await.unwrap());
    }
    assert_eq!(exchange(&at, HandshakeKind::Metadata, "{}").await.trim_ascii(), br#"{"name":"me"}"#);
    drop(silent);
}
