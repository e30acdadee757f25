//! Was the work at both endpoints the same? If not, their latencies cannot be compared, whatever they are.

use std::time::Duration;

use crate::engine::load::compare::Both;
use crate::engine::load::{Histogram, Summary};

/// Tokens at both endpoints may differ by this share.
const TOKENS_APART: f64 = 0.01;

/// Why two endpoints cannot be compared.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Nothing was done at both.
    #[error("no block of conversations was had at both endpoints")]
    Nothing,
    /// Requests went well at one endpoint only.
    #[error("{a} requests went well at {name_a} alone and {b} at {name_b} alone: what failed is not in the latencies")]
    Failed {
        /// Name of the first endpoint.
        name_a: String,
        /// Name of the second.
        name_b: String,
        /// At the first alone.
        a: u64,
        /// At the second alone.
        b: u64,
    },
    /// Tokens differ.
    #[error("tokens {of} differ by {percent:.1} %: {a} at {name_a}, {b} at {name_b}; more than 1 % is other work")]
    Tokens {
        /// `sent` or `received`.
        of: &'static str,
        /// Name of the first endpoint.
        name_a: String,
        /// Name of the second.
        name_b: String,
        /// At the first.
        a: u64,
        /// At the second.
        b: u64,
        /// By how much.
        percent: f64,
    },
    /// The first questions, in which no answer of a server is, are not the same.
    #[error(
        "{count} of {of} first prompts have other lengths at {name_b} than at {name_a}: other words, template or tokenizer"
    )]
    Prompts {
        /// Name of the first endpoint.
        name_a: String,
        /// Name of the second.
        name_b: String,
        /// So many.
        count: u64,
        /// Of so many.
        of: u64,
    },
    /// The generator was late.
    #[error("the generator was {:.1} ms late with its requests to {name}: this machine is too slow for the load, or busy", .lag.as_secs_f64() * 1e3)]
    Late {
        /// Name of the endpoint.
        name: String,
        /// By this much, 99 of 100 times.
        lag: Duration,
    },
    /// The endpoint differs from itself.
    #[error(
        "{name} differs from itself in {of}: neither it nor this machine is steady enough to compare anything with it"
    )]
    NotSteady {
        /// Name of the endpoint.
        name: String,
        /// In what.
        of: String,
    },
}

/// The lag that counts of a sample: the largest percentile it supports.
fn lag_of(summary: &Summary) -> Duration {
    summary.p99.or(summary.p95).or(summary.p90).unwrap_or(summary.max)
}

/// Why `both` cannot be compared. Late is what is beyond `lag_limit`, or a hundredth of the median time to first token if that is more.
pub(super) fn refusals(both: &Both<'_>, lag_limit: Duration) -> Vec<Refusal> {
    let [name_a, name_b] = both.names.map(str::to_owned);
    let mut found = Vec::new();
    if both.pairs.is_empty() && both.alone == [0, 0] {
        return vec![Refusal::Nothing];
    }
    if both.alone != [0, 0] {
        let [a, b] = both.alone;
        found.push(Refusal::Failed { name_a: name_a.clone(), name_b: name_b.clone(), a, b });
    }
    let sum = |of: fn(&crate::engine::load::session::Figure) -> u32| {
        both.pairs.iter().fold((0_u64, 0_u64), |sum, (_, a, b)| (sum.0 + u64::from(of(a)), sum.1 + u64::from(of(b))))
    };
    for (of, (a, b)) in [("sent", sum(|figure| figure.prompt)), ("received", sum(|figure| figure.completion))] {
        let apart = a.abs_diff(b) as f64 / a.max(b).max(1) as f64;
        if apart > TOKENS_APART {
            let (name_a, name_b) = (name_a.clone(), name_b.clone());
            found.push(Refusal::Tokens { of, name_a, name_b, a, b, percent: apart * 100.0 });
        }
    }
    let first = || both.pairs.iter().filter(|(_, a, _)| a.turn.index == 0);
    let differ = first().filter(|(_, a, b)| a.prompt != b.prompt).count() as u64;
    if differ > 0 {
        found.push(Refusal::Prompts {
            name_a: name_a.clone(),
            name_b: name_b.clone(),
            count: differ,
            of: first().count() as u64,
        });
    }
    for (passes, name) in both.passes.iter().zip(both.names) {
        let (mut lag, mut ttft) = (Histogram::default(), Histogram::default());
        for pass in passes {
            lag.add(&pass.tally.lag);
            ttft.add(&pass.tally.all.ttft);
        }
        let (Some(lag), Some(ttft)) = (lag.summary(), ttft.summary()) else { continue };
        if lag_of(&lag) > lag_limit.max(ttft.p50 / 100) {
            found.push(Refusal::Late { name: name.to_owned(), lag: lag_of(&lag) });
        }
    }
    found
}
