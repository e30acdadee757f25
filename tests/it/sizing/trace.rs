//! The hit-rate curve of a trace.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cli::{finish, mcctl};

fn write(folder: &Path, text: &str) -> String {
    let file = folder.join("trace.jsonl");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Conversations whose turns come back with the blocks so far and some more; all begin with the same block.
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
    let started = Instant::now();
    let shell = format!(
        "ulimit -v 1048576; exec '{}' size-hugepages --trace '{file}' --model Qwen3-32B --json",
        env!("CARGO_BIN_EXE_mcctl")
    );
    let run = finish(std::process::Command::new("sh").args(["-c", &shell]).output().unwrap());
    let took = started.elapsed();
    let found: serde_json::Value = serde_json::from_str(run.succeeds()).unwrap();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(found["requests"], 100_000);
    // Of the 1 + 10000 x 19 different blocks the first is missed once each; all others come back.
    let (asked, distinct) = (10_000 * (2..=20).step_by(2).sum::<u64>(), 1 + 10_000 * 19);
    assert_eq!((found["blocks"].as_u64(), found["distinct_blocks"].as_u64()), (Some(asked), Some(distinct)));
    let best = (asked - distinct) as f64 / asked as f64;
    assert!((found["best_hit_rate"].as_f64().unwrap() - best).abs() < 1e-12);
    assert_eq!(found["curve"].as_array().unwrap().last().unwrap()["tokens"].as_u64(), Some(distinct * 512));
}

#[test]
fn wanted_rates_name_the_smallest_sizes_and_one_that_cannot_be_reached_is_a_no() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), &conversations(2, 3));
    let ask = |more: &[&str]| {
        let mut args = vec!["size-hugepages", "--trace", &file];
        args.extend(more);
        mcctl(&args)
    };
    // Turn by turn 2, 2, 4, 4, 6, 6 blocks are asked for: 24, of which 11 are different.
    let run = ask(&["--hit-rate", "0.1,0.5", "--model", "Qwen3-32B"]);
    let text = run.succeeds();
    assert!(text.contains("6 requests of ") && text.contains("at most 54.17 % can be hit"), "{text}");
    assert!(text.contains("\n10.0 %: ") && text.contains(" GB per rank, or segments of "), "{text}");
    let beyond = ask(&["--hit-rate", "0.55"]);
    assert_eq!(beyond.code, 1, "{beyond:?}");
    assert!(beyond.stdout.contains("55.0 %: no size reaches that"), "{beyond:?}");
    let picture = folder.path().join("curve.svg");
    ask(&["--svg", picture.to_str().unwrap()]).succeeds();
    assert!(std::fs::read_to_string(picture).unwrap().contains("<polyline"));
}

#[test]
fn a_trace_that_is_none_is_one_line_and_exit_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "{\"hash_ids\": [1]}\n{\"hash_ids\": 2}\n");
    let wrong = mcctl(&["size-hugepages", "--trace", &file]);
    assert!(wrong.fails(2).contains("trace.jsonl, line 2"), "{wrong:?}");
    let absent = mcctl(&["size-hugepages", "--trace", "/nowhere/trace.jsonl"]);
    assert!(absent.fails(2).contains("cannot be read"), "{absent:?}");
    let rate = mcctl(&["size-hugepages", "--trace", &file, "--hit-rate", "1.5"]);
    assert!(rate.fails(2).contains("from 0 to 1"), "{rate:?}");
}
