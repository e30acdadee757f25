//! `mcctl store put` and `get`, against a store of our own.

use std::io::Write;
use std::process::Stdio;

use mcctl::engine::base::ClientId;
use mcctl::engine::env::RealEnv;
use mcctl::engine::rpc::{RpcClient, Timeouts};
use mcctl::engine::wire::MasterCalls;
use mcctl::engine::wire::types::ReplicateConfig;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::service::Service;
use super::{Run, command, finish, mcctl};

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

    /// Run the program on it.
    pub fn run(&self, args: &[&str]) -> Run {
        self.run_with(args, b"")
    }

    /// One of its variables.
    pub fn variable(&self, name: &str) -> &str {
        &self.environment.iter().find(|(known, _)| known == name).expect("up prints it").1
    }

    /// The program on it, not started yet.
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
        // A program that does not read its input is no failure.
        let _ = child.stdin.take().expect("piped").write_all(stdin);
        finish(child.wait_with_output().expect("it ends"))
    }
}

#[test]
fn an_object_comes_back_as_it_was_put_from_text_file_and_stdin() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "a", "--value", "text"]).code, 0);
    assert_eq!(store.run(&["store", "get", "a"]).succeeds(), "text");
    assert_eq!(store.run_with(&["store", "put", "dir/b c,d"], b"from stdin\n").code, 0);
    assert_eq!(store.run(&["store", "get", "dir/b c,d"]).succeeds(), "from stdin\n");
    let dir = tempfile::tempdir().expect("a folder");
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&from, &bytes).expect("written");
    let run = store.run(&["store", "put", "file", from.to_str().expect("text"), "--json"]);
    assert_eq!(
        run.succeeds(),
        "{\"schema\":\"mcctl.store.put/1\",\"key\":\"file\",\"bytes\":3000001,\"stored\":true,\"replicas\":1,\"replicas_requested\":1}\n"
    );
    assert_eq!(store.run(&["store", "get", "file", "-o", to.to_str().expect("text")]).code, 0);
    assert!(std::fs::read(&to).expect("written") == bytes);
    let listed = store.run(&["store", "ls", "--long"]);
    assert_eq!(listed.succeeds().lines().count(), 4);
    let header: Vec<&str> = listed.stdout.lines().next().expect("a header").split_whitespace().collect();
    assert_eq!(header, ["SIZE", "COPIES", "NODE", "KEY"]);
    let stat = store.run(&["store", "stat", "--json", "file"]);
    let document: Value = serde_json::from_str(stat.succeeds()).expect("JSON");
    assert_eq!(document["objects"][0]["bytes"], 3_000_001);
}

#[test]
fn a_key_that_is_taken_is_1_unless_it_is_to_be_replaced() {
    let mut store = Store::start();
    assert_eq!(store.run(&["store", "put", "k", "--value", "one"]).code, 0);
    let run = store.run(&["store", "put", "k", "--value", "two"]);
    assert_eq!(
        run.fails(1),
        "error: 'k' exists already, and was left as it is; next: --upsert replaces it; mcctl store rm removes it"
    );
    assert_eq!(store.run(&["store", "get", "k"]).succeeds(), "one");
    assert_eq!(store.run(&["store", "put", "k", "--value", "three", "--upsert"]).code, 0);
    assert_eq!(store.run(&["store", "get", "k"]).succeeds(), "three");
    // The get gave it a lease.
    let run = store.run(&["store", "rm", "k"]);
    assert!(run.code == 1 && run.stderr.contains("OBJECT_HAS_LEASE (-706)"), "{run:?}");
    assert_eq!(store.run(&["store", "rm", "--force", "k"]).code, 0);
    assert_eq!(store.service.stop(Signal::SIGTERM), 0);
}

#[test]
fn what_is_not_there_is_1_and_what_cannot_be_is_2() {
    let store = Store::start();
    let run = store.run(&["store", "get", "nothing"]);
    assert!(
        run.fails(1).starts_with("error: cannot get 'nothing': the object does not exist; tried: master 127.0.0.1:"),
        "{run:?}"
    );
    let run = store.run(&["store", "put", "empty"]);
    assert!(run.fails(2).starts_with("error: 'empty' would have no bytes"), "{run:?}");
    let run = store.run(&["store", "put", "x", "/nonexistent"]);
    assert_eq!(run.fails(2), "error: cannot read /nonexistent; found: No such file or directory (os error 2)");
    // 64 MiB are lent.
    let run = store.run_with(&["store", "put", "large"], &vec![1; 80 << 20]);
    assert!(run.fails(1).starts_with("error: cannot put 'large': no segment has room for it"), "{run:?}");
}

#[test]
fn pins_and_copies_are_asked_for() {
    let store = Store::start();
    let run = store.run(&["store", "put", "soft", "--value", "x", "--soft-pin=1h"]);
    assert_eq!((run.code, &*run.stderr), (0, "stored 1 B as 'soft', 1 copy\n"));
    assert_eq!(store.run(&["store", "put", "hard", "--value", "x", "--hard-pin"]).code, 0);
    let status = store.run(&["status", "--interval=0"]);
    assert!(status.succeeds().contains("objects   2 keys (1 soft-pinned)"), "{status:?}");
    store.run(&["store", "put", "soft2", "--value", "x", "--soft-pin=soon"]).fails(2);
}

#[test]
fn fewer_copies_than_requested_are_1_unless_they_are_accepted() {
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
fn a_store_is_emptied_only_with_yes_where_no_one_can_be_asked() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "k", "--value", "x"]).code, 0);
    let run = store.run(&["store", "rm", "--all"]);
    let said = run.fails(2);
    for part in ["--yes", "the only object", store.variable("MOONCAKE_MASTER")] {
        assert!(said.contains(part), "no '{part}' in {said}");
    }
    assert_eq!(store.run(&["store", "exists", "k"]).code, 0);
    assert_eq!(store.run(&["store", "rm", "--all", "--force", "--yes"]).code, 0);
    assert_eq!(store.run(&["store", "exists", "k"]).code, 1);
}

#[test]
fn a_value_comes_as_json_if_it_is_text_or_goes_to_a_file() {
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
    for args in [&["put", "k", "--value=x"][..], &["get", "k"], &["ls"], &["rm", "k"], &["exists", "k"], &["stat", "k"]]
    {
        mcctl(&[&["store"], args, &flags, &more].concat()).fails(3);
    }
}

#[test]
fn a_password_in_a_url_is_in_no_error_and_no_log() {
    let metadata = "--metadata-server=http://me:secret@127.0.0.1:1/metadata";
    for args in [
        &["store", "get", "k", "--master=127.0.0.1:1", "--metadata-server=redis://:secret@127.0.0.1:1"][..],
        &["store", "put", "k", "--value=x", "--master=127.0.0.1:1", metadata, "--timeout=1s"],
        &["bench", "multi-turn", "--url=http://me:secret@127.0.0.1:1"],
        &["serve", "store", "--master=127.0.0.1:1", metadata, "--max-wait-time=1", "--port=0", "--segment-size=16mb"],
    ] {
        let run = mcctl(args);
        assert!(run.code == 2 || run.code == 3, "{run:?}");
        assert!(!run.stderr.contains("secret") && run.stderr.contains("***@127.0.0.1:1"), "{run:?}");
    }
}

/// Begin a put of `key` at the master `at`, and do not end it.
pub fn begin_put(at: &str, key: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let started = runtime.block_on(async {
        let calls = MasterCalls(RpcClient::new(RealEnv::new(), at.parse().expect("an address"), Timeouts::default()));
        calls.put_start(ClientId(1, 2), key.into(), 100, ReplicateConfig::default(), "default".into()).await
    });
    started.expect("answered").expect("there is room");
}

#[test]
fn a_key_whose_put_by_another_is_unfinished_is_1_and_not_said_to_exist() {
    let store = Store::start();
    for key in ["half", "with,comma"] {
        begin_put(store.variable("MOONCAKE_MASTER"), key);
        let run = store.run(&["store", "put", key, "--value", "x"]);
        let expected = format!(
            "error: another put of '{key}' is unfinished, so nothing was stored and nothing can be read yet; next: try again"
        );
        assert!(run.fails(1).starts_with(&expected), "{run:?}");
    }
    let run = store.run(&["store", "put", "half", "--value", "x", "--json"]);
    assert!(run.code == 1 && run.stdout.contains("\"stored\":false"), "{run:?}");
}

#[test]
fn a_put_of_a_key_that_is_taken_gives_it_no_lease() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "k", "--value", "one"]).code, 0);
    store.run(&["store", "put", "k", "--value", "two"]).fails(1);
    assert_eq!(store.run(&["store", "rm", "k"]).code, 0);
}

#[test]
fn keys_of_others_cannot_break_a_line_and_long_ones_are_cut() {
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
    let expected = format!("error: cannot get '{}...' (5000 bytes): the object does not exist; ", "k".repeat(64));
    assert!(run.fails(1).starts_with(&expected), "{run:?}");
}

#[test]
fn a_key_that_is_named_twice_is_answered_twice() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "k", "--value", "x"]).code, 0);
    assert_eq!(store.run(&["store", "exists", "k", "k"]).succeeds(), "yes\tk\nyes\tk\n");
    let stat = store.run(&["store", "stat", "--json", "k", "no", "k"]);
    let document: Value = serde_json::from_str(&stat.stdout).expect("JSON");
    let bytes: Vec<&Value> = (0..3).map(|i| &document["objects"][i]["bytes"]).collect();
    assert_eq!((stat.code, bytes), (1, vec![&Value::from(1), &Value::Null, &Value::from(1)]));
}

#[test]
fn an_empty_key_is_2_before_anybody_is_asked() {
    for args in [&["put", "", "--value", "x"][..], &["get", ""], &["exists", ""], &["stat", "a", ""], &["rm", ""]] {
        let run = mcctl(&[&["store"], args, &["--master=127.0.0.1:1"]].concat());
        assert!(run.fails(2).contains("a key has at least one character"), "{run:?}");
    }
}

#[test]
fn a_soft_pin_that_is_too_long_is_2_and_names_the_masters_limit() {
    let run = Store::start().run(&["store", "put", "k", "--value", "x", "--soft-pin=25h"]);
    let said = run.fails(2);
    assert!(said.contains("a soft pin of this length; tried: --soft-pin=25 h; "), "{said}");
    assert!(said.contains("24h is the most unless the master's --max-kv-soft-pin-ttl"), "{said}");
}
