//! Phase flags: the state of the server's caches before and between passes.

use clap::ValueEnum;

use crate::commands::bench::number::{self, NumberError};
use crate::commands::cli::error::Failure;
use crate::engine::load::plan::{Phase, PhaseError, PhasePlan};

/// A phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PhaseName {
    /// Flush L1 and L2
    Flush,
    /// Clear L3 and verify that it is empty
    Clear,
    /// Send --warmup-requests requests that share no prefix with the measured ones
    Warm,
    /// Send each shared system prompt once
    Prime,
    /// Wait until pending writes to L2 and L3 have completed
    #[value(alias = "settle")]
    FlushWait,
    /// Measured: run the conversations
    First,
    /// Fill L1 with other conversations
    EvictDevice,
    /// Fill L2 with other conversations
    EvictHost,
    /// Measured: run the same conversations again
    Repeat,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Caches")]
pub struct PhasesArgs {
    /// Phases to run, in this order. Phases that flush or fill caches ask for confirmation (--yes).
    /// By default, a run flushes no caches; comparisons, sweeps and the kep74 preset flush L1 and
    /// L2 before each pass
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub phases: Vec<PhaseName>,
    /// Number of requests in the warm phase; without --phases, they are sent before the run
    /// [default: 1 with the warm phase, else 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub warmup_requests: Option<u32>,
    /// Flush the server's L1 and L2 before the run, after the warm-up; does not ask for
    /// confirmation
    #[arg(long, conflicts_with = "phases")]
    pub flush_cache: bool,
    /// If the server is busy, retry the flush for up to this many seconds [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub flush_cache_timeout: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, NumberError> {
    number::parse(text, "a duration", "seconds above 0, at most 86400", |found| found > 0.0 && found <= 86_400.0)
}

impl PhaseName {
    fn phase(self) -> Phase {
        match self {
            PhaseName::Flush => Phase::Flush,
            PhaseName::Clear => Phase::Clear,
            PhaseName::Warm => Phase::Warm,
            PhaseName::Prime => Phase::Prime,
            PhaseName::FlushWait => Phase::FlushWait,
            PhaseName::First => Phase::First,
            PhaseName::EvictDevice => Phase::EvictDevice,
            PhaseName::EvictHost => Phase::EvictHost,
            PhaseName::Repeat => Phase::Repeat,
        }
    }
}

impl PhasesArgs {
    /// Returns the phases of a run.
    ///
    /// # Errors
    /// The phases include no measured pass, or `--warmup-requests` is set without the warm phase.
    pub fn plan(&self) -> Result<PhasePlan, Failure> {
        let phases = self.phases.iter().map(|phase| phase.phase()).collect();
        PhasePlan::new(phases, self.warmup_requests, self.flush_cache).map_err(|error| match error {
            PhaseError::NotMeasured => Failure::usage("--phases includes no measured phase")
                .next("add 'first', or both 'first' and 'repeat', to --phases"),
            PhaseError::NoWarmPhase => {
                Failure::usage("--warmup-requests requires the warm phase").next("add warm to --phases")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::plan::OfferedLoad;
    use crate::engine::load::session::SessionStep;
    use clap::Parser;

    #[derive(Parser)]
    struct PhasesCommandLine {
        #[command(flatten)]
        phases: PhasesArgs,
    }

    fn steps(line: &str) -> Result<Vec<String>, Failure> {
        let line = PhasesCommandLine::parse_from(std::iter::once("x").chain(line.split_whitespace()));
        let run = OfferedLoad::default().pass("run", 0, 0..1);
        let word = |step: SessionStep| match step {
            SessionStep::Pass(plan) => format!("0 {}", plan.name),
            SessionStep::Control(step) => format!("0 {step}"),
        };
        Ok(line.phases.plan()?.steps(run).into_iter().map(word).collect())
    }

    #[test]
    fn phases_keep_their_order_and_need_a_measured_one() {
        let found = steps("--phases flush,clear,first,settle,evict-device,repeat").expect("steps");
        let expected = [
            "0 flush device and host",
            "0 clear the store",
            "0 first",
            "0 wait for write-back",
            "0 fill the device with unrelated requests",
            "0 repeat",
        ];
        assert_eq!(found, expected);
        assert_eq!(steps("--phases flush-wait,first").ok(), steps("--phases settle,first").ok());
        assert!(steps("--phases flush,flush-wait").is_err());
        assert!(steps("--phases first --warmup-requests 5").is_err());
    }

    #[test]
    fn without_phases_only_warmup_and_flush_precede_the_run() {
        assert_eq!(steps("").expect("steps"), ["0 run"]);
        let found = steps("--warmup-requests 3 --flush-cache").expect("steps");
        assert_eq!(found, ["0 warm up with 3 requests", "0 flush device and host", "0 run"]);
    }
}
