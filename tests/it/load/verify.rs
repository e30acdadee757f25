//! `bench verify` against a model of SGLang's caches, with and without faults.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::server::request;
use crate::cli::{Run, mcctl};
use crate::schemas::is_as_described;

const PAGE: usize = 16;

/// What is wrong with the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    /// The answers after a hit in L3 are those of another prompt.
    WrongStorage,
    /// L3 finds nothing.
    NoStorage,
    /// The server returns no log-probabilities.
    NoLogprobs,
    /// The server does not have the route of the flush.
    NoFlush,
    /// It is a server of the completions API that reports no tiers.
    OtherEngine,
}

#[derive(Default)]
struct Caches {
    /// The hashes of all tokens up to the end of each page.
    device: HashSet<u64>,
    storage: HashSet<u64>,
}

/// A mixer of bits (SplitMix64).
fn mixed(n: u64) -> u64 {
    let z = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Caches {
    /// Looks the pages up and adds them. Returns the tokens from L1 and from L3.
    fn look_up(&mut self, ids: &[u64], most: usize, salt: &str, fault: Fault) -> (usize, usize) {
        let mut hash = salt.bytes().fold(1, |hash, byte| mixed(hash ^ u64::from(byte)));
        let (mut device, mut storage, mut is_hit) = (0, 0, true);
        for page in ids[..most].chunks_exact(PAGE) {
            hash = page.iter().fold(hash, |hash, id| mixed(hash ^ id));
            if is_hit && storage == 0 && self.device.contains(&hash) {
                device += PAGE;
            } else if is_hit && fault != Fault::NoStorage && self.storage.contains(&hash) {
                storage += PAGE;
            } else {
                is_hit = false;
            }
            self.device.insert(hash);
            self.storage.insert(hash);
        }
        (device, storage)
    }
}

/// The log-probability rows of one position: its token, and the three likeliest ones.
fn rows(seed: u64) -> (Value, Value) {
    let weights: Vec<f64> = (0..3).map(|token| 1.0 + (mixed(seed ^ token) % 1000) as f64).collect();
    let sum: f64 = weights.iter().sum::<f64>() * 1.25;
    let row = |token: usize| json!([(weights[token] / sum).ln(), token, null]);
    (row(0), json!([row(0), row(1), row(2)]))
}

fn generate(caches: &mut Caches, body: &Value, fault: Fault) -> Value {
    let ids: Vec<u64> =
        body["input_ids"].as_array().expect("IDs").iter().map(|id| id.as_u64().expect("an ID")).collect();
    let start = body["logprob_start_len"].as_u64().map_or(ids.len() - 1, |start| start as usize);
    let salt = body["extra_key"].as_str().unwrap_or_default();
    let (device, storage) = caches.look_up(&ids, start.min(ids.len() - 1), salt, fault);
    let wrong = u64::from(fault == Fault::WrongStorage && storage > 0);
    let answer = ids.iter().fold(wrong, |hash, id| mixed(hash ^ id));
    let positions = |from: usize, count: usize| -> (Vec<Value>, Vec<Value>) {
        (from..from + count).map(|at| rows(mixed(answer ^ at as u64))).unzip()
    };
    let count = body["sampling_params"]["max_new_tokens"].as_u64().expect("a number") as usize;
    let mut meta = json!({
        "finish_reason": {"type": "length", "length": count}, "completion_tokens": count, "cached_tokens": device + storage,
        "e2e_latency": 0.2, "first_token_latency": 0.1,
    });
    if device + storage > 0 {
        meta["cached_tokens_details"] = json!({"device": device, "host": 0, "storage": storage});
    }
    if body["return_logprob"] == true && fault != Fault::NoLogprobs {
        let (mut input, mut top) = positions(start, ids.len() - start);
        input[0] = json!([null, ids[start], null]);
        top[0] = Value::Null;
        meta["input_token_logprobs"] = input.into();
        meta["input_top_logprobs"] = top.into();
        let (output, top) = positions(ids.len(), count);
        meta["output_token_logprobs"] = output.into();
        meta["output_top_logprobs"] = top.into();
    }
    json!({"text": "", "meta_info": meta})
}

/// The same over the completions API, without tiers.
fn complete(caches: &mut Caches, body: &Value, fault: Fault) -> Value {
    let count = body["max_tokens"].as_u64().expect("a number");
    let mut own =
        json!({"input_ids": body["prompt"], "return_logprob": true, "sampling_params": {"max_new_tokens": count}});
    own["extra_key"] = body["cache_salt"].clone();
    let meta = generate(caches, &own, fault)["meta_info"].take();
    let output = meta["output_top_logprobs"].as_array().expect("rows");
    let tops: Vec<BTreeMap<String, f64>> = output
        .iter()
        .map(|rows| {
            let rows = rows.as_array().expect("rows").iter();
            rows.map(|row| (format!("t{}", row[1]), row[0].as_f64().expect("a number"))).collect()
        })
        .collect();
    let first: Vec<f64> = tops.iter().map(|top| top["t0"]).collect();
    let logprobs = json!({"tokens": vec!["t0"; first.len()], "token_logprobs": first, "top_logprobs": tops});
    json!({
        "choices": [{"text": "", "logprobs": logprobs}],
        "usage": {"prompt_tokens_details": {"cached_tokens": meta["cached_tokens"]}},
    })
}

/// Serves on a free loopback port.
async fn serve(fault: Fault) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let caches = Arc::new(Mutex::new(Caches::default()));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let caches = caches.clone();
            tokio::spawn(async move {
                let mut read = Vec::new();
                while let Some((head, body)) = request(&mut stream, &mut read).await {
                    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                    let (code, answer) = route(&caches, &head, &body, fault);
                    let text = answer.to_string();
                    let head = format!("HTTP/1.1 {code} -\r\ncontent-length: {}\r\n\r\n", text.len());
                    if stream.write_all((head + &text).as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    port
}

fn route(caches: &Mutex<Caches>, head: &str, body: &Value, fault: Fault) -> (u16, Value) {
    let mut caches = caches.lock().expect("lock is not poisoned");
    let path = head.split([' ', '?']).nth(1).unwrap_or_default();
    match path {
        "/server_info" if fault != Fault::OtherEngine => {
            let info = json!({"page_size": PAGE, "max_total_num_tokens": 65_536, "enable_hierarchical_cache": true,
                "hicache_storage_backend": "mooncake", "version": "0.5.23"});
            (200, info)
        }
        "/flush_cache" | "/reset_prefix_cache" if fault != Fault::NoFlush => {
            caches.device.clear();
            (200, json!({}))
        }
        "/generate" => (200, generate(&mut caches, body, fault)),
        "/v1/completions" => (200, complete(&mut caches, body, fault)),
        _ => (404, json!({})),
    }
}

/// Runs the command against a server with this fault.
async fn verify(fault: Fault, more: &'static [&'static str]) -> (Run, Value) {
    let url = format!("--url=http://127.0.0.1:{}", serve(fault).await);
    let run = tokio::task::spawn_blocking(move || {
        let args = ["bench", "verify", &url, "--yes", "--json", "--prompts=20", "--length=640", "--seed=1"];
        mcctl(&[&args[..], more].concat())
    });
    let run = run.await.expect("it ends");
    let report = serde_json::from_str(&run.stdout).unwrap_or_default();
    (run, report)
}

fn verdicts(report: &Value) -> Vec<(&str, &str)> {
    let tiers = report["tiers"].as_array().expect("tiers");
    tiers.iter().map(|tier| (tier["tier"].as_str().expect("text"), tier["verdict"].as_str().expect("text"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conclusions_name_what_differs_and_what_was_not_verified() {
    let mut conclusions = Vec::new();
    for fault in [Fault::None, Fault::WrongStorage, Fault::NoStorage, Fault::NoFlush] {
        let (_, report) = verify(fault, &[TIERS]).await;
        conclusions.push(report["conclusion"].as_str().expect("a text").to_owned());
    }
    insta::assert_snapshot!(conclusions.join("\n"));
}

/// The model has no L2.
const TIERS: &str = "--tiers=device,storage,mixed";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_a_server_without_faults_are_the_same_from_every_tier() {
    let (run, report) = verify(Fault::None, &[TIERS, "--restart=true"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    let expected = ["device", "storage", "mixed", "restarted"].map(|tier| (tier, "same"));
    assert_eq!(verdicts(&report), expected);
    assert_eq!((&report["complete"], &report["noise"]["device"]["identical"]), (&json!(true), &json!(20)));
    is_as_described(&report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_answers_from_the_store_are_found_and_end_with_code_1() {
    let (run, report) = verify(Fault::WrongStorage, &[TIERS]).await;
    assert_eq!(run.code, 1, "{run:?}");
    assert_eq!(verdicts(&report), [("device", "same"), ("storage", "different"), ("mixed", "different")]);
    let storage = &report["tiers"][1];
    assert_eq!((&storage["differing"], &storage["first"]["prompt"]), (&json!(20), &json!(0)));
    is_as_described(&report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_hits_is_void_and_not_clean() {
    let (run, report) = verify(Fault::NoStorage, &[TIERS]).await;
    assert_eq!(run.code, 1, "{run:?}");
    assert_eq!(verdicts(&report), [("device", "same"), ("storage", "void"), ("mixed", "void")]);
    is_as_described(&report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_engine_is_verified_as_far_as_it_reports() {
    let (run, report) = verify(Fault::OtherEngine, &["--api=completions", "--model=m"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(verdicts(&report), [("device", "same"), ("storage", "same")]);
    assert!(report["doubts"].as_array().is_some_and(|doubts| doubts.len() >= 2), "{report}");
    let (run, _) = verify(Fault::OtherEngine, &[]).await;
    assert!(run.code == 3 && run.stderr.contains("--api completions"), "{run:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_do_not_support_the_checks_end_with_code_3() {
    for fault in [Fault::NoLogprobs, Fault::NoFlush] {
        let (run, report) = verify(fault, &[TIERS]).await;
        assert_eq!((run.code, &report["complete"]), (3, &json!(false)), "{fault:?} {run:?}");
        is_as_described(&report);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_command_that_fails_ends_the_run() {
    let (run, report) = verify(Fault::None, &[TIERS, "--restart=exit 7"]).await;
    assert_eq!((run.code, &report["complete"]), (1, &json!(false)), "{run:?}");
    assert_eq!(verdicts(&report)[3], ("restarted", "void"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_with_too_many_prompts_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("prompts.jsonl");
    std::fs::write(&path, "[1]\n".repeat(100_001)).expect("a written file");
    let url = format!("--url=http://127.0.0.1:{}", serve(Fault::None).await);
    let file = format!("--prompt-file={}", path.display());
    let run = tokio::task::spawn_blocking(move || mcctl(&["bench", "verify", &url, "--yes", &file]));
    let run = run.await.expect("it ends");
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{run:?}");
    assert!(run.stderr.contains("100000 prompts"), "{run:?}");
}

#[test]
fn unusable_flags_are_named_before_anything_is_sent() {
    let cases: [&[&str]; 5] =
        [&["--tiers=l3"], &["--power=100"], &["--affected=0"], &["--prompt-file=/does/not/exist"], &["--api=chat"]];
    for case in cases {
        let run = mcctl(&[&["bench", "verify", "--url=http://127.0.0.1:9", "--yes"], case].concat());
        assert!(run.code == 2 || run.code == 3, "{case:?} {run:?}");
        assert!(run.stdout.is_empty(), "{run:?}");
    }
    let run = mcctl(&["bench", "verify", "--url=http://127.0.0.1:9", "--yes", "--http2", "--retry-busy=1"]);
    for flag in ["--http2", "--retry-busy"] {
        assert!(run.stderr.contains(&format!("{flag} has no effect")), "{run:?}");
    }
    assert!(!run.stderr.contains("--ready-check-timeout-sec"), "{run:?}");
}
