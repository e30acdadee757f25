//! What the server is expected to do.

use crate::engine::load::measure::goodput::Limit;
use crate::engine::load::measure::steady::RATIO;

/// Limits, and how they are judged.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Goals")]
pub struct GoalsArgs {
    /// Limits that a request has to meet, milliseconds: ttft:MS tpot:MS itl:MS e2el:MS, from the planned instant
    #[arg(long, value_name = "LIMIT", num_args = 1.., value_delimiter = ',')]
    pub goodput: Vec<Limit>,
    /// The share of requests that have to meet them: with fewer the exit code is 1 [for a sweep: 0.9]
    #[arg(long, value_name = "SHARE", value_parser = share, requires = "goodput")]
    pub require_goodput: Option<f64>,
    /// The steady state is the longest stretch with at least this share of the peak in flight
    #[arg(long, alias = "steady-state-concurrency-ratio", value_name = "SHARE", default_value_t = RATIO, value_parser = share)]
    pub steady_ratio: f64,
}

impl GoalsArgs {
    /// The share that a load of a sweep needs to pass.
    pub fn share_to_pass(&self) -> f64 {
        self.require_goodput.unwrap_or(0.9)
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| format!("'{text}' is no share: write a number above 0 and at most 1"))
}
