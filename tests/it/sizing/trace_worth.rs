//! The price of a cache, the chosen size, and the deployment file for it.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::cli::{Run, mcctl};

/// Prompts of 4096 tokens, each of which returns after as many others as there are sessions: one
/// per second for an hour.
fn trace(folder: &Path, sessions: u64) -> String {
    let mut text = String::new();
    for second in 0..3_601 {
        let session = second % sessions;
        let ids: Vec<String> = (0..8).map(|at| (session * 8 + at).to_string()).collect();
        let _ = writeln!(
            text,
            r#"{{"timestamp": {}, "input_length": 4096, "output_length": 9, "hash_ids": [{}]}}"#,
            second * 1_000,
            ids.join(", ")
        );
    }
    let file = folder.join("trace.jsonl");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

fn worth(file: &str, more: &[&str]) -> Run {
    let args = ["size-hugepages", "--trace", file, "--model", "Qwen3-32B", "--tp-size", "4"];
    mcctl(&[&args, more].concat())
}

fn json(run: &Run) -> Value {
    serde_json::from_str(run.succeeds()).unwrap()
}

const PRICES: [&str; 6] = ["--gpu-hour", "2", "--dram-gb-month", "3", "--prefill-tokens-per-second", "14745.6"];

#[test]
fn saved_gpu_hours_and_cost_are_those_of_the_formula() {
    let folder = tempfile::tempdir().unwrap();
    let file = trace(folder.path(), 100);
    let found = json(&worth(&file, &[&PRICES[..], &["--json"]].concat()));
    // All but the first 100 of 3601 prompts are hits: 3501 x 4096 tokens per hour.
    assert_eq!((found["trace_hours"].as_f64(), found["price"]["gpus"].as_u64()), (Some(1.0), Some(4)));
    let best = &found["price"]["best"][0];
    // A prompt returns after 99 others with their replies. Sizes are rounded up by at most 1/2048.
    let tokens = best["middle"]["tokens"].as_u64().unwrap();
    let needed = 100 * 4096 + 99 * 8;
    assert!(best["memory"] == "dram" && (needed..=needed + needed / 2048).contains(&tokens), "{best}");
    let row = &best["middle"]["worth"][0];
    let near = |value: &Value, expected: f64| (value.as_f64().unwrap() - expected).abs() < 1e-6 * expected.abs();
    let gpu_hours = 3_501.0 * 4_096.0 * 730.5 / 14_745.6 / 3_600.0 * 4.0;
    // 256 KiB per token, and 90 % of the segments in use.
    let bytes = tokens as f64 * 262_144.0 / 0.9;
    assert!(near(&row["gpu_hours"][0], gpu_hours) && near(&row["saved"][1], gpu_hours * 2.0), "{row}");
    assert!(
        near(&row["cost"][0], bytes / 1e9 * 3.0) && near(&row["net"][0], gpu_hours * 2.0 - bytes / 1e9 * 3.0),
        "{row}"
    );
    assert_eq!((&found["chosen"]["by"], &found["chosen"]["point"]["tokens"]), (&"price".into(), &tokens.into()));
}

#[test]
fn hits_of_l1_save_nothing_more_and_ranges_have_two_ends() {
    let folder = tempfile::tempdir().unwrap();
    let file = trace(folder.path(), 100);
    let ranges = [
        "--gpu-hour",
        "1-4",
        "--dram-gb-month",
        "2-3",
        "--ssd-gb-month",
        "0.1",
        "--prefill-tokens-per-second",
        "9000-11000",
    ];
    let free = json(&worth(&file, &[&ranges[..], &["--json", "--device-pool-tokens", "500000"]].concat()));
    assert!(free["price"]["free_hit_rate"] == free["best_hit_rate"], "{free}");
    assert_eq!((&free["price"]["best"][0]["high"], &free["chosen"]), (&Value::Null, &Value::Null));
    let run = worth(&file, &ranges);
    let text = run.succeeds();
    assert!(text.contains("DRAM: L3 pays up to 111.35 GiB (97.22 % hits)"), "{text}");
    assert!(text.contains("SSD: L3 pays up to ") && text.contains(" GPU hours worth "), "{text}");
    assert!(run.stderr.contains("set --device-pool-tokens to exclude them"), "{run:?}");
}

#[test]
fn tiers_follow_from_the_policy() {
    let folder = tempfile::tempdir().unwrap();
    let file = trace(folder.path(), 100);
    let tiers = |policy: &str| {
        let more =
            ["--json", "--device-pool-tokens", "204800", "--hicache-ratio", "1.5", "--hicache-write-policy", policy];
        let found = json(&worth(&file, &more));
        let tiers = &found["chosen"]["tiers"];
        ["l1_hit_rate", "l2_hit_rate", "l3_hit_rate", "missed_rate"]
            .map(|rate| (tiers[rate].as_f64().unwrap() * 1e4).round())
    };
    // Half of the prompts fit into L1, three quarters into L2, and all into L3: in this order, LRU
    // keeps none of them before they return.
    assert_eq!(tiers("write_through"), [0.0, 0.0, 9722.0, 0.0]);
    assert_eq!(tiers("write_back"), [0.0, 9722.0, 0.0, 0.0]);
    assert_eq!(tiers("write_through_selective"), [0.0, 0.0, 0.0, 9722.0]);
}

#[test]
fn the_chosen_size_becomes_a_deployment_file_that_renders() {
    let folder = tempfile::tempdir().unwrap();
    let file = trace(folder.path(), 100);
    let out = folder.path().join("deployment.toml");
    let out = out.to_str().unwrap();
    let options =
        ["--page-size", "64", "--hicache-size", "64", "--available-hugetlb", "2tb", "--available-memory", "2tb"];
    let write =
        |more: &[&str]| worth(&file, &[&options[..], &["--hicache-io-backend", "kernel", "--out", out], more].concat());
    let run = write(&[&PRICES[..], &["--json"]].concat());
    let found = json(&run);
    assert_eq!(
        (found["chosen"]["file"].as_str(), found["chosen"]["group_segment_bytes"].as_u64()),
        (Some(out), Some(112 << 30))
    );
    assert_eq!(found["chosen"]["needs"]["verdict"], "fits", "{}", found["chosen"]["needs"]);
    let spec: toml::Value = toml::from_str(&std::fs::read_to_string(out).unwrap()).unwrap();
    assert_eq!(spec["segment"]["engines"].as_str(), Some("112GiB"));
    assert_eq!(spec["model"]["io_backend"].as_str(), Some("kernel"));
    assert_eq!((spec["model"]["hicache_size_gb"].as_integer(), spec["model"]["tp"].as_integer()), (Some(64), Some(4)));
    mcctl(&["render", "systemd", out, "--out", folder.path().join("units").to_str().unwrap()]).succeeds();
    // With hosts, the master moves to the first of them.
    let hosts = folder.path().join("hosts.toml");
    let hosts = hosts.to_str().unwrap();
    mcctl(&["init", "--from", out, "--hosts", "gpu1,gpu2", "--out", hosts]).succeeds();
    let spec: toml::Value = toml::from_str(&std::fs::read_to_string(hosts).unwrap()).unwrap();
    assert_eq!(spec["master"]["hosts"].as_array().unwrap()[0].as_str(), Some("gpu1"));
    // With four servers, each contributes a quarter.
    let shared = json(&write(&[&PRICES[..], &["--json", "--servers", "4", "--force"]].concat()));
    assert_eq!(shared["chosen"]["group_segment_bytes"].as_u64(), Some(28 << 30));
    // An existing file is kept.
    let again = write(&[]);
    assert!(again.fails(2).contains("--force"), "{again:?}");
    write(&["--choose", "knee", "--force"]).succeeds();
    let expensive = ["--gpu-hour", "2", "--dram-gb-month", "3000", "--prefill-tokens-per-second", "10000", "--force"];
    let none = write(&expensive);
    assert_eq!(none.code, 1, "{none:?}");
    assert!(none.stderr.contains("no size of L3 pays") && none.stdout.contains("DRAM: no size of L3 pays"), "{none:?}");
}

#[test]
fn wrong_arguments_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = trace(folder.path(), 10);
    for (line, part) in [
        ("--gpu-hour 2", "--prefill-tokens-per-second"),
        ("--gpu-hour 2 --prefill-tokens-per-second 1", "--dram-gb-month"),
        ("--gpu-hour 4-2 --prefill-tokens-per-second 1 --dram-gb-month 1", "range such as 2-4"),
        ("--gpu-hour 0 --prefill-tokens-per-second 1 --dram-gb-month 1", "positive number"),
        ("--choose price", "--gpu-hour"),
        ("--choose hit-rate", "--hit-rate"),
        ("--out deployment.toml", "size of L2"),
        ("--out deployment.json --hicache-size 4", ".toml"),
        ("--out deployment.toml --hicache-size 4 --store-services 1", "does not write --store-services"),
        ("--out deployment.toml --hicache-size 4 --arena-pool-size 4gb", "does not write --arena-pool-size"),
        ("--global-segment-size 4gb", "does not apply to --trace"),
        ("--sample-blocks 2048 --hicache-write-policy write_through_selective", "raise --sample-blocks"),
        ("--hicache-write-policy never", "write_back"),
        ("--time-unit m", "s or ms"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let run = worth(&file, &words);
        let message = run.fails(2);
        assert!(message.contains(part) && !message.contains('\n'), "{line}: {message}");
    }
    let run = worth(&file, &["--svg", "x.html", "--html", "x.html"]);
    assert!(run.fails(2).contains("the same file"), "{run:?}");
    let run = worth(&file, &["--svg", &file]);
    assert!(run.fails(2).contains("the same file"), "{run:?}");
    let hybrid = ["size-hugepages", "--trace", &file, "--model", "Qwen3-Next-80B-A3B-Instruct", "--hicache-size", "4"];
    mcctl(&hybrid).succeeds();
    let run = mcctl(&[&hybrid[..], &["--out", "deployment.toml"]].concat());
    assert!(run.fails(2).contains("tokens all need the same memory"), "{run:?}");
    let untimed = folder.path().join("untimed.jsonl");
    std::fs::write(&untimed, "{\"hash_ids\": [1]}\n{\"hash_ids\": [1]}\n").unwrap();
    let untimed = untimed.to_str().unwrap();
    let run = worth(untimed, &PRICES);
    assert!(run.fails(2).contains("--trace-hours"), "{run:?}");
    worth(untimed, &[&PRICES[..], &["--trace-hours", "2"]].concat()).succeeds();
}

#[test]
fn a_sample_shows_its_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = trace(folder.path(), 100);
    let exact = json(&worth(&file, &["--json"]));
    let run = worth(&file, &["--json", "--sample-blocks", "8192"]);
    let sampled = json(&run);
    assert_eq!((exact["sampled_share"].as_f64(), sampled["sampled_share"].as_f64()), (Some(1.0), Some(0.25)));
    assert_eq!(exact["knee"]["hit_rate_error"], Value::Null);
    let error = sampled["knee"]["hit_rate_error"].as_f64().unwrap();
    // A sample with few blocks is refused. It could show a ceiling of 0 %.
    let small = worth(&file, &["--sample-blocks", "1024"]);
    assert!(small.fails(2).contains("raise --sample-blocks"), "{small:?}");
    let off = sampled["best_hit_rate"].as_f64().unwrap() - exact["best_hit_rate"].as_f64().unwrap();
    assert!(off.abs() <= error.max(0.01), "{off} and {error}");
}
