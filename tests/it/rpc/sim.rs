//! RPC client and server as hosts of a simulated network with a virtual clock.

use std::sync::Arc;
use std::time::Duration;

use mcctl::engine::base::{HostPort, Mono};
use mcctl::engine::env::Env;
use mcctl::engine::rpc::connection::{SMALL_BYTES_MAX, UNFINISHED_BYTES_MAX};
use mcctl::engine::rpc::{CallError, RpcClient, RpcServer, ServerConfig, Timeouts};
use mcctl::engine::wire::frame::RequestHeader;
use mcctl::engine::wire::{MasterCalls, Method};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use turmoil::net::TcpStream;

use super::Ready;
use crate::sim::SimEnv;
use mcctl::engine::wire::Release;

fn simulation(seed: u64) -> turmoil::Sim<'static> {
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(Duration::from_secs(120))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(20))
        .build();
    sim.host("master", || async {
        let config = ServerConfig {
            listen: HostPort::new("0.0.0.0", 50051),
            threads: 0,
            idle_timeout: None,
            client_release: Release::LATEST,
        };
        let _server = RpcServer::start(config, SimEnv::new(1), Arc::new(Ready("2.0.0"))).await?;
        std::future::pending::<()>().await;
        Ok(())
    });
    sim
}

fn client(env: &SimEnv) -> MasterCalls<RpcClient<SimEnv>> {
    let timeouts = Timeouts { connect: Duration::from_secs(3), call: Duration::from_secs(10) };
    MasterCalls(RpcClient::new(env.clone(), HostPort::new("master", 50051), timeouts))
}

#[test]
fn a_partition_causes_a_timeout_and_calls_work_after_it() {
    let mut sim = simulation(7);
    sim.client("client", async {
        let env = SimEnv::new(2);
        let client = client(&env);
        client.service_ready().await?.expect("ready");
        turmoil::partition("client", "master");
        let before = env.now();
        let error = client.service_ready().await.expect_err("cut off");
        assert!(matches!(error, CallError::Timeout { .. }), "{error}");
        assert_eq!(env.now().since(before).as_secs(), 10);
        turmoil::repair("client", "master");
        let again = self::client(&env);
        again.service_ready().await?.expect("ready again");
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_crashed_server_fails_the_call_and_serves_after_its_restart() {
    let mut sim = simulation(8);
    sim.client("client", async {
        let env = SimEnv::new(3);
        let client = client(&env);
        let mut answered = 0;
        while env.now() < Mono::from_ms(12_000) {
            match client.service_ready().await {
                Ok(answer) => answered += usize::from(answer.is_ok()),
                Err(_) => env.sleep(Duration::from_millis(200)).await,
            }
        }
        client.service_ready().await?.expect("the restarted server answers");
        assert!(answered > 100, "{answered}");
        Ok(())
    });
    for _ in 0..5_000 {
        sim.step().unwrap();
    }
    sim.crash("master");
    for _ in 0..500 {
        sim.step().unwrap();
    }
    sim.bounce("master");
    sim.run().unwrap();
}

/// The header of a `ServiceReady` request with a body of `length` bytes, which the server ignores.
fn header(length: u32) -> [u8; 20] {
    RequestHeader { seq: 0, function_id: Method::ServiceReady.id(), length, attachment: 0 }.encode()
}

/// Waits until the server closes `stream` or answers. Returns the time and the number of bytes
/// read.
async fn wait_for_answer(env: &SimEnv, stream: &mut TcpStream) -> (Duration, usize) {
    let began = env.now();
    let read = stream.read(&mut [0; 1024]).await.unwrap_or(0);
    (env.now().since(began), read)
}

#[test]
fn an_unfinished_request_ends_its_connection_after_30_seconds() {
    let mut sim = simulation(9);
    sim.client("client", async {
        let env = SimEnv::new(4);
        for part in [&header(8)[..7], &header(8), &header(1 << 20)] {
            let mut stream = TcpStream::connect(("master", 50051)).await?;
            stream.write_all(part).await?;
            let (after, read) = wait_for_answer(&env, &mut stream).await;
            assert_eq!((after.as_secs(), read), (30, 0), "{} bytes", part.len());
        }
        // Between requests a connection may be silent.
        let mut idle = TcpStream::connect(("master", 50051)).await?;
        idle.write_all(&header(0)).await?;
        assert!(wait_for_answer(&env, &mut idle).await.1 > 0);
        env.sleep(Duration::from_secs(25)).await;
        idle.write_all(&header(0)).await?;
        assert!(wait_for_answer(&env, &mut idle).await.1 > 0);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_request_sent_byte_by_byte_ends_its_connection_after_30_seconds() {
    let mut sim = simulation(11);
    sim.client("client", async {
        let env = SimEnv::new(4);
        let mut slow = TcpStream::connect(("master", 50051)).await?;
        slow.write_all(&header(0)).await?;
        assert!(wait_for_answer(&env, &mut slow).await.1 > 0);
        env.sleep(Duration::from_secs(20)).await;
        let began = env.now();
        slow.write_all(&header(64)).await?;
        while env.now().since(began) < Duration::from_secs(25) {
            env.sleep(Duration::from_secs(5)).await;
            slow.write_all(&[0]).await?;
        }
        assert_eq!(wait_for_answer(&env, &mut slow).await.1, 0);
        assert_eq!(env.now().since(began).as_secs(), 30);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn large_requests_share_a_budget_and_small_ones_need_none() {
    let mut sim = simulation(10);
    sim.client("client", async {
        let env = SimEnv::new(5);
        let mut unfinished = Vec::new();
        for _ in 0..UNFINISHED_BYTES_MAX / (64 << 20) {
            let mut stream = TcpStream::connect(("master", 50051)).await?;
            stream.write_all(&header((64 << 20) - 20)).await?;
            unfinished.push(stream);
        }
        env.sleep(Duration::from_secs(1)).await;
        let mut large = TcpStream::connect(("master", 50051)).await?;
        let mut small = TcpStream::connect(("master", 50051)).await?;
        let length = 2 * SMALL_BYTES_MAX;
        let send = async {
            large.write_all(&header(u32::try_from(length).unwrap())).await.unwrap();
            large.write_all(&vec![0; length]).await.unwrap();
            wait_for_answer(&env, &mut large).await
        };
        let began = env.now();
        let ((_, answered), _) = tokio::join!(send, async {
            small.write_all(&header(0)).await.unwrap();
            let (after, answered) = wait_for_answer(&env, &mut small).await;
            assert!(after < Duration::from_secs(1) && answered > 0);
        });
        assert!(answered > 0, "answered once the others are dropped");
        assert!((25..=31).contains(&env.now().since(began).as_secs()));
        Ok(())
    });
    sim.run().unwrap();
}
