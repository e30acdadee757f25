//! `mcctl doctor` for running services: which cluster and servers it checks, and its exit code.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Recorded, block_on};
use crate::cli::service::Service;
use crate::cli::{Run, command, finish, mcctl, with_hangups};
use crate::peer::process::{PATIENCE, wait_until};

/// A store in one process, with the environment of its clients.
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
fn a_store_started_by_up_passes() {
    let (_service, environment) = up();
    // On a busy machine slow lookups would be reported.
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
    assert!(less.code == 1 && less.stdout.contains("segments-mounted"), "{less:?}");
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
    let lines: Vec<Vec<u64>> = run.stdout.lines().skip(1).take(2).map(numbers).collect();
    let [checks, findings] = &lines[..] else { panic!("{run:?}") };
    assert_eq!(checks[0], checks[1..].iter().sum::<u64>(), "{run:?}");
    assert_eq!(findings[0], findings[1..].iter().sum::<u64>(), "{run:?}");
}

#[test]
fn no_cluster_is_checked_unless_it_is_given() {
    let run = mcctl(&["doctor", "--skip", "host,wheel"]);
    // A master that runs at the default address of this machine would be checked.
    let is_default = run.stderr.contains("found at the default address");
    assert_eq!(run.stdout.contains("no master specified"), !is_default, "{run:?}");
    assert!(run.stdout.contains("use --sglang URL") && run.stdout.contains("use --rdma-peer HOST:PORT"), "{run:?}");
    let away = mcctl(&["doctor", "--only", "master-reached", "--master", "127.0.0.1:1"]);
    assert!(away.code == 1 && away.stdout.contains("listening on 127.0.0.1:1"), "{away:?}");
}

#[test]
fn an_invalid_master_variable_is_an_error_of_the_cluster() {
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
fn an_invalid_command_line_exits_with_2() {
    for (args, part) in [
        (&["--sglang", "localhost:30000"][..], "invalid URL"),
        (&["--master", "etcd://", "--only", "cluster"], "is not a valid list of etcd servers"),
        (&["--probe-bytes", "0"], "--probe-bytes"),
        (&["--probe-serving"], "--sglang"),
        (&["--metadata-server", "nonsense", "--only", "cluster"], "metadata"),
        (&["--metadata-server", "nonsense"], "metadata"),
        (&["--sglang", "http://"], "invalid URL"),
        (&["--sglang", "http://127.0.0.1:99999"], "invalid URL"),
        (&["--sglang", "https://:30000/"], "invalid URL"),
        (&["--python", "/nonexist"], "no such file"),
        (&["--python", "/proc/self/status"], "not named like a Python"),
        (&["--hugepage-size", "0"], "invalid huge page size"),
        (&["--hugepage-size", "3"], "invalid huge page size"),
        (&["--rdma-peer", "127.0.0.1:99999"], "invalid segment name"),
        (&["--rdma-peer", ""], "invalid segment name"),
        (&["--device-name", "mlx5_0"], "--rdma-peer"),
    ] {
        let run = mcctl(&[&["doctor"], args].concat());
        assert!(run.code == 2 && run.stderr.contains(part), "{args:?}: {run:?}");
    }
}

#[test]
fn a_peer_check_without_rdma_devices_is_an_error() {
    // An unreadable library, found before the host's own, so that the host's devices do not matter.
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("libibverbs.so.1"), "").expect("written");
    let mut command = command(&["doctor", "--only", "peer", "--json", "--rdma-peer", "127.0.0.1:1"]);
    let run = finish(command.env("LD_LIBRARY_PATH", folder.path()).output().expect("the program starts"));
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    let findings = document["findings"].as_array().expect("a list");
    assert!(run.code == 1 && findings.len() == 1, "{run:?}");
    let found = &findings[0];
    assert_eq!((&found["id"], &found["severity"]), (&json!("peer-connected"), &json!("error")));
    assert!(found["evidence"].as_str().expect("text").starts_with("rdma is not available on this host: "), "{found}");
    assert_eq!(document["summary"]["skipped"], 3);
}

#[test]
fn an_empty_root_folder_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = mcctl(&["doctor", "--root", dir.path().to_str().expect("text")]);
    assert!(run.fails(2).contains("has neither /proc nor /sys"), "{run:?}");
}

#[test]
fn sighup_and_sigterm_stop_it_with_a_partial_report() {
    // Accepts connections but never responds.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let master = silent.local_addr().expect("bound").to_string();
    for signal in [Signal::SIGHUP, Signal::SIGTERM] {
        // Long enough that it does not end early on a busy machine.
        let args = ["doctor", "-v", "--only", "memory,master-reached", "--timeout", "8s", "--master", &master];
        let mut service = Service::start(with_hangups(&command(&args)));
        let status = format!("/proc/{}/status", service.pid());
        wait_until("it handles signals", PATIENCE, || {
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim().to_owned();
            u64::from_str_radix(&mask, 16).is_ok_and(|mask| mask & 1 == 1 && mask >> 14 & 1 == 1)
        });
        assert_eq!(service.stop(signal), 1);
        service.line_with("accepts connections but does not respond");
        service.line_with(&format!("error: {}: stopped before all checks had completed", signal.as_str()));
    }
}

#[test]
fn sglang_and_etcd_flags_are_used() {
    let settings = json!({"version": "0.5.23", "enable_hierarchical_cache": false, "page_size": 64}).to_string();
    let (code, text) = block_on(async {
        let (server, _) = Recorded::start(&[("/server_info", settings), ("/v3/kv/range", "{}".to_owned())]).await;
        let url = format!("http://{}", server.at());
        let etcd = format!("etcd://{}", server.at());
        let run = tokio::task::spawn_blocking(move || {
            mcctl(&["doctor", "--only", "cluster,serving", "--sglang", &url, "--master", &etcd])
        });
        let run = run.await.expect("it ended");
        (run.code, run.stdout)
    });
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("hicache-on: ") && text.contains("leader-record: "), "{text}");
}
