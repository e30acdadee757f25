//! `mcctl up --with-sim`: a simulated server on the store, small enough that a minute of load uses
//! all three tiers.

use serde::Serialize;

use crate::commands::cli::error::Failure;
use crate::commands::cli::listen::ListenAddress;
use crate::commands::cli::origin::ClientOrigins;
use crate::commands::cli::output;
use crate::commands::failure::node as node_failure;
use crate::commands::serve::simulator::{self, WARNING};
use crate::engine::env::RealEnv;
use crate::engine::sim::{Config, RunningSimulator};
use crate::engine::store::{ClientConfig, StoreClient, StoreClientBuilder};

/// L1 size in tokens.
const DEVICE_TOKENS: u64 = 16_384;
/// Flags for a load of about 100,000 tokens in 50 seconds, twice what L1 and L2 can hold. The saved
/// latency is estimated from the computed prompts. With fewer conversations, or with questions of
/// the same length, its interval would include 0.
const LOAD: &str = "--num-clients 72 --num-rounds 4 --request-length 512 --range-ratio 0.25 --output-length 64 \
    --request-rate 6 --max-parallel 16";

/// A running simulator and its store client.
pub(super) struct LocalSim {
    running: RunningSimulator,
    client: StoreClient<RealEnv>,
}

/// The simulator in the JSON document.
#[derive(Debug, Serialize)]
pub(super) struct SimDocument {
    simulator: bool,
    url: String,
    /// A command line that generates load for the simulator.
    bench: String,
}

impl LocalSim {
    /// Starts a simulator at `listen`, with a client with `config`.
    ///
    /// # Errors
    /// The port cannot be bound, or the client cannot start.
    pub(super) async fn start(
        config: &ClientConfig,
        origins: &ClientOrigins,
        listen: &ListenAddress,
        quiet: bool,
    ) -> Result<LocalSim, Failure> {
        if !quiet {
            output::say(format!("note: --with-sim: {WARNING}"));
        }
        let client = StoreClientBuilder::from(config.clone()).start(RealEnv::new()).await;
        let client = client.map_err(|error| node_failure::client(config, origins, error))?;
        let small = Config::small();
        let host_tokens = 2 * DEVICE_TOKENS + small.page_size;
        let config = Config { device_tokens: DEVICE_TOKENS, host_tokens, context_length: DEVICE_TOKENS, ..small };
        match simulator::start(&config, Some(&client), listen).await {
            Ok(running) => Ok(LocalSim { running, client }),
            Err(failure) => {
                client.stop().await;
                Err(failure)
            }
        }
    }

    /// The simulator for the JSON document.
    pub(super) fn document(&self, program: &str) -> SimDocument {
        SimDocument { simulator: true, url: self.url(), bench: self.bench(program) }
    }

    /// The simulator for the text report.
    pub(super) fn text(&self, program: &str) -> String {
        format!(
            "# a SIMULATED SGLang server at {}: L1 {DEVICE_TOKENS} tokens, L2 twice that size, L3 in this store\n\
             # conversations that exceed L1 and L2; the report shows which tier serves each turn\n{}\n\n",
            self.url(),
            self.bench(program)
        )
    }

    fn url(&self) -> String {
        format!("http://{}", self.running.at())
    }

    fn bench(&self, program: &str) -> String {
        format!("{program} bench multi-turn --url {} {LOAD}", self.url())
    }

    /// Stops the simulator and its client.
    pub(super) async fn stop(self) {
        self.running.stop().await;
        self.client.stop().await;
    }
}
