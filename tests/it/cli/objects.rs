//! `mcctl store put` and `get`, against a store of our own.

use std::io::Write;
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::service::Service;
use super::{Run, command, finish};

/// A store, and its environment.
struct Store {
    service: Service,
    environment: Vec<(String, String)>,
}

impl Store {
    fn start() -> Store {
        let ports = ["--rpc-port=0", "--metrics-port=0", "--metadata-port=0", "--rest-port=0"];
        let mut service = Service::start(command(&[&["up", "--json", "--segment-size=64mb"], &ports[..]].concat()));
        let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
        let pair = |(name, value): (&String, &Value)| (name.clone(), value.as_str().expect("text").to_owned());
        Store { environment: document["environment"].as_object().expect("a map").iter().map(pair).collect(), service }
    }

    fn run(&self, args: &[&str]) -> Run {
        self.run_with(args, b"")
    }

    fn run_with(&self, args: &[&str], stdin: &[u8]) -> Run {
        let mut command = command(args);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
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
        "{\"schema\":\"mcctl.store.put/1\",\"key\":\"file\",\"bytes\":3000001,\"stored\":true,\"replicas\":1}\n"
    );
    assert_eq!(store.run(&["store", "get", "file", "-o", to.to_str().expect("text")]).code, 0);
    assert!(std::fs::read(&to).expect("written") == bytes);
    let listed = store.run(&["store", "ls", "--long"]);
    assert_eq!(listed.succeeds().lines().count(), 3);
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
    assert!(run.code == 1 && run.stderr.contains("(-706)"), "{run:?}");
    assert_eq!(store.run(&["store", "rm", "--force", "k"]).code, 0);
    assert_eq!(store.service.stop(Signal::SIGTERM), 0);
}

#[test]
fn what_is_not_there_is_1_and_what_cannot_be_is_2() {
    let store = Store::start();
    let run = store.run(&["store", "get", "nothing"]);
    assert!(
        run.fails(1).starts_with("error: cannot get 'nothing': there is no such object; tried: master 127.0.0.1:"),
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
    let run = store.run(&["store", "put", "soft", "--value", "x", "--soft-pin=1h", "--replicas=2"]);
    assert_eq!((run.code, &*run.stderr), (0, "stored 1 B as 'soft', 1 copy, since there are no more segments\n"));
    assert_eq!(store.run(&["store", "put", "hard", "--value", "x", "--hard-pin"]).code, 0);
    let status = store.run(&["status", "--interval=0"]);
    assert!(status.succeeds().contains("objects   2 keys (1 soft-pinned)"), "{status:?}");
    store.run(&["store", "put", "soft2", "--value", "x", "--soft-pin=soon"]).fails(2);
}
