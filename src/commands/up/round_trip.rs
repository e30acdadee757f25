//! The round trip of `up`: a separate client puts an object, reads it back and removes it.

use std::time::Duration;

use serde::Serialize;

use crate::commands::cli::error::{Exit, Failure, chain};
use crate::commands::cli::origin::ClientOrigins;
use crate::commands::failure::node as node_failure;
use crate::engine::env::RealEnv;
use crate::engine::store::round_trip::{self, RoundTrip, RoundTripError};
use crate::engine::store::{ClientConfig, StoreClientBuilder};

/// The result of a round trip, in the document of `up`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RoundTripDocument {
    pub bytes: u64,
    pub put_ms: f64,
    pub get_ms: f64,
    /// Total duration of put, get, comparison and removal.
    pub total_ms: f64,
}

impl From<RoundTrip> for RoundTripDocument {
    fn from(trip: RoundTrip) -> RoundTripDocument {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        RoundTripDocument { bytes: trip.bytes, put_ms: ms(trip.put), get_ms: ms(trip.get), total_ms: ms(trip.total) }
    }
}

/// Performs a round trip with a client with `config`.
///
/// # Errors
/// A step fails, or the object that is read back differs.
pub(super) async fn round_trip(config: &ClientConfig, origins: &ClientOrigins) -> Result<RoundTripDocument, Failure> {
    let env = RealEnv::new();
    let client = StoreClientBuilder::from(config.clone()).start(env.clone()).await;
    let client = client.map_err(|error| node_failure::client(config, origins, error))?;
    let checked = round_trip::round_trip(&env, &client).await;
    client.stop().await;
    checked.map(RoundTripDocument::from).map_err(|error| failure(&error))
}

fn failure(error: &RoundTripError) -> Failure {
    match error {
        RoundTripError::Call { step, source } => {
            Failure::new(Exit::No, "the store is up, but the round trip failed").tried(*step).found(chain(source))
        }
        RoundTripError::NotEmpty(_) => {
            Failure::new(Exit::No, "the store is up, but it is not empty").found(error.to_string())
        }
        RoundTripError::Differs { .. } => {
            Failure::new(Exit::No, "the store is up, but the object that was read back differs")
                .found(error.to_string())
        }
    }
}
