//! The flags of SGLang's `bench_serving` 0.5.23 and `bench_multiturn.py`, and what they affect.
//! This table determines which flags are accepted or rejected, the warning about flags without
//! effect, the abbreviations, and a note in `--help`.

/// A `bench_serving` flag and its effect.
#[derive(Debug)]
pub struct ServingFlag {
    /// Name without its leading dashes.
    pub name: &'static str,
    pub effect: FlagEffect,
}

/// What a flag affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagEffect {
    /// Affects requests: their content or their target.
    Request,
    /// Affects send times or the steps before the run.
    Schedule,
    /// Affects the report, its files or the progress display.
    Output,
    /// No effect, for the given reason; accepted with a warning.
    Without(FlagArgument, &'static str),
    /// Rejected, for the given reason.
    Rejected(FlagArgument, &'static str),
}

/// The argument of a flag that is accepted without effect or rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagArgument {
    Nothing,
    Value,
}

const IMAGES: &str = "mcctl sends only text; use sglang.bench_serving for image models";
const NO_STATISTICS: &str = "mcctl never counts tokens when preparing prompts";
const TRACE_TIMES: &str =
    "mcctl always replays a trace at its recorded times; to send at --request-rate, use --ignore-trace-timestamps";
const NO_DOWNLOAD: &str = "mcctl does not download traces; use --dataset-path";
const OWN_CLIENT: &str = "mcctl uses its own single-threaded client";

/// The flags of `bench_serving` 0.5.23, in source order.
#[rustfmt::skip]
pub const SERVING: [ServingFlag; 87] = [
    ServingFlag { name: "backend", effect: FlagEffect::Request },
    ServingFlag { name: "base-url", effect: FlagEffect::Request },
    ServingFlag { name: "host", effect: FlagEffect::Request },
    ServingFlag { name: "port", effect: FlagEffect::Request },
    ServingFlag { name: "ready-check-timeout-sec", effect: FlagEffect::Schedule },
    ServingFlag { name: "dataset-name", effect: FlagEffect::Request },
    ServingFlag { name: "dataset-path", effect: FlagEffect::Request },
    ServingFlag { name: "dataset-offset", effect: FlagEffect::Request },
    ServingFlag { name: "agentic-max-turns", effect: FlagEffect::Request },
    ServingFlag { name: "speed-bench-category", effect: FlagEffect::Request },
    ServingFlag { name: "speed-bench-output-len", effect: FlagEffect::Request },
    ServingFlag { name: "model", effect: FlagEffect::Request },
    ServingFlag { name: "served-model-name", effect: FlagEffect::Request },
    ServingFlag { name: "tokenizer", effect: FlagEffect::Request },
    ServingFlag { name: "num-prompts", effect: FlagEffect::Request },
    ServingFlag { name: "sharegpt-output-len", effect: FlagEffect::Request },
    ServingFlag { name: "sharegpt-context-len", effect: FlagEffect::Request },
    ServingFlag { name: "random-input-len", effect: FlagEffect::Request },
    ServingFlag { name: "random-output-len", effect: FlagEffect::Request },
    ServingFlag { name: "random-range-ratio", effect: FlagEffect::Request },
    ServingFlag { name: "image-count", effect: FlagEffect::Rejected(FlagArgument::Value, IMAGES) },
    ServingFlag { name: "image-resolution", effect: FlagEffect::Rejected(FlagArgument::Value, IMAGES) },
    ServingFlag { name: "random-image-count", effect: FlagEffect::Rejected(FlagArgument::Nothing, IMAGES) },
    ServingFlag { name: "image-format", effect: FlagEffect::Rejected(FlagArgument::Value, IMAGES) },
    ServingFlag { name: "image-content", effect: FlagEffect::Rejected(FlagArgument::Value, IMAGES) },
    ServingFlag { name: "request-rate", effect: FlagEffect::Schedule },
    ServingFlag { name: "use-trace-timestamps", effect: FlagEffect::Without(FlagArgument::Nothing, TRACE_TIMES) },
    ServingFlag { name: "max-concurrency", effect: FlagEffect::Schedule },
    ServingFlag { name: "output-file", effect: FlagEffect::Output },
    ServingFlag { name: "output-details", effect: FlagEffect::Output },
    ServingFlag { name: "goodput", effect: FlagEffect::Output },
    ServingFlag { name: "print-requests", effect: FlagEffect::Output },
    ServingFlag { name: "disable-tqdm", effect: FlagEffect::Output },
    ServingFlag { name: "disable-stream", effect: FlagEffect::Request },
    ServingFlag { name: "return-logprob", effect: FlagEffect::Request },
    ServingFlag { name: "top-logprobs-num", effect: FlagEffect::Request },
    ServingFlag { name: "token-ids-logprob", effect: FlagEffect::Request },
    ServingFlag { name: "logprob-start-len", effect: FlagEffect::Request },
    ServingFlag { name: "return-routed-experts", effect: FlagEffect::Request },
    ServingFlag { name: "cache-report", effect: FlagEffect::Output },
    ServingFlag { name: "seed", effect: FlagEffect::Request },
    ServingFlag { name: "disable-ignore-eos", effect: FlagEffect::Request },
    ServingFlag { name: "temperature", effect: FlagEffect::Request },
    ServingFlag { name: "top-p", effect: FlagEffect::Request },
    ServingFlag { name: "extra-request-body", effect: FlagEffect::Request },
    ServingFlag { name: "apply-chat-template", effect: FlagEffect::Request },
    ServingFlag { name: "profile", effect: FlagEffect::Request },
    ServingFlag { name: "plot-throughput", effect: FlagEffect::Output },
    ServingFlag { name: "profile-activities", effect: FlagEffect::Request },
    ServingFlag { name: "profile-start-step", effect: FlagEffect::Request },
    ServingFlag { name: "profile-steps", effect: FlagEffect::Request },
    ServingFlag { name: "profile-num-steps", effect: FlagEffect::Request },
    ServingFlag { name: "profile-by-stage", effect: FlagEffect::Request },
    ServingFlag { name: "profile-stages", effect: FlagEffect::Request },
    ServingFlag { name: "profile-output-dir", effect: FlagEffect::Request },
    ServingFlag { name: "profile-prefix", effect: FlagEffect::Request },
    ServingFlag { name: "lora-name", effect: FlagEffect::Request },
    ServingFlag { name: "lora-request-distribution", effect: FlagEffect::Request },
    ServingFlag { name: "lora-zipf-alpha", effect: FlagEffect::Request },
    ServingFlag { name: "prompt-suffix", effect: FlagEffect::Request },
    ServingFlag { name: "pd-separated", effect: FlagEffect::Request },
    ServingFlag { name: "profile-prefill-url", effect: FlagEffect::Request },
    ServingFlag { name: "profile-decode-url", effect: FlagEffect::Request },
    ServingFlag { name: "flush-cache", effect: FlagEffect::Schedule },
    ServingFlag { name: "flush-cache-timeout", effect: FlagEffect::Schedule },
    ServingFlag { name: "warmup-requests", effect: FlagEffect::Schedule },
    ServingFlag { name: "tokenize-prompt", effect: FlagEffect::Request },
    ServingFlag { name: "gsp-num-groups", effect: FlagEffect::Request },
    ServingFlag { name: "gsp-prompts-per-group", effect: FlagEffect::Request },
    ServingFlag { name: "gsp-system-prompt-len", effect: FlagEffect::Request },
    ServingFlag { name: "gsp-question-len", effect: FlagEffect::Request },
    ServingFlag { name: "gsp-output-len", effect: FlagEffect::Request },
    ServingFlag { name: "gsp-range-ratio", effect: FlagEffect::Request },
    ServingFlag { name: "gsp-fast-prepare", effect: FlagEffect::Without(FlagArgument::Nothing, NO_STATISTICS) },
    ServingFlag { name: "gsp-send-routing-key", effect: FlagEffect::Request },
    ServingFlag { name: "gsp-num-turns", effect: FlagEffect::Request },
    ServingFlag { name: "gsp-ordered", effect: FlagEffect::Schedule },
    ServingFlag { name: "gsp-group-distribution", effect: FlagEffect::Request },
    ServingFlag { name: "gsp-zipf-alpha", effect: FlagEffect::Request },
    ServingFlag { name: "mooncake-slowdown-factor", effect: FlagEffect::Schedule },
    ServingFlag { name: "mooncake-num-rounds", effect: FlagEffect::Request },
    ServingFlag { name: "mooncake-workload", effect: FlagEffect::Without(FlagArgument::Value, NO_DOWNLOAD) },
    ServingFlag { name: "fake-prefill", effect: FlagEffect::Request },
    ServingFlag { name: "tag", effect: FlagEffect::Output },
    ServingFlag { name: "header", effect: FlagEffect::Request },
    ServingFlag { name: "rust-client", effect: FlagEffect::Without(FlagArgument::Nothing, OWN_CLIENT) },
    ServingFlag { name: "rust-worker-threads", effect: FlagEffect::Without(FlagArgument::Value, OWN_CLIENT) },
];

/// The flags of `bench_multiturn.py`. All of them are accepted.
pub const MULTI_TURN: [&str; 24] = [
    "num-clients",
    "max-parallel",
    "request-length",
    "output-length",
    "num-rounds",
    "distribution",
    "request-rate",
    "host",
    "port",
    "model-path",
    "dataset-path",
    "log-file",
    "disable-auto-run",
    "disable-random-sample",
    "enable-round-barrier",
    "seed",
    "lora-path",
    "tag",
    "min-rounds",
    "max-rounds",
    "range-ratio",
    "ready-queue-policy",
    "sub-question-input-length",
    "api-format",
];

/// The flags of `benchmark/hicache/bench_serving.py` that are accepted and that the other tools
/// lack.
pub const HICACHE: [&str; 3] = ["enable-multiturn", "disable-shuffle", "fixed-output-len"];

/// Returns the flags grouped by effect, for `--help`.
pub fn summary() -> String {
    let of = |kind: fn(&FlagEffect) -> bool| {
        let names = SERVING.iter().filter(|flag| kind(&flag.effect)).map(|flag| format!("--{}", flag.name));
        names.collect::<Vec<_>>().join(" ")
    };
    let with = SERVING.iter().filter(|flag| flag.effect.is_some()).count();
    format!(
        "Flags of sglang.bench_serving 0.5.23: {with} of {} are supported. Accepted with a warning, but without effect: {}. Rejected: {}, \
         the datasets image and mmmu, and the backends sglang-embedding, vllm-embedding and gserver. Unambiguous flag prefixes are \
         accepted, e.g. --num-prompt for --num-prompts.",
        SERVING.len(),
        of(|effect| matches!(effect, FlagEffect::Without(..))),
        of(|effect| matches!(effect, FlagEffect::Rejected(..))),
    )
}

impl FlagEffect {
    /// Returns whether the flag has an effect.
    pub const fn is_some(&self) -> bool {
        matches!(self, FlagEffect::Request | FlagEffect::Schedule | FlagEffect::Output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_flags_have_an_effect_and_names_are_unique() {
        let count = |kind: fn(&FlagEffect) -> bool| SERVING.iter().filter(|flag| kind(&flag.effect)).count();
        let (with, without, rejected) = (
            count(FlagEffect::is_some),
            count(|effect| matches!(effect, FlagEffect::Without(..))),
            count(|effect| matches!(effect, FlagEffect::Rejected(..))),
        );
        assert!(with >= 58 && without <= 18, "{with} {without} {rejected}");
        assert_eq!(with + without + rejected, SERVING.len());
        let mut names: Vec<&str> = SERVING.iter().map(|flag| flag.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SERVING.len());
        let images = |flag: &&ServingFlag| matches!(flag.effect, FlagEffect::Rejected(..));
        assert!(SERVING.iter().filter(images).all(|flag| flag.name.contains("image")));
    }
}
