//! Reports the comparison of two endpoints.

use std::time::Duration;

use serde::Serialize;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::multi_turn::args::CompareArgs;
use crate::commands::bench::multi_turn::comparison_plan::ComparisonPlan;
use crate::commands::bench::multi_turn::comparison_text::summary;
use crate::commands::bench::multi_turn::report::ceiling;
use crate::commands::cli::error::Exit;
use crate::commands::cli::svg::{Axis, Plot, PlotSeries};
use crate::commands::cli::table::{ReportSection, ReportTable, percent};
use crate::engine::load::ceiling::HitCeiling;
use crate::engine::load::compare::{
    CompareOptions, ComparedSides, Comparison, ComparisonVerdict, EndpointComparison, Measure, SELF_COMPARE,
    SideFigures,
};
use crate::engine::load::measure::TokenTotals;
use crate::engine::load::paired::{BLOCKS_MEASURED, DRAWS, Difference, DifferenceVerdict, PASS_NOISE};
use crate::engine::load::session::PassResult;
use crate::engine::load::{LatencySummary, Seed};

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn blocks(number: usize) -> String {
    if number == 1 { "1 block".to_owned() } else { format!("{number} blocks") }
}

/// Name and target of an endpoint.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct EndpointLabel {
    pub name: String,
    /// The URL, or the path to the recorded run.
    pub target: String,
}

/// One metric at both endpoints.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct DifferenceReport {
    pub measure: &'static str,
    pub a: f64,
    pub b: f64,
    /// Mean of `b - a` over all pairs.
    pub difference: f64,
    /// `difference` as a percentage of `a`.
    pub percent: Option<f64>,
    pub low: f64,
    pub high: f64,
    /// Confidence level of the interval, from 0 to 1.
    pub level: f64,
    /// By how much the generator may have shifted the difference. The interval is wider by this at
    /// both ends.
    pub generator_bound: f64,
    pub conversations: usize,
    pub verdict: DifferenceVerdict,
    #[serde(skip)]
    label: &'static str,
}

/// Comparison of all passes that share a name.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct PassComparison {
    pub pass: String,
    pub blocks: usize,
    pub pairs: usize,
    /// Requests that succeeded only at A, and only at B. They are not compared.
    pub excluded: [u64; 2],
    /// Reasons why the passes are not comparable.
    pub refusals: Vec<String>,
    pub differences: Vec<DifferenceReport>,
    /// Verdict for this pass alone.
    pub verdict: ComparisonVerdict,
    #[serde(rename = "says")]
    pub summary: String,
    /// A's mean TTFT in the first and the second half of its blocks.
    pub a_halves_ttft_ms: Option<[f64; 2]>,
    #[serde(skip)]
    names: [String; 2],
}

/// The figures of one endpoint over all passes that are compared.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct SideReport {
    pub name: String,
    pub requests: u64,
    pub failed: u64,
    /// Duration of the passes, without the time between them.
    pub seconds: f64,
    pub requests_per_s: f64,
    pub input_tokens_per_s: f64,
    pub output_tokens_per_s: f64,
    pub tokens: TokenTotals,
    /// The ceiling of the hit rate; `None` if it is unknown.
    pub ceiling: Option<HitCeiling>,
    /// From the scheduled send time.
    pub ttft: Option<LatencySummary>,
    /// Cumulative distribution of TTFT: milliseconds, and the share of requests at or below.
    pub ttft_distribution: Vec<(f64, f64)>,
}

impl SideReport {
    fn of(name: &str, side: &SideFigures) -> SideReport {
        let curve = side.ttft.curve().into_iter();
        SideReport {
            name: name.to_owned(),
            requests: side.requests,
            failed: side.failed,
            seconds: side.seconds,
            requests_per_s: side.per_second(side.requests),
            input_tokens_per_s: side.per_second(side.tokens.prompt),
            output_tokens_per_s: side.per_second(side.tokens.completion + side.tokens.uncounted),
            tokens: side.tokens,
            ceiling: side.ceiling.clone(),
            ttft: side.ttft.summary(),
            ttft_distribution: curve.map(|(value, share)| ((ms(value) * 1e3).round() / 1e3, share)).collect(),
        }
    }
}

/// The comparison of two endpoints.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct ComparisonReport {
    pub a: EndpointLabel,
    pub b: EndpointLabel,
    /// The metric that decides, named before the run.
    pub primary: &'static str,
    /// Verdict on the primary metric in each compared pass; `None` if it was not compared.
    pub primary_verdicts: Vec<Option<DifferenceVerdict>>,
    /// Figures of A and B.
    pub sides: Vec<SideReport>,
    /// Conversations, blocks and rate; `None` if a recorded run is compared.
    pub plan: Option<ComparisonPlan>,
    /// Lowest confidence level of the intervals, from 0 to 1: that of the primary metric.
    pub level: f64,
    /// Smallest significant difference, as a percentage of A's mean.
    pub margin_percent: f64,
    pub noise_floor: Option<Vec<PassComparison>>,
    pub compared: Vec<PassComparison>,
    pub verdict: ComparisonVerdict,
    #[serde(rename = "says")]
    pub summary: String,
    #[serde(rename = "doubts")]
    pub caveats: Vec<BenchCaveat>,
}

fn report(compared: &Comparison, names: [&str; 2], primary: Measure) -> PassComparison {
    let verdict = ComparisonVerdict::of(std::slice::from_ref(compared));
    let summary = summary(std::slice::from_ref(compared), names, primary);
    let one = |(measure, found): &(Measure, Difference)| DifferenceReport {
        measure: measure.name(),
        a: found.mean_a,
        b: found.mean_b,
        difference: found.difference(),
        percent: found.share().map(|share| share * 100.0),
        low: found.low,
        high: found.high,
        level: found.level,
        generator_bound: found.bias,
        conversations: found.conversations,
        verdict: found.verdict,
        label: measure.label(),
    };
    PassComparison {
        pass: compared.pass.clone(),
        blocks: compared.blocks,
        pairs: compared.pairs,
        excluded: compared.excluded,
        refusals: compared.refusals.iter().map(ToString::to_string).collect(),
        differences: compared.differences.iter().map(one).collect(),
        verdict,
        summary,
        a_halves_ttft_ms: compared.halves,
        names: names.map(str::to_owned),
    }
}

impl ComparisonReport {
    /// Compares the passes of a session or of recorded runs.
    pub(super) fn of(
        args: &CompareArgs,
        seed: Seed,
        passes: &[PassResult],
        sides: ComparedSides,
        [a, b]: [EndpointLabel; 2],
        plan: Option<ComparisonPlan>,
    ) -> ComparisonReport {
        let primary = args.primary();
        let terms =
            CompareOptions { margin: args.margin() / 100.0, primary, lag_limit: args.lag_limit(), seed, draws: DRAWS };
        let found = EndpointComparison::of(passes, sides, [&a.name, &b.name], &terms);
        let again = format!("{} again", a.name);
        let reports = |compared: &[Comparison], names: [&str; 2]| {
            compared.iter().map(|one| report(one, names, primary)).collect::<Vec<PassComparison>>()
        };
        let noise_floor = found.noise_floor.as_deref().map(|floor| reports(floor, [&a.name, &again]));
        let names = [a.name.as_str(), b.name.as_str()];
        let mut summary = summary(&found.compared, names, primary);
        let missed = plan.as_ref().map(ComparisonPlan::missed).unwrap_or_default();
        let is_open = |one: &Comparison| one.verdict_on(primary) == Some(DifferenceVerdict::NoDifferenceShown);
        if !missed.is_empty() && found.compared.iter().any(is_open) {
            summary.push_str(&format!(
                "; the load does not reach {}, so {} benefit cannot show",
                missed.join(" and "),
                if missed.len() == 1 { "its" } else { "their" }
            ));
        }
        ComparisonReport {
            primary: primary.name(),
            primary_verdicts: found.compared.iter().map(|one| one.verdict_on(primary)).collect(),
            sides: names.iter().zip(&found.sides).map(|(name, side)| SideReport::of(name, side)).collect(),
            plan,
            level: found.level,
            margin_percent: args.margin(),
            noise_floor,
            compared: reports(&found.compared, names),
            verdict: found.verdict,
            summary,
            caveats: found.caveats.into_iter().map(BenchCaveat::Load).collect(),
            a,
            b,
        }
    }

    /// Returns the exit code for the verdict.
    pub(crate) fn exit(&self) -> Exit {
        match self.verdict {
            // The primary metric has no values, so there is no verdict on it.
            _ if self.primary_verdicts.iter().any(Option::is_none) => Exit::No,
            ComparisonVerdict::Worse
            | ComparisonVerdict::Mixed
            | ComparisonVerdict::Refused
            | ComparisonVerdict::TooFew => Exit::No,
            ComparisonVerdict::Better | ComparisonVerdict::NoDifferenceShown => Exit::Done,
        }
    }

    /// Returns the report sections: the metrics, both endpoints side by side, the noise floor, and
    /// how it was measured.
    pub(crate) fn sections(&self) -> Vec<ReportSection> {
        let mut sections = Vec::new();
        for one in &self.compared {
            let mut section = one.section(format!("{} vs {}: {}", self.b.name, self.a.name, one.pass));
            if self.compared.len() > 1 || !one.refusals.is_empty() {
                section.text.push(format!("Verdict for {}: {}", one.pass, one.summary));
            }
            sections.push(section);
        }
        sections.push(self.side_by_side());
        for one in self.noise_floor.iter().flatten() {
            let mut section =
                one.section(format!("Noise floor for {}: {}", self.a.name, one.pass.trim_start_matches(SELF_COMPARE)));
            section.text.push(format!("Noise floor, {} compared with itself: {}", self.a.name, one.summary));
            sections.push(section);
        }
        sections.extend(self.plan.as_ref().map(ComparisonPlan::section));
        sections.push(self.method());
        sections
    }

    fn method(&self) -> ReportSection {
        let mut method = ReportSection::new("Method");
        if self.level <= 0.0 {
            return method;
        }
        method.text.push(format!(
            "Differences are paired by conversation and turn. Intervals come from a bootstrap over conversations or from the spread between \
             blocks, whichever is wider, and all of them hold together in 95 of 100 comparisons: the interval of the primary metric has a \
             confidence level of {:.2} %, and the others share the rest. They are wider by the generator bound: the mean lag of the load \
             generator for TTFT and E2E, the read delay per token for TPOT and ITL. Differences below {} % of {}'s mean are ignored.",
            self.level * 100.0,
            self.margin_percent,
            self.a.name
        ));
        if self.compared.iter().any(|one| one.blocks < BLOCKS_MEASURED) {
            method.text.push(format!(
                "Fewer than {BLOCKS_MEASURED} blocks do not measure how much passes differ by chance. A standard deviation of {:.0} % of the \
                 mean per pass is assumed instead.",
                PASS_NOISE * 100.0
            ));
        }
        method
    }

    /// Returns both endpoints side by side: TTFT, throughput and the source of the prompt tokens.
    fn side_by_side(&self) -> ReportSection {
        let mut section = ReportSection::new("Both endpoints");
        let head =
            ["endpoint", "requests", "TTFT mean, ms", "p50", "p90", "p99", "requests/s", "tokens/s in", "tokens/s out"];
        let mut table = ReportTable::new("TTFT and throughput", &head);
        let head = ["endpoint", "prompt tokens", "L1, %", "L2, %", "L3, %", "tier unknown, %", "computed, %"];
        let mut tiers = ReportTable::new("Source of prompt tokens", &head);
        for side in &self.sides {
            let Some(ttft) = side.ttft else { continue };
            let maybe = |value: Option<Duration>| value.map_or("too few".to_owned(), |v| format!("{:.1}", ms(v)));
            table.row([
                side.name.clone(),
                side.requests.to_string(),
                format!("{:.1}", ms(ttft.mean)),
                format!("{:.1}", ms(ttft.p50)),
                maybe(ttft.p90),
                maybe(ttft.p99),
                format!("{:.2}", side.requests_per_s),
                format!("{:.0}", side.input_tokens_per_s),
                format!("{:.0}", side.output_tokens_per_s),
            ]);
            let tokens = &side.tokens;
            let share = |part: u64| percent(part, tokens.prompt);
            tiers.row([
                side.name.clone(),
                tokens.prompt.to_string(),
                share(tokens.device),
                share(tokens.host),
                share(tokens.storage),
                share(tokens.cached_somewhere),
                share(tokens.prompt.saturating_sub(tokens.cached())),
            ]);
        }
        section.tables = vec![table, tiers];
        section
            .tables
            .extend(ceiling::of_rows("endpoint", self.sides.iter().map(|side| (&*side.name, side.ceiling.as_ref()))));
        let mut plot = Plot::new("Distribution of TTFT", Axis::log("ms"), Axis::even("% at or below"));
        for (color, side) in self.sides.iter().enumerate() {
            let curve = side.ttft_distribution.iter().map(|(value, share)| (value.max(0.001), share * 100.0));
            plot = plot.with(PlotSeries::line(&side.name, color, curve.collect()));
        }
        section.plots.push(plot);
        section
    }

    /// Returns the report's conclusion: the verdict, the primary metric and the endpoints.
    pub(crate) fn answer(&self) -> Vec<String> {
        let mut lines = vec![format!("Verdict: {}", self.summary)];
        let several = self.compared.len() > 1;
        for one in &self.compared {
            let Some(found) = one.differences.first().filter(|found| found.measure == self.primary) else { continue };
            let percent = found.percent.map_or(String::new(), |percent| format!(", {percent:+.1} %"));
            let pass = if several { format!("{}: ", one.pass) } else { String::new() };
            lines.push(format!(
                "{pass}{}: {} {:.2}, {} {:.2}, difference {:+.2}{percent} ({} % interval {:+.2} to {:+.2}, {} pairs in {})",
                found.label,
                self.a.name,
                found.a,
                self.b.name,
                found.b,
                found.difference,
                (found.level * 1e4).round() / 100.0,
                found.low,
                found.high,
                one.pairs,
                blocks(one.blocks)
            ));
        }
        if lines.len() == 1 {
            lines.push("The primary metric was not compared".to_owned());
        }
        lines.push(format!("{}: {}, {}: {}", self.a.name, self.a.target, self.b.name, self.b.target));
        lines
    }
}

impl PassComparison {
    fn section(&self, title: String) -> ReportSection {
        let mut section = ReportSection::new(&title);
        let [a, b] = [0, 1].map(|side| self.names[side].as_str());
        let head = ["metric", a, b, "difference", "%", "low", "high", "generator bound", "verdict"];
        let title = format!("{title} ({} pairs in {})", self.pairs, blocks(self.blocks));
        let mut table = ReportTable::new(&title, &head).text_column(8);
        for found in &self.differences {
            table.row([
                found.label.to_owned(),
                format!("{:.2}", found.a),
                format!("{:.2}", found.b),
                format!("{:+.2}", found.difference),
                found.percent.map_or("-".to_owned(), |percent| format!("{percent:+.1}")),
                format!("{:+.2}", found.low),
                format!("{:+.2}", found.high),
                format!("{:.2}", found.generator_bound),
                found.verdict.label().to_owned(),
            ]);
        }
        section.tables.push(table);
        // Cached tokens may change by hundreds of percent, which would hide the latencies.
        let share = |found: &DifferenceReport| {
            found.measure != Measure::Cached.name() && found.percent.filter(|_| found.a > 0.0).is_some()
        };
        let shown: Vec<&DifferenceReport> = self.differences.iter().filter(|found| share(found)).collect();
        let of = |(at, found): (usize, &&DifferenceReport)| {
            let percent = |value: f64| value / found.a * 100.0;
            (at as f64, percent(found.low), percent(found.difference), percent(found.high))
        };
        let names = shown.iter().map(|found| found.label.trim_end_matches(" ms").to_owned()).collect();
        let plot = Plot::new("Difference of latencies with interval, % of A", Axis::named("", names), Axis::close("%"));
        section.plots.push(plot.with(PlotSeries::whiskers(
            &format!("{b} - {a}"),
            0,
            shown.iter().enumerate().map(of).collect(),
        )));
        section
    }
}
