//! Latency goal flags.

use crate::commands::bench::number;
use crate::engine::load::measure::goodput::LatencyLimit;
use crate::engine::load::measure::steady::RATIO;
use crate::engine::load::sweep::SweepTerms;

/// Latency limits and how they are evaluated.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Goals")]
pub struct GoalsArgs {
    /// Latency limits that a good request must meet, in milliseconds: ttft:MS tpot:MS itl:MS
    /// e2el:MS. TTFT and E2EL are measured from the scheduled send time
    #[arg(long, value_name = "LIMIT", num_args = 1.., value_delimiter = ',')]
    pub goodput: Vec<LatencyLimit>,
    /// Minimum share of requests that must meet the limits; below it, the exit code is 1 [default
    /// for a sweep: 0.9]
    #[arg(long, value_name = "SHARE", value_parser = number::share, requires = "goodput")]
    pub require_goodput: Option<f64>,
    /// Share of the peak concurrency that defines the steady state: the longest interval at or
    /// above it
    #[arg(long, alias = "steady-state-concurrency-ratio", value_name = "SHARE", default_value_t = RATIO, value_parser = number::share)]
    pub steady_ratio: f64,
}

impl GoalsArgs {
    /// Returns the minimum share of good requests that a load in a sweep needs to pass.
    pub fn share_to_pass(&self) -> f64 {
        self.require_goodput.unwrap_or(0.9)
    }

    /// Returns how the passes of a sweep are evaluated.
    pub fn sweep_terms(&self) -> SweepTerms {
        let share_to_pass = (!self.goodput.is_empty()).then(|| self.share_to_pass());
        SweepTerms { share_to_pass, steady_ratio: self.steady_ratio }
    }
}
