//! A master, a node that contributes memory and a client, in one process: `cargo run --example library`.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::error::Error;
use std::sync::Arc;

use mcctl::engine::base::{ByteSize, HostPort, ObjectKey};
use mcctl::engine::env::RealEnv;
use mcctl::engine::master::{MasterConfig, MasterServer};
use mcctl::engine::store::service::{StoreService, StoreServiceConfig};
use mcctl::engine::store::{NodeConfig, StoreClient};
use mcctl::engine::sys::Memory;
use mcctl::engine::wire::types::ReplicateConfig;

/// Port 0 selects a free port.
fn here(port: u16) -> HostPort {
    HostPort::new("127.0.0.1", port)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let env = RealEnv::new();
    let master = MasterServer::start(MasterConfig::new(here(0)), env.clone()).await?;

    // A node with a REST port, as `mcctl serve store` runs it. The name's host must be reachable by the other processes of the store.
    let settings = StoreClient::builder(here(master.rpc_port())).local_hostname("127.0.0.1");
    let node = NodeConfig { client: settings.clone().config(), segment_bytes: ByteSize(64 * ByteSize::MIB) };
    let service = StoreServiceConfig { node, rest: here(0), client_http: None };
    let node = StoreService::start(service, env.clone()).await?;
    println!("node {} with REST port http://{}", node.node().name(), node.rest_at());

    let client = settings.start(env).await?;
    let key = ObjectKey::from("greeting");
    let value = Arc::new(Memory::from_vec(b"hello".to_vec())).whole();
    client.put(&key, value, &ReplicateConfig::default()).await?;
    println!("read {} bytes", client.get(&key).await?.len());

    client.stop().await;
    node.stop().await;
    master.stop().await;
    Ok(())
}
