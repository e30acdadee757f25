//! Load flags: rate, concurrency and order.

use std::time::Duration;

use clap::ValueEnum;

use crate::commands::bench::number::{self, NumberError};
use crate::commands::cli::time_flag::TimeParser;
use crate::engine::load::{Gaps, ReadyOrder, Rules};

/// Distribution of the gaps between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GapDistribution {
    /// Exponentially distributed gaps (Poisson arrivals)
    Poisson,
    /// Uniformly distributed gaps between 0 and twice the mean
    Uniform,
    /// Constant gaps
    Constant,
}

/// Which ready conversation to send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReadyPolicy {
    /// A random ready conversation
    Random,
    /// The conversation that has been ready longest
    Fifo,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct LoadArgs {
    /// Requests per second; with inf, the next request is sent as soon as a response completes
    /// [default: 1; comparisons choose it]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub request_rate: Option<f64>,
    /// Distribution of the gaps between requests
    #[arg(long, value_enum, default_value = "poisson")]
    pub distribution: GapDistribution,
    /// Maximum requests in flight [default: 128; no limit with --live-sessions]
    #[arg(long, aliases = ["concurrency", "max-concurrency"], value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_parallel: Option<u32>,
    /// Which ready conversation to send next
    #[arg(long, value_enum, default_value = "random")]
    pub ready_queue_policy: ReadyPolicy,
    /// Start each turn only after all conversations have completed the previous one
    #[arg(long)]
    pub enable_round_barrier: bool,
    /// Seed for all random choices: lengths, contents and send times [default: 1; comparisons of
    /// two servers use a new one, since L3 may hold the prompts of an earlier run]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Stop sending after this time
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = TimeParser::limit())]
    pub duration: Duration,
    /// No effect; accepted for bench_multiturn.py compatibility
    #[arg(long, hide = true)]
    pub disable_auto_run: bool,
}

fn rate(text: &str) -> Result<f64, NumberError> {
    number::parse(text, "a rate", "requests per second above 0, or inf", |rate| rate > 0.0)
}

impl LoadArgs {
    /// Returns the requests per second.
    pub fn rate(&self) -> f64 {
        self.request_rate.unwrap_or(1.0)
    }

    /// Returns the seed of the conversations.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// Returns the distribution of the gaps between requests.
    pub fn gaps(&self) -> Gaps {
        match self.distribution {
            GapDistribution::Poisson => Gaps::POISSON,
            GapDistribution::Uniform => Gaps::Uniform,
            GapDistribution::Constant => Gaps::Even,
        }
    }

    /// Returns the limits that apply at any pace.
    pub fn rules(&self) -> Rules {
        let ready = match self.ready_queue_policy {
            ReadyPolicy::Random => ReadyOrder::Random,
            ReadyPolicy::Fifo => ReadyOrder::Fifo,
        };
        Rules {
            in_flight: self.max_parallel.map_or(usize::MAX, |most| most as usize),
            ready,
            barrier: self.enable_round_barrier,
            whole_conversations: false,
        }
    }
}
