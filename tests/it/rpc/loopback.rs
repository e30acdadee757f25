use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use mcctl::engine::base::{ErrorCode, HostPort};
use mcctl::engine::env::RealEnv;
use mcctl::engine::rpc::{CallError, RpcClient, RpcServer, ServerConfig, Timeouts};
use mcctl::engine::wire::frame::{RequestHeader, RpcErrc};
use mcctl::engine::wire::{MasterCalls, Method};

use super::Ready;
use crate::peer::process::PATIENCE;
use mcctl::engine::wire::Release;

async fn server(idle_timeout: Option<Duration>) -> RpcServer {
    let listen = HostPort::new("127.0.0.1", 0);
    let config = ServerConfig { listen, threads: 2, idle_timeout, client_release: Release::LATEST };
    RpcServer::start(config, RealEnv::new(), Arc::new(Ready("2.0.0"))).await.unwrap()
}

fn client(port: u16) -> MasterCalls<RpcClient<RealEnv>> {
    let timeouts = Timeouts { connect: PATIENCE, call: PATIENCE };
    MasterCalls(RpcClient::new(RealEnv::new(), HostPort::new("127.0.0.1", port), timeouts))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_concurrent_calls_share_a_connection() {
    let server = server(None).await;
    let client = client(server.port());
    let calls: Vec<_> = (0..500)
        .map(|_| {
            tokio::spawn({
                let client = client.clone();
                async move { client.service_ready().await }
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().unwrap().to_string(), "2.0.0");
    }
    assert_eq!(server.connections(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_request_of_another_type_is_refused_without_closing() {
    let server = server(None).await;
    let client = client(server.port());
    let refused = client.exist_key("k".into(), "default".into()).await.expect_err("refused");
    assert!(matches!(&refused, CallError::Remote { error: RpcErrc::INVALID_RPC_ARGUMENTS, .. }), "{refused}");
    assert!(refused.to_string().contains("invalid rpc arg"), "{refused}");
    client.service_ready().await.unwrap().unwrap();
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_client_reconnects_to_a_restarted_server() {
    let first = server(None).await;
    let port = first.port();
    let client = client(port);
    client.service_ready().await.unwrap().unwrap();
    assert_eq!(client.0.losses(), 0);
    first.stop().await;
    let error = client.service_ready().await.expect_err("the server is stopped");
    assert_eq!((error.code(), client.0.losses()), (ErrorCode::RPC_FAIL, 1));
    let config = ServerConfig {
        listen: HostPort::new("127.0.0.1", port),
        threads: 1,
        idle_timeout: None,
        client_release: Release::LATEST,
    };
    let _second = RpcServer::start(config, RealEnv::new(), Arc::new(Ready("2.0.0"))).await.unwrap();
    client.service_ready().await.unwrap().unwrap();
    assert_eq!(client.0.losses(), 1);
}

#[tokio::test]
async fn a_port_in_use_is_an_error_with_the_address() {
    let first = server(None).await;
    let config = ServerConfig {
        listen: HostPort::new("127.0.0.1", first.port()),
        threads: 1,
        idle_timeout: None,
        client_release: Release::LATEST,
    };
    let error = RpcServer::start(config, RealEnv::new(), Arc::new(Ready("")))
        .await
        .err()
        .expect("the port is in use")
        .to_string();
    assert!(error.contains(&format!("127.0.0.1:{}", first.port())), "{error}");
}

#[tokio::test]
async fn an_invalid_frame_closes_the_connection_without_a_byte() {
    let server = server(None).await;
    let good = RequestHeader { seq: 0, function_id: Method::ServiceReady.id(), length: 0, attachment: 0 }.encode();
    let mut version = good;
    version[1] = 1;
    let mut serialization = good;
    serialization[2] = 1;
    let mut oversize = good;
    oversize[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let cases: [&[u8]; 5] = [b"GET / HTTP/1.1\r\n\r\n", b"\x00", &version, &serialization, &oversize];
    for case in cases {
        let port = server.port();
        let case = case.to_vec();
        let answer = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&case).unwrap();
            let mut answer = Vec::new();
            // A reset counts as a close: the unread bytes cause it.
            match stream.read_to_end(&mut answer) {
                Ok(_) => answer,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => answer,
                Err(error) => panic!("{error}"),
            }
        });
        assert_eq!(answer.await.unwrap(), b"");
    }
}

#[tokio::test]
async fn a_silent_connection_is_closed_after_the_idle_timeout() {
    let server = server(Some(Duration::from_millis(50))).await;
    let port = server.port();
    let ended = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read(&mut [0; 1]).unwrap()
    });
    assert_eq!(ended.await.unwrap(), 0);
}
