//! `mcctl store put` and `get`, against an mcctl store.

use std::io::Write;
use std::process::Stdio;

use mcctl::engine::base::{ClientId, HostPort};
use mcctl::engine::env::RealEnv;
use mcctl::engine::rpc::{RpcClient, Timeouts};
use mcctl::engine::wire::MasterCalls;
use mcctl::engine::wire::types::ReplicateConfig;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::service::Service;
use super::{Run, command, finish, mcctl};
use mcctl::engine::wire::types::SliceLength;

/// A store, and its environment.
pub struct Store {
    service: Service,
    environment: Vec<(String, String)>,
}

impl Store {
    /// A store of 64 MiB.
    pub fn start() -> Store {
        let ports = ["--rpc-port=0", "--metrics-port=0", "--metadata-port=0", "--rest-port=0"];
        let mut service = Service::start(command(&[&["up", "--json", "--segment-size=64mb"], &ports[..]].concat()));
        let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
        let pair = |(name, value): (&String, &Value)| (name.clone(), value.as_str().expect("text").to_owned());
        Store { environment: document["environment"].as_object().expect("a map").iter().map(pair).collect(), service }
    }

    /// Run the program in the environment of the store.
    pub fn run(&self, args: &[&str]) -> Run {
        self.run_with(args, b"")
    }

    /// The variable `name` of the store's environment.
    pub fn variable(&self, name: &str) -> &str {
        &self.environment.iter().find(|(known, _)| known == name).expect("up prints it").1
    }

    /// The program in the environment of the store, not started yet.
    pub fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = command(args);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn run_with(&self, args: &[&str], stdin: &[u8]) -> Run {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        // The program may exit without reading its input.
        let _ = child.stdin.take().expect("piped").write_all(stdin);
        finish(child.wait_with_output().expect("it ends"))
    }
}

#[test]
fn an_object_from_text_file_or_stdin_is_read_back_unchanged() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "a", "--value", "text"]).code, 0);
    assert_eq!(store.run(&["store", "get", "a"]).succeeds(), "text");
    assert_eq!(store.run_with(&["store", "put", "dir/b c,d"], b"from stdin\n").code, 0);
    assert_eq!(store.run(&["store", "get", "dir/b c,d"]).succeeds(), "from stdin\n");
    let dir = tempfile::tempdir().expect("a folder");
    let from = dir.path().join("from");
    let to = dir.path().join("to");
    let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&from, &bytes).expect("written");
    let run = store.run(&["store", "put", "file", from.to_str().expect("text"), "--json"]);
    let expected = serde_json::json!({
        "schema": "mcctl.store.put/1", "key": "file", "bytes": 3_000_001, "stored": true, "replicas": 1, "replicas_requested": 1,
        "cause": null, "next": null
    });
    assert_eq!(serde_json::from_str::<Value>(run.succeeds()).expect("JSON"), expected);
    assert_eq!(store.run(&["store", "get", "file", "-o", to.to_str().expect("text")]).code, 0);
    assert!(std::fs::read(&to).expect("written") == bytes);
    let listed = store.run(&["store", "ls", "--long"]);
    assert_eq!(listed.succeeds().lines().count(), 4);
    assert!(listed.stderr.ends_with("\n3 keys, 2.86 MiB\n"), "{listed:?}");
    assert_eq!(store.run(&["store", "ls", "--prefix", "fi"]).succeeds(), "file\n");
    let header: Vec<&str> = listed.stdout.lines().next().expect("a header").split_whitespace().collect();
    assert_eq!(header, ["SIZE", "COPIES", "NODE", "KEY"]);
    let stat = store.run(&["store", "stat", "--json", "file"]);
    let document: Value = serde_json::from_str(stat.succeeds()).expect("JSON");
    assert_eq!(document["objects"][0]["bytes"], 3_000_001);
}

#[test]
fn an_existing_key_is_1_without_upsert() {
    let mut store = Store::start();
    assert_eq!(store.run(&["store", "put", "k", "--value", "one"]).code, 0);
    let run = store.run(&["store", "put", "k", "--value", "two"]);
    assert!(run.fails(1).starts_with("error: 'k' ") && run.stderr.contains("--upsert"), "{run:?}");
    assert_eq!(store.run(&["store", "get", "k"]).succeeds(), "one");
    assert_eq!(store.run(&["store", "put", "k", "--value", "three", "--upsert"]).code, 0);
    assert_eq!(store.run(&["store", "get", "k"]).succeeds(), "three");
    // The get granted a lease.
    let run = store.run(&["store", "rm", "k"]);
    assert!(run.code == 1 && run.stderr.contains("OBJECT_HAS_LEASE (-706)"), "{run:?}");
    assert_eq!(store.run(&["store", "rm", "--force", "k"]).code, 0);
    assert_eq!(store.service.stop(Signal::SIGTERM), 0);
}

#[test]
fn a_negative_result_has_its_cause_and_what_to_do() {
    let store = Store::start();
    let document = |args: &[&str]| {
        let run = store.run(&[args, &["--json"]].concat());
        (run.code, serde_json::from_str::<Value>(&run.stdout).expect("JSON"))
    };
    let has =
        |document: &Value, member: &str, part: &str| document[member].as_str().is_some_and(|text| text.contains(part));
    assert_eq!(store.run(&["store", "put", "k", "--value", "one"]).code, 0);
    let (code, put) = document(&["store", "put", "k", "--value", "two"]);
    assert!(code == 1 && has(&put, "cause", "'k'") && has(&put, "next", "--upsert"), "{put}");
    assert_eq!(store.run(&["store", "get", "k"]).code, 0);
    let (code, kept) = document(&["store", "rm", "k"]);
    assert!(code == 1 && has(&kept, "cause", "-706") && has(&kept, "next", "--force"), "{kept}");
    let (code, unknown) = document(&["store", "rm", "x", "y"]);
    assert!(code == 1 && has(&unknown, "cause", "2 of 2 keys") && has(&unknown, "next", "store ls"), "{unknown}");
    let (code, removed) = document(&["store", "rm", "k", "--force"]);
    assert_eq!((code, &removed["cause"], &removed["next"]), (0, &Value::Null, &Value::Null));
}

#[test]
fn a_soft_pin_after_a_space_is_not_a_key_or_a_file() {
    for words in ["store put k --soft-pin 1h", "store put --soft-pin 1h k", "store put --soft-pin 1h k --json"] {
        let run = mcctl(&words.split(' ').collect::<Vec<_>>());
        let text = run.fails(2);
        assert!(text.starts_with("error: --soft-pin ") && text.contains("--soft-pin=1h"), "{text}");
    }
    let run = mcctl(&["store", "put", "k", "--upsert", "true"]);
    assert!(run.fails(2).starts_with("error: --upsert has no value"), "{run:?}");
}

#[test]
fn a_missing_key_is_1_and_an_empty_or_unreadable_value_is_2() {
    let store = Store::start();
    assert!(store.run(&["store", "get", "nothing"]).fails(1).contains("'nothing'"));
    assert!(store.run(&["store", "put", "empty"]).fails(2).contains("'empty'"));
    assert!(store.run(&["store", "put", "x", "/nonexistent"]).fails(2).contains("/nonexistent"));
    // The segment has 64 MiB.
    let run = store.run_with(&["store", "put", "large"], &vec![1; 80 << 20]);
    assert!(run.fails(1).contains("no segment has enough free memory"), "{run:?}");
}

#[test]
fn a_put_sets_pins() {
    let store = Store::start();
    let run = store.run(&["store", "put", "soft", "--value", "x", "--soft-pin=1h"]);
    assert_eq!((run.code, &*run.stderr), (0, "stored 1 B as 'soft', 1 copy\n"));
    assert_eq!(store.run(&["store", "put", "hard", "--value", "x", "--hard-pin"]).code, 0);
    let status = store.run(&["status", "--interval=0"]);
    assert!(status.succeeds().contains("objects   2 keys (1 soft-pinned)"), "{status:?}");
    store.run(&["store", "put", "soft2", "--value", "x", "--soft-pin=soon"]).fails(2);
}

#[test]
fn fewer_copies_than_requested_are_1_without_allow_fewer() {
    let store = Store::start();
    let put = |key: &str, more: &[&str]| {
        let run = store.run(&[&["store", "put", key, "--value=x", "--replicas=2", "--json"], more].concat());
        let document: Value = serde_json::from_str(&run.stdout).expect("JSON");
        assert_eq!((&document["stored"], &document["replicas"]), (&true.into(), &1.into()), "{document}");
        assert_eq!(document["replicas_requested"], 2);
        run.code
    };
    assert_eq!((put("a", &[]), put("b", &["--allow-fewer"])), (1, 0));
    assert_eq!(store.run(&["store", "get", "a"]).succeeds(), "x");
}

#[test]
fn without_a_terminal_a_store_is_emptied_only_with_yes() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "k", "--value", "x"]).code, 0);
    let run = store.run(&["store", "rm", "--all"]);
    let error = run.fails(2);
    for part in ["--yes", "the only object", store.variable("MOONCAKE_MASTER")] {
        assert!(error.contains(part), "no '{part}' in {error}");
    }
    assert_eq!(store.run(&["store", "exists", "k"]).code, 0);
    assert_eq!(store.run(&["store", "rm", "--all", "--force", "--yes"]).code, 0);
    assert_eq!(store.run(&["store", "exists", "k"]).code, 1);
}

#[test]
fn json_holds_a_text_value_or_the_path_of_a_file() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "text", "--value", "hello"]).code, 0);
    let document: Value =
        serde_json::from_str(store.run(&["store", "get", "text", "--json"]).succeeds()).expect("JSON");
    assert_eq!((&document["schema"], &document["value"]), (&"mcctl.store.get/1".into(), &"hello".into()));
    assert_eq!((&document["bytes"], &document["output"]), (&5.into(), &Value::Null));
    assert_eq!(store.run_with(&["store", "put", "bytes"], &[0xff, 0xfe]).code, 0);
    store.run(&["store", "get", "bytes", "--json"]).fails(2);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("bytes");
    let path = file.to_str().expect("text");
    let run = store.run(&["store", "get", "bytes", "--json", "--output", path]);
    let document: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert_eq!((&document["output"], &document["value"]), (&path.into(), &Value::Null));
    assert_eq!(std::fs::read(&file).expect("written"), [0xff, 0xfe]);
}

#[test]
fn all_store_commands_accept_the_same_connection_flags() {
    let flags = ["--master=127.0.0.1:1", "--admin=127.0.0.1:1", "--metadata-server=P2PHANDSHAKE", "--timeout=1s"];
    let more = ["--local-hostname=localhost", "--protocol=tcp", "--device-name=x", "--allow-tcp-fallback"];
    let put = &["put", "k", "--value=x"][..];
    for args in [put, &["get", "k"], &["ls"], &["rm", "k"], &["exists", "k"], &["stat", "k"], &["verify", "k"]] {
        mcctl(&[&["store"], args, &flags, &more].concat()).fails(3);
    }
}

#[test]
fn passwords_in_urls_are_masked_in_errors_and_logs() {
    let metadata = "--metadata-server=http://me:secret@127.0.0.1:1/metadata";
    let master = "--master=127.0.0.1:1";
    for (code, args) in [
        (2, &["status", "--admin=http://me:secret@127.0.0.1:1"][..]),
        (2, &["status", "--admin=me:secret@127.0.0.1:1"]),
        (2, &["status", "--master=me:secret@127.0.0.1:1"]),
        (2, &["status", "--node=me:secret@127.0.0.1:1"]),
        (2, &["store", "get", "k", master, "--metadata-server=me:secret@127.0.0.1:1"]),
        (2, &["store", "get", "k", master, "--metadata-server=redis://:secret@127.0.0.1:1"]),
        (3, &["store", "put", "k", "--value=x", master, metadata, "--timeout=1s"]),
        (2, &["bench", "multi-turn", "--url=http://me:secret@127.0.0.1:1"]),
        (3, &["serve", "store", master, metadata, "--max-wait-time=1", "--port=0", "--segment-size=16mb"]),
    ] {
        let run = mcctl(args);
        assert_eq!(run.code, code, "{run:?}");
        assert!(!run.stderr.contains("secret") && run.stderr.contains("***@127.0.0.1:1"), "{run:?}");
    }
}

#[test]
fn control_characters_in_arguments_are_escaped_in_errors() {
    for args in [
        &["status", "--master=x\u{1b}[31m\u{7}:y"][..],
        &["bench", "transfer", "--segment-id=x\u{1b}[31m", "--metadata-server=P2PHANDSHAKE"],
    ] {
        let run = mcctl(args);
        assert_ne!(run.code, 0, "{run:?}");
        let is_safe = !run.stderr.chars().any(|c| c.is_control() && c != '\n');
        assert!(is_safe && run.stderr.contains("x\\u{1b}[31m"), "{run:?}");
    }
}

/// Begin a put of `key` at the master `at` without ending it.
pub fn begin_put(at: &str, key: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let started = runtime.block_on(async {
        let calls = MasterCalls(RpcClient::new(
            RealEnv::new(),
            at.parse::<HostPort>().expect("an address"),
            Timeouts::default(),
        ));
        calls
            .put_start(ClientId(1, 2), key.into(), SliceLength(100), ReplicateConfig::default(), "default".into())
            .await
    });
    started.expect("answered").expect("there is room");
}

#[test]
fn an_unfinished_put_of_another_client_is_1() {
    let store = Store::start();
    for key in ["half", "with,comma"] {
        begin_put(store.variable("MOONCAKE_MASTER"), key);
        let run = store.run(&["store", "put", key, "--value", "x"]);
        let error = run.fails(1);
        assert!(error.contains(&format!("'{key}'")) && error.contains("has not finished"), "{error}");
    }
    let run = store.run(&["store", "put", "half", "--value", "x", "--json"]);
    assert!(run.code == 1 && run.stdout.contains("\"stored\":false"), "{run:?}");
}

#[test]
fn a_refused_put_grants_no_lease() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "k", "--value", "one"]).code, 0);
    store.run(&["store", "put", "k", "--value", "two"]).fails(1);
    assert_eq!(store.run(&["store", "rm", "k"]).code, 0);
}

#[test]
fn keys_are_escaped_and_long_ones_are_cut_in_errors() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "a\tb\u{1b}[2J\\", "--value", "x"]).code, 0);
    assert_eq!(store.run(&["store", "ls"]).succeeds(), "a\\tb\\u{1b}[2J\\\\\n");
    assert!(store.run(&["store", "ls", "--long"]).succeeds().ends_with(" a\\tb\\u{1b}[2J\\\\\n"));
    let line = store.run(&["store", "ls", "--json"]);
    let first: Value = serde_json::from_str(line.succeeds().lines().next().expect("a line")).expect("JSON");
    assert_eq!(first["key"], "a\tb\u{1b}[2J\\");
    let run = store.run(&["store", "exists", "x\ny"]);
    assert_eq!((run.code, &*run.stdout), (1, "no\tx\\ny\n"));
    let long = "k".repeat(5000);
    let run = store.run(&["store", "get", &long]);
    assert!(run.fails(1).contains(&format!("'{}...' (5000 bytes)", "k".repeat(64))), "{run:?}");
}

#[test]
fn a_key_given_twice_is_answered_twice() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "k", "--value", "x"]).code, 0);
    assert_eq!(store.run(&["store", "exists", "k", "k"]).succeeds(), "yes\tk\nyes\tk\n");
    let stat = store.run(&["store", "stat", "--json", "k", "no", "k"]);
    let document: Value = serde_json::from_str(&stat.stdout).expect("JSON");
    let bytes: Vec<&Value> = (0..3).map(|i| &document["objects"][i]["bytes"]).collect();
    assert_eq!((stat.code, bytes), (1, vec![&Value::from(1), &Value::Null, &Value::from(1)]));
}

#[test]
fn an_empty_key_is_2_before_the_master_is_called() {
    for args in [&["put", "", "--value", "x"][..], &["get", ""], &["exists", ""], &["stat", "a", ""], &["rm", ""]] {
        mcctl(&[&["store"], args, &["--master=127.0.0.1:1"]].concat()).fails(2);
    }
}

#[test]
fn a_soft_pin_above_the_maximum_is_2_and_names_the_masters_flag() {
    let run = Store::start().run(&["store", "put", "k", "--value", "x", "--soft-pin=25h"]);
    let error = run.fails(2);
    assert!(error.contains("--soft-pin=25 h; ") && error.contains("--max-kv-soft-pin-ttl"), "{error}");
}
