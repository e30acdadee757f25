//! What follows from the passes of a session together.

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::arrange::What;
use crate::commands::bench::multi_turn::compared::{ComparisonReport, Named};
use crate::commands::bench::multi_turn::goals::Goals;
use crate::commands::bench::multi_turn::kep74::Kep74Report;
use crate::commands::bench::multi_turn::measure::Measured;
use crate::commands::bench::multi_turn::report::Report;
use crate::commands::bench::multi_turn::swept::SweepReport;
use crate::commands::bench::multi_turn::watch::Watch;
use crate::commands::error::Exit;
use crate::engine::load::Seed;
use crate::engine::load::session::Pass;

impl Args {
    /// Put into `report` what follows from the passes together.
    pub(super) fn look(&self, what: &What, measured: &Measured, watch: &Watch, report: &mut Report) {
        let passes = &measured.executed.passes;
        for ((told, pass), watched) in report.passes.iter_mut().zip(passes).zip(&watch.passes) {
            let goals = Goals::of(&self.goals, watched, pass);
            if matches!(what, What::Run) {
                told.doubts.extend(goals.doubt(pass));
            }
            told.goals = Some(goals);
        }
        let named = |side: usize| {
            let (name, target) = &measured.sides[side];
            Named { name: name.clone(), target: target.url() }
        };
        match what {
            What::Run => {}
            What::Comparison(sides) => {
                let [a, b] = sides.pair.map(named);
                report.comparison =
                    Some(ComparisonReport::of(&self.compare, Seed(self.load.seed), passes, *sides, [a, b]));
            }
            What::Sweep(sweep) => {
                let stopped = measured.executed.stopped || measured.executed.broke.is_some();
                report.sweep = Some(SweepReport::of(&self.goals, sweep, passes, &watch.passes, stopped));
                let pairs = report.passes.iter().zip(passes);
                let short: Vec<&str> = pairs
                    .filter(|(told, pass)| told.goals.as_ref().is_some_and(|goals| goals.doubt(pass).is_some()))
                    .map(|(_, pass)| pass.id.name.as_str())
                    .collect();
                if !short.is_empty() {
                    report.doubts.push(format!(
                        "what is in flight is that of the steady state, which is too short at {} (more conversations make it longer)",
                        short.join(", ")
                    ));
                }
            }
            What::Kep74 => {
                let with = self.compare.against.is_some().then(|| named(measured.sides.len() - 1).target);
                report.kep74 = Some(Kep74Report::of(&watch.passes, named(0).target, with));
            }
        }
    }

    /// Did fewer requests than wanted meet the limits? In a sweep that is what is looked for.
    fn missed(&self, what: &What, measured: &Measured, watch: &Watch) -> bool {
        let Some(wanted) = self.goals.require_goodput.filter(|_| !matches!(what, What::Sweep(_))) else { return false };
        let sent: u64 = measured.executed.passes.iter().map(Pass::sent).sum();
        let met: u64 = watch.passes.iter().map(|pass| pass.goodput.met).sum();
        (met as f64) < wanted * sent as f64
    }

    /// The exit code of it all.
    pub(super) fn exit(&self, what: &What, measured: &Measured, watch: &Watch, report: &Report) -> Exit {
        // What measured nothing did not go well.
        let is_empty = measured.executed.passes.iter().all(|pass| pass.sent() == 0);
        if measured.bugs() > 0 {
            return Exit::Bug;
        }
        match report.exit() {
            Exit::No if measured.is_away() => Exit::Unreachable,
            Exit::Done if is_empty || self.missed(what, measured, watch) => Exit::No,
            Exit::Done => report.comparison.as_ref().map_or(Exit::Done, ComparisonReport::exit),
            other => other,
        }
    }
}
