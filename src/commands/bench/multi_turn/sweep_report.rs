//! Renders the results of a sweep.

use crate::commands::cli::svg::{Axis, Plot, PlotSeries};
use crate::commands::cli::table::{ReportSection, ReportTable};
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
    section.plots = plots(result);
    section
}

fn plots(result: &SweepResult) -> Vec<Plot> {
    let line = |of: &dyn Fn(&LoadFigures) -> Option<f64>| -> Vec<(f64, f64)> {
        result.points.iter().filter_map(|point| Some((point.load, of(point)?))).collect()
    };
    let against_throughput = |of: &dyn Fn(&LoadFigures) -> Option<f64>| -> Vec<(f64, f64)> {
        result.points.iter().filter_map(|point| Some((point.output_tokens_per_s, of(point)?))).collect()
    };
    let load = || Axis::even(offered(result.of));
    // The best load as a single point on the curve.
    let best = result.points.iter().find(|point| Some(point.load) == result.best);
    let best = best.and_then(|point| Some(vec![(point.output_tokens_per_s, point.mean_ttft_ms?)]));
    let mut latency = Plot::new(
        "TTFT against output throughput, one point per load",
        Axis::even("output tokens/s"),
        Axis::even("ms from the scheduled send time"),
    )
    .with(PlotSeries::line("p99", 1, against_throughput(&|point| point.p99_ttft_ms)))
    .with(PlotSeries::line("mean", 0, against_throughput(&|point| point.mean_ttft_ms)));
    if let Some(best) = best {
        let name = format!("best: {} {}", result.of, result.best.unwrap_or(0.0));
        latency = latency.with(PlotSeries::line(&name, 2, best));
    }
    let mut plots = vec![latency];
    if result.share_to_pass.is_some() {
        plots.push(
            Plot::new("Requests that met the limits, by load", load(), Axis::even("% of sent requests"))
                .with(PlotSeries::line("met", 2, line(&|point| Some(point.goodput_share? * 100.0))))
                .with(PlotSeries::line("required", 5, line(&|_| Some(result.share_to_pass? * 100.0))).dashed()),
        );
        plots.push(
            Plot::new("Goodput by load", load(), Axis::even("requests per second"))
                .with(PlotSeries::line("sent requests that succeeded", 0, line(&|point| Some(point.requests_per_s))))
                .with(PlotSeries::line("met the limits", 2, line(&|point| point.goodput_requests_per_s))),
        );
    }
    plots.extend([
        Plot::new("TTFT by load", load(), Axis::even("ms from the scheduled send time"))
            .with(PlotSeries::line("p99", 1, line(&|point| point.p99_ttft_ms)))
            .with(PlotSeries::line("mean", 0, line(&|point| point.mean_ttft_ms))),
        Plot::new("E2E latency by load", load(), Axis::even("ms from the scheduled send time")).with(PlotSeries::line(
            "",
            0,
            line(&|point| point.mean_e2e_ms),
        )),
        // Input and output differ by orders of magnitude, so each has its own plot.
        Plot::new("Output throughput by load", load(), Axis::even("tokens/s")).with(PlotSeries::line(
            "",
            0,
            line(&|point| Some(point.output_tokens_per_s)),
        )),
        Plot::new("Input throughput by load", load(), Axis::even("tokens/s")).with(PlotSeries::line(
            "",
            1,
            line(&|point| Some(point.input_tokens_per_s)),
        )),
        Plot::new("TPOT by load", load(), Axis::even("ms")).with(PlotSeries::line(
            "",
            3,
            line(&|point| point.mean_tpot_ms),
        )),
    ]);
    plots
}

/// Returns the name of the swept load with its unit.
fn offered(of: &str) -> &'static str {
    match of {
        "rate" => "offered load, requests/s",
        _ => "offered load, conversations at a time",
    }
}

/// Returns the report's conclusion: the verdict, the knee, the highest load within the limits, and
/// the skipped loads.
pub(super) fn answer(result: &SweepResult) -> Vec<String> {
    let of = result.of;
    let mut answer = vec![verdict(result)];
    if let Some(knee) = result.knee {
        let share = result.points.iter().find(|point| point.load == knee).and_then(|point| point.goodput_share);
        let met = share
            .map_or(String::new(), |share| format!("; {:.1} % of the requests met the limits there", share * 100.0));
        answer.push(format!(
            "Knee: {of} {knee}. Beyond it, latency grew, and throughput grew by less than the square root of the load increase{met}."
        ));
    } else {
        let last = result.points.last().map_or(0.0, |point| point.load);
        answer.push(format!("Knee: none up to {of} {last}."));
    }
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
    if let Some(peak) = peak.filter(|_| answer.len() < 4) {
        answer.push(format!(
            "Highest output throughput: {:.0} tokens/s at {of} {}.",
            peak.output_tokens_per_s, peak.load
        ));
    }
    answer
}

/// Returns the best load and its figures in one sentence.
fn verdict(result: &SweepResult) -> String {
    let of = result.of;
    let at = |load: f64| result.points.iter().find(|point| point.load == load);
    let Some(best) = result.best.and_then(at) else {
        return match (result.share_to_pass, result.points.last()) {
            (_, None) => "Verdict: no load was measured.".to_owned(),
            (Some(_), Some(_)) => "Verdict: no load met the limits; sweep lower loads, or relax --goodput.".to_owned(),
            (None, Some(last)) => {
                format!("Verdict: the server is not saturated at {of} {}; sweep higher loads.", last.load)
            }
        };
    };
    let ms = |ms: Option<f64>| ms.map_or("not measured".to_owned(), |ms| format!("{ms:.1} ms"));
    let p99 = best.p99_ttft_ms.map_or(String::new(), |p99| format!(", p99 {p99:.1} ms"));
    let met = best.goodput_share.map_or(String::new(), |share| format!(", {:.1} % within the limits", share * 100.0));
    let is_last = result.not_run.is_empty() && result.points.last().is_some_and(|last| last.load == best.load);
    let not_found = if is_last { " (the highest that was tried)" } else { "" };
    format!(
        "Verdict: the best load is {of} {}{not_found}: {:.2} requests/s, {:.0} output tokens/s, TTFT mean {}{p99}{met}.",
        best.load,
        best.requests_per_s,
        best.output_tokens_per_s,
        ms(best.mean_ttft_ms)
    )
}
