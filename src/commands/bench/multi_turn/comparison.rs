//! Reports the comparison of two endpoints.

use serde::Serialize;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::multi_turn::args::CompareArgs;
use crate::commands::error::Exit;
use crate::commands::svg::{Axis, Plot, PlotSeries};
use crate::commands::table::{ReportSection, ReportTable};
use crate::engine::load::Seed;
use crate::engine::load::compare::{
    CompareOptions, ComparedSides, Comparison, ComparisonVerdict, EndpointComparison, Measure, SELF_COMPARE, different,
};
use crate::engine::load::paired::{CONVERSATIONS_MIN, DRAWS, Difference, DifferenceVerdict};
use crate::engine::load::session::PassResult;

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
    /// Reasons why the passes are not comparable.
    pub refusals: Vec<String>,
    pub differences: Vec<DifferenceReport>,
    /// Verdict for this pass alone.
    pub verdict: ComparisonVerdict,
    #[serde(rename = "says")]
    pub summary: String,
    /// A's mean TTFT in the first and the second half of its blocks.
    pub a_halves_ttft_ms: Option<[f64; 2]>,
}

/// The comparison of two endpoints.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct ComparisonReport {
    pub a: EndpointLabel,
    pub b: EndpointLabel,
    /// Confidence level of the intervals, from 0 to 1.
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

fn report(compared: &Comparison, [a, b]: [&str; 2]) -> PassComparison {
    let verdict = ComparisonVerdict::of(std::slice::from_ref(compared));
    let summary = summary(verdict, std::slice::from_ref(compared), [a, b]);
    let one = |(measure, found): &(Measure, Difference)| DifferenceReport {
        measure: measure.name(),
        a: found.mean_a,
        b: found.mean_b,
        difference: found.difference(),
        percent: found.share().map(|share| share * 100.0),
        low: found.low,
        high: found.high,
        conversations: found.conversations,
        verdict: found.verdict,
        label: measure.label(),
    };
    PassComparison {
        pass: compared.pass.clone(),
        blocks: compared.blocks,
        pairs: compared.pairs,
        refusals: compared.refusals.iter().map(ToString::to_string).collect(),
        differences: compared.differences.iter().map(one).collect(),
        verdict,
        summary,
        a_halves_ttft_ms: compared.halves,
    }
}

/// Describes `verdict`, the verdict for `compared`. `a` and `b` are the endpoint names.
fn summary(verdict: ComparisonVerdict, compared: &[Comparison], [a, b]: [&str; 2]) -> String {
    let metrics = |verdict| different(compared, verdict).join(", ");
    let (better, worse) = (metrics(DifferenceVerdict::Better), metrics(DifferenceVerdict::Worse));
    match verdict {
        ComparisonVerdict::Better => format!("{b} is better: {better}"),
        ComparisonVerdict::Worse => format!("{b} is worse: {worse}"),
        ComparisonVerdict::Mixed => format!("{b} is better in {better} and worse in {worse}"),
        ComparisonVerdict::NoDifferenceShown => format!("no difference shown between {a} and {b}"),
        ComparisonVerdict::TooFew => format!("too few conversations: a verdict needs at least {CONVERSATIONS_MIN}"),
        ComparisonVerdict::Refused if compared.is_empty() => format!("not compared: no pass ran on both {a} and {b}"),
        ComparisonVerdict::Refused => {
            let mut reasons: Vec<String> =
                compared.iter().flat_map(|one| one.refusals.iter().map(ToString::to_string)).collect();
            reasons.dedup();
            format!("not compared: {}", reasons.join("; "))
        }
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
    ) -> ComparisonReport {
        let terms = CompareOptions { margin: args.margin() / 100.0, lag_limit: args.lag_limit(), seed, draws: DRAWS };
        let found = EndpointComparison::of(passes, sides, [&a.name, &b.name], &terms);
        let again = format!("{} again", a.name);
        let reports = |compared: &[Comparison], names: [&str; 2]| {
            compared.iter().map(|one| report(one, names)).collect::<Vec<PassComparison>>()
        };
        let noise_floor = found.noise_floor.as_deref().map(|floor| reports(floor, [&a.name, &again]));
        let names = [a.name.as_str(), b.name.as_str()];
        ComparisonReport {
            level: found.level,
            margin_percent: args.margin(),
            noise_floor,
            compared: reports(&found.compared, names),
            verdict: found.verdict,
            summary: summary(found.verdict, &found.compared, names),
            caveats: found.caveats.into_iter().map(BenchCaveat::Load).collect(),
            a,
            b,
        }
    }

    /// Returns the exit code for the verdict.
    pub fn exit(&self) -> Exit {
        match self.verdict {
            ComparisonVerdict::Worse | ComparisonVerdict::Mixed | ComparisonVerdict::Refused => Exit::No,
            ComparisonVerdict::Better | ComparisonVerdict::NoDifferenceShown | ComparisonVerdict::TooFew => Exit::Done,
        }
    }

    /// Returns the report sections.
    pub fn sections(&self) -> Vec<ReportSection> {
        let mut sections = Vec::new();
        for one in self.noise_floor.iter().flatten() {
            let mut section =
                one.section(format!("Noise floor for {}: {}", self.a.name, one.pass.trim_start_matches(SELF_COMPARE)));
            section.text.push(format!("Noise floor, {} compared with itself: {}", self.a.name, one.summary));
            sections.push(section);
        }
        for one in &self.compared {
            let mut section = one.section(format!("{} vs {}: {}", self.b.name, self.a.name, one.pass));
            if self.compared.len() > 1 || !one.refusals.is_empty() {
                section.text.push(format!("Verdict for {}: {}", one.pass, one.summary));
            }
            sections.push(section);
        }
        let mut last = ReportSection::new("Method");
        if self.level > 0.0 {
            last.text.push(format!(
                "Differences are paired by conversation and turn. Each interval has a confidence level of {:.4} % (bootstrap over \
                conversations or blocks, whichever is wider), so all intervals hold together in 95 of 100 comparisons. Differences below \
                {} % of {}'s mean are ignored.",
                self.level * 100.0,
                self.margin_percent,
                self.a.name
            ));
        }
        sections.push(last);
        sections
    }

    /// Returns the report's conclusion: the verdict, the endpoints and the first metric.
    pub fn answer(&self) -> Vec<String> {
        let first = self.compared.iter().find_map(|one| one.differences.first());
        vec![
            format!("Verdict: {}", self.summary),
            format!("{}: {}, {}: {}", self.a.name, self.a.target, self.b.name, self.b.target),
            first.map_or("No metric was compared".to_owned(), |found| {
                let percent = found.percent.map_or(String::new(), |percent| format!(", {percent:+.1} %"));
                format!(
                    "{}: {:.2} and {:.2}, difference {:+.2}{percent} (interval {:+.2} to {:+.2})",
                    found.label, found.a, found.b, found.difference, found.low, found.high
                )
            }),
        ]
    }
}

impl PassComparison {
    fn section(&self, title: String) -> ReportSection {
        let mut section = ReportSection::new(&title);
        let head = ["metric", "A", "B", "B - A", "%", "low", "high", "verdict"];
        let title = format!("{title} ({} pairs in {} blocks)", self.pairs, self.blocks);
        let mut table = ReportTable::new(&title, &head).text_column(7);
        for found in &self.differences {
            table.row([
                found.label.to_owned(),
                format!("{:.2}", found.a),
                format!("{:.2}", found.b),
                format!("{:+.2}", found.difference),
                found.percent.map_or("-".to_owned(), |percent| format!("{percent:+.1}")),
                format!("{:+.2}", found.low),
                format!("{:+.2}", found.high),
                found.verdict.label().to_owned(),
            ]);
        }
        section.tables.push(table);
        let share = |found: &DifferenceReport| found.percent.filter(|_| found.a > 0.0).is_some();
        let shown: Vec<&DifferenceReport> = self.differences.iter().filter(|found| share(found)).collect();
        let of = |(at, found): (usize, &&DifferenceReport)| {
            let percent = |value: f64| value / found.a * 100.0;
            (at as f64, percent(found.low), percent(found.difference), percent(found.high))
        };
        let names = shown.iter().map(|found| found.label.trim_end_matches(" ms").to_owned()).collect();
        let plot = Plot::new("Difference and interval, % of A", Axis::named("", names), Axis::close("%"));
        section.plots.push(plot.with(PlotSeries::whiskers("B - A", 0, shown.iter().enumerate().map(of).collect())));
        section
    }
}
