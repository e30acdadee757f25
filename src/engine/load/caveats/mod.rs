//! Caveats: reasons why the figures of a measurement may be misleading.

mod generator;
mod pass;

use std::time::Duration;

use crate::ladder::TierNotVerified;
use crate::server::{ObservationCaveat, ServerCallError};
use crate::session::StepError;

pub use generator::GeneratorCaveat;

/// A caveat about the results of a measurement.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadCaveat {
    #[error("the run is incomplete: {0}")]
    Incomplete(StepError),
    /// Reported by the workload: the prompts differ from what the flags request.
    #[error("{0}")]
    Workload(String),
    /// Reported by the load generator, which could not keep up.
    #[error("{0}")]
    Generator(GeneratorCaveat),
    /// Found in the server's counters.
    #[error(transparent)]
    Server(ObservationCaveat),
    /// `lag_ms`: the 99th percentile of the lag, or the maximum if there are too few requests for a
    /// percentile.
    #[error("the generator sent requests up to {lag_ms:.1} ms late: this machine is busy or too slow for this load")]
    GeneratorLag { lag_ms: f64 },
    /// `p50_ms`: the median wait. `limit`: `--max-parallel`.
    #[error(
        "half of the requests waited at least {p50_ms:.1} ms for a concurrency slot ({}): the request rate exceeds what the server or \
         --max-parallel allows",
        .limit.map_or("no limit".to_owned(), |limit| format!("limit {limit}"))
    )]
    ConcurrencyWait { p50_ms: f64, limit: Option<u32> },
    #[error(
        "the server does not report token counts: {frames} stream events are counted as one token each; this affects throughput, ITL and \
         TPOT"
    )]
    UncountedTokens { frames: u64 },
    #[error("{frames} stream events could not be parsed; their tokens are not counted")]
    UnreadableFrames { frames: u64 },
    #[error(
        "the steady state lasts {seconds:.1} s with {ended:.0} completed requests: too short to compute rates (use more conversations)"
    )]
    SteadyStateTooShort { seconds: f64, ended: f64 },
    #[error(
        "requests in flight are measured during the steady state, which is too short at {} (use more conversations)",
        .loads.join(", ")
    )]
    SteadyStateTooShortAt { loads: Vec<String> },
    #[error("requests were sent at --request-rate, not at the times recorded in the trace")]
    TraceTimesIgnored,
    /// `error`: the failed call; `None` if calls to other routes are not allowed.
    #[error(
        "{side}: cannot flush the caches between passes ({}): each pass hits cache entries left by the previous pass",
        .error.as_ref().map_or("--no-server-calls".to_owned(), ToString::to_string)
    )]
    CachesNotFlushed { side: String, error: Option<ServerCallError> },
    #[error(
        "L3 keeps the pages that each block stored, so the second run of a block hits them, which inflates the noise \
         floor (--phases flush,clear,first clears L3 before each block)"
    )]
    StorageKeepsBlocks,
    #[error(
        "first turns may be the same as in earlier passes; if L3 still holds those prompts, the 'Turn 1' row reflects a warm cache"
    )]
    FirstTurnsMayBeWarm,
    #[error(
        "{pass}: {a} and {b} were measured one after the other, not interleaved: a drift over time counts as a difference, beyond the 5 % \
         per pass that the interval assumes"
    )]
    NotInterleaved { pass: String, a: String, b: String },
    #[error(
        "{pass}: {a}'s mean TTFT drifted from {first_ms:.1} to {second_ms:.1} ms between the first and second half of its blocks"
    )]
    Drift { pass: String, a: String, first_ms: f64, second_ms: f64 },
    /// `p99_ms`, `mean_ms`: the generator lag. `limit`: `--lag-limit`.
    #[error(
        "{pass}: the generator sent requests to {name} up to {p99_ms:.1} ms late (p99; --lag-limit {limit:?}): this machine is busy or too \
         slow for the load. TTFT and E2E intervals are wider by the mean lag of {mean_ms:.2} ms"
    )]
    LagInComparison { pass: String, name: String, p99_ms: f64, mean_ms: f64, limit: Duration },
    /// The server had the prompts before the run, although the run had not sent them.
    #[error(
        "{pass}: {count} of {of} first prompts were already cached at {name}, for example in its L3 by an earlier run: use another --seed, or \
         --phases flush,clear,first"
    )]
    FirstPromptsCached { pass: String, name: String, count: u64, of: u64 },
    /// Requests that succeeded at one endpoint only.
    #[error(
        "{pass}: {at_a} requests that succeeded only at {a} and {at_b} that succeeded only at {b} are not compared; slow requests may be \
         missing"
    )]
    RequestsExcluded { pass: String, a: String, b: String, at_a: u64, at_b: u64 },
    /// The load of a comparison does not use tiers in question, each of which matters above a
    /// number of tokens. `required`: conversations per block. `too_long`: the load was chosen, and
    /// a larger one would take too long.
    #[error(
        "the load does not reach {}: the conversations of a block have {working_set} tokens, so the comparison cannot show the benefit of \
         {}; {}use --num-clients {required} --blocks 1, or longer conversations",
        .tiers.iter().map(|(tier, above)| format!("{tier} (above {above} tokens)")).collect::<Vec<_>>().join(" and "),
        if .tiers.len() == 1 { "this tier" } else { "these tiers" },
        if *.too_long { "reaching it would take more than half an hour; if that is acceptable, " } else { "" }
    )]
    TiersNotReached { tiers: Vec<(String, u64)>, working_set: u64, required: u32, too_long: bool },
    #[error(
        "the cache sizes of {names} are unknown ({reason}): whether the load exceeds the caches was not checked; a block has \
         {working_set} tokens"
    )]
    CacheSizesUnknown { names: String, reason: String, working_set: u64 },
    /// `what`: the property. `values`: its value at the two servers `names`.
    #[error(
        "the servers differ in their {what}: {} has {}, {} has {}; part of the difference may come from that",
        .names[0], .values[0], .names[1], .values[1]
    )]
    ServersDiffer { what: &'static str, names: [String; 2], values: [String; 2] },
    /// Blocks that an interrupted or stopped run did not complete at both endpoints.
    #[error(
        "{pass}: {dropped} of {blocks} blocks are not compared, because they were not completed at both {a} and {b}"
    )]
    BlocksDropped { pass: String, a: String, b: String, dropped: usize, blocks: usize },
    #[error("{requests} requests failed")]
    RequestsFailed { requests: u64 },
    /// A ladder tier without a verified request.
    #[error(transparent)]
    TierNotVerified(TierNotVerified),
}

impl LoadCaveat {
    /// Returns the caveat's identifier, which does not depend on the message.
    pub const fn id(&self) -> &'static str {
        match self {
            LoadCaveat::Incomplete(_) => "incomplete",
            LoadCaveat::Workload(_) => "workload",
            LoadCaveat::Generator(_) => "generator",
            LoadCaveat::Server(_) => "server",
            LoadCaveat::GeneratorLag { .. } => "generator-lag",
            LoadCaveat::ConcurrencyWait { .. } => "concurrency-wait",
            LoadCaveat::UncountedTokens { .. } => "uncounted-tokens",
            LoadCaveat::UnreadableFrames { .. } => "unreadable-frames",
            LoadCaveat::SteadyStateTooShort { .. } | LoadCaveat::SteadyStateTooShortAt { .. } => {
                "steady-state-too-short"
            }
            LoadCaveat::TraceTimesIgnored => "trace-times-ignored",
            LoadCaveat::CachesNotFlushed { .. } => "caches-not-flushed",
            LoadCaveat::StorageKeepsBlocks => "storage-keeps-blocks",
            LoadCaveat::FirstTurnsMayBeWarm => "first-turns-may-be-warm",
            LoadCaveat::NotInterleaved { .. } => "not-interleaved",
            LoadCaveat::Drift { .. } => "drift",
            LoadCaveat::LagInComparison { .. } => "lag-in-comparison",
            LoadCaveat::FirstPromptsCached { .. } => "first-prompts-cached",
            LoadCaveat::RequestsExcluded { .. } => "requests-excluded",
            LoadCaveat::TiersNotReached { .. } => "tiers-not-reached",
            LoadCaveat::CacheSizesUnknown { .. } => "cache-sizes-unknown",
            LoadCaveat::ServersDiffer { .. } => "servers-differ",
            LoadCaveat::BlocksDropped { .. } => "blocks-dropped",
            LoadCaveat::RequestsFailed { .. } => "requests-failed",
            LoadCaveat::TierNotVerified(_) => "tier-not-verified",
        }
    }

    /// Returns whether a report lists both caveats as one. What the generator or a server reports
    /// is the same if the texts are.
    pub fn is_same(&self, other: &LoadCaveat) -> bool {
        match (self, other) {
            (LoadCaveat::Generator(a), LoadCaveat::Generator(b)) => a.to_string() == b.to_string(),
            (LoadCaveat::Server(a), LoadCaveat::Server(b)) => a.to_string() == b.to_string(),
            _ => self == other,
        }
    }
}
