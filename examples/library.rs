//! A store and a load test in one process, with the engine as a library:
//! `cargo run --example library`.
//!
//! Starts a master with its admin port, a node that contributes memory, and a client. Then a
//! simulated SGLang endpoint, and a bench schedule that offers it two request rates.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use mcctl::engine::admin::AdminClient;
use mcctl::engine::base::{ByteSize, HostPort, ObjectKey};
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::HttpAccess;
use mcctl::engine::load::answer::Dialect;
use mcctl::engine::load::goals::GoalTracker;
use mcctl::engine::load::plan::{Measurement, MeasurementKind};
use mcctl::engine::load::session::LoadEndpoint;
use mcctl::engine::load::sweep::{Sweep, SweepResult, SweepTerms};
use mcctl::engine::load::target::LoadTarget;
use mcctl::engine::load::workload::Synthetic;
use mcctl::engine::load::{Distribution, Seed};
use mcctl::engine::master::process::{MasterProcess, MasterProcessConfig};
use mcctl::engine::sim;
use mcctl::engine::store::service::{StoreService, StoreServiceConfig};
use mcctl::engine::store::{NodeConfig, StoreClient};
use mcctl::engine::sys::Memory;
use mcctl::engine::wire::types::ReplicateConfig;
use tokio::sync::mpsc;

/// Port 0 selects a free port.
fn here(port: u16) -> HostPort {
    HostPort::new("127.0.0.1", port)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    store().await?;
    load_test().await
}

/// Puts and gets an object, and lists the keys of the master.
async fn store() -> Result<(), Box<dyn Error>> {
    let env = RealEnv::new();
    // A master with its admin port, as `mcctl serve master` runs it.
    let master = MasterProcess::start(MasterProcessConfig::new(here(0), here(0))).await?;

    // A node with a REST port, as `mcctl serve store` runs it. The name's host must be reachable by
    // the other processes of the store.
    let settings = StoreClient::builder(master.rpc.clone()).local_hostname("127.0.0.1");
    let node = NodeConfig { client: settings.clone().config(), segment_bytes: ByteSize(64 * ByteSize::MIB) };
    let service = StoreServiceConfig { node, rest: here(0), client_http: None, access: HttpAccess::default() };
    let node = StoreService::start(service, env.clone()).await?;
    println!("node {} with REST port http://{}", node.node().name(), node.rest_at());

    let client = settings.start(env).await?;
    let key = ObjectKey::from("greeting");
    let value = Arc::new(Memory::from_vec(b"hello".to_vec())).whole();
    client.put(&key, value, &ReplicateConfig::default()).await?;
    println!("read {} bytes", client.get(&key).await?.len());

    let mut keys = AdminClient::new(master.admin_at.clone(), Duration::from_secs(10))?.keys().await?;
    while let Some(key) = keys.next().await? {
        println!("key {key}");
    }

    client.stop().await;
    node.stop().await;
    master.stop().await?;
    Ok(())
}

/// Offers two request rates to an endpoint.
async fn load_test() -> Result<(), Box<dyn Error>> {
    let env = RealEnv::new();
    let endpoint = sim::start(env.clone(), &here(0), sim::Config::small(), None).await?;
    let number = |value: u32| Distribution::Constant(f64::from(value));
    let side = |seed| {
        let workload = Synthetic::new(3, number(2), number(20), number(4), Seed(seed));
        LoadEndpoint::new("A", LoadTarget::new(endpoint.at().clone(), Dialect::Generate), Box::new(workload))
    };
    let rates = Sweep::Rate(vec![50.0, 100.0]);
    let measurement = Measurement::new(MeasurementKind::Sweep(rates.clone()), vec![side(1), side(2)]);
    measurement.check_reachable(&env).await?;
    let session = measurement.plan(&env).await?.session;
    let mut goals = GoalTracker::new(&["ttft:60000".parse()?]);
    let (_stop, mut stopped) = mpsc::channel(1);
    let executed = session.execute(env, &mut stopped, &mut goals).await;
    let terms = SweepTerms { share_to_pass: Some(0.9), steady_ratio: 0.8 };
    let result = SweepResult::of(&rates, &executed.passes, &goals.passes, terms, executed.stopped);
    for point in &result.points {
        println!("{} requests/s: mean TTFT {:.1} ms", point.load, point.mean_ttft_ms.unwrap_or(f64::NAN));
    }
    endpoint.stop().await;
    Ok(())
}
