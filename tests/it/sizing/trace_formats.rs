//! Traces of each format, made by `generate_trace`, and files that are not traces.

use std::path::Path;

use serde_json::Value;

use crate::cli::{Run, mcctl};

/// File, format, tokens per block, number of requests, hit rate of an infinite cache in hundredths
/// of a percent.
const TRACES: &[(&str, &str, u64, u64, u64)] = &[
    ("mooncake", "Mooncake", 512, 60, 3552),
    ("bailian", "Bailian (Qwen)", 16, 60, 6363),
    ("vllm", "vLLM timed trace", 16, 40, 4054),
    ("litellm", "LiteLLM spend log", 512, 60, 6870),
    ("weka", "Weka/AgentX", 64, 40, 7584),
    ("tracelab", "TraceLab", 1, 40, 8895),
];

fn fixture(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/load/traces").join(format!("{name}.jsonl"));
    file.to_str().unwrap().to_owned()
}

fn trace(file: &str, more: &[&str]) -> Run {
    mcctl(&[&["size-hugepages", "--trace", file], more].concat())
}

fn json(run: &Run) -> Value {
    serde_json::from_str(run.succeeds()).unwrap()
}

/// Writes a trace of these rows.
fn written(folder: &Path, rows: &[&str]) -> String {
    let file = folder.join("trace.jsonl");
    std::fs::write(&file, rows.join("\n")).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn each_format_is_recognized_by_its_content() {
    for (name, format, block_tokens, requests, ceiling) in TRACES {
        let found = json(&trace(&fixture(name), &["--json"]));
        let rate = (found["best_hit_rate"].as_f64().unwrap() * 1e4).round() as u64;
        assert_eq!(
            (found["format"].as_str(), found["block_tokens"].as_u64(), found["requests"].as_u64(), rate),
            (Some(*format), Some(*block_tokens), Some(*requests), *ceiling),
            "{name}"
        );
    }
}

#[test]
fn a_wrong_block_size_is_refused_with_the_one_that_fits() {
    for (name, size) in [("mooncake", "128"), ("bailian", "512"), ("vllm", "512"), ("litellm", "16"), ("weka", "512")] {
        let run = trace(&fixture(name), &["--block-size", size]);
        let message = run.fails(2);
        assert!(message.contains(&format!("of {size} tokens")) || message.contains("block size"), "{name}: {message}");
    }
    let run = trace(&fixture("bailian"), &["--trace-block-tokens", "512"]);
    assert!(run.fails(2).contains("fit blocks of 16 tokens"), "{run:?}");
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), &[r#"{"input_length": 20, "hash_ids": [1, 2]}"#]);
    let run = trace(&file, &["--block-size", "512"]);
    assert!(run.fails(2).contains("line 1: 20 tokens do not match 2 blocks of 512 tokens"), "{run:?}");
}

#[test]
fn a_recorded_block_size_beyond_the_limit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), &[r#"{"block_size": 18446744073709551615, "input_length": 9, "hash_ids": [1]}"#]);
    let run = trace(&file, &[]);
    assert!(run.fails(2).contains("invalid block size: 18446744073709551615 tokens"), "{run:?}");
}

#[test]
fn a_broken_row_is_an_error_or_skipped() {
    let folder = tempfile::tempdir().unwrap();
    for (name, ..) in TRACES {
        let text = std::fs::read_to_string(fixture(name)).unwrap();
        let rows: Vec<&str> = text.lines().collect();
        let file = written(folder.path(), &[&rows[..1], &["{\"hash_ids\": oops}"], &rows[1..]].concat());
        let message = trace(&file, &[]);
        assert!(message.fails(2).contains("line 2"), "{name}: {message:?}");
        let run = trace(&file, &["--skip-bad", "--json"]);
        let found = json(&run);
        assert_eq!(found["skipped_rows"], 1, "{name}");
        assert!(run.stderr.contains("skipped 1 malformed row; it is line 2"), "{name}: {run:?}");
    }
}

#[test]
fn times_are_read_in_the_unit_of_the_format_and_doubts_are_caveats() {
    let folder = tempfile::tempdir().unwrap();
    let rows = |times: &[f64], fields: &str| {
        let row = |at: &f64| format!(r#"{{"timestamp": {at}, "input_length": 16, "hash_ids": [1]{fields}}}"#);
        let rows: Vec<String> = times.iter().map(row).collect();
        written(folder.path(), &rows.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let hours = |file: &str, more: &[&str]| {
        let run = trace(file, &[more, &["--json", "--block-size", "16"]].concat());
        let found = json(&run);
        (found["trace_hours"].as_f64().unwrap(), run.stderr)
    };
    let mooncake = rows(&[0.0, 1_000.0, 3_600_000.0], "");
    let (found, _) = hours(&mooncake, &[]);
    assert!((found - 1.0).abs() < 1e-9, "{found}");
    let (found, _) = hours(&mooncake, &["--time-unit", "s"]);
    assert!((found - 1_000.0).abs() < 1e-6, "{found}");
    let bailian = rows(&[0.0, 1_800.0, 3_600.0], r#", "chat_id": 1, "parent_chat_id": -1"#);
    let (found, _) = hours(&bailian, &[]);
    assert!((found - 1.0).abs() < 1e-9, "{found}");
    // 40 requests in 20 ms are more likely 40 requests in 20 s.
    let times: Vec<f64> = (0..40).map(|at| f64::from(at) / 2.0).collect();
    let (_, stderr) = hours(&rows(&times, ""), &[]);
    assert!(stderr.contains("caveat: ") && stderr.contains("--time-unit"), "{stderr}");
}

#[test]
fn files_without_prefixes_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    for (row, part) in [
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "BurstGPT"),
        (r#"[{"id": "a", "conversations": [{"from": "human", "value": "x"}]}]"#, "ShareGPT"),
        (r#"{"messages": [{"role": "user", "content": "x"}]}"#, "no token counts"),
        (r#"{"input_length": 5}"#, "share a prefix"),
        (r#"{"schema":"mcctl.bench.record/1","work":""}"#, "--dataset-path"),
        (r#"{"x": 1}"#, "unknown trace format"),
        ("\u{1f}\u{8b}", "unknown trace format"),
    ] {
        let file = written(folder.path(), &[row]);
        let run = trace(&file, &[]);
        let message = run.fails(2);
        assert!(message.contains(part) && message.contains("next: ") && !message.contains('\n'), "{message}");
    }
    let file = folder.path().join("trace.jsonl.gz");
    std::fs::write(&file, [0x1f, 0x8b, 8, 0]).unwrap();
    let run = trace(file.to_str().unwrap(), &[]);
    assert!(run.fails(2).contains("zcat"), "{run:?}");
}

#[test]
fn a_trace_is_read_from_stdin() {
    let shell =
        format!("exec '{}' size-hugepages --trace - --json < '{}'", env!("CARGO_BIN_EXE_mcctl"), fixture("weka"));
    let run = crate::cli::finish(std::process::Command::new("sh").args(["-c", &shell]).output().unwrap());
    assert_eq!(json(&run)["requests"], 40);
}

#[test]
fn sessions_without_a_start_are_assumed_to_be_live_together() {
    let hours = |live: &str| {
        let run = trace(&fixture("weka"), &["--json", "--live-sessions", live]);
        assert!(run.stderr.contains(&format!("{live} sessions are assumed to be live at a time")), "{run:?}");
        json(&run)["trace_hours"].as_f64().unwrap()
    };
    assert!(hours("1") > hours("3"));
}

#[test]
fn tokens_by_tier_are_computed_for_each_format() {
    for (name, _, _, requests, _) in TRACES {
        let more =
            ["--per-request", "--json", "--page-size", "1", "--device-pool-tokens", "100000", "--hicache-ratio", "2"];
        let found = json(&trace(&fixture(name), &more));
        assert_eq!(found["requests"].as_array().unwrap().len() as u64, *requests, "{name}");
        let served: u64 =
            ["device", "host", "storage", "new"].iter().map(|tier| found["totals"][tier].as_u64().unwrap()).sum();
        assert_eq!(Some(served), found["totals"]["prompt"].as_u64(), "{name}");
        // Nothing is evicted, so the device has all hits of the curve.
        let rate = found["totals"]["device"].as_f64().unwrap() / served as f64;
        let ceiling = json(&trace(&fixture(name), &["--json"]))["best_hit_rate"].as_f64().unwrap();
        assert!((rate - ceiling).abs() < 0.02, "{name}: {rate} and {ceiling}");
    }
}
