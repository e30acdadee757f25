//! When it is said, and how much at once.

use std::time::Duration;

use clap::ValueEnum;

use crate::commands::args as parsers;
use crate::engine::load::{Arrivals, Gaps, Pace, Rate, Ready, Rules, Seed};

/// The law of the gaps between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Law {
    /// As those of independent users
    Poisson,
    /// Evenly between nothing and twice the mean
    Uniform,
    /// All the same
    Constant,
}

/// Which of several ready conversations is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// Any
    Random,
    /// The one that is ready longest
    Fifo,
}

/// The load.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct LoadArgs {
    /// Requests per second; inf: as fast as answers come
    #[arg(long, default_value = "1", value_name = "RATE", value_parser = rate)]
    pub request_rate: f64,
    /// How they are spread
    #[arg(long, value_enum, default_value = "poisson")]
    pub distribution: Law,
    /// Requests in flight, at most [default: 128; of bench serving no limit]
    #[arg(long, aliases = ["concurrency", "max-concurrency"], value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_parallel: Option<u32>,
    /// Which of the ready conversations is next
    #[arg(long, value_enum, default_value = "random")]
    pub ready_queue_policy: Policy,
    /// Nobody begins a turn before all have ended the one before it
    #[arg(long)]
    pub enable_round_barrier: bool,
    /// All lengths, words and instants come from it
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Send nothing more after this time
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = parsers::limit)]
    pub duration: Duration,
    /// Only one rate is run: taken, since bench_multiturn.py wants it said
    #[arg(long, hide = true)]
    pub disable_auto_run: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| *rate > 0.0);
    rate.ok_or_else(|| format!("'{text}' is no rate: write requests per second above 0, or inf"))
}

impl LoadArgs {
    /// Who decides when the next of `conversations` comes.
    pub fn pace(&self, conversations: u32) -> Pace {
        if self.request_rate.is_infinite() {
            return Pace::Closed { conversations: conversations as usize };
        }
        let gaps = match self.distribution {
            Law::Poisson => Gaps::POISSON,
            Law::Uniform => Gaps::Uniform,
            Law::Constant => Gaps::Even,
        };
        let arrivals = Arrivals::Drawn { gaps, rate: Rate::Constant(self.request_rate) };
        Pace::Requests(arrivals.instants(Seed(self.seed).generator("arrivals", 0)))
    }

    /// Do requests come as those of independent users?
    pub fn is_poisson(&self) -> bool {
        self.distribution == Law::Poisson
    }

    /// Bounds that hold at every pace.
    pub fn rules(&self) -> Rules {
        let ready = match self.ready_queue_policy {
            Policy::Random => Ready::Random,
            Policy::Fifo => Ready::Fifo,
        };
        Rules {
            in_flight: self.max_parallel.map_or(usize::MAX, |most| most as usize),
            ready,
            barrier: self.enable_round_barrier,
        }
    }
}
