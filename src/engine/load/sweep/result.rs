//! Results of a sweep: figures per load, the knee, and the highest load that met the limits.

use serde::Serialize;

use crate::LatencySummary;
use crate::goals::PassStats;
use crate::session::PassResult;
use crate::sweep::{Sweep, SweepPoint, highest_that_meets, knee};

/// Figures for one load.
#[derive(Clone, Debug, Serialize)]
pub struct LoadFigures {
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
pub struct SweepResult {
    /// `rate` or `concurrency`.
    pub of: &'static str,
    pub points: Vec<LoadFigures>,
    /// Highest load that still increased throughput; see [`knee`].
    pub knee: Option<f64>,
    /// Highest load up to which every load met the limits.
    pub highest_that_meets: Option<f64>,
    /// The knee, or a lower load if the limits are not met up to the knee. Without a knee, the
    /// highest load that met the limits. `None` if no load met the limits, or if there are neither
    /// a knee nor limits.
    pub best: Option<f64>,
    /// Required share of requests that meet the limits.
    pub share_to_pass: Option<f64>,
    /// Loads skipped because two loads in a row missed the limits.
    pub not_run: Vec<f64>,
}

/// How the passes of a sweep are evaluated.
#[derive(Clone, Copy, Debug)]
pub struct SweepTerms {
    /// Required share of requests that meet the limits, if there are limits.
    pub share_to_pass: Option<f64>,
    /// Share of the peak concurrency that defines the steady state.
    pub steady_ratio: f64,
}

impl SweepResult {
    /// Evaluates the passes of `sweep`, which are in load order, with their goal statistics.
    /// `ended_early`: a signal or a failed step ended the sweep, so missing loads were not skipped.
    pub fn of(
        sweep: &Sweep,
        passes: &[PassResult],
        stats: &[PassStats],
        terms: SweepTerms,
        ended_early: bool,
    ) -> SweepResult {
        let mut points = Vec::new();
        let mut figures = Vec::new();
        for ((load, pass), stats) in sweep.loads().iter().zip(passes).zip(stats) {
            let tally = &pass.tally;
            let seconds = pass.tally.took().as_secs_f64();
            let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
            let tokens = tally.all.tokens;
            let output = tokens.completion + tokens.uncounted;
            let share = terms.share_to_pass.map(|_| stats.goodput.share(pass.sent()));
            let mean = |summary: Option<LatencySummary>| summary.map(|s| s.mean.as_secs_f64() * 1e3);
            let ttft = tally.all.ttft.summary();
            let e2e = mean(tally.all.e2e.summary());
            // If no request succeeded, the latency is infinite.
            points.push(SweepPoint {
                load: *load,
                throughput: per_second(tokens.prompt + output),
                latency: e2e.unwrap_or(f64::INFINITY),
                meets: share.zip(terms.share_to_pass).map(|(share, to_pass)| share >= to_pass),
            });
            figures.push(LoadFigures {
                load: *load,
                requests_per_s: per_second(tally.all.requests),
                input_tokens_per_s: per_second(tokens.prompt),
                output_tokens_per_s: per_second(output),
                in_flight: stats.steady.window(terms.steady_ratio).map(|window| window.in_flight),
                mean_ttft_ms: mean(ttft),
                p99_ttft_ms: ttft.and_then(|ttft| ttft.p99).map(|p99| p99.as_secs_f64() * 1e3),
                mean_tpot_ms: mean(tally.tpot.summary()),
                mean_e2e_ms: e2e,
                goodput_share: share,
                goodput_requests_per_s: share.map(|_| per_second(stats.goodput.met)),
                failed: tally.failed(),
            });
        }
        let knee = knee(&points);
        let highest_that_meets = highest_that_meets(&points);
        let best = match (terms.share_to_pass, knee, highest_that_meets) {
            (Some(_), Some(knee), Some(meets)) => Some(knee.min(meets)),
            (Some(_), _, meets) => meets,
            (None, knee, _) => knee,
        };
        let not_run = sweep.loads().iter().skip(points.len()).copied();
        SweepResult {
            of: sweep.name(),
            knee: knee.map(|at| points[at].load),
            highest_that_meets: highest_that_meets.map(|at| points[at].load),
            best: best.map(|at| points[at].load),
            share_to_pass: terms.share_to_pass,
            not_run: if ended_early { Vec::new() } else { not_run.collect() },
            points: figures,
        }
    }
}
