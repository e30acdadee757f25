//! `mcctl bench multi-turn` through the built binary.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::server::{Behaviour, RequestBodies, serve_and_record};
use crate::cli::service::Service;
use crate::cli::{Run, command, finish, mcctl, mcctl_in_time};
use crate::peer::process::{PATIENCE, wait_until};

/// Runs the bench with `args` against a server with this `behaviour`. Returns its output, and the
/// bodies that the server received.
pub fn bench(behaviour: impl Fn(usize) -> Behaviour + Send + Sync + 'static, args: &[&str]) -> (Run, Vec<Vec<u8>>) {
    bench_by(behaviour, args, |line| line)
}

/// The same, with the command line changed at the last.
pub fn bench_by(
    behaviour: impl Fn(usize) -> Behaviour + Send + Sync + 'static,
    args: &[&str],
    change: impl FnOnce(Command) -> Command,
) -> (Run, Vec<Vec<u8>>) {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let heard = RequestBodies::default();
    let port = runtime.block_on(serve_and_record(behaviour, heard.clone()));
    let url = format!("--url=http://127.0.0.1:{port}");
    let mut line = change(command(&[&["bench", "multi-turn", &url], args].concat()));
    let run = finish(line.output().expect("the program starts"));
    let heard = std::mem::take(&mut *heard.lock().expect("lock is not poisoned"));
    (run, heard)
}

pub(super) fn quick(_: usize) -> Behaviour {
    Behaviour::Answer(3, Duration::from_millis(2), Duration::from_millis(1))
}

const SMALL: [&str; 6] =
    ["--num-clients=4", "--num-rounds=3", "--request-length=20", "--output-length=3", "--request-rate=inf", "--json"];

pub fn document(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

#[test]
fn every_turn_is_told_and_the_totals_add_up() {
    let (run, heard) = bench(quick, &SMALL);
    assert_eq!(run.code, 0, "{run:?}");
    let told = document(&run);
    assert_eq!(told["schema"], "mcctl.bench.multi-turn/1");
    let told = &told["passes"][0];
    assert_eq!((&told["sent"], &told["completed"], &told["failed"]), (&json!(12), &json!(12), &json!(0)));
    let requests: Vec<&Value> =
        told["turns"].as_array().expect("a list").iter().map(|turn| &turn["requests"]).collect();
    assert_eq!(requests, [4, 4, 4]);
    assert_eq!((&told["tokens"]["completion"], &told["itl"]["count"]), (&json!(36), &json!(24)));
    assert_eq!(heard.len(), 12);
}

#[test]
fn the_same_seed_asks_the_same_byte_for_byte_and_another_does_not() {
    let asked = |seed: &str| {
        let (run, mut heard) = bench(quick, &[&SMALL[..], &[seed]].concat());
        assert_eq!(run.code, 0, "{run:?}");
        heard.sort();
        heard
    };
    let first = asked("--seed=7");
    assert_eq!(asked("--seed=7"), first);
    assert_ne!(asked("--seed=8"), first);
}

#[test]
fn a_failure_ends_its_conversation_and_gives_1() {
    let (run, _) = bench(|n| if n == 0 { Behaviour::Status(503, "") } else { quick(n) }, &SMALL);
    assert_eq!(run.code, 1, "{run:?}");
    let told = &document(&run)["passes"][0];
    assert_eq!((&told["sent"], &told["completed"], &told["failed"]), (&json!(10), &json!(9), &json!(1)));
    assert_eq!(told["failures"]["status 503"], json!({"count": 1, "first": "try next"}));
}

#[test]
fn the_published_command_lines_of_bench_multiturn_are_taken() {
    let line = "--disable-random-sample --output-length 1 --request-length 2048 --num-clients 3 --num-rounds 2 --max-parallel 4 \
                --request-rate 16 --ready-queue-policy random --disable-auto-run --enable-round-barrier --model-path m";
    let (run, heard) = bench(quick, &line.split_whitespace().collect::<Vec<_>>());
    assert_eq!((run.code, heard.len()), (0, 6), "{run:?}");
    assert!(run.stdout.contains("6 sent, 6 ok, 0 failed, 0 unfinished"), "{run:?}");
}

#[test]
fn an_endpoint_that_refuses_every_request_is_an_error_without_tables() {
    let refuse = |_| Behaviour::Status(404, "");
    let args = ["--num-clients=2", "--num-rounds=1", "--request-rate=100", "--request-length=16", "--output-length=1"];
    let (run, _) = bench(refuse, &args);
    let text = run.fails(3);
    assert!(text.contains("status 404") && run.stdout.is_empty(), "{text}");
    let (run, _) = bench(refuse, &[&args[..], &["--json"]].concat());
    assert_eq!((run.code, document(&run)["passes"][0]["completed"].as_u64()), (3, Some(0)), "{run:?}");
}

#[test]
fn a_server_that_sends_nothing_is_reported_before_the_run() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("--url=http://{}", silent.local_addr().expect("bound"));
    let run = mcctl_in_time(&["bench", "multi-turn", &url, "--connect-timeout=300ms", "--json"]);
    assert!(run.fails(3).contains("no HTTP response from "), "{run:?}");
    assert_eq!(run.error_document()["kind"], "unreachable");
}

#[test]
fn an_unreachable_server_gives_3_and_a_wrong_command_line_2() {
    // With the defaults, which are a request a second for half an hour.
    let folder = tempfile::tempdir().expect("a folder");
    let records = folder.path().join("r");
    let away = mcctl_in_time(&[
        "bench",
        "multi-turn",
        "--url=http://127.0.0.1:1",
        &format!("--records={}", records.display()),
    ]);
    let text = away.fails(3);
    assert!(text.contains("http://127.0.0.1:1/generate") && text.contains("Connection refused"), "{text}");
    assert!(!records.exists());
    for bad in [
        "--url=ftp://x",
        "--url=http://127.0.0.1:1/v1",
        "--request-rate=0",
        "--num-clients=0",
        "--request-length=many",
        "--extra-request-body=[]",
        "--metrics-url=foo",
        "--master-metrics=foo",
        "--header=Transfer-Encoding: chunked",
    ] {
        mcctl(&["bench", "multi-turn", bad]).fails(2);
    }
    for bad in [
        "--flush-cache --no-server-calls",
        "--cacert /dev/null --url http://127.0.0.1:1",
        "--tokenize-prompt --api chat",
    ] {
        mcctl(&[&["bench", "multi-turn"], &bad.split(' ').collect::<Vec<_>>()[..]].concat()).fails(2);
    }
    let negative = mcctl(&["bench", "multi-turn", "--request-rate", "-1"]);
    assert!(negative.fails(2).contains("'-1' is not a rate"), "{negative:?}");
    mcctl(&["bench", "multi-turn", "--min-rounds=9", "--max-rounds=2"]).fails(2);
}

#[test]
fn a_flag_without_effect_is_a_warning() {
    let (run, heard) = bench(quick, &[&SMALL[..], &["--blocks=4", "--tag=x", "--quiet"]].concat());
    assert_eq!((run.code, heard.len()), (0, 12), "{run:?}");
    let told: Vec<&str> = run.stderr.lines().collect();
    assert!(
        matches!(told[..], [blocks, tag] if blocks.starts_with("warning: --blocks ") && tag.starts_with("warning: --tag ")),
        "{told:?}"
    );
}

#[test]
fn a_url_that_names_its_route_is_asked_there() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let heard = RequestBodies::default();
    let port = runtime.block_on(serve_and_record(quick, heard.clone()));
    let url = format!("--url=http://127.0.0.1:{port}/generate");
    let run = mcctl(&[&["bench", "multi-turn", &url], &SMALL[..]].concat());
    assert_eq!((run.code, heard.lock().expect("lock is not poisoned").len()), (0, 12), "{run:?}");
}

#[test]
fn a_closed_stdout_is_success() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let port = runtime.block_on(serve_and_record(quick, RequestBodies::default()));
    let url = format!("--url=http://127.0.0.1:{port}");
    let mut line = command(&[&["bench", "multi-turn", &url], &SMALL[..]].concat());
    let mut child = line.stdout(std::process::Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let help = mcctl(&["bench", "multi-turn", "--help"]);
    assert!(
        ["a file could not be written", "reader of stdout"].iter().all(|told| help.succeeds().contains(told)),
        "{help:?}"
    );
}

#[test]
fn the_second_signal_aborts_requests_in_flight() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let heard = RequestBodies::default();
    let port = runtime.block_on(serve_and_record(|_| Behaviour::Silence, heard.clone()));
    let url = format!("--url=http://127.0.0.1:{port}");
    let mut run = Service::start(command(&["bench", "multi-turn", &url, "--num-clients=2", "--request-rate=inf"]));
    wait_until("it asks", PATIENCE, || !heard.lock().expect("lock is not poisoned").is_empty());
    run.signal(nix::sys::signal::Signal::SIGINT);
    run.line_with("SIGINT: sending no more requests");
    assert_eq!(run.stop(nix::sys::signal::Signal::SIGINT), 1);
    let lines = run.all_lines();
    let told = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
    assert_eq!((told("sending no more requests"), told("SIGINT: aborting requests in flight")), (1, 1), "{lines:?}");
}
