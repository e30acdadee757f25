//! Caveats: warnings that a report's figures may be misleading.

use serde::{Serialize, Serializer};
use thiserror::Error;

/// A caveat about the results of a bench command. Serialized as its message.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum BenchCaveat {
    #[error("{signal} ended the run early; the figures cover the run up to that point")]
    Signal { signal: &'static str },
    #[error("the run is incomplete: {reason}")]
    Incomplete { reason: String },
    #[error(
        "up to {requests} requests are from an interrupted run that started at {started}: cache contents differ from those \
         in an uninterrupted run, and ITL covers only the resumed part"
    )]
    Resumed { requests: u64, started: String },
    /// Reported by the workload: the prompts differ from what the flags request.
    #[error("{0}")]
    Workload(String),
    /// Reported by the load generator, which could not keep up.
    #[error("{0}")]
    Generator(String),
    /// Found in the server's counters.
    #[error("{0}")]
    Server(String),
    /// `lag_ms`: the 99th percentile of the lag, or the maximum if there are too few requests for a percentile.
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
        "requests in flight are measured during the steady state, which is too short at {loads} (use more conversations)"
    )]
    SteadyStateTooShortAt { loads: String },
    #[error("requests were sent at --request-rate, not at the times recorded in the trace")]
    TraceTimesIgnored,
    #[error(
        "{side}: cannot flush the caches between passes ({reason}): each pass hits cache entries left by the previous pass"
    )]
    CachesNotFlushed { side: String, reason: String },
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
        "{pass}: {a} and {b} were measured one after the other, not interleaved: the difference includes changes over time, but the \
         interval does not include them"
    )]
    NotInterleaved { pass: String, a: String, b: String },
    #[error(
        "{pass}: {a}'s mean TTFT drifted from {first_ms:.1} to {second_ms:.1} ms between the first and second half of its blocks"
    )]
    Drift { pass: String, a: String, first_ms: f64, second_ms: f64 },
    #[error("{requests} requests failed")]
    RequestsFailed { requests: u64 },
    /// A ladder tier without a verified request.
    #[error("{0}")]
    TierNotVerified(TierNotVerified),
    #[error(
        "{operation}: {batches} batches are too few for latency percentiles: raise --objects or --duration, or lower --batch"
    )]
    TooFewStoreBatches { operation: String, batches: u64 },
    #[error(
        "{batches} batches are too few for latency percentiles: raise --duration, or lower --block-size or --batch-size"
    )]
    TooFewTransferBatches { batches: u64 },
    #[error("{pass}: {objects} objects were missing when read; the figures cover only the objects that were found")]
    MissingObjects { pass: &'static str, objects: u64 },
    #[error("{pass}: {fewer} of {objects} objects have fewer than {replicas} replicas: too few nodes had free space")]
    FewerCopies { pass: &'static str, fewer: u64, objects: u64, replicas: u64 },
    #[error("cannot remove the objects ({error}); they remain in the store under the prefix {prefix}")]
    NotRemoved { error: String, prefix: String },
    #[error("throughput and CPU figures include the cost of comparing every byte (--verify)")]
    IncludesVerify,
}

/// The reason why no ladder request verified a tier at a prompt length.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TierNotVerified {
    #[error("no {length}-token prompt was served from {tier} alone: no request succeeded")]
    NoRequest { length: u32, tier: &'static str },
    /// The token counts are totals over all requests, by source. `threshold`: the minimum number of tokens for which the server queries L3.
    #[error(
        "no {length}-token prompt was served from {tier} alone: {requests} requests loaded {device} tokens from L1, {host} from L2, \
         {storage} from L3, and computed {computed}{}",
        .threshold.map_or(String::new(), |tokens| format!(" (the server queries L3 only for {tokens} tokens or more)"))
    )]
    OtherSource {
        length: u32,
        tier: &'static str,
        requests: u64,
        device: u64,
        host: u64,
        storage: u64,
        computed: u64,
        threshold: Option<u32>,
    },
}

impl BenchCaveat {
    /// Returns the caveat's identifier, which does not depend on the message.
    pub const fn id(&self) -> &'static str {
        match self {
            BenchCaveat::Signal { .. } => "signal",
            BenchCaveat::Incomplete { .. } => "incomplete",
            BenchCaveat::Resumed { .. } => "resumed",
            BenchCaveat::Workload(_) => "workload",
            BenchCaveat::Generator(_) => "generator",
            BenchCaveat::Server(_) => "server",
            BenchCaveat::GeneratorLag { .. } => "generator-lag",
            BenchCaveat::ConcurrencyWait { .. } => "concurrency-wait",
            BenchCaveat::UncountedTokens { .. } => "uncounted-tokens",
            BenchCaveat::UnreadableFrames { .. } => "unreadable-frames",
            BenchCaveat::SteadyStateTooShort { .. } | BenchCaveat::SteadyStateTooShortAt { .. } => {
                "steady-state-too-short"
            }
            BenchCaveat::TraceTimesIgnored => "trace-times-ignored",
            BenchCaveat::CachesNotFlushed { .. } => "caches-not-flushed",
            BenchCaveat::StorageKeepsBlocks => "storage-keeps-blocks",
            BenchCaveat::FirstTurnsMayBeWarm => "first-turns-may-be-warm",
            BenchCaveat::NotInterleaved { .. } => "not-interleaved",
            BenchCaveat::Drift { .. } => "drift",
            BenchCaveat::RequestsFailed { .. } => "requests-failed",
            BenchCaveat::TierNotVerified(_) => "tier-not-verified",
            BenchCaveat::TooFewStoreBatches { .. } | BenchCaveat::TooFewTransferBatches { .. } => "too-few-batches",
            BenchCaveat::MissingObjects { .. } => "missing-objects",
            BenchCaveat::FewerCopies { .. } => "fewer-copies",
            BenchCaveat::NotRemoved { .. } => "not-removed",
            BenchCaveat::IncludesVerify => "includes-verify",
        }
    }
}

impl Serialize for BenchCaveat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Renders the final part of a report: the caveats, then the conclusion, wrapped to `width` columns.
pub fn render_end<T: std::fmt::Display>(caveats: &[T], answer: &[String], width: usize) -> String {
    use crate::commands::table::wrapped_line;
    let caveats = caveats.iter().map(|caveat| wrapped_line(&format!("caveat: {caveat}"), width));
    let answer = answer.iter().map(|line| wrapped_line(line, width));
    caveats.chain(answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caveats_are_text_in_documents_and_wrap_in_reports() {
        let caveat = BenchCaveat::RequestsFailed { requests: 3 };
        assert_eq!(serde_json::json!([caveat]), serde_json::json!([caveat.to_string()]));
        let end = render_end(&[BenchCaveat::IncludesVerify], &["answer".to_owned()], 40);
        assert!(end.starts_with("caveat: ") && end.ends_with("\nanswer\n"), "{end}");
        assert!(end.lines().all(|line| line.len() <= 40), "{end}");
    }

    #[test]
    fn texts_of_caveats_are_reviewed() {
        let text = || "text".to_owned();
        let other = TierNotVerified::OtherSource {
            length: 512,
            tier: "storage",
            requests: 5,
            device: 2480,
            host: 0,
            storage: 0,
            computed: 80,
            threshold: Some(256),
        };
        let caveats = [
            BenchCaveat::Signal { signal: "SIGINT" },
            BenchCaveat::Incomplete { reason: text() },
            BenchCaveat::Resumed { requests: 12, started: "2026-11-21T20:31:00Z".to_owned() },
            BenchCaveat::GeneratorLag { lag_ms: 12.5 },
            BenchCaveat::ConcurrencyWait { p50_ms: 1.5, limit: Some(128) },
            BenchCaveat::ConcurrencyWait { p50_ms: 1.5, limit: None },
            BenchCaveat::UncountedTokens { frames: 7 },
            BenchCaveat::UnreadableFrames { frames: 7 },
            BenchCaveat::SteadyStateTooShort { seconds: 0.5, ended: 50.0 },
            BenchCaveat::SteadyStateTooShortAt { loads: "rate 4".to_owned() },
            BenchCaveat::TraceTimesIgnored,
            BenchCaveat::CachesNotFlushed { side: "A".to_owned(), reason: text() },
            BenchCaveat::StorageKeepsBlocks,
            BenchCaveat::FirstTurnsMayBeWarm,
            BenchCaveat::NotInterleaved { pass: "run".to_owned(), a: "A".to_owned(), b: "B".to_owned() },
            BenchCaveat::Drift { pass: "run".to_owned(), a: "A".to_owned(), first_ms: 10.0, second_ms: 20.0 },
            BenchCaveat::RequestsFailed { requests: 3 },
            BenchCaveat::TierNotVerified(TierNotVerified::NoRequest { length: 512, tier: "host" }),
            BenchCaveat::TierNotVerified(other),
            BenchCaveat::TooFewStoreBatches { operation: "put".to_owned(), batches: 3 },
            BenchCaveat::TooFewTransferBatches { batches: 3 },
            BenchCaveat::MissingObjects { pass: "get", objects: 3 },
            BenchCaveat::FewerCopies { pass: "put", fewer: 3, objects: 10, replicas: 2 },
            BenchCaveat::NotRemoved { error: text(), prefix: "mcctl-bench-".to_owned() },
            BenchCaveat::IncludesVerify,
        ];
        let lines: Vec<String> = caveats.iter().map(|caveat| format!("{}: {caveat}", caveat.id())).collect();
        insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
            insta::assert_snapshot!("bench_caveats", lines.join("\n"));
        });
    }
}
