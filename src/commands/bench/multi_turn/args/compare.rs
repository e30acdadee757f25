//! Comparison flags.

use std::time::Duration;

use crate::commands::args as parsers;
use crate::commands::bench::number::{self, NumberError};
use crate::engine::load::compare::BLOCKS_MAX;

/// Comparison of two endpoints under the same workload.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Comparison")]
pub struct CompareArgs {
    /// Compare this server (A) with the server at URL (B), alternating between them, with the same prompts and arrival times
    #[arg(long, value_name = "URL")]
    pub against: Option<String>,
    /// First compare A with itself to measure the noise floor
    #[arg(long, alias = "a-a")]
    pub self_compare: bool,
    /// Split the conversations into N blocks and run each on A and B in alternating order (A B, B A, ...) [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=i64::from(BLOCKS_MAX)))]
    pub blocks: Option<u32>,
    /// Ignore differences below this percentage of A's mean [default: 1]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub margin: Option<f64>,
    /// Reject the comparison if the generator's p99 scheduling lag exceeds TIME [default: 5ms]
    #[arg(long, value_name = "TIME", value_parser = parsers::limit)]
    pub lag_limit: Option<Duration>,
}

impl CompareArgs {
    /// Returns the number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks.unwrap_or(8)
    }

    /// Returns the smallest difference that is not ignored, as a percentage of A's mean.
    pub fn margin(&self) -> f64 {
        self.margin.unwrap_or(1.0)
    }

    /// Returns the maximum accepted p99 scheduling lag.
    pub fn lag_limit(&self) -> Duration {
        self.lag_limit.unwrap_or(Duration::from_millis(5))
    }
}

fn percent(text: &str) -> Result<f64, NumberError> {
    number::parse(text, "a percentage", "a number from 0 to 100", |percent| (0.0..=100.0).contains(&percent))
}
