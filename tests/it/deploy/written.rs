//! Rendered files: snapshots, and checks by the programs that read them.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::{FORMATS, all_fixtures, fixture};
use crate::cli::mcctl;

/// The rendered files by name.
pub fn files(format: &str, name: &str) -> BTreeMap<String, String> {
    let run = mcctl(&["render", format, &fixture(name), "--json"]);
    let document: serde_json::Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert_eq!(document["schema"], "mcctl.render/1");
    let pair = |file: &serde_json::Value| {
        let text = |key: &str| file[key].as_str().expect("a text").to_owned();
        (text("name"), text("text"))
    };
    document["files"].as_array().expect("a list").iter().map(pair).collect()
}

pub fn check(format: &str, name: &str) {
    let run = mcctl(&["render", format, &fixture(name)]);
    let snapshot = format!("render_{}_{format}", name.split('.').next().expect("a name"));
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "snapshots"}, {
        insta::assert_snapshot!(snapshot, run.succeeds());
    });
}

#[test]
fn the_laptop_deployment_in_every_format() {
    FORMATS.iter().for_each(|format| check(format, "laptop.toml"));
}

#[test]
fn the_store_node_deployment_in_every_format() {
    FORMATS.iter().for_each(|format| check(format, "store-nodes.toml"));
}

#[test]
fn command_lines_and_units_of_the_other_deployments() {
    for name in ["single.toml", "distributed.yaml", "pd.yaml", "ha.toml", "rdma-hugepages.toml", "mcctl.toml"] {
        check("sglang", name);
        check("systemd", name);
    }
    check("systemd", "mcctl-ha.toml");
    check("systemd", "mcctl-ha-metadata.toml");
}

#[test]
fn output_is_deterministic_and_names_its_source() {
    for name in all_fixtures() {
        for format in FORMATS {
            let first = files(format, &name);
            assert!(!first.is_empty() && first == files(format, &name), "{name} {format}");
            for (file, text) in first {
                let head: String = text.lines().take(2).collect();
                assert!(head.contains(&format!("render {format} from {name}")), "{file}: {head}");
                assert!(text.ends_with('\n') && !text.contains("$(POD"), "{file}");
            }
        }
    }
}

/// Asserts that the shell parses `text` without an error.
fn assert_shell_syntax(shell: &str, text: &str) {
    let mut child = Command::new(shell).arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect(shell);
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("ended");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn scripts_and_environment_files_have_valid_shell_syntax() {
    for name in all_fixtures() {
        for format in ["env", "sglang", "docker"] {
            for text in files(format, &name).values() {
                assert_shell_syntax("sh", text);
            }
        }
    }
}

#[test]
fn environment_files_and_scripts_set_the_same_variables() {
    for name in all_fixtures() {
        let env = files("env", &name);
        for (script, text) in files("sglang", &name) {
            let exported: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("export ")).collect();
            let set = &env[&script.replace(".sh", ".env")];
            let set: Vec<&str> = set.lines().filter(|line| !line.starts_with('#')).collect();
            assert_eq!(exported, set, "{script}");
        }
    }
}

/// Exactly the Compose keys that are written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Compose {
    name: String,
    services: BTreeMap<String, Service>,
    #[serde(default)]
    volumes: BTreeMap<String, Volume>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Volume {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Service {
    container_name: String,
    image: String,
    entrypoint: Vec<String>,
    #[serde(default)]
    command: Vec<String>,
    network_mode: String,
    restart: String,
    stop_grace_period: String,
    #[serde(default)]
    environment: Vec<String>,
    #[serde(default)]
    depends_on: BTreeMap<String, BTreeMap<String, String>>,
    ulimits: BTreeMap<String, i64>,
    #[serde(default)]
    cap_add: Vec<String>,
    #[serde(default)]
    devices: Vec<String>,
    #[serde(default)]
    volumes: Vec<String>,
    shm_size: Option<u64>,
    healthcheck: Option<serde_json::Value>,
    deploy: Option<serde_json::Value>,
    #[serde(default)]
    pre_stop: Vec<BTreeMap<String, Vec<String>>>,
}

#[test]
fn compose_files_have_known_keys_and_valid_dependencies() {
    for name in all_fixtures() {
        for (file, text) in files("compose", &name) {
            let compose: Compose = serde_yaml_ng::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
            for (service, found) in &compose.services {
                assert_eq!(service, &found.container_name);
                assert!(found.depends_on.keys().all(|other| compose.services.contains_key(other)), "{file}");
                let named = found.volumes.iter().filter(|volume| !volume.starts_with('/'));
                let data = named.clone().filter(|volume| !volume.ends_with(":/root/.cache/huggingface"));
                let names = named.clone().map(|volume| volume.split(':').next().expect("a name"));
                assert!(names.clone().all(|name| compose.volumes[name].name == name), "{file}");
                assert!(found.image.contains(':') && found.network_mode == "host", "{file}");
                let words = found.entrypoint.iter().chain(&found.command).chain(&found.environment);
                assert_eq!(
                    found.command.iter().any(|word| word.starts_with("--data-dir=")),
                    data.count() == 1,
                    "{file}"
                );
                // Compose would substitute a single $.
                assert!(words.into_iter().all(|word| !word.replace("$$", "").contains('$')), "{file}");
            }
        }
    }
}

#[test]
fn the_master_has_a_directory_that_outlives_it() {
    let unit = |flags: &[&str]| {
        let run = mcctl(&[&["render", "systemd", &fixture("mcctl.toml")], flags].concat());
        let text = run.succeeds().to_owned();
        text.split("# ---- ").find(|file| file.contains("ours-master.service")).expect("a unit").to_owned()
    };
    let has = |text: &str, lines: &[&str]| lines.iter().all(|line| text.lines().any(|found| found == *line));
    let standard = unit(&[]);
    assert!(standard.contains(" --data-dir=/var/lib/mcctl/ours-master"), "{standard}");
    let lines = ["StateDirectory=mcctl/ours-master", "StateDirectoryMode=0700", "TimeoutStopSec=69"];
    assert!(has(&standard, &lines), "{standard}");
    let elsewhere = unit(&["--set", "master.data_dir=/mnt/kv", "--set", "host.user=kv"]);
    let lines = ["RequiresMountsFor=/mnt/kv", "ExecStartPre=+/usr/bin/install -d -m 0700 -o kv /mnt/kv"];
    assert!(has(&elsewhere, &lines) && !elsewhere.contains("StateDirectory"), "{elsewhere}");
    let without = unit(&["--no-master-data"]);
    assert!(!without.contains("data-dir") && !without.contains("StateDirectory"), "{without}");
    assert!(has(&without, &["TimeoutStopSec=30"]), "{without}");
    let docker = mcctl(&["render", "docker", &fixture("mcctl.toml")]);
    let volume = "--volume ours-master-data:/var/lib/mcctl/ours-master";
    assert!(docker.succeeds().lines().any(|line| line.trim().starts_with(volume)), "{docker:?}");
}

#[test]
fn each_elected_master_has_a_directory_on_its_host() {
    let hosts = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    let (units, compose, docker) =
        (files("systemd", "mcctl-ha.toml"), files("compose", "mcctl-ha.toml"), files("docker", "mcctl-ha.toml"));
    for (i, host) in hosts.iter().enumerate() {
        let unit = &units[&format!("{host}/etc/systemd/system/ha-master-{i}.service")];
        let start = unit.lines().find(|line| line.starts_with("ExecStart=")).expect("a command");
        assert!(
            start.contains(" --enable_ha=true ") && start.ends_with(" --data-dir=/var/lib/mcctl/ha-master"),
            "{unit}"
        );
        assert!(unit.lines().any(|line| line == "StateDirectory=mcctl/ha-master"), "{unit}");
        let compose: Compose = serde_yaml_ng::from_str(&compose[&format!("{host}/compose.yaml")]).expect("valid");
        assert_eq!(compose.services[&format!("ha-master-{i}")].volumes, ["ha-master-data:/var/lib/mcctl/ha-master"]);
        assert_eq!(compose.volumes.keys().collect::<Vec<_>>(), ["ha-master-data"]);
        let script = &docker[&format!("{host}/docker.sh")];
        assert_eq!(script.matches("--volume ha-master-data:/var/lib/mcctl/ha-master").count(), 1, "{script}");
    }
    let conflicts = ["--enable_http_metadata_server", "--enable_snapshot"];
    assert!(units.values().all(|text| conflicts.iter().all(|flag| !text.contains(flag))));
    let without = mcctl(&["render", "systemd", &fixture("mcctl-ha.toml"), "--no-master-data"]);
    assert!(!without.succeeds().contains("data-dir"), "{without:?}");
}

#[test]
#[ignore = "needs docker compose"]
fn docker_compose_accepts_every_file() {
    let version = Command::new("docker").args(["compose", "version"]).output();
    let is_installed = version.is_ok_and(|output| output.status.success());
    assert!(is_installed, "docker compose is missing (Debian packages: docker.io and docker-compose)");
    for name in all_fixtures() {
        for (file, text) in files("compose", &name) {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("compose.yaml");
            std::fs::write(&path, text).expect("written");
            let output = Command::new("docker").args(["compose", "-f"]).arg(&path).args(["config", "-q"]).output();
            let output = output.expect("docker");
            assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn lint_finds_no_mistake_in_rendered_files() {
    for name in all_fixtures() {
        for format in FORMATS {
            let folder = tempfile::tempdir().expect("a folder");
            for (file, text) in files(format, &name) {
                // Host settings start no process.
                if ["/sysctl.d/", "/sysusers.d/", "/tmpfiles.d/"].iter().any(|folder| file.contains(folder)) {
                    continue;
                }
                let path = folder.path().join(&file);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
                std::fs::write(&path, text).expect("written");
                let run = mcctl(&["lint", "--json", path.to_str().expect("text")]);
                assert_eq!(run.code, 0, "{name} {format} {file}: {run:?}");
                let report: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
                let above_info = [&report["counts"]["error"], &report["counts"]["warning"]];
                assert!(above_info.iter().all(|count| **count == 0), "{name} {format} {file}: {report}");
                let has_processes = ["docker", "compose", "sglang"].contains(&format) || file.ends_with(".service");
                let processes = report["processes"].as_array().expect("a list");
                assert!(!has_processes || !processes.is_empty(), "{name} {format} {file}: {report}");
            }
        }
    }
}
