//! `mcctl up`: ready line, round trip, client settings, and ports that are free after the end.

use std::net::{TcpListener, TcpStream};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::service::{Service, get};
use super::{command, mcctl, with_hangups};
use crate::peer::process::free_port;

/// Flags for free ports and a small segment.
const ANY_PORTS: [&str; 5] =
    ["--rpc-port=0", "--metrics-port=0", "--metadata-port=0", "--rest-port=0", "--segment-size=64mb"];

fn up(more: &[&str]) -> Vec<&'static str> {
    let more = more.iter().map(|arg| &*Box::leak(arg.to_string().into_boxed_str()));
    ["up"].into_iter().chain(ANY_PORTS).chain(more).collect()
}

#[test]
fn up_checks_the_store_and_prints_client_settings() {
    let run = mcctl(&up(&["--once"]));
    let text = run.succeeds();
    for part in [
        "master    RPC 127.0.0.1:",
        "check     put 1 MiB, read back over TCP",
        "export MOONCAKE_MASTER=127.0.0.1:",
        "export MOONCAKE_TE_META_DATA_SERVER=http://127.0.0.1:",
        "export MOONCAKE_PROTOCOL=tcp\n",
        "export MOONCAKE_GLOBAL_SEGMENT_SIZE=0\n",
        "  --enable-hierarchical-cache --hicache-ratio 2",
        " --hicache-storage-backend mooncake",
        " store get greeting --master 127.0.0.1:",
        "\nready",
    ] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    let with_sim = mcctl(&up(&["--once", "--with-sim", "--sim-port=0"]));
    for text in [text, with_sim.succeeds()] {
        assert!(text.lines().count() <= 25, "{text}");
    }
    assert_eq!(run.stderr, "", "no notes");
}

#[test]
fn a_client_with_the_environment_of_the_document_uses_the_store() {
    for how in ["http", "P2PHANDSHAKE"] {
        let mut service = Service::start(command(&up(&["--json", "--metadata", how])));
        let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
        assert_eq!((&document["schema"], &document["ready"]), (&"mcctl.up/1".into(), &true.into()));
        assert_eq!(document["check"]["bytes"], 1 << 20);
        let environment = document["environment"].as_object().expect("a map");
        assert_eq!(environment["MOONCAKE_MASTER"], document["master"]);
        let extra: Value = document["mcctl_client"]["dynamic_flags"][3].as_str().expect("text").parse().expect("JSON");
        assert_eq!(extra["module_path"], "mcctl_mooncake.sglang");
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
fn a_client_discovers_the_metadata_mode_of_the_nodes() {
    for (how, other) in [("http", "P2PHANDSHAKE"), ("P2PHANDSHAKE", "http://127.0.0.1:1/metadata")] {
        let mut service = Service::start(command(&up(&["--json", "--metadata", how])));
        let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
        let text = |name: &str| document[name].as_str().expect("text");
        let master = text("master");
        let admin = text("admin");
        let link = [format!("--master={master}"), format!("--admin={admin}")];
        let run = |args: &[&str]| mcctl(&[args, &[&*link[0], &*link[1]]].concat());
        let put = run(&["store", "put", "k", "--value=hello"]);
        assert_eq!((put.code, &*put.stderr), (0, "stored 5 B as 'k', 1 copy\n"), "{how}");
        let put = run(&["store", "put", "k", "--value=hello", "--upsert", "--log-level=info"]);
        assert!(put.stderr.contains(&format!(" metadata: {} (", text("metadata"))), "{put:?}");
        assert_eq!(run(&["store", "get", "k"]).succeeds(), "hello");
        let bench = run(&["bench", "store", "--objects=4", "--object-size=1kb", "--json"]);
        assert_eq!(bench.code, 0, "{how}: {bench:?}");
        // The route that clients use for discovery.
        let port = admin.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let announced: Value = serde_json::from_str(&get(port, "/api/v1/mcctl/discovery").1).expect("JSON");
        assert_eq!(announced["schema"], "mcctl.discovery/1");
        assert_eq!(announced["rpc_port"].as_u64().map(|port| port.to_string()).as_deref(), master.rsplit(':').next());
        let expected = if how == "http" { text("metadata").into() } else { Value::Null };
        assert_eq!(announced["metadata"]["url"], expected, "{announced}");
        // A mode that differs from the nodes' is in the first line of the error.
        for args in [&["store", "put", "other", "--value=x"][..], &["bench", "store", "--duration=60s"]] {
            let run = run(&[args, &["--metadata-server", other, "--timeout=5s"]].concat());
            let first = run.fails(3).split("; ").next().expect("a line");
            assert!(first.contains(text("metadata")) && first.contains(other), "{first}");
        }
        assert_eq!(service.stop(Signal::SIGTERM), 0);
    }
}

#[test]
fn an_ambiguous_size_is_echoed_with_its_meaning() {
    for (given, shown) in [("64MB", "64MB (interpreted as 64 MiB)"), ("64MiB", "contributes 64 MiB,")] {
        let ports = ["--rpc-port=0", "--metrics-port=0", "--metadata-port=0", "--rest-port=0"];
        let run = mcctl(&[&["up", "--once", "--segment-size", given], &ports[..]].concat());
        assert!(run.succeeds().contains(shown), "{run:?}");
    }
}

#[test]
fn the_printed_load_on_a_simulator_uses_all_three_tiers() {
    let more = ["--json", "--with-sim", "--sim-port=0"];
    // The load stores about 210 MB.
    let words = up(&more)
        .into_iter()
        .map(|word| if word.starts_with("--segment-size") { "--segment-size=512mb" } else { word });
    let mut service = Service::start(command(&words.collect::<Vec<_>>()));
    let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
    let sim = &document["sim"];
    assert_eq!(sim["simulator"], true);
    let bench = sim["bench"].as_str().expect("a command line");
    // The same conversations at a higher rate.
    let words: Vec<&str> = bench.split(' ').skip(1).chain(["--json", "--seed=3"]).collect();
    let words: Vec<&str> = words.iter().map(|word| if *word == "6" { "40" } else { *word }).collect();
    let run = mcctl(&words);
    let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    let pass = &report["passes"][0];
    assert_eq!((&pass["sent"], &pass["completed"]), (&288.into(), &288.into()), "{report}");
    for tier in ["device", "host", "storage"] {
        assert!(pass["tokens"][tier].as_u64().is_some_and(|tokens| tokens > 0), "{tier}: {}", pass["tokens"]);
    }
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn after_sigint_all_ports_are_free() {
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
fn a_default_port_in_use_is_replaced_with_a_note() {
    // If the bind fails, another process has the port.
    let _taken = TcpListener::bind("127.0.0.1:50051");
    let args = ["up", "--once", "--metrics-port=0", "--metadata-port=0", "--rest-port=0", "--segment-size=64mb"];
    let run = mcctl(&args);
    let text = run.succeeds();
    assert!(!text.contains("RPC 127.0.0.1:50051,"), "{run:?}");
    assert!(run.stderr.starts_with("note: port 50051 "), "{run:?}");
    let port = text.split("RPC 127.0.0.1:").nth(1).and_then(|rest| rest.split(',').next()?.parse::<u16>().ok());
    assert!(port.is_some_and(|port| port < 32_768), "below the default ephemeral range: {text}");
}

#[test]
fn a_requested_port_in_use_is_4() {
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
    let error = run.fails(4);
    assert!(
        error.contains(&format!("port {port} ")) && error.contains(&format!("pid {} (", std::process::id())),
        "{error}"
    );
}

#[test]
fn one_port_for_two_services_is_2_and_names_both_flags() {
    let port = free_port();
    for (one, other, what) in [
        ("--rpc-port", "--metrics-port", "the master's RPC and the admin HTTP endpoint"),
        ("--metrics-port", "--metadata-port", "the admin HTTP endpoint and the metadata service"),
        ("--rpc-port", "--rest-port", "the master's RPC and the REST port"),
    ] {
        let run = mcctl(&["up", "--once", &format!("{one}={port}"), &format!("{other}={port}")]);
        let error = run.fails(2);
        assert!(error.starts_with(&format!("error: {what} ")), "{error}");
        assert!(error.contains(&format!("{one} {port} ")) && error.contains(&format!("{other} {port} ")), "{error}");
    }
}

#[test]
fn a_segment_above_the_memory_is_4_and_one_below_the_minimum_is_2() {
    let run = mcctl(&[
        "up",
        "--once",
        "--rpc-port=0",
        "--metrics-port=0",
        "--metadata-port=0",
        "--rest-port=0",
        "--segment-size=900tb",
    ]);
    assert!(run.fails(4).contains("a segment of 900 TiB"), "{run:?}");
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
fn sighup_ends_up_like_sigterm() {
    let mut service = Service::start(with_hangups(&command(&up(&[]))));
    service.line_with("ready");
    assert_eq!(service.stop(Signal::SIGHUP), 0);
    assert!(service.all_lines().iter().any(|line| line.contains("SIGHUP")));
}

#[test]
fn an_unspecified_host_is_2_because_clients_cannot_connect_to_it() {
    for host in ["0.0.0.0", "::"] {
        assert!(mcctl(&["up", "--once", "--host", host]).fails(2).contains(host));
    }
}
