//! Datasets through the built binary: what each format sends to the server, and the errors for
//! invalid files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::command::{bench, quick};
use super::server::{RequestBodies, request};
use crate::cli::{Run, command, finish, mcctl};

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/load/datasets").join(name);
    format!("--dataset-path={}", path.display())
}

/// The routing keys that the server received.
type Keys = std::sync::Arc<std::sync::Mutex<std::collections::BTreeSet<String>>>;

/// A chat server that says " well." to everything.
async fn chat(heard: RequestBodies, keys: Keys) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let heard = heard.clone();
            let keys = keys.clone();
            tokio::spawn(async move {
                let mut read = Vec::new();
                while let Some((head, body)) = request(&mut stream, &mut read).await {
                    heard.lock().expect("lock is not poisoned").push(body);
                    let key = head.lines().find_map(|line| line.strip_prefix("x-smg-routing-key: "));
                    keys.lock().expect("lock is not poisoned").extend(key.map(str::to_owned));
                    let frames = [
                        json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
                        json!({"choices": [{"index": 0, "delta": {"content": " well."}}]}),
                        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}),
                        json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}),
                    ];
                    let mut text: String = frames.iter().map(|frame| format!("data: {frame}\n\n")).collect();
                    text.push_str("data: [DONE]\n\n");
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
                    let answer = format!("{head}content-length: {}\r\n\r\n{text}", text.len());
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    port
}

/// Runs the bench with `args` against the chat server. Returns its output, and the bodies that the
/// server received, in order.
fn bench_chat(args: &[&str]) -> (Run, Vec<Value>) {
    bench_routed(args, Keys::default())
}

/// Like [`bench_chat`]. Adds the received routing keys to `keys`.
fn bench_routed(args: &[&str], keys: Keys) -> (Run, Vec<Value>) {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let heard = RequestBodies::default();
    let port = runtime.block_on(chat(heard.clone(), keys));
    let url = format!("--url=http://127.0.0.1:{port}");
    let fixed =
        ["bench", "multi-turn", &url, "--api=chat", "--request-rate=inf", "--max-parallel=1", "--no-server-calls"];
    let all = [&fixed, args].concat();
    let run = finish(command(&all).output().expect("the program starts"));
    let heard = std::mem::take(&mut *heard.lock().expect("lock is not poisoned"));
    // Questions about the server itself have no body.
    let asked = heard.iter().filter(|body| !body.is_empty());
    (run, asked.map(|body| serde_json::from_slice(body).expect("JSON")).collect())
}

const SLOWLY: [&str; 3] = ["--request-rate=inf", "--max-parallel=1", "--json"];

/// Runs the bench with `args` against `/generate`.
fn bench_generate(args: &[&str]) -> (Run, Vec<Value>) {
    let (run, heard) = bench(quick, &[&SLOWLY[..], args].concat());
    (run, heard.iter().map(|body| serde_json::from_slice(body).expect("JSON")).collect())
}

#[test]
fn prompts_without_reuse_have_a_caveat_before_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("requests.jsonl");
    let row = |start: u32| json!({"messages": [{"role": "user", "content": format!("{}{}", start % 10, "x ".repeat(1000))}], "max_tokens": 1});
    let path = format!("--dataset-path={}", file.display());
    let line = ["--dataset-name=openai", &path, "--json"];
    let rows = |starts: &[u32]| starts.iter().map(|start| format!("{}\n", row(*start))).collect::<String>();
    std::fs::write(&file, rows(&[1, 2, 3])).expect("disk space");
    let (run, heard) = bench_chat(&line);
    assert_eq!((run.code, heard.len()), (0, 3), "{run:?}");
    let caveat = "so no cache can hit more in one pass";
    assert!(run.stderr.contains(caveat), "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert!(report["doubts"].to_string().contains(caveat), "{report}");
    std::fs::write(&file, rows(&[1, 2, 1])).expect("disk space");
    assert!(!bench_chat(&line).0.stderr.contains(caveat), "two prompts are the same");
}

/// Writes a tokenizer whose vocabulary covers the fixtures. Returns its folder and the flag that
/// selects it.
fn tokenizer() -> (tempfile::TempDir, String) {
    let mut vocabulary = serde_json::Map::new();
    for byte in b'!'..=b'~' {
        vocabulary.insert(char::from(byte).to_string(), json!(vocabulary.len()));
    }
    for first in b'a'..=b'h' {
        for second in b'a'..=b'h' {
            let word = format!("\u{120}{}{}", char::from(first), char::from(second));
            vocabulary.insert(word, json!(vocabulary.len()));
        }
    }
    vocabulary.insert("\u{120}".to_owned(), json!(vocabulary.len()));
    let document = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": vocabulary, "merges": []},
    });
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("tokenizer.json"), document.to_string()).expect("written");
    let flag = format!("--tokenizer={}", dir.path().display());
    (dir, flag)
}

fn contents(body: &Value) -> Vec<&str> {
    let messages = body["messages"].as_array().expect("messages");
    messages.iter().map(|message| message["content"].as_str().unwrap_or("-")).collect()
}

#[test]
fn sharegpt_asks_every_turn_with_the_live_reply_before_it() {
    let (run, heard) = bench_chat(&["--dataset-name=sharegpt", &fixture("sharegpt.json"), "--json"]);
    assert_eq!(run.code, 0, "{run:?}");
    let one = ["Answer briefly.", "How far is it to the river?", " well.", "And back?"];
    let mut said: Vec<Vec<&str>> = heard.iter().map(contents).collect();
    said.sort();
    assert_eq!(said[0], one[..2]);
    assert_eq!((&said[1][..], &said[2][..]), (&one[..], &["Name a colour, \"quoted\" and with ü."][..]));
    assert!(run.stderr.contains("1 rows were skipped") && run.stderr.contains("estimated"), "{run:?}");
    let told: Value = serde_json::from_str(&run.stdout).expect("a document");
    assert!(told["doubts"].as_array().is_some_and(|doubts| doubts.len() == 2), "{told}");
    // "About two miles from here." is five words.
    let lengths: Vec<&Value> = heard.iter().map(|body| &body["max_completion_tokens"]).collect();
    assert!(lengths.contains(&&json!(7)), "{lengths:?}");
}

#[test]
fn the_first_turn_alone_goes_as_text_or_as_ids() {
    let (_dir, tokenizer) = tokenizer();
    let flags = ["--dataset-name=sharegpt", &fixture("sharegpt.json"), "--first-turn-only", &tokenizer];
    let (run, heard) = bench_generate(&flags);
    assert_eq!((run.code, heard.len()), (0, 2), "{run:?}");
    let mut texts: Vec<&str> = heard.iter().map(|body| body["text"].as_str().expect("a text")).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["Answer briefly.", "Name a colour, \"quoted\" and with ü."]);
    let (run, heard) = bench_generate(&[&flags[..], &["--tokenize-prompt"]].concat());
    assert_eq!(run.code, 0, "{run:?}");
    assert!(heard.iter().all(|body| body["input_ids"].as_array().is_some_and(|ids| ids.len() > 9)));
}

#[test]
fn custom_lines_may_have_a_mark_and_carriage_returns() {
    let (run, heard) = bench_generate(&["--dataset-name=custom", &fixture("custom.jsonl"), "--num-prompts=0"]);
    assert_eq!((run.code, heard.len()), (0, 3), "{run:?}");
    assert!(heard.iter().any(|body| body["text"] == "One line?"), "{heard:?}");
}

#[test]
fn openai_requests_are_sent_as_they_stand_there() {
    let (run, heard) = bench_chat(&["--dataset-name=openai", &fixture("openai.jsonl")]);
    assert_eq!((run.code, heard.len()), (0, 2), "{run:?}");
    let body = heard.iter().find(|body| !body["tools"].is_null()).expect("the one with tools");
    assert_eq!(
        (&body["max_completion_tokens"], &body["temperature"], &body["stream"]),
        (&json!(12), &json!(0.5), &json!(true))
    );
    assert_eq!((&body["model"], body["messages"].as_array().map(Vec::len)), (&json!("default"), Some(4)));
    assert_eq!(body["messages"][2]["tool_calls"][0]["function"]["name"], "open_box");
    let parts = heard.iter().find(|body| body["tools"].is_null()).expect("the other");
    assert_eq!(
        (&parts["messages"][0]["content"][1]["text"], &parts["max_completion_tokens"]),
        (&json!("of a text"), &json!(256))
    );
    mcctl(&["bench", "multi-turn", "--dataset-name=openai", &fixture("openai.jsonl")]).fails(2);
}

#[test]
fn a_trace_is_exact_in_its_blocks_and_comes_at_its_times() {
    let begun = Instant::now();
    let (run, heard) = bench(
        quick,
        &["--dataset-name=mooncake", &fixture("mooncake.jsonl"), "--mooncake-slowdown-factor=10", "--json"],
    );
    assert_eq!((run.code, heard.len()), (0, 3), "{run:?}");
    assert!(begun.elapsed() >= Duration::from_millis(400), "{:?}", begun.elapsed());
    let mut prompts: Vec<Vec<u64>> = heard
        .iter()
        .map(|body| serde_json::from_slice::<Value>(body).expect("JSON"))
        .map(|body| serde_json::from_value(body["input_ids"].clone()).expect("ids"))
        .collect();
    prompts.sort_by_key(Vec::len);
    let [short, middle, long] = &prompts[..] else { panic!("three") };
    assert_eq!((short.len(), middle.len(), long.len()), (600, 1100, 1536));
    assert_eq!(short[..512], long[..512]);
    assert_eq!(middle[..1024], long[..1024]);
    assert_ne!(middle[1024..], long[1024..1100]);
    let texts = bench_chat(&["--dataset-name=mooncake", &fixture("mooncake.jsonl"), "--ignore-trace-timestamps"]).1;
    let words: Vec<usize> = texts.iter().map(|body| contents(body)[0].split_whitespace().count()).collect();
    assert!(words.contains(&600) && words.contains(&1536), "{words:?}");
}

#[test]
fn traces_of_other_formats_are_recognized() {
    let begun = Instant::now();
    let (run, heard) = bench_generate(&["--dataset-name=trace", &fixture("bailian.jsonl")]);
    assert_eq!((run.code, heard.len()), (0, 3), "{run:?}");
    assert!(begun.elapsed() >= Duration::from_millis(400), "times are seconds: {:?}", begun.elapsed());
    let ids = |body: &Value| -> Vec<u64> { serde_json::from_value(body["input_ids"].clone()).expect("ids") };
    let mut prompts: Vec<Vec<u64>> = heard.iter().map(ids).collect();
    prompts.sort_by_key(Vec::len);
    assert_eq!(prompts.iter().map(Vec::len).collect::<Vec<_>>(), [40, 48, 80]);
    assert_eq!((&prompts[0][..32], &prompts[1][..]), (&prompts[1][..32], &prompts[2][..48]));
    assert_ne!(prompts[0][32..], prompts[1][32..40]);
    // IDs of a session are local to it.
    let (run, heard) = bench_generate(&["--dataset-name=mooncake", &fixture("weka.jsonl")]);
    assert_eq!((run.code, heard.len()), (0, 4), "{run:?}");
    let mut prompts: Vec<Vec<u64>> = heard.iter().map(ids).collect();
    prompts.sort_by_key(Vec::len);
    let [other, first, subagent, last] = &prompts[..] else { panic!("four") };
    assert_eq!((&first[..128], &first[..128]), (&subagent[..128], &last[..128]));
    assert_ne!(first[128..], subagent[128..130]);
    assert_ne!(other[..64], first[..64]);
    let (run, heard) = bench_generate(&["--dataset-name=mooncake", &fixture("burstgpt.csv"), "--time-unit=ms"]);
    assert_eq!((run.code, heard.len()), (0, 2), "{run:?}");
    assert!(run.stderr.contains("no prompt shares a prefix"), "{run:?}");
}

#[test]
fn trace_with_another_block_size_is_refused_with_the_size_that_fits() {
    for flag in ["--block-size=512", "--trace-block-tokens=512"] {
        let said = refused(&["--dataset-name=mooncake", &fixture("bailian.jsonl"), flag]);
        assert!(said.contains("bailian.jsonl:1: 48 tokens do not match 3 blocks of 512 tokens"), "{said}");
        assert!(said.contains("next: use --block-size 16"), "{said}");
    }
    let said = refused(&["--dataset-name=mooncake", &fixture("bailian.jsonl"), "--time-unit=h"]);
    assert!(said.contains("s or ms"), "{said}");
    let said = refused(&["--dataset-name=mooncake", &fixture("sharegpt.json")]);
    assert!(said.ends_with("next: use --dataset-name sharegpt"), "{said}");
}

#[test]
fn sessions_are_whole_requests_or_go_on_with_live_replies() {
    let (run, heard) = bench_chat(&["--dataset-name=mooncake", &fixture("sessions.jsonl")]);
    assert_eq!((run.code, heard.len()), (0, 4), "{run:?}");
    let with = |said: &[&str]| heard.iter().find(|body| contents(body) == said).unwrap_or_else(|| panic!("{heard:?}"));
    with(&["First.", "recorded", "Second."]);
    let news = with(&["Be kind.", "Good morning.", " well.", "Good night."]);
    assert_eq!((&news["top_p"], &news["tools"][0]["function"]["name"]), (&json!(0.5), &json!("f")));
}

#[test]
fn an_agentic_trace_goes_on_with_live_replies() {
    let (run, heard) = bench_chat(&["--dataset-name=agentic-trace", &fixture("agentic-trace.json")]);
    assert_eq!((run.code, heard.len()), (0, 3), "{run:?}");
    assert!(
        heard.iter().any(|body| contents(body) == ["You mend programs.", "Mend this.", " well.", "It still fails."])
    );
    assert!(heard.iter().all(|body| body["max_completion_tokens"] == 220));
    let one = bench_chat(&["--dataset-name=agentic-trace", &fixture("agentic-trace.json"), "--agentic-max-turns=1"]).1;
    assert_eq!(one.len(), 2);
}

#[test]
fn long_contexts_and_texts_in_turn_are_read() {
    for (name, file, requests) in
        [("longbench_v2", "longbench.jsonl", 1), ("ultrachat", "ultrachat.jsonl", 2), ("loogle", "loogle.jsonl", 2)]
    {
        let (run, heard) = bench_generate(&["--dataset-name", name, &fixture(file)]);
        assert_eq!((run.code, heard.len()), (0, requests), "{name}: {run:?}");
    }
}

#[test]
fn generated_prefixes_are_shared_by_their_group_alone() {
    let flags = [
        "--dataset-name=generated-shared-prefix",
        "--gsp-num-groups=2",
        "--gsp-prompts-per-group=3",
        "--gsp-system-prompt-len=40",
        "--gsp-question-len=8",
        "--gsp-output-len=3",
        "--gsp-num-turns=2",
    ];
    let (run, heard) = bench_generate(&flags);
    assert_eq!((run.code, heard.len()), (0, 12), "{run:?}");
    let ids: Vec<Vec<u64>> =
        heard.iter().map(|body| serde_json::from_value(body["input_ids"].clone()).expect("ids")).collect();
    let mut systems: Vec<&[u64]> = ids.iter().map(|ids| &ids[..40]).collect();
    systems.sort_unstable();
    systems.dedup();
    let mut lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
    lengths.sort_unstable();
    lengths.dedup();
    // The second turn has the three ids of the answer between its questions.
    assert_eq!((systems.len(), lengths), (2, vec![48, 59]));
    mcctl(&["bench", "multi-turn", flags[0], "--gsp-group-distribution=zipf"]).fails(2);
    mcctl(&["bench", "multi-turn", flags[0], "--gsp-zipf-alpha=1"]).fails(2);
    // A word for routers, one per group.
    for flag in [&["--gsp-send-routing-key", "--seed=9"][..], &[]] {
        let keys = Keys::default();
        assert_eq!(bench_routed(&[&flags[..], flag].concat(), keys.clone()).0.code, 0);
        let met: Vec<String> = keys.lock().expect("lock is not poisoned").iter().cloned().collect();
        assert_eq!(met, if flag.is_empty() { vec![] } else { vec!["9_0", "9_1"] });
    }
    // Group by group: systems come one after the other.
    let ordered = bench_generate(&[&flags[..6], &["--gsp-ordered"][..]].concat()).1;
    let system = |body: &Value| body["input_ids"].as_array().expect("ids")[..40].to_vec();
    let mut met: Vec<Vec<Value>> = ordered.iter().map(system).collect();
    met.dedup();
    assert_eq!(met.len(), 2);
}

#[test]
fn random_prompts_are_runs_of_ids_or_texts_cut_to_length() {
    let shape = ["--num-prompts=5", "--random-input-len=30", "--random-output-len=3", "--random-range-ratio=1"];
    let (run, heard) = bench_generate(&[&["--dataset-name=random-ids", "--vocab-size=100"], &shape[..]].concat());
    assert_eq!((run.code, heard.len()), (0, 5), "{run:?}");
    for body in &heard {
        let ids: Vec<u64> = serde_json::from_value(body["input_ids"].clone()).expect("ids");
        assert!(ids.len() == 30 && ids.windows(2).all(|pair| (pair[0] + 1) % 100 == pair[1]), "{ids:?}");
    }
    let (_dir, tokenizer) = tokenizer();
    let file = fixture("sharegpt.json");
    let (run, heard) = bench_generate(&[&["--dataset-name=random", &file, &tokenizer], &shape[..]].concat());
    assert_eq!((run.code, heard.len()), (0, 2), "no more than there are texts: {run:?}");
    // Flags of bench_multiturn.py: generated conversations with texts of the file.
    let flags = ["--num-clients=3", "--num-rounds=1", "--request-length=25", "--output-length=3", "--range-ratio=1.0"];
    let (run, heard) = bench_generate(&[&[file.as_str(), &tokenizer], &flags[..]].concat());
    assert_eq!((run.code, heard.len()), (0, 3), "{run:?}");
    assert!(heard.iter().all(|body| body["input_ids"].as_array().is_some_and(|ids| ids.len() == 25)));
    mcctl(&["bench", "multi-turn", &file]).fails(2);
    mcctl(&["bench", "multi-turn", "--dataset-name=random-ids", "--num-prompts=0"]).fails(2);
    mcctl(&["bench", "multi-turn", "--dataset-name=random-ids", "--api=chat", "--tokenizer=/nowhere"]).fails(2);
}

#[test]
fn the_same_seed_asks_the_same_byte_for_byte_of_every_dataset() {
    let (_dir, tokenizer) = tokenizer();
    let file = |name: &str, file: &str| vec![format!("--dataset-name={name}"), fixture(file), "--shuffle".to_owned()];
    let lines = [
        file("sharegpt", "sharegpt.json"),
        file("custom", "custom.jsonl"),
        file("mooncake", "mooncake.jsonl"),
        file("longbench_v2", "longbench.jsonl"),
        vec!["--dataset-name=random-ids".to_owned(), "--num-prompts=3".to_owned()],
        vec!["--dataset-name=random".to_owned(), fixture("sharegpt.json"), tokenizer],
        vec![
            "--dataset-name=generated-shared-prefix".to_owned(),
            "--gsp-num-groups=2".to_owned(),
            "--gsp-prompts-per-group=2".to_owned(),
        ],
    ];
    for line in &lines {
        let flags: Vec<&str> = line.iter().map(String::as_str).chain(["--seed=5"]).collect();
        let asked = || {
            let (run, mut heard) = bench(quick, &[&SLOWLY[..], &flags].concat());
            assert_eq!(run.code, 0, "{run:?}");
            heard.sort();
            assert!(!heard.is_empty(), "{line:?}");
            heard
        };
        assert_eq!(asked(), asked(), "{line:?}");
    }
}

#[test]
fn a_malformed_row_is_located_and_can_be_skipped() {
    for (name, file, line, reason, skipped, requests) in [
        ("sharegpt", "sharegpt-bad.json", 3, "invalid type: integer `7`, expected a string", 2, 2),
        ("custom", "custom-bad.jsonl", 2, "EOF while parsing a string at column 52", 2, 2),
        ("openai", "openai-bad.jsonl", 2, "no messages", 3, 1),
        ("mooncake", "mooncake-bad.jsonl", 2, "5000 tokens do not match 1 blocks of 512 tokens", 3, 1),
        ("mooncake", "sessions-bad.jsonl", 2, "message_mode", 1, 2),
        ("agentic-trace", "agentic-trace-bad.json", 3, "messages: not a JSON array", 1, 2),
        ("longbench_v2", "longbench-bad.jsonl", 2, "missing field `choice_A`", 1, 1),
        ("ultrachat", "ultrachat-bad.jsonl", 2, "expected a sequence", 1, 1),
        ("loogle", "loogle-bad.jsonl", 2, "expected a sequence", 1, 1),
    ] {
        let name = format!("--dataset-name={name}");
        let (run, heard) = bench_chat(&[&name, &fixture(file)]);
        let said = run.fails(2);
        assert!(said.contains(&format!("{file}:{line}: ")) && said.contains(reason), "{said}");
        assert!(heard.is_empty() && said.contains("--skip-bad"), "{said}");
        let (run, heard) = bench_chat(&[&name, &fixture(file), "--skip-bad"]);
        assert_eq!((run.code, heard.len()), (0, requests), "{run:?}");
        let told = format!("{skipped} malformed rows were skipped; the first: line {line}: ");
        assert!(run.stderr.contains(&told), "{told}: {run:?}");
    }
}

#[test]
fn a_file_that_is_not_a_dataset_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &[u8]| -> PathBuf {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let deep = "[".repeat(100_000);
    let mut reasons = String::new();
    for path in [
        PathBuf::from("/nowhere/at/all"),
        dir.path().to_owned(),
        PathBuf::from("/dev/zero"),
        file("empty", b""),
        file("blank", b"\xef\xbb\xbf \r\n\n"),
        file("utf-16", b"\xff\xfe[\0{\0"),
        file("deep", deep.as_bytes()),
        file("other", b"\x7fELF\x02\x01\x01"),
    ] {
        for name in ["sharegpt", "custom", "openai", "mooncake", "agentic-trace", "longbench_v2"] {
            let path = path.display();
            let error = refused(&[&format!("--dataset-name={name}"), &format!("--dataset-path={path}")]);
            let (_, found) = error.split_once("found: ").unwrap_or_else(|| panic!("{error}"));
            let (found, _) = found.split_once("; next: ").unwrap_or_else(|| panic!("{error}"));
            reasons.push_str(&format!("{path} as {name}\n    {found}\n"));
        }
    }
    // The folder has a random name.
    insta::assert_snapshot!("not_a_dataset", reasons.replace(dir.path().to_str().expect("text"), "DIR"));
    mcctl(&["bench", "multi-turn", "--dataset-name=sharegpt"]).fails(2);
    for bad in [file("t.json", b"{}"), dir.path().to_owned(), PathBuf::from("/dev/zero")] {
        let flag = format!("--tokenizer={}", bad.display());
        let run = mcctl(&["bench", "multi-turn", "--dataset-name=random-ids", &flag]);
        assert!(run.fails(2).contains("tokenizer"), "{run:?}");
    }
}

/// The error of a bench with these flags, which must be refused before it connects.
#[track_caller]
fn refused(flags: &[&str]) -> String {
    let run = mcctl(&[&["bench", "multi-turn", "--api=chat", "--url=http://127.0.0.1:1"], flags].concat());
    run.fails(2).to_owned()
}

#[test]
fn an_offset_beyond_the_end_is_refused_with_the_count() {
    for order in ["--shuffle", "--disable-shuffle"] {
        for (name, file, there, rows) in [("sharegpt", "sharegpt.json", 2, 3), ("mooncake", "mooncake.jsonl", 3, 3)] {
            let name = format!("--dataset-name={name}");
            let said = refused(&[&name, &fixture(file), order, &format!("--dataset-offset={there}")]);
            let found = format!("offset {there} skips all {there} conversations (in {rows} rows)");
            assert!(said.contains(&found), "{said}");
            assert!(said.ends_with(&format!("next: set --dataset-offset below {there}")), "{said}");
        }
    }
}

#[test]
fn a_file_of_only_bad_rows_is_refused_with_the_first_reason() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("bad");
    std::fs::write(&path, "x\n7\n").expect("room");
    let path = format!("--dataset-path={}", path.display());
    for name in ["sharegpt", "custom", "openai", "mooncake", "ultrachat", "loogle", "longbench_v2"] {
        let said = refused(&[&format!("--dataset-name={name}"), &path, "--skip-bad"]);
        assert!(said.contains("the first is line 1: "), "{name}: {said}");
        assert!(!said.contains("--skip-bad"), "it was given: {said}");
    }
}

#[test]
fn a_dataset_that_we_made_is_the_same_for_its_seed_and_is_played() {
    let dir = tempfile::tempdir().expect("a folder");
    for (made, read) in [
        ("sharegpt", "sharegpt"),
        ("custom", "custom"),
        ("openai", "openai"),
        ("mooncake", "mooncake"),
        ("sessions", "mooncake"),
        ("agentic-trace", "agentic-trace"),
        ("longbench_v2", "longbench_v2"),
        ("ultrachat", "ultrachat"),
        ("loogle", "loogle"),
    ] {
        let path = dir.path().join(made);
        let out = format!("--out={}", path.display());
        let flags = ["bench", "dataset", "--format", made, "--conversations=3", "--turns=2", "--groups=2", "--seed=4"];
        mcctl(&[&flags[..], &[&out]].concat()).succeeds();
        let bytes = std::fs::read_to_string(&path).expect("UTF-8");
        assert_eq!(mcctl(&flags).succeeds(), bytes, "{made}");
        let (run, heard) = bench_chat(&[
            "--dataset-name",
            read,
            &format!("--dataset-path={}", path.display()),
            "--ignore-trace-timestamps",
        ]);
        let turns = if ["openai", "mooncake", "longbench_v2"].contains(&made) { 3 } else { 6 };
        assert_eq!((run.code, heard.len()), (0, turns), "{made}: {run:?}");
    }
    let missing = dir.path().join("no/folder");
    mcctl(&["bench", "dataset", &format!("--out={}", missing.display())]).fails(2);
    mcctl(&["bench", "dataset", "--out=/dev/full"]).fails(4);
    // An existing file is kept without --overwrite.
    let path = dir.path().join("mine");
    std::fs::write(&path, "of somebody").expect("room");
    let out = format!("--out={}", path.display());
    assert!(mcctl(&["bench", "dataset", &out]).fails(2).contains("--overwrite"));
    assert_eq!(std::fs::read_to_string(&path).expect("there"), "of somebody");
    mcctl(&["bench", "dataset", &out, "--overwrite", "--conversations=1"]).succeeds();
    assert!(std::fs::read_to_string(&path).expect("there").starts_with('['));
}
