//! `mcctl up --with-sim`: a simulated endpoint on the store, small enough that a minute of load shows all three tiers.

use serde::Serialize;

use crate::commands::error::Failure;
use crate::commands::listen::Listen;
use crate::commands::output;
use crate::commands::serve::node::{self, NodePlan};
use crate::commands::serve::sim::{self, WARNING};
use crate::engine::base::ByteSize;
use crate::engine::env::RealEnv;
use crate::engine::sim::{Config, Running};
use crate::engine::store::Node;

/// Tokens on the device.
const DEVICE_TOKENS: u64 = 16_384;
/// What the conversations that are put on it come to is some 55,000 tokens: more than device and host hold.
const LOAD: &str =
    "--num-clients 24 --num-rounds 4 --request-length 512 --output-length 64 --request-rate 6 --max-parallel 16";

/// A simulator that runs, and the client through which it uses the store.
pub struct Sim {
    running: Running,
    client: Node<RealEnv>,
}

/// What is said of it.
#[derive(Debug, Serialize)]
pub struct SimDocument {
    /// Always.
    simulator: bool,
    /// Where it is.
    url: String,
    /// What puts load on it.
    bench: String,
}

impl Sim {
    /// Start it at `listen`, on the store that the node of `plan` is in.
    ///
    /// # Errors
    /// No port, or no client.
    pub async fn start(plan: &NodePlan, listen: &Listen, quiet: bool) -> Result<Sim, Failure> {
        if !quiet {
            output::say(format!("note: --with-sim: {WARNING}"));
        }
        let plan = NodePlan { segment: ByteSize(0), ..plan.clone() };
        // The node has said what there is to warn of.
        let (config, _) = node::config(&plan);
        let client = Node::start(config, RealEnv::new()).await.map_err(|error| node::failure(&plan, error))?;
        let small = Config::small();
        let host_tokens = 2 * DEVICE_TOKENS + small.page_size;
        let config = Config { device_tokens: DEVICE_TOKENS, host_tokens, context_length: DEVICE_TOKENS, ..small };
        match sim::start(&config, Some(&client), listen).await {
            Ok(running) => Ok(Sim { running, client }),
            Err(failure) => {
                client.stop().await;
                Err(failure)
            }
        }
    }

    /// For scripts.
    pub fn document(&self, program: &str) -> SimDocument {
        SimDocument { simulator: true, url: self.url(), bench: self.bench(program) }
    }

    /// For people.
    pub fn text(&self, program: &str) -> String {
        format!(
            "# a SIMULATED SGLang endpoint on this store: L1 {DEVICE_TOKENS} tokens, L2 twice that, L3 the store\n{}\n\n\
             # conversations that outgrow L1 and L2: which tier answers, turn by turn\n{}\n\n",
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

    /// Stop it.
    pub async fn stop(self) {
        self.running.stop().await;
        self.client.stop().await;
    }
}
