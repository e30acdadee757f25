//! The client against servers that fail: fake gateways, and sockets that do not respond.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::TcpSocket;

use crate::etcd::{EtcdClient, EtcdError, EtcdOp, EtcdOptions, EtcdTxn, EtcdUser};
use crate::http::{self, Handler, HttpLimits, HttpRequest, HttpServer, Response, StatusCode, answer};
use mcctl_base::HostPort;
use mcctl_sys::env::{RealEnv, deadline};

/// Time for a request. The share of one server must suffice on a busy machine.
const LIMIT: Duration = Duration::from_secs(2);

const RANGE: &str = r#"{"header":{"revision":"5"}}"#;
const PUT: &str = r#"{"header":{"revision":"5"},"succeeded":true,"responses":[{"response_put":{}}]}"#;
const LOGIN: &str = r#"{"header":{"revision":"5"},"token":"t"}"#;

/// A fake gateway: returns the status and the body for a path. `None`: it does not respond.
struct FakeGateway<F>(F);

impl<F: Fn(&str) -> Option<(u16, String)> + Send + Sync + 'static> Handler for FakeGateway<F> {
    async fn handle(&self, request: HttpRequest) -> Response {
        match (self.0)(request.path()) {
            Some((status, body)) => answer(StatusCode::from_u16(status).unwrap(), "application/json", body),
            None => std::future::pending().await,
        }
    }
}

async fn gateway(respond: impl Fn(&str) -> Option<(u16, String)> + Send + Sync + 'static) -> HttpServer {
    let here = HostPort::new("127.0.0.1", 0);
    http::start(RealEnv::new(), &here, HttpLimits::SMALL, Arc::new(FakeGateway(respond))).await.unwrap()
}

/// A gateway that has the same response to each request.
async fn fixed(status: u16, body: &str) -> HttpServer {
    let body = body.to_owned();
    gateway(move |_| Some((status, body.clone()))).await
}

/// A gateway that performs reads, a put and the login.
async fn healthy() -> HttpServer {
    gateway(|path| {
        let body = match path {
            "/v3/kv/range" => RANGE,
            "/v3/kv/txn" => PUT,
            "/v3/auth/authenticate" => LOGIN,
            _ => r#"{"result":{}}"#,
        };
        Some((200, body.to_owned()))
    })
    .await
}

/// A server that accepts connections, and does not respond.
fn silent() -> (TcpListener, HostPort) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, HostPort::new("127.0.0.1", port))
}

/// A server that does not accept connections, like a host that is off. The system drops packets for
/// a listener whose queue is full.
fn blackhole() -> (tokio::net::TcpListener, Vec<TcpStream>, HostPort) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let at = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&at, Duration::from_millis(100)) {
        queue.push(stream);
    }
    (listener, queue, HostPort::new("127.0.0.1", at.port()))
}

fn options(servers: &[&HostPort]) -> EtcdOptions {
    let list = servers.iter().map(ToString::to_string).collect::<Vec<String>>().join(",");
    EtcdOptions::parse(&list, LIMIT).unwrap()
}

fn client(servers: &[&HostPort]) -> EtcdClient {
    EtcdClient::new(options(servers)).unwrap()
}

fn with_login(servers: &[&HostPort]) -> EtcdClient {
    let user = Some(EtcdUser { name: "me".to_owned(), password: "x".to_owned() });
    EtcdClient::new(EtcdOptions { user, ..options(servers) }).unwrap()
}

fn put() -> EtcdTxn {
    let put = EtcdOp::Put { key: "k".to_owned(), value: b"v".to_vec(), lease: 0 };
    EtcdTxn { success: vec![put], ..EtcdTxn::default() }
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    deadline(&RealEnv::new(), 20 * LIMIT, work).await.expect("the client returns")
}

#[tokio::test]
async fn a_host_that_is_off_leaves_time_for_the_other_servers() {
    let (_listener, _queue, dead) = blackhole();
    let alive = healthy().await;
    assert!(client(&[&dead, alive.at()]).get("k").await.is_ok());
    assert!(client(&[&dead, alive.at()]).txn(&put()).await.is_ok());
    assert!(client(&[&dead, alive.at()]).watch("k", 0).await.is_ok());
    let alone = client(&[&dead]).txn(&put()).await;
    assert!(matches!(alone, Err(EtcdError::Unreachable(_))), "{alone:?}");
}

#[tokio::test]
async fn only_a_repeatable_request_goes_on_after_a_silent_server() {
    let (_listener, dead) = silent();
    let alive = healthy().await;
    assert!(client(&[&dead, alive.at()]).get("k").await.is_ok());
    assert!(client(&[&dead, alive.at()]).watch("k", 0).await.is_ok());
    let client = client(&[&dead, alive.at()]);
    assert_eq!(client.txn(&put()).await, Err(EtcdError::Timeout(LIMIT)));
    assert!(client.txn(&put()).await.is_ok(), "the next request begins with the other server");
}

#[tokio::test]
async fn concurrent_timeouts_move_on_by_one_server() {
    let (_listener, dead) = silent();
    let alive = healthy().await;
    let client = client(&[&dead, alive.at()]);
    let put = put();
    let (first, second) = tokio::join!(client.txn(&put), client.txn(&put));
    assert_eq!((first, second), (Err(EtcdError::Timeout(LIMIT)), Err(EtcdError::Timeout(LIMIT))));
    assert!(client.txn(&put).await.is_ok());
}

#[tokio::test]
async fn a_watch_ends_if_a_server_does_not_respond_to_the_login() {
    let (_listener, dead) = silent();
    let opened = in_time(with_login(&[&dead]).watch("k", 0)).await;
    assert_eq!(opened.map(drop), Err(EtcdError::Timeout(LIMIT)));
}

#[tokio::test]
async fn a_login_without_response_does_not_block_other_requests() {
    let logins = AtomicUsize::new(0);
    let server = gateway(move |path| match path {
        "/v3/auth/authenticate" => (logins.fetch_add(1, Ordering::Relaxed) > 0).then(|| (200, LOGIN.to_owned())),
        _ => Some((200, RANGE.to_owned())),
    })
    .await;
    let client = with_login(&[server.at()]);
    let results: [_; 2] = in_time(async { tokio::join!(client.get("k"), client.get("k")) }).await.into();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
}

#[tokio::test]
async fn a_wrong_scheme_is_suggested() {
    let plain = healthy().await;
    let (closing, at) = silent();
    let _closer = std::thread::spawn(move || {
        for stream in closing.incoming().flatten() {
            // Bytes that were not read would reset the connection.
            let _ = (&stream).read(&mut [0; 4096]);
        }
    });
    let https = |at: &HostPort| EtcdClient::new(EtcdOptions::parse(&format!("https://{at}"), LIMIT).unwrap()).unwrap();
    for (client, hint) in [
        (https(plain.at()), format!("http://{}", plain.at())),
        (https(&at), format!("http://{at}")),
        (client(&[&at]), format!("https://{at}")),
    ] {
        let error = client.get("k").await.unwrap_err().to_string();
        assert!(error.ends_with(&format!("write {hint}")), "{error}");
    }
    let (_listener, _queue, dead) = blackhole();
    assert!(!https(&dead).get("k").await.unwrap_err().to_string().contains("write http"));
}

#[tokio::test]
async fn a_login_without_authentication_changes_nothing() {
    let why = r#"{"error":"why","message":"etcdserver: authentication is not enabled","code":9}"#;
    let server = fixed(400, why).await;
    let error = with_login(&[server.at()]).txn(&put()).await.unwrap_err();
    assert!(error == EtcdError::NoAuthentication && !error.outcome_is_unknown(), "{error:?}");
}

#[tokio::test]
async fn only_definitive_refusals_leave_nothing_changed() {
    for code in 0..=16 {
        let server = fixed(500, &format!(r#"{{"error":"why","message":"why","code":{code}}}"#)).await;
        let error = client(&[server.at()]).txn(&put()).await.unwrap_err();
        let is_refusal = [3, 5, 6, 7, 9, 11, 12, 16].contains(&code);
        assert_eq!(error.outcome_is_unknown(), !is_refusal, "{code}: {error:?}");
    }
    for (status, body) in [(502, "<html>"), (504, ""), (503, r#"{"message":"why"}"#), (500, r#"{"error":7}"#)] {
        let server = fixed(status, body).await;
        let error = client(&[server.at()]).txn(&put()).await.unwrap_err();
        assert!(error.outcome_is_unknown(), "{status} {body}: {error:?}");
    }
    let server = fixed(503, r#"{"error":{"grpc_code":14,"message":"no leader"}}"#).await;
    let error = client(&[server.at()]).keep_alive(7).await.unwrap_err();
    assert_eq!(error, EtcdError::Failed { code: 14, message: "no leader".to_owned() });
}

#[tokio::test]
async fn a_success_of_the_wrong_form_is_an_error() {
    let read = EtcdTxn { success: vec![EtcdOp::Get("k".to_owned())], ..EtcdTxn::default() };
    let other_lease = r#"{"result":{"ID":"8","TTL":"2"}}"#;
    for body in ["{}", "[]", r#"{"header":{}}"#, r#"{"result":{}}"#, other_lease] {
        let server = fixed(200, body).await;
        let client = client(&[server.at()]);
        let failures = [
            client.get("k").await.map(drop),
            client.txn(&read).await.map(drop),
            client.txn(&put()).await.map(drop),
            client.grant_lease(LIMIT).await.map(drop),
            client.keep_alive(7).await.map(drop),
            client.revoke_lease(7).await,
        ];
        assert!(failures.iter().all(|done| matches!(done, Err(EtcdError::Unexpected(_)))), "{body}: {failures:?}");
    }
    for responses in ["", "{}", r#"{"response_put":{}}"#] {
        let body = format!(r#"{{"header":{{"revision":"5"}},"succeeded":true,"responses":[{responses}]}}"#);
        let server = fixed(200, &body).await;
        let done = client(&[server.at()]).txn(&read).await;
        assert!(matches!(done, Err(EtcdError::Unexpected(_))), "{body}: {done:?}");
    }
}

#[tokio::test]
async fn a_lease_may_be_longer_than_requested_but_not_shorter() {
    for (granted, is_valid) in [(1, false), (2, true), (3, true)] {
        let server = fixed(200, &format!(r#"{{"ID":"7","TTL":"{granted}"}}"#)).await;
        let lease = client(&[server.at()]).grant_lease(Duration::from_secs(2)).await;
        assert_eq!(lease.ok(), is_valid.then_some((7, Duration::from_secs(granted))));
    }
}
