//! A client of the leader among several servers.

use std::sync::Arc;
use std::time::Duration;

use mcctl::engine::base::{ClientId, HostPort};
use mcctl::engine::env::RealEnv;
use mcctl::engine::rpc::{CallError, ConnectionError, RpcClient, RpcServer, ServerAddress, ServerConfig, Timeouts};
use mcctl::engine::wire::MasterCalls;
use mcctl::engine::wire::types::ReplicateConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::Ready;
use crate::peer::process::PATIENCE;
use mcctl::engine::wire::Release;
use mcctl::engine::wire::types::SliceLength;

type Leader = watch::Sender<Option<HostPort>>;

async fn server(name: &'static str) -> RpcServer {
    let config = ServerConfig {
        listen: HostPort::new("127.0.0.1", 0),
        threads: 1,
        idle_timeout: None,
        client_release: Release::LATEST,
    };
    RpcServer::start(config, RealEnv::new(), Arc::new(Ready(name))).await.unwrap()
}

fn at(port: u16) -> Option<HostPort> {
    Some(HostPort::new("127.0.0.1", port))
}

fn client(first: Option<HostPort>, limit: Duration) -> (Leader, MasterCalls<RpcClient<RealEnv>>) {
    let (leader, address) = watch::channel(first);
    let calls = RpcClient::new(RealEnv::new(), ServerAddress::Leader(address), Timeouts::within(limit));
    (leader, MasterCalls(calls))
}

async fn name(calls: &MasterCalls<RpcClient<RealEnv>>) -> String {
    calls.service_ready().await.unwrap().unwrap().to_string()
}

/// Sets the leader a little later.
fn later(leader: Leader, next: Option<HostPort>) {
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        leader.send(next).unwrap();
        leader.closed().await;
    });
}

#[tokio::test]
async fn calls_go_to_the_leader() {
    let first = server("1").await;
    let second = server("2").await;
    let (leader, calls) = client(at(first.port()), PATIENCE);
    assert_eq!(name(&calls).await, "1");
    leader.send(None).unwrap();
    assert_eq!(name(&calls).await, "1", "the connection is used as long as no other server leads");
    leader.send(at(second.port())).unwrap();
    assert_eq!((name(&calls).await.as_str(), calls.0.losses()), ("2", 1));
}

#[tokio::test]
async fn a_call_waits_for_a_leader() {
    let server = server("1").await;
    let (leader, calls) = client(None, PATIENCE);
    later(leader, at(server.port()));
    assert_eq!(name(&calls).await, "1");
}

#[tokio::test]
async fn a_call_without_a_leader_ends_with_its_timeout() {
    let (_leader, calls) = client(None, Duration::from_millis(100));
    let error = calls.service_ready().await.expect_err("there is no leader");
    assert!(matches!(error, CallError::NoLeader { .. }), "{error}");
}

#[tokio::test]
async fn an_idempotent_call_is_repeated_at_the_new_leader() {
    // The first server accepts connections and does not answer.
    let hung = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let [first, second] = [server("1").await, server("2").await];
    let (leader, calls) = client(at(first.port()), PATIENCE);
    // The release of the servers is known.
    assert_eq!(name(&calls).await, "1");
    leader.send(at(hung.local_addr().unwrap().port())).unwrap();
    later(leader, at(second.port()));
    let put = calls.put_start(ClientId(1, 1), "k".into(), SliceLength(1), ReplicateConfig::default(), "default".into());
    let (ready, put) = tokio::join!(calls.service_ready(), put);
    assert_eq!(ready.unwrap().unwrap().to_string(), "2");
    let error = put.expect_err("it may have been executed");
    assert!(matches!(&error, CallError::Closed { why: ConnectionError::LeaderChanged, .. }), "{error}");
}

#[tokio::test]
async fn a_call_that_was_not_sent_is_repeated() {
    let first = server("1").await;
    let second = server("2").await;
    let gone = first.port();
    first.stop().await;
    let (leader, calls) = client(at(gone), PATIENCE);
    later(leader, at(second.port()));
    assert_eq!(name(&calls).await, "2");
}
