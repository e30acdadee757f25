//! Conversation flags.

use std::sync::Arc;

use crate::commands::bench::multi_turn::args::{Api, DatasetArgs, DatasetName, SessionArgs};
use crate::commands::bench::number;
use crate::commands::cli::error::Failure;
use crate::engine::load::workload::{AnnotatedWorkload, Synthetic, SyntheticPrompt};
use crate::engine::load::{Distribution, Seed};

/// Maximum number of turns over all conversations. Each turn uses about 16 bytes of memory before
/// anything is sent.
const TURNS_MAX: u64 = 1 << 26;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// Number of synthetic conversations (for a dataset, use --num-prompts) [default: 256;
    /// comparisons choose it]
    #[arg(long, visible_alias = "clients", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub num_clients: Option<u32>,
    /// Length of the first question in tokens: a number, uniform:LOW,HIGH, exponential:MEAN or
    /// lognormal:MEAN,CV
    #[arg(long, alias = "input-tokens", default_value = "512", value_name = "TOKENS")]
    pub request_length: Distribution,
    /// Length of the later questions in tokens [default: same as --request-length]
    #[arg(long, value_name = "TOKENS")]
    pub sub_question_input_length: Option<Distribution>,
    /// Output length of each response in tokens
    #[arg(long, alias = "output-tokens", default_value = "64", value_name = "TOKENS")]
    pub output_length: Distribution,
    /// For each configured length L, sample the actual length uniformly between RATIO x L and L
    #[arg(long, default_value_t = 1.0, value_name = "RATIO", value_parser = number::ratio)]
    pub range_ratio: f64,
    /// Number of turns per conversation
    #[arg(long, alias = "turns", default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub num_rounds: u32,
    /// Minimum turns per conversation; 0 means the value of --num-rounds
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub min_rounds: u32,
    /// Maximum turns per conversation; 0 means the value of --num-rounds
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub max_rounds: u32,
    /// Think time between a response and the next question, in seconds
    #[arg(long, default_value = "0", value_name = "SECONDS")]
    pub think_time: Distribution,
    /// Number of system prompts shared across conversations
    #[arg(long, default_value_t = 0, value_name = "N", requires = "system_length")]
    pub system_groups: u32,
    /// System prompt length in tokens
    #[arg(long, value_name = "TOKENS")]
    pub system_length: Option<Distribution>,
    /// Sample token IDs below N
    #[arg(long, default_value_t = 32_000, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub vocab_size: u32,
    /// Does not affect lengths; accepted for bench_multiturn.py compatibility
    #[arg(long, hide = true)]
    pub disable_random_sample: bool,
    /// Tokenizer directory, like --tokenizer; a Hugging Face model ID is also accepted, as in
    /// bench_multiturn.py
    #[arg(long, hide = true, value_name = "PATH")]
    pub model_path: Option<String>,
    /// If a dataset is set, it replaces the synthetic conversations.
    #[command(flatten)]
    pub dataset: DatasetArgs,
    /// Which sessions are live, and where they start.
    #[command(flatten)]
    pub sessions: SessionArgs,
}

impl WorkloadArgs {
    /// Returns the number of synthetic conversations.
    pub fn conversations(&self) -> u32 {
        self.num_clients.unwrap_or(256)
    }

    /// Builds the conversations for a server that uses `api`. The same arguments always produce the
    /// same conversations.
    ///
    /// # Errors
    /// The flags conflict, or a file is invalid.
    pub fn workload(&self, api: Api, seed: Seed) -> Result<AnnotatedWorkload, Failure> {
        match self.dataset.dataset_name {
            Some(DatasetName::Sharegpt) if self.dataset.serving && self.dataset.file().is_none() => {
                self.sharegpt_substitute(api, seed)
            }
            Some(name) => self.dataset.configured(name, api, seed, self.vocab_size, &self.sessions),
            None => self.synthetic(api, seed),
        }
    }

    /// Builds synthetic prompts with about the same lengths as the ShareGPT prompts, for a machine
    /// without the ShareGPT file.
    fn sharegpt_substitute(&self, api: Api, seed: Seed) -> Result<AnnotatedWorkload, Failure> {
        let lognormal = |mean, deviation| Distribution::LogNormal { mean, cv: deviation };
        let output = self.dataset.sharegpt_output_len.map(|tokens| Distribution::Constant(f64::from(tokens)));
        let mut made = WorkloadArgs {
            num_clients: Some(self.dataset.num_prompts.unwrap_or(1000).max(1)),
            request_length: lognormal(220.0, 1.2),
            output_length: output.unwrap_or(lognormal(200.0, 0.8)),
            sub_question_input_length: None,
            range_ratio: 1.0,
            think_time: Distribution::Constant(0.0),
            system_groups: 0,
            ..self.clone()
        };
        made.first_turns();
        made.dataset.dataset_name = None;
        let mut made = made.synthetic(api, seed)?;
        made.note(
            "ShareGPT was not found on this machine, and mcctl does not download it; prompts are synthetic with about the same lengths \
             (use --dataset-path to select a local copy)",
        );
        Ok(made)
    }

    /// Builds synthetic conversations from the length flags.
    fn synthetic(&self, api: Api, seed: Seed) -> Result<AnnotatedWorkload, Failure> {
        let or = |rounds: u32| if rounds == 0 { self.num_rounds } else { rounds };
        let least = or(self.min_rounds);
        let most = or(self.max_rounds);
        if least > most {
            return Err(Failure::usage(format!("--min-rounds {least} exceeds --max-rounds {most}")));
        }
        let all = u64::from(self.conversations()).saturating_mul(u64::from(most));
        if all > TURNS_MAX {
            return Err(Failure::usage(format!(
                "too many turns: {} conversations with {most} turns each",
                self.conversations()
            ))
            .found(format!("{all} turns; the limit is {TURNS_MAX}"))
            .next("lower --num-clients or --num-rounds"));
        }
        let turns = Distribution::Uniform { low: f64::from(least), high: f64::from(most) };
        let first = self.ranged(self.request_length);
        let output = self.ranged(self.output_length);
        let mut made = Synthetic::new(self.conversations(), turns, first, output, seed);
        made.next = self.ranged(self.sub_question_input_length.unwrap_or(self.request_length));
        made.think = self.think_time;
        made.groups = self.system_groups;
        made.system = self.system_length.unwrap_or(Distribution::Constant(0.0));
        let mut notes = Vec::new();
        let mut vocabulary = self.vocab_size;
        let path = self.dataset.dataset_path.as_deref().filter(|path| !path.as_os_str().is_empty());
        // Like bench_multiturn.py, take the text from ShareGPT unless --disable-random-sample is
        // set.
        if path.is_some() && !self.disable_random_sample {
            let tokenizer = self.dataset.tokenizer()?.ok_or_else(|| {
                Failure::usage("--dataset-path without --dataset-name needs a tokenizer to truncate the text").next(
                    "set --tokenizer to a tokenizer file or directory, or send the conversations unchanged with --dataset-name sharegpt",
                )
            })?;
            made.corpus = Some(Arc::new(self.dataset.corpus(&tokenizer, seed, &mut notes)?));
            made.tokenizer = Some(tokenizer);
        } else if self.dataset.tokenizer.is_some() || self.dataset.serving {
            made.tokenizer = self.dataset.tokenizer()?;
        }
        if let Some(tokenizer) = &made.tokenizer {
            vocabulary = vocabulary.min(tokenizer.vocabulary());
        }
        made.words = match api {
            Api::Generate => SyntheticPrompt::Ids { vocabulary },
            Api::Chat => SyntheticPrompt::Chat,
            Api::Completions | Api::Truss | Api::TensorRt => SyntheticPrompt::Text,
        };
        Ok(AnnotatedWorkload::new(Box::new(made), notes, false))
    }

    /// Applies `--range-ratio` to a constant `length`.
    fn ranged(&self, length: Distribution) -> Distribution {
        match length {
            Distribution::Constant(high) if self.range_ratio < 1.0 && high >= 1.0 => {
                Distribution::Uniform { low: (high * self.range_ratio).floor().max(1.0), high }
            }
            other => other,
        }
    }

    /// Limits every conversation to its first turn.
    pub fn first_turns(&mut self) {
        self.num_rounds = 1;
        self.min_rounds = 0;
        self.max_rounds = 0;
        self.dataset.first_turn_only = self.dataset.dataset_name.is_some();
    }
}
