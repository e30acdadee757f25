//! Checks that both endpoints did the same work. If they did not, their latencies cannot be compared.

use std::time::Duration;

use crate::engine::load::compare::PairedPasses;
use crate::engine::load::{LatencyHistogram, LatencySummary};

/// Maximum relative difference in token counts between the endpoints.
const TOKENS_APART: f64 = 0.01;

/// Reasons why two endpoints cannot be compared.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ComparisonRefusal {
    /// No block was completed at both endpoints.
    #[error("no block of conversations was completed at both endpoints")]
    Nothing,
    /// Some requests succeeded at only one endpoint.
    #[error(
        "{a} requests succeeded only at {name_a} and {b} only at {name_b}, so the latencies cover different requests"
    )]
    Failed {
        name_a: String,
        name_b: String,
        /// Number of requests that succeeded only at the first endpoint.
        a: u64,
        /// Number of requests that succeeded only at the second endpoint.
        b: u64,
    },
    #[error("the numbers of tokens {of} differ by {percent:.1} %: {a} at {name_a}, {b} at {name_b}; the limit is 1 %")]
    Tokens {
        /// `sent` or `received`.
        of: &'static str,
        name_a: String,
        name_b: String,
        a: u64,
        b: u64,
        percent: f64,
    },
    /// First prompts, which do not depend on any response, have different lengths.
    #[error(
        "{count} of {of} first prompts have different lengths at {name_a} and {name_b}: check the prompts, chat template and tokenizer"
    )]
    Prompts { name_a: String, name_b: String, count: u64, of: u64 },
    /// The load generator was late.
    #[error("the generator sent requests to {name} {:.1} ms late: this machine is busy or too slow for the load", .lag.as_secs_f64() * 1e3)]
    Late {
        name: String,
        /// 99th percentile of the generator lag, or the highest percentile that the sample size supports.
        lag: Duration,
    },
    /// The endpoint differs from itself (`--a-a`).
    #[error("{name} differs from itself in {of}: the endpoint or this machine is too noisy for a comparison")]
    NotSteady { name: String, of: String },
}

/// Returns the 99th percentile of the lag, or the highest percentile that the sample size supports.
fn lag_of(summary: &LatencySummary) -> Duration {
    summary.p99.or(summary.p95).or(summary.p90).unwrap_or(summary.max)
}

/// Returns the reasons why `both` cannot be compared. The generator is late if its lag exceeds `lag_limit` or 1 % of the median TTFT,
/// whichever is larger.
pub(super) fn refusals(both: &PairedPasses<'_>, lag_limit: Duration) -> Vec<ComparisonRefusal> {
    let [name_a, name_b] = both.names.map(str::to_owned);
    let mut found = Vec::new();
    if both.pairs.is_empty() && both.alone == [0, 0] {
        return vec![ComparisonRefusal::Nothing];
    }
    if both.alone != [0, 0] {
        let [a, b] = both.alone;
        found.push(ComparisonRefusal::Failed { name_a: name_a.clone(), name_b: name_b.clone(), a, b });
    }
    let sum = |of: fn(&crate::engine::load::session::Figure) -> u32| {
        both.pairs.iter().fold((0_u64, 0_u64), |sum, (_, a, b)| (sum.0 + u64::from(of(a)), sum.1 + u64::from(of(b))))
    };
    for (of, (a, b)) in [("sent", sum(|figure| figure.prompt)), ("received", sum(|figure| figure.completion))] {
        let apart = a.abs_diff(b) as f64 / a.max(b).max(1) as f64;
        if apart > TOKENS_APART {
            let (name_a, name_b) = (name_a.clone(), name_b.clone());
            found.push(ComparisonRefusal::Tokens { of, name_a, name_b, a, b, percent: apart * 100.0 });
        }
    }
    let first = || both.pairs.iter().filter(|(_, a, _)| a.turn.index == 0);
    let differ = first().filter(|(_, a, b)| a.prompt != b.prompt).count() as u64;
    if differ > 0 {
        found.push(ComparisonRefusal::Prompts {
            name_a: name_a.clone(),
            name_b: name_b.clone(),
            count: differ,
            of: first().count() as u64,
        });
    }
    for (passes, name) in both.passes.iter().zip(both.names) {
        let (mut lag, mut ttft) = (LatencyHistogram::default(), LatencyHistogram::default());
        for pass in passes {
            lag.add(&pass.tally.lag);
            ttft.add(&pass.tally.all.ttft);
        }
        let (Some(lag), Some(ttft)) = (lag.summary(), ttft.summary()) else { continue };
        if lag_of(&lag) > lag_limit.max(ttft.p50 / 100) {
            found.push(ComparisonRefusal::Late { name: name.to_owned(), lag: lag_of(&lag) });
        }
    }
    found
}
