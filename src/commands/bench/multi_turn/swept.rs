//! A sweep, in the report: what each load brought, the knee, and the greatest load that met the limits.

use serde::Serialize;

use crate::commands::bench::multi_turn::args::{GoalsArgs, Sweep};
use crate::commands::bench::multi_turn::watch::Watched;
use crate::commands::bench::sheet::{Section, Sheet};
use crate::commands::svg::{Axis, Plot, Series};
use crate::engine::load::session::Pass;
use crate::engine::load::sweep::{Point, highest_that_meets, knee};

/// What one load brought.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct PointReport {
    /// Requests per second, or conversations open at once.
    pub load: f64,
    pub requests_per_s: f64,
    pub input_tokens_per_s: f64,
    pub output_tokens_per_s: f64,
    /// In flight, in the steady state.
    pub in_flight: Option<f64>,
    pub mean_ttft_ms: Option<f64>,
    pub p99_ttft_ms: Option<f64>,
    pub mean_tpot_ms: Option<f64>,
    pub mean_e2e_ms: Option<f64>,
    /// Share of the requests sent that met the limits.
    pub goodput_share: Option<f64>,
    pub goodput_requests_per_s: Option<f64>,
    pub failed: u64,
}

/// See the module.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct SweepReport {
    /// `rate` or `concurrency`.
    pub of: &'static str,
    pub points: Vec<PointReport>,
    /// The load after which no greater one brings half of its share in throughput.
    pub knee: Option<f64>,
    /// The greatest load up to which all met the limits.
    pub highest_that_meets: Option<f64>,
    /// The share of requests that had to meet them.
    pub share_to_pass: Option<f64>,
    /// Loads that were not run, since two before them failed the limits.
    pub not_run: Vec<f64>,
}

impl SweepReport {
    /// Of the passes of a session, the first of which has the first load.
    pub(super) fn of(
        goals: &GoalsArgs,
        sweep: &Sweep,
        passes: &[Pass],
        watched: &[Watched],
        stopped: bool,
    ) -> SweepReport {
        let (of, loads) = match sweep {
            Sweep::Rate(loads) => ("rate", loads),
            Sweep::Concurrency(loads) => ("concurrency", loads),
        };
        let to_pass = (!goals.goodput.is_empty()).then(|| goals.share_to_pass());
        let (mut points, mut told) = (Vec::new(), Vec::new());
        for ((load, pass), watched) in loads.iter().zip(passes).zip(watched) {
            let (tally, seconds) = (&pass.tally, pass.tally.took().as_secs_f64());
            let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
            let tokens = tally.all.tokens;
            let output = tokens.completion + tokens.uncounted;
            let share = to_pass.map(|_| watched.goodput.share(pass.sent()));
            let mean = |summary: Option<crate::engine::load::Summary>| summary.map(|s| s.mean.as_secs_f64() * 1e3);
            let (ttft, e2e) = (tally.all.ttft.summary(), mean(tally.all.e2e.summary()));
            // Nothing that went well brings nothing, after a time without end.
            points.push(Point {
                load: *load,
                throughput: per_second(tokens.prompt + output),
                latency: e2e.unwrap_or(f64::INFINITY),
                meets: share.zip(to_pass).map(|(share, to_pass)| share >= to_pass),
            });
            told.push(PointReport {
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
            points: told,
        }
    }

    /// What is shown of it.
    pub fn section(&self) -> Section {
        let mut section = Section::new("Sweep");
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
        let mut sheet = Sheet::new("Sweep", &head);
        let maybe = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        for point in &self.points {
            sheet.row([
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
        section.sheets.push(sheet);
        section.text = self.says();
        let line = |of: &dyn Fn(&PointReport) -> Option<f64>| -> Vec<(f64, f64)> {
            self.points.iter().filter_map(|point| Some((point.load, of(point)?))).collect()
        };
        let load = || Axis::even(self.of);
        section.plots = vec![
            Plot::new("Throughput by load", load(), Axis::even("tokens/s"))
                .with(Series::line("out", 0, line(&|point| Some(point.output_tokens_per_s))))
                .with(Series::line("in", 1, line(&|point| Some(point.input_tokens_per_s)))),
            Plot::new("Latency by load", load(), Axis::even("ms"))
                .with(Series::line("TTFT", 0, line(&|point| point.mean_ttft_ms)))
                .with(Series::line("E2E", 1, line(&|point| point.mean_e2e_ms))),
        ];
        section
    }

    fn says(&self) -> Vec<String> {
        let of = self.of;
        let mut says = vec![match self.knee {
            Some(knee) => format!(
                "Knee: {of} {knee}. No greater load brought more throughput than the square root of its own growth; answers took longer."
            ),
            None => format!("Knee: none up to {of} {}.", self.points.last().map_or(0.0, |point| point.load)),
        }];
        if let Some(share) = self.share_to_pass {
            let percent = share * 100.0;
            says.push(match self.highest_that_meets {
                Some(load) => format!("Highest {of} at which {percent} % met the limits, as at all below it: {load}."),
                None => format!("Not even the lowest {of} let {percent} % meet the limits."),
            });
        }
        if !self.not_run.is_empty() {
            let not_run: Vec<String> = self.not_run.iter().map(ToString::to_string).collect();
            says.push(format!(
                "Not run, since two in a row failed the limits (--sweep-all runs all): {}.",
                not_run.join(", ")
            ));
        }
        says
    }
}
