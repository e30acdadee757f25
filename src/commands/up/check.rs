//! One object put, read back, compared and removed, by a client of its own: the bytes go over TCP as any client's do.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::commands::error::{Exit, Failure};
use crate::commands::serve::node::{self, NodePlan, chain};
use crate::engine::base::{ByteSize, ObjectKey};
use crate::engine::env::{Env, RealEnv};
use crate::engine::store::{Node, PutOutcome, StoreClient, StoreError, payload};
use crate::engine::sys::memory::Memory;
use crate::engine::wire::types::ReplicateConfig;

/// Size of the object, bytes: a few dozen pages of a KV cache.
const OBJECT_BYTES: usize = 1 << 20;

/// What the round trip showed.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// Size of the object, bytes.
    pub bytes: u64,
    /// Time of the put, ms.
    pub put_ms: f64,
    /// Time of the get, ms.
    pub get_ms: f64,
    /// Time of all four steps, ms.
    pub total_ms: f64,
}

/// Make the round trip through the store that the node of `plan` is in.
///
/// # Errors
/// A step failed, or other bytes came back.
pub async fn round_trip(plan: &NodePlan) -> Result<Checked, Failure> {
    let env = RealEnv::new();
    let plan = NodePlan { segment: ByteSize(0), ..plan.clone() };
    // The node has said what there is to warn of.
    let (config, _) = node::config(&plan);
    let client = Node::start(config, env.clone()).await.map_err(|error| node::failure(&plan, error))?;
    let checked = steps(&env, client.client()).await;
    client.stop().await;
    checked
}

async fn steps(env: &RealEnv, client: &StoreClient<RealEnv>) -> Result<Checked, Failure> {
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
        return Err(Failure::new(Exit::No, "the store is up, but not empty").found(format!("object {key} in it")));
    }
    let put = env.now().since(began);
    let asked = env.now();
    let back = client.get(&key).await.map_err(failed("get it back"))?;
    let get = env.now().since(asked);
    if back != bytes {
        let at = back.iter().zip(&bytes).position(|(a, b)| a != b);
        return Err(Failure::new(Exit::No, "the store is up, but other bytes came back than were put").found(format!(
            "{} of {} bytes, the first other one at {at:?}",
            back.len(),
            bytes.len()
        )));
    }
    client.remove(&key, true).await.map_err(failed("remove it"))?;
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    Ok(Checked { bytes: bytes.len() as u64, put_ms: ms(put), get_ms: ms(get), total_ms: ms(env.now().since(began)) })
}
