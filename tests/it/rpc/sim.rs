//! The same server and client as hosts of a simulated network with a virtual clock.

use std::sync::Arc;
use std::time::Duration;

use mcctl::engine::base::{HostPort, Mono};
use mcctl::engine::env::Env;
use mcctl::engine::rpc::{CallError, RpcClient, RpcServer, ServerConfig, Timeouts};
use mcctl::engine::wire::MasterCalls;

use super::Ready;
use crate::sim::SimEnv;

fn simulation(seed: u64) -> turmoil::Sim<'static> {
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(Duration::from_secs(120))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(20))
        .build();
    sim.host("master", || async {
        let config = ServerConfig { listen: HostPort::new("0.0.0.0", 50051), threads: 0, idle_timeout: None };
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
fn a_partition_turns_into_a_timeout_and_its_end_into_answers() {
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
fn a_server_that_crashes_fails_the_call_under_way_and_serves_after_its_restart() {
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
