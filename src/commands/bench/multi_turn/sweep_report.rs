//! Results of a sweep: figures per load, the knee, and the highest load that met the limits.

use serde::Serialize;

use crate::commands::bench::multi_turn::args::{GoalsArgs, Sweep};
use crate::commands::bench::multi_turn::goal_tracker::PassStats;
use crate::commands::svg::{Axis, Plot, PlotSeries};
use crate::commands::table::{ReportSection, ReportTable};
use crate::engine::load::session::PassResult;
use crate::engine::load::sweep::{SweepPoint, highest_that_meets, knee};

/// Figures for one load.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct PointReport {
    /// Requests per second, or number of concurrent conversations.
    pub load: f64,
    pub requests_per_s: f64,
    pub input_tokens_per_s: f64,
    pub output_tokens_per_s: f64,
    /// Mean number of requests in flight during the steady state.
    pub in_flight: Option<f64>,
    pub mean_ttft_ms: Option<f64>,
    pub p99_ttft_ms: Option<f64>,
    pub mean_tpot_ms: Option<f64>,
    pub mean_e2e_ms: Option<f64>,
    /// Share of sent requests that met the limits.
    pub goodput_share: Option<f64>,
    pub goodput_requests_per_s: Option<f64>,
    pub failed: u64,
}

/// The results of a sweep.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct SweepReport {
    /// `rate` or `concurrency`.
    pub of: &'static str,
    pub points: Vec<PointReport>,
    /// Highest load that still increased throughput; see [`knee`].
    pub knee: Option<f64>,
    /// Highest load up to which every load met the limits.
    pub highest_that_meets: Option<f64>,
    /// Required share of requests that meet the limits.
    pub share_to_pass: Option<f64>,
    /// Loads skipped because two loads in a row missed the limits.
    pub not_run: Vec<f64>,
}

impl SweepReport {
    /// Computes the results from the passes, in load order.
    pub(super) fn of(
        goals: &GoalsArgs,
        sweep: &Sweep,
        passes: &[PassResult],
        watched: &[PassStats],
        stopped: bool,
    ) -> SweepReport {
        let (of, loads) = match sweep {
            Sweep::Rate(loads) => ("rate", loads),
            Sweep::Concurrency(loads) => ("concurrency", loads),
        };
        let to_pass = (!goals.goodput.is_empty()).then(|| goals.share_to_pass());
        let (mut points, mut reports) = (Vec::new(), Vec::new());
        for ((load, pass), watched) in loads.iter().zip(passes).zip(watched) {
            let (tally, seconds) = (&pass.tally, pass.tally.took().as_secs_f64());
            let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
            let tokens = tally.all.tokens;
            let output = tokens.completion + tokens.uncounted;
            let share = to_pass.map(|_| watched.goodput.share(pass.sent()));
            let mean =
                |summary: Option<crate::engine::load::LatencySummary>| summary.map(|s| s.mean.as_secs_f64() * 1e3);
            let (ttft, e2e) = (tally.all.ttft.summary(), mean(tally.all.e2e.summary()));
            // If no request succeeded, the latency is infinite.
            points.push(SweepPoint {
                load: *load,
                throughput: per_second(tokens.prompt + output),
                latency: e2e.unwrap_or(f64::INFINITY),
                meets: share.zip(to_pass).map(|(share, to_pass)| share >= to_pass),
            });
            reports.push(PointReport {
                load: *load,
                requests_per_s: per_second(tally.all.requests),
                input_tokens_per_s: per_second(tokens.prompt),
                output_tokens_per_s: per_second(output),
                in_flight: watched.steady.window(goals.steady_ratio).map(|window| window.in_flight),
                mean_ttft_ms: mean(ttft),
                p99_ttft_ms: ttft.and_then(|ttft| ttft.p99).map(|p99| p99.as_secs_f64() * 1e3),
                mean_tpot_ms: mean(tally.tpot.summary()),
                mean_e2e_ms: e2e,
                goodput_share: share,
                goodput_requests_per_s: share.map(|_| per_second(watched.goodput.met)),
                failed: tally.failed(),
            });
        }
        SweepReport {
            of,
            knee: knee(&points).map(|at| points[at].load),
            highest_that_meets: highest_that_meets(&points).map(|at| points[at].load),
            share_to_pass: to_pass,
            not_run: if stopped { Vec::new() } else { loads.iter().skip(points.len()).copied().collect() },
            points: reports,
        }
    }

    /// Returns the report section.
    pub fn section(&self) -> ReportSection {
        let mut section = ReportSection::new("Sweep");
        let head = [
            self.of,
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
        for point in &self.points {
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
        let line = |of: &dyn Fn(&PointReport) -> Option<f64>| -> Vec<(f64, f64)> {
            self.points.iter().filter_map(|point| Some((point.load, of(point)?))).collect()
        };
        let load = || Axis::even(self.of);
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
    pub fn answer(&self) -> Vec<String> {
        let of = self.of;
        let mut answer = vec![match self.knee {
            Some(knee) => format!(
                "Knee: {of} {knee}. Beyond it, latency grew, and throughput grew by less than the square root of the load increase."
            ),
            None => format!("Knee: none up to {of} {}.", self.points.last().map_or(0.0, |point| point.load)),
        }];
        if let Some(share) = self.share_to_pass {
            let percent = share * 100.0;
            answer.push(match self.highest_that_meets {
                Some(load) => {
                    format!("Highest {of} up to which at least {percent} % of requests met the limits: {load}.")
                }
                None => format!("Even at the lowest {of}, fewer than {percent} % of requests met the limits."),
            });
        }
        if !self.not_run.is_empty() {
            let not_run: Vec<String> = self.not_run.iter().map(ToString::to_string).collect();
            answer.push(format!(
                "Skipped after two loads in a row missed the limits (use --sweep-all to run all): {}.",
                not_run.join(", ")
            ));
        }
        let peak = self.points.iter().max_by(|a, b| a.output_tokens_per_s.total_cmp(&b.output_tokens_per_s));
        if let Some(peak) = peak.filter(|_| answer.len() < 3) {
            answer.push(format!(
                "Highest output throughput: {:.0} tokens/s at {of} {}.",
                peak.output_tokens_per_s, peak.load
            ));
        }
        if let Some(last) = self.points.last().filter(|_| answer.len() < 3) {
            answer.push(format!(
                "TTFT (scheduled) at {of} {}: mean {} ms.",
                last.load,
                last.mean_ttft_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}"))
            ));
        }
        answer
    }
}
