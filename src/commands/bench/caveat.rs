//! Caveats: warnings that a report's figures may be misleading.

use serde::{Serialize, Serializer};
use thiserror::Error;

use crate::commands::bench::verify::caveat::VerifyCaveat;
use crate::commands::cli::runtime::StopSignal;
use crate::engine::load::LoadCaveat;

/// A caveat about the results of a bench command. Serialized as its message.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum BenchCaveat {
    #[error("{signal} ended the run early; the figures cover the run up to that point")]
    Signal { signal: StopSignal },
    #[error(
        "up to {requests} requests are from an interrupted run that started at {started}: cache contents differ from those \
         in an uninterrupted run, and ITL covers only the resumed part"
    )]
    Resumed { requests: u64, started: String },
    /// About a measurement of an inference server.
    #[error(transparent)]
    Load(LoadCaveat),
    #[error(
        "{operation}: {batches} {} too few for latency percentiles: raise --objects, --rounds or --duration, or lower --batch-size",
        if *.batches == 1 { "batch is" } else { "batches are" }
    )]
    TooFewStoreBatches { operation: String, batches: u64 },
    #[error(
        "{batches} {} too few for latency percentiles: raise --duration, or lower --block-size or --batch-size",
        if *.batches == 1 { "batch is" } else { "batches are" }
    )]
    TooFewTransferBatches { batches: u64 },
    #[error("{pass}: {objects} objects were missing when read; the figures cover only the objects that were found")]
    MissingObjects { pass: &'static str, objects: u64 },
    #[error("{pass}: {fewer} of {objects} objects have fewer than {replicas} replicas: too few nodes had free space")]
    FewerCopies { pass: &'static str, fewer: u64, objects: u64, replicas: u64 },
    #[error("no warm-up (--no-warm-up): the figures may include first writes to new memory, which are slow")]
    NoWarmUp,
    #[error(
        "the warm-up stored only {objects} of {of} objects ({errors}): the figures may include first writes to new memory, which are slow"
    )]
    PartialWarmUp { objects: u64, of: u64, errors: String },
    #[error(
        "mixed: {objects} objects were put in addition to those of the warm-up, possibly into new memory, which is slow"
    )]
    MixedNotWarm { objects: u64 },
    #[error("cannot remove the objects ({error}); they remain in the store under the prefix {prefix}")]
    NotRemoved { error: String, prefix: String },
    /// About `bench ladder`. `is_time`: the time limit ended the run, rather than the number of
    /// prompts.
    #[error(
        "intervals at {} tokens are wider than {percent} % of the TTFT of computing, or undecided, when the run reached its limit: raise {}",
        .lengths.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
        if *.is_time { "--max-time" } else { "--max-repeats" }
    )]
    WideIntervals { lengths: Vec<u32>, percent: f64, is_time: bool },
    /// About the check of cached answers by `bench verify`.
    #[error(transparent)]
    Verify(VerifyCaveat),
    /// The records of `path` do not state the load.
    #[error("{path} was recorded by an older version: whether both runs had the same load was not checked")]
    LoadNotRecorded { path: String },
    #[error("throughput and CPU figures include the cost of comparing every byte (--verify)")]
    IncludesVerify,
}

impl BenchCaveat {
    /// Returns the caveat's identifier, which does not depend on the message.
    pub const fn id(&self) -> &'static str {
        match self {
            BenchCaveat::Signal { .. } => "signal",
            BenchCaveat::Resumed { .. } => "resumed",
            BenchCaveat::Load(caveat) => caveat.id(),
            BenchCaveat::TooFewStoreBatches { .. } | BenchCaveat::TooFewTransferBatches { .. } => "too-few-batches",
            BenchCaveat::MissingObjects { .. } => "missing-objects",
            BenchCaveat::FewerCopies { .. } => "fewer-copies",
            BenchCaveat::NoWarmUp => "no-warm-up",
            BenchCaveat::PartialWarmUp { .. } => "partial-warm-up",
            BenchCaveat::MixedNotWarm { .. } => "mixed-not-warm",
            BenchCaveat::NotRemoved { .. } => "not-removed",
            BenchCaveat::WideIntervals { .. } => "wide-intervals",
            BenchCaveat::Verify(caveat) => caveat.id(),
            BenchCaveat::LoadNotRecorded { .. } => "load-not-recorded",
            BenchCaveat::IncludesVerify => "includes-verify",
        }
    }
}

impl BenchCaveat {
    /// Returns whether a report lists both caveats as one.
    pub fn is_same(&self, other: &BenchCaveat) -> bool {
        match (self, other) {
            (BenchCaveat::Load(a), BenchCaveat::Load(b)) => a.is_same(b),
            _ => self == other,
        }
    }
}

impl From<LoadCaveat> for BenchCaveat {
    fn from(caveat: LoadCaveat) -> BenchCaveat {
        BenchCaveat::Load(caveat)
    }
}

impl Serialize for BenchCaveat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Renders the final part of a report: the caveats, then the conclusion, wrapped to `width`
/// columns.
pub fn render_end<T: std::fmt::Display>(caveats: &[T], answer: &[String], width: usize) -> String {
    use crate::commands::cli::table::wrapped_line;
    let caveats = caveats.iter().map(|caveat| wrapped_line(&format!("caveat: {caveat}"), width));
    let answer = answer.iter().map(|line| wrapped_line(line, width));
    caveats.chain(answer).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::load::ladder::TierNotVerified;
    use crate::engine::load::session::{Control, StepError, StepFailure};

    #[test]
    fn caveats_are_text_in_documents_and_wrap_in_reports() {
        let caveat = BenchCaveat::Load(LoadCaveat::RequestsFailed { requests: 3 });
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
        let not_reached = |too_long: bool| LoadCaveat::TiersNotReached {
            tiers: vec![("L2".to_owned(), 16_384), ("L3".to_owned(), 49_216)],
            working_set: 8_640,
            required: 18,
            too_long,
        };
        let failed_step = StepError { step: Control::Flush, cause: StepFailure::NoServerCalls };
        let of_load = [
            LoadCaveat::Incomplete(failed_step),
            LoadCaveat::GeneratorLag { lag_ms: 12.5 },
            LoadCaveat::ConcurrencyWait { p50_ms: 1.5, limit: Some(128) },
            LoadCaveat::ConcurrencyWait { p50_ms: 1.5, limit: None },
            LoadCaveat::UncountedTokens { frames: 7 },
            LoadCaveat::UnreadableFrames { frames: 7 },
            LoadCaveat::SteadyStateTooShort { seconds: 0.5, ended: 50.0 },
            LoadCaveat::SteadyStateTooShortAt { loads: vec!["rate 4".to_owned()] },
            LoadCaveat::TraceTimesIgnored,
            LoadCaveat::CachesNotFlushed { side: "A".to_owned(), error: None },
            LoadCaveat::StorageKeepsBlocks,
            LoadCaveat::FirstTurnsMayBeWarm,
            LoadCaveat::NotInterleaved { pass: "run".to_owned(), a: "A".to_owned(), b: "B".to_owned() },
            LoadCaveat::Drift { pass: "run".to_owned(), a: "A".to_owned(), first_ms: 10.0, second_ms: 20.0 },
            LoadCaveat::LagInComparison {
                pass: "run".to_owned(),
                name: "B".to_owned(),
                p99_ms: 7.5,
                mean_ms: 0.4,
                limit: Duration::from_millis(5),
            },
            LoadCaveat::FirstPromptsCached { pass: "run".to_owned(), name: "B".to_owned(), count: 20, of: 24 },
            LoadCaveat::RequestsExcluded {
                pass: "run".to_owned(),
                a: "A".to_owned(),
                b: "B".to_owned(),
                at_a: 3,
                at_b: 0,
            },
            not_reached(false),
            not_reached(true),
            LoadCaveat::CacheSizesUnknown {
                names: "A and B".to_owned(),
                reason: "--no-server-calls".to_owned(),
                working_set: 8_640,
            },
            LoadCaveat::ServersDiffer {
                what: "page size",
                names: ["A".to_owned(), "B".to_owned()],
                values: ["16 tokens".to_owned(), "64 tokens".to_owned()],
            },
            LoadCaveat::BlocksDropped {
                pass: "run".to_owned(),
                a: "A".to_owned(),
                b: "B".to_owned(),
                dropped: 1,
                blocks: 4,
            },
            LoadCaveat::RequestsFailed { requests: 3 },
            LoadCaveat::TierNotVerified(TierNotVerified::NoRequest { length: 512, tier: "host" }),
            LoadCaveat::TierNotVerified(other),
        ];
        let others = [
            BenchCaveat::Signal { signal: StopSignal::Interrupt },
            BenchCaveat::Resumed { requests: 12, started: "2026-11-21T20:31:00Z".to_owned() },
            BenchCaveat::TooFewStoreBatches { operation: "put".to_owned(), batches: 3 },
            BenchCaveat::TooFewTransferBatches { batches: 3 },
            BenchCaveat::MissingObjects { pass: "get", objects: 3 },
            BenchCaveat::FewerCopies { pass: "put", fewer: 3, objects: 10, replicas: 2 },
            BenchCaveat::NoWarmUp,
            BenchCaveat::PartialWarmUp { objects: 100, of: 256, errors: "NO_AVAILABLE_HANDLE".to_owned() },
            BenchCaveat::MixedNotWarm { objects: 100 },
            BenchCaveat::NotRemoved { error: text(), prefix: "mcctl-bench-".to_owned() },
            BenchCaveat::WideIntervals { lengths: vec![512, 1024], percent: 10.0, is_time: false },
            BenchCaveat::LoadNotRecorded { path: "a.jsonl".to_owned() },
            BenchCaveat::IncludesVerify,
        ];
        let caveats = of_load.map(BenchCaveat::Load).into_iter().chain(others);
        let lines: Vec<String> = caveats.map(|caveat| format!("{}: {caveat}", caveat.id())).collect();
        insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
            insta::assert_snapshot!("bench_caveats", lines.join("\n"));
        });
    }
}
