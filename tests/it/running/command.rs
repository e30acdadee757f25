//! `mcctl doctor` for what runs: which cluster and which servers it looks at, and how it ends.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Recorded, block_on};
use crate::cli::service::Service;
use crate::cli::{Run, command, finish, mcctl, with_hangups};
use crate::peer::process::wait_until;

/// A store of one process, and how its clients find it.
fn up() -> (Service, Vec<(String, String)>) {
    let ports = ["--rpc-port=0", "--metrics-port=0", "--metadata-port=0", "--rest-port=0", "--segment-size=64mb"];
    let mut service = Service::start(command(&[&["up", "--json"], &ports[..]].concat()));
    let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
    let environment = document["environment"].as_object().expect("a map");
    let mut pairs: Vec<(String, String)> =
        environment.iter().map(|(name, value)| (name.clone(), value.as_str().expect("text").to_owned())).collect();
    let admin = document["admin"].as_str().expect("a URL").trim_end_matches('/').to_owned();
    let port = admin.rsplit(':').next().expect("a port").to_owned();
    pairs.push(("MOONCAKE_MASTER_METRICS_PORT".to_owned(), port));
    (service, pairs)
}

fn doctor(environment: &[(String, String)], args: &[&str]) -> Run {
    let mut run = command(&[&["doctor"], args].concat());
    run.envs(environment.iter().map(|(name, value)| (name, value)));
    finish(run.output().expect("the program starts"))
}

#[test]
fn a_store_that_up_started_is_well() {
    let (_service, environment) = up();
    // On a busy machine lookups are slow, and that is said.
    let args = ["--only", "cluster,serving", "--skip", "lookup-latency", "--json", "--expect-capacity=64mb"];
    let run = doctor(&environment, &args);
    let document: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert_eq!(
        (&document["summary"]["errors"], &document["summary"]["warnings"]),
        (&json!(0), &json!(0)),
        "{document:#}"
    );
    let passed = |id: &str| {
        let line = document["checks"].as_array().expect("a list").iter().find(|line| line["id"] == id);
        line.is_some_and(|line| line["status"] == "passed")
    };
    for id in ["master-reached", "segments-mounted", "nodes-answer", "metadata-records", "round-trip", "counters-move"]
    {
        assert!(passed(id), "{id}: {document:#}");
    }
    let less = doctor(&environment, &["--only", "segments-mounted", "--expect-capacity=1gb"]);
    assert!(less.code == 1 && less.stdout.contains("less memory is mounted than planned"), "{less:?}");
}

#[test]
fn nodes_found_over_http_are_not_called_dead_without_metadata_server() {
    let (_service, environment) = up();
    let value = |name: &str| environment.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone()).expect(name);
    let admin = format!("127.0.0.1:{}", value("MOONCAKE_MASTER_METRICS_PORT"));
    let run = mcctl(&[
        "doctor",
        "--only",
        "nodes-answer",
        "--master",
        &value("MOONCAKE_MASTER"),
        "--admin",
        &admin,
        "--json",
    ]);
    let document: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(document["summary"]["errors"], json!(0), "{document:#}");
}

#[test]
fn the_totals_of_checks_and_findings_add_up() {
    let run = mcctl(&["doctor", "--only", "host,cluster", "--master", "127.0.0.1:1", "--json"]);
    let document: Value = serde_json::from_str(&run.stdout).expect("JSON");
    let of = |name: &str| document["summary"][name].as_u64().expect("a count");
    assert_eq!(of("checks"), of("passed") + of("skipped") + of("found"));
    let run = mcctl(&["doctor", "--only", "host,cluster", "--master", "127.0.0.1:1"]);
    let numbers = |line: &str| -> Vec<u64> {
        line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
    };
    let lines: Vec<Vec<u64>> = run.stdout.lines().rev().take(2).map(numbers).collect();
    let [findings, checks] = &lines[..] else { panic!("{run:?}") };
    assert_eq!(checks[0], checks[1..].iter().sum::<u64>(), "{run:?}");
    assert_eq!(findings[0], findings[1..].iter().sum::<u64>(), "{run:?}");
}

#[test]
fn no_cluster_is_looked_at_where_none_is_named_and_none_asked_for() {
    let run = mcctl(&["doctor", "--skip", "host,wheel"]);
    // Another program of this machine may run a master at the default address, which is then looked at.
    let is_default = run.stderr.contains("which answers at the default address");
    assert!(is_default || run.succeeds().contains("no master is named: give --master HOST:PORT"), "{run:?}");
    assert!(run.stdout.contains("give --sglang URL") && run.stdout.contains("give --rdma-peer HOST:PORT"), "{run:?}");
    let away = mcctl(&["doctor", "--only", "master-reached", "--master", "127.0.0.1:1"]);
    assert!(away.code == 1 && away.stdout.contains("nobody listens at 127.0.0.1:1"), "{away:?}");
}

#[test]
fn a_variable_that_names_no_master_is_an_error_of_the_cluster() {
    for text in
        ["127.0.0.1:99999", "127.0.0.1:", ":50051", "[::1", "etcd://", "etcd://127.0.0.1:1/", "redis://127.0.0.1:1"]
    {
        let environment = [("MOONCAKE_MASTER".to_owned(), text.to_owned())];
        let run = doctor(&environment, &["--only", "cluster", "--json"]);
        let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:?}"));
        let findings = document["findings"].as_array().expect("a list");
        let found = &findings[0];
        assert!(run.code == 1 && findings.len() == 1, "{run:?}");
        assert_eq!((&found["id"], &found["severity"]), (&json!("master-reached"), &json!("error")), "{text}");
        assert_eq!(found["remedy"].as_str().expect("text").contains("slash"), text.ends_with("1/"), "{found}");
    }
}

#[test]
fn a_command_line_that_is_wrong_is_2() {
    for (args, part) in [
        (&["--sglang", "localhost:30000"][..], "a URL is expected"),
        (&["--master", "etcd://", "--only", "cluster"], "is no list of etcd servers"),
        (&["--probe-bytes", "0"], "--probe-bytes"),
        (&["--probe-serving"], "--sglang"),
        (&["--metadata-server", "nonsense", "--only", "cluster"], "metadata"),
        (&["--metadata-server", "nonsense"], "metadata"),
        (&["--sglang", "http://"], "a URL is expected"),
        (&["--sglang", "http://127.0.0.1:99999"], "a URL is expected"),
        (&["--sglang", "https://:30000/"], "a URL is expected"),
        (&["--python", "/nonexist"], "no such file"),
        (&["--python", "/proc/self/status"], "no interpreter"),
        (&["--hugepage-size", "0"], "a huge page has no"),
        (&["--hugepage-size", "3"], "a huge page has no"),
        (&["--rdma-peer", "127.0.0.1:99999"], "the name of a segment is expected"),
        (&["--rdma-peer", ""], "the name of a segment is expected"),
        (&["--device-name", "mlx5_0"], "--rdma-peer"),
    ] {
        let run = mcctl(&[&["doctor"], args].concat());
        assert!(run.code == 2 && run.stderr.contains(part), "{args:?}: {run:?}");
    }
}

#[test]
fn a_host_without_rdma_is_told_so_when_a_peer_is_named() {
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        return;
    }
    let run = mcctl(&["doctor", "--only", "peer", "--json", "--rdma-peer", "127.0.0.1:1"]);
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    let findings = document["findings"].as_array().expect("a list");
    assert!(run.code == 1 && findings.len() == 1, "{run:?}");
    let found = &findings[0];
    assert_eq!((&found["id"], &found["severity"]), (&json!("peer-connected"), &json!("error")));
    assert!(found["evidence"].as_str().expect("text").starts_with("rdma is not available on this host: "), "{found}");
    assert_eq!(document["summary"]["skipped"], 3);
}

#[test]
fn an_empty_folder_is_no_host() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = mcctl(&["doctor", "--root", dir.path().to_str().expect("text")]);
    assert!(run.fails(2).contains("has neither /proc nor /sys"), "{run:?}");
}

#[test]
fn a_terminal_that_goes_away_ends_it_as_sigterm_does_and_what_was_found_is_said() {
    // Takes connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let master = silent.local_addr().expect("bound").to_string();
    for signal in [Signal::SIGHUP, Signal::SIGTERM] {
        // Long enough that a busy machine does not let it end before it is looked at.
        let args = ["doctor", "-v", "--only", "memory,master-reached", "--timeout", "8s", "--master", &master];
        let mut service = Service::start(with_hangups(&command(&args)));
        let status = format!("/proc/{}/status", service.pid());
        wait_until("it handles signals", Duration::from_secs(30), || {
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim().to_owned();
            u64::from_str_radix(&mask, 16).is_ok_and(|mask| mask & 1 == 1 && mask >> 14 & 1 == 1)
        });
        assert_eq!(service.stop(signal), 1);
        service.line_with("takes connections and does not answer");
        service.line_with(&format!("error: {}: stopped before all was looked at", signal.as_str()));
    }
}

#[test]
fn servers_and_leaders_are_found_as_the_flags_say() {
    let settings = json!({"version": "0.5.23", "enable_hierarchical_cache": false, "page_size": 64}).to_string();
    let (code, text) = block_on(async {
        let (server, _) = Recorded::start(&[("/server_info", settings), ("/v3/kv/range", "{}".to_owned())]).await;
        let (url, etcd) = (format!("http://{}", server.at()), format!("etcd://{}", server.at()));
        let run = tokio::task::spawn_blocking(move || {
            mcctl(&["doctor", "--only", "cluster,serving", "--sglang", &url, "--master", &etcd])
        });
        let run = run.await.expect("it ended");
        (run.code, run.stdout)
    });
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("the hierarchical cache is off") && text.contains("etcd names no leader"), "{text}");
}
