//! The report of a tier ladder: the JSON document, the tables and plots, and the conclusion.

use serde::Serialize;

use crate::commands::bench::caveat::{BenchCaveat, render_end};
use crate::commands::bench::ladder::conclusion;
use crate::commands::bench::measured::MeasuredSystem;
use crate::commands::bench::multi_turn::Identity;
use crate::commands::cli::svg::{Axis, Plot, PlotSeries};
use crate::commands::cli::table::{self, ReportSection, ReportTable};
use crate::engine::load::ladder::{AbsentTier, Ladder, LadderCell, LadderEnd, LadderLimits, LadderTier, TimeSaved};
use crate::engine::load::server::ServerInfo;

/// The JSON report (schema `mcctl.bench.ladder/2`).
#[derive(Debug, Serialize)]
pub(super) struct LadderReport {
    pub schema: &'static str,
    pub version: &'static str,
    pub target: String,
    pub seed: u64,
    pub server: ServerInfo,
    pub measured: MeasuredSystem,
    #[serde(flatten)]
    pub ladder: Ladder,
    /// Tiers that the server does not have.
    pub absent: Vec<AbsentTier>,
    pub limits: LadderLimits,
    /// Probability that a tier which takes as long as computing at some length gets the verdict
    /// faster or slower there.
    pub verdict_error: f64,
    /// Number of rounds that were started.
    pub rounds: u32,
    pub end: LadderEnd,
    /// Whether the responses match the server's counters in every pass; `None` if not checked.
    pub agrees: Option<bool>,
    #[serde(rename = "doubts")]
    pub caveats: Vec<BenchCaveat>,
}

impl LadderReport {
    /// Renders the report as text, wrapped to `width` columns.
    pub(super) fn text(&self, run: &Identity, width: usize) -> String {
        self.measured.section(run).render(width) + "\n" + &self.figures(width)
    }

    /// Renders the tables, the caveats and the conclusion.
    fn figures(&self, width: usize) -> String {
        let section = self.section();
        let text = ReportSection { title: String::new(), ..section }.render(width);
        text + "\n"
            + &table::wrapped_line(self.agreement(), width)
            + &render_end(&self.caveats, &self.sentences(), width)
    }

    /// Returns the conclusion: a sentence for each tier.
    pub(super) fn sentences(&self) -> Vec<String> {
        conclusion::sentences(&self.ladder, &self.absent)
    }

    /// Returns what was measured on which server.
    pub(super) fn head(&self) -> String {
        let server = &self.server;
        format!(
            "{} (SGLang {}): {} tokens in L1, {} tokens per page, L2 {}, L3 {} (seed {})",
            self.target,
            server.version.as_deref().unwrap_or("version unknown"),
            server.device_tokens.unwrap_or(0),
            server.page_size.unwrap_or(0),
            match (server.has_host, server.host_tokens()) {
                (false, _) => "none".to_owned(),
                (true, Some(tokens)) => format!("{tokens} tokens"),
                (true, None) => "of unknown size".to_owned(),
            },
            server.storage.as_deref().unwrap_or("none"),
            self.seed
        )
    }

    /// Returns whether the responses match the server's counters, as a sentence.
    pub(super) fn agreement(&self) -> &'static str {
        match self.agrees {
            Some(true) => "Cached tokens in the responses match the server's counters in every pass",
            Some(false) => "Cached tokens in the responses differ from the server's counters",
            None => "The server's counters were unavailable for comparison",
        }
    }

    /// Returns the tables and plots.
    pub(super) fn section(&self) -> ReportSection {
        let mut section = ReportSection::new("TTFT by prompt length and tier");
        section.text.push(self.head());
        section.tables = vec![self.rungs(), self.fits()];
        section.plots = vec![self.plot(), self.saved_plot()];
        section
    }

    fn rungs(&self) -> ReportTable {
        let head = [
            "tokens",
            "tier",
            "verified",
            "TTFT median, ms",
            "95 % interval",
            "saved, ms",
            "99 % interval",
            "verdict",
            "tokens/s",
        ];
        let mut rows = ReportTable::new("", &head).text_column(1).text_column(7);
        for rung in &self.ladder.rungs {
            let ttft = rung.ttft;
            let saved = rung.saved.as_ref();
            let none = || "-".to_owned();
            rows.row([
                rung.length.to_string(),
                rung.tier.name().to_owned(),
                format!("{}/{}", rung.verified, rung.requests),
                ttft.map_or_else(none, |ttft| format!("{:.1}", ttft.median_ms)),
                ttft.and_then(|ttft| Some(interval(ttft.low_ms?, ttft.high_ms?))).unwrap_or_else(none),
                saved.map_or_else(none, |saved| format!("{:.1}", saved.median_ms)),
                saved.and_then(|saved| Some(interval(saved.low_ms?, saved.high_ms?))).unwrap_or_else(none),
                saved.map_or("", |saved| saved.verdict.name()).to_owned(),
                rung.tokens_per_s.map_or_else(none, |rate| format!("{rate:.0}")),
            ]);
        }
        rows.notes.push(format!(
            "saved: TTFT of computing the same prompt minus TTFT from the tier, as the median over the prompts; {}",
            self.repeats()
        ));
        rows.notes.push(format!(
            "verdict: a tier that takes as long as computing gets the verdict faster or slower with a probability of at most {:.1} %, because \
             each round of prompts may decide",
            self.verdict_error * 100.0
        ));
        rows
    }

    /// Describes the number of prompts, and why there are no more.
    fn repeats(&self) -> String {
        let cold = self.ladder.rungs.iter().filter(|rung| rung.tier == LadderTier::Cold);
        let (low, high) =
            cold.fold((u32::MAX, 0), |(low, high), rung| (low.min(rung.requests), high.max(rung.requests)));
        let number = if low >= high { high.to_string() } else { format!("{low} to {high}") };
        let LadderLimits { repeats_max, precision, time_max, .. } = self.limits;
        let percent = precision * 100.0;
        match self.end {
            LadderEnd::Precise => {
                format!("{number} prompts per length, until every interval was within {percent} % of computing")
            }
            LadderEnd::MaxRepeats => format!("{number} prompts per length (limit: {repeats_max})"),
            LadderEnd::MaxTime => {
                format!("{number} prompts per length (time limit: {} s)", time_max.as_secs_f64())
            }
            LadderEnd::Interrupted => format!("{number} prompts per length"),
        }
    }

    fn fits(&self) -> ReportTable {
        let title = "Line through the medians (Theil-Sen): TTFT against prompt length";
        let mut rows = ReportTable::new(title, &["tier", "fixed cost, ms", "tokens/s"]);
        for fit in &self.ladder.fits {
            let rate = fit.tokens_per_s.map_or("no increase".to_owned(), |rate| format!("{rate:.0}"));
            rows.row([fit.tier.name().to_owned(), format!("{:.1}", fit.fixed_ms), rate]);
        }
        rows
    }

    /// Returns TTFT against prompt length, a line with its interval for each tier.
    pub(super) fn plot(&self) -> Plot {
        let mut plot = Plot::new("Median TTFT by length, 95 % interval", self.x(), Axis::log("TTFT, ms"));
        for (colour, tier) in LadderTier::ALL.into_iter().enumerate() {
            let of_tier = || self.ladder.rungs.iter().filter(move |rung| rung.tier == tier);
            let points = of_tier().filter_map(|rung| Some((f64::from(rung.length), rung.ttft?.median_ms)));
            let points: Vec<(f64, f64)> = points.collect();
            if points.is_empty() {
                continue;
            }
            let bands = of_tier().filter_map(|rung| {
                let ttft = rung.ttft?;
                Some((f64::from(rung.length), ttft.low_ms?, ttft.high_ms?))
            });
            plot = plot.with(PlotSeries::band("", colour, bands.collect()));
            plot = plot.with(PlotSeries::line(tier.label(), colour, points));
        }
        plot
    }

    /// Returns the time saved against prompt length.
    fn saved_plot(&self) -> Plot {
        let title = "Median TTFT saved, 99 % interval";
        let mut plot = Plot::new(title, self.x(), Axis::even("saved, ms"));
        for (colour, tier) in LadderTier::ALL.into_iter().enumerate().skip(1) {
            let saved =
                |rung: &'_ LadderCell| -> Option<TimeSaved> { rung.saved.clone().filter(|_| rung.tier == tier) };
            let points =
                self.ladder.rungs.iter().filter_map(|rung| Some((f64::from(rung.length), saved(rung)?.median_ms)));
            let bands = self.ladder.rungs.iter().filter_map(|rung| {
                let saved = saved(rung)?;
                Some((f64::from(rung.length), saved.low_ms?, saved.high_ms?))
            });
            let points: Vec<(f64, f64)> = points.collect();
            if points.is_empty() {
                continue;
            }
            plot = plot.with(PlotSeries::band("", colour, bands.collect()));
            plot = plot.with(PlotSeries::line(tier.label(), colour, points));
        }
        plot
    }

    /// Returns the axis of the prompt lengths, labelled at the measured ones.
    fn x(&self) -> Axis {
        Axis::log("prompt length, tokens").marked(self.ladder.rungs.iter().map(|rung| f64::from(rung.length)))
    }
}

fn interval(low: f64, high: f64) -> String {
    format!("{low:.1} to {high:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::measured::ClientHost;
    use crate::engine::load::ladder::{MedianTtft, TierVerdict};
    use std::time::Duration;

    #[test]
    fn rows_contain_medians_unclipped_intervals_and_verdicts() {
        let settings = serde_json::json!({"page_size": 16, "max_total_num_tokens": 4096});
        let server = ServerInfo::read(&settings).expect("SGLang's");
        let ttft = MedianTtft { median_ms: 32.0, low_ms: Some(16.9), high_ms: Some(47.1), min_ms: 16.0, max_ms: 480.0 };
        let saved = TimeSaved {
            pairs: 12,
            median_ms: 83.7,
            low_ms: Some(-12.0),
            high_ms: Some(98.0),
            verdict: TierVerdict::Undecided,
            reason: None,
        };
        let cell =
            |length, tier| LadderCell { requests: 12, verified: 12, ttft: Some(ttft), ..LadderCell::new(length, tier) };
        let device = LadderCell { saved: Some(saved), ..cell(2048, LadderTier::Device) };
        let rungs =
            vec![cell(2048, LadderTier::Cold), device, cell(4096, LadderTier::Cold), cell(4096, LadderTier::Device)];
        let report = LadderReport {
            schema: "mcctl.bench.ladder/2",
            version: "0",
            target: "http://h:1".to_owned(),
            seed: 1,
            absent: AbsentTier::of(&server),
            server,
            measured: MeasuredSystem { servers: Vec::new(), client: ClientHost::of_this_host() },
            ladder: Ladder { rungs, ..Ladder::default() },
            limits: LadderLimits { repeats: 8, repeats_max: 12, precision: 0.1, time_max: Duration::from_secs(300) },
            verdict_error: 0.01,
            rounds: 2,
            end: LadderEnd::MaxRepeats,
            agrees: None,
            caveats: Vec::new(),
        };
        let text = report.figures(120);
        let row = text.lines().find(|line| line.contains(" device ")).expect("its row");
        let cells: Vec<&str> = row.split_whitespace().collect();
        let expected =
            ["2048", "device", "12/12", "32.0", "16.9", "to", "47.1", "83.7", "-12.0", "to", "98.0", "undecided", "-"];
        assert_eq!(cells, expected);
        assert_eq!(report.repeats(), "12 prompts per length (limit: 12)");
        for width in [60, 100] {
            assert!(
                report.figures(width).lines().all(|line| line.chars().count() <= width),
                "{}",
                report.figures(width)
            );
        }
        assert!(!report.plot().is_empty() && report.plot().svg().matches("<polygon").count() == 2);
    }
}
