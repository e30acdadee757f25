//! `mcctl bench store` with a store of `mcctl up`.

use nix::sys::signal::Signal;
use serde_json::Value;

use super::serve::master;
use super::service::Service;
use super::{Run, command, mcctl};
use crate::peer::process::{PATIENCE, wait_until};

/// Starts a store; returns it with the flags of its address.
fn store(segment: &str) -> (Service, Vec<String>) {
    let ports = ["--rpc-port=0", "--metrics-port=0", "--metadata-port=0", "--rest-port=0"];
    let mut service =
        Service::start(command(&[&["up", "--json", "--metadata=P2PHANDSHAKE", segment], &ports[..]].concat()));
    let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
    let text = |name: &str| document[name].as_str().expect("text").to_owned();
    let admin = text("admin").trim_start_matches("http://").to_owned();
    (service, vec![format!("--master={}", text("master")), format!("--admin={admin}")])
}

fn bench(link: &[String], more: &[&str]) -> Run {
    let link: Vec<&str> = link.iter().map(String::as_str).collect();
    mcctl(&[&["bench", "store"], more, &link].concat())
}

fn keys(link: &[String]) -> String {
    let link: Vec<&str> = link.iter().map(String::as_str).collect();
    mcctl(&[&["store", "ls"], &link[..]].concat()).succeeds().to_owned()
}

#[test]
fn every_object_is_put_read_compared_and_removed() {
    let (mut service, link) = store("--segment-size=128mb");
    let run = bench(
        &link,
        &["--object-size=1,4kb,100kb", "--objects=90", "--batch=8", "--clients=3", "--verify", "--zipf=0.99", "--json"],
    );
    let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert_eq!(report["schema"], "mcctl.bench.store/2");
    let put = &report["passes"][0]["put"];
    let get = &report["passes"][1]["get"];
    assert_eq!(
        (&put["objects"], &put["bytes"], &put["batches"]),
        (&90.into(), &(30 * (1 + 4096 + 102_400)).into(), &12.into())
    );
    assert_eq!((&get["objects"], &get["verified"], &get["missing"]), (&90.into(), &90.into(), &0.into()));
    assert_eq!((&report["removed"], &put["failed"], &get["failed"]), (&90.into(), &0.into(), &0.into()));
    assert!(put["latency"]["p50_ms"].as_f64().is_some_and(|ms| ms > 0.0) && put["latency"]["p99_ms"].is_null());
    assert!(report["passes"][0]["cpu_us_per_object"].as_f64().is_some_and(|us| us > 0.0));
    assert_eq!(keys(&link), "");
    let run = bench(&link, &["--object-size=10kb", "--objects=20", "--keep"]);
    let text = run.succeeds();
    for part in ["20 objects of 10 KiB, 16 per batch", "too few", "kept under the prefix mcctl-bench-", "caveat: "] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    assert_eq!(keys(&link).lines().count(), 20);
    let run = bench(&link, &["--object-size=10kb", "--objects=32", "--read-ratio=0.5", "--duration=300ms", "--json"]);
    let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    let mixed = &report["passes"][1];
    assert_eq!(mixed["name"], "mixed");
    for what in ["put", "get"] {
        assert!(mixed[what]["objects"].as_u64().is_some_and(|objects| objects > 0), "{what}: {mixed}");
    }
    assert_eq!(keys(&link).lines().count(), 20, "only the objects of the previous run");
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn a_run_with_the_default_rounds_has_a_p99_and_is_warmed_up() {
    let (mut service, link) = store("--segment-size=64mb");
    let run = bench(&link, &["--object-size=4kb", "--json"]);
    let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert_eq!((&report["rounds"], &report["warm_up"]["done"]["objects"]), (&7.into(), &256.into()), "{report}");
    for (pass, what) in [(0, "put"), (1, "get")] {
        let figures = &report["passes"][pass][what];
        assert_eq!((&figures["batches"], &figures["failed"]), (&112.into(), &0.into()), "{report}");
        assert!(figures["latency"]["p99_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    }
    assert_eq!((&report["removed"], &report["doubts"]), (&256.into(), &serde_json::json!([])), "{report}");
    let run = bench(&link, &["--object-size=4kb", "--rounds=3", "--objects=32", "--no-warm-up", "--json"]);
    let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert_eq!((&report["warm_up"], &report["passes"][0]["put"]["objects"]), (&"off".into(), &96.into()), "{report}");
    assert!(report["doubts"].to_string().contains("--no-warm-up"), "{report}");
    // The second pass may add objects beyond those of the warm-up.
    let run = bench(&link, &["--object-size=4kb", "--read-ratio=0.5", "--objects=64", "--json"]);
    let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert!(report["doubts"].to_string().contains("in addition to those of the warm-up"), "{report}");
    assert_eq!(keys(&link), "");
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

/// The transports of an operation: name and number of nodes.
fn transports(of: &Value) -> Vec<(String, u64)> {
    let used = of["transport"]["used"].as_array().expect("a list");
    let mut used: Vec<(String, u64)> = used
        .iter()
        .map(|one| (one["transport"].as_str().expect("a name").to_owned(), one["nodes"].as_u64().expect("a number")))
        .collect();
    used.sort();
    used
}

#[test]
fn each_operation_names_the_transport_that_moved_the_bytes() {
    let (_master, rpc, admin) = master(&[]);
    let link = vec![format!("--master=127.0.0.1:{rpc}"), format!("--admin=127.0.0.1:{admin}")];
    let node = |more: &[&str]| {
        let mut args = vec!["serve", "store", &*link[0], "--host=127.0.0.1", "--port=0", "--local-hostname=127.0.0.1"];
        args.extend(["--segment-size=32mb", "--local-buffer-size=0"]);
        args.extend(more);
        let mut node = Service::start(command(&args));
        node.line_with("REST API started on port ");
        node
    };
    let small = ["--object-size=64kb", "--objects=64", "--batch=4", "--json"];
    let run = |more: &[&str]| -> Value {
        serde_json::from_str(bench(&link, &[&small[..], more].concat()).succeeds()).expect("JSON")
    };
    let mut shared = node(&[]);
    let (memory, tcp) = (|nodes| ("shared-memory".to_owned(), nodes), |nodes| ("tcp".to_owned(), nodes));
    let report = run(&[]);
    for of in [&report, &report["passes"][0]["put"], &report["passes"][1]["get"]] {
        assert_eq!((transports(of), &of["transport"]["nodes"]), (vec![memory(1)], &1.into()), "{report}");
    }
    let bytes = &report["passes"][0]["put"]["transport"]["used"][0]["bytes"];
    assert_eq!(*bytes, 64 * 65_536, "{report}");
    assert_eq!(transports(&run(&["--no-shared-memory"])), [tcp(1)]);
    // A second node that does not share its memory.
    let mut alone = node(&["--no-shared-memory"]);
    let report = run(&[]);
    assert_eq!((transports(&report), &report["transport"]["nodes"]), (vec![memory(1), tcp(1)], &2.into()), "{report}");
    let text = bench(&link, &["--object-size=64kb", "--objects=64", "--batch=4"]);
    let text = text.succeeds().to_owned();
    for part in ["shared memory (1 of 2 nodes)", "TCP (1 of 2 nodes)"] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    shared.stop(Signal::SIGTERM);
    alone.stop(Signal::SIGTERM);
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

#[test]
fn ranks_run_in_processes_with_their_own_objects() {
    let (mut service, link) = store("--segment-size=64mb");
    let run = bench(&link, &["--ranks=3", "--object-size=4kb", "--objects=40", "--batch=8", "--verify", "--json"]);
    let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    let put = &report["passes"][0]["put"];
    let get = &report["passes"][1]["get"];
    assert_eq!((&put["objects"], &put["batches"], &put["already_there"]), (&120.into(), &15.into(), &0.into()));
    assert_eq!((&get["verified"], &report["removed"], &report["ranks"]), (&120.into(), &120.into(), &3.into()));
    assert_eq!(transports(&report), [("shared-memory".to_owned(), 1)]);
    let per_rank = report["per_rank"].as_array().expect("a list");
    assert!(per_rank.len() == 3 && per_rank.iter().all(|rank| rank[1]["get"]["objects"] == 40), "{report}");
    assert_eq!(keys(&link), "");
    let text = bench(&link, &["--ranks=2", "--object-size=4kb", "--objects=40", "--clients=2"]).succeeds().to_owned();
    for part in ["2 ranks with 2 clients each", "By rank"] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn ranks_end_with_the_command_and_a_lost_rank_is_named() {
    let (mut service, link) = store("--segment-size=64mb");
    let link_words: Vec<&str> = link.iter().map(String::as_str).collect();
    let words = [
        &[
            "bench",
            "store",
            "--ranks=3",
            "--object-size=1kb",
            "--objects=16",
            "--duration=60s",
            "--no-warm-up",
            "--json",
        ],
        &link_words[..],
    ];
    let mut running = Service::start(command(&words.concat()));
    wait_until("objects of all ranks", PATIENCE, || keys(&link).lines().count() == 48);
    let ranks = children(running.pid());
    assert_eq!(ranks.len(), 3);
    running.signal(Signal::SIGINT);
    let report: Value = serde_json::from_str(&running.line_with("mcctl.bench.store/2")).expect("JSON");
    assert_eq!(report["stopped"], true, "{report}");
    assert_eq!(running.end(), 1, "a signal is exit code 1");
    assert!(ranks.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()), "{ranks:?}");
    assert_eq!(keys(&link), "");
    let mut running = Service::start(command(&words.concat()));
    wait_until("objects of all ranks", PATIENCE, || keys(&link).lines().count() == 48);
    let ranks = children(running.pid());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(ranks[1]), Signal::SIGKILL).expect("it runs");
    running.line_with("rank 1: the process has ended");
    assert_eq!(running.end(), 4);
    let left = keys(&link);
    assert!(
        left.lines().count() == 16 && left.lines().all(|key| key.contains("-001-")),
        "only those of rank 1: {left}"
    );
    wait_until("the end of the other ranks", PATIENCE, || {
        ranks.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
    });
    // Without the command, the ranks remove their objects and end.
    let remove = [&["store", "rm", "--force", "--all", "--yes"][..], &link_words[..]].concat();
    mcctl(&remove).succeeds();
    let mut running = Service::start(command(&words.concat()));
    wait_until("objects of all ranks", PATIENCE, || keys(&link).lines().count() == 48);
    running.stop(Signal::SIGKILL);
    wait_until("the removal of all objects", PATIENCE, || keys(&link).is_empty());
    let run = mcctl(&["bench", "store", "--ranks=2", "--master=127.0.0.1:1", "--timeout=5s"]);
    assert!(run.fails(3).contains("127.0.0.1:1"), "{run:?}");
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn a_full_store_and_a_signal_still_give_a_report() {
    let (mut service, link) = store("--segment-size=16mb");
    let link_words: Vec<&str> = link.iter().map(String::as_str).collect();
    let words = [
        &["bench", "store", "--object-size=1kb", "--objects=16", "--duration=60s", "--no-warm-up", "--json"],
        &link_words[..],
    ];
    let mut running = Service::start(command(&words.concat()));
    wait_until("an object", PATIENCE, || keys(&link).contains("mcctl-bench-"));
    running.signal(Signal::SIGINT);
    let report: Value = serde_json::from_str(&running.line_with("mcctl.bench.store/2")).expect("JSON");
    assert_eq!((&report["stopped"], &report["removed"]), (&true.into(), &16.into()), "{report}");
    assert_eq!(running.end(), 1, "a signal is exit code 1");
    assert_eq!(keys(&link), "");
    let run = bench(&link, &["--object-size=32mb", "--objects=2", "--batch=1", "--json"]);
    assert_eq!(run.code, 1, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(report["passes"][0]["put"]["failures"]["NO_AVAILABLE_HANDLE"]["count"], 2, "{report}");
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn fewer_copies_than_requested_are_a_caveat() {
    let (mut service, link) = store("--segment-size=16mb");
    let run = bench(&link, &["--object-size=1kb", "--objects=32", "--batch=1", "--replicas=2", "--json"]);
    let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert_eq!(report["passes"][0]["put"]["fewer_copies"], 32, "one node holds one copy: {report}");
    let caveats = report["doubts"].as_array().expect("a list");
    assert!(
        caveats.iter().any(|caveat| caveat.as_str().is_some_and(|caveat| caveat.contains("fewer than 2 replicas"))),
        "{report}"
    );
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn missing_objects_are_failures_without_overfill() {
    let (mut service, link) = store("--segment-size=16mb");
    let over = ["--object-size=1mb", "--objects=64", "--batch=1", "--json"];
    // No leases: the puts evict objects that were not read yet.
    for (more, code) in [(&[][..], 1), (&["--overfill"][..], 0)] {
        let run = bench(&link, &[&over[..], more].concat());
        let warning = run.stderr.lines().find(|line| line.starts_with("warning: "));
        let has_sizes = warning.is_some_and(|text| text.contains("64 MiB") && text.contains("16 MiB"));
        assert_eq!(has_sizes, more.is_empty(), "{run:?}");
        let report: Value = serde_json::from_str(&run.stdout).expect("JSON");
        let put = &report["passes"][0]["put"];
        let get = &report["passes"][1]["get"];
        assert!(get["missing"].as_u64().is_some_and(|missing| missing > 0), "{report}");
        assert_eq!(report["overfill"], code == 0);
        // A put without room is a failure in any case.
        let code = if put["failed"] == 0 && get["failed"] == 0 { code } else { 1 };
        assert_eq!(run.code, code, "{report}");
    }
    let run = bench(&link, &over[..3]);
    assert!(run.stdout.contains("objects not found") && run.stdout.contains("--overfill"), "{run:?}");
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn invalid_plans_and_an_unreachable_master_are_errors() {
    for bad in [
        "--zipf=0",
        "--zipf=NaN",
        "--zipf=1e300",
        "--read-ratio=2",
        "--read-ratio=-1e300",
        "--object-size=0",
        "--object-size=1tb",
        "--batch=0",
        "--clients=0",
        "--replicas=0",
    ] {
        let run = mcctl(&["bench", "store", bad]);
        assert!(run.fails(2).len() < 300, "{run:?}");
    }
    let large = mcctl(&["bench", "store", "--object-size=1tb"]);
    assert!(large.fails(2).contains("16 TiB; the limit is 4 GiB"), "{large:?}");
    mcctl(&["bench", "store", "--object-size=3gb", "--batch=1", "--clients=1024"]).fails(4);
    let run = mcctl(&["bench", "store", "--master=127.0.0.1:1", "--timeout=5s"]);
    let text = run.fails(3);
    for part in ["127.0.0.1:1", "after ", "limits: 3 s to connect, 5 s per call"] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    assert!(!text.contains("within 0 ms") && !text.contains("--max-wait-time"), "{text}");
}

#[test]
fn an_unreachable_only_node_gives_3() {
    let (_master, rpc, _) = master(&[]);
    let at = format!("--master=127.0.0.1:{rpc}");
    let mut args = vec!["serve", "store", &at, "--host=127.0.0.1", "--port=0", "--local-hostname=127.0.0.1"];
    args.extend(["--segment-size=16mb", "--local-buffer-size=0"]);
    let mut node = Service::start(command(&args));
    node.line_with("REST API started on port ");
    // The segment stays mounted until the master misses the pings.
    node.stop(Signal::SIGKILL);
    let run = mcctl(&["bench", "store", &at, "--object-size=1kb", "--objects=16"]);
    assert_eq!(run.code, 3, "{run:?}");
}
