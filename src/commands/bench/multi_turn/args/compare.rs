//! Comparison flags.

use std::time::Duration;

use clap::ValueEnum;

use crate::commands::bench::number::{self, NumberError};
use crate::commands::cli::time_flag::TimeParser;
use crate::engine::load::compare::{BLOCKS_MAX, Measure};

/// A metric of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrimaryMetric {
    /// Time to first token, from the scheduled send time
    Ttft,
    /// Time per output token after the first; each request counts once
    Tpot,
    /// Inter-token latency; each token counts once
    Itl,
    /// End-to-end latency, from the scheduled send time
    E2e,
    /// Prompt tokens from any cache; more is better
    CachedTokens,
}

/// Comparison of two endpoints under the same workload.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Comparison")]
pub struct CompareArgs {
    /// Compare this server (A) with B: the URL of a server, which receives the same prompts and
    /// arrival times in alternating blocks, or a file with a recorded run (--records)
    #[arg(long, value_name = "URL|FILE")]
    pub against: Option<String>,
    /// First compare A with itself to measure the noise floor
    #[arg(long, alias = "a-a")]
    pub self_compare: bool,
    /// Name of A in the report
    #[arg(long, value_name = "NAME", default_value = "A", value_parser = label)]
    pub label_a: String,
    /// Name of B in the report
    #[arg(long, value_name = "NAME", default_value = "B", value_parser = label)]
    pub label_b: String,
    /// Metric that decides; the intervals of the others are corrected for their number
    #[arg(long, value_enum, default_value = "ttft", value_name = "METRIC")]
    pub primary: PrimaryMetric,
    /// Split the conversations into N blocks and run each on A and B in alternating order [default:
    /// 1 to 8, as many as exceed the caches in question]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(BLOCKS_MAX)))]
    pub blocks: Option<u32>,
    /// Ignore differences below this percentage of A's mean [default: 1]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub margin: Option<f64>,
    /// Add a caveat if the generator's p99 scheduling lag exceeds TIME. The lag never discards a
    /// result: intervals are wider by its mean [default: 5ms]
    #[arg(long, value_name = "TIME", value_parser = TimeParser::limit())]
    pub lag_limit: Option<Duration>,
}

impl CompareArgs {
    /// Returns the number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks.unwrap_or(8)
    }

    /// Returns the names of A and B.
    pub fn labels(&self) -> [&str; 2] {
        [&self.label_a, &self.label_b]
    }

    /// Returns the metric that decides.
    pub fn primary(&self) -> Measure {
        match self.primary {
            PrimaryMetric::Ttft => Measure::Ttft,
            PrimaryMetric::Tpot => Measure::Tpot,
            PrimaryMetric::Itl => Measure::Itl,
            PrimaryMetric::E2e => Measure::E2e,
            PrimaryMetric::CachedTokens => Measure::Cached,
        }
    }

    /// Returns the smallest difference that is not ignored, as a percentage of A's mean.
    pub fn margin(&self) -> f64 {
        self.margin.unwrap_or(1.0)
    }

    /// Returns the p99 scheduling lag above which there is a caveat.
    pub fn lag_limit(&self) -> Duration {
        self.lag_limit.unwrap_or(Duration::from_millis(5))
    }
}

fn percent(text: &str) -> Result<f64, NumberError> {
    number::parse(text, "a percentage", "a number from 0 to 100", |percent| (0.0..=100.0).contains(&percent))
}

/// Maximum length of a label, so that tables stay readable.
const LABEL_MAX: usize = 24;

/// The name of an endpoint is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to {LABEL_MAX} characters, without control characters")]
struct LabelError;

fn label(text: &str) -> Result<String, LabelError> {
    let text = text.trim();
    let is_usable = (1..=LABEL_MAX).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    if is_usable { Ok(text.to_owned()) } else { Err(LabelError) }
}
