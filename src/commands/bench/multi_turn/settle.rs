//! Resolves flags that depend on each other, and asks the server for its model. Runs once, before anything is built from the flags.

use std::time::Duration;

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::args::{Api, Name};
use crate::commands::error::Failure;
use crate::commands::output;
use crate::commands::runtime;
use crate::engine::env::{Env, RealEnv, deadline};
use crate::engine::load::server::Server;
use crate::engine::load::target::{Target, reach};

/// Default of `--max-parallel`, as in `bench_multiturn.py`.
const IN_FLIGHT: u32 = 128;
/// Default of `--num-prompts`, as in `bench_serving`.
const PROMPTS: u32 = 1000;
/// Default of `--warmup-requests`, as in `bench_serving`.
const WARMUP: u32 = 1;
/// One question to a server that starts takes no longer.
const QUESTION: Duration = Duration::from_secs(5);
/// Between two of them.
const AGAIN: Duration = Duration::from_secs(1);

impl Args {
    /// Put into the flags what follows from others.
    ///
    /// # Errors
    /// A flag, a backend or a dataset is refused.
    pub(super) fn settle(&mut self) -> Result<(), Failure> {
        self.accepted.refuse()?;
        if let Some(name) = self.workload.dataset.dataset_name {
            name.playable()?;
        }
        if let Some(backend) = self.endpoint.backend {
            backend.measurable()?;
            self.endpoint.api = backend.api();
        }
        self.profile.agree()?;
        let named = [self.endpoint.model.as_ref(), self.workload.model_path.as_ref()];
        let dataset = &mut self.workload.dataset;
        dataset.models = named.into_iter().flatten().cloned().collect();
        dataset.serving = self.serving;
        if self.serving {
            dataset.num_prompts.get_or_insert(PROMPTS);
            if self.phases.phases.is_empty() {
                self.phases.warmup_requests.get_or_insert(WARMUP);
            }
            let name = *dataset.dataset_name.get_or_insert(Name::Sharegpt);
            // bench_serving sends only first turns of these.
            dataset.first_turn_only |= matches!(name, Name::Sharegpt | Name::Custom);
        } else {
            self.load.max_parallel.get_or_insert(IN_FLIGHT);
            // A line of bench_serving: its default dataset is ShareGPT. Here all turns are sent.
            if self.endpoint.backend.is_some() && dataset.dataset_name.is_none() {
                dataset.dataset_name = dataset.dataset_path.is_some().then_some(Name::Sharegpt);
                // Without a file the conversations are made up: as many.
                self.workload.num_clients =
                    dataset.num_prompts.filter(|prompts| *prompts > 0).unwrap_or(self.workload.num_clients);
            }
        }
        Ok(())
    }

    /// Wait for the server (`--ready-check-timeout-sec`), and ask it for the model's name and tokenizer if none is given.
    ///
    /// # Errors
    /// It is not ready in time.
    pub(super) fn ask_server(&mut self) -> Result<(), Failure> {
        let target = self.endpoint.target()?;
        let server = self.server.server(&self.endpoint, &target, true)?;
        let wait = Duration::from_secs(self.endpoint.ready_check_timeout_sec.unwrap_or(0));
        if !wait.is_zero() {
            wait_until_ready(&target, server.as_ref(), wait)?;
        }
        let Some(server) = server else { return Ok(()) };
        let names_model = matches!(self.endpoint.api, Api::Chat | Api::Completions | Api::Truss);
        if names_model && self.endpoint.model_name().is_none() {
            let models =
                runtime::block_on(0, async { Ok(deadline(&RealEnv::new(), QUESTION, server.models()).await) })?;
            self.endpoint.served_model_name = models.ok().and_then(Result::ok).and_then(|models| models.first);
        }
        let is_line_of_serving = self.serving || self.endpoint.backend.is_some();
        if is_line_of_serving && self.workload.dataset.tokenizer.is_none() {
            let told =
                runtime::block_on(0, async { Ok(deadline(&RealEnv::new(), QUESTION, server.tokenizer()).await) })?;
            // As in bench_serving: /model_info comes before --model.
            if let Some(told) = told.ok().flatten() {
                self.workload.dataset.models.insert(0, told);
            }
        }
        Ok(())
    }
}

/// Ask for the models until they come.
fn wait_until_ready(target: &Target, server: Option<&Server>, wait: Duration) -> Result<(), Failure> {
    runtime::block_on(0, async {
        let env = RealEnv::new();
        let begun = env.now();
        let mut told = false;
        loop {
            let found = match server {
                Some(server) => match deadline(&env, QUESTION, server.models()).await {
                    Ok(Ok(models)) if models.ready => return Ok(()),
                    Ok(Ok(_)) => "it is not ready yet (5xx)".to_owned(),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("no answer within {QUESTION:?}"),
                },
                None => match reach(&env, target).await {
                    Ok(()) => return Ok(()),
                    Err(why) => why,
                },
            };
            if env.now().since(begun) >= wait {
                return Err(Failure::unreachable(format!("the server is not ready: {}", target.url()))
                    .tried(format!("to get /v1/models for {} s (--ready-check-timeout-sec)", wait.as_secs()))
                    .found(found)
                    .next("start the server, or name the one that runs: --base-url http://HOST:PORT"));
            }
            if !std::mem::replace(&mut told, true) {
                output::say(format!("waiting up to {} s for {}: {found}", wait.as_secs(), target.url()));
            }
            env.sleep(AGAIN).await;
        }
    })
}
