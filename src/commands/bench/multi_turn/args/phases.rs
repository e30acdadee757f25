//! What the server's caches hold before the passes and between them.

use std::collections::VecDeque;

use clap::ValueEnum;

use crate::commands::error::Failure;
use crate::engine::load::session::{Control, PassPlan, Step, Tier};

/// One phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// Empty L1 and L2
    Flush,
    /// Empty L3, and see that it is
    Clear,
    /// Requests that share nothing with what is measured (--warmup-requests)
    Warm,
    /// Each shared system prompt once
    Prime,
    /// Wait until all has been written to L2 and L3
    Settle,
    /// Measured: the conversations
    First,
    /// Push all out of L1 by other conversations
    EvictDevice,
    /// Push all out of L2 by other conversations
    EvictHost,
    /// Measured: the same conversations again
    Repeat,
}

/// Phases.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Caches")]
pub struct PhasesArgs {
    /// What is done, in this order. Phases that empty or overwrite caches ask first (--yes). Without it a run uses the caches
    /// unchanged; a comparison, a sweep and the preset kep74 empty L1 and L2 before each pass
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub phases: Vec<Phase>,
    /// Requests of the phase warm; alone, they come before the run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub warmup_requests: Option<u32>,
    /// Empty L1 and L2 of the server before the run (and after the warm-up). The flag is the confirmation: no question is asked
    #[arg(long, conflicts_with = "phases")]
    pub flush_cache: bool,
    /// Longest time that a busy server is asked to empty them, seconds [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub flush_cache_timeout: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|found| *found > 0.0 && *found <= 86_400.0);
    found.ok_or_else(|| format!("'{text}' is not a number of seconds above 0"))
}

impl PhasesArgs {
    /// The steps at the endpoint `side`: `run` is the pass that is measured.
    ///
    /// # Errors
    /// The phases measure nothing.
    pub fn schedule(&self, side: usize, run: PassPlan) -> Result<VecDeque<(usize, Step)>, Failure> {
        let named = |name: &str| {
            let mut pass = run.clone();
            name.clone_into(&mut pass.name);
            Step::Pass(Box::new(pass))
        };
        let warm = Control::Warm(self.warmup_requests.unwrap_or(1));
        let mut steps = VecDeque::new();
        if self.phases.is_empty() {
            if self.warmup_requests.is_some_and(|requests| requests > 0) {
                steps.push_back(Step::Control(warm));
            }
            if self.flush_cache {
                steps.push_back(Step::Control(Control::Flush));
            }
            steps.push_back(Step::Pass(Box::new(run)));
        } else {
            if !self.phases.iter().any(|phase| matches!(phase, Phase::First | Phase::Repeat)) {
                return Err(Failure::usage("--phases measures nothing").next("add first, or first and repeat"));
            }
            if self.warmup_requests.is_some() && !self.phases.contains(&Phase::Warm) {
                return Err(Failure::usage("--warmup-requests without the phase warm").next("add warm to --phases"));
            }
            steps.extend(self.phases.iter().map(|phase| match phase {
                Phase::Flush => Step::Control(Control::Flush),
                Phase::Clear => Step::Control(Control::Clear),
                Phase::Warm => Step::Control(warm.clone()),
                Phase::Prime => Step::Control(Control::Prime),
                Phase::Settle => Step::Control(Control::Settle),
                Phase::EvictDevice => Step::Control(Control::Fill(Tier::Device)),
                Phase::EvictHost => Step::Control(Control::Fill(Tier::Host)),
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
    struct Line {
        #[command(flatten)]
        phases: PhasesArgs,
    }

    fn steps(line: &str) -> Result<Vec<String>, Failure> {
        let line = Line::parse_from(std::iter::once("x").chain(line.split_whitespace()));
        let run = PassPlan {
            name: "run".to_owned(),
            block: 0,
            part: 0..1,
            pace: Pace::Recorded,
            rules: Rules::default(),
            duration: std::time::Duration::MAX,
        };
        let word = |(side, step): (usize, Step)| match step {
            Step::Pass(plan) => format!("{side} {}", plan.name),
            Step::Control(step) => format!("{side} {step}"),
        };
        Ok(line.phases.schedule(0, run)?.into_iter().map(word).collect())
    }

    #[test]
    fn phases_are_done_in_their_order_and_must_measure_something() {
        let told = steps("--phases flush,clear,first,settle,evict-device,repeat").expect("steps");
        let expected = [
            "0 flush device and host",
            "0 clear the store",
            "0 first",
            "0 wait for what is written back",
            "0 fill the device with others",
            "0 repeat",
        ];
        assert_eq!(told, expected);
        assert!(steps("--phases flush,settle").is_err());
        assert!(steps("--phases first --warmup-requests 5").is_err());
    }

    #[test]
    fn without_phases_there_is_the_run_and_what_was_asked_before_it() {
        assert_eq!(steps("").expect("steps"), ["0 run"]);
        let told = steps("--warmup-requests 3 --flush-cache").expect("steps");
        assert_eq!(told, ["0 warm up with 3 requests", "0 flush device and host", "0 run"]);
    }
}
