//! The report of a run as a JSON document (schema `mcctl.bench.multi-turn/1`, `packaging/schemas`).
//!
//! Each part of the document is a struct with a function that returns its [`ReportSection`]s.
//! Optional parts are an `Option`. The text report and the HTML page render the same sections.

mod caches;
pub(super) mod ceiling;
mod identity;
mod pass;
mod sources;
#[cfg(test)]
mod tests;
mod view;

use std::time::Duration;

use serde::Serialize;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::glossary;
use crate::commands::bench::measured::MeasuredSystem;
use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::comparison::ComparisonReport;
use crate::commands::bench::multi_turn::execute::MeasuredRun;
use crate::commands::bench::multi_turn::goals::GoalsReport;
use crate::commands::bench::multi_turn::kep74::Kep74Report;
use crate::commands::bench::multi_turn::scenario::{self, ScenarioReport};
use crate::commands::bench::multi_turn::sweep_report;
use crate::commands::cli::error::{Exit, Failure};
use crate::commands::cli::table::{ReportSection, truncated};
use crate::engine::load::sweep::SweepResult;

pub(in crate::commands::bench) use identity::{Identity, utc};
pub(in crate::commands::bench) use pass::{PassReport, SeriesReport};

/// Maximum number of failure types in one error message.
const FAILURES_SHOWN: usize = 3;

/// The JSON document. Latencies are in milliseconds.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct RunReport {
    pub schema: &'static str,
    pub run: Identity,
    /// The servers and the load generator; `None` for a comparison of recorded runs.
    pub measured: Option<MeasuredSystem>,
    pub passes: Vec<PassReport>,
    pub comparison: Option<ComparisonReport>,
    pub sweep: Option<SweepResult>,
    pub kep74: Option<Kep74Report>,
    /// Whether the run has followed the rules of `--preset agentx`.
    pub scenario: Option<ScenarioReport>,
    /// Caveats about the whole run.
    #[serde(rename = "doubts")]
    pub caveats: Vec<BenchCaveat>,
    /// The figures for `bench serving`, with the names and definitions from `sglang.bench_serving`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<serde_json::Value>,
    /// Show a text plot of the run over time (`--plot-throughput`).
    #[serde(skip)]
    pub plot: bool,
    /// Explain the terms at the end of the text report (`--legend`). A page always does.
    #[serde(skip)]
    pub legend: bool,
    /// A step failed or a signal ended the run. A caveat gives the reason.
    #[serde(skip)]
    is_incomplete: bool,
}

impl RunReport {
    /// Builds the report for a session, without the cross-pass results.
    pub(crate) fn of(args: &Args, identity: Identity, measured: &MeasuredRun) -> RunReport {
        let executed = &measured.executed;
        let mut caveats = measured.caveats.clone();
        if let Some(signal) = measured.signal {
            caveats.push(BenchCaveat::Signal { signal });
        }
        caveats.extend(executed.caveat().map(BenchCaveat::Load));
        let load = args.offered_load();
        let mut passes: Vec<PassReport> = executed
            .passes
            .iter()
            .map(|pass| PassReport::of(&measured.sides, &load, args.workload.sessions.gpus, pass))
            .collect();
        let in_blocks = passes.iter().any(|pass| pass.block > 0);
        passes.iter_mut().for_each(|pass| pass.in_blocks = in_blocks);
        RunReport {
            schema: if args.serving { "mcctl.bench.serving/1" } else { "mcctl.bench.multi-turn/1" },
            run: identity,
            measured: None,
            passes,
            comparison: None,
            sweep: None,
            kep74: None,
            scenario: ScenarioReport::of(args, measured),
            caveats,
            serving: None,
            plot: args.output.plot_throughput,
            legend: args.output.legend,
            is_incomplete: executed.failed_step.is_some() || measured.signal.is_some(),
        }
    }

    /// Returns the exit code: 0 if all requests succeeded; 1 if some failed, timed out or were not
    /// sent; 3 if none succeeded.
    pub(crate) fn exit(&self) -> Exit {
        let sum = |of: fn(&PassReport) -> u64| self.passes.iter().map(of).sum::<u64>();
        match (sum(|pass| pass.completed), sum(|pass| pass.failed), sum(|pass| pass.unfinished)) {
            (0, 1.., _) => Exit::Unreachable,
            (_, 0, 0) if !self.is_incomplete => Exit::Done,
            _ => Exit::No,
        }
    }

    /// Returns the error for a run without a successful request, including the reasons.
    pub(crate) fn refused(&self) -> Option<Failure> {
        let first = self.passes.iter().find(|pass| !pass.failures.is_empty())?;
        if self.exit() != Exit::Unreachable {
            return None;
        }
        let failed: u64 = self.passes.iter().map(|pass| pass.failed).sum();
        let found = first
            .failures
            .iter()
            .map(|(kind, failed)| format!("{} x {kind}: {}", failed.count, truncated(&failed.first, 200)));
        let (mut found, more) = (found.take(FAILURES_SHOWN).collect::<Vec<_>>(), first.failures.len());
        if more > FAILURES_SHOWN {
            found.push(format!("{} more failure types", more - FAILURES_SHOWN));
        }
        Some(
            Failure::unreachable(format!("all {failed} requests to {} failed", first.target))
                .found(found.join("; "))
                .next("check that --url points to an inference server and that --api matches it"),
        )
    }

    /// Returns all caveats. If the run has several passes, caveats about one pass include its
    /// label.
    pub(crate) fn all_caveats(&self) -> Vec<String> {
        let mut of_passes: Vec<(&BenchCaveat, Vec<String>)> = Vec::new();
        for pass in &self.passes {
            for caveat in &pass.caveats {
                match of_passes.iter_mut().find(|(other, _)| other.is_same(caveat)) {
                    Some((_, passes)) => passes.push(pass.label()),
                    None => of_passes.push((caveat, vec![pass.label()])),
                }
            }
        }
        let of_passes = of_passes.into_iter().map(|(caveat, passes)| match &passes[..] {
            [one] if self.passes.len() > 1 => format!("{one}: {caveat}"),
            [first, more @ ..] if !more.is_empty() => format!("{first} and {} more: {caveat}", more.len()),
            _ => caveat.to_string(),
        });
        let of_comparison = self.comparison.iter().flat_map(|comparison| &comparison.caveats);
        self.caveats.iter().chain(of_comparison).map(ToString::to_string).chain(of_passes).collect()
    }

    /// Returns the title: the command and its endpoints.
    pub(crate) fn title(&self) -> String {
        if let Some(ComparisonReport { a, b, .. }) = &self.comparison {
            return format!("mcctl bench compare: {} ({}) vs {} ({})", b.name, b.target, a.name, a.target);
        }
        let mut targets: Vec<String> = Vec::new();
        let several = self.passes.iter().any(|pass| pass.side != self.passes[0].side);
        for pass in &self.passes {
            let target = if several { format!("{} ({})", pass.side, pass.target) } else { pass.target.clone() };
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        let command = if self.serving.is_some() { "mcctl bench serving" } else { "mcctl bench multi-turn" };
        let models: Vec<&str> = self.measured.iter().flat_map(|measured| measured.models()).collect();
        let named = models.join(", ");
        match (named.is_empty(), targets.is_empty()) {
            (_, true) => command.to_owned(),
            (true, false) => format!("{command}: {}", targets.join(", ")),
            (false, false) => format!("{command}: {named} at {}", targets.join(", ")),
        }
    }

    /// Returns the report's conclusion, in at most four lines. The first is the verdict.
    pub(crate) fn answer(&self) -> Vec<String> {
        let together = self.comparison.as_ref().map(ComparisonReport::answer);
        let together = together.or_else(|| self.sweep.as_ref().map(sweep_report::answer));
        together.or_else(|| self.kep74.as_ref().map(Kep74Report::answer)).unwrap_or_else(|| view::answer(&self.passes))
    }

    /// Returns the report sections in order.
    pub(crate) fn sections(&self) -> Vec<ReportSection> {
        let mut sections: Vec<ReportSection> =
            self.measured.iter().map(|measured| measured.section(&self.run)).collect();
        let together = self.comparison.is_some() || self.sweep.is_some() || self.kep74.is_some();
        // The verdict's evidence first.
        sections.extend(self.comparison.iter().flat_map(ComparisonReport::sections));
        if self.passes.len() > 1 && !together {
            sections.push(view::overview(&self.passes));
        }
        for pass in self.passes.iter().filter(|pass| !together || !pass.failures.is_empty()) {
            sections.extend(view::pass(pass, self.run.seed));
            sections.extend(pass.ceiling.as_ref().map(ceiling::section));
            sections.push(pass.sources.section());
            sections.push(view::over_time_section(pass));
            sections.extend(pass.server.as_ref().map(caches::section));
            sections.extend(pass.goals.as_ref().map(GoalsReport::section));
            sections.extend(pass.interactivity.as_ref().map(scenario::interactivity_section));
        }
        sections.extend(self.scenario.as_ref().map(ScenarioReport::section));
        sections.extend(self.sweep.as_ref().map(sweep_report::section));
        sections.extend(self.kep74.iter().flat_map(Kep74Report::sections));
        // The passes of a comparison or a sweep are details, after its result.
        if self.passes.len() > 1 && together {
            sections.push(view::overview(&self.passes));
        }
        if self.legend {
            sections.push(glossary::section());
        }
        sections
    }
}

/// Returns a duration in milliseconds.
pub(in crate::commands::bench) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
