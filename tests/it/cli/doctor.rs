//! `mcctl doctor` as a command: what it lists, what it says, how it ends.

use nix::sys::signal::Signal;
use serde_json::Value;

use super::service::Service;
use super::{command, finish, mcctl};

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&mcctl(&[&["doctor", "--json"], args].concat()).stdout).expect("one JSON document")
}

#[test]
fn checks_are_listed_with_what_they_make_sure_of() {
    let run = mcctl(&["doctor", "--list", "--only", "wheel,memory"]);
    let lines: Vec<&str> = run.succeeds().lines().collect();
    assert!(lines[0].trim_start().starts_with("check"), "{lines:?}");
    assert!(lines.iter().any(|line| line.trim_start().starts_with("memory ")) && !run.stdout.contains("cgroup-memory"));
    let list = json(&["--list"]);
    assert_eq!(list["schema"], "mcctl.doctor-checks/1");
}

#[test]
fn all_26_problems_are_recognised_or_excused() {
    let document = json(&["--problems"]);
    let problems = document["problems"].as_array().expect("a list");
    assert_eq!(problems.len(), 26);
    for (problem, number) in problems.iter().zip(1..) {
        assert_eq!(problem["number"], number);
        let filled = |field: &str| !problem[field].as_array().expect("a list").is_empty();
        assert!(filled("checks") || filled("commands") || problem["beyond"].is_string(), "{problem}");
    }
    let run = mcctl(&["doctor", "--problems"]);
    assert!(run.succeeds().contains("\n26  ") && run.stdout.contains("out of reach"));
}

#[test]
fn an_unknown_check_is_2_with_the_nearest_names() {
    let run = mcctl(&["doctor", "--only=memory,hugepage"]);
    assert!(run.fails(2).starts_with("error: 'hugepage' is neither a check nor a group of checks; tried: --only and --skip; next: did you mean hugepages"), "{run:?}");
    mcctl(&["doctor", "--only=memory", "--skip=host"]).fails(2);
    mcctl(&["doctor", "--root=/none/such"]).fails(2);
    mcctl(&["doctor", "--plan=/none/such"]).fails(2);
    mcctl(&["doctor", "--fail-on=never"]).fails(2);
    mcctl(&["doctor", "--protocol=udp"]).fails(2);
    mcctl(&["doctor", "--need-memory=lots"]).fails(2);
    mcctl(&["doctor", "--master=a:b"]).fails(2);
}

#[test]
fn what_fails_is_for_the_caller_to_say() {
    let args = ["doctor", "--only=open-files,memory", "--need-memory=900tb"];
    let run = mcctl(&args);
    assert_eq!(run.code, 1);
    assert!(run.stdout.starts_with("error    memory: 900 TiB are planned and "), "{run:?}");
    let mut low = command(&["doctor", "--only=open-files"]);
    // A shell lowers the limit for what it starts.
    let program = low.get_program().to_owned();
    low = std::process::Command::new("sh");
    low.args(["-c", "ulimit -n 512; exec \"$0\" doctor --only=open-files \"$@\""]).arg(program);
    assert_eq!(finish(low.output().expect("a shell")).code, 1);
    low.arg("--fail-on=error");
    assert_eq!(finish(low.output().expect("a shell")).code, 0);
}

#[test]
fn the_document_has_a_line_for_each_check_and_the_sums() {
    let document = json(&["--only=memory,port-down", "--need-memory=900tb"]);
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
fn beside_a_healthy_store_there_is_nothing_above_info() {
    let ports = ["--rpc-port=0", "--metrics-port=0", "--metadata-port=0", "--rest-port=0", "--segment-size=64mb"];
    let mut service = Service::start(command(&[&["up", "--json"][..], &ports].concat()));
    let document: Value = serde_json::from_str(&service.line_with("mcctl.up/1")).expect("JSON");
    let environment = document["environment"].as_object().expect("a map").clone();
    let mut doctor = command(&["doctor", "--json"]);
    doctor.envs(environment.iter().map(|(name, value)| (name, value.as_str().expect("text"))));
    let run = finish(doctor.output().expect("the program starts"));
    let found: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    for finding in found["findings"].as_array().expect("a list") {
        assert_eq!(finding["severity"], "info", "{finding}");
    }
    assert!(found["summary"]["passed"].as_u64() > Some(15), "{found}");
    assert_eq!(run.stderr, "");
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}
