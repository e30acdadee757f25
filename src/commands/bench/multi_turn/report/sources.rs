//! TTFT by source of the prompt, the latency that the cache saved, and lengths.

use serde::Serialize;

use crate::commands::bench::multi_turn::report::ms;
use crate::commands::cli::svg::{Axis, Plot, PlotSeries};
use crate::commands::cli::table::{ReportSection, ReportTable, percent};
use crate::engine::load::LatencySummary;
use crate::engine::load::measure::Tally;
use crate::engine::load::measure::lengths::LengthSummary;
use crate::engine::load::measure::source::{
    CACHED_MIN, COMPUTED_MIN, LatencySaved, LengthRow, PromptSource, SourceRow,
};

/// Requests whose prompts came mostly from one source.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct SourceReport {
    pub source: PromptSource,
    pub requests: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    /// TTFT from the send time.
    pub ttft_from_send: Option<LatencySummary>,
    /// First and third quartile of the TTFT from the send time; `None` if there are fewer than four
    /// requests.
    pub ttft_quartiles_ms: Option<[f64; 2]>,
    /// `None` for computed prompts.
    pub latency_saved: Option<LatencySaved>,
}

/// Figures by source and by length.
#[derive(Clone, Debug, Default, Serialize)]
pub(in crate::commands::bench) struct SourcesReport {
    /// From computed to L3; sources that did not occur are missing.
    pub by_source: Vec<SourceReport>,
    /// Over all requests whose prompts were mostly cached; `None` if there are none.
    pub latency_saved: Option<LatencySaved>,
    pub by_length: Vec<LengthRow>,
    pub prompt_lengths: Option<LengthSummary>,
    pub output_lengths: Option<LengthSummary>,
}

impl SourcesReport {
    /// Builds the report for a pass.
    pub(crate) fn of(tally: &Tally) -> SourcesReport {
        let sources = &tally.sources;
        let report = |(source, row): (PromptSource, &SourceRow)| {
            let quartile = |q| row.ttft.at(q).map_or(0.0, |value| (ms(value) * 1e3).round() / 1e3);
            SourceReport {
                source,
                requests: row.requests,
                prompt_tokens: row.prompt_tokens,
                cached_tokens: row.cached_tokens,
                ttft_from_send: row.ttft.summary(),
                ttft_quartiles_ms: (row.requests >= 4).then(|| [0.25, 0.75].map(quartile)),
                latency_saved: sources.saved(source),
            }
        };
        SourcesReport {
            by_source: sources.rows().map(report).collect(),
            latency_saved: sources.saved_in_all(),
            by_length: sources.lengths(),
            prompt_lengths: tally.prompt_lengths.summary(),
            output_lengths: tally.output_lengths.summary(),
        }
    }

    /// Returns the number of requests whose prompts were mostly cached.
    fn cached_requests(&self) -> u64 {
        let cached = self.by_source.iter().filter(|row| row.source != PromptSource::Computed);
        cached.map(|row| row.requests).sum()
    }

    /// Returns the verdict about the cache in one sentence.
    pub(crate) fn verdict(&self) -> String {
        let cached = self.cached_requests();
        let all: u64 = self.by_source.iter().map(|row| row.requests).sum();
        if all == 0 {
            return "the server does not report prompt lengths or cached tokens, so what the cache saved is unknown"
                .to_owned();
        }
        let Some(saved) = self.latency_saved else {
            return "the cache saved nothing: no prompt was mostly served from it".to_owned();
        };
        let of = format!("{cached} of {all} requests were mostly served from the cache");
        match saved {
            LatencySaved::Estimate { mean_ms, low_ms, high_ms } => {
                let interval = format!("95 % interval {low_ms:.1} to {high_ms:.1}");
                if low_ms > 0.0 {
                    format!("the cache saved about {mean_ms:.1} ms of TTFT per cached request ({interval}); {of}")
                } else if high_ms < 0.0 {
                    let cost = -mean_ms;
                    format!("the cache cost about {cost:.1} ms of TTFT per cached request ({interval}); {of}")
                } else {
                    format!("no saved latency shown (about {mean_ms:.1} ms of TTFT, {interval}); {of}")
                }
            }
            other => format!("{of}; the latency saved is unknown: {}", why_not(&other)),
        }
    }

    /// Returns the report section.
    pub(crate) fn section(&self) -> ReportSection {
        let mut section = ReportSection::new("TTFT by source of the prompt");
        if self.by_source.is_empty() {
            return section;
        }
        let head = [
            "source",
            "requests",
            "prompt tokens, mean",
            "cached, %",
            "TTFT (sent) mean, ms",
            "p50",
            "p90",
            "saved, ms",
            "95 % interval",
        ];
        let mut table = ReportTable::new("TTFT by source of the prompt", &head);
        for row in &self.by_source {
            let Some(ttft) = row.ttft_from_send else { continue };
            let [saved, interval] = match row.latency_saved {
                None => ["-".to_owned(), "-".to_owned()],
                Some(LatencySaved::Estimate { mean_ms, low_ms, high_ms }) => {
                    [format!("{mean_ms:.1}"), format!("{low_ms:.1} to {high_ms:.1}")]
                }
                Some(_) => ["unknown".to_owned(), "-".to_owned()],
            };
            table.row([
                row.source.name().to_owned(),
                row.requests.to_string(),
                format!("{:.0}", row.prompt_tokens as f64 / row.requests.max(1) as f64),
                percent(row.cached_tokens, row.prompt_tokens),
                format!("{:.1}", ms(ttft.mean)),
                format!("{:.1}", ms(ttft.p50)),
                ttft.p90.map_or("too few".to_owned(), |p90| format!("{:.1}", ms(p90))),
                saved,
                interval,
            ]);
        }
        table.notes.push("source: where most of the prompt came from".to_owned());
        let estimated = |row: &&SourceReport| matches!(row.latency_saved, Some(LatencySaved::Estimate { .. }));
        if self.by_source.iter().any(|row| estimated(&row)) {
            table.notes.push(
                "saved: estimated TTFT of the same prompts without a cache, minus their measured TTFT, both without the server's queue. The \
                 estimate is a line fitted to the TTFT of the computed prompts of this run against their length"
                    .to_owned(),
            );
        }
        let mut unknown: Vec<String> = Vec::new();
        for saved in self.by_source.iter().filter(|row| !estimated(row)).filter_map(|row| row.latency_saved) {
            let why = format!("saved is unknown where {}", why_not(&saved));
            if !unknown.contains(&why) {
                unknown.push(why);
            }
        }
        table.notes.extend(unknown);
        section.tables.push(table);
        section.tables.extend(self.lengths_table());
        section.plots = vec![self.by_source_plot(), self.by_length_plot(), self.lengths_plot()];
        section
    }

    fn lengths_table(&self) -> Option<ReportTable> {
        let mut table = ReportTable::new("Lengths, tokens", &["", "count", "mean", "min", "p50", "p90", "max"]);
        for (name, lengths) in [("prompts", &self.prompt_lengths), ("responses", &self.output_lengths)] {
            let Some(lengths) = lengths else { continue };
            let numbers = [lengths.min, lengths.p50, lengths.p90, lengths.max].map(|tokens| tokens.to_string());
            let first = [name.to_owned(), lengths.count.to_string(), format!("{:.0}", lengths.mean)];
            table.row(first.into_iter().chain(numbers));
        }
        (!table.rows.is_empty()).then_some(table)
    }

    fn by_source_plot(&self) -> Plot {
        let shown: Vec<(&SourceReport, [f64; 2])> =
            self.by_source.iter().filter_map(|row| Some((row, row.ttft_quartiles_ms?))).collect();
        let names = shown.iter().map(|(row, _)| row.source.name().to_owned()).collect();
        let points = shown
            .iter()
            .enumerate()
            .filter_map(|(at, (row, [low, high]))| Some((at as f64, *low, ms(row.ttft_from_send?.p50), *high)));
        let title = "TTFT by source of the prompt: median and quartiles";
        Plot::new(title, Axis::named("source of most of the prompt", names), Axis::even("ms from sending"))
            .with(PlotSeries::whiskers("", 0, points.collect()))
    }

    fn by_length_plot(&self) -> Plot {
        let mut plot = Plot::new(
            "TTFT by prompt length: median and quartiles",
            Axis::log("prompt length, tokens"),
            Axis::even("ms from sending"),
        );
        for (name, colour, cached) in [("computed", 5, false), ("mostly cached", 0, true)] {
            // A quartile needs a few requests.
            let rows = || self.by_length.iter().filter(move |row| row.cached == cached && row.requests >= 4);
            let middle = |row: &LengthRow| (f64::from(row.from) * f64::from(row.below)).sqrt();
            let band = rows().map(|row| (middle(row), row.ttft_quartiles_ms[0], row.ttft_quartiles_ms[2])).collect();
            let line: Vec<(f64, f64)> = rows().map(|row| (middle(row), row.ttft_quartiles_ms[1])).collect();
            if line.len() > 1 {
                plot = plot.with(PlotSeries::band("", colour, band));
            }
            if !line.is_empty() {
                plot = plot.with(PlotSeries::line(name, colour, line));
            }
        }
        plot
    }

    fn lengths_plot(&self) -> Plot {
        let mut plot = Plot::new("Lengths of prompts and responses", Axis::log("tokens"), Axis::even("% at or below"));
        for (name, colour, lengths) in [("prompts", 0, &self.prompt_lengths), ("responses", 1, &self.output_lengths)] {
            let Some(lengths) = lengths else { continue };
            let points =
                lengths.distribution.iter().map(|(tokens, share)| (f64::from(*tokens).max(1.0), share * 100.0));
            plot = plot.with(PlotSeries::line(name, colour, points.collect()));
        }
        plot
    }
}

/// Returns why there is no estimate.
fn why_not(saved: &LatencySaved) -> String {
    match saved {
        LatencySaved::Estimate { .. } => String::new(),
        LatencySaved::TooFewComputed { requests } => {
            format!("too few prompts were computed ({requests}, at least {COMPUTED_MIN} are needed)")
        }
        LatencySaved::OneLength => {
            "the computed prompts have about the same length, so the cost of a longer one is not known \
                                    (vary --request-length, or use bench ladder)"
                .to_owned()
        }
        LatencySaved::TooLong => {
            "the cached prompts are more than four times as long as the longest computed one".to_owned()
        }
        LatencySaved::TooFewCached { requests } => {
            format!("too few prompts were cached ({requests}, at least {CACHED_MIN} are needed)")
        }
    }
}
