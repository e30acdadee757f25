//! `mcctl status` and the questions of `mcctl store`, against a master of our own.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::serve::master;
use super::service::{Service, put};
use super::{command, mcctl};

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
fn nodes_that_are_asked_tell_what_they_move_bytes_over() {
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
    let (_lends, there) = node("64mb", "0");
    let (_writes, here) = node("0", "16mb");
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
    assert_eq!((&peer["transport"], &peer["state"], &peer["written_bytes"]), (&"tcp".into(), &"up".into(), &8.into()));
    assert_eq!(document["nodes"][1]["peers"], Value::Array(vec![]));
    // The master's own port is no node's; what does answer is shown all the same.
    let odd = admin.replace("--admin", "--node");
    let run = mcctl(&["status", "--interval=0", &admin, &odd, &nodes[0]]);
    assert_eq!(run.code, 3, "{run:?}");
    assert!(run.stdout.contains("no node of mcctl's answers there") && run.stdout.contains("tcp, 1 peer\n"), "{run:?}");
}

#[test]
fn a_watched_status_goes_on_until_a_signal_and_ends_well() {
    let (_master, _, admin) = master(&[]);
    let place = format!("--admin=127.0.0.1:{admin}");
    let mut watch = Service::start(command(&["status", "--watch", "--json", "--interval=100ms", &place]));
    watch.line_with("mcctl.status/1");
    watch.line_with("\"rates\":{");
    assert_eq!(watch.stop(Signal::SIGINT), 0);
    assert!(!watch.all_lines().iter().any(|line| line.contains('\x1b')), "no cursor movements into a pipe");
}

#[test]
fn a_reader_that_had_enough_of_a_watched_status_ends_it_well() {
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
fn a_list_of_no_keys_is_no_failure() {
    let (_master, rpc, admin) = master(&[]);
    let place = [&*format!("--master=127.0.0.1:{rpc}"), &*format!("--admin=127.0.0.1:{admin}")];
    assert_eq!(mcctl(&[&["store", "ls"], &place[..]].concat()).succeeds(), "");
    let run = mcctl(&[&["store", "ls", "--json"], &place[..]].concat());
    assert_eq!(run.succeeds(), "{\"schema\":\"mcctl.store.ls.count/1\",\"keys\":0,\"complete\":true}\n");
    assert_eq!(mcctl(&[&["store", "rm", "--all", "--yes"], &place[..]].concat()).code, 0);
}

#[test]
fn a_key_that_is_not_there_is_1_and_asked_for_without_a_lease() {
    let (_master, rpc, admin) = master(&[]);
    let place = [&*format!("--master=127.0.0.1:{rpc}"), &*format!("--admin=127.0.0.1:{admin}")];
    let run = mcctl(&[&["store", "exists", "a/b", "c d"], &place[..]].concat());
    assert_eq!((run.code, &*run.stdout, &*run.stderr), (1, "no\ta/b\nno\tc d\n", ""));
    let run = mcctl(&[&["store", "exists", "-q", "a"], &place[..]].concat());
    assert_eq!((run.code, &*run.stdout), (1, ""));
    let run = mcctl(&[&["store", "stat", "a"], &place[..]].concat());
    assert_eq!((run.code, &*run.stdout), (1, ""));
    // No admin HTTP there: the RPC answers, and a line says what that means.
    let run = mcctl(&["store", "exists", "a", place[0], "--admin=127.0.0.1:1"]);
    assert!(run.code == 1 && run.stderr.contains("gives each key found a read lease"), "{run:?}");
}

#[test]
fn without_admin_no_other_masters_port_is_asked() {
    let (_master, rpc, admin) = master(&[]);
    let place = format!("--master=127.0.0.1:{rpc}");
    for command in ["exists", "stat"] {
        let run = mcctl(&["store", command, "a", &place]);
        assert!(run.code == 1 && run.stderr.contains("no --admin was given for the master at"), "{run:?}");
        assert!(run.stderr.contains("gives each key found a read lease"), "{run:?}");
    }
    for command in [&["store", "ls"][..], &["status"]] {
        let run = mcctl(&[command, &[&*place]].concat());
        assert!(run.fails(2).contains("next: give --admin HOST:PORT"), "{run:?}");
    }
    let mut named = super::command(&["store", "exists", "a", &place]);
    named.env("MOONCAKE_MASTER", format!("127.0.0.1:{rpc}")).env("MOONCAKE_MASTER_METRICS_PORT", admin.to_string());
    let run = super::finish(named.output().expect("the program starts"));
    assert_eq!((run.code, &*run.stderr), (1, ""));
    // That port is the environment's master's, and no answer for another one.
    let mut other = super::command(&["store", "exists", "a", "--master=127.0.0.1:1"]);
    other.env("MOONCAKE_MASTER", format!("127.0.0.1:{rpc}")).env("MOONCAKE_MASTER_METRICS_PORT", admin.to_string());
    super::finish(other.output().expect("the program starts")).fails(3);
}

#[test]
fn a_status_that_a_signal_ends_before_the_answer_is_no_success() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = format!("--admin={}", silent.local_addr().expect("bound"));
    let mut asking = Service::start(command(&["status", &place]));
    let _asked = silent.accept().expect("it asks");
    assert_eq!(asking.stop(Signal::SIGTERM), 1);
}

#[test]
fn a_pattern_that_is_none_is_2() {
    let (_master, rpc, _) = master(&[]);
    let run = mcctl(&["store", "rm", "--regex", "[", &format!("--master=127.0.0.1:{rpc}")]);
    assert!(run.fails(2).starts_with("error: '[' is not a regular expression"), "{run:?}");
}

#[test]
fn a_master_that_does_not_answer_is_unreachable_without_an_admin_address() {
    for command in [&["status"][..], &["store", "ls"], &["store", "stat", "k"]] {
        let run = mcctl(&[command, &["--master", "127.0.0.1:1"]].concat());
        assert_eq!(run.code, 3, "{run:?}");
    }
}
