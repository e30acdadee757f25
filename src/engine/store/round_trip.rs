//! A round trip through the store: a client puts an object, reads it back over the transport,
//! compares it and removes it.

use std::sync::Arc;
use std::time::Duration;

use crate::{PutOutcome, StoreClient, StoreError, payload};
use mcctl_base::ObjectKey;
use mcctl_sys::env::Env;
use mcctl_sys::memory::Memory;
use mcctl_wire::types::ReplicateConfig;

/// Object size in bytes: a few dozen KV-cache pages.
const OBJECT_BYTES: usize = 1 << 20;

/// The result of a round trip.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// Object size in bytes.
    pub bytes: u64,
    pub put: Duration,
    pub get: Duration,
    /// Total duration of put, get, comparison and removal.
    pub total: Duration,
}

/// Why a round trip failed.
#[derive(Debug, thiserror::Error)]
pub enum RoundTripError {
    /// A call failed. `step` says what was tried.
    #[error("cannot {step}")]
    Call { step: &'static str, source: StoreError },
    /// The key, which is random, already exists.
    #[error("object {0} already exists")]
    NotEmpty(ObjectKey),
    /// The bytes that were read back differ.
    #[error("read {read} of {bytes} bytes; first difference at byte {at}")]
    Differs { read: usize, bytes: usize, at: usize },
}

/// Performs a round trip with `client`.
///
/// # Errors
/// A step fails, or the object that is read back differs.
pub async fn round_trip<E: Env>(env: &E, client: &StoreClient<E>) -> Result<RoundTrip, RoundTripError> {
    let key = ObjectKey::from(format!("mcctl-up-{:016x}", env.rng()).as_str());
    let bytes = payload(env.rng(), OBJECT_BYTES);
    let failed = |step: &'static str| move |source: StoreError| RoundTripError::Call { step, source };
    let began = env.now();
    let value = Arc::new(Memory::from_vec(bytes.clone())).whole();
    let outcome = client.put(&key, value, &ReplicateConfig::default()).await.map_err(failed("put an object"))?;
    if outcome == PutOutcome::AlreadyExists {
        return Err(RoundTripError::NotEmpty(key));
    }
    let put = env.now().since(began);
    let get_began = env.now();
    let read = client.get(&key).await.map_err(failed("get the object"))?;
    let get = env.now().since(get_began);
    if read != bytes {
        let at = read.iter().zip(&bytes).position(|(a, b)| a != b).unwrap_or(read.len().min(bytes.len()));
        return Err(RoundTripError::Differs { read: read.len(), bytes: bytes.len(), at });
    }
    client.remove(&key, true).await.map_err(failed("remove the object"))?;
    Ok(RoundTrip { bytes: bytes.len() as u64, put, get, total: env.now().since(began) })
}
