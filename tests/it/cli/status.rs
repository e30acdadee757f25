//! `mcctl status` and lookups of `mcctl store`, against an mcctl master.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::serve::master;
use super::service::{Service, put};
use super::{command, mcctl};
use crate::peer::process::{PATIENCE, wait_until};

#[test]
fn status_is_one_versioned_document_for_scripts() {
    let (_master, _, admin) = master(&[]);
    let run = mcctl(&["status", "--json", "--interval=10ms", &format!("--admin=127.0.0.1:{admin}")]);
    let document: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert_eq!(document["schema"], "mcctl.status/1");
    assert_eq!(
        (&document["role"], &document["state"], &document["ready"]),
        (&"leader".into(), &"serving".into(), &true.into())
    );
    assert_eq!((&document["keys"], &document["capacity_bytes"]), (&0.into(), &0.into()));
    assert!(document["rates"]["puts"].is_number() && document["interval_ms"].as_u64() >= Some(10));
}

#[test]
fn status_shows_the_transport_of_given_nodes() {
    let (_master, rpc, admin) = master(&[]);
    let node = |segment: &str, buffer: &str| {
        let place = [
            format!("--master=127.0.0.1:{rpc}"),
            format!("--segment-size={segment}"),
            format!("--local-buffer-size={buffer}"),
        ];
        let mut words = vec!["serve", "store", "--host=127.0.0.1", "--port=0"];
        words.extend(place.iter().map(String::as_str));
        let mut node = Service::start(command(&words));
        let port = node.port_after("REST API started on port ");
        (node, port)
    };
    let (_storage, there) = node("64mb", "0");
    let (_writer, here) = node("0", "16mb");
    assert_eq!(put(here, "/api/put", r#"{"key":"k","value":"12345678"}"#), 200);
    let admin = format!("--admin=127.0.0.1:{admin}");
    let nodes = [format!("--node=127.0.0.1:{here}"), format!("--node=127.0.0.1:{there}")];
    let words = ["status", "--json", "--interval=0", &admin, &nodes[0], &nodes[1]];
    let document: Value = serde_json::from_str(mcctl(&words).succeeds()).expect("JSON");
    let first = &document["nodes"][0];
    assert_eq!(
        (&first["transport"], &first["devices"], &first["error"]),
        (&"tcp".into(), &Value::Array(vec![]), &Value::Null)
    );
    let peer = &first["peers"][0];
    let over = "shared-memory".into();
    assert_eq!((&peer["transport"], &peer["state"], &peer["written_bytes"]), (&over, &"up".into(), &8.into()));
    assert_eq!(document["nodes"][1]["peers"], Value::Array(vec![]));
    // The master's admin port is not a node. The other node is shown anyway.
    let wrong = admin.replace("--admin", "--node");
    let run = mcctl(&["status", "--interval=0", &admin, &wrong, &nodes[0]]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stdout.contains("not an mcctl node") && run.stdout.contains("tcp, 1 peer\n"), "{run:?}");
}

/// The report with its variable parts replaced.
fn report(admin: u16, text: &str) -> String {
    text.replace(&format!("127.0.0.1:{admin}"), "ADMIN")
}

#[test]
fn status_shows_heartbeats_and_marks_a_node_that_missed_two() {
    let (_master, rpc, admin) = master(&["--client_ttl=600"]);
    let at = format!("--master=127.0.0.1:{rpc}");
    let sizes = ["--segment-size=64mb", "--local-buffer-size=0"];
    let mut node =
        Service::start(command(&[&["serve", "store", "--host=127.0.0.1", "--port=0", &at], &sizes[..]].concat()));
    node.line_with("REST API started on port ");
    let place = format!("--admin=127.0.0.1:{admin}");
    let status = || mcctl(&["status", "--interval=0", &place]).succeeds().to_owned();
    wait_until("the first heartbeat", PATIENCE, || status().contains(" s\n") && !status().contains("caveat"));
    assert!(report(admin, &status()).contains("heartbeat\n"), "{}", status());
    node.signal(Signal::SIGSTOP);
    wait_until("two missed heartbeats", PATIENCE, || status().contains(" s !\n"));
    let text = status();
    let caveat = text.lines().position(|line| line.starts_with("caveat")).expect("a caveat");
    assert!(caveat > text.lines().position(|line| line.starts_with("segments")).expect("segments"), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("status    ready")), "{text}");
    let document = mcctl(&["status", "--interval=0", "--json", &place]);
    let document: Value = serde_json::from_str(document.succeeds()).expect("JSON");
    let ages = document["heartbeats_ms"].as_object().expect("a map");
    assert!(ages.len() == 1 && ages.values().all(|age| age.as_u64().is_some_and(|age| age >= 2000)), "{document}");
    node.signal(Signal::SIGCONT);
}

#[test]
fn with_http_metadata_status_does_not_show_the_port_of_a_node_name() {
    let (mut master, rpc, admin) = master(&["--enable_http_metadata_server"]);
    let metadata = master.port_after("metadata http://127.0.0.1:");
    let flags = [
        format!("--master=127.0.0.1:{rpc}"),
        format!("--metadata-server=http://127.0.0.1:{metadata}/metadata"),
        "--local-hostname=127.0.0.1:7777".to_owned(),
    ];
    let mut words = vec!["serve", "store", "--host=127.0.0.1", "--port=0", "--segment-size=64mb"];
    words.extend(flags.iter().map(String::as_str));
    let mut node = Service::start(command(&words));
    node.line_with("REST API started on port ");
    let run = mcctl(&["status", "--interval=0", &format!("--admin=127.0.0.1:{admin}")]);
    assert_eq!(run.succeeds().matches("127.0.0.1:7777").count(), 1, "{run:?}");
    assert!(run.stdout.contains("(metadata service)"), "{run:?}");
}

#[test]
fn a_watched_status_ends_with_a_signal() {
    let (_master, _, admin) = master(&[]);
    let place = format!("--admin=127.0.0.1:{admin}");
    let mut watch = Service::start(command(&["status", "--watch", "--json", "--interval=100ms", &place]));
    watch.line_with("mcctl.status/1");
    watch.line_with("\"rates\":{");
    assert_eq!(watch.stop(Signal::SIGINT), 0);
    assert!(!watch.all_lines().iter().any(|line| line.contains('\x1b')), "no cursor movements into a pipe");
}

#[test]
fn a_closed_pipe_ends_a_watched_status() {
    let (_master, _, admin) = master(&[]);
    let place = format!("--admin=127.0.0.1:{admin}");
    let mut child = command(&["status", "--watch", "--interval=100ms", &place])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("master    127.0.0.1:"), "{line}");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn an_empty_list_of_keys_is_success() {
    let (_master, rpc, admin) = master(&[]);
    let place = [&*format!("--master=127.0.0.1:{rpc}"), &*format!("--admin=127.0.0.1:{admin}")];
    assert_eq!(mcctl(&[&["store", "ls"], &place[..]].concat()).succeeds(), "");
    let run = mcctl(&[&["store", "ls", "--json"], &place[..]].concat());
    assert_eq!(run.succeeds(), "{\"schema\":\"mcctl.store.ls.count/1\",\"keys\":0,\"complete\":true}\n");
    assert_eq!(mcctl(&[&["store", "rm", "--all", "--yes"], &place[..]].concat()).code, 0);
}

#[test]
fn a_missing_key_is_1_and_is_looked_up_without_a_lease() {
    let (_master, rpc, admin) = master(&[]);
    let place = [&*format!("--master=127.0.0.1:{rpc}"), &*format!("--admin=127.0.0.1:{admin}")];
    let run = mcctl(&[&["store", "exists", "a/b", "c d"], &place[..]].concat());
    assert_eq!((run.code, &*run.stdout, &*run.stderr), (1, "no\ta/b\nno\tc d\n", ""));
    let run = mcctl(&[&["store", "exists", "-q", "a"], &place[..]].concat());
    assert_eq!((run.code, &*run.stdout), (1, ""));
    let run = mcctl(&[&["store", "stat", "a"], &place[..]].concat());
    assert_eq!((run.code, &*run.stdout), (1, ""));
    // Without the admin HTTP, the RPC answers, and a note reports the leases.
    let run = mcctl(&["store", "exists", "a", place[0], "--admin=127.0.0.1:1"]);
    assert!(run.code == 1 && run.stderr.starts_with("note: ") && run.stderr.contains("lease"), "{run:?}");
}

#[test]
fn an_admin_port_of_another_master_is_not_used() {
    let (_master, rpc, admin) = master(&[]);
    let place = format!("--master=127.0.0.1:{rpc}");
    for command in ["exists", "stat"] {
        let run = mcctl(&["store", command, "a", &place]);
        assert!(run.code == 1 && run.stderr.contains("--admin") && run.stderr.contains("lease"), "{run:?}");
    }
    for command in [&["store", "ls"][..], &["status"]] {
        let run = mcctl(&[command, &[&*place]].concat());
        assert!(run.fails(2).contains("next: pass --admin HOST:PORT"), "{run:?}");
    }
    let mut named = super::command(&["store", "exists", "a", &place]);
    named.env("MOONCAKE_MASTER", format!("127.0.0.1:{rpc}")).env("MOONCAKE_MASTER_METRICS_PORT", admin.to_string());
    let run = super::finish(named.output().expect("the program starts"));
    assert_eq!((run.code, &*run.stderr), (1, ""));
    // That port belongs to the environment's master, not to another one.
    let mut other = super::command(&["store", "exists", "a", "--master=127.0.0.1:1"]);
    other.env("MOONCAKE_MASTER", format!("127.0.0.1:{rpc}")).env("MOONCAKE_MASTER_METRICS_PORT", admin.to_string());
    super::finish(other.output().expect("the program starts")).fails(3);
}

#[test]
fn a_status_that_a_signal_ends_before_the_answer_is_1() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = format!("--admin={}", silent.local_addr().expect("bound"));
    let mut asking = Service::start(command(&["status", &place]));
    let _asked = silent.accept().expect("it asks");
    assert_eq!(asking.stop(Signal::SIGTERM), 1);
}

#[test]
fn an_invalid_pattern_is_2() {
    let (_master, rpc, _) = master(&[]);
    let run = mcctl(&["store", "rm", "--regex", "[", &format!("--master=127.0.0.1:{rpc}")]);
    assert!(run.fails(2).starts_with("error: '[' "), "{run:?}");
}

#[test]
fn an_unreachable_master_without_an_admin_address_is_3() {
    for command in [&["status"][..], &["store", "ls"], &["store", "stat", "k"]] {
        let run = mcctl(&[command, &["--master", "127.0.0.1:1"]].concat());
        assert_eq!(run.code, 3, "{run:?}");
    }
}
