//! Report sections for a pass, and the conclusion for a run.

use std::time::Duration;

use crate::commands::bench::multi_turn::report::ceiling;
use crate::commands::bench::multi_turn::report::pass::{PassReport, SeriesReport, TurnRow};
use crate::commands::cli::svg::{Axis, Plot, PlotSeries};
use crate::commands::cli::table::{ReportSection, ReportTable, percent, truncated};
use crate::engine::load::LatencySummary;
use crate::engine::load::measure::TokenTotals;
use crate::engine::load::measure::series::Bucket;

fn ms(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1e3)
}

/// Formats a percentile; `None` means too few values.
fn maybe(value: Option<Duration>) -> String {
    value.map_or("too few".to_owned(), ms)
}

/// Returns a table of all passes.
pub(super) fn overview(passes: &[PassReport]) -> ReportSection {
    let head = [
        "pass",
        "sent",
        "ok",
        "failed",
        "seconds",
        "requests/s",
        "tokens/s in",
        "tokens/s out",
        "cached, %",
        "TTFT mean, ms",
        "ITL mean, ms",
    ];
    let mut table = ReportTable::new("", &head);
    let mut sums: Vec<(String, PassSum)> = Vec::new();
    for pass in passes {
        let mut own = PassSum::default();
        own.add(pass);
        table.row(own.row(truncated(&pass.label(), 28)));
        let name = format!("{} {}", pass.side, pass.name);
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => sum.add(pass),
            None => sums.push((name, own)),
        }
    }
    let mut tables = vec![table];
    if passes.iter().any(|pass| pass.in_blocks) {
        let mut table = ReportTable::new("Totals over all blocks", &head);
        for (name, sum) in sums {
            table.row(sum.row(truncated(&name, 28)));
        }
        tables.push(table);
    } else {
        let labels: Vec<String> = passes.iter().map(|pass| truncated(&pass.label(), 28)).collect();
        let rows = labels.iter().zip(passes).map(|(label, pass)| (label.as_str(), pass.ceiling.as_ref()));
        tables.extend(ceiling::of_rows("pass", rows));
    }
    ReportSection { tables, ..ReportSection::new("Passes") }
}

/// Totals over several passes, shown as one row in the overview.
#[derive(Clone, Copy, Debug, Default)]
struct PassSum {
    sent: u64,
    completed: u64,
    failed: u64,
    /// Duration of the passes, excluding the time between them.
    seconds: f64,
    input: u64,
    output: u64,
    cached: u64,
    /// Sum of the values in milliseconds, and their number.
    ttft: (f64, u64),
    itl: (f64, u64),
}

impl PassSum {
    fn add(&mut self, pass: &PassReport) {
        self.sent += pass.sent;
        self.completed += pass.completed;
        self.failed += pass.failed;
        self.seconds += pass.seconds;
        self.input += pass.tokens.prompt;
        self.output += pass.tokens.completion + pass.tokens.uncounted;
        self.cached += pass.tokens.cached();
        for (sum, of) in [(&mut self.ttft, &pass.ttft), (&mut self.itl, &pass.itl)] {
            if let Some(of) = of {
                *sum = (sum.0 + super::ms(of.mean) * of.count as f64, sum.1 + of.count);
            }
        }
    }

    fn row(&self, name: String) -> [String; 11] {
        let per_second = |count: u64| if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 };
        let mean =
            |(ms, count): (f64, u64)| if count == 0 { "-".to_owned() } else { format!("{:.1}", ms / count as f64) };
        [
            name,
            self.sent.to_string(),
            self.completed.to_string(),
            self.failed.to_string(),
            format!("{:.1}", self.seconds),
            format!("{:.2}", per_second(self.completed)),
            format!("{:.0}", per_second(self.input)),
            format!("{:.0}", per_second(self.output)),
            percent(self.cached, self.input),
            mean(self.ttft),
            mean(self.itl),
        ]
    }
}

/// Returns the conclusion for a run: the verdict, totals, latency and cache hits, in at most four
/// lines.
pub(super) fn answer(passes: &[PassReport]) -> Vec<String> {
    let mut sum = PassSum::default();
    passes.iter().for_each(|pass| sum.add(pass));
    let rate = |count: u64| if sum.seconds > 0.0 { count as f64 / sum.seconds } else { 0.0 };
    let mut answer = vec![format!(
        "{} of {} requests succeeded in {:.1} s: {:.2} requests/s, {:.0} output tokens/s",
        sum.completed,
        sum.sent,
        sum.seconds,
        rate(sum.completed),
        rate(sum.output)
    )];
    match passes {
        [pass] => {
            answer.insert(0, verdict(pass));
            let mean = |summary: &Option<LatencySummary>| summary.map_or("-".to_owned(), |summary| ms(summary.mean));
            let p99 = pass.ttft.and_then(|ttft| ttft.p99);
            let p99 = p99.map_or("not available (too few requests)".to_owned(), |p99| format!("{} ms", ms(p99)));
            answer.push(format!(
                "TTFT (scheduled): mean {} ms, p99 {p99}; ITL: mean {} ms; E2E latency: mean {} ms",
                mean(&pass.ttft),
                mean(&pass.itl),
                mean(&pass.e2e)
            ));
            let hits = cache_hits("Cache hits", &pass.tokens);
            let ceiling = pass.ceiling.as_ref().map(|found| format!("; {}", ceiling::summary(found)));
            answer.push(hits + &ceiling.unwrap_or_default());
        }
        _ => {
            let last = passes.iter().rev().take(2).rev();
            answer.extend(last.map(|pass| {
                let ttft = pass.ttft.map_or("-".to_owned(), |ttft| ms(ttft.mean));
                cache_hits(&format!("{}: TTFT (scheduled) mean {ttft} ms, cache hits", pass.label()), &pass.tokens)
            }));
        }
    }
    answer
}

/// Returns the verdict for a run with one pass, in one sentence.
fn verdict(pass: &PassReport) -> String {
    let mut parts = Vec::new();
    if pass.failed + pass.unfinished > 0 {
        let unfinished = if pass.unfinished > 0 { format!(", {} unfinished", pass.unfinished) } else { String::new() };
        parts.push(format!("{} of {} requests failed{unfinished}", pass.failed, pass.sent));
    }
    if let Some(goodput) = pass.goals.as_ref().and_then(|goals| goals.goodput.as_ref()) {
        parts.push(format!("{:.1} % of the requests met the latency limits", goodput.share * 100.0));
    }
    if pass.completed > 0 {
        parts.push(pass.sources.verdict());
    }
    format!("Verdict: {}", if parts.is_empty() { "no request was sent".to_owned() } else { parts.join("; ") })
}

fn cache_hits(label: &str, tokens: &TokenTotals) -> String {
    let share = |part: u64| percent(part, tokens.prompt);
    if tokens.prompt == 0 {
        return format!("{label}: the server does not report prompt lengths");
    }
    if tokens.cached_somewhere > 0 {
        let cached = share(tokens.cached());
        let prompt = tokens.prompt;
        return format!("{label}: {cached} % of {prompt} prompt tokens (the server does not report from which tier)");
    }
    format!(
        "{label}: {} % of {} prompt tokens (L1 {} %, L2 {} %, L3 {} %)",
        share(tokens.cached()),
        tokens.prompt,
        share(tokens.device),
        share(tokens.host),
        share(tokens.storage)
    )
}

/// Returns the sections for one pass.
pub(super) fn pass(pass: &PassReport, seed: u64) -> Vec<ReportSection> {
    let mut whole = ReportSection::new(format!("{} at {}", pass.label(), pass.target));
    whole.text = vec![
        format!(
            "{} at {}: {} sent, {} ok, {} failed, {} unfinished in {:.1} s (seed {seed})",
            pass.label(),
            pass.target,
            pass.sent,
            pass.completed,
            pass.failed,
            pass.unfinished,
            pass.seconds,
        ),
        format!(
            "{:.2} requests/s, {:.0} tokens/s in, {:.0} tokens/s out; {} tokens in, {} tokens out, {} % of the prompt tokens cached",
            pass.requests_per_s,
            pass.input_tokens_per_s,
            pass.output_tokens_per_s,
            pass.tokens.prompt,
            pass.tokens.completion + pass.tokens.uncounted,
            percent(pass.tokens.cached(), pass.tokens.prompt),
        ),
    ];
    for (kind, failed) in &pass.failures {
        whole.text.push(format!("failed: {} x {kind}: {}", failed.count, truncated(&failed.first, 300)));
    }
    whole.tables.push(latencies(pass));
    whole.plots = vec![ttft_by_turn(&pass.turns), tiers_by_turn(&pass.turns), distributions(pass)];
    whole.tables.extend(turns(&pass.turns));
    vec![whole]
}

/// Returns the section with the plots over time.
pub(super) fn over_time_section(pass: &PassReport) -> ReportSection {
    ReportSection { plots: over_time(&pass.series), ..ReportSection::new("Over time") }
}

fn latencies(pass: &PassReport) -> ReportTable {
    let head = ["latency, ms", "count", "mean", "std", "min", "p50", "p90", "p95", "p99", "p99.9", "max"];
    let mut table = ReportTable::new("", &head);
    let rows: [(&str, &Option<LatencySummary>); 10] = [
        ("TTFT (scheduled)", &pass.ttft),
        ("TTFT (sent)", &pass.ttft_from_send),
        ("ITL", &pass.itl),
        ("TPOT", &pass.tpot),
        ("E2E latency (scheduled)", &pass.e2e),
        ("concurrency wait", &pass.wait),
        ("generator lag", &pass.lag),
        ("client read delay", &pass.generator.read_delay),
        ("server: queue", &pass.queue),
        ("server: L3 wait", &pass.storage_wait),
    ];
    for (name, summary) in rows {
        let Some(summary) = summary else { continue };
        table.row([
            name.to_owned(),
            summary.count.to_string(),
            ms(summary.mean),
            ms(summary.deviation),
            ms(summary.min),
            ms(summary.p50),
            maybe(summary.p90),
            maybe(summary.p95),
            maybe(summary.p99),
            maybe(summary.p999),
            ms(summary.max),
        ]);
    }
    table
}

fn turns(turns: &[TurnRow]) -> Vec<ReportTable> {
    let turns: Vec<&TurnRow> = turns.iter().filter(|row| row.requests > 0).collect();
    let has_unknown_tier = turns.iter().any(|row| row.tokens.cached_somewhere > 0);
    let mut head = vec!["turn", "requests", "prompt tokens", "device", "%", "host", "%", "storage", "%"];
    if has_unknown_tier {
        head.extend(["cached", "%"]);
    }
    head.extend(["computed", "%"]);
    let mut tokens = ReportTable::new("Source of prompt tokens", &head);
    if has_unknown_tier {
        tokens.notes.push("cached: the server does not report from which tier".to_owned());
    }
    let row = |name: String, requests: u64, of: &TokenTotals| {
        let share = |part: u64| [part.to_string(), percent(part, of.prompt)];
        let mut cells = vec![name, requests.to_string(), of.prompt.to_string()];
        cells.extend([of.device, of.host, of.storage].into_iter().flat_map(share));
        if has_unknown_tier {
            cells.extend(share(of.cached_somewhere));
        }
        cells.extend(share(of.prompt.saturating_sub(of.cached())));
        cells
    };
    for turn in &turns {
        tokens.row(row(turn.turn.to_string(), turn.requests, &turn.tokens));
    }
    let head = ["turn", "requests", "TTFT mean, ms", "p50", "p90", "p99", "max", "E2E mean, ms", "p50", "p90", "max"];
    let mut times = ReportTable::new("Latency by turn, from the scheduled send time", &head);
    for turn in &turns {
        let (Some(ttft), Some(e2e)) = (turn.ttft, turn.e2e) else { continue };
        times.row([
            turn.turn.to_string(),
            turn.requests.to_string(),
            ms(ttft.mean),
            ms(ttft.p50),
            maybe(ttft.p90),
            maybe(ttft.p99),
            ms(ttft.max),
            ms(e2e.mean),
            ms(e2e.p50),
            maybe(e2e.p90),
            ms(e2e.max),
        ]);
    }
    vec![tokens, times]
}

fn ttft_by_turn(turns: &[TurnRow]) -> Plot {
    let of = |value: &dyn Fn(&LatencySummary) -> Option<Duration>| -> Vec<(f64, f64)> {
        let points = turns.iter().filter_map(|row| Some((row.turn as f64, row.ttft.as_ref().and_then(value)?)));
        points.map(|(turn, value)| (turn, super::ms(value))).collect()
    };
    let quartiles =
        turns.iter().filter_map(|row| row.ttft_quartiles_ms.map(|[low, high]| (row.turn as f64, low, high)));
    Plot::new("TTFT by turn", Axis::whole("turn"), Axis::even("ms from the scheduled send time"))
        .with(PlotSeries::band("interquartile range", 0, quartiles.collect()))
        .with(PlotSeries::line("p90", 1, of(&|summary| summary.p90)))
        .with(PlotSeries::line("mean", 2, of(&|summary| Some(summary.mean))))
        .with(PlotSeries::line("median", 0, of(&|summary| Some(summary.p50))))
}

const TIERS: [&str; 4] = ["device (L1)", "host (L2)", "storage (L3)", "cached, tier unknown"];

/// Returns stacked areas, one per tier that has any tokens.
fn stacked(points: &[(f64, [u64; 4], u64)]) -> Vec<PlotSeries> {
    let mut below: Vec<f64> = vec![0.0; points.len()];
    let mut series = Vec::new();
    for (tier, name) in TIERS.iter().enumerate() {
        if points.iter().all(|(_, tiers, _)| tiers[tier] == 0) {
            continue;
        }
        let mut area = Vec::with_capacity(points.len());
        for ((x, tiers, prompt), below) in points.iter().zip(&mut below) {
            let share = if *prompt == 0 { 0.0 } else { 100.0 * tiers[tier] as f64 / *prompt as f64 };
            area.push((*x, *below, *below + share));
            *below += share;
        }
        series.push(PlotSeries::area(name, [0, 2, 1, 3][tier], area));
    }
    series
}

fn tiers_by_turn(turns: &[TurnRow]) -> Plot {
    let points: Vec<_> = turns
        .iter()
        .filter(|row| row.requests > 0)
        .map(|row| {
            let t = &row.tokens;
            (row.turn as f64, [t.device, t.host, t.storage, t.cached_somewhere], t.prompt)
        })
        .collect();
    let mut plot = Plot::new("Cached prompt tokens by turn", Axis::whole("turn"), Axis::even("% of prompt tokens"));
    plot.series = stacked(&points);
    plot
}

fn distributions(pass: &PassReport) -> Plot {
    let all = &pass.distributions;
    let percent = |curve: &[(f64, f64)]| curve.iter().map(|(value, share)| (value.max(0.001), share * 100.0)).collect();
    Plot::new("Distribution of latencies", Axis::log("ms"), Axis::even("% at or below"))
        .with(PlotSeries::line("TTFT", 0, percent(&all.ttft)))
        .with(PlotSeries::line("ITL", 1, percent(&all.itl)))
        .with(PlotSeries::line("E2E", 2, percent(&all.e2e)))
}

/// Maximum number of points in a plot over time.
const POINTS_MAX: usize = 120;

/// Merges buckets so that a plot has at most [`POINTS_MAX`] points. If there are many buckets, each
/// merged bucket covers at least one second.
fn plotted(series: &SeriesReport) -> SeriesReport {
    let mut step = 1;
    while series.buckets.len().div_ceil(step) > POINTS_MAX
        || (series.width_s * (step as f64) < 1.0 && series.buckets.len() > 40)
    {
        step *= 2;
    }
    let sum = |chunk: &[Bucket]| {
        let mut sum = Bucket::default();
        chunk.iter().for_each(|bucket| sum.plus(bucket));
        sum
    };
    SeriesReport { width_s: series.width_s * step as f64, buckets: series.buckets.chunks(step).map(sum).collect() }
}

fn over_time(series: &SeriesReport) -> Vec<Plot> {
    let series = plotted(series);
    let at = |index: usize| (index as f64 + 0.5) * series.width_s;
    let of = |value: &dyn Fn(&Bucket) -> f64| -> Vec<(f64, f64)> {
        series.buckets.iter().enumerate().map(|(index, bucket)| (at(index), value(bucket))).collect()
    };
    let seconds = || Axis::even("seconds since the start");
    let width = series.width_s;
    let ttft = of(&|bucket| {
        if bucket.first_tokens == 0 { f64::NAN } else { bucket.ttft_sum_s / bucket.first_tokens as f64 * 1e3 }
    });
    let worst = of(&|bucket| if bucket.first_tokens == 0 { f64::NAN } else { bucket.ttft_max_s * 1e3 });
    let cached: Vec<_> = series
        .buckets
        .iter()
        .enumerate()
        .filter(|(_, bucket)| bucket.prompt_tokens > 0)
        .map(|(index, b)| (at(index), [b.device, b.host, b.storage, b.cached_somewhere], b.prompt_tokens))
        .collect();
    let mut tiers = Plot::new("Cached prompt tokens over time", seconds(), Axis::even("% of prompt tokens"));
    tiers.series = stacked(&cached);
    let in_flight = Plot::new("Requests in flight", seconds(), Axis::even("requests, mean")).with(PlotSeries::line(
        "",
        0,
        of(&|bucket| bucket.busy_s / width),
    ));
    let requests = Plot::new("Request rate", seconds(), Axis::even("requests per second"))
        .with(PlotSeries::line("sent", 1, of(&|bucket| bucket.sent as f64 / width)))
        .with(PlotSeries::line("failed", 5, of(&|bucket| bucket.failed as f64 / width)));
    vec![
        tiers,
        Plot::new("TTFT over time", seconds(), Axis::even("ms from the scheduled send time"))
            .with(PlotSeries::line("maximum", 1, worst))
            .with(PlotSeries::line("mean", 0, ttft)),
        Plot::new("Output tokens", seconds(), Axis::even("tokens per second")).with(PlotSeries::line(
            "",
            0,
            of(&|bucket| bucket.output_tokens / width),
        )),
        requests,
        in_flight,
    ]
}
