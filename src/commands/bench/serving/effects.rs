//! Tests that every flag listed as affecting requests or the schedule changes the run.
//! `tests/it/load/serving.rs` tests the flags that affect the output.

use std::path::Path;

use clap::Parser;
use serde_json::json;

use crate::commands::bench::serving::Args;
use crate::commands::bench::serving::flags::{FlagEffect, SERVING};

#[derive(Parser)]
struct ServingCommandLine {
    #[command(flatten)]
    args: Args,
}

/// Writes the files used by the command lines below.
fn files(folder: &Path) {
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).expect("written");
    let row = |n: usize| {
        json!({"conversations": [
        {"from": "human", "value": format!("question {n} a b c")}, {"from": "gpt", "value": "b ".repeat(2 + n % 5)}]})
    };
    write("sharegpt.json", json!((0..30).map(row).collect::<Vec<_>>()).to_string());
    let turn = |text: &str| json!({"messages": [{"role": "user", "content": text}]});
    let conversation = |n: usize| json!([turn(&format!("t{n}")), turn("and"), turn("then")]);
    write("agentic.json", json!({"conversations": (0..4).map(conversation).collect::<Vec<_>>()}).to_string());
    let request =
        |n: u64| json!({"timestamp": n * 100, "input_length": 4, "output_length": 2, "hash_ids": [n]}).to_string();
    write("trace.jsonl", (0..3).map(request).collect::<Vec<_>>().join("\n"));
    let question = |(n, kind): (usize, &str)| json!({"category": kind, "turns": [format!("s{n}")]}).to_string();
    write("speed.jsonl", ["mixed", "low_entropy"].into_iter().enumerate().map(question).collect::<Vec<_>>().join("\n"));
    let vocabulary: serde_json::Map<String, serde_json::Value> = ["[UNK]", "a", "b", "c", "question", "q", "s"]
        .iter()
        .zip(0..)
        .map(|(word, id)| ((*word).to_owned(), json!(id)))
        .collect();
    for (model, template) in [("one", "<{{ messages[0]['content'] }}>"), ("other", "")] {
        std::fs::create_dir_all(folder.join(model)).expect("a folder");
        let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": if model == "one" { json!({"type": "Whitespace"}) } else { json!({"type": "WhitespaceSplit"}) },
            "post_processor": null, "decoder": null, "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}});
        let count = if model == "one" { tokenizer } else { per_letter(&tokenizer) };
        write(&format!("{model}/tokenizer.json"), count.to_string());
        write(&format!("{model}/tokenizer_config.json"), json!({"chat_template": template}).to_string());
    }
}

/// Returns a copy of the tokenizer that emits one token per character.
fn per_letter(tokenizer: &serde_json::Value) -> serde_json::Value {
    let mut other = tokenizer.clone();
    other["pre_tokenizer"] =
        json!({"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false});
    other
}

/// Pairs of command lines that differ in one flag: the flag name, the common part, and the added
/// part.
const LINES: &[(&str, &str, &str)] = &[
    ("backend", "", "--backend sglang-oai"),
    ("base-url", "", "--base-url http://h:1"),
    ("host", "", "--host h"),
    ("port", "", "--port 7"),
    ("ready-check-timeout-sec", "", "--ready-check-timeout-sec 0"),
    ("dataset-name", "", "--dataset-name random-ids"),
    ("dataset-path", "--dataset-name custom --dataset-path sharegpt.json", "--dataset-path agentic-as-custom.jsonl"),
    ("dataset-offset", "", "--dataset-offset 1"),
    (
        "agentic-max-turns",
        "--backend sglang-oai-chat --dataset-name agentic-trace --dataset-path agentic.json",
        "--agentic-max-turns 1",
    ),
    ("speed-bench-category", "--dataset-name speed-bench --dataset-path speed.jsonl", "--speed-bench-category mixed"),
    ("speed-bench-output-len", "--dataset-name speed-bench --dataset-path speed.jsonl", "--speed-bench-output-len 7"),
    ("model", "--backend vllm", "--model m"),
    ("served-model-name", "--backend vllm --model m", "--served-model-name s"),
    ("tokenizer", "--tokenizer one", "--tokenizer other"),
    ("num-prompts", "", "--num-prompts 3"),
    ("sharegpt-output-len", "", "--sharegpt-output-len 9"),
    ("sharegpt-context-len", "--tokenizer one", "--sharegpt-context-len 8"),
    ("random-input-len", "--dataset-name random-ids", "--random-input-len 9"),
    ("random-output-len", "--dataset-name random-ids", "--random-output-len 9"),
    ("random-range-ratio", "--dataset-name random-ids", "--random-range-ratio 1"),
    ("request-rate", "", "--request-rate 4"),
    ("max-concurrency", "", "--max-concurrency 4"),
    ("disable-stream", "", "--disable-stream"),
    ("return-logprob", "", "--return-logprob"),
    ("top-logprobs-num", "", "--top-logprobs-num 2"),
    ("token-ids-logprob", "", "--token-ids-logprob 1 2"),
    ("logprob-start-len", "", "--logprob-start-len 0"),
    ("return-routed-experts", "", "--return-routed-experts"),
    ("seed", "", "--seed 43"),
    ("disable-ignore-eos", "", "--disable-ignore-eos"),
    ("temperature", "", "--temperature 0.5"),
    ("top-p", "", "--top-p 0.5"),
    ("extra-request-body", "", "--extra-request-body {\"a\":1}"),
    ("apply-chat-template", "--tokenizer one", "--apply-chat-template"),
    ("profile", "", "--profile"),
    ("profile-activities", "--profile", "--profile-activities CPU MEM"),
    ("profile-start-step", "--profile", "--profile-start-step 3"),
    ("profile-steps", "--profile", "--profile-steps 3"),
    ("profile-num-steps", "--profile", "--profile-num-steps 3"),
    ("profile-by-stage", "--profile", "--profile-by-stage"),
    ("profile-stages", "--profile", "--profile-stages decode"),
    ("profile-output-dir", "--profile", "--profile-output-dir /traces"),
    ("profile-prefix", "--profile", "--profile-prefix p"),
    ("lora-name", "", "--lora-name a b"),
    ("lora-request-distribution", "--lora-name a b", "--lora-request-distribution distinct"),
    ("lora-zipf-alpha", "--lora-name a b --lora-request-distribution skewed --num-prompts 30", "--lora-zipf-alpha 90"),
    ("prompt-suffix", "", "--prompt-suffix x"),
    ("pd-separated", "--profile --profile-prefill-url http://h:1", "--pd-separated"),
    (
        "profile-prefill-url",
        "--profile --pd-separated --profile-prefill-url http://h:1",
        "--profile-prefill-url http://h:2",
    ),
    (
        "profile-decode-url",
        "--profile --pd-separated --profile-decode-url http://h:1",
        "--profile-decode-url http://h:2",
    ),
    ("flush-cache", "", "--flush-cache"),
    ("flush-cache-timeout", "--flush-cache", "--flush-cache-timeout 7"),
    ("warmup-requests", "", "--warmup-requests 5"),
    ("tokenize-prompt", "--tokenizer one", "--tokenize-prompt"),
    ("gsp-num-groups", GSP, "--gsp-num-groups 3"),
    ("gsp-prompts-per-group", GSP, "--gsp-prompts-per-group 3"),
    ("gsp-system-prompt-len", GSP, "--gsp-system-prompt-len 3"),
    ("gsp-question-len", GSP, "--gsp-question-len 3"),
    ("gsp-output-len", GSP, "--gsp-output-len 3"),
    ("gsp-range-ratio", GSP, "--gsp-range-ratio 0.1"),
    ("gsp-send-routing-key", GSP, "--gsp-send-routing-key"),
    ("gsp-num-turns", GSP, "--gsp-num-turns 2"),
    ("gsp-ordered", GSP, "--gsp-ordered"),
    ("gsp-group-distribution", GSP, "--gsp-group-distribution zipf --gsp-zipf-alpha 2"),
    (
        "gsp-zipf-alpha",
        "--gsp-group-distribution zipf --gsp-zipf-alpha 2 --dataset-name generated-shared-prefix",
        "--gsp-zipf-alpha 9",
    ),
    ("mooncake-slowdown-factor", TRACE, "--mooncake-slowdown-factor 3"),
    ("mooncake-num-rounds", TRACE, "--mooncake-num-rounds 2"),
    ("fake-prefill", "", "--fake-prefill"),
    ("header", "", "--header A=b C=d"),
];
const GSP: &str = "--dataset-name generated-shared-prefix --gsp-num-groups 2 --gsp-prompts-per-group 4 --gsp-system-prompt-len 9 \
                   --gsp-question-len 5 --gsp-output-len 8";
const TRACE: &str = "--dataset-name mooncake --dataset-path trace.jsonl";

#[test]
fn listed_flags_change_requests_or_the_schedule() {
    let folder = tempfile::tempdir().expect("a folder");
    files(folder.path());
    let other = json!({"conversations": [{"value": "question a"}, {"value": "b b b"}]}).to_string();
    std::fs::write(folder.path().join("agentic-as-custom.jsonl"), other).expect("written");
    let rows = std::fs::read_to_string(folder.path().join("sharegpt.json")).expect("a file");
    let rows: Vec<serde_json::Value> = serde_json::from_str(&rows).expect("JSON");
    let lines = rows.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    std::fs::write(folder.path().join("custom.jsonl"), lines).expect("written");
    let dry_run = |line: &str| {
        let at = |word: &str| {
            let named = [
                "sharegpt.json",
                "agentic.json",
                "trace.jsonl",
                "speed.jsonl",
                "one",
                "other",
                "agentic-as-custom.jsonl",
            ];
            let word = if word == "sharegpt.json" && line.contains("custom") { "custom.jsonl" } else { word };
            let is_file = named.contains(&word) || word == "custom.jsonl";
            if is_file { folder.path().join(word).display().to_string() } else { word.to_owned() }
        };
        // Lines without a dataset use the ShareGPT file.
        let default = if line.contains("--dataset-name") { "" } else { "--dataset-path sharegpt.json" };
        let arguments =
            ["x", "--num-prompts", "12"].into_iter().chain(default.split_whitespace()).chain(line.split_whitespace());
        let args = ServingCommandLine::try_parse_from(arguments.map(at))
            .unwrap_or_else(|error| panic!("{line}: {error}"))
            .args;
        args.into_work().dry_run().unwrap_or_else(|failure| panic!("{line}: {failure:?}"))
    };
    for (flag, common, more) in LINES {
        let before = dry_run(common);
        assert_eq!(dry_run(common), before, "{flag}: the same command line must produce the same run");
        assert_ne!(dry_run(&format!("{common} {more}")), before, "{flag} changes nothing");
    }
    let listed = SERVING.iter().filter(|flag| matches!(flag.effect, FlagEffect::Request | FlagEffect::Schedule));
    for flag in listed {
        assert!(LINES.iter().any(|(name, ..)| *name == flag.name), "--{} has no test line", flag.name);
    }
}

#[test]
fn images_and_embeddings_are_rejected_before_sending() {
    for line in [
        "--dataset-name image",
        "--dataset-name mmmu",
        "--image-count 2",
        "--backend sglang-embedding",
        "--backend vllm-embedding",
        "--backend gserver",
        "--profile --pd-separated",
        "--apply-chat-template --tokenizer nowhere",
    ] {
        let args = ServingCommandLine::parse_from(std::iter::once("x").chain(line.split_whitespace())).args;
        assert!(args.into_work().dry_run().is_err(), "{line}");
    }
}
