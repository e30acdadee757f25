//! `mcctl up`: ready line, round trip, what to paste, nothing left behind.

use std::net::{TcpListener, TcpStream};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::service::{Service, get};
use super::{command, mcctl, with_hangups};

/// No port of this machine is taken for good, and none is needed.
const ANY_PORTS: [&str; 5] =
    ["--rpc-port=0", "--metrics-port=0", "--metadata-port=0", "--rest-port=0", "--segment-size=64mb"];

fn up(more: &[&str]) -> Vec<&'static str> {
    let more = more.iter().map(|arg| &*Box::leak(arg.to_string().into_boxed_str()));
    ["up"].into_iter().chain(ANY_PORTS).chain(more).collect()
}

#[test]
fn a_whole_store_is_checked_with_a_round_trip_and_says_what_to_paste() {
    let run = mcctl(&up(&["--once"]));
    let text = run.succeeds();
    for part in [
        "master    RPC 127.0.0.1:",
        "check     1 MiB put, read back over TCP, compared and removed in ",
        "export MOONCAKE_MASTER=127.0.0.1:",
        "export MOONCAKE_TE_META_DATA_SERVER=http://127.0.0.1:",
        "export MOONCAKE_PROTOCOL=tcp\n",
        "export MOONCAKE_GLOBAL_SEGMENT_SIZE=0\n",
        "  --enable-hierarchical-cache \\\n",
        "  --hicache-storage-backend mooncake \\\n",
        " store ls --long --master 127.0.0.1:",
        "\nready",
    ] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    assert_eq!(run.stderr, "", "nothing to complain about");
}

#[test]
fn it_is_one_document_for_scripts_and_the_store_is_used_as_it_says() {
    for how in ["http", "P2PHANDSHAKE"] {
        let mut service = Service::start(command(&up(&["--json", "--metadata", how])));
        let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
        assert_eq!((&document["schema"], &document["ready"]), (&"mcctl.up/1".into(), &true.into()));
        assert_eq!(document["check"]["bytes"], 1 << 20);
        let environment = document["environment"].as_object().expect("a map");
        assert_eq!(environment["MOONCAKE_MASTER"], document["master"]);
        let run = |args: &[&str]| {
            let mut command = command(args);
            command.envs(environment.iter().map(|(name, value)| (name, value.as_str().expect("text"))));
            super::finish(command.output().expect("the program starts"))
        };
        assert_eq!(run(&["store", "put", "greeting", "--value", "hello"]).code, 0, "{how}");
        assert_eq!(run(&["store", "get", "greeting"]).succeeds(), "hello");
        assert_eq!(run(&["store", "exists", "greeting"]).succeeds(), "yes\tgreeting\n");
        let rest: u16 = document["rest"].as_str().and_then(|url| url.rsplit(':').next()?.parse().ok()).expect("a port");
        assert_eq!(get(rest, "/api/get/greeting"), (200, "hello".to_owned()));
        assert_eq!(service.stop(Signal::SIGTERM), 0);
    }
}

#[test]
fn a_client_without_a_metadata_mode_finds_the_one_of_the_nodes() {
    for (how, other) in [("http", "P2PHANDSHAKE"), ("P2PHANDSHAKE", "http://127.0.0.1:1/metadata")] {
        let mut service = Service::start(command(&up(&["--json", "--metadata", how])));
        let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
        let text = |name: &str| document[name].as_str().expect("text");
        let (master, admin) = (text("master"), text("admin"));
        let link = [format!("--master={master}"), format!("--admin={admin}")];
        let run = |args: &[&str]| mcctl(&[args, &[&*link[0], &*link[1]]].concat());
        let put = run(&["store", "put", "k", "--value=hello"]);
        assert_eq!(put.code, 0, "{how}: {put:?}");
        let note = put.stderr.lines().next().expect("a note");
        assert!(note.starts_with(&format!("metadata: {} (", text("metadata"))), "{note}");
        assert_eq!(run(&["store", "get", "k"]).succeeds(), "hello");
        let bench = run(&["bench", "store", "--objects=4", "--object-size=1kb", "--json"]);
        assert_eq!(bench.code, 0, "{how}: {bench:?}");
        // The route by which it is found.
        let port = admin.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let announced: Value = serde_json::from_str(&get(port, "/api/v1/mcctl/discovery").1).expect("JSON");
        assert_eq!(announced["schema"], "mcctl.discovery/1");
        assert_eq!(announced["rpc_port"].as_u64().map(|port| port.to_string()).as_deref(), master.rsplit(':').next());
        let expected = if how == "http" { text("metadata").into() } else { Value::Null };
        assert_eq!(announced["metadata"]["url"], expected, "{announced}");
        // Another mode than that of the nodes is the first thing that is reported.
        for args in [&["store", "put", "other", "--value=x"][..], &["bench", "store", "--duration=60s"]] {
            let run = run(&[args, &["--metadata-server", other, "--timeout=5s"]].concat());
            let first = run.fails(3).split("; ").next().expect("a line");
            assert!(first.contains(text("metadata")) && first.contains(other), "{first}");
        }
        assert_eq!(service.stop(Signal::SIGTERM), 0);
    }
}

#[test]
fn a_segment_of_no_bytes_is_refused_by_its_flag() {
    let run = mcctl(&["up", "--once", "--segment-size=0"]);
    assert!(run.fails(2).contains("--segment-size"), "{run:?}");
}

#[test]
fn a_size_that_can_mean_two_things_is_echoed_with_its_meaning() {
    for (given, shown) in [("64MB", "64MB (read as 64 MiB)"), ("64MiB", "contributes 64 MiB,")] {
        let ports = ["--rpc-port=0", "--metrics-port=0", "--metadata-port=0", "--rest-port=0"];
        let run = mcctl(&[&["up", "--once", "--segment-size", given], &ports[..]].concat());
        assert!(run.succeeds().contains(shown), "{run:?}");
    }
}

#[test]
fn with_a_simulator_the_load_that_it_says_to_paste_is_answered_from_all_three_tiers() {
    let more = ["--json", "--with-sim", "--sim-port=0"];
    // What is put on it comes to some 110 MB.
    let words = up(&more)
        .into_iter()
        .map(|word| if word.starts_with("--segment-size") { "--segment-size=256mb" } else { word });
    let mut service = Service::start(command(&words.collect::<Vec<_>>()));
    let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
    let sim = &document["sim"];
    assert_eq!(sim["simulator"], true);
    let bench = sim["bench"].as_str().expect("a command line");
    // The same conversations, sooner.
    let words: Vec<&str> = bench.split(' ').skip(1).chain(["--json", "--seed=3"]).collect();
    let words: Vec<&str> = words.iter().map(|word| if *word == "6" { "20" } else { *word }).collect();
    let run = mcctl(&words);
    let told: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    let pass = &told["passes"][0];
    assert_eq!((&pass["sent"], &pass["completed"]), (&96.into(), &96.into()), "{told}");
    for tier in ["device", "host", "storage"] {
        assert!(pass["tokens"][tier].as_u64().is_some_and(|tokens| tokens > 0), "{tier}: {}", pass["tokens"]);
    }
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn ctrl_c_ends_it_and_every_port_is_free_again() {
    let mut service = Service::start(command(&up(&["--json"])));
    let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
    assert_eq!(service.stop(Signal::SIGINT), 0);
    for part in ["master", "admin", "metadata", "rest"] {
        let place = document[part].as_str().expect("text").trim_start_matches("http://");
        let place = place.split('/').next().expect("an address");
        assert!(TcpStream::connect(place).is_err(), "{part} at {place} still listens");
    }
}

#[test]
fn a_usual_port_that_is_taken_is_replaced_and_said_so() {
    // Whether or not somebody else has it: now it is taken.
    let _taken = TcpListener::bind("127.0.0.1:50051");
    let args = ["up", "--once", "--metrics-port=0", "--metadata-port=0", "--rest-port=0", "--segment-size=64mb"];
    let run = mcctl(&args);
    assert!(!run.succeeds().contains("RPC 127.0.0.1:50051,"), "{run:?}");
    assert!(run.stderr.starts_with("note: port 50051 is taken by "), "{run:?}");
}

#[test]
fn a_port_that_was_asked_for_and_is_taken_is_4() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let run = mcctl(&[
        "up",
        "--once",
        "--metrics-port=0",
        "--metadata-port=0",
        "--rest-port=0",
        &format!("--rpc-port={port}"),
    ]);
    let expected = format!("error: port {port} for the master's RPC is in use by pid {} (", std::process::id());
    assert!(run.fails(4).starts_with(&expected), "{run:?}");
}

#[test]
fn one_port_for_two_services_is_2_and_names_both_flags() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    for (one, other, what) in [
        ("--rpc-port", "--metrics-port", "the master's RPC and the admin HTTP"),
        ("--metrics-port", "--metadata-port", "the admin HTTP and the metadata service"),
        ("--rpc-port", "--rest-port", "the master's RPC and the REST port"),
    ] {
        let run = mcctl(&["up", "--once", &format!("{one}={port}"), &format!("{other}={port}")]);
        assert_eq!(
            run.fails(2),
            format!(
                "error: {what} are given one port, {port}; found: {one} {port} (command line) and {other} {port} (command line); \
                 next: give each its own port"
            )
        );
    }
}

#[test]
fn a_segment_larger_than_the_memory_is_4_and_one_that_is_no_size_is_2() {
    let run = mcctl(&[
        "up",
        "--once",
        "--rpc-port=0",
        "--metrics-port=0",
        "--metadata-port=0",
        "--rest-port=0",
        "--segment-size=900tb",
    ]);
    assert!(
        run.fails(4).starts_with("error: there is no room for a segment of 900 TiB in this host's memory of "),
        "{run:?}"
    );
    mcctl(&["up", "--segment-size=lots"]).fails(2);
    let run = mcctl(&[
        "up",
        "--once",
        "--rpc-port=0",
        "--metrics-port=0",
        "--metadata-port=0",
        "--rest-port=0",
        "--segment-size=1mb",
    ]);
    assert!(run.fails(2).contains("too small"), "{run:?}");
}

#[test]
fn sighup_ends_it_as_sigterm_does() {
    let mut service = Service::start(with_hangups(&command(&up(&[]))));
    service.line_with("ready");
    assert_eq!(service.stop(Signal::SIGHUP), 0);
    assert!(service.all_lines().iter().any(|line| line.contains("SIGHUP")));
}
