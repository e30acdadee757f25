//! The schedule for each type of measurement.

use std::collections::VecDeque;

use crate::engine::load::compare::{ComparedSides, SELF_COMPARE, blocks, in_turn};
use crate::engine::load::plan::{Measurement, OfferedLoad};
use crate::engine::load::session::{Control, SessionStep};
use crate::engine::load::sweep::Sweep;
use crate::engine::load::{Pace, Rules, Seed, kep74};

/// Steps, each with the index of its endpoint.
type Schedule = VecDeque<(usize, SessionStep)>;

impl Measurement {
    fn conversations(&self, side: usize) -> u32 {
        self.sides.get(side).map_or(0, |side| side.workload.scripts().len() as u32)
    }

    /// Returns the warm-up at the first endpoint.
    fn warmup(&self) -> Schedule {
        self.phases.warmup().map(|step| (0, step)).into_iter().collect()
    }

    pub(super) fn single(&self) -> Schedule {
        let mut run = self.load.pass("run", 0, 0..self.conversations(0));
        if self.is_recorded {
            run.pace = Pace::Recorded;
        }
        self.profile.around(self.phases.steps(run)).into_iter().map(|step| (0, step)).collect()
    }

    pub(super) fn comparison(&self, wanted: u32, flush: bool) -> Schedule {
        let blocks = blocks(self.conversations(0), wanted);
        let compared = ComparedSides::of(self.sides.len());
        let turns = |sides: [usize; 2], before: &str| {
            in_turn(sides, &blocks, |block, part| {
                // Each block has its own arrival times, which are the same at both endpoints.
                let seed = Seed(self.load.seed.0.wrapping_add(u64::from(block)));
                let run = OfferedLoad { seed, ..self.load.clone() }.pass("run", block, part.clone());
                let flush = flush.then_some(SessionStep::Control(Control::Flush));
                let mut steps: Vec<SessionStep> = flush.into_iter().chain(self.phases.steps(run)).collect();
                for step in &mut steps {
                    if let SessionStep::Pass(plan) = step {
                        plan.name.insert_str(0, before);
                    }
                }
                steps
            })
        };
        let mut schedule = compared.floor.map(|floor| turns(floor, SELF_COMPARE)).unwrap_or_default();
        schedule.extend(turns(compared.pair, ""));
        schedule
    }

    pub(super) fn sweep(&self, sweep: &Sweep, flush: bool) -> Schedule {
        let mut schedule = self.warmup();
        for (side, value) in (0..self.sides.len()).zip(sweep.loads()) {
            let mut load = self.load.clone();
            let mut pace = None;
            match sweep {
                Sweep::Rate(_) => load.rate = *value,
                Sweep::Concurrency(_) => {
                    let conversations = *value as usize;
                    load.rules = Rules { in_flight: conversations, ..load.rules };
                    pace = Some(Pace::Closed { conversations });
                }
            }
            let mut plan = load.pass(&format!("{} {value}", sweep.name()), 0, 0..self.conversations(side));
            plan.pace = pace.unwrap_or(plan.pace);
            if flush || self.phases.flush_first() {
                schedule.push_back((side, SessionStep::Control(Control::Flush)));
            }
            schedule.push_back((side, SessionStep::Pass(Box::new(plan))));
        }
        schedule
    }

    pub(super) fn kep74(&self, flush: bool) -> Schedule {
        let flush = flush || self.phases.flush_first();
        let mut schedule = self.warmup();
        let mut pass = |side: usize, name: &str, flush: bool| {
            if flush {
                schedule.push_back((side, SessionStep::Control(Control::Flush)));
            }
            let plan = self.load.pass(name, 0, 0..self.conversations(side));
            schedule.push_back((side, SessionStep::Pass(Box::new(plan))));
        };
        let servers = self.sides.len() / 2;
        (0..servers).for_each(|at| pass(2 * at, kep74::FIRST, flush));
        (0..servers).rev().for_each(|at| pass(2 * at, kep74::REPLAY, false));
        (0..servers).for_each(|at| pass(2 * at + 1, kep74::CONVERSATIONS, flush));
        schedule
    }
}
