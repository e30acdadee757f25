//! Against what the server is compared.

use std::time::Duration;

use crate::commands::args as parsers;
use crate::engine::load::compare::BLOCKS_MAX;

/// A second endpoint under the same work.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Comparison")]
pub struct CompareArgs {
    /// Another server, B, to compare this one, A, with: same prompts, same arrivals, in turn
    #[arg(long, value_name = "URL")]
    pub against: Option<String>,
    /// Compare the server with itself first: what it differs by then is noise
    #[arg(long = "a-a")]
    pub a_a: bool,
    /// Conversations are cut into so many blocks, each run at A and B one after the other (A B, B A, ...) [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=i64::from(BLOCKS_MAX)))]
    pub blocks: Option<u32>,
    /// A difference counts from this share of A's mean on, percent [default: 1]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub margin: Option<f64>,
    /// The generator may be so late with 99 of 100 requests; beyond it nothing is compared [default: 5ms]
    #[arg(long, value_name = "TIME", value_parser = parsers::limit)]
    pub lag_limit: Option<Duration>,
}

impl CompareArgs {
    /// How many blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks.unwrap_or(8)
    }

    /// The share of A's mean from which on a difference counts, percent.
    pub fn margin(&self) -> f64 {
        self.margin.unwrap_or(1.0)
    }

    /// How late the generator may be.
    pub fn lag_limit(&self) -> Duration {
        self.lag_limit.unwrap_or(Duration::from_millis(5))
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| format!("'{text}' is no share: write percent from 0 to 100"))
}
