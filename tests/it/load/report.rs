//! Output of a run: files written meanwhile, the JSON document and its schema, and the HTML page.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::command::{bench, document};
use super::server::{Behaviour, RequestBodies, serve_and_record};
use crate::cli::{Run, command, finish};
use crate::peer::process::{PATIENCE, wait_until};
use crate::schemas::validate::{undescribed, validate};
use crate::schemas::{is_as_described, schema};

fn quick(_: usize) -> Behaviour {
    Behaviour::Answer(3, Duration::from_millis(2), Duration::from_millis(1))
}

const SMALL: [&str; 5] =
    ["--num-clients=4", "--num-rounds=3", "--request-length=20", "--output-length=3", "--request-rate=inf"];

fn run(behaviour: impl Fn(usize) -> Behaviour + Send + Sync + 'static, more: &[String]) -> Run {
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    bench(behaviour, &[&SMALL[..], &more].concat()).0
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the file exists");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

#[test]
fn every_request_is_in_all_files_with_the_expected_keys() {
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
    let report = run(quick, &flags);
    assert_eq!(report.code, 0, "{report:?}");
    let records = lines(&at("r.jsonl"));
    assert_eq!(records.len(), 1 + 1 + 12 + 1, "a head, a beginning, twelve requests, an end");
    assert_eq!((&records[0]["schema"], &records[0]["run"]["seed"]), (&json!("mcctl.bench.record/1"), &json!(1)));
    assert_eq!(records[1]["begins"]["requests"], 12);
    assert_eq!(records[14]["ends"]["completed"], 12);
    let requests = &records[2..14];
    assert!(requests.iter().all(|line| line["outcome"] == "ok" && line["first_token_s"].is_number()), "{requests:?}");
    let csv = std::fs::read_to_string(at("r.csv")).expect("the file exists");
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
    // These two are appended to. The others require --overwrite.
    let again = run(quick, &flags);
    assert!(again.code == 2 && again.stderr.contains("--overwrite"), "{again:?}");
    let again = run(quick, &[&flags[..], &["--overwrite".to_owned()]].concat());
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!((lines(&at("r.jsonl")).len(), lines(&at("o.jsonl")).len(), lines(&at("l.jsonl")).len()), (15, 2, 2));
}

#[test]
fn goodput_limits_add_their_keys_to_the_output_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("o.jsonl");
    // Every third request fails and meets no limit.
    let behaviour = |n: usize| if n.is_multiple_of(3) { Behaviour::Status(503, "") } else { quick(n) };
    let report =
        run(behaviour, &[flag("output-file", &file), "--goodput".to_owned(), "ttft:60000,tpot:0.001".to_owned()]);
    assert_eq!(report.code, 1, "{report:?}");
    let line = &lines(&file)[0];
    assert_eq!(line["goodput_slos_ms"], json!({"ttft": 60000.0, "tpot": 0.001}));
    let share = line["slo_attainment_by_metric"]["ttft"].as_f64().expect("a number");
    assert!(share > 0.0 && share < 1.0, "{line}");
    assert_eq!((&line["slo_attainment_by_metric"]["tpot"], &line["slo_attainment"]), (&json!(0.0), &json!(0.0)));
    assert_eq!(line["request_goodput"], 0.0);
}

#[test]
fn json_document_matches_its_schema() {
    let schema = schema("mcctl.bench.multi-turn/1");
    for behaviour in [quick, |n| if n % 3 == 0 { Behaviour::Status(503, "") } else { quick(n) }] {
        let mut report = document(&run(behaviour, &["--json".to_owned()]));
        is_as_described(&report);
        report["passes"][0]["goals"]["steady_state"]["surprise"] = json!(1);
        assert_eq!(undescribed(&schema, &report), ["$.passes[0].goals.steady_state.surprise"]);
    }
    assert!(!validate(&schema, &json!({"schema": "mcctl.bench.multi-turn/1"})).is_empty());
}

#[test]
fn full_disk_is_reported_and_the_run_completes() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["records", "csv", "output-file", "log-file", "html", "json"] {
        let good = folder.path().join(format!("{name}.good"));
        let other = if name == "csv" { "records" } else { "csv" };
        let report = run(quick, &[flag(name, Path::new("/dev/full")), flag(other, &good)]);
        assert_eq!(report.code, 4, "{name}: {report:?}");
        assert!(report.stderr.contains("/dev/full") && report.stderr.contains("No space left"), "{name}: {report:?}");
        assert!(report.stdout.contains("12 sent, 12 ok"), "{name}: {report:?}");
        assert!(std::fs::read_to_string(&good).expect("the file exists").lines().count() >= 13, "{name}");
    }
    let nowhere = run(quick, &[flag("records", Path::new("/nonexistent/x"))]);
    assert!(nowhere.code == 2 && nowhere.stdout.is_empty(), "nothing is sent for nothing: {nowhere:?}");
}

#[test]
fn file_size_limit_is_handled_like_a_full_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = flag("records", &folder.path().join("r.jsonl"));
    let (report, _) = super::command::bench_by(quick, &[&SMALL[..], &[&records]].concat(), |line| {
        let mut shell = std::process::Command::new("sh");
        // Blocks of 512 bytes.
        shell.args(["-c", "ulimit -f 4 && exec \"$@\"", "sh"]).arg(line.get_program()).args(line.get_args());
        shell
    });
    assert_eq!(report.code, 4, "{report:?}");
    assert!(report.stderr.contains("r.jsonl") && report.stdout.contains("12 sent, 12 ok"), "{report:?}");
}

#[test]
fn quiet_prints_nothing_and_a_log_gets_progress_lines() {
    let slow = |_: usize| Behaviour::Answer(3, Duration::from_millis(1_500), Duration::from_millis(1));
    let (report, _) = bench(slow, &["--num-clients=4", "--num-rounds=1", "--max-parallel=1", "--request-rate=inf"]);
    assert!(report.code == 0 && report.stderr.contains("of 4 requests, about 0:0"), "{report:?}");
    let report = run(quick, &["--quiet".to_owned()]);
    assert!(report.code == 0 && report.stderr.is_empty(), "{report:?}");
}

#[test]
fn table_fits_the_terminal() {
    let report = run(quick, &[]);
    for line in report.succeeds().lines() {
        assert!(line.chars().count() <= 120, "{line}");
    }
}

#[test]
fn interrupted_run_resumes_and_reports_both_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = folder.path().join("whole");
    let cut = folder.path().join("cut");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let bodies = RequestBodies::default();
    let port = runtime.block_on(serve_and_record(quick, bodies.clone()));
    let url = format!("--url=http://127.0.0.1:{port}");
    let go = |more: &[&str]| {
        bodies.lock().expect("lock is not poisoned").clear();
        let line = [&["bench", "multi-turn", &url], &SMALL[..], more].concat();
        let run = finish(command(&line).output().expect("the program starts"));
        (run, bodies.lock().expect("lock is not poisoned").len())
    };
    let (run, asked) = go(&[&flag("records", &whole)]);
    assert_eq!((run.code, asked), (0, 12), "{run:?}");
    let text = std::fs::read_to_string(&whole).expect("the file exists");
    let conversation = |line: &&str| line.contains("\"conversation\":2,") || line.contains("\"conversation\":0,");
    let mut left: Vec<&str> = text.lines().take(2).collect();
    left.extend(text.lines().filter(conversation));
    // One more turn of another conversation, and a truncated line.
    left.extend(text.lines().find(|line| line.contains("\"conversation\":3,\"turn\":1,")));
    let resume = flag("resume", &cut);
    std::fs::write(&cut, left.join("\n") + "\n{\"pass\":0,\"si").expect("disk space");
    let (refused, asked) = go(&[&resume, "--seed=9"]);
    assert!(refused.code == 2 && refused.stderr.contains("another run") && asked == 0, "{refused:?}");
    let (run, asked) = go(&[&resume, "--json"]);
    assert_eq!((run.code, asked), (0, 6), "two of four conversations remain: {run:?}");
    let report = document(&run);
    assert_eq!((&report["passes"][0]["sent"], &report["passes"][0]["completed"]), (&json!(12), &json!(12)));
    let caveats = report["doubts"].as_array().expect("a list");
    assert!(caveats.iter().any(|caveat| caveat.to_string().contains("interrupted")), "{report}");
    // The file is complete now, so nothing is sent again.
    let (run, asked) = go(&[&resume]);
    assert!(run.code == 0 && asked == 0 && run.stdout.contains("12 sent, 12 ok"), "{run:?}");
    let (run, _) = go(&[&flag("resume", Path::new("/nonexistent"))]);
    assert_eq!(run.code, 2, "{run:?}");
}

#[test]
fn changed_dataset_cannot_be_resumed() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let row = |question: &str| {
        format!("{{\"conversations\": [{{\"content\": \"{question}\"}}, {{\"content\": \"It is so.\"}}]}}\n")
    };
    std::fs::write(at("data"), row("Is it?") + &row("Are you?")).expect("disk space");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let port = runtime.block_on(serve_and_record(quick, RequestBodies::default()));
    let url = format!("--url=http://127.0.0.1:{port}");
    let path = flag("dataset-path", &at("data"));
    let go = |more: &str| {
        let line = ["bench", "multi-turn", &url, "--dataset-name=custom", &path, "--request-rate=inf", more];
        finish(command(&line).output().expect("the program starts"))
    };
    assert_eq!(go(&flag("records", &at("r"))).code, 0);
    let resume = flag("resume", &at("r"));
    assert_eq!(go(&resume).code, 0, "it is the same");
    // Of the same length, so that neither a flag nor a count reveals it.
    std::fs::write(at("data"), row("Is it?") + &row("Are we?!")).expect("disk space");
    let refused = go(&resume);
    assert!(refused.code == 2 && refused.stderr.contains("another run"), "{refused:?}");
    assert!(refused.stderr.contains("the same data"), "{refused:?}");
}

#[test]
fn signal_ends_the_run_with_its_report_and_complete_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = folder.path().join("r");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let bodies = RequestBodies::default();
    let slow = |_: usize| Behaviour::Answer(3, Duration::from_millis(100), Duration::from_millis(1));
    let port = runtime.block_on(serve_and_record(slow, bodies.clone()));
    let url = format!("--url=http://127.0.0.1:{port}");
    let mut line =
        command(&["bench", "multi-turn", &url, "--num-clients=1000", "--max-parallel=2", "--request-rate=inf"]);
    line.arg(flag("records", &records)).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = line.spawn().expect("the program starts");
    wait_until("requests are sent", PATIENCE, || bodies.lock().expect("lock is not poisoned").len() >= 5);
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("the process runs");
    let run = finish(child.wait_with_output().expect("the program ends"));
    assert!(run.code == 1 && run.stdout.contains("SIGINT ended the run early"), "{run:?}");
    let written = lines(&records);
    assert_eq!(written.last().map(|last| &last["ends"]["stopped"]), Some(&json!(true)));
}
