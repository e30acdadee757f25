//! Phase flags: the state of the server's caches before and between passes.

use std::collections::VecDeque;

use clap::ValueEnum;

use crate::commands::bench::number::{self, NumberError};
use crate::commands::error::Failure;
use crate::engine::load::session::{Control, PassPlan, SessionStep, Tier};

/// A phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Phase {
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
    /// Phases to run, in this order. Phases that flush or fill caches ask for confirmation (--yes). By default, a run leaves the caches
    /// unchanged; comparisons, sweeps and the kep74 preset flush L1 and L2 before each pass
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub phases: Vec<Phase>,
    /// Number of requests in the warm phase; without --phases, they are sent before the run [default: 1 with the warm phase, else 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub warmup_requests: Option<u32>,
    /// Flush the server's L1 and L2 before the run, after the warm-up; does not ask for confirmation
    #[arg(long, conflicts_with = "phases")]
    pub flush_cache: bool,
    /// If the server is busy, retry the flush for up to this many seconds [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub flush_cache_timeout: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, NumberError> {
    number::parse(text, "a duration", "seconds above 0, at most 86400", |found| found > 0.0 && found <= 86_400.0)
}

impl PhasesArgs {
    /// Returns the steps for endpoint `side`. `run` is the measured pass.
    ///
    /// # Errors
    /// The phases include no measured pass, or `--warmup-requests` is set without the warm phase.
    pub fn schedule(&self, side: usize, run: PassPlan) -> Result<VecDeque<(usize, SessionStep)>, Failure> {
        let named = |name: &str| {
            let mut pass = run.clone();
            name.clone_into(&mut pass.name);
            SessionStep::Pass(Box::new(pass))
        };
        let warm = Control::Warm(self.warmup_requests.unwrap_or(1));
        let mut steps = VecDeque::new();
        if self.phases.is_empty() {
            if self.warmup_requests.is_some_and(|requests| requests > 0) {
                steps.push_back(SessionStep::Control(warm));
            }
            if self.flush_cache {
                steps.push_back(SessionStep::Control(Control::Flush));
            }
            steps.push_back(SessionStep::Pass(Box::new(run)));
        } else {
            if !self.phases.iter().any(|phase| matches!(phase, Phase::First | Phase::Repeat)) {
                return Err(
                    Failure::usage("--phases includes no measured phase").next("add first, or first and repeat")
                );
            }
            if self.warmup_requests.is_some() && !self.phases.contains(&Phase::Warm) {
                return Err(Failure::usage("--warmup-requests requires the warm phase").next("add warm to --phases"));
            }
            steps.extend(self.phases.iter().map(|phase| match phase {
                Phase::Flush => SessionStep::Control(Control::Flush),
                Phase::Clear => SessionStep::Control(Control::Clear),
                Phase::Warm => SessionStep::Control(warm.clone()),
                Phase::Prime => SessionStep::Control(Control::Prime),
                Phase::FlushWait => SessionStep::Control(Control::Settle),
                Phase::EvictDevice => SessionStep::Control(Control::Fill(Tier::Device)),
                Phase::EvictHost => SessionStep::Control(Control::Fill(Tier::Host)),
                Phase::First => named("first"),
                Phase::Repeat => named("repeat"),
            }));
        }
        Ok(steps.into_iter().map(|step| (side, step)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::{Pace, Rules};
    use clap::Parser;

    #[derive(Parser)]
    struct PhasesCommandLine {
        #[command(flatten)]
        phases: PhasesArgs,
    }

    fn steps(line: &str) -> Result<Vec<String>, Failure> {
        let line = PhasesCommandLine::parse_from(std::iter::once("x").chain(line.split_whitespace()));
        let run = PassPlan {
            name: "run".to_owned(),
            block: 0,
            part: 0..1,
            pace: Pace::Recorded,
            rules: Rules::default(),
            duration: std::time::Duration::MAX,
        };
        let word = |(side, step): (usize, SessionStep)| match step {
            SessionStep::Pass(plan) => format!("{side} {}", plan.name),
            SessionStep::Control(step) => format!("{side} {step}"),
        };
        Ok(line.phases.schedule(0, run)?.into_iter().map(word).collect())
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
