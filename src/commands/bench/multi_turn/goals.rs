//! Goodput and the steady state of a pass, in the report.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::commands::bench::multi_turn::args::GoalsArgs;
use crate::commands::bench::multi_turn::watch::Watched;
use crate::commands::bench::sheet::{Section, Sheet};
use crate::engine::load::session::Pass;

/// Requests that met every limit.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct GoodputReport {
    /// The limits, milliseconds from the planned instant.
    pub limits_ms: BTreeMap<&'static str, f64>,
    pub met: u64,
    /// Per second of the pass.
    pub requests_per_s: f64,
    /// Of those that were sent. What failed or did not end met nothing.
    pub share: f64,
    pub share_by_limit: BTreeMap<&'static str, f64>,
}

/// The longest stretch with enough in flight.
#[derive(Clone, Copy, Debug, Serialize)]
pub(in crate::commands::bench) struct SteadyReport {
    /// Of the peak.
    pub ratio: f64,
    pub from_s: f64,
    pub to_s: f64,
    pub peak_in_flight: f64,
    pub in_flight: f64,
    pub requests_per_s: f64,
    pub input_tokens_per_s: f64,
    pub output_tokens_per_s: f64,
    /// Of first tokens that came within it.
    pub mean_ttft_ms: Option<f64>,
}

/// A shorter steady state has no rates of its own, whatever came in it.
const STEADY_SECONDS: f64 = 2.0;
/// Nor has one in which fewer requests ended.
const STEADY_REQUESTS: f64 = 20.0;

impl SteadyReport {
    /// Why its rates may be doubted, of requests that took `e2e_s` on the mean.
    fn doubt(&self, e2e_s: Option<f64>) -> Option<String> {
        let seconds = self.to_s - self.from_s;
        let ended = (self.requests_per_s * seconds).round();
        let few = seconds < STEADY_SECONDS || ended < STEADY_REQUESTS;
        let short = e2e_s.is_some_and(|e2e_s| seconds < e2e_s);
        (few || short).then(|| {
            format!(
                "the steady state lasts {seconds:.1} s, in which {ended:.0} requests ended: too little for rates (more conversations make \
                 it longer)"
            )
        })
    }
}

/// See the module.
#[derive(Clone, Debug, Serialize)]
pub(in crate::commands::bench) struct Goals {
    pub goodput: Option<GoodputReport>,
    pub steady_state: Option<SteadyReport>,
}

impl Goals {
    /// Of a pass.
    pub(super) fn of(args: &GoalsArgs, watched: &Watched, pass: &Pass) -> Goals {
        let (goodput, sent) = (&watched.goodput, pass.sent());
        let seconds = pass.tally.took().as_secs_f64();
        let share = |count: u64| if sent == 0 { 0.0 } else { count as f64 / sent as f64 };
        let limits = goodput.limits();
        let told = (!limits.is_empty()).then(|| GoodputReport {
            limits_ms: limits.iter().map(|limit| (limit.metric.word(), limit.most.as_secs_f64() * 1e3)).collect(),
            met: goodput.met,
            requests_per_s: if seconds > 0.0 { goodput.met as f64 / seconds } else { 0.0 },
            share: goodput.share(sent),
            share_by_limit: limits.iter().zip(&goodput.met_by).map(|(l, met)| (l.metric.word(), share(*met))).collect(),
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
        Goals { goodput: told, steady_state: steady }
    }

    /// Why the steady state of `pass` may be doubted.
    pub(super) fn doubt(&self, pass: &Pass) -> Option<String> {
        let e2e = pass.tally.all.e2e.summary().map(|e2e| e2e.mean.as_secs_f64());
        self.steady_state.as_ref()?.doubt(e2e)
    }

    /// What is shown of it.
    pub fn section(&self) -> Section {
        let mut section = Section::new("Goals and steady state");
        if let Some(goodput) = &self.goodput {
            let by: Vec<String> = goodput
                .share_by_limit
                .iter()
                .map(|(word, share)| format!("{word} <= {} ms: {:.1} %", goodput.limits_ms[word], share * 100.0))
                .collect();
            section.text.push(format!(
                "goodput: {} requests met every limit, {:.2} a second, {:.1} % of those sent ({})",
                goodput.met,
                goodput.requests_per_s,
                goodput.share * 100.0,
                by.join(", ")
            ));
        }
        if let Some(steady) = &self.steady_state {
            let head = [
                "steady state from, s",
                "to, s",
                "peak in flight",
                "in flight",
                "requests/s",
                "tokens/s in",
                "tokens/s out",
                "TTFT mean, ms",
            ];
            let mut sheet = Sheet::new("", &head);
            sheet.row([
                format!("{:.1}", steady.from_s),
                format!("{:.1}", steady.to_s),
                format!("{:.1}", steady.peak_in_flight),
                format!("{:.1}", steady.in_flight),
                format!("{:.2}", steady.requests_per_s),
                format!("{:.0}", steady.input_tokens_per_s),
                format!("{:.0}", steady.output_tokens_per_s),
                steady.mean_ttft_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}")),
            ]);
            sheet.notes.push(format!(
                "the longest stretch with at least {:.0} % of the peak in flight, to a 256th of the run",
                steady.ratio * 100.0
            ));
            section.sheets.push(sheet);
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
    fn a_steady_state_of_half_a_second_or_of_few_requests_or_shorter_than_one_is_doubted() {
        let told = steady(0.5, 100.0).doubt(Some(0.1)).expect("it is short");
        assert!(told.starts_with("the steady state lasts 0.5 s, in which 50 requests ended: too little"), "{told}");
        assert!(steady(10.0, 1.0).doubt(Some(0.1)).is_some());
        assert!(steady(10.0, 10.0).doubt(Some(12.0)).is_some());
        assert_eq!(steady(10.0, 10.0).doubt(Some(1.0)), None);
        assert_eq!(steady(10.0, 10.0).doubt(None), None);
    }
}
