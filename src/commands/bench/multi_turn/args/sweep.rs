//! The same at several loads.

use crate::engine::load::sweep::Values;

/// Loads that are run one after the other.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Sweep")]
pub struct SweepArgs {
    /// A pass at each of these rates: A,B,C or FROM:TO:STEP, requests per second
    #[arg(long, value_name = "RATES", conflicts_with = "sweep_concurrency")]
    pub sweep_rate: Option<Values>,
    /// A pass with each of these numbers of conversations open at once
    #[arg(long, value_name = "NUMBERS")]
    pub sweep_concurrency: Option<Values>,
    /// Go on when two loads in a row failed the limits of --goodput
    #[arg(long)]
    pub sweep_all: bool,
}

/// What is raised.
#[derive(Clone, Debug, PartialEq)]
pub enum Sweep {
    /// Requests per second.
    Rate(Vec<f64>),
    /// Conversations open at once.
    Concurrency(Vec<f64>),
}

impl SweepArgs {
    /// The sweep, if there is one.
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
