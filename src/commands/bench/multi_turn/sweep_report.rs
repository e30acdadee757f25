//! Renders the results of a sweep.

use crate::commands::svg::{Axis, Plot, PlotSeries};
use crate::commands::table::{ReportSection, ReportTable};
use crate::engine::load::sweep::{LoadFigures, SweepResult};

/// Returns the report section.
pub(super) fn section(result: &SweepResult) -> ReportSection {
    let mut section = ReportSection::new("Sweep");
    let head = [
        result.of,
        "requests/s",
        "tokens/s in",
        "tokens/s out",
        "in flight",
        "TTFT mean, ms",
        "p99",
        "TPOT mean, ms",
        "E2E mean, ms",
        "goodput, %",
        "failed",
    ];
    let mut table = ReportTable::new("Sweep", &head);
    let maybe = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    for point in &result.points {
        table.row([
            point.load.to_string(),
            format!("{:.2}", point.requests_per_s),
            format!("{:.0}", point.input_tokens_per_s),
            format!("{:.0}", point.output_tokens_per_s),
            maybe(point.in_flight),
            maybe(point.mean_ttft_ms),
            point.p99_ttft_ms.map_or("too few".to_owned(), |p99| format!("{p99:.1}")),
            maybe(point.mean_tpot_ms),
            maybe(point.mean_e2e_ms),
            maybe(point.goodput_share.map(|share| share * 100.0)),
            point.failed.to_string(),
        ]);
    }
    section.tables.push(table);
    let line = |of: &dyn Fn(&LoadFigures) -> Option<f64>| -> Vec<(f64, f64)> {
        result.points.iter().filter_map(|point| Some((point.load, of(point)?))).collect()
    };
    let load = || Axis::even(result.of);
    section.plots = vec![
        Plot::new("Throughput by load", load(), Axis::even("tokens/s"))
            .with(PlotSeries::line("out", 0, line(&|point| Some(point.output_tokens_per_s))))
            .with(PlotSeries::line("in", 1, line(&|point| Some(point.input_tokens_per_s)))),
        Plot::new("Latency by load", load(), Axis::even("ms"))
            .with(PlotSeries::line("TTFT", 0, line(&|point| point.mean_ttft_ms)))
            .with(PlotSeries::line("E2E", 1, line(&|point| point.mean_e2e_ms))),
    ];
    section
}

/// Returns the report's conclusion: the knee, the highest load within the limits, and the skipped loads or the peak.
pub(super) fn answer(result: &SweepResult) -> Vec<String> {
    let of = result.of;
    let mut answer = vec![match result.knee {
        Some(knee) => format!(
            "Knee: {of} {knee}. Beyond it, latency grew, and throughput grew by less than the square root of the load increase."
        ),
        None => format!("Knee: none up to {of} {}.", result.points.last().map_or(0.0, |point| point.load)),
    }];
    if let Some(share) = result.share_to_pass {
        let percent = share * 100.0;
        answer.push(match result.highest_that_meets {
            Some(load) => {
                format!("Highest {of} up to which at least {percent} % of requests met the limits: {load}.")
            }
            None => format!("Even at the lowest {of}, fewer than {percent} % of requests met the limits."),
        });
    }
    if !result.not_run.is_empty() {
        let not_run: Vec<String> = result.not_run.iter().map(ToString::to_string).collect();
        answer.push(format!(
            "Skipped after two loads in a row missed the limits (use --sweep-all to run all): {}.",
            not_run.join(", ")
        ));
    }
    let peak = result.points.iter().max_by(|a, b| a.output_tokens_per_s.total_cmp(&b.output_tokens_per_s));
    if let Some(peak) = peak.filter(|_| answer.len() < 3) {
        answer.push(format!(
            "Highest output throughput: {:.0} tokens/s at {of} {}.",
            peak.output_tokens_per_s, peak.load
        ));
    }
    if let Some(last) = result.points.last().filter(|_| answer.len() < 3) {
        answer.push(format!(
            "TTFT (scheduled) at {of} {}: mean {} ms.",
            last.load,
            last.mean_ttft_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}"))
        ));
    }
    answer
}
