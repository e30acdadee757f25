//! Reports the goodput and steady state of a pass.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::multi_turn::args::GoalsArgs;
use crate::commands::bench::multi_turn::goal_tracker::PassStats;
use crate::commands::table::{ReportSection, ReportTable};
use crate::engine::load::session::PassResult;

/// Requests that met every limit.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct GoodputReport {
    /// Limits in milliseconds from the scheduled send time.
    pub limits_ms: BTreeMap<&'static str, f64>,
    pub met: u64,
    /// Good requests per second during the pass.
    pub requests_per_s: f64,
    /// Share of sent requests that met every limit. Failed and unfinished requests never meet a limit.
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

/// Minimum steady state duration for computing rates, in seconds.
const STEADY_SECONDS: f64 = 2.0;
/// Minimum number of completed requests in the steady state for computing rates.
const STEADY_REQUESTS: f64 = 20.0;

impl SteadyReport {
    /// Returns a caveat if the steady state is too short to compute rates. `e2e_s`: mean E2E latency in seconds.
    fn caveat(&self, e2e_s: Option<f64>) -> Option<BenchCaveat> {
        let seconds = self.to_s - self.from_s;
        let ended = (self.requests_per_s * seconds).round();
        let few = seconds < STEADY_SECONDS || ended < STEADY_REQUESTS;
        let short = e2e_s.is_some_and(|e2e_s| seconds < e2e_s);
        (few || short).then_some(BenchCaveat::SteadyStateTooShort { seconds, ended })
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
        let (goodput, sent) = (&watched.goodput, pass.sent());
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

    /// Returns a caveat if the steady state of `pass` is too short to compute rates.
    pub(super) fn caveat(&self, pass: &PassResult) -> Option<BenchCaveat> {
        let e2e = pass.tally.all.e2e.summary().map(|e2e| e2e.mean.as_secs_f64());
        self.steady_state.as_ref()?.caveat(e2e)
    }

    /// Returns the report section.
    pub fn section(&self) -> ReportSection {
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
        if let Some(steady) = &self.steady_state {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(seconds: f64, requests_per_s: f64) -> SteadyReport {
        SteadyReport {
            ratio: 0.8,
            from_s: 1.0,
            to_s: 1.0 + seconds,
            peak_in_flight: 8.0,
            in_flight: 7.5,
            requests_per_s,
            input_tokens_per_s: 0.0,
            output_tokens_per_s: 0.0,
            mean_ttft_ms: None,
        }
    }

    #[test]
    fn a_steady_state_too_short_for_rates_has_a_caveat() {
        let short = steady(0.5, 100.0).caveat(Some(0.1));
        assert_eq!(short, Some(BenchCaveat::SteadyStateTooShort { seconds: 0.5, ended: 50.0 }));
        assert!(steady(10.0, 1.0).caveat(Some(0.1)).is_some());
        assert!(steady(10.0, 10.0).caveat(Some(12.0)).is_some());
        assert_eq!(steady(10.0, 10.0).caveat(Some(1.0)), None);
        assert_eq!(steady(10.0, 10.0).caveat(None), None);
    }
}
