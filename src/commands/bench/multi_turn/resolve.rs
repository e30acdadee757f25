//! Resolves flags that depend on each other, and reads the model name from the server. Runs once, before the flags are used.

use std::time::Duration;

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::args::{Api, DatasetName};
use crate::commands::error::Failure;
use crate::commands::output;
use crate::commands::runtime;
use crate::engine::env::{Env, RealEnv, deadline};
use crate::engine::load::server::ServerClient;
use crate::engine::load::target::{LoadTarget, check_reachable};

/// Default for `--max-parallel`, the same as in `bench_multiturn.py`.
const IN_FLIGHT: u32 = 128;
/// Default for `--num-prompts`, the same as in `bench_serving`.
const PROMPTS: u32 = 1000;
/// Default for `--warmup-requests`, the same as in `bench_serving`.
const WARMUP: u32 = 1;
/// Timeout for one request to a server that is starting.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two requests.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Args {
    /// Sets the flags that depend on other flags.
    ///
    /// # Errors
    /// A flag, a backend or a dataset is not supported.
    pub(super) fn resolve_flags(&mut self) -> Result<(), Failure> {
        self.accepted.reject()?;
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
            let name = *dataset.dataset_name.get_or_insert(DatasetName::Sharegpt);
            // For these datasets, bench_serving sends only first turns.
            dataset.first_turn_only |= matches!(name, DatasetName::Sharegpt | DatasetName::Custom);
        } else {
            self.load.max_parallel.get_or_insert(IN_FLIGHT);
            // --backend indicates a bench_serving command line, where the default dataset is ShareGPT. multi-turn sends all turns.
            if self.endpoint.backend.is_some() && dataset.dataset_name.is_none() {
                dataset.dataset_name = dataset.dataset_path.is_some().then_some(DatasetName::Sharegpt);
                // Without a file, send the same number of synthetic conversations.
                self.workload.num_clients =
                    dataset.num_prompts.filter(|prompts| *prompts > 0).unwrap_or(self.workload.num_clients);
            }
        }
        Ok(())
    }

    /// Waits for the server (`--ready-check-timeout-sec`), then reads its model and tokenizer names if they are not set.
    ///
    /// # Errors
    /// The server does not become ready in time.
    pub(super) fn query_server(&mut self) -> Result<(), Failure> {
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
                runtime::block_on(0, async { Ok(deadline(&RealEnv::new(), REQUEST_LIMIT, server.models()).await) })?;
            self.endpoint.served_model_name = models.ok().and_then(Result::ok).and_then(|models| models.first);
        }
        let is_serving_command_line = self.serving || self.endpoint.backend.is_some();
        if is_serving_command_line && self.workload.dataset.tokenizer.is_none() {
            let path =
                runtime::block_on(0, async { Ok(deadline(&RealEnv::new(), REQUEST_LIMIT, server.tokenizer()).await) })?;
            // As in bench_serving, /model_info takes precedence over --model.
            if let Some(path) = path.ok().flatten() {
                self.workload.dataset.models.insert(0, path);
            }
        }
        Ok(())
    }
}

/// Polls the model list until the server is ready.
fn wait_until_ready(target: &LoadTarget, server: Option<&ServerClient>, wait: Duration) -> Result<(), Failure> {
    runtime::block_on(0, async {
        let env = RealEnv::new();
        let begun = env.now();
        let mut is_logged = false;
        loop {
            let found = match server {
                Some(server) => match deadline(&env, REQUEST_LIMIT, server.models()).await {
                    Ok(Ok(models)) if models.ready => return Ok(()),
                    Ok(Ok(_)) => "the server is not ready yet (HTTP 5xx)".to_owned(),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("no response within {REQUEST_LIMIT:?}"),
                },
                None => match check_reachable(&env, target).await {
                    Ok(()) => return Ok(()),
                    Err(error) => error.to_string(),
                },
            };
            if env.now().since(begun) >= wait {
                return Err(Failure::unreachable(format!("the server is not ready: {}", target.url()))
                    .tried(format!("GET /v1/models for {} s (--ready-check-timeout-sec)", wait.as_secs()))
                    .found(found)
                    .next("start the server, or specify the URL of a running one: --base-url http://HOST:PORT"));
            }
            if !std::mem::replace(&mut is_logged, true) {
                output::say(format!(
                    "waiting up to {} s for {} to become ready: {found}",
                    wait.as_secs(),
                    target.url()
                ));
            }
            env.sleep(RETRY_AFTER).await;
        }
    })
}
