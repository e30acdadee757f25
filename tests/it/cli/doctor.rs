//! `mcctl doctor` as a command: lists, reports, exit codes.

use nix::sys::signal::Signal;
use serde_json::Value;

use super::service::Service;
use super::{command, finish, mcctl};
use crate::peer::process::free_port;

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&mcctl(&[&["doctor", "--json"], args].concat()).stdout).expect("one JSON document")
}

#[test]
fn checks_are_listed_with_what_they_verify() {
    let run = mcctl(&["doctor", "--list", "--only", "wheel,memory"]);
    let lines: Vec<&str> = run.succeeds().lines().collect();
    assert!(lines[0].trim_start().starts_with("check"), "{lines:?}");
    assert!(lines.iter().any(|line| line.trim_start().starts_with("memory ")) && !run.stdout.contains("cgroup-memory"));
    let list = json(&["--list"]);
    assert_eq!(list["schema"], "mcctl.doctor-checks/1");
}

#[test]
fn all_26_problems_have_checks() {
    let document = json(&["--list-problems"]);
    let problems = document["problems"].as_array().expect("a list");
    assert_eq!(problems.len(), 26);
    for (problem, number) in problems.iter().zip(1..) {
        assert_eq!(problem["number"], number);
        assert!(!problem["checks"].as_array().expect("a list").is_empty(), "{problem}");
    }
    let run = mcctl(&["doctor", "--list-problems"]);
    assert!(run.succeeds().contains("\n26  ") && run.stdout.contains("not detected"));
}

#[test]
fn the_old_names_of_flags_still_work() {
    assert_eq!(json(&["--problems"]), json(&["--list-problems"]));
    mcctl(&["doctor", "--only=hostname", "--need-memory=1mb", "--need-hugepages=0", "--trial=0"]).succeeds();
}

#[test]
fn an_unknown_check_exits_with_2_and_suggestions() {
    let run = mcctl(&["doctor", "--only=memory,hugepage"]);
    assert!(run.fails(2).starts_with("error: 'hugepage' is neither") && run.stderr.contains("hugepages"), "{run:?}");
    mcctl(&["doctor", "--only=memory", "--skip=host"]).fails(2);
    mcctl(&["doctor", "--root=/none/such"]).fails(2);
    mcctl(&["doctor", "--plan=/none/such"]).fails(2);
    mcctl(&["doctor", "--fail-on=never"]).fails(2);
    mcctl(&["doctor", "--protocol=udp"]).fails(2);
    mcctl(&["doctor", "--expect-memory=lots"]).fails(2);
    mcctl(&["doctor", "--master=a:b"]).fails(2);
}

#[test]
fn fail_on_selects_the_severity_that_exits_with_1() {
    let args = ["doctor", "--only=open-files,memory", "--expect-memory=900tb"];
    let run = mcctl(&args);
    assert_eq!(run.code, 1);
    assert!(run.stdout.contains("\nerror    memory: the plan needs 900 TiB"), "{run:?}");
    let mut low = command(&["doctor", "--only=open-files"]);
    // A shell lowers the limit of its child.
    let program = low.get_program().to_owned();
    low = std::process::Command::new("sh");
    low.args(["-c", "ulimit -n 512; exec \"$0\" doctor --only=open-files \"$@\""]).arg(program);
    assert_eq!(finish(low.output().expect("a shell")).code, 1);
    low.arg("--fail-on=error");
    assert_eq!(finish(low.output().expect("a shell")).code, 0);
}

#[test]
fn the_document_has_an_entry_per_check_and_totals() {
    let document = json(&["--only=memory,port-down", "--expect-memory=900tb"]);
    let mut shape = document.clone();
    shape["checks"].as_array_mut().expect("a list").iter_mut().for_each(|check| check["ms"] = 0.into());
    shape["findings"][0]["finding"] = "...".into();
    shape["findings"][0]["evidence"] = "...".into();
    shape["checks"][1] = "as the host is".into();
    shape["summary"] = "...".into();
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!("doctor", serde_json::to_string_pretty(&shape).expect("JSON"));
    });
    let summary = &document["summary"];
    assert_eq!((&summary["checks"], &summary["errors"], &summary["warnings"]), (&2.into(), &1.into(), &0.into()));
}

#[test]
fn a_healthy_store_has_no_warnings() {
    let ports = ["--rpc-port=0", "--metrics-port=0", "--metadata-port=0", "--rest-port=0", "--segment-size=64mb"];
    let mut service = Service::start(command(&[&["up", "--json"][..], &ports].concat()));
    let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
    let environment = document["environment"].as_object().expect("a map").clone();
    // Only this store's process counts. The host and wheel checks depend on the machine, and so
    // does the latency of lookups.
    let pid = format!("--pid={}", service.pid());
    let mut doctor = command(&["doctor", "--json", "--timeout=30s", "--skip=host,wheel,lookup-latency", &pid]);
    doctor.envs(environment.iter().map(|(name, value)| (name, value.as_str().expect("text"))));
    let run = finish(doctor.output().expect("the program starts"));
    let found: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    for finding in found["findings"].as_array().expect("a list") {
        assert_eq!(finding["severity"], "info", "{finding}");
    }
    let checks = found["checks"].as_array().expect("a list");
    let how = |id: &str| checks.iter().find(|check| check["id"] == id).expect(id)["status"].clone();
    for id in ["manifest", "master-reached", "round-trip", "metadata-records", "counters-move"] {
        assert_eq!(how(id), "passed", "{id}: {found}");
    }
    assert_eq!(how("sglang-reached"), "skipped");
    assert_eq!(run.stderr, "");
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn the_statistics_of_specified_nodes_are_checked() {
    let ports = ["--rpc-port=0", "--metrics-port=0", "--metadata-port=0", "--rest-port=0", "--segment-size=64mb"];
    let mut service = Service::start(command(&[&["up", "--json"][..], &ports].concat()));
    let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
    let at = |name: &str| document[name].as_str().expect("an address").trim_start_matches("http://").to_owned();
    let flags = ["doctor", "--json", "--only=object-integrity"].map(str::to_owned);
    let master = [format!("--master={}", at("master")), format!("--admin={}", at("admin"))];
    let severities = |node: &str| {
        let node = format!("--node={node}");
        let words: Vec<&str> = flags.iter().chain(&master).chain([&node]).map(String::as_str).collect();
        let found: Value = serde_json::from_str(&mcctl(&words).stdout).expect("JSON");
        assert_ne!(found["checks"][0]["status"], "skipped", "{found}");
        found["findings"].as_array().expect("a list").iter().filter(|finding| finding["severity"] != "info").count()
    };
    assert_eq!(severities(&at("rest")), 0);
    // The master's admin port is not a node.
    assert_eq!(severities(&at("admin")), 1);
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn an_unreachable_master_or_server_is_an_error() {
    let nobody = free_port();
    let run = mcctl(&["doctor", "--only=master-reached", &format!("--master=127.0.0.1:{nobody}")]);
    assert!(run.code == 1 && run.stdout.contains("\nerror    master-reached: "), "{run:?}");
    let run = mcctl(&["doctor", "--only=sglang-reached", &format!("--sglang=http://127.0.0.1:{nobody}")]);
    assert!(run.code == 1 && run.stdout.contains("\nerror    sglang-reached: "), "{run:?}");
    mcctl(&["doctor", "--master=etcd://"]).fails(2);
    mcctl(&["doctor", "--metadata-server=ftp://x", "--master=127.0.0.1:1"]).fails(2);
}

#[test]
fn the_result_leads_and_names_the_groups_that_were_not_checked() {
    let run = mcctl(&["doctor", "--only=serving"]);
    assert!(run.code == 1 && run.stdout.starts_with("Result: nothing was checked (code 1)\n"), "{run:?}");
    let document = json(&["--only=serving"]);
    assert_eq!(document["summary"]["skipped"], document["summary"]["checks"]);
    assert_eq!(document["not_checked"], serde_json::json!(["serving"]));
    // The host is checked without a server.
    let run = mcctl(&["doctor", "--only=memory,serving"]);
    assert_eq!(run.code, 0, "{run:?}");
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert!(lines[0].starts_with("Result: ") && lines[1].starts_with("Not checked: serving "), "{lines:?}");
    assert_eq!(json(&["--only=memory"])["not_checked"], serde_json::json!([]));
}

#[test]
fn lint_rules_apply_to_files_environment_and_processes() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/lint/bad/huge-page-switch.env");
    let run = mcctl(&["doctor", "--only=config", "--file", file, "--json"]);
    let document: Value = serde_json::from_str(&run.stdout).expect("JSON");
    // Processes of this host can have findings of their own.
    let findings = document["findings"].as_array().expect("findings");
    let finding = findings.iter().find(|finding| finding["place"]["file"] == file).expect("a finding in the file");
    assert_eq!((run.code, &finding["id"]), (1, &"huge-page-switch".into()));
    assert!(finding["place"]["line"].as_u64() > Some(0));
    let mut unchecked = command(&["doctor", "--only=checksum", "--json", "--root=/"]);
    unchecked.env("MOONCAKE_STORE_CHECKSUM", "0");
    let run = finish(unchecked.output().expect("the program starts"));
    let document: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!((run.code, &document["findings"][0]["severity"]), (1, &"warning".into()), "{document}");
    let mut around = command(&["doctor", "--only=huge-page-switch", "--root=/"]);
    around.env("MC_STORE_USE_HUGEPAGE", "0");
    let run = finish(around.output().expect("the program starts"));
    assert!(run.code == 1 && run.stdout.contains("location  environment\n"), "{run:?}");
    mcctl(&["doctor", "--file=/none/such"]).fails(2);
    mcctl(&["doctor", "--file=/dev/null"]).fails(2);
    // The test itself is not a process of SGLang, Mooncake or mcctl.
    mcctl(&["doctor", &format!("--pid={}", std::process::id())]).fails(2);
}
