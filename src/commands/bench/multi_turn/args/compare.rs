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
    /// Conversations are cut into so many blocks, each run at A and B one after the other (A B, B A, ...)
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=i64::from(BLOCKS_MAX)))]
    pub blocks: u32,
    /// A difference counts from this share of A's mean on, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    pub margin: f64,
    /// The generator may be so late with 99 of 100 requests; beyond it nothing is compared
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = parsers::limit)]
    pub lag_limit: Duration,
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| format!("'{text}' is no share: write percent from 0 to 100"))
}
