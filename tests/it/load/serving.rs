//! `mcctl bench serving`, and command lines of SGLang's tools, through the built binary and against
//! the simulator.

use std::path::Path;
use std::time::Duration;

use mcctl::commands::bench::serving::flags::{FlagEffect, SERVING};
use serde_json::{Value, json};

use super::server::{Behaviour, RequestBodies, serve_and_record};
use crate::cli::service::Service;
use crate::cli::{Run, mcctl};
use crate::schemas::is_as_described;

/// Starts a fast simulator. Returns it and its port.
fn simulator() -> (Service, u16) {
    let mut sim = Service::start(crate::cli::command(&[
        "serve",
        "sim",
        "--port=0",
        "--page-size=16",
        "--max-total-tokens=200000",
        "--bytes-per-token=64",
        "--decode-step-ms=1",
        "--prefill-tokens-per-s=1000000",
    ]));
    sim.line_with("SIMULATOR");
    let port = sim.port_after("http://127.0.0.1:");
    (sim, port)
}

fn sharegpt() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/load/datasets/sharegpt.json").display().to_string()
}

/// Runs `bench COMMAND LINE` against the server at `port`.
fn line(command: &str, line: &str, port: u16) -> Run {
    let words = line.split_whitespace().map(|word| match word {
        "PORT" => port.to_string(),
        "URL" => format!("http://127.0.0.1:{port}"),
        "SHAREGPT" => sharegpt(),
        other => other.to_owned(),
    });
    let words: Vec<String> = words.collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    mcctl(&[&["bench", command], &words[..]].concat())
}

/// Returns the value after `label` in the report.
fn figure(run: &Run, label: &str) -> String {
    let found =
        run.stdout.lines().find_map(|line| line.strip_prefix(label)).unwrap_or_else(|| panic!("no {label}: {run:?}"));
    found.trim().to_owned()
}

const IDS: &str = "--backend sglang --base-url URL --dataset-name random-ids --tokenize-prompt --num-prompts 8 --random-input-len 20 \
                   --random-output-len 4 --random-range-ratio 1";

#[test]
fn report_has_the_labels_of_bench_serving_and_then_ours() {
    let (_sim, port) = simulator();
    let run = line("serving", IDS, port);
    assert_eq!(run.code, 0, "{run:?}");
    for (label, value) in [
        ("Backend:", "sglang"),
        ("Traffic request rate:", "inf"),
        ("Max request concurrency:", "not set"),
        ("Successful requests:", "8"),
        ("Total input tokens:", "160"),
        ("Total generated tokens:", "32"),
    ] {
        assert_eq!(figure(&run, label), value, "{run:?}");
    }
    for label in ["Mean E2E Latency (ms):", "Median TTFT (ms):", "P99 TPOT (ms):", "Max ITL (ms):", "Concurrency:"] {
        assert!(figure(&run, label).parse::<f64>().is_ok_and(|value| value >= 0.0), "{label} {run:?}");
    }
    let end = run.stdout.find(&"=".repeat(50)).expect("a rule");
    assert!(run.stdout[end..].lines().count() > 10, "{run:?}");
}

#[test]
fn json_document_has_both_parts_and_matches_its_schema() {
    let (_sim, port) = simulator();
    let run = line("serving", &format!("{IDS} --json --cache-report --goodput ttft:60000 tpot:0.0001"), port);
    let report: Value = serde_json::from_str(run.succeeds()).expect("a document");
    is_as_described(&report);
    assert_eq!(report["schema"], "mcctl.bench.serving/1");
    let figures = &report["serving"];
    assert_eq!((&figures["completed"], &figures["total_input_tokens"]), (&json!(8), &json!(160)));
    assert_eq!(figures["slo_attainment_by_metric"], json!({"ttft": 1.0, "tpot": 0.0}));
    assert_eq!((&report["run"]["seed"], &report["passes"][0]["sent"]), (&json!(42), &json!(8)));
}

#[test]
fn output_flags_change_the_output() {
    let (_sim, port) = simulator();
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let run = |more: &str| {
        let run = line("serving", &format!("{IDS} {more}"), port);
        assert_eq!(run.code, 0, "{more}: {run:?}");
        run
    };
    let last = |name: &str| -> Value {
        let text = std::fs::read_to_string(at(name)).expect("the file exists");
        serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
    };
    let plain = run("");
    let mut tried = vec!["output-file", "output-details", "tag", "disable-tqdm"];
    run(&format!("--output-file {}", at("plain")));
    assert!(last("plain").get("ttfts").is_none() && last("plain")["tag"].is_null());
    run(&format!("--output-file {} --output-details --tag t", at("more")));
    assert_eq!((last("more")["ttfts"].as_array().map(Vec::len), &last("more")["tag"]), (Some(8), &json!("t")));
    for (flag, more, sign) in [
        ("goodput", "--goodput ttft:60000", "SLO attainment (%):"),
        ("cache-report", "--cache-report", "Cache hit rate:"),
        ("plot-throughput", "--plot-throughput", "Output tokens per second\n"),
    ] {
        assert!(run(more).stdout.contains(sign) && !plain.stdout.contains(sign), "{flag}");
        tried.push(flag);
    }
    let requests = |run: &Run| run.stderr.lines().filter(|line| line.starts_with("request pass=")).count();
    assert_eq!((requests(&run("--print-requests")), requests(&plain)), (8, 0));
    tried.push("print-requests");
    for flag in SERVING.iter().filter(|flag| flag.effect == FlagEffect::Output) {
        assert!(tried.contains(&flag.name), "--{} is not tried", flag.name);
    }
}

#[test]
fn disable_tqdm_hides_progress() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    // Progress is printed every five seconds.
    let slow = |_| Behaviour::Answer(2, Duration::from_millis(6_500), Duration::ZERO);
    let port = runtime.block_on(serve_and_record(slow, RequestBodies::default()));
    let one = |more: &str| {
        let words = "--url URL --num-clients 1 --num-rounds 1 --request-rate inf --no-server-calls";
        let run = line("multi-turn", &format!("{words} {more}"), port);
        assert_eq!(run.code, 0, "{run:?}");
        run.stderr.lines().filter(|line| line.contains(" of 1 requests; ")).count()
    };
    let (shown, hidden) = std::thread::scope(|scope| {
        let shown = scope.spawn(|| one(""));
        let hidden = one("--disable-tqdm");
        (shown.join().expect("the thread ends"), hidden)
    });
    assert!(shown > 0 && hidden == 0, "{shown} lines and {hidden}");
}

/// Returns the last line of `file`.
fn last_line(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).expect("the file exists");
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

#[test]
fn details_are_in_the_order_of_the_prompts() {
    let (_sim, port) = simulator();
    let folder = tempfile::tempdir().expect("a folder");
    // Without a limit, short responses overtake long ones.
    let lengths = |name: &str, more: &str| {
        let file = folder.path().join(name);
        let words = format!(
            "--backend sglang --base-url URL --dataset-name random-ids --num-prompts 24 --random-input-len 300 \
             --random-output-len 40 --output-details --output-file {} {more}",
            file.display()
        );
        assert_eq!(line("serving", &words, port).code, 0);
        let result = last_line(&file);
        assert!(result.get("cached_tokens").is_some() == more.contains("--cache-report"), "{more}");
        (result["input_lens"].clone(), result["output_lens"].clone())
    };
    let in_order = lengths("one", "--max-concurrency 1");
    assert_eq!(in_order.0.as_array().map(Vec::len), Some(24));
    assert_eq!(lengths("all", "--cache-report"), in_order);
}

#[test]
fn details_of_failed_requests_have_their_prompt_lengths() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let odd_fail = |n| match n % 2 {
        0 => Behaviour::Answer(2, Duration::ZERO, Duration::ZERO),
        _ => Behaviour::Status(500, ""),
    };
    let port = runtime.block_on(serve_and_record(odd_fail, RequestBodies::default()));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("result");
    let words = format!("{IDS} --ready-check-timeout-sec 0 --output-details --output-file {}", file.display());
    let run = line("serving", &words, port);
    assert_eq!(run.code, 1, "{run:?}");
    let result = last_line(&file);
    let [lengths, errors] = ["input_lens", "errors"].map(|key| result[key].as_array().expect("a list").clone());
    let failed: Vec<&Value> = lengths.iter().zip(&errors).filter(|(_, error)| **error != "").map(|(n, _)| n).collect();
    assert!(!failed.is_empty() && failed.iter().all(|length| **length == json!(20)), "{result}");
}

#[test]
fn enable_multiturn_sends_all_turns_as_chat() {
    let (_sim, port) = simulator();
    let words =
        "--backend sglang --base-url URL --dataset-path SHAREGPT --num-prompts 0 --sharegpt-output-len 4 --json";
    let completed = |more: &str| {
        let run = line("serving", &format!("{words} {more}"), port);
        let report: Value = serde_json::from_str(run.succeeds()).expect("a document");
        assert_eq!(report["serving"]["backend"], "sglang");
        report["serving"]["completed"].as_u64().expect("a number")
    };
    assert!(completed("--enable-multiturn --disable-shuffle") > completed(""));
    let refused = line("serving", "--dataset-name random-ids --enable-multiturn --base-url URL", 1);
    assert_eq!(refused.code, 2, "{refused:?}");
}

/// Command lines of SGLang's bench_serving guide and source, KEP-74 and the HiCache blog. Only
/// request counts, lengths and the port are reduced, and local files replace downloads.
const SERVING_LINES: [&str; 15] = [
    "--backend sglang --base-url URL --num-prompt 10 --sharegpt-output-len 4",
    "--backend sglang --host 127.0.0.1 --port PORT --num-prompts 3 --model meta-llama/Llama-3.1-8B-Instruct --sharegpt-output-len 4",
    "--backend vllm --base-url URL --num-prompts 3 --model meta-llama/Llama-3.1-8B-Instruct --sharegpt-output-len 4",
    "--backend sglang --port PORT --dataset-name random --num-prompts 3 --random-input 64 --random-output 16 --random-range-ratio 0.5",
    "--backend sglang --host 127.0.0.1 --port PORT --model meta-llama/Llama-3.1-8B-Instruct --dataset-name random --random-input-len 64 \
     --random-output-len 16 --random-range-ratio 0.5 --num-prompts 4 --request-rate 100 --max-concurrency 2",
    "--backend vllm --base-url URL --model meta-llama/Llama-3.1-8B-Instruct --dataset-name sharegpt --dataset-path SHAREGPT --num-prompts 3 \
     --sharegpt-output-len 8",
    "--backend vllm-chat --base-url URL --model meta-llama/Llama-3.1-8B-Instruct --dataset-name random --num-prompts 2 --apply-chat-template \
     --random-output-len 16",
    "--backend sglang --host 127.0.0.1 --port PORT --model meta-llama/Llama-3.1-8B-Instruct --dataset-name generated-shared-prefix \
     --gsp-num-groups 2 --gsp-prompts-per-group 2 --gsp-system-prompt-len 64 --gsp-question-len 16 --gsp-output-len 8 --num-prompts 4",
    "--backend sglang --host 127.0.0.1 --port PORT --model meta-llama/Llama-3.1-8B-Instruct --dataset-name random --tokenize-prompt \
     --random-input-len 64 --random-output-len 16 --random-range-ratio 0.2 --num-prompts 3",
    "--backend sglang --host 127.0.0.1 --port PORT --model meta-llama/Llama-3.1-8B-Instruct --profile --flush-cache --num-prompts 2 \
     --sharegpt-output-len 4",
    "--backend sglang --port PORT --num-prompts 4 --request-rate 4 --lora-name lora0 lora1 lora2 lora3 --sharegpt-output-len 4",
    "--backend sglang-oai --port PORT --dataset-name random --num-prompts 2 --random-input 64 --random-output 8 --disable-stream --disable-tqdm",
    // SGLang's benchmark/hicache/bench_serving.py.
    "--port PORT --model m --dataset-path SHAREGPT --num-prompts 3 --enable-multiturn --disable-shuffle --fixed-output-len 4",
    "--backend sglang --port PORT --dataset-path SHAREGPT --num-prompts 3 --fixed-output-len 4 --enable-multi --request-rate 50",
    KEP74,
];
const KEP74: &str = "--backend sglang-oai --num-prompts 3 --random-input 2048 --random-output 512 --random-range-ratio 0.5 --host 0.0.0.0 \
                     --port PORT --model Qwen/Qwen3-32B --dataset-path SHAREGPT --request-rate 10 --seed 43";
const MULTI_TURN_LINES: [&str; 3] = [
    KEP74,
    "--model-path meta-llama/Llama-3.1-8B-Instruct --port PORT --disable-random-sample --output-length 1 --request-length 64 --num-clients 3 \
     --num-rounds 2 --max-parallel 4 --request-rate 16 --ready-queue-policy random --disable-auto-run --enable-round-barrier",
    "--model-path m --port PORT --disable-random-sample --output-len 4 --request-len 64 --num-clients 2 --num-round 2 --max-par 4 \
     --request-rate 20 --ready-queue-policy random --disable-auto-run --enable-round-barrier --seed 42 --lora-path x",
];

#[test]
fn published_command_lines_run_unchanged() {
    let (_sim, port) = simulator();
    let serving = SERVING_LINES.iter().map(|line| ("serving", line));
    for (command, words) in serving.chain(MULTI_TURN_LINES.iter().map(|line| ("multi-turn", line))) {
        let run = line(command, words, port);
        assert_eq!(run.code, 0, "{words}: {run:?}");
    }
}

#[test]
fn flags_without_effect_share_one_warning() {
    let (_sim, port) = simulator();
    let run = line("serving", &format!("{IDS} --rust-client --rust-worker-threads 2 --gsp-fast-prepare"), port);
    assert_eq!(run.code, 0, "{run:?}");
    let warnings: Vec<&str> = run.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
    let flags = ["--rust-client", "--rust-worker-threads", "--gsp-fast-prepare"];
    assert!(matches!(warnings[..], [one] if flags.iter().all(|flag| one.contains(flag))), "{warnings:?}");
}

#[test]
fn unsupported_inputs_and_unreachable_servers_have_their_exit_codes() {
    for refused in
        ["--dataset-name image --image-count 3", "--image-count 3", "--backend sglang-embedding", "--backend gserver"]
    {
        assert_eq!(line("serving", refused, 1).code, 2, "{refused}");
    }
    let away = line("serving", "--base-url URL --ready-check-timeout-sec 1 --num-prompts 1", 1);
    assert_eq!(away.code, 3, "{away:?}");
}

#[test]
fn model_name_and_random_dataset_have_defaults() {
    let (_sim, port) = simulator();
    let shape = "--num-prompts 2 --random-input-len 30 --random-output-len 4";
    let run = line("serving", &format!("--backend vllm --base-url URL --dataset-name random {shape} --json"), port);
    let report: Value = serde_json::from_str(run.succeeds()).expect("a document");
    let caveats = report["doubts"].as_array().expect("a list");
    assert_eq!(
        caveats.iter().filter(|caveat| caveat.as_str().is_some_and(|text| text.contains("ShareGPT"))).count(),
        1
    );
}
