//! How the client detects that the server has closed the connection, with a server that acts step
//! by step.
//!
//! The runtime has one thread, so none of the client's tasks run while a test does not await.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::rpc::{CallError, ConnectionError, RpcClient, Timeouts};
use mcctl_base::HostPort;
use mcctl_sys::env::{Env, Listener, Net, RealEnv};
use mcctl_wire::Method;
use mcctl_wire::frame::{REQUEST_HEADER_BYTES, RequestHeader, ResponseHeader, RpcErrc};
use mcctl_wire::method::Channel;

/// A limit that no test reaches.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum number of pauses until the kernel has delivered the end of a connection.
const PAUSES: u32 = 10_000;
const PAUSE: Duration = Duration::from_millis(1);

/// A server that accepts connections when a test does, and a client of it.
struct StepServer {
    listener: <<RealEnv as Env>::Net as Net>::Listener,
    client: RpcClient<RealEnv>,
}

impl StepServer {
    async fn start() -> StepServer {
        let env = RealEnv::new();
        let listener = env.net().listen(&HostPort::new("127.0.0.1", 0)).await.unwrap();
        let address = HostPort::new("127.0.0.1", listener.port());
        let client = RpcClient::new(env, address, Timeouts { connect: PATIENCE, call: PATIENCE });
        StepServer { listener, client }
    }

    /// Starts a call without arguments.
    fn start_call(&self) -> JoinHandle<Result<Bytes, CallError>> {
        let client = self.client.clone();
        tokio::spawn(async move { client.call(Method::ServiceReady, Vec::new()).await })
    }

    /// Starts a call over a new connection. Returns the call, and the server's side of the
    /// connection, which has read the request.
    async fn start_first_call(&mut self) -> (JoinHandle<Result<Bytes, CallError>>, ServerConnection) {
        let call = self.start_call();
        let stream = self.listener.accept().await.unwrap().0;
        let mut connection = ServerConnection { stream, seq: 0 };
        connection.read_request().await;
        (call, connection)
    }

    /// Carries out a call over a new connection.
    async fn connect(&mut self) -> ServerConnection {
        let (call, connection) = self.start_first_call().await;
        connection.respond();
        call.await.unwrap().unwrap();
        connection
    }

    /// Checks the connection until `losses` losses are counted. The runtime does not run in the
    /// meantime.
    fn wait_for_losses(&self, losses: u64) {
        for _ in 0..PAUSES {
            self.client.check_connection();
            if self.client.losses() == losses {
                return;
            }
            RealEnv::new().pause_thread(PAUSE);
        }
        panic!("{} losses instead of {losses}", self.client.losses());
    }
}

/// The server's side of a connection.
struct ServerConnection {
    stream: TcpStream,
    /// The number of the last request.
    seq: u32,
}

impl ServerConnection {
    async fn read_request(&mut self) {
        let mut header = [0; REQUEST_HEADER_BYTES];
        self.stream.read_exact(&mut header).await.unwrap();
        self.seq = RequestHeader::decode(&header).unwrap().seq;
    }

    /// Sends an empty result at once.
    fn respond(&self) {
        let response = ResponseHeader { error: RpcErrc::OK, seq: self.seq, length: 0, attachment: 0 }.encode();
        assert_eq!(self.stream.try_write(&response).unwrap(), response.len());
    }

    fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }
}

#[tokio::test]
async fn a_closed_connection_is_noticed_while_the_runtime_does_not_run() {
    let mut server = StepServer::start().await;
    server.client.check_connection();
    let connection = server.connect().await;
    server.client.check_connection();
    assert_eq!(server.client.losses(), 0);
    drop(connection);
    server.wait_for_losses(1);
    let _next = server.connect().await;
    server.client.check_connection();
    assert_eq!(server.client.losses(), 1, "the new connection is open");
}

#[tokio::test]
async fn a_reset_connection_is_noticed_while_the_runtime_does_not_run() {
    let mut server = StepServer::start().await;
    server.connect().await.reset();
    server.wait_for_losses(1);
}

#[tokio::test]
async fn a_loss_is_counted_once() {
    let mut server = StepServer::start().await;
    let (call, connection) = server.start_first_call().await;
    drop(connection);
    server.wait_for_losses(1);
    let error = call.await.unwrap().expect_err("the reader has found the end of the connection");
    assert!(matches!(error, CallError::Closed { why: ConnectionError::ClosedByPeer, .. }), "{error}");
    server.client.check_connection();
    assert_eq!(server.client.losses(), 1);
}

#[tokio::test]
async fn a_response_that_was_not_read_is_not_a_loss() {
    let mut server = StepServer::start().await;
    let (call, connection) = server.start_first_call().await;
    connection.respond();
    for _ in 0..20 {
        server.client.check_connection();
        RealEnv::new().pause_thread(PAUSE);
    }
    assert_eq!(server.client.losses(), 0);
    call.await.unwrap().unwrap();
    assert_eq!(server.client.losses(), 0);
}

#[tokio::test]
async fn a_response_before_the_close_is_returned() {
    let mut server = StepServer::start().await;
    let (call, connection) = server.start_first_call().await;
    connection.respond();
    drop(connection);
    server.wait_for_losses(1);
    call.await.unwrap().unwrap();
    assert_eq!(server.client.losses(), 1);
}
