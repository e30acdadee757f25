//! The flags of SGLang's `bench_serving` 0.5.23 and `bench_multiturn.py`, and what each changes here. One table: from it come the flags
//! that are accepted without effect or refused, the warning that names them, their abbreviations, and a note in `--help`.

/// A flag, and what it changes.
#[derive(Debug)]
pub struct Flag {
    /// The name, without its dashes.
    pub name: &'static str,
    /// What it changes.
    pub effect: Effect,
}

/// What a flag changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A request: its bytes, or where it goes.
    Request,
    /// When requests are sent, and what is done before them.
    Schedule,
    /// The report, its files, or what is shown during the run.
    Output,
    /// Nothing here, for this reason: it is accepted with a warning.
    Without(Takes, &'static str),
    /// It is refused, for this reason.
    Refused(Takes, &'static str),
}

/// What follows a flag that has no argument of its own among ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// A value.
    Value,
}

const IMAGES: &str = "mcctl makes no images; sglang.bench_serving measures models that read them";
const NO_STATISTICS: &str = "prompts are prepared without counting tokens anyway";
const TRACE_TIMES: &str =
    "a mooncake trace is sent at its recorded times anyway; --ignore-trace-timestamps sends it at --request-rate";
const NO_DOWNLOAD: &str = "mcctl downloads no trace; --dataset-path names it";
const OWN_CLIENT: &str = "mcctl is its own client, with one thread";

/// The flags of `bench_serving` 0.5.23, in the order of its source.
#[rustfmt::skip]
pub const SERVING: [Flag; 87] = [
    Flag { name: "backend", effect: Effect::Request },
    Flag { name: "base-url", effect: Effect::Request },
    Flag { name: "host", effect: Effect::Request },
    Flag { name: "port", effect: Effect::Request },
    Flag { name: "ready-check-timeout-sec", effect: Effect::Schedule },
    Flag { name: "dataset-name", effect: Effect::Request },
    Flag { name: "dataset-path", effect: Effect::Request },
    Flag { name: "dataset-offset", effect: Effect::Request },
    Flag { name: "agentic-max-turns", effect: Effect::Request },
    Flag { name: "speed-bench-category", effect: Effect::Request },
    Flag { name: "speed-bench-output-len", effect: Effect::Request },
    Flag { name: "model", effect: Effect::Request },
    Flag { name: "served-model-name", effect: Effect::Request },
    Flag { name: "tokenizer", effect: Effect::Request },
    Flag { name: "num-prompts", effect: Effect::Request },
    Flag { name: "sharegpt-output-len", effect: Effect::Request },
    Flag { name: "sharegpt-context-len", effect: Effect::Request },
    Flag { name: "random-input-len", effect: Effect::Request },
    Flag { name: "random-output-len", effect: Effect::Request },
    Flag { name: "random-range-ratio", effect: Effect::Request },
    Flag { name: "image-count", effect: Effect::Refused(Takes::Value, IMAGES) },
    Flag { name: "image-resolution", effect: Effect::Refused(Takes::Value, IMAGES) },
    Flag { name: "random-image-count", effect: Effect::Refused(Takes::Nothing, IMAGES) },
    Flag { name: "image-format", effect: Effect::Refused(Takes::Value, IMAGES) },
    Flag { name: "image-content", effect: Effect::Refused(Takes::Value, IMAGES) },
    Flag { name: "request-rate", effect: Effect::Schedule },
    Flag { name: "use-trace-timestamps", effect: Effect::Without(Takes::Nothing, TRACE_TIMES) },
    Flag { name: "max-concurrency", effect: Effect::Schedule },
    Flag { name: "output-file", effect: Effect::Output },
    Flag { name: "output-details", effect: Effect::Output },
    Flag { name: "goodput", effect: Effect::Output },
    Flag { name: "print-requests", effect: Effect::Output },
    Flag { name: "disable-tqdm", effect: Effect::Output },
    Flag { name: "disable-stream", effect: Effect::Request },
    Flag { name: "return-logprob", effect: Effect::Request },
    Flag { name: "top-logprobs-num", effect: Effect::Request },
    Flag { name: "token-ids-logprob", effect: Effect::Request },
    Flag { name: "logprob-start-len", effect: Effect::Request },
    Flag { name: "return-routed-experts", effect: Effect::Request },
    Flag { name: "cache-report", effect: Effect::Output },
    Flag { name: "seed", effect: Effect::Request },
    Flag { name: "disable-ignore-eos", effect: Effect::Request },
    Flag { name: "temperature", effect: Effect::Request },
    Flag { name: "top-p", effect: Effect::Request },
    Flag { name: "extra-request-body", effect: Effect::Request },
    Flag { name: "apply-chat-template", effect: Effect::Request },
    Flag { name: "profile", effect: Effect::Request },
    Flag { name: "plot-throughput", effect: Effect::Output },
    Flag { name: "profile-activities", effect: Effect::Request },
    Flag { name: "profile-start-step", effect: Effect::Request },
    Flag { name: "profile-steps", effect: Effect::Request },
    Flag { name: "profile-num-steps", effect: Effect::Request },
    Flag { name: "profile-by-stage", effect: Effect::Request },
    Flag { name: "profile-stages", effect: Effect::Request },
    Flag { name: "profile-output-dir", effect: Effect::Request },
    Flag { name: "profile-prefix", effect: Effect::Request },
    Flag { name: "lora-name", effect: Effect::Request },
    Flag { name: "lora-request-distribution", effect: Effect::Request },
    Flag { name: "lora-zipf-alpha", effect: Effect::Request },
    Flag { name: "prompt-suffix", effect: Effect::Request },
    Flag { name: "pd-separated", effect: Effect::Request },
    Flag { name: "profile-prefill-url", effect: Effect::Request },
    Flag { name: "profile-decode-url", effect: Effect::Request },
    Flag { name: "flush-cache", effect: Effect::Schedule },
    Flag { name: "flush-cache-timeout", effect: Effect::Schedule },
    Flag { name: "warmup-requests", effect: Effect::Schedule },
    Flag { name: "tokenize-prompt", effect: Effect::Request },
    Flag { name: "gsp-num-groups", effect: Effect::Request },
    Flag { name: "gsp-prompts-per-group", effect: Effect::Request },
    Flag { name: "gsp-system-prompt-len", effect: Effect::Request },
    Flag { name: "gsp-question-len", effect: Effect::Request },
    Flag { name: "gsp-output-len", effect: Effect::Request },
    Flag { name: "gsp-range-ratio", effect: Effect::Request },
    Flag { name: "gsp-fast-prepare", effect: Effect::Without(Takes::Nothing, NO_STATISTICS) },
    Flag { name: "gsp-send-routing-key", effect: Effect::Request },
    Flag { name: "gsp-num-turns", effect: Effect::Request },
    Flag { name: "gsp-ordered", effect: Effect::Schedule },
    Flag { name: "gsp-group-distribution", effect: Effect::Request },
    Flag { name: "gsp-zipf-alpha", effect: Effect::Request },
    Flag { name: "mooncake-slowdown-factor", effect: Effect::Schedule },
    Flag { name: "mooncake-num-rounds", effect: Effect::Request },
    Flag { name: "mooncake-workload", effect: Effect::Without(Takes::Value, NO_DOWNLOAD) },
    Flag { name: "fake-prefill", effect: Effect::Request },
    Flag { name: "tag", effect: Effect::Output },
    Flag { name: "header", effect: Effect::Request },
    Flag { name: "rust-client", effect: Effect::Without(Takes::Nothing, OWN_CLIENT) },
    Flag { name: "rust-worker-threads", effect: Effect::Without(Takes::Value, OWN_CLIENT) },
];

/// The flags of `bench_multiturn.py`. All of them have an effect, or repeat what is so anyway.
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

/// The flags of each kind of effect, for `--help`.
pub fn summary() -> String {
    let of = |kind: fn(&Effect) -> bool| {
        let names = SERVING.iter().filter(|flag| kind(&flag.effect)).map(|flag| format!("--{}", flag.name));
        names.collect::<Vec<_>>().join(" ")
    };
    let with = SERVING.iter().filter(|flag| flag.effect.is_some()).count();
    format!(
        "Flags of sglang.bench_serving 0.5.23: {with} of {} have an effect. Accepted without effect, with one warning: {}. Refused: {}, \
         the datasets image and mmmu, and the backends sglang-embedding, vllm-embedding and gserver. A flag may be shortened as there: \
         --num-prompt is --num-prompts.",
        SERVING.len(),
        of(|effect| matches!(effect, Effect::Without(..))),
        of(|effect| matches!(effect, Effect::Refused(..))),
    )
}

impl Effect {
    /// Does the flag change anything?
    pub const fn is_some(&self) -> bool {
        matches!(self, Effect::Request | Effect::Schedule | Effect::Output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_flags_have_an_effect_and_each_is_listed_once() {
        let count = |kind: fn(&Effect) -> bool| SERVING.iter().filter(|flag| kind(&flag.effect)).count();
        let (with, without, refused) = (
            count(Effect::is_some),
            count(|effect| matches!(effect, Effect::Without(..))),
            count(|effect| matches!(effect, Effect::Refused(..))),
        );
        assert!(with >= 58 && without <= 18, "{with} {without} {refused}");
        assert_eq!(with + without + refused, SERVING.len());
        let mut names: Vec<&str> = SERVING.iter().map(|flag| flag.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SERVING.len());
        let images = |flag: &&Flag| matches!(flag.effect, Effect::Refused(..));
        assert!(SERVING.iter().filter(images).all(|flag| flag.name.contains("image")));
    }
}
