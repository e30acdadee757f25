//! What is said.

use std::sync::Arc;

use crate::commands::bench::multi_turn::args::{Api, Chosen, DatasetArgs, Name};
use crate::commands::error::Failure;
use crate::engine::load::workload::{Synthetic, Words};
use crate::engine::load::{Distribution, Seed};

/// Turns of all conversations at most: each is some 16 bytes before anything is sent.
const TURNS_MAX: u64 = 1 << 26;

/// The conversations.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// Conversations (of a dataset: --num-prompts)
    #[arg(long, alias = "clients", default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub num_clients: u32,
    /// Tokens of the first question: a number, uniform:LOW,HIGH, exponential:MEAN or lognormal:MEAN,CV
    #[arg(long, alias = "input-tokens", default_value = "512", value_name = "TOKENS")]
    pub request_length: Distribution,
    /// Tokens of the further ones [default: as --request-length]
    #[arg(long, value_name = "TOKENS")]
    pub sub_question_input_length: Option<Distribution>,
    /// Tokens of an answer
    #[arg(long, alias = "output-tokens", default_value = "64", value_name = "TOKENS")]
    pub output_length: Distribution,
    /// Lengths that are numbers are drawn between this part of them and all of it
    #[arg(long, default_value_t = 1.0, value_name = "RATIO", value_parser = ratio)]
    pub range_ratio: f64,
    /// Turns of a conversation
    #[arg(long, alias = "turns", default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub num_rounds: u32,
    /// Least turns of a conversation; 0 as --num-rounds
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub min_rounds: u32,
    /// Most turns of a conversation; 0 as --num-rounds
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub max_rounds: u32,
    /// Seconds between an answer and the next question
    #[arg(long, default_value = "0", value_name = "SECONDS")]
    pub think_time: Distribution,
    /// Conversations share this many system prompts
    #[arg(long, default_value_t = 0, value_name = "N", requires = "system_length")]
    pub system_groups: u32,
    /// Tokens of a system prompt
    #[arg(long, value_name = "TOKENS")]
    pub system_length: Option<Distribution>,
    /// Ids are drawn below this
    #[arg(long, default_value_t = 32_000, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub vocab_size: u32,
    /// Lengths are as asked for: taken, since bench_multiturn.py wants it said
    #[arg(long, hide = true)]
    pub disable_random_sample: bool,
    /// A folder with a tokenizer, as --tokenizer; a name of a hub where none is needed, since bench_multiturn.py has it
    #[arg(long, hide = true, value_name = "PATH")]
    pub model_path: Option<String>,
    /// Those of a dataset instead.
    #[command(flatten)]
    pub dataset: DatasetArgs,
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse::<f64>().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| format!("'{text}' is no ratio: write a number from 0 to 1"))
}

impl WorkloadArgs {
    /// The conversations, for a server spoken to by `api`. Two calls give equal ones.
    ///
    /// # Errors
    /// The flags contradict each other, or a file that they name is not as it should be.
    pub fn workload(&self, api: Api, seed: Seed) -> Result<Chosen, Failure> {
        match self.dataset.dataset_name {
            Some(Name::Sharegpt) if self.dataset.serving && self.dataset.file().is_none() => self.stand_in(api, seed),
            Some(name) => self.dataset.chosen(name, api, seed, self.vocab_size),
            None => self.made(api, seed),
        }
    }

    /// Questions in the place of ShareGPT's, which is not on this machine: made up, of about the same lengths.
    fn stand_in(&self, api: Api, seed: Seed) -> Result<Chosen, Failure> {
        let lognormal = |mean, deviation| Distribution::LogNormal { mean, cv: deviation };
        let output = self.dataset.sharegpt_output_len.map(|tokens| Distribution::Constant(f64::from(tokens)));
        let mut made = WorkloadArgs {
            num_clients: self.dataset.num_prompts.unwrap_or(1000).max(1),
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
        let mut made = made.made(api, seed)?;
        made.note(
            "ShareGPT is not on this machine, and mcctl downloads nothing: prompts and answers are made up, of about its lengths \
             (--dataset-path names a local copy)",
        );
        Ok(made)
    }

    /// Made-up conversations.
    fn made(&self, api: Api, seed: Seed) -> Result<Chosen, Failure> {
        let or = |rounds: u32| if rounds == 0 { self.num_rounds } else { rounds };
        let (least, most) = (or(self.min_rounds), or(self.max_rounds));
        if least > most {
            return Err(Failure::usage(format!("--min-rounds {least} is above --max-rounds {most}")));
        }
        let all = u64::from(self.num_clients).saturating_mul(u64::from(most));
        if all > TURNS_MAX {
            return Err(Failure::usage(format!("{} conversations of {most} turns are too many", self.num_clients))
                .found(format!("{all} turns, and at most {TURNS_MAX} are kept"))
                .next("lower --num-clients or --num-rounds"));
        }
        let turns = Distribution::Uniform { low: f64::from(least), high: f64::from(most) };
        let (first, output) = (self.ranged(self.request_length), self.ranged(self.output_length));
        let mut made = Synthetic::new(self.num_clients, turns, first, output, seed);
        made.next = self.ranged(self.sub_question_input_length.unwrap_or(self.request_length));
        made.think = self.think_time;
        made.groups = self.system_groups;
        made.system = self.system_length.unwrap_or(Distribution::Constant(0.0));
        let mut notes = Vec::new();
        let mut vocabulary = self.vocab_size;
        let path = self.dataset.dataset_path.as_deref().filter(|path| !path.as_os_str().is_empty());
        // bench_multiturn.py takes its words from ShareGPT unless it is told not to.
        if path.is_some() && !self.disable_random_sample {
            let tokenizer = self.dataset.tokenizer()?.ok_or_else(|| {
                Failure::usage("to cut the file's texts to length needs a tokenizer").next(
                    "name its file or folder with --tokenizer, or play the conversations as they are with --dataset-name sharegpt",
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
            Api::Generate => Words::Ids { vocabulary },
            Api::Chat => Words::Chat,
            Api::Completions | Api::Truss | Api::TensorRt => Words::Text,
        };
        Ok(Chosen::new(Box::new(made), notes, false))
    }

    /// `length`, drawn from the range that `--range-ratio` leaves to a number.
    fn ranged(&self, length: Distribution) -> Distribution {
        match length {
            Distribution::Constant(high) if self.range_ratio < 1.0 && high >= 1.0 => {
                Distribution::Uniform { low: (high * self.range_ratio).floor().max(1.0), high }
            }
            other => other,
        }
    }

    /// Only the first turn of every conversation.
    pub fn first_turns(&mut self) {
        (self.num_rounds, self.min_rounds, self.max_rounds) = (1, 0, 0);
        self.dataset.first_turn_only = self.dataset.dataset_name.is_some();
    }
}
