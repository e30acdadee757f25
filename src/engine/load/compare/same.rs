//! Checks that both endpoints did the same work. If they did not, their latencies cannot be
//! compared.

use crate::compare::PairedPasses;

/// Maximum relative difference in token counts between the endpoints.
const TOKENS_APART: f64 = 0.01;
/// Maximum share of requests that succeeded at only one endpoint. Up to this share, they are
/// excluded at both. Above it, the requests that remain may be the fast ones.
const ALONE_MAX: f64 = 0.05;

/// Maximum difference in the share of first prompts that were cached before the run.
const WARM_APART: f64 = 0.05;

/// Reasons why two endpoints cannot be compared.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ComparisonRefusal {
    /// No block was completed at both endpoints.
    #[error("no block of conversations was completed at both endpoints")]
    Nothing,
    /// Too many requests succeeded at only one endpoint.
    #[error(
        "{a} requests succeeded only at {name_a} and {b} only at {name_b}: more than 5 % of all, so the latencies cover different requests"
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
    /// One endpoint had prompts in its caches before the run, the other one did not.
    #[error(
        "{at_a} of {of} first prompts were already cached at {name_a}, and {at_b} at {name_b}: flush the caches, or restart the server, and \
         run again"
    )]
    Warm { name_a: String, name_b: String, at_a: u64, at_b: u64, of: u64 },
    /// The endpoint differs from itself (`--self-compare`).
    #[error("{name} differs from itself in {of}: the endpoint or this machine is too noisy for a comparison")]
    NotSteady { name: String, of: String },
}

/// Returns the reasons why `both` cannot be compared.
pub(super) fn refusals(both: &PairedPasses<'_>) -> Vec<ComparisonRefusal> {
    let [name_a, name_b] = both.names.map(str::to_owned);
    let mut found = Vec::new();
    if both.pairs.is_empty() && both.alone == [0, 0] {
        return vec![ComparisonRefusal::Nothing];
    }
    let [a, b] = both.alone;
    if (a + b) as f64 > ALONE_MAX * (both.pairs.len() as u64 + a + b) as f64 {
        found.push(ComparisonRefusal::Failed { name_a: name_a.clone(), name_b: name_b.clone(), a, b });
    }
    let sum = |of: fn(&crate::session::Figure) -> u32| {
        both.pairs.iter().fold((0_u64, 0_u64), |sum, (_, a, b)| (sum.0 + u64::from(of(a)), sum.1 + u64::from(of(b))))
    };
    for (of, (a, b)) in [("sent", sum(|figure| figure.prompt)), ("received", sum(|figure| figure.completion))] {
        let apart = a.abs_diff(b) as f64 / a.max(b).max(1) as f64;
        if apart > TOKENS_APART {
            let name_a = name_a.clone();
            let name_b = name_b.clone();
            found.push(ComparisonRefusal::Tokens { of, name_a, name_b, a, b, percent: apart * 100.0 });
        }
    }
    let ([at_a, at_b], of) = (both.warm(), both.first_prompts().count() as u64);
    if at_a.abs_diff(at_b) as f64 > WARM_APART * of as f64 {
        let name_a = name_a.clone();
        let name_b = name_b.clone();
        found.push(ComparisonRefusal::Warm { name_a, name_b, at_a, at_b, of });
    }
    let differ = both.first_prompts().filter(|(_, a, b)| a.prompt != b.prompt).count() as u64;
    if differ > 0 {
        found.push(ComparisonRefusal::Prompts {
            name_a: name_a.clone(),
            name_b: name_b.clone(),
            count: differ,
            of: both.first_prompts().count() as u64,
        });
    }
    found
}
