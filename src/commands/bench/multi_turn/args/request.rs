//! Flags for request fields other than the prompt.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::commands::bench::number::{self, NumberError};
use crate::engine::load::Seed;
use crate::engine::load::answer::Dialect;
use crate::engine::load::target::LoadTarget;
use crate::engine::load::workload::{AdapterPolicy, Adapters, LoadWorkload};

/// Bootstrap address expected by a decode server that uses the fake transfer backend.
const FAKE_BOOTSTRAP_HOST: &str = "2.2.2.2";

/// How requests are distributed across LoRA adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AdapterDistribution {
    /// A random adapter, each with the same probability
    Uniform,
    /// Each adapter in turn
    Distinct,
    /// Skewed toward the first adapters (--lora-zipf-alpha)
    Skewed,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Request")]
pub struct RequestArgs {
    /// Sampling temperature, 0 to 100
    #[arg(long, default_value_t = 0.0, value_name = "T", value_parser = temperature)]
    pub temperature: f64,
    /// Nucleus sampling (top-p): cumulative probability of the candidate tokens; omitted from the
    /// request if 1
    #[arg(long, default_value_t = 1.0, value_name = "P", value_parser = number::share)]
    pub top_p: f64,
    /// Let a response end early, at the end-of-sequence token
    #[arg(long)]
    pub disable_ignore_eos: bool,
    /// Do not stream: each response arrives as one document, so TTFT equals E2E latency and ITL is
    /// not measured
    #[arg(long)]
    pub disable_stream: bool,
    /// Request log probabilities of output tokens
    #[arg(long)]
    pub return_logprob: bool,
    /// Number of top log probabilities per token; chat and completions also require
    /// --return-logprob
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub top_logprobs_num: u32,
    /// Token IDs to return log probabilities for (--api generate)
    #[arg(long, value_name = "ID", num_args = 1..)]
    pub token_ids_logprob: Vec<u32>,
    /// Prompt position from which to return log probabilities; -1 means none for the prompt (--api
    /// generate)
    #[arg(long, default_value_t = -1, value_name = "N", value_parser = clap::value_parser!(i64).range(-1..))]
    pub logprob_start_len: i64,
    /// Ask the server to return the experts that each token was routed to (--api generate)
    #[arg(long)]
    pub return_routed_experts: bool,
    /// LoRA adapter names; each request uses one of them
    #[arg(long, alias = "lora-path", value_name = "NAME", num_args = 0..)]
    pub lora_name: Vec<String>,
    /// How requests are distributed across adapters
    #[arg(long, value_enum, default_value = "uniform")]
    pub lora_request_distribution: AdapterDistribution,
    /// skewed: ratio of each adapter's request count to the next adapter's; must be above 1
    #[arg(long, default_value_t = 1.5, value_name = "ALPHA", value_parser = alpha)]
    pub lora_zipf_alpha: f64,
    /// Send requests to a decode server that was started with --disaggregation-transfer-backend
    /// fake; no prefill server is needed
    #[arg(long)]
    pub fake_prefill: bool,
}

fn temperature(text: &str) -> Result<f64, NumberError> {
    number::parse(text, "a temperature", "a number from 0 to 100", |found| (0.0..=100.0).contains(&found))
}

fn alpha(text: &str) -> Result<f64, NumberError> {
    number::parse(text, "an exponent", "a number above 1", |found| found > 1.0 && found <= 1e6)
}

impl RequestArgs {
    /// Returns the adapter names. An empty name means no adapter, the same as in
    /// `bench_multiturn.py`.
    pub fn adapters(&self) -> Vec<String> {
        self.lora_name.iter().filter(|name| !name.is_empty()).cloned().collect()
    }

    /// Applies the flags to requests sent to `target`. `--extra-request-body` takes precedence.
    pub fn apply(&self, target: &mut LoadTarget) {
        target.temperature = self.temperature;
        target.top_p = (self.top_p < 1.0).then_some(self.top_p);
        target.ignore_eos = !self.disable_ignore_eos;
        target.stream = !self.disable_stream;
        let mut member = |name: &str, value: Value| {
            target.extra.entry(name).or_insert(value);
        };
        match target.dialect {
            Dialect::Generate => {
                if self.return_logprob {
                    member("return_logprob", json!(true));
                }
                if self.logprob_start_len != -1 {
                    member("logprob_start_len", json!(self.logprob_start_len));
                }
                if self.top_logprobs_num > 0 {
                    member("top_logprobs_num", json!(self.top_logprobs_num));
                }
                if !self.token_ids_logprob.is_empty() {
                    member("token_ids_logprob", json!(self.token_ids_logprob));
                }
                if self.return_routed_experts {
                    member("return_routed_experts", json!(true));
                }
            }
            Dialect::Completions if self.return_logprob && self.top_logprobs_num > 0 => {
                member("logprobs", json!(self.top_logprobs_num));
            }
            Dialect::Chat if self.return_logprob => {
                member("logprobs", json!(true));
                if self.top_logprobs_num > 0 {
                    member("top_logprobs", json!(self.top_logprobs_num));
                }
            }
            Dialect::Completions | Dialect::Chat | Dialect::TensorRt => {}
        }
        if self.fake_prefill {
            member("bootstrap_host", json!(FAKE_BOOTSTRAP_HOST));
            member("bootstrap_room", json!(0));
        }
    }

    /// Returns `workload`, with one adapter per conversation if adapters are set.
    pub fn with_adapters(
        &self,
        workload: Box<dyn LoadWorkload + Send>,
        dialect: Dialect,
        seed: Seed,
    ) -> Box<dyn LoadWorkload + Send> {
        let names = self.adapters();
        if names.is_empty() {
            return workload;
        }
        let deal = match self.lora_request_distribution {
            AdapterDistribution::Uniform => AdapterPolicy::Uniform,
            AdapterDistribution::Distinct => AdapterPolicy::Distinct,
            AdapterDistribution::Skewed => AdapterPolicy::Skewed(self.lora_zipf_alpha),
        };
        Box::new(Adapters::new(workload, names, deal, dialect, seed))
    }
}
