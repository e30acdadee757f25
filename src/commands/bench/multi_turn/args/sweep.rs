//! Flags for a sweep over several loads.

use crate::engine::load::sweep::{Sweep, Values};

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Sweep")]
pub struct SweepArgs {
    /// Run one pass per request rate, in requests per second: A,B,C or FROM:TO:STEP
    #[arg(long, value_name = "RATES", conflicts_with = "sweep_concurrency")]
    pub sweep_rate: Option<Values>,
    /// Run one pass per number of concurrent conversations: A,B,C or FROM:TO:STEP
    #[arg(long, value_name = "NUMBERS")]
    pub sweep_concurrency: Option<Values>,
    /// Run all loads, even after two in a row have missed the --goodput limits
    #[arg(long)]
    pub sweep_all: bool,
}

impl SweepArgs {
    /// Returns the sweep, if one is configured.
    pub fn sweep(&self) -> Option<Sweep> {
        let rate = self.sweep_rate.as_ref().map(|values| Sweep::Rate(values.get().to_vec()));
        rate.or_else(|| {
            let values = self.sweep_concurrency.as_ref()?;
            let mut whole: Vec<f64> = values.get().iter().map(|value| value.round().max(1.0)).collect();
            whole.dedup();
            Some(Sweep::Concurrency(whole))
        })
    }
}
