//! A round trip through the store: a separate client puts an object, reads it back over the transport, compares it and removes it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::commands::error::{Exit, Failure, chain};
use crate::commands::node_failure::{self, ClientOrigins};
use crate::engine::base::ObjectKey;
use crate::engine::env::{Env, RealEnv};
use crate::engine::store::{ClientConfig, PutOutcome, StoreClient, StoreClientBuilder, StoreError, payload};
use crate::engine::sys::memory::Memory;
use crate::engine::wire::types::ReplicateConfig;

/// Object size in bytes: a few dozen KV-cache pages.
const OBJECT_BYTES: usize = 1 << 20;

/// The result of a round trip.
#[derive(Clone, Debug, Serialize)]
pub struct RoundTrip {
    pub bytes: u64,
    pub put_ms: f64,
    pub get_ms: f64,
    /// Total duration of put, get, comparison and removal.
    pub total_ms: f64,
}

/// Performs a round trip with a client with `config`.
///
/// # Errors
/// A step fails, or the object that is read back differs.
pub async fn round_trip(config: &ClientConfig, origins: &ClientOrigins) -> Result<RoundTrip, Failure> {
    let env = RealEnv::new();
    let client = StoreClientBuilder::from(config.clone()).start(env.clone()).await;
    let client = client.map_err(|error| node_failure::client(config, origins, error))?;
    let checked = steps(&env, &client).await;
    client.stop().await;
    checked
}

async fn steps(env: &RealEnv, client: &StoreClient<RealEnv>) -> Result<RoundTrip, Failure> {
    let key = ObjectKey::from(format!("mcctl-up-{:016x}", env.rng()).as_str());
    let bytes = payload(env.rng(), OBJECT_BYTES);
    let failed = |step: &'static str| {
        move |error: StoreError| {
            Failure::new(Exit::No, "the store is up, but the round trip failed").tried(step).found(chain(&error))
        }
    };
    let began = env.now();
    let value = Arc::new(Memory::from_vec(bytes.clone())).whole();
    let outcome = client.put(&key, value, &ReplicateConfig::default()).await.map_err(failed("put an object"))?;
    if outcome == PutOutcome::AlreadyExists {
        return Err(Failure::new(Exit::No, "the store is up, but it is not empty")
            .found(format!("object {key} already exists")));
    }
    let put = env.now().since(began);
    let get_began = env.now();
    let read = client.get(&key).await.map_err(failed("get the object"))?;
    let get = env.now().since(get_began);
    if read != bytes {
        let at = read.iter().zip(&bytes).position(|(a, b)| a != b).unwrap_or(read.len().min(bytes.len()));
        return Err(Failure::new(Exit::No, "the store is up, but the object that was read back differs")
            .found(format!("read {} of {} bytes; first difference at byte {at}", read.len(), bytes.len())));
    }
    client.remove(&key, true).await.map_err(failed("remove the object"))?;
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    Ok(RoundTrip { bytes: bytes.len() as u64, put_ms: ms(put), get_ms: ms(get), total_ms: ms(env.now().since(began)) })
}
