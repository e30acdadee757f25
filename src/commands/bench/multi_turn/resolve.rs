//! Resolves flags that depend on each other, and reads the model name from the server. Runs once,
//! before the flags are used.

use std::time::Duration;

use crate::commands::bench::env;
use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::args::{Api, Backend, DatasetName};
use crate::commands::cli::error::Failure;
use crate::commands::cli::output;
use crate::commands::cli::runtime;
use crate::engine::load::server::{NotReady, wait_until_ready};

/// Default for `--max-parallel`, the same as in `bench_multiturn.py`.
const IN_FLIGHT: u32 = 128;
/// Default for `--num-prompts`, the same as in `bench_serving`.
const PROMPTS: u32 = 1000;
/// Default for `--warmup-requests`, the same as in `bench_serving`.
const WARMUP: u32 = 1;

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
        dataset.count_prompts = self.output.output_details && self.output.output_file.is_some();
        if self.serving {
            dataset.num_prompts.get_or_insert(PROMPTS);
            if self.phases.phases.is_empty() {
                self.phases.warmup_requests.get_or_insert(WARMUP);
            }
            let name = *dataset.dataset_name.get_or_insert(DatasetName::Sharegpt);
            // For these datasets, SGLang's tools send only first turns without --enable-multiturn.
            dataset.first_turn_only |= !dataset.enable_multiturn && has_optional_turns(name);
        } else {
            // The number of live sessions limits the requests in flight.
            if self.workload.sessions.live_sessions.is_none() {
                self.load.max_parallel.get_or_insert(IN_FLIGHT);
            }
            // --backend indicates a bench_serving command line, where the default dataset is
            // ShareGPT. multi-turn sends all turns.
            if self.endpoint.backend.is_some() && dataset.dataset_name.is_none() {
                dataset.dataset_name = dataset.dataset_path.is_some().then_some(DatasetName::Sharegpt);
                // Without a file, send the same number of synthetic conversations.
                self.workload.num_clients =
                    dataset.num_prompts.filter(|prompts| *prompts > 0).or(self.workload.num_clients);
            }
        }
        self.resolve_multiturn()
    }

    /// Applies `--enable-multiturn`, a flag of SGLang's `benchmark/hicache/bench_serving.py`. As
    /// there, all turns are sent as chat.
    ///
    /// # Errors
    /// The dataset has no conversations with several turns.
    fn resolve_multiturn(&mut self) -> Result<(), Failure> {
        let dataset = &self.workload.dataset;
        if !dataset.enable_multiturn {
            return Ok(());
        }
        if !dataset.dataset_name.is_none_or(has_optional_turns) {
            return Err(Failure::usage("--enable-multiturn does not work with this dataset")
                .found("only sharegpt, custom, ultrachat and loogle need this flag")
                .next("drop --enable-multiturn; for generated conversations, use --gsp-num-turns"));
        }
        // That script also shuffles the conversations.
        self.workload.dataset.shuffle |= self.serving && !self.workload.dataset.disable_shuffle;
        // In that script, these backends use the chat route.
        let chat = matches!(self.endpoint.backend, None | Some(Backend::Sglang | Backend::Vllm | Backend::Lmdeploy));
        if self.serving && chat {
            self.endpoint.api = Api::Chat;
        }
        Ok(())
    }

    /// Waits for the server (`--ready-check-timeout-sec`), then reads its model and tokenizer names
    /// if they are not set.
    ///
    /// # Errors
    /// The server does not become ready in time.
    pub(super) fn query_server(&mut self) -> Result<(), Failure> {
        let target = self.endpoint.target()?;
        let server = self.server.server(&self.endpoint, &target, true)?;
        let wait = Duration::from_secs(self.endpoint.ready_check_timeout_sec.unwrap_or(0));
        if !wait.is_zero() {
            let on_wait = |reason: &NotReady| {
                let limit = wait.as_secs();
                let url = target.url();
                output::say(format!("waiting up to {limit} s for {url} to become ready: {reason}"));
            };
            let ready = runtime::block_on(0, async {
                Ok(wait_until_ready(&env(), &target, server.as_ref(), wait, on_wait).await)
            })?;
            ready.map_err(|reason| {
                Failure::unreachable(format!("the server is not ready: {}", target.url()))
                    .tried(format!("GET /v1/models for {} s (--ready-check-timeout-sec)", wait.as_secs()))
                    .found(reason.to_string())
                    .next("start the server, or specify the URL of a running one: --base-url http://HOST:PORT")
            })?;
        }
        let Some(server) = server else { return Ok(()) };
        let names_model = matches!(self.endpoint.api, Api::Chat | Api::Completions | Api::Truss);
        if names_model && self.endpoint.model_name().is_none() {
            self.endpoint.served_model_name = runtime::block_on(0, async { Ok(server.served_model(&env()).await) })?;
        }
        let is_serving_command_line = self.serving || self.endpoint.backend.is_some();
        if is_serving_command_line && self.workload.dataset.tokenizer.is_none() {
            let path = runtime::block_on(0, async { Ok(server.served_tokenizer(&env()).await) })?;
            // As in bench_serving, /model_info takes precedence over --model.
            self.workload.dataset.models.splice(..0, path);
        }
        Ok(())
    }
}

/// Returns whether `bench serving` sends either the first turn or all turns of a dataset.
fn has_optional_turns(name: DatasetName) -> bool {
    use DatasetName::{Custom, Loogle, Sharegpt, Ultrachat};
    matches!(name, Sharegpt | Custom | Ultrachat | Loogle)
}
