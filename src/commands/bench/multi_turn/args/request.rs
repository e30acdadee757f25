//! What requests carry beside their prompts.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::engine::load::Seed;
use crate::engine::load::answer::Dialect;
use crate::engine::load::target::Target;
use crate::engine::load::workload::{Adapters, Deal, Workload};

/// The address that a decode server with a fake transfer takes for its prefill server.
const FAKE_BOOTSTRAP_HOST: &str = "2.2.2.2";

/// How requests are dealt out to LoRA adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AdapterDeal {
    /// Any adapter, each as likely
    Uniform,
    /// One after the other
    Distinct,
    /// The first most often (--lora-zipf-alpha)
    Skewed,
}

/// Requests.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Request")]
pub struct RequestArgs {
    /// Sampling temperature
    #[arg(long, default_value_t = 0.0, value_name = "T", value_parser = temperature)]
    pub temperature: f64,
    /// Sample among the most likely tokens that add up to this probability; 1 is not sent
    #[arg(long, default_value_t = 1.0, value_name = "P", value_parser = probability)]
    pub top_p: f64,
    /// Let an answer end at the end-of-sequence token, before its full length
    #[arg(long)]
    pub disable_ignore_eos: bool,
    /// Ask for each answer as one document. TTFT is then the whole latency, and there are no times between tokens
    #[arg(long)]
    pub disable_stream: bool,
    /// Ask for log probabilities
    #[arg(long)]
    pub return_logprob: bool,
    /// Most likely tokens to list with each token; of chat and completions only with --return-logprob
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub top_logprobs_num: u32,
    /// Tokens to list the log probabilities of (generate)
    #[arg(long, value_name = "ID", num_args = 1..)]
    pub token_ids_logprob: Vec<u32>,
    /// Token of the prompt from which log probabilities are returned; -1: none of the prompt (generate)
    #[arg(long, default_value_t = -1, value_name = "N", value_parser = clap::value_parser!(i64).range(-1..))]
    pub logprob_start_len: i64,
    /// Ask for the experts that each token was routed to (generate)
    #[arg(long)]
    pub return_routed_experts: bool,
    /// LoRA adapters that requests name
    #[arg(long, alias = "lora-path", value_name = "NAME", num_args = 0..)]
    pub lora_name: Vec<String>,
    /// How requests are dealt out to adapters
    #[arg(long, value_enum, default_value = "uniform")]
    pub lora_request_distribution: AdapterDeal,
    /// skewed: each adapter gets this many times the requests of the next one; above 1
    #[arg(long, default_value_t = 1.5, value_name = "ALPHA", value_parser = alpha)]
    pub lora_zipf_alpha: f64,
    /// Ask a decode server that runs with --disaggregation-transfer-backend fake, without a prefill server
    #[arg(long)]
    pub fake_prefill: bool,
}

fn temperature(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|found| (0.0..=100.0).contains(found));
    found.ok_or_else(|| format!("'{text}' is not a temperature: write a number from 0 to 100"))
}

fn probability(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|found| *found > 0.0 && *found <= 1.0);
    found.ok_or_else(|| format!("'{text}' is not a probability: write a number above 0 and at most 1"))
}

fn alpha(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|found| *found > 1.0 && *found <= 1e6);
    found.ok_or_else(|| format!("'{text}' is not above 1: write a number above 1"))
}

impl RequestArgs {
    /// The adapters that are named. `bench_multiturn.py` names none with an empty one.
    pub fn adapters(&self) -> Vec<String> {
        self.lora_name.iter().filter(|name| !name.is_empty()).cloned().collect()
    }

    /// The requests of `target` as these flags have them. What `--extra-request-body` has wins.
    pub fn apply(&self, target: &mut Target) {
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

    /// `workload`, with an adapter for each conversation where some are named.
    pub fn with_adapters(
        &self,
        workload: Box<dyn Workload + Send>,
        dialect: Dialect,
        seed: Seed,
    ) -> Box<dyn Workload + Send> {
        let names = self.adapters();
        if names.is_empty() {
            return workload;
        }
        let deal = match self.lora_request_distribution {
            AdapterDeal::Uniform => Deal::Uniform,
            AdapterDeal::Distinct => Deal::Distinct,
            AdapterDeal::Skewed => Deal::Skewed(self.lora_zipf_alpha),
        };
        Box::new(Adapters::new(workload, names, deal, dialect, seed))
    }
}
