//! `mcctl bench store`, on a store of `mcctl up`.

use nix::sys::signal::Signal;
use serde_json::Value;

use super::service::Service;
use super::{Run, command, mcctl};

/// A store, and the flags that name it.
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
fn every_object_is_put_read_compared_counted_and_removed_again() {
    let (mut service, link) = store("--segment-size=128mb");
    let run = bench(
        &link,
        &["--object-size=1,4kb,100kb", "--objects=90", "--batch=8", "--clients=3", "--verify", "--zipf=0.99", "--json"],
    );
    let told: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert_eq!(told["schema"], "mcctl.bench.store/1");
    let (put, get) = (&told["passes"][0]["put"], &told["passes"][1]["get"]);
    assert_eq!(
        (&put["objects"], &put["bytes"], &put["batches"]),
        (&90.into(), &(30 * (1 + 4096 + 102_400)).into(), &12.into())
    );
    assert_eq!((&get["objects"], &get["verified"], &get["missing"]), (&90.into(), &90.into(), &0.into()));
    assert_eq!((&told["removed"], &put["failed"], &get["failed"]), (&90.into(), &0.into(), &0.into()));
    assert!(put["latency"]["p50_ms"].as_f64().is_some_and(|ms| ms > 0.0) && put["latency"]["p99_ms"].is_null());
    assert!(told["passes"][0]["cpu_us_per_object"].as_f64().is_some_and(|us| us > 0.0));
    assert_eq!(keys(&link), "");
    let run = bench(&link, &["--object-size=10kb", "--objects=20", "--keep"]);
    let text = run.succeeds();
    for part in [
        "20 objects of 10 KiB, 16 a batch, 1 client (seed 1)",
        "too few",
        "its objects are left: mcctl-bench-",
        "doubt: ",
    ] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    assert_eq!(keys(&link).lines().count(), 20);
    let run = bench(&link, &["--object-size=10kb", "--objects=32", "--read-ratio=0.5", "--duration=300ms", "--json"]);
    let told: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    let mixed = &told["passes"][1];
    assert_eq!(mixed["name"], "mixed");
    for what in ["put", "get"] {
        assert!(mixed[what]["objects"].as_u64().is_some_and(|objects| objects > 0), "{what}: {mixed}");
    }
    assert_eq!(keys(&link).lines().count(), 20, "those of the run before, and no others");
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn a_full_store_is_in_the_errors_table_and_a_signal_gives_the_report_of_what_ran() {
    let (mut service, link) = store("--segment-size=16mb");
    let link_words: Vec<&str> = link.iter().map(String::as_str).collect();
    let words = [&["bench", "store", "--object-size=1kb", "--objects=16", "--duration=60s", "--json"], &link_words[..]];
    let mut running = Service::start(command(&words.concat()));
    assert!((0..500).any(|_| keys(&link).contains("mcctl-bench-")), "nothing is put");
    running.signal(Signal::SIGINT);
    let told: Value = serde_json::from_str(&running.line_with("mcctl.bench.store/1")).expect("JSON");
    assert_eq!((&told["stopped"], &told["removed"]), (&true.into(), &16.into()), "{told}");
    assert_eq!(running.end(), 0);
    assert_eq!(keys(&link), "");
    let run = bench(&link, &["--object-size=32mb", "--objects=2", "--batch=1", "--json"]);
    assert_eq!(run.code, 1, "{run:?}");
    let told: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(told["passes"][0]["put"]["failures"]["NO_AVAILABLE_HANDLE"]["count"], 2, "{told}");
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for bad in ["--zipf=0", "--read-ratio=2", "--object-size=0", "--object-size=1tb", "--batch=0", "--clients=0"] {
        mcctl(&["bench", "store", bad]).fails(2);
    }
    assert!(
        mcctl(&["bench", "store", "--object-size=3gb", "--batch=1", "--clients=1024"]).fails(4).contains("of memory")
    );
    mcctl(&["bench", "store", "--master=127.0.0.1:1"]).fails(3);
}
