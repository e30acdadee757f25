//! What is said.

use crate::commands::bench::multi_turn::args::Api;
use crate::commands::error::Failure;
use crate::engine::load::workload::{Synthetic, Words};
use crate::engine::load::{Distribution, Seed};

/// The conversations.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// Conversations
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
    /// No tokenizer is needed: taken, since bench_multiturn.py has it
    #[arg(long, hide = true, value_name = "PATH")]
    pub model_path: Option<String>,
}

impl WorkloadArgs {
    /// The conversations, for a server spoken to by `api`. Two calls give equal ones.
    ///
    /// # Errors
    /// The flags contradict each other.
    pub fn workload(&self, api: Api, seed: Seed) -> Result<Synthetic, Failure> {
        let or = |rounds: u32| if rounds == 0 { self.num_rounds } else { rounds };
        let (least, most) = (or(self.min_rounds), or(self.max_rounds));
        if least > most {
            return Err(Failure::usage(format!("--min-rounds {least} is above --max-rounds {most}")));
        }
        let turns = Distribution::Uniform { low: f64::from(least), high: f64::from(most) };
        let mut made = Synthetic::new(self.num_clients, turns, self.request_length, self.output_length, seed);
        made.next = self.sub_question_input_length.unwrap_or(self.request_length);
        made.think = self.think_time;
        made.groups = self.system_groups;
        made.system = self.system_length.unwrap_or(Distribution::Constant(0.0));
        made.words = match api {
            Api::Generate => Words::Ids { vocabulary: self.vocab_size },
            Api::Chat => Words::Chat,
            Api::Completions => Words::Text,
        };
        Ok(made)
    }
}
