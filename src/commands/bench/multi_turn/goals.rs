//! Reports the goodput and steady state of a pass.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::commands::bench::multi_turn::args::GoalsArgs;
use crate::commands::cli::table::{ReportSection, ReportTable};
use crate::engine::load::goals::PassStats;
use crate::engine::load::session::PassResult;

/// Requests that met every limit.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct GoodputReport {
    /// Limits in milliseconds from the scheduled send time.
    pub limits_ms: BTreeMap<&'static str, f64>,
    pub met: u64,
    /// Good requests per second during the pass.
    pub requests_per_s: f64,
    /// Share of sent requests that met every limit. Failed and unfinished requests never meet a
    /// limit.
    pub share: f64,
    pub share_by_limit: BTreeMap<&'static str, f64>,
}

/// The steady state: the longest interval with enough requests in flight.
#[derive(Clone, Copy, Debug, Serialize)]
pub(in crate::commands::bench) struct SteadyReport {
    pub ratio: f64,
    pub from_s: f64,
    pub to_s: f64,
    pub peak_in_flight: f64,
    pub in_flight: f64,
    pub requests_per_s: f64,
    pub input_tokens_per_s: f64,
    pub output_tokens_per_s: f64,
    /// Mean over the requests whose first token was received in the interval.
    pub mean_ttft_ms: Option<f64>,
}

impl SteadyReport {
    /// Returns whether any request completed in the interval.
    fn has_completed(&self) -> bool {
        (self.requests_per_s * (self.to_s - self.from_s)).round() >= 1.0
    }
}

/// Goodput and steady state of a pass.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct GoalsReport {
    pub goodput: Option<GoodputReport>,
    pub steady_state: Option<SteadyReport>,
}

impl GoalsReport {
    /// Computes the goals for a pass.
    pub(super) fn of(args: &GoalsArgs, watched: &PassStats, pass: &PassResult) -> GoalsReport {
        let goodput = &watched.goodput;
        let sent = pass.sent();
        let seconds = pass.tally.took().as_secs_f64();
        let share = |count: u64| if sent == 0 { 0.0 } else { count as f64 / sent as f64 };
        let limits = goodput.limits();
        let report = (!limits.is_empty()).then(|| GoodputReport {
            limits_ms: limits.iter().map(|limit| (limit.metric.name(), limit.most.as_secs_f64() * 1e3)).collect(),
            met: goodput.met,
            requests_per_s: if seconds > 0.0 { goodput.met as f64 / seconds } else { 0.0 },
            share: goodput.share(sent),
            share_by_limit: limits.iter().zip(&goodput.met_by).map(|(l, met)| (l.metric.name(), share(*met))).collect(),
        });
        let steady = watched.steady.window(args.steady_ratio).map(|window| SteadyReport {
            ratio: args.steady_ratio,
            from_s: window.from.as_secs_f64(),
            to_s: window.to.as_secs_f64(),
            peak_in_flight: window.peak,
            in_flight: window.in_flight,
            requests_per_s: window.requests_per_s,
            input_tokens_per_s: window.input_per_s,
            output_tokens_per_s: window.output_per_s,
            mean_ttft_ms: window.ttft.map(|seconds| seconds * 1e3),
        });
        GoalsReport { goodput: report, steady_state: steady }
    }

    /// Returns the report section.
    pub(crate) fn section(&self) -> ReportSection {
        let mut section = ReportSection::new("Goals and steady state");
        if let Some(goodput) = &self.goodput {
            let by: Vec<String> = goodput
                .share_by_limit
                .iter()
                .map(|(word, share)| format!("{word} <= {} ms: {:.1} %", goodput.limits_ms[word], share * 100.0))
                .collect();
            section.text.push(format!(
                "goodput: {} requests met all limits, {:.2} requests/s, {:.1} % of sent requests ({})",
                goodput.met,
                goodput.requests_per_s,
                goodput.share * 100.0,
                by.join(", ")
            ));
        }
        // An interval in which no request completed has no rates to show.
        if let Some(steady) = self.steady_state.as_ref().filter(|steady| steady.has_completed()) {
            let head = [
                "steady from, s",
                "to, s",
                "peak in flight",
                "in flight",
                "requests/s",
                "tokens/s in",
                "tokens/s out",
                "TTFT mean, ms",
            ];
            let mut table = ReportTable::new("", &head);
            table.row([
                format!("{:.1}", steady.from_s),
                format!("{:.1}", steady.to_s),
                format!("{:.1}", steady.peak_in_flight),
                format!("{:.1}", steady.in_flight),
                format!("{:.2}", steady.requests_per_s),
                format!("{:.0}", steady.input_tokens_per_s),
                format!("{:.0}", steady.output_tokens_per_s),
                steady.mean_ttft_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}")),
            ]);
            table.notes.push(format!(
                "Steady state: the longest interval with at least {:.0} % of the peak number of requests in flight. \
                 The time resolution is 1/256 of the run",
                steady.ratio * 100.0
            ));
            section.tables.push(table);
        }
        section
    }
}
