//! Analyzes the passes of a session: goals, comparison, sweep and exit code.

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::comparison::{ComparisonReport, EndpointLabel};
use crate::commands::bench::multi_turn::comparison_plan::ComparisonPlan;
use crate::commands::bench::multi_turn::execute::MeasuredRun;
use crate::commands::bench::multi_turn::goals::GoalsReport;
use crate::commands::bench::multi_turn::kep74::Kep74Report;
use crate::commands::bench::multi_turn::report::RunReport;
use crate::commands::cli::error::Exit;
use crate::engine::load::compare::ComparedSides;
use crate::engine::load::goals::GoalTracker;
use crate::engine::load::kep74::Kep74Tables;
use crate::engine::load::plan::MeasurementKind;
use crate::engine::load::sweep::SweepResult;
use crate::engine::load::{LoadCaveat, Seed};

impl Args {
    /// Adds the goals and the cross-pass results to `report`.
    pub(super) fn analyse(
        &self,
        kind: &MeasurementKind,
        measured: &MeasuredRun,
        tracker: &GoalTracker,
        plan: Option<ComparisonPlan>,
        report: &mut RunReport,
    ) {
        let passes = &measured.executed.passes;
        let ratio = self.goals.steady_ratio;
        let short = |at: usize| tracker.passes.get(at).and_then(|stats| stats.caveat(&passes[at], ratio));
        for (at, (pass_report, stats)) in report.passes.iter_mut().zip(&tracker.passes).enumerate() {
            if matches!(kind, MeasurementKind::Single) {
                pass_report.caveats.extend(short(at).map(BenchCaveat::Load));
            }
            pass_report.goals = Some(GoalsReport::of(&self.goals, stats, &passes[at]));
        }
        let label = |side: usize| {
            let (name, target) = &measured.sides[side];
            EndpointLabel { name: name.clone(), target: target.url() }
        };
        match kind {
            MeasurementKind::Single | MeasurementKind::OneSide { .. } => {}
            MeasurementKind::Comparison { .. } => {
                let sides = ComparedSides::of(measured.sides.len());
                let [a, b] = sides.pair.map(label);
                report.comparison =
                    Some(ComparisonReport::of(&self.compare, Seed(self.load.seed()), passes, sides, [a, b], plan));
            }
            MeasurementKind::Sweep(sweep) => {
                let ended_early = measured.executed.stopped || measured.executed.failed_step.is_some();
                let terms = self.goals.sweep_terms();
                report.sweep = Some(SweepResult::of(sweep, passes, &tracker.passes, terms, ended_early));
                let loads = (0..passes.len()).filter(|at| short(*at).is_some()).map(|at| passes[at].id.name.clone());
                let loads: Vec<String> = loads.collect();
                if !loads.is_empty() {
                    report.caveats.push(LoadCaveat::SteadyStateTooShortAt { loads }.into());
                }
            }
            MeasurementKind::Kep74 => {
                let with = self.compare.against.is_some().then(|| label(measured.sides.len() - 1).target);
                let tables = Kep74Tables::of(&tracker.passes);
                report.kep74 = Some(Kep74Report { tables, without: label(0).target, with });
            }
        }
    }

    /// Returns whether too few requests met the limits. Always false for a sweep, which searches
    /// for the load at which requests start to miss the limits.
    fn missed_goals(&self, kind: &MeasurementKind, measured: &MeasuredRun, tracker: &GoalTracker) -> bool {
        let required = self.goals.require_goodput.filter(|_| !matches!(kind, MeasurementKind::Sweep(_)));
        required.is_some_and(|required| tracker.has_missed(&measured.executed.passes, required))
    }

    /// Returns the exit code of the run.
    pub(super) fn exit(
        &self,
        kind: &MeasurementKind,
        measured: &MeasuredRun,
        tracker: &GoalTracker,
        report: &RunReport,
    ) -> Exit {
        // A run that sent no requests is not a success.
        let is_empty = measured.executed.passes.iter().all(|pass| pass.sent() == 0);
        if measured.executed.bugs() > 0 {
            return Exit::Bug;
        }
        match report.exit() {
            Exit::No if measured.executed.has_failed_endpoint() => Exit::Unreachable,
            Exit::Done if is_empty || self.missed_goals(kind, measured, tracker) => Exit::No,
            Exit::Done => report.comparison.as_ref().map_or(Exit::Done, ComparisonReport::exit),
            other => other,
        }
    }
}
