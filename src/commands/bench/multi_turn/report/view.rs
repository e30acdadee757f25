//! A pass as people see it.

use std::time::Duration;

use crate::commands::bench::multi_turn::report::pass::{PassReport, SeriesReport, TurnRow};
use crate::commands::bench::sheet::{Section, Sheet, cut, percent};
use crate::commands::svg::{Axis, Plot, Series};
use crate::engine::load::Summary;
use crate::engine::load::measure::Tokens;
use crate::engine::load::measure::series::Bucket;

fn ms(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1e3)
}

/// A percentile; the sample may be too small for it.
fn maybe(value: Option<Duration>) -> String {
    value.map_or("too few".to_owned(), ms)
}

/// All passes beside each other.
pub(super) fn overview(passes: &[PassReport]) -> Section {
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
    let mut sheet = Sheet::new("", &head);
    let mut sums: Vec<(String, Sum)> = Vec::new();
    for pass in passes {
        let mut own = Sum::default();
        own.add(pass);
        sheet.row(own.row(cut(&pass.label(), 28)));
        let name = format!("{} {}", pass.side, pass.name);
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => sum.add(pass),
            None => sums.push((name, own)),
        }
    }
    let mut sheets = vec![sheet];
    if passes.iter().any(|pass| pass.in_blocks) {
        let mut sheet = Sheet::new("All blocks together", &head);
        for (name, sum) in sums {
            sheet.row(sum.row(cut(&name, 28)));
        }
        sheets.push(sheet);
    }
    Section { sheets, ..Section::new("Passes") }
}

/// Passes together, as one row.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sent: u64,
    completed: u64,
    failed: u64,
    /// Of the passes, without what lies between them.
    seconds: f64,
    input: u64,
    output: u64,
    cached: u64,
    /// Milliseconds in all, and of how many.
    ttft: (f64, u64),
    itl: (f64, u64),
}

impl Sum {
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

/// One of them.
pub(super) fn pass(pass: &PassReport, seed: u64) -> Vec<Section> {
    let mut whole = Section::new(format!("{} at {}", pass.label(), pass.target));
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
            "{:.2} requests/s, {:.0} tokens/s in, {:.0} tokens/s out; {} tokens in, {} out, {} % of the prompts cached",
            pass.requests_per_s,
            pass.input_tokens_per_s,
            pass.output_tokens_per_s,
            pass.tokens.prompt,
            pass.tokens.completion + pass.tokens.uncounted,
            percent(pass.tokens.cached(), pass.tokens.prompt),
        ),
    ];
    for (kind, failed) in &pass.failures {
        whole.text.push(format!("failed: {} x {kind}: {}", failed.count, cut(&failed.first, 300)));
    }
    whole.sheets.push(latencies(pass));
    whole.plots = vec![ttft_by_turn(&pass.turns), tiers_by_turn(&pass.turns), distributions(pass)];
    whole.sheets.extend(turns(&pass.turns));
    let mut time = Section::new("Over the time");
    time.plots = over_time(&pass.series);
    vec![whole, time]
}

fn latencies(pass: &PassReport) -> Sheet {
    let head = ["latency, ms", "count", "mean", "std", "min", "p50", "p90", "p95", "p99", "p99.9", "max"];
    let mut sheet = Sheet::new("", &head);
    let rows: [(&str, &Option<Summary>); 10] = [
        ("first token (from plan)", &pass.ttft),
        ("first token (from send)", &pass.ttft_from_send),
        ("between tokens", &pass.itl),
        ("per token (TPOT)", &pass.tpot),
        ("whole answer (from plan)", &pass.e2e),
        ("wait for a free place", &pass.wait),
        ("our own lag", &pass.lag),
        ("our own wait to read", &pass.generator.read_delay),
        ("server: queue", &pass.queue),
        ("server: wait for L3", &pass.storage_wait),
    ];
    for (name, summary) in rows {
        let Some(summary) = summary else { continue };
        sheet.row([
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
    sheet
}

fn turns(turns: &[TurnRow]) -> Vec<Sheet> {
    let turns: Vec<&TurnRow> = turns.iter().filter(|row| row.requests > 0).collect();
    let unplaced = turns.iter().any(|row| row.tokens.cached_somewhere > 0);
    let mut head = vec!["turn", "requests", "prompt tokens", "device", "%", "host", "%", "storage", "%"];
    if unplaced {
        head.extend(["cached", "%"]);
    }
    head.extend(["computed", "%"]);
    let mut tokens = Sheet::new("Where the prompts' tokens came from", &head);
    if unplaced {
        tokens.notes.push("cached: from a cache, without a word from which tier".to_owned());
    }
    let row = |name: String, requests: u64, of: &Tokens| {
        let share = |part: u64| [part.to_string(), percent(part, of.prompt)];
        let mut cells = vec![name, requests.to_string(), of.prompt.to_string()];
        cells.extend([of.device, of.host, of.storage].into_iter().flat_map(share));
        if unplaced {
            cells.extend(share(of.cached_somewhere));
        }
        cells.extend(share(of.prompt.saturating_sub(of.cached())));
        cells
    };
    for turn in &turns {
        tokens.row(row(turn.turn.to_string(), turn.requests, &turn.tokens));
    }
    let head = ["turn", "requests", "TTFT mean, ms", "p50", "p90", "p99", "max", "E2E mean, ms", "p50", "p90", "max"];
    let mut times = Sheet::new("Latency by turn, from the planned instant", &head);
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
    let of = |value: &dyn Fn(&Summary) -> Option<Duration>| -> Vec<(f64, f64)> {
        let points = turns.iter().filter_map(|row| Some((row.turn as f64, row.ttft.as_ref().and_then(value)?)));
        points.map(|(turn, value)| (turn, super::ms(value))).collect()
    };
    let quartiles =
        turns.iter().filter_map(|row| row.ttft_quartiles_ms.map(|[low, high]| (row.turn as f64, low, high)));
    Plot::new("Time to the first token by turn", Axis::close("turn"), Axis::even("ms from the planned instant"))
        .with(Series::band("half of all", 0, quartiles.collect()))
        .with(Series::line("p90", 1, of(&|summary| summary.p90)))
        .with(Series::line("mean", 2, of(&|summary| Some(summary.mean))))
        .with(Series::line("median", 0, of(&|summary| Some(summary.p50))))
}

/// Tiers with their colours: device, host, storage, somewhere.
const TIERS: [&str; 4] = ["device (L1)", "host (L2)", "storage (L3)", "cached, tier unknown"];

/// Areas that stand on each other, one per tier that has anything.
fn stacked(points: &[(f64, [u64; 4], u64)]) -> Vec<Series> {
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
        series.push(Series::area(name, [0, 2, 1, 3][tier], area));
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
    let mut plot =
        Plot::new("Cached tokens of the prompts by turn", Axis::close("turn"), Axis::even("% of the prompts' tokens"));
    plot.series = stacked(&points);
    if plot.series.is_empty() {
        // Nothing was cached, and that is to be seen.
        plot.series.push(Series::line("nothing cached", 0, points.iter().map(|(turn, ..)| (*turn, 0.0)).collect()));
    }
    plot
}

fn distributions(pass: &PassReport) -> Plot {
    let all = &pass.distributions;
    let percent = |curve: &[(f64, f64)]| curve.iter().map(|(value, share)| (value.max(0.001), share * 100.0)).collect();
    Plot::new("Distribution of latencies", Axis::log("ms"), Axis::even("% at or below"))
        .with(Series::line("first token", 0, percent(&all.ttft)))
        .with(Series::line("between tokens", 1, percent(&all.itl)))
        .with(Series::line("whole answer", 2, percent(&all.e2e)))
}

/// Most points of a plot over the time.
const POINTS_MAX: usize = 120;

/// The series with buckets as wide as a plot can show, and of a second at least where there are many.
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
    let at = |place: usize| (place as f64 + 0.5) * series.width_s;
    let of = |value: &dyn Fn(&Bucket) -> f64| -> Vec<(f64, f64)> {
        series.buckets.iter().enumerate().map(|(place, bucket)| (at(place), value(bucket))).collect()
    };
    let seconds = || Axis::even("seconds since the start");
    let width = series.width_s;
    let ttft = of(&|bucket| {
        if bucket.first_tokens == 0 { f64::NAN } else { bucket.ttft_sum_s / bucket.first_tokens as f64 * 1e3 }
    });
    let worst = of(&|bucket| if bucket.first_tokens == 0 { f64::NAN } else { bucket.ttft_max_s * 1e3 });
    let seen: Vec<_> = series
        .buckets
        .iter()
        .enumerate()
        .filter(|(_, bucket)| bucket.prompt_tokens > 0)
        .map(|(place, b)| (at(place), [b.device, b.host, b.storage, b.cached_somewhere], b.prompt_tokens))
        .collect();
    let mut tiers = Plot::new("Cached tokens over the time", seconds(), Axis::even("% of the prompts' tokens"));
    tiers.series = stacked(&seen);
    let mut requests = Plot::new("Requests", seconds(), Axis::even("in flight; per second"))
        .with(Series::line("in flight (mean)", 0, of(&|bucket| bucket.busy_s / width)))
        .with(Series::line("sent per second", 1, of(&|bucket| bucket.sent as f64 / width)));
    if series.buckets.iter().any(|bucket| bucket.failed > 0) {
        requests = requests.with(Series::line("failed per second", 5, of(&|bucket| bucket.failed as f64 / width)));
    }
    vec![
        Plot::new("Tokens of answers", seconds(), Axis::even("tokens per second")).with(Series::line(
            "",
            0,
            of(&|bucket| bucket.output_tokens / width),
        )),
        requests,
        Plot::new("Time to the first token", seconds(), Axis::even("ms from the planned instant"))
            .with(Series::line("longest", 1, worst))
            .with(Series::line("mean", 0, ttft)),
        tiers,
    ]
}
