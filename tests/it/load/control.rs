//! Caches put into known states and seen: `bench multi-turn --phases` and `bench ladder` against the simulator on a real store.

use serde_json::{Value, json};

use super::server::{Manner, serve};
use super::validate::is_as_described;
use crate::cli::service::Service;
use crate::cli::{Run, command, mcctl};
use crate::peer::cluster::{Cluster, Make, Metadata};

/// A simulator whose tiers are small, on a store of ours; its URL, and the admin address of the store's master.
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
fn phases_set_the_caches_and_every_hit_is_where_it_should_be_by_the_servers_own_counters() {
    let stack = stack();
    let phases = "--phases=flush,clear,warm,flush,first,settle,flush,repeat";
    let more = [&*stack.url, &*stack.master, phases, "--json", "--yes"];
    let run = mcctl(&[&["bench", "multi-turn"], &SMALL[..], &more].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let told = document(&run);
    is_as_described(&told);
    let passes = told["passes"].as_array().expect("a list");
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
    // The same again, without emptying anything: the first turns are warm, and it is said.
    let more = [&*stack.url, "--json"];
    let told = document(&mcctl(&[&["bench", "multi-turn"], &SMALL[..], &more].concat()));
    assert!(told["passes"][0]["server"]["warm_tokens"].as_u64() > Some(0));
    assert!(
        told["passes"][0]["doubts"].to_string().contains("the cache was warm"),
        "{:#}",
        told["passes"][0]["doubts"]
    );
}

#[test]
fn a_ladder_has_four_tiers_each_by_the_servers_word() {
    let stack = stack();
    let run =
        mcctl(&["bench", "ladder", &stack.url, &stack.master, "--lengths=512,1024", "--repeats=2", "--json", "--yes"]);
    assert_eq!(run.code, 0, "{run:?}");
    let told = document(&run);
    assert_eq!((&told["schema"], &told["agrees"]), (&json!("mcctl.bench.ladder/1"), &json!(true)));
    let rungs = told["rungs"].as_array().expect("a list");
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
    assert!(run.stderr.contains("fill the device with others"), "{run:?}");
}

#[test]
fn caches_are_emptied_only_with_yes_where_no_one_can_be_asked() {
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
fn a_ladder_that_a_signal_ends_tells_what_it_has_and_gives_1() {
    let stack = stack();
    let line = ["bench", "ladder", &stack.url, "--lengths=512,1024", "--repeats=40", "--json", "--yes"];
    let mut run = Service::start(command(&line));
    run.line_with("fill the device with others");
    assert_eq!(run.stop(nix::sys::signal::Signal::SIGINT), 1);
    let document = run.all_lines().iter().find(|line| line.starts_with('{')).expect("a document").clone();
    let told: Value = serde_json::from_str(&document).expect("JSON");
    assert!(told["rungs"].as_array().is_some_and(|rungs| !rungs.is_empty()), "{told}");
    assert!(told["doubts"].to_string().contains("SIGINT ended the run early"), "{told}");
    // Before anything was measured there is nothing to tell but that.
    let mut run = Service::start(command(&line));
    run.line_with("warm up with");
    assert_eq!(run.stop(nix::sys::signal::Signal::SIGINT), 1, "{:?}", run.all_lines());
}

#[test]
fn a_server_that_is_no_sglang_is_measured_all_the_same_and_can_be_no_ladder() {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let quick = Manner::Answer(2, std::time::Duration::ZERO, std::time::Duration::ZERO);
    let port = runtime.block_on(serve(move |_| quick));
    let url = format!("--url=http://127.0.0.1:{port}");
    let run = mcctl(&[&["bench", "multi-turn", &url, "--json"], &SMALL[..]].concat());
    let told = document(&run);
    assert_eq!((run.code, &told["passes"][0]["completed"]), (0, &json!(12)), "{run:?}");
    assert!(told["passes"][0]["server"]["missing"].to_string().contains("/server_info"), "{told:#}");
    let alone = document(&mcctl(&[&["bench", "multi-turn", &url, "--no-server-calls", "--json"], &SMALL[..]].concat()));
    assert_eq!(alone["passes"][0]["server"], Value::Null);
    let flushed = mcctl(&[&["bench", "multi-turn", &url, "--flush-cache", "--json"], &SMALL[..]].concat());
    assert!(flushed.stdout.contains("cannot flush device and host"), "{flushed:?}");
    let ladder = mcctl(&["bench", "ladder", &url]);
    assert!(ladder.fails(3).contains("no /server_info of SGLang's"), "{ladder:?}");
    mcctl(&["bench", "ladder", "--url=http://127.0.0.1:1", "--api=chat"]).fails(2);
    mcctl(&["bench", "multi-turn", &url, "--phases=flush"]).fails(2);
}
