//! One deployment file for every command: `init`, `render`, `lint`, `size-hugepages` and `doctor`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{all_fixtures, fixture};
use crate::cli::{Run, mcctl};

/// All formats of `render`.
const FORMATS: [&str; 10] =
    ["env", "sglang", "systemd", "docker", "compose", "k8s", "kustomize", "rbg", "prometheus", "grafana"];

/// Eight GPUs on one host; prefill and decode with different sizes on two hosts; four replicas on
/// Kubernetes with access control.
const SHAPES: [&str; 3] = ["eight-gpus.toml", "pd-two-hosts.toml", "kubernetes-access.yaml"];

#[test]
fn rendered_files_have_no_errors_or_warnings() {
    for name in all_fixtures() {
        for format in FORMATS {
            let folder = tempfile::tempdir().expect("a folder");
            let out = folder.path().to_str().expect("text");
            let image = ["--image", "registry.test/mcctl:1"];
            let is_upstream = !fs::read_to_string(fixture(&name)).expect("text").contains("mcctl:0.1.0");
            let image = if is_upstream { &[][..] } else { &image };
            mcctl(&[&["render", format, &fixture(&name), "--out", out], image].concat()).succeeds();
            let run = mcctl(&["lint", out, "--json"]);
            let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
            let counts = &report["counts"];
            assert_eq!((&counts["error"], &counts["warning"]), (&0.into(), &0.into()), "{format} {name}: {report}");
            assert_eq!(report["unread"], Value::Array(Vec::new()), "{format} {name}");
        }
    }
}

#[test]
fn every_deployment_file_passes_lint() {
    for name in all_fixtures() {
        let run = mcctl(&["lint", &fixture(&name), "--json"]);
        let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
        assert!(report["processes"].as_array().expect("a list").len() > 1, "{name}: {report}");
    }
}

#[test]
fn a_deployment_of_many_hosts_is_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let hosts =
        |net: u32| (0..700).map(|n| format!("\"10.{net}.{}.{}\"", n / 200, n % 200 + 1)).collect::<Vec<_>>().join(", ");
    let text = fs::read_to_string(fixture("store-nodes.toml")).expect("text");
    let text = text
        .replace("[\"10.0.1.1\", \"10.0.1.2\"]", &format!("[{}]", hosts(1)))
        .replace("[\"10.0.0.2\", \"10.0.0.3\"]", &format!("[{}]", hosts(2)))
        .replace("replicas = 2", "replicas = 700");
    let path = folder.path().join("many.toml");
    fs::write(&path, text).expect("written");
    let run = mcctl(&["lint", path.to_str().expect("text"), "--json"]);
    let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert_eq!((&report["counts"]["error"], &report["counts"]["warning"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(report["processes"].as_array().map(Vec::len), Some(1 + 64 + 64));
}

#[test]
fn size_hugepages_reports_each_host_of_a_file() {
    for name in SHAPES {
        let run = mcctl(&["size-hugepages", &fixture(name), "--json"]);
        let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
        assert_eq!(report["schema"], "mcctl.size-hugepages.deployment/1");
        assert_eq!((&report["verdict"], &report["host_bytes"]), (&"fits".into(), &(1u64 << 40).into()), "{name}");
        let text = mcctl(&["size-hugepages", &fixture(name)]);
        assert!(text.succeeds().contains("it fits"), "{text:?}");
    }
    let run = mcctl(&["size-hugepages", &fixture("pd-two-hosts.toml"), "--json"]);
    let report: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    let hosts: Vec<&str> =
        report["hosts"].as_array().expect("a list").iter().filter_map(|h| h["host"].as_str()).collect();
    assert_eq!(hosts, ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(report["hosts"][1]["gpus"], 8);
}

/// The output of a run with exit code `code`.
#[track_caller]
fn ran(run: &Run, code: i32) -> &str {
    assert_eq!(run.code, code, "{run:?}");
    &run.stdout
}

/// Writes a copy of the fixture `name` in which `from` is `to`.
fn changed(folder: &Path, name: &str, from: &str, to: &str) -> String {
    let text = fs::read_to_string(fixture(name)).expect("text");
    assert!(text.contains(from), "{name} contains {from}");
    let path = folder.join(name);
    fs::write(&path, text.replace(from, to)).expect("written");
    path.to_str().expect("text").to_owned()
}

#[test]
fn every_command_reports_a_host_that_is_too_small() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in SHAPES {
        let (from, to) = match name.ends_with("toml") {
            true => ("memory = \"1TiB\"", "memory = \"128GiB\""),
            false => ("memory: 1TiB", "memory: 128GiB"),
        };
        let path = changed(folder.path(), name, from, to);
        let path = match name {
            "eight-gpus.toml" => {
                let text = fs::read_to_string(&path).expect("text").replace("\nhugepages = \"512GiB\"", "");
                fs::write(&path, text).expect("written");
                path
            }
            _ => path,
        };
        let lint = mcctl(&["lint", &path, "--json", "--only", "deployment-fit"]);
        let report: Value = serde_json::from_str(ran(&lint, 1)).expect("JSON");
        assert_eq!(report["findings"][0]["severity"], "error", "{report}");
        assert!(ran(&mcctl(&["size-hugepages", &path]), 1).contains("it does not fit"));
        let format = if name.starts_with("kubernetes") { "k8s" } else { "env" };
        let render = mcctl(&["render", format, &path]);
        render.succeeds();
        assert!(render.stderr.contains("[host.memory]"), "{render:?}");
        let init = mcctl(&["init", "--from", &path]);
        init.succeeds();
        assert!(init.stderr.contains("[host.memory]"), "{init:?}");
    }
}

#[test]
fn doctor_checks_the_host_of_a_deployment_file() {
    let plan = |flags: &[&str]| {
        let common = ["doctor", "--only", "memory,hugepages,ports", "--json", "--root", "/", "--plan"];
        mcctl(&[&common, flags].concat())
    };
    let run = plan(&[&fixture("pd-two-hosts.toml"), "--plan-host", "10.0.0.2"]);
    assert!(run.stderr.contains("checking this host as 10.0.0.2"), "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert!(report["schema"].as_str().is_some_and(|schema| schema.starts_with("mcctl.doctor/")), "{report}");
    assert!(plan(&[&fixture("pd-two-hosts.toml"), "--plan-host", "10.0.0.9"]).fails(2).contains("10.0.0.1, 10.0.0.2"));
    let run = plan(&[&fixture("kubernetes-access.yaml")]);
    assert!(run.stderr.contains("checking this host as serve-server"), "{run:?}");
    let run = plan(&[&fixture("lab.toml")]);
    assert!(run.stderr.contains("checking this host as 127.0.0.1"), "{run:?}");
}

#[test]
fn init_keeps_the_values_of_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in all_fixtures() {
        let path = folder.path().join(&name);
        let path = path.to_str().expect("text");
        mcctl(&["init", "--from", &fixture(&name), "--out", path]).succeeds();
        for format in ["env", "k8s"] {
            let before = mcctl(&["render", format, &fixture(&name)]);
            let after = mcctl(&["render", format, path]);
            assert_eq!(before.succeeds(), after.succeeds(), "{format} {name}");
        }
    }
    let changed =
        mcctl(&["init", "--from", &fixture("pd-two-hosts.toml"), "--decode-tp", "4", "--host-memory", "2TiB"]);
    let lines: Vec<&str> = changed.succeeds().lines().collect();
    assert!(lines.iter().any(|line| line.starts_with("memory = \"2TiB\"")), "{changed:?}");
    assert!(lines.iter().any(|line| line.starts_with("tp = 4 ")), "{changed:?}");
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_name() {
    let folder = tempfile::tempdir().expect("a folder");
    for (text, near) in [
        ("[model]\npath = \"m\"\n[host]\nmemry = \"1TiB\"\n", "memory"),
        ("[model]\npath = \"m\"\n[serving.decode]\nextra_arg = []\n", "extra_args"),
        ("[model]\npath = \"m\"\n[access]\nallow_cidrs = []\n", "allow_cidr"),
        ("[model]\npath = \"m\"\n[kubernetes]\ntoleration = []\n", "tolerations"),
        ("[model]\npath = \"m\"\n[kubernetes]\nvolumes = [{name = \"a\", mount = \"/a\"}]\n", "mount_path"),
    ] {
        let path = folder.path().join("d.toml");
        fs::write(&path, text).expect("written");
        let path = path.to_str().expect("text");
        for command in [&["render", "env", path][..], &["size-hugepages", path], &["doctor", "--plan", path]] {
            let error = mcctl(command).fails(2).to_owned();
            assert!(error.contains(&format!("did you mean '{near}'?")), "{error}");
        }
        assert!(ran(&mcctl(&["lint", path]), 1).contains(&format!("did you mean '{near}'?")));
    }
}
