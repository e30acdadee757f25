//! What a run tells, as a document (schema `mcctl.bench.multi-turn/1`, `fixtures/load/schema`).
//!
//! A part of the document is a struct in a file of its own here (or with what computes it), an `Option` where it is not always
//! there, and a function that gives its [`Section`]s; the terminal's report and the page both show these.

mod caches;
mod identity;
mod pass;
mod view;

use std::time::Duration;

use serde::Serialize;

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::compared::ComparisonReport;
use crate::commands::bench::multi_turn::goals::Goals;
use crate::commands::bench::multi_turn::kep74::Kep74Report;
use crate::commands::bench::multi_turn::measure::Measured;
use crate::commands::bench::multi_turn::swept::SweepReport;
use crate::commands::bench::sheet::{Section, cut};
use crate::commands::error::{Exit, Failure};

pub(in crate::commands::bench) use identity::{Identity, utc};
pub(in crate::commands::bench) use pass::{PassReport, SeriesReport};

/// Kinds of failures that one error names.
const FAILURES_SHOWN: usize = 3;

/// The document. Latencies are in milliseconds.
#[derive(Debug, Serialize)]
pub(in crate::commands::bench) struct Report {
    pub schema: &'static str,
    /// What was run.
    pub run: Identity,
    pub passes: Vec<PassReport>,
    /// Two endpoints beside each other.
    pub comparison: Option<ComparisonReport>,
    /// The same at several loads.
    pub sweep: Option<SweepReport>,
    /// The table of KEP-74.
    pub kep74: Option<Kep74Report>,
    /// Why all of it may be doubted.
    pub doubts: Vec<String>,
    /// The figures of `bench serving`, by the names and definitions of `sglang.bench_serving`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<serde_json::Value>,
    /// Is a plot of the run over time shown at a terminal?
    #[serde(skip)]
    pub plot: bool,
    /// A step could not be done, or a signal came, and nothing after it was: the doubts say which.
    #[serde(skip)]
    broke: bool,
}

impl Report {
    pub fn of(args: &Args, identity: Identity, measured: &Measured) -> Report {
        let executed = &measured.executed;
        let mut doubts = measured.doubts.clone();
        if let Some(signal) = measured.signal {
            doubts.push(format!("{signal} ended the run early"));
        }
        if let Some(broke) = &executed.broke {
            doubts.push(format!("not all was done: {broke}"));
        }
        let mut passes: Vec<PassReport> =
            executed.passes.iter().map(|pass| PassReport::of(args, &measured.sides, pass)).collect();
        let in_blocks = passes.iter().any(|pass| pass.block > 0);
        passes.iter_mut().for_each(|pass| pass.in_blocks = in_blocks);
        Report {
            schema: if args.serving { "mcctl.bench.serving/1" } else { "mcctl.bench.multi-turn/1" },
            run: identity,
            passes,
            comparison: None,
            sweep: None,
            kep74: None,
            doubts,
            serving: None,
            plot: args.output.plot_throughput,
            broke: executed.broke.is_some() || measured.signal.is_some(),
        }
    }

    /// How the run ends: 0 all went well, 1 some failed, were given up, or not all was done, 3 none went well.
    pub fn exit(&self) -> Exit {
        let sum = |of: fn(&PassReport) -> u64| self.passes.iter().map(of).sum::<u64>();
        match (sum(|pass| pass.completed), sum(|pass| pass.failed), sum(|pass| pass.unfinished)) {
            (0, 1.., _) => Exit::Unreachable,
            (_, 0, 0) if !self.broke => Exit::Done,
            _ => Exit::No,
        }
    }

    /// The error of a run in which no request succeeded: there is nothing to show of it but why.
    pub fn refused(&self) -> Option<Failure> {
        let first = self.passes.iter().find(|pass| !pass.failures.is_empty())?;
        if self.exit() != Exit::Unreachable {
            return None;
        }
        let failed: u64 = self.passes.iter().map(|pass| pass.failed).sum();
        let found = first
            .failures
            .iter()
            .map(|(kind, failed)| format!("{} x {kind}: {}", failed.count, cut(&failed.first, 200)));
        let (mut found, more) = (found.take(FAILURES_SHOWN).collect::<Vec<_>>(), first.failures.len());
        if more > FAILURES_SHOWN {
            found.push(format!("{} more kinds", more - FAILURES_SHOWN));
        }
        Some(
            Failure::unreachable(format!("no request to {} succeeded: {failed} of {failed} failed", first.target))
                .found(found.join("; "))
                .next("check that --url names a SGLang server, and that --api fits it"),
        )
    }

    /// All doubts, with the passes that each is about where there are several.
    pub fn all_doubts(&self) -> Vec<String> {
        let mut of_passes: Vec<(&str, Vec<String>)> = Vec::new();
        for pass in &self.passes {
            for doubt in &pass.doubts {
                match of_passes.iter_mut().find(|(other, _)| other == doubt) {
                    Some((_, passes)) => passes.push(pass.label()),
                    None => of_passes.push((doubt, vec![pass.label()])),
                }
            }
        }
        let told = of_passes.into_iter().map(|(doubt, passes)| match &passes[..] {
            _ if self.passes.len() == 1 => doubt.to_owned(),
            [one] => format!("{one}: {doubt}"),
            [first, more @ ..] => format!("{first} and {} more: {doubt}", more.len()),
            [] => doubt.to_owned(),
        });
        self.doubts.iter().cloned().chain(told).collect()
    }

    /// What was measured, in a line: the endpoints by name where there are several.
    pub fn title(&self) -> String {
        if let Some(ComparisonReport { a, b, .. }) = &self.comparison {
            return format!("mcctl bench compare: {} ({}) against {} ({})", b.name, b.target, a.name, a.target);
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
        if targets.is_empty() { command.to_owned() } else { format!("{command}: {}", targets.join(", ")) }
    }

    /// What is shown, in order.
    pub fn sections(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        if self.passes.len() > 1 {
            sections.push(view::overview(&self.passes));
        }
        let together = self.comparison.is_some() || self.sweep.is_some() || self.kep74.is_some();
        for pass in self.passes.iter().filter(|pass| !together || !pass.failures.is_empty()) {
            sections.extend(view::pass(pass, self.run.seed));
            sections.extend(pass.server.as_ref().map(caches::section));
            sections.extend(pass.goals.as_ref().map(Goals::section));
        }
        sections.extend(self.sweep.as_ref().map(SweepReport::section));
        sections.extend(self.kep74.iter().flat_map(Kep74Report::sections));
        sections.extend(self.comparison.iter().flat_map(ComparisonReport::sections));
        sections
    }
}

/// A duration in milliseconds.
pub(in crate::commands::bench) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
