//! The simulated SGLang server of `mcctl serve sim` and `mcctl up --with-sim`.

use crate::commands::cli::error::Failure;
use crate::commands::cli::listen::ListenAddress;
use crate::engine::env::RealEnv;
use crate::engine::sim::{self, Config, Storage};
use crate::engine::store::StoreClient;

/// Warning in the first line of output.
pub const WARNING: &str = "this is a SIMULATOR of an SGLang server: it does not run a model, responses are random text, and timings come from a cost model";

/// Starts a simulator that listens on `listen` and uses `client`'s store as L3.
///
/// # Errors
/// The port cannot be bound.
pub async fn start(
    config: &Config,
    client: Option<&StoreClient<RealEnv>>,
    listen: &ListenAddress,
) -> Result<sim::RunningSimulator, Failure> {
    let env = RealEnv::new();
    let storage = client.map(|client| Storage::new(env.clone(), client.clone(), config));
    sim::start(env, &listen.at, config.clone(), storage).await.map_err(|error| listen.http_failure(&error))
}
