//! The schedule for each type of measurement.

use std::collections::VecDeque;
use std::ops::Range;

use crate::compare::{ComparedSides, SELF_COMPARE, blocks, in_turn};
use crate::plan::{Measurement, OfferedLoad};
use crate::session::{Control, SessionStep};
use crate::sweep::Sweep;
use crate::{Pace, Rules, Seed, kep74};

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
        let mut steps = self.phases.steps(run);
        if let Some(plan) = self.load.sessions {
            for step in &mut steps {
                if let SessionStep::Pass(run) = step {
                    run.pace = Pace::Sessions(plan);
                }
            }
            if self.sides.first().is_some_and(|side| side.workload.warmups() > 0) {
                let in_flight = plan.live.min(self.load.rules.in_flight);
                steps = with_rebuilds(steps, u32::try_from(in_flight).unwrap_or(u32::MAX));
            }
        }
        self.profile.around(steps).into_iter().map(|step| (0, step)).collect()
    }

    pub(super) fn comparison(&self, wanted: u32, flush: bool) -> Schedule {
        let blocks = blocks(self.conversations(0), wanted);
        let compared = ComparedSides::of(self.sides.len());
        let turns = |sides: [usize; 2], before: &str| {
            in_turn(sides, &blocks, |block, part| {
                let mut steps = self.block(block, part, flush);
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

    /// Returns the blocks of a comparison for its first endpoint alone.
    pub(super) fn one_side(&self, wanted: u32, flush: bool) -> Schedule {
        let blocks = blocks(self.conversations(0), wanted);
        let steps = (0..).zip(&blocks).flat_map(|(block, part)| self.block(block, part, flush));
        steps.map(|step| (0, step)).collect()
    }

    /// Returns the steps of one block at one endpoint. Each block has its own arrival times, which
    /// are the same at both endpoints.
    fn block(&self, block: u32, part: &Range<u32>, flush: bool) -> Vec<SessionStep> {
        let seed = Seed(self.load.seed.0.wrapping_add(u64::from(block)));
        let run = OfferedLoad { seed, ..self.load.clone() }.pass("run", block, part.clone());
        let flush = flush.then_some(SessionStep::Control(Control::Flush));
        flush.into_iter().chain(self.phases.steps(run)).collect()
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

/// Adds the rebuild of prefixes before the first pass, and before each pass that follows a flush.
fn with_rebuilds(steps: Vec<SessionStep>, in_flight: u32) -> Vec<SessionStep> {
    let mut is_needed = true;
    let mut rebuilt = Vec::with_capacity(steps.len() + 1);
    for step in steps {
        match &step {
            SessionStep::Pass(_) if is_needed => {
                rebuilt.push(SessionStep::Control(Control::Rebuild(in_flight)));
                is_needed = false;
            }
            SessionStep::Control(Control::Flush | Control::Clear | Control::Fill(_)) => is_needed = true,
            _ => {}
        }
        rebuilt.push(step);
    }
    rebuilt
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Dialect;
    use crate::plan::{CacheChange, MeasurementKind, Phase, PhasePlan};
    use crate::session::LoadEndpoint;
    use crate::target::LoadTarget;
    use crate::workload::Synthetic;
    use crate::{Distribution, LoadCaveat};
    use mcctl_base::HostPort;
    use mcctl_sys::env::RealEnv;

    fn measurement(kind: MeasurementKind, sides: usize) -> Measurement {
        let one = Distribution::Constant(1.0);
        let target = LoadTarget::new(HostPort::new("h", 1), Dialect::Generate);
        let side = |_| LoadEndpoint::new("A", target.clone(), Box::new(Synthetic::new(4, one, one, one, Seed(1))));
        Measurement::new(kind, (0..sides).map(side).collect())
    }

    /// Returns the endpoint and the name or the description of each step.
    fn shown(schedule: &Schedule) -> Vec<String> {
        let step = |(side, step): &(usize, SessionStep)| match step {
            SessionStep::Pass(plan) => format!("{side} {} {:?}", plan.name, plan.part),
            SessionStep::Control(step) => format!("{side} {step}"),
        };
        schedule.iter().map(step).collect()
    }

    #[test]
    fn comparison_alternates_after_measuring_the_noise_floor() {
        let measurement = measurement(MeasurementKind::Comparison { blocks: 2 }, 3);
        let expected = [
            "0 a-a run 0..2",
            "1 a-a run 0..2",
            "1 a-a run 2..4",
            "0 a-a run 2..4",
            "0 run 0..2",
            "2 run 0..2",
            "2 run 2..4",
            "0 run 2..4",
        ];
        assert_eq!(shown(&measurement.comparison(2, false)), expected);
        assert_eq!(shown(&measurement.comparison(2, true))[..2], ["0 flush device and host", "0 a-a run 0..2"]);
    }

    #[test]
    fn one_side_has_the_blocks_of_a_comparison() {
        let measurement = measurement(MeasurementKind::OneSide { blocks: 2 }, 1);
        let expected = ["0 flush device and host", "0 run 0..2", "0 flush device and host", "0 run 2..4"];
        assert_eq!(shown(&measurement.one_side(2, true)), expected);
    }

    #[test]
    fn sweep_has_one_pass_per_load_after_the_warmup() {
        let sweep = Sweep::Concurrency(vec![1.0, 2.0]);
        let mut measurement = measurement(MeasurementKind::Sweep(sweep.clone()), 2);
        measurement.phases = PhasePlan::new(Vec::new(), Some(3), true).expect("valid phases");
        let schedule = measurement.sweep(&sweep, false);
        let expected = [
            "0 warm up with 3 requests",
            "0 flush device and host",
            "0 concurrency 1 0..4",
            "1 flush device and host",
            "1 concurrency 2 0..4",
        ];
        assert_eq!(shown(&schedule), expected);
        let Some((_, SessionStep::Pass(last))) = schedule.back() else { panic!("a pass") };
        assert_eq!(last.rules.in_flight, 2);
        assert!(matches!(last.pace, Pace::Closed { conversations: 2 }));
    }

    #[test]
    fn kep74_repeats_the_first_turns_in_reverse_order() {
        let schedule = measurement(MeasurementKind::Kep74, 4).kep74(true);
        let expected = [
            "0 flush device and host",
            "0 first-turn 0..4",
            "2 flush device and host",
            "2 first-turn 0..4",
            "2 replay 0..4",
            "0 replay 0..4",
            "1 flush device and host",
            "1 multi-turn 0..4",
            "3 flush device and host",
            "3 multi-turn 0..4",
        ];
        assert_eq!(shown(&schedule), expected);
    }

    #[tokio::test]
    async fn measurement_without_server_calls_does_not_flush_and_says_so() {
        let comparison = measurement(MeasurementKind::Comparison { blocks: 2 }, 2);
        assert_eq!(comparison.cache_change(), None);
        let planned = comparison.plan(&RealEnv::new()).await.expect("a plan");
        assert_eq!(planned.caveats, [LoadCaveat::CachesNotFlushed { side: "A".to_owned(), error: None }]);
        assert!(planned.session.keep_figures);
        let mut single = measurement(MeasurementKind::Single, 1);
        single.phases = PhasePlan::new(vec![Phase::EvictHost, Phase::First], None, false).expect("valid phases");
        assert_eq!(single.cache_change(), Some(CacheChange::DeviceAndHost));
        let planned = single.plan(&RealEnv::new()).await.expect("a plan");
        assert_eq!(shown(&planned.session.schedule)[1..], ["0 first 0..4"]);
        assert!(planned.caveats.is_empty());
    }
}
