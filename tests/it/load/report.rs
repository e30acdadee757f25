//! What a run leaves: files while it goes, the document and its schema, the page.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::command::{bench, document};
use super::server::{Heard, Manner, serve_and_hear};
use super::validate::{is_as_described, undescribed, validate};
use crate::cli::{Run, command, finish};
use crate::peer::process::{PATIENCE, wait_until};

fn quick(_: usize) -> Manner {
    Manner::Answer(3, Duration::from_millis(2), Duration::from_millis(1))
}

const SMALL: [&str; 5] =
    ["--num-clients=4", "--num-rounds=3", "--request-length=20", "--output-length=3", "--request-rate=inf"];

fn run(manner: impl Fn(usize) -> Manner + Send + Sync + 'static, more: &[String]) -> Run {
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    bench(manner, &[&SMALL[..], &more].concat()).0
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("it was written");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

#[test]
fn every_request_is_a_line_of_records_and_of_csv_and_the_results_of_others_have_their_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    let flags = [
        flag("records", &at("r.jsonl")),
        flag("csv", &at("r.csv")),
        flag("output-file", &at("o.jsonl")),
        flag("log-file", &at("l.jsonl")),
        flag("json", &at("d.json")),
        flag("html", &at("p.html")),
        "--output-details".to_owned(),
        "--tag=t".to_owned(),
    ];
    let told = run(quick, &flags);
    assert_eq!(told.code, 0, "{told:?}");
    let records = lines(&at("r.jsonl"));
    assert_eq!(records.len(), 1 + 1 + 12 + 1, "a head, a beginning, twelve requests, an end");
    assert_eq!((&records[0]["schema"], &records[0]["run"]["seed"]), (&json!("mcctl.bench.record/1"), &json!(1)));
    assert_eq!(records[1]["begins"]["requests"], 12);
    assert_eq!(records[14]["ends"]["completed"], 12);
    let requests = &records[2..14];
    assert!(requests.iter().all(|line| line["outcome"] == "ok" && line["first_token_s"].is_number()), "{requests:?}");
    let csv = std::fs::read_to_string(at("r.csv")).expect("it was written");
    assert_eq!(csv.lines().count(), 13, "{csv}");
    let reference: Value =
        serde_json::from_str(include_str!("../../../fixtures/load/bench-serving-keys.json")).expect("JSON");
    let result = &lines(&at("o.jsonl"))[0];
    for key in reference.as_array().expect("a list").iter().filter_map(Value::as_str) {
        assert!(result.get(key).is_some(), "{key} is not in {result}");
    }
    assert_eq!(
        (&result["request_rate"], &result["completed"], &result["tag"]),
        (&json!("inf"), &json!(12), &json!("t"))
    );
    assert_eq!(result["ttfts"].as_array().map(Vec::len), Some(12));
    assert_eq!(result["itls"][0].as_array().map(Vec::len), Some(2), "three tokens have two gaps");
    assert!(result.get("request_goodput").is_none(), "no limits were given: {result}");
    assert!(result["mean_ttft_ms"].as_f64().is_some_and(|mean| mean >= 2.0), "{result}");
    let rounds = &lines(&at("l.jsonl"))[0];
    assert_eq!(rounds["round"]["round_2"]["request_count"], 4, "{rounds}");
    assert_eq!(rounds["summary"]["total_requests"], 12);
    // Those two are appended to, the others are not written over unless it is said.
    let again = run(quick, &flags);
    assert!(again.code == 2 && again.stderr.contains("is there already"), "{again:?}");
    let again = run(quick, &[&flags[..], &["--overwrite".to_owned()]].concat());
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!((lines(&at("r.jsonl")).len(), lines(&at("o.jsonl")).len(), lines(&at("l.jsonl")).len()), (15, 2, 2));
}

#[test]
fn with_limits_the_line_has_the_keys_of_goodput_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("o.jsonl");
    // Each third request fails, and what failed met nothing.
    let manner = |n: usize| if n.is_multiple_of(3) { Manner::Status(503, "") } else { quick(n) };
    let told = run(manner, &[flag("output-file", &file), "--goodput".to_owned(), "ttft:60000,tpot:0.001".to_owned()]);
    assert_eq!(told.code, 1, "{told:?}");
    let line = &lines(&file)[0];
    assert_eq!(line["goodput_slos_ms"], json!({"ttft": 60000.0, "tpot": 0.001}));
    let share = line["slo_attainment_by_metric"]["ttft"].as_f64().expect("a number");
    assert!(share > 0.0 && share < 1.0, "{line}");
    assert_eq!((&line["slo_attainment_by_metric"]["tpot"], &line["slo_attainment"]), (&json!(0.0), &json!(0.0)));
    assert_eq!(line["request_goodput"], 0.0);
}

#[test]
fn the_document_is_as_its_schema_says() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../fixtures/load/schema/mcctl.bench.multi-turn.1.json"))
            .expect("JSON");
    for manner in [quick, |n| if n % 3 == 0 { Manner::Status(503, "") } else { quick(n) }] {
        let mut told = document(&run(manner, &["--json".to_owned()]));
        is_as_described(&told);
        told["passes"][0]["goals"]["steady_state"]["surprise"] = json!(1);
        assert_eq!(undescribed(&schema, &told), ["$.passes[0].goals.steady_state.surprise"]);
    }
    assert!(!validate(&schema, &json!({"schema": "mcctl.bench.multi-turn/1"})).is_empty());
}

#[test]
fn a_full_disk_is_told_and_the_run_goes_on_to_its_report() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["records", "csv", "output-file", "log-file", "html", "json"] {
        let good = folder.path().join(format!("{name}.good"));
        let other = if name == "csv" { "records" } else { "csv" };
        let told = run(quick, &[flag(name, Path::new("/dev/full")), flag(other, &good)]);
        assert_eq!(told.code, 4, "{name}: {told:?}");
        assert!(told.stderr.contains("/dev/full") && told.stderr.contains("No space left"), "{name}: {told:?}");
        assert!(told.stdout.contains("12 sent, 12 ok"), "{name}: {told:?}");
        assert!(std::fs::read_to_string(&good).expect("there").lines().count() >= 13, "{name}");
    }
    let nowhere = run(quick, &[flag("records", Path::new("/nonexistent/x"))]);
    assert!(nowhere.code == 2 && nowhere.stdout.is_empty(), "nothing is sent for nothing: {nowhere:?}");
}

#[test]
fn a_limit_on_the_size_of_files_is_as_a_full_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = flag("records", &folder.path().join("r.jsonl"));
    let (told, _) = super::command::bench_by(quick, &[&SMALL[..], &[&records]].concat(), |line| {
        let mut shell = std::process::Command::new("sh");
        // Blocks of 512 bytes.
        shell.args(["-c", "ulimit -f 4 && exec \"$@\"", "sh"]).arg(line.get_program()).args(line.get_args());
        shell
    });
    assert_eq!(told.code, 4, "{told:?}");
    assert!(told.stderr.contains("r.jsonl") && told.stdout.contains("12 sent, 12 ok"), "{told:?}");
}

#[test]
fn quiet_says_nothing_and_a_log_gets_lines() {
    let slow = |_: usize| Manner::Answer(3, Duration::from_millis(1_500), Duration::from_millis(1));
    let (told, _) = bench(slow, &["--num-clients=4", "--num-rounds=1", "--max-parallel=1", "--request-rate=inf"]);
    assert!(told.code == 0 && told.stderr.contains("of 4 requests; "), "{told:?}");
    let told = run(quick, &["--quiet".to_owned()]);
    assert!(told.code == 0 && told.stderr.is_empty(), "{told:?}");
}

#[test]
fn a_table_fits_a_terminal() {
    let told = run(quick, &[]);
    for line in told.succeeds().lines() {
        assert!(line.chars().count() <= 120, "{line}");
    }
}

#[test]
fn an_interrupted_run_goes_on_with_what_has_not_ended_and_reports_both() {
    let folder = tempfile::tempdir().expect("a folder");
    let (whole, cut) = (folder.path().join("whole"), folder.path().join("cut"));
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let heard = Heard::default();
    let port = runtime.block_on(serve_and_hear(quick, heard.clone()));
    let url = format!("--url=http://127.0.0.1:{port}");
    let go = |more: &[&str]| {
        heard.lock().expect("nobody panics with it").clear();
        let line = [&["bench", "multi-turn", &url], &SMALL[..], more].concat();
        let run = finish(command(&line).output().expect("it starts"));
        (run, heard.lock().expect("nobody panics with it").len())
    };
    let (run, asked) = go(&[&flag("records", &whole)]);
    assert_eq!((run.code, asked), (0, 12), "{run:?}");
    let text = std::fs::read_to_string(&whole).expect("there");
    let conversation = |line: &&str| line.contains("\"conversation\":2,") || line.contains("\"conversation\":0,");
    let mut left: Vec<&str> = text.lines().take(2).collect();
    left.extend(text.lines().filter(conversation));
    // One more turn of another conversation, and a line that was cut off.
    left.extend(text.lines().find(|line| line.contains("\"conversation\":3,\"turn\":1,")));
    let resume = flag("resume", &cut);
    std::fs::write(&cut, left.join("\n") + "\n{\"pass\":0,\"si").expect("room");
    let (refused, asked) = go(&[&resume, "--seed=9"]);
    assert!(refused.code == 2 && refused.stderr.contains("another measurement") && asked == 0, "{refused:?}");
    let (run, asked) = go(&[&resume, "--json"]);
    assert_eq!((run.code, asked), (0, 6), "two of four conversations are left: {run:?}");
    let told = document(&run);
    assert_eq!((&told["passes"][0]["sent"], &told["passes"][0]["completed"]), (&json!(12), &json!(12)));
    assert!(told["doubts"][0].as_str().is_some_and(|doubt| doubt.contains("interrupted")), "{told}");
    // What was left is a whole now: nothing is asked once more.
    let (run, asked) = go(&[&resume]);
    assert!(run.code == 0 && asked == 0 && run.stdout.contains("12 sent, 12 ok"), "{run:?}");
    let (run, _) = go(&[&flag("resume", Path::new("/nonexistent"))]);
    assert_eq!(run.code, 2, "{run:?}");
}

#[test]
fn a_dataset_that_changed_in_between_is_not_gone_on_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let row = |question: &str| {
        format!("{{\"conversations\": [{{\"content\": \"{question}\"}}, {{\"content\": \"It is so.\"}}]}}\n")
    };
    std::fs::write(at("data"), row("Is it?") + &row("Are you?")).expect("room");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let port = runtime.block_on(serve_and_hear(quick, Heard::default()));
    let url = format!("--url=http://127.0.0.1:{port}");
    let path = flag("dataset-path", &at("data"));
    let go = |more: &str| {
        let line = ["bench", "multi-turn", &url, "--dataset-name=custom", &path, "--request-rate=inf", more];
        finish(command(&line).output().expect("it starts"))
    };
    assert_eq!(go(&flag("records", &at("r"))).code, 0);
    let resume = flag("resume", &at("r"));
    assert_eq!(go(&resume).code, 0, "it is the same");
    // Of the same length, so that no flag and no count tells it.
    std::fs::write(at("data"), row("Is it?") + &row("Are we?!")).expect("room");
    let refused = go(&resume);
    assert!(refused.code == 2 && refused.stderr.contains("another measurement"), "{refused:?}");
    assert!(refused.stderr.contains("the same data"), "{refused:?}");
}

#[test]
fn a_signal_ends_the_run_with_its_report_and_whole_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = folder.path().join("r");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let heard = Heard::default();
    let slow = |_: usize| Manner::Answer(3, Duration::from_millis(100), Duration::from_millis(1));
    let port = runtime.block_on(serve_and_hear(slow, heard.clone()));
    let url = format!("--url=http://127.0.0.1:{port}");
    let mut line =
        command(&["bench", "multi-turn", &url, "--num-clients=1000", "--max-parallel=2", "--request-rate=inf"]);
    line.arg(flag("records", &records)).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = line.spawn().expect("it starts");
    wait_until("it asks", PATIENCE, || heard.lock().expect("nobody panics with it").len() >= 5);
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it runs");
    let run = finish(child.wait_with_output().expect("it ends"));
    assert!(run.code == 1 && run.stdout.contains("SIGINT ended the run early"), "{run:?}");
    let written = lines(&records);
    assert_eq!(written.last().map(|last| &last["ends"]["stopped"]), Some(&json!(true)));
}
