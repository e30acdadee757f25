//! Cache control and observation: `bench multi-turn --phases` and `bench ladder` against the
//! simulator with a real store.

use serde_json::{Value, json};

use super::server::{Behaviour, serve};
use crate::cli::service::Service;
use crate::cli::{Run, command, mcctl};
use crate::peer::cluster::{Cluster, Make, Metadata};
use crate::schemas::is_as_described;

/// A simulator with small tiers on our store, its URL, and the admin address of the master.
struct Stack {
    _sim: Service,
    _cluster: Cluster,
    url: String,
    master: String,
}

fn stack() -> Stack {
    let cluster = Cluster::start(Make::Ours, Make::Ours, Metadata::P2p, 1, 64 << 20);
    let master = format!("--master={}", cluster.master.address());
    let mut sim = Service::start(command(&[
        "serve",
        "sim",
        "--port=0",
        "--page-size=16",
        "--max-total-tokens=4096",
        "--enable-hierarchical-cache",
        "--bytes-per-token=64",
        "--decode-step-ms=1",
        "--prefill-tokens-per-s=200000",
        "--metadata-server=P2PHANDSHAKE",
        &master,
    ]));
    sim.line_with("SIMULATOR");
    let port = sim.port_after("http://127.0.0.1:");
    let master = format!("--master-metrics=127.0.0.1:{}", cluster.master.admin);
    Stack { _sim: sim, _cluster: cluster, url: format!("--url=http://127.0.0.1:{port}"), master }
}

fn document(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

const SMALL: [&str; 6] = [
    "--num-clients=4",
    "--num-rounds=3",
    "--request-length=300",
    "--output-length=4",
    "--request-rate=inf",
    "--max-parallel=1",
];

#[test]
fn phases_set_cache_states_and_hits_match_the_server_counters() {
    let stack = stack();
    let phases = "--phases=flush,clear,warm,flush,first,flush-wait,flush,repeat";
    let more = [&*stack.url, &*stack.master, phases, "--json", "--yes"];
    let run = mcctl(&[&["bench", "multi-turn"], &SMALL[..], &more].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let report = document(&run);
    is_as_described(&report);
    let passes = report["passes"].as_array().expect("a list");
    assert_eq!(passes.iter().map(|pass| &pass["name"]).collect::<Vec<_>>(), ["first", "repeat"]);
    for pass in passes {
        let server = &pass["server"];
        assert_eq!((&server["agrees"], &server["missing"]), (&json!(true), &json!([])), "{server:#}");
        let hits = &server["expectation"]["all"];
        assert_eq!(hits["expected"], hits["cached"], "{server:#}");
        assert_eq!((&server["short"]["requests"], &server["warm_tokens"]), (&json!(0), &json!(0)));
        assert!(pass["doubts"].to_string().contains("simulator"), "{pass:#}");
    }
    assert_eq!((&passes[0]["turns"][0]["tokens"]["device"], &passes[0]["tokens"]["storage"]), (&json!(0), &json!(0)));
    assert!(passes[1]["turns"][0]["tokens"]["storage"].as_u64() >= Some(4 * 288), "{:#}", passes[1]["tokens"]);
    assert!(passes[1]["server"]["master"]["keys"].as_u64() > Some(0));
    assert!(passes[1]["server"]["reuse"].as_array().is_some_and(|rows| !rows.is_empty()));
    // Without emptying the caches, first turns are warm, which is reported.
    let more = [&*stack.url, "--json"];
    let report = document(&mcctl(&[&["bench", "multi-turn"], &SMALL[..], &more].concat()));
    assert!(report["passes"][0]["server"]["warm_tokens"].as_u64() > Some(0));
    assert!(
        report["passes"][0]["doubts"].to_string().contains("the cache was warm"),
        "{:#}",
        report["passes"][0]["doubts"]
    );
}

#[test]
fn ceiling_bounds_what_the_sizes_allow_and_what_was_measured() {
    let stack = stack();
    // The conversations exceed L1 (4096 tokens), but not L2.
    let load = [
        "--num-clients=8",
        "--num-rounds=3",
        "--request-length=300",
        "--output-length=4",
        "--request-rate=inf",
        "--max-parallel=2",
    ];
    let folder = tempfile::tempdir().expect("a directory");
    let page = format!("--html={}", folder.path().join("page.html").display());
    let records = format!("--records={}", folder.path().join("records.jsonl").display());
    let run = mcctl(
        &[
            &["bench", "multi-turn", "--json", "--yes", "--phases=flush,clear,first"],
            &load[..],
            &[&*stack.url, &*stack.master, &*page, &*records],
        ]
        .concat(),
    );
    assert_eq!(run.code, 0, "{run:?}");
    let report = document(&run);
    is_as_described(&report);
    let found = &report["passes"][0]["ceiling"];
    let count = |path: &str| found.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {found:#}"));
    let requests = 8 * 3;
    assert_eq!(
        (count("/requests"), count("/prompt")),
        (requests, report["passes"][0]["tokens"]["prompt"].as_u64().unwrap())
    );
    let [device, memory, all] = ["device", "memory", "all"].map(|tier| count(&format!("/allowed/{tier}")));
    assert!(device <= memory && memory <= all && all <= count("/ceiling"), "{found:#}");
    assert!(device < all && all > 0, "L1 holds less than the conversations: {found:#}");
    assert!(count("/measured/all") <= count("/ceiling") + 16 * requests, "{found:#}");
    // L2 has twice the tokens of L1, and a page more.
    assert_eq!((count("/sizes/device"), count("/sizes/memory")), (4096, 8208));
    // 64 MiB with 64 bytes per token.
    assert_eq!(found["sizes"]["storage"], json!({"kind": "tokens", "tokens": 1 << 20}));
    let missed = ["beyond_sizes", "in_flight", "other"].map(|part| count(&format!("/missed/{part}")));
    assert_eq!(missed.iter().sum::<u64>(), count("/missed/tokens"));
    assert_eq!(count("/ceiling") + count("/excess"), count("/measured/all") + count("/missed/tokens"));
    assert_eq!((&found["approximate"], &found["incomplete"]), (&json!(false), &json!(false)));
    let records = std::fs::read_to_string(folder.path().join("records.jsonl")).expect("records");
    let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let sum = |key: &str| records.iter().filter_map(|record| record[key].as_u64()).sum::<u64>();
    assert_eq!((sum("ceiling_tokens"), sum("allowed_tokens")), (count("/ceiling"), all));
    let page = std::fs::read_to_string(folder.path().join("page.html")).expect("a page");
    assert!(page.contains("Hit rate and its ceiling") && page.contains("beyond the sizes"));
}

#[test]
fn ladder_verifies_four_tiers_with_the_server() {
    let stack = stack();
    let run =
        mcctl(&["bench", "ladder", &stack.url, &stack.master, "--lengths=512,1024", "--repeats=2", "--json", "--yes"]);
    assert_eq!(run.code, 0, "{run:?}");
    let report = document(&run);
    assert_eq!((&report["schema"], &report["agrees"]), (&json!("mcctl.bench.ladder/2"), &json!(true)));
    let rungs = report["rungs"].as_array().expect("a list");
    let seen: Vec<(u64, &str, u64)> = rungs
        .iter()
        .map(|rung| {
            (rung["length"].as_u64().unwrap(), rung["tier"].as_str().unwrap(), rung["verified"].as_u64().unwrap())
        })
        .collect();
    let tiers = ["cold", "device", "host", "storage"];
    let expected: Vec<(u64, &str, u64)> =
        [512, 1024].into_iter().flat_map(|length| tiers.map(|tier| (length, tier, 2))).collect();
    assert_eq!(seen, expected);
    assert_eq!(run.stderr.matches("fill the device with unrelated requests").count(), 1, "{run:?}");
    assert_eq!((&report["absent"], &report["end"]), (&json!([]), &json!("max-repeats")));
    // Two samples are not enough for a verdict.
    let saved: Vec<&Value> =
        rungs.iter().filter_map(|rung| rung.get("saved").filter(|saved| saved.is_object())).collect();
    assert_eq!(saved.len(), 6);
    assert!(saved.iter().all(|saved| saved["verdict"] == "undecided" && saved["low_ms"].is_null()), "{report:#}");
}

#[test]
fn ladder_names_the_tiers_that_the_server_lacks_and_writes_its_files() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let mut sim = Service::start(command(&["serve", "sim", "--port=0", "--page-size=16", "--max-total-tokens=4096"]));
    sim.line_with("SIMULATOR");
    let url = format!("--url=http://127.0.0.1:{}", sim.port_after("http://127.0.0.1:"));
    let flag = |name: &str| format!("--{name}={}", file(name));
    let json = flag("json");
    let html = flag("html");
    let svg = flag("svg");
    let csv = flag("csv");
    let line = ["bench", "ladder", &url, "--lengths=512,1024", "--yes", &json, &html, &svg, &csv];
    let run = mcctl(&line);
    let text = run.succeeds();
    let answers = [
        "L1 (device): faster than computing at every measured length (512 to 1024 tokens)",
        "L2 (host) and L3 (storage): absent, because the server runs without --enable-hierarchical-cache",
    ];
    for answer in answers {
        assert!(text.contains(answer), "{text}");
    }
    let read = |name: &str| std::fs::read_to_string(file(name)).expect("a file");
    let report: Value = serde_json::from_str(&read("json")).expect("JSON");
    assert_eq!(report["absent"].as_array().map(Vec::len), Some(2), "{report:#}");
    assert!(
        report["rungs"].as_array().is_some_and(|rungs| rungs.iter().all(|rung| rung["verified"].as_u64() >= Some(8)))
    );
    let page = read("html");
    assert!(answers.iter().all(|answer| page.contains(answer)) && page.matches("<svg ").count() == 2, "{page}");
    assert!(read("svg").starts_with("<svg "));
    let rows: Vec<String> = read("csv").lines().map(str::to_owned).collect();
    assert_eq!(rows.len(), 1 + 4, "{rows:?}");
    assert!(
        rows[0].starts_with("tokens,tier,requests,verified,ttft_median_ms,") && rows[2].contains(",faster,"),
        "{rows:?}"
    );
    // Bad combinations are found before anything is sent.
    mcctl(&["bench", "ladder", &url, "--yes", "--repeats=9", "--max-repeats=8"]).fails(2);
    mcctl(&["bench", "ladder", &url, "--yes", &html, &html.replace("--html", "--csv")]).fails(2);
    mcctl(&["bench", "ladder", &url, "--yes", "--html=/missing/page.html"]).fails(2);
}

#[test]
fn flushing_caches_requires_yes_without_a_terminal() {
    let stack = stack();
    let url = stack.url.trim_start_matches("--url=");
    for line in [
        &["ladder", &*stack.url, "--lengths=512"][..],
        &["multi-turn", &*stack.url, "--phases=flush,first"],
        &["multi-turn", &*stack.url, "--phases=first,evict-device,repeat"],
        &["multi-turn", &*stack.url, "--sweep-rate=1,2"],
        &["compare", url, url],
    ] {
        let run = mcctl(&[&["bench"], line].concat());
        let said = run.fails(2);
        assert!(said.contains("--yes") && said.contains(url), "{line:?}: {said}");
    }
}

#[test]
fn interrupted_ladder_reports_its_results_and_exits_with_1() {
    let stack = stack();
    let line = ["bench", "ladder", &stack.url, "--lengths=512,1024", "--repeats=40", "--json", "--yes"];
    let mut run = Service::start(command(&line));
    run.line_with("fill the device with unrelated requests");
    assert_eq!(run.stop(nix::sys::signal::Signal::SIGINT), 1);
    let document = run.all_lines().iter().find(|line| line.starts_with('{')).expect("a document").clone();
    let report: Value = serde_json::from_str(&document).expect("JSON");
    assert!(report["rungs"].as_array().is_some_and(|rungs| !rungs.is_empty()), "{report}");
    assert!(report["doubts"].to_string().contains("SIGINT ended the run early"), "{report}");
    // Before the first measurement, only the interruption is reported.
    let mut run = Service::start(command(&line));
    run.line_with("warm up with");
    assert_eq!(run.stop(nix::sys::signal::Signal::SIGINT), 1, "{:?}", run.all_lines());
}

#[test]
fn server_other_than_sglang_is_measured_but_rejected_by_ladder() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let quick = Behaviour::Answer(2, std::time::Duration::ZERO, std::time::Duration::ZERO);
    let port = runtime.block_on(serve(move |_| quick));
    let url = format!("--url=http://127.0.0.1:{port}");
    let run = mcctl(&[&["bench", "multi-turn", &url, "--json"], &SMALL[..]].concat());
    let report = document(&run);
    assert_eq!((run.code, &report["passes"][0]["completed"]), (0, &json!(12)), "{run:?}");
    assert!(report["passes"][0]["server"]["missing"].to_string().contains("/server_info"), "{report:#}");
    let alone = document(&mcctl(&[&["bench", "multi-turn", &url, "--no-server-calls", "--json"], &SMALL[..]].concat()));
    assert_eq!(alone["passes"][0]["server"], Value::Null);
    let flushed = mcctl(&[&["bench", "multi-turn", &url, "--flush-cache", "--json"], &SMALL[..]].concat());
    assert!(flushed.stdout.contains("cannot flush device and host"), "{flushed:?}");
    let ladder = mcctl(&["bench", "ladder", &url]);
    assert!(ladder.fails(3).contains("/server_info"), "{ladder:?}");
    mcctl(&["bench", "ladder", "--url=http://127.0.0.1:1", "--api=chat"]).fails(2);
    mcctl(&["bench", "multi-turn", &url, "--phases=flush"]).fails(2);
}
