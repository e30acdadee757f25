//! The hit-rate curve and the tokens by tier of a trace.

use std::fmt::Write as _;
use std::path::Path;

use crate::cli::{finish, mcctl};

fn write(folder: &Path, text: &str) -> String {
    let file = folder.join("trace.jsonl");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Conversations whose turns repeat all previous blocks and add two; all start with the same block.
fn conversations(count: u64, turns: u64) -> String {
    let mut text = String::new();
    for turn in 0..turns {
        for talk in 0..count {
            let blocks = 2 + 2 * turn;
            let ids: Vec<String> =
                (0..blocks).map(|i| if i == 0 { 0 } else { 1 + talk * 1_000 + i }.to_string()).collect();
            let _ = writeln!(
                text,
                r#"{{"timestamp": {turn}, "input_length": {}, "output_length": 9, "hash_ids": [{}]}}"#,
                blocks * 512,
                ids.join(", ")
            );
        }
    }
    text
}

#[test]
fn a_hundred_thousand_requests_take_under_ten_seconds_and_one_gib() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &conversations(10_000, 10));
    // Ten seconds of CPU time, independent of other load.
    let shell = format!(
        "ulimit -v 1048576; ulimit -t 10; exec '{}' size-hugepages --trace '{file}' --model Qwen3-32B --json",
        env!("CARGO_BIN_EXE_mcctl")
    );
    let run = finish(std::process::Command::new("sh").args(["-c", &shell]).output().unwrap());
    let found: serde_json::Value = serde_json::from_str(run.succeeds()).unwrap();
    assert_eq!(found["requests"], 100_000);
    // Each of the 1 + 10000 x 19 distinct blocks is missed once and hit afterwards.
    let (asked, distinct) = (10_000 * (2..=20).step_by(2).sum::<u64>(), 1 + 10_000 * 19);
    assert_eq!((found["blocks"].as_u64(), found["distinct_tokens"].as_u64()), (Some(asked), Some(distinct * 512)));
    let best = (asked - distinct) as f64 / asked as f64;
    assert!((found["best_hit_rate"].as_f64().unwrap() - best).abs() < 1e-12);
    // The last point is the smallest cache that reaches the ceiling.
    let last = found["curve"].as_array().unwrap().last().unwrap();
    assert!(
        last["tokens"].as_u64().unwrap() <= (distinct + 100_000) * 512 && last["hit_rate"] == found["best_hit_rate"],
        "{last}"
    );
}

#[test]
fn requested_rates_get_sizes_and_unreachable_ones_exit_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &conversations(2, 3));
    let ask = |more: &[&str]| {
        let mut args = vec!["size-hugepages", "--trace", &file];
        args.extend(more);
        mcctl(&args)
    };
    // The turns look up 2, 2, 4, 4, 6, 6 blocks: 24, of which 11 are distinct.
    let run = ask(&["--hit-rate", "0.1,0.5", "--model", "Qwen3-32B"]);
    let text = run.succeeds();
    assert!(text.contains("6 requests in ") && text.contains("Ceiling: 54.17 %"), "{text}");
    assert!(text.contains("\n10.0 %: ") && text.contains(" GB of L2 per rank, or "), "{text}");
    let beyond = ask(&["--hit-rate", "0.55"]);
    assert_eq!(beyond.code, 1, "{beyond:?}");
    assert!(beyond.stdout.contains("55.0 %: not reachable with any size"), "{beyond:?}");
    let picture = folder.path().join("curve.svg");
    ask(&["--svg", picture.to_str().unwrap()]).succeeds();
    assert!(std::fs::read_to_string(picture).unwrap().contains("<polyline"));
}

#[test]
fn the_html_page_is_standalone_and_escapes_file_names() {
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join("<b>&'x'");
    std::fs::create_dir(&odd).unwrap();
    let file = write(&odd, &conversations(2, 3));
    let page = folder.path().join("curve.html");
    let run = mcctl(&["size-hugepages", "--trace", &file, "--html", page.to_str().unwrap(), "--hit-rate", "0.1,0.9"]);
    assert_eq!(run.code, 1, "{run:?}");
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"), "{html}");
    assert!(html.contains("&lt;b&gt;&amp;&#39;x&#39;/trace.jsonl") && !html.contains("<b>"), "{html}");
    assert!(
        html.contains("<polyline") && html.contains("not reachable with any size") && html.contains("<td>54.17 %</td>")
    );
    // The only URL is the SVG namespace.
    assert_eq!(html.matches("http").count(), 1, "{html}");
    let absent = mcctl(&["size-hugepages", "--trace", &file, "--html", "/nowhere/curve.html"]);
    assert!(absent.fails(4).contains("cannot write the curve"), "{absent:?}");
}

/// Tokens by tier recorded from SGLang for each request of a trace (tests/sglang-replay --record),
/// with its sizes.
const RECORDED: &[(&str, [&str; 3])] = &[
    ("sglang-0.5.23-served-1.jsonl", ["4096", "2", "4096"]),
    ("sglang-0.5.23-served-2.jsonl", ["3072", "1.5", "512"]),
];

#[test]
fn tokens_by_tier_match_a_recorded_sglang() {
    for (name, [device, ratio, chunk]) in RECORDED {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/sizing").join(name);
        let mut args = vec!["size-hugepages", "--trace", file.to_str().unwrap(), "--per-request", "--json"];
        args.extend(["--trace-block-tokens", "64", "--page-size", "16", "--device-pool-tokens", device]);
        args.extend(["--hicache-ratio", ratio, "--chunked-prefill-size", chunk]);
        let run = mcctl(&args);
        let found: serde_json::Value = serde_json::from_str(run.succeeds()).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let mut tiers = [0; 4];
        for (line, row) in text.lines().zip(found["requests"].as_array().unwrap()) {
            let recorded: serde_json::Value = serde_json::from_str(line).unwrap();
            let own = ["device", "host", "storage", "new"].map(|tier| row[tier].as_u64().unwrap());
            assert_eq!(serde_json::json!(own), recorded["served"], "{name}, line {}", row["line"]);
            for (sum, tokens) in tiers.iter_mut().zip(own) {
                *sum += tokens;
            }
        }
        assert_eq!(found["requests"].as_array().unwrap().len(), text.lines().count());
        assert!(tiers.iter().all(|tokens| *tokens > 1_000), "every tier is used: {tiers:?}");
    }
}

#[test]
fn tokens_by_tier_have_reasons_and_errors_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &conversations(3, 4));
    let ask = |more: &str| {
        let mut args = vec!["size-hugepages", "--trace", &file, "--per-request"];
        args.extend(more.split_whitespace());
        mcctl(&args)
    };
    let small = "--page-size 64 --device-pool-tokens 5000 --hicache-ratio 1.5 --prefetch-threshold 2048";
    let run = ask(small);
    let text = run.succeeds();
    assert!(text.contains("below the prefetch threshold") && text.contains(" % from storage, "), "{text}");
    assert!(text.contains("tokens written to storage.\n"), "{text}");
    // A rank's share of the 16 MiB segment holds one page of 64 tokens, less than is written.
    let run = ask(&format!("{small} --model Qwen3-8B --global-segment-size 16777216"));
    assert!(run.succeeds().contains("full from line 1 on"), "{run:?}");
    let sized = ask("--page-size 64 --device-pool-tokens 5000 --hicache-size 1 --model Qwen3-8B --json");
    let found: serde_json::Value = serde_json::from_str(sized.succeeds()).unwrap();
    assert_eq!(found["host_tokens"], 6_784);
    let none = ask(&format!("{small} --no-storage --json"));
    let found: serde_json::Value = serde_json::from_str(none.succeeds()).unwrap();
    assert_eq!((&found["totals"]["storage"], &found["stored_tokens"]), (&0.into(), &0.into()));
    for (line, part) in [
        ("", "requires the device pool size"),
        ("--device-pool-tokens 5000", "no L2 size specified"),
        ("--device-pool-tokens 5000 --hicache-size 1", "requires --model"),
        ("--device-pool-tokens 5000 --hicache-size 1Gi --model Qwen3-8B", "invalid size"),
        ("--device-pool-tokens 5 --page-size 16 --hicache-ratio 2", "must be at least --page-size"),
        ("--device-pool-tokens 99999999999999 --hicache-ratio 2", "out of range"),
        ("--device-pool-tokens 5000 --hicache-ratio -1", "positive number"),
        ("--device-pool-tokens 5000 --hicache-ratio 2 --block-size 100", "do not match 2 blocks"),
        ("--device-pool-tokens 5000 --hicache-ratio 2 --svg x.svg", "cannot be used with"),
        ("--device-pool-tokens 5000 --hicache-size 1 --model gpt-oss-120b", "sliding layers"),
    ] {
        let run = ask(line);
        let message = run.fails(2);
        assert!(message.contains(part) && !message.contains('\n'), "{line}: {message}");
    }
    let alone = mcctl(&["size-hugepages", "--per-request", "--hicache-size", "1"]);
    assert!(alone.fails(2).contains("--trace"), "{alone:?}");
}

#[test]
fn an_invalid_trace_is_one_line_and_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "{\"hash_ids\": [1]}\n{\"hash_ids\": 2}\n");
    let wrong = mcctl(&["size-hugepages", "--trace", &file]);
    assert!(wrong.fails(2).contains("trace.jsonl; found: line 2: "), "{wrong:?}");
    std::fs::write(&file, "{\"schema\":\"mcctl.bench.record/1\",\"work\":\"\"}\n{\"begins\":{}}\n").unwrap();
    let records = mcctl(&["size-hugepages", "--trace", &file]);
    let message = records.fails(2);
    assert!(message.contains("records file") && message.contains("--dataset-path"), "{message}");
    let absent = mcctl(&["size-hugepages", "--trace", "/nowhere/trace.jsonl"]);
    assert!(absent.fails(2).contains("cannot read the trace"), "{absent:?}");
    let empty = write(folder.path(), "\n\n");
    for more in [&[][..], &["--per-request", "--page-size=16", "--device-pool-tokens=64", "--hicache-ratio=2"]] {
        let none = mcctl(&[&["size-hugepages", "--trace", &empty], more].concat());
        assert!(none.fails(2).contains("the trace is empty"), "{none:?}");
    }
    let rate = mcctl(&["size-hugepages", "--trace", &file, "--hit-rate", "1.5"]);
    assert!(rate.fails(2).contains("from 0 to 1"), "{rate:?}");
}
