//! `--json` of every command: one document for a success and one for a failure. [`super::finish`]
//! checks them against their schemas.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::describe::COMMANDS;
use super::objects::Store;
use super::service::Service;
use super::{Run, command, finish, mcctl};

/// The commands that have `--json`.
fn with_json() -> BTreeSet<String> {
    let has = |words: &&&[&str]| {
        let help = mcctl(&[words, &["--help"][..]].concat());
        help.succeeds().lines().any(|line| line.trim_start().starts_with("--json"))
    };
    COMMANDS.iter().filter(has).map(|words| words.join(" ")).collect()
}

fn fixture(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path).display().to_string()
}

/// The schemas of the documents in a run's stdout.
#[track_caller]
fn schemas(run: &Run) -> Vec<String> {
    let name = |line: &str| {
        let document: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {run:?}"));
        document["schema"].as_str().unwrap_or_else(|| panic!("{run:?}")).to_owned()
    };
    run.stdout.lines().map(name).collect()
}

/// Command lines without a service, and the schemas of their documents.
fn local_commands() -> Vec<(String, &'static str)> {
    let trace = fixture("load/datasets/mooncake.jsonl");
    let file = fixture("deploy/mcctl.toml");
    let model = "--model=Qwen3-32B";
    [
        ("version".to_owned(), "mcctl.version/1"),
        ("--version".to_owned(), "mcctl.version/1"),
        ("devices".to_owned(), "mcctl.devices/1"),
        ("doctor --only=memory".to_owned(), "mcctl.doctor/1"),
        ("doctor --list".to_owned(), "mcctl.doctor-checks/1"),
        ("doctor --list-problems".to_owned(), "mcctl.doctor-problems/1"),
        (format!("lint {file}"), "mcctl.lint/1"),
        ("lint --list".to_owned(), "mcctl.lint-rules/1"),
        (format!("render env {file}"), "mcctl.render/1"),
        (format!("size-hugepages {model} --hicache-size=1 --available-hugetlb=1tb"), "mcctl.size-hugepages/1"),
        (format!("size-hugepages {file}"), "mcctl.size-hugepages.deployment/1"),
        (format!("size-hugepages {model} --trace={trace}"), "mcctl.hit-rate-curve/2"),
        (
            format!("size-hugepages --trace={trace} --per-request --device-pool-tokens=4096 --hicache-ratio=2"),
            "mcctl.tokens-by-tier/1",
        ),
        (format!("size-hugepages {model} --observed-keys=2 --observed-bytes=4mb"), "mcctl.observed/1"),
        (
            "up --once --rpc-port=0 --metrics-port=0 --metadata-port=0 --rest-port=0 --segment-size=16mb".to_owned(),
            "mcctl.up/1",
        ),
    ]
    .into()
}

/// Commands that need a store, in order, and the schemas of their documents.
const STORE_COMMANDS: &[(&str, &[&str])] = &[
    ("store put k --value=v", &["mcctl.store.put/1"]),
    ("store get k", &["mcctl.store.get/1"]),
    ("store exists k", &["mcctl.store.exists/1"]),
    ("store stat k", &["mcctl.store.stat/1"]),
    ("store verify k", &["mcctl.store.verify/1"]),
    ("store ls", &["mcctl.store.ls/1", "mcctl.store.ls.count/1"]),
    ("store ls --long", &["mcctl.store.ls/1", "mcctl.store.ls.count/1"]),
    ("store rm k --force", &["mcctl.store.rm/1"]),
    ("status --interval=10ms", &["mcctl.status/1"]),
    ("bench store --objects=4 --object-size=1kb", &["mcctl.bench.store/2"]),
];

/// Commands that need an inference server, whose document has its own test in `load`.
const SERVER_COMMANDS: &[&str] =
    &["bench multi-turn", "bench serving", "bench compare", "bench ladder", "bench verify"];

#[test]
fn a_success_prints_its_document() {
    for (line, schema) in local_commands() {
        let run = mcctl(&[&line.split(' ').collect::<Vec<_>>()[..], &["--json"]].concat());
        assert_eq!((run.code, schemas(&run)), (0, vec![schema.to_owned()]), "{line}: {run:?}");
    }
    let store = Store::start();
    for (line, expected) in STORE_COMMANDS {
        let run = store.run(&[&line.split(' ').collect::<Vec<_>>()[..], &["--json"]].concat());
        assert_eq!(
            (run.code, schemas(&run)),
            (0, expected.iter().map(ToString::to_string).collect::<Vec<_>>()),
            "{line}: {run:?}"
        );
    }
    let mut target = Service::start(command(&["bench", "transfer", "--mode=target", "--buffer-size=16mb", "--json"]));
    let ready: Value = serde_json::from_str(&target.line_with("mcctl.bench.transfer.target/1")).expect("JSON");
    let segment = format!("--segment-id={}", ready["listening"].as_str().expect("an address"));
    let run = mcctl(&["bench", "transfer", &segment, "--duration=1", "--buffer-size=16mb", "--batch-size=8", "--json"]);
    assert_eq!((run.code, schemas(&run)), (0, vec!["mcctl.bench.transfer/1".to_owned()]), "{run:?}");
}

#[test]
fn the_commands_in_this_file_are_all_commands_with_json() {
    let command = |line: &str| {
        let known = COMMANDS.iter().map(|words| words.join(" "));
        known.filter(|name| line == name || line.starts_with(&format!("{name} "))).max_by_key(String::len)
    };
    let local = local_commands();
    let lines = local.iter().map(|(line, _)| line.as_str()).chain(STORE_COMMANDS.iter().map(|(line, _)| *line));
    let lines = lines.chain(SERVER_COMMANDS.iter().copied()).chain(["bench transfer", "master step-down"]);
    assert_eq!(lines.filter_map(command).collect::<BTreeSet<_>>(), with_json());
}

#[test]
fn an_invalid_command_line_prints_an_error_document() {
    for name in with_json() {
        let run = mcctl(&[&name.split(' ').collect::<Vec<_>>()[..], &["--json", "--nonsense"]].concat());
        run.fails(2);
        let error = run.error_document();
        assert_eq!(error["kind"], "usage", "{name}");
        assert!(error["cause"].as_str().is_some_and(|cause| cause.contains("--nonsense")), "{name}: {error}");
    }
    for line in [
        "--json",
        "stor --json",
        "store --json",
        "devices --format=json --nonsense",
        "bench ladder --json=- --nonsense",
    ] {
        let run = mcctl(&line.split(' ').collect::<Vec<_>>());
        assert_eq!((run.code, &run.error_document()["kind"]), (2, &"usage".into()), "{line}");
    }
}

#[test]
fn each_kind_of_failure_has_its_name() {
    let store = Store::start();
    let dead = ["--master=127.0.0.1:1", "--admin=127.0.0.1:1"];
    for (words, kind, code) in [
        (&["store", "get", "k"][..], "not-found", 1),
        (&["master", "step-down"], "negative", 1),
        (&["store", "put", "k", "--value", ""], "usage", 2),
        (&["store", "rm", "--all"], "usage", 2),
        (&["store", "stat", "k", dead[0], dead[1]], "unreachable", 3),
        (&["store", "verify", "k", dead[0], dead[1], "--metadata-server=P2PHANDSHAKE"], "unreachable", 3),
        (&["status", dead[1]], "unreachable", 3),
        (&["bench", "store", dead[0], dead[1], "--metadata-server=P2PHANDSHAKE"], "unreachable", 3),
        (&["bench", "transfer", "--mode=initiator"], "usage", 2),
        (&["bench", "multi-turn", "--url=http://127.0.0.1:1"], "unreachable", 3),
        (&["bench", "serving", "--base-url=http://127.0.0.1:1", "--ready-check-timeout-sec=0"], "unreachable", 3),
        (&["bench", "ladder", "--url=http://127.0.0.1:1", "--yes"], "unreachable", 3),
        (&["bench", "verify", "--url=http://127.0.0.1:1", "--yes"], "unreachable", 3),
        (&["bench", "compare", "http://127.0.0.1:1", "http://127.0.0.1:1", "--yes"], "unreachable", 3),
        (&["size-hugepages", "/nonexistent.toml"], "usage", 2),
        (&["size-hugepages", "--trace=/nonexistent"], "usage", 2),
        (&["render", "env", "/nonexistent.toml"], "usage", 2),
        (&["devices", "--root=/nonexistent"], "usage", 2),
        (&["doctor", "--only=nonsense"], "usage", 2),
        (&["lint", "--only=nonsense", "-"], "usage", 2),
        (&["up", "--segment-size=1000tb"], "host", 4),
    ] {
        // The variables of the store would override an address without its flag.
        let run = store.run(&[words, &["--json"]].concat());
        assert_eq!((&run.error_document()["kind"], run.code), (&kind.into(), code), "{words:?}: {run:?}");
        assert!(run.stderr.contains("error: "), "{words:?}: {run:?}");
    }
}

#[test]
fn a_command_that_has_printed_its_document_prints_no_error_document() {
    let store = Store::start();
    store.run(&["store", "put", "k", "--value=v"]).succeeds();
    let again = store.run(&["store", "put", "k", "--value=v", "--json"]);
    assert_eq!((again.code, schemas(&again)), (1, vec!["mcctl.store.put/1".to_owned()]));
    assert!(again.stderr.contains("already exists"), "{again:?}");
    let unread = mcctl(&["lint", "--json", "/nonexistent"]);
    assert_eq!((unread.code, schemas(&unread)), (2, vec!["mcctl.lint/1".to_owned()]));
}

#[test]
fn an_error_of_a_report_that_goes_to_a_file_is_not_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let flag = format!("--json={}", file.display());
    for words in [&["bench", "ladder", "--url=http://127.0.0.1:1", "--yes"][..], &["bench", "ladder", "--nonsense"]] {
        let run = mcctl(&[words, &[&flag]].concat());
        assert_eq!((run.stdout.as_str(), run.code != 0), ("", true), "{run:?}");
    }
    assert!(std::fs::read(&file).is_ok_and(|bytes| bytes.is_empty()), "only the check that it can be written");
}

#[test]
fn secrets_are_masked_in_the_error_document() {
    let run = mcctl(&["bench", "ladder", "--url=http://me:secret@127.0.0.1:1", "--yes", "--json"]);
    let error = run.error_document();
    assert!(!run.stdout.contains("secret") && run.stdout.contains("me:***@127.0.0.1:1"), "{error}");
}

#[test]
fn a_signal_prints_an_error_document() {
    // It accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("127.0.0.1:{}", silent.local_addr().expect("an address").port());
    let master = format!("--master={address}");
    let admin = format!("--admin={address}");
    for (words, code) in [
        (&["store", "exists", "k"][..], 143),
        (&["store", "stat", "k"], 143),
        (&["store", "rm", "k"], 143),
        (&["status"], 1),
    ] {
        let mut command = command(&[words, &[&admin, "--timeout=1m", "--json"]].concat());
        if words[0] == "store" {
            command.arg(&master);
        }
        let mut running = Service::start(command);
        // The connection shows that the handlers are installed.
        let connection = silent.accept().expect("a connection");
        let ended = running.stop(Signal::SIGTERM);
        let lines = running.all_lines().to_vec();
        let document = lines.iter().find_map(|line| crate::schemas::document_in(line)).expect("a document");
        assert_eq!((ended, &document["kind"]), (code, &"interrupted".into()), "{words:?}: {lines:?}");
        assert_eq!(document["exit_code"], code, "{words:?}");
        drop(connection);
    }
}

#[test]
fn a_watch_prints_error_documents_and_continues() {
    let (mut master, _, admin) = super::serve::master(&[]);
    let admin = format!("--admin=127.0.0.1:{admin}");
    let mut watch = Service::start(command(&["status", "--watch", "--interval=100ms", "--json", &admin]));
    watch.line_with("mcctl.status/1");
    master.stop(Signal::SIGKILL);
    let error: Value = serde_json::from_str(&watch.line_with("mcctl.error/1")).expect("JSON");
    assert_eq!(error["kind"], "unreachable");
    watch.line_with("mcctl.error/1");
    assert_eq!(watch.stop(Signal::SIGTERM), 0);
}

#[test]
fn the_version_names_the_build() {
    let document: Value = serde_json::from_str(mcctl(&["version", "--json"]).succeeds()).expect("JSON");
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    let is_id = |id: &str| id.len() >= 7 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(document["commit"].is_null() || document["commit"].as_str().is_some_and(is_id), "{document}");
    assert!(document["target"].as_str().is_some_and(|target| target.contains("linux")), "{document}");
    let first = finish(command(&["version"]).output().expect("it starts")).stdout;
    let mooncake = document["mooncake"].as_str().expect("a release");
    assert!(first.starts_with(&format!("mcctl {} (compatible with Mooncake {mooncake})\n", env!("CARGO_PKG_VERSION"))));
}
