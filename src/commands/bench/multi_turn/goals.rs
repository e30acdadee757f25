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
