//! Analyzes the passes of a session: goals, comparison, sweep and exit code.

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::comparison::{ComparisonReport, EndpointLabel};
use crate::commands::bench::multi_turn::execute::MeasuredRun;
use crate::commands::bench::multi_turn::goal_tracker::GoalTracker;
use crate::commands::bench::multi_turn::goals::GoalsReport;
use crate::commands::bench::multi_turn::kep74::Kep74Report;
use crate::commands::bench::multi_turn::plan::RunKind;
use crate::commands::bench::multi_turn::report::RunReport;
use crate::commands::bench::multi_turn::sweep_report::SweepReport;
use crate::commands::error::Exit;
use crate::engine::load::Seed;
use crate::engine::load::session::PassResult;

impl Args {
    /// Adds the goals and the cross-pass results to `report`.
    pub(super) fn analyse(
        &self,
        kind: &RunKind,
        measured: &MeasuredRun,
        tracker: &GoalTracker,
        report: &mut RunReport,
    ) {
        let passes = &measured.executed.passes;
        for ((pass_report, pass), stats) in report.passes.iter_mut().zip(passes).zip(&tracker.passes) {
            let goals = GoalsReport::of(&self.goals, stats, pass);
            if matches!(kind, RunKind::Single) {
                pass_report.caveats.extend(goals.caveat(pass));
            }
            pass_report.goals = Some(goals);
        }
        let label = |side: usize| {
            let (name, target) = &measured.sides[side];
            EndpointLabel { name: name.clone(), target: target.url() }
        };
        match kind {
            RunKind::Single => {}
            RunKind::Comparison(sides) => {
                let [a, b] = sides.pair.map(label);
                report.comparison =
                    Some(ComparisonReport::of(&self.compare, Seed(self.load.seed), passes, *sides, [a, b]));
            }
            RunKind::Sweep(sweep) => {
                let stopped = measured.executed.stopped || measured.executed.failed_step.is_some();
                report.sweep = Some(SweepReport::of(&self.goals, sweep, passes, &tracker.passes, stopped));
                let pairs = report.passes.iter().zip(passes);
                let short: Vec<&str> = pairs
                    .filter(|(report, pass)| report.goals.as_ref().is_some_and(|goals| goals.caveat(pass).is_some()))
                    .map(|(_, pass)| pass.id.name.as_str())
                    .collect();
                if !short.is_empty() {
                    report.caveats.push(BenchCaveat::SteadyStateTooShortAt { loads: short.join(", ") });
                }
            }
            RunKind::Kep74 => {
                let with = self.compare.against.is_some().then(|| label(measured.sides.len() - 1).target);
                report.kep74 = Some(Kep74Report::of(&tracker.passes, label(0).target, with));
            }
        }
    }

    /// Returns whether too few requests met the limits. Always false for a sweep, which searches for the load
    /// at which requests start to miss the limits.
    fn missed_goals(&self, kind: &RunKind, measured: &MeasuredRun, tracker: &GoalTracker) -> bool {
        let Some(required) = self.goals.require_goodput.filter(|_| !matches!(kind, RunKind::Sweep(_))) else {
            return false;
        };
        let sent: u64 = measured.executed.passes.iter().map(PassResult::sent).sum();
        let met: u64 = tracker.passes.iter().map(|pass| pass.goodput.met).sum();
        (met as f64) < required * sent as f64
    }

    /// Returns the exit code of the run.
    pub(super) fn exit(
        &self,
        kind: &RunKind,
        measured: &MeasuredRun,
        tracker: &GoalTracker,
        report: &RunReport,
    ) -> Exit {
        // A run that sent no requests is not a success.
        let is_empty = measured.executed.passes.iter().all(|pass| pass.sent() == 0);
        if measured.bugs() > 0 {
            return Exit::Bug;
        }
        match report.exit() {
            Exit::No if measured.has_failed_endpoint() => Exit::Unreachable,
            Exit::Done if is_empty || self.missed_goals(kind, measured, tracker) => Exit::No,
            Exit::Done => report.comparison.as_ref().map_or(Exit::Done, ComparisonReport::exit),
            other => other,
        }
    }
}
