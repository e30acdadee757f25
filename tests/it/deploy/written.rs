//! What is written, as one reads it, and by the programs that read it.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::{FORMATS, all_fixtures, fixture};
use crate::cli::mcctl;

/// The files of a format, by their names.
fn files(format: &str, name: &str) -> BTreeMap<String, String> {
    let run = mcctl(&["render", format, &fixture(name), "--json"]);
    let document: serde_json::Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert_eq!(document["schema"], "mcctl.render/1");
    let pair = |file: &serde_json::Value| {
        let text = |key: &str| file[key].as_str().expect("a text").to_owned();
        (text("name"), text("text"))
    };
    document["files"].as_array().expect("a list").iter().map(pair).collect()
}

fn check(format: &str, name: &str) {
    let run = mcctl(&["render", format, &fixture(name)]);
    let snapshot = format!("render_{}_{format}", name.split('.').next().expect("a name"));
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "snapshots"}, {
        insta::assert_snapshot!(snapshot, run.succeeds());
    });
}

#[test]
fn a_laptop_in_every_format() {
    FORMATS.iter().for_each(|format| check(format, "laptop.toml"));
}

#[test]
fn store_nodes_in_every_format() {
    FORMATS.iter().for_each(|format| check(format, "store-nodes.toml"));
}

#[test]
fn the_command_lines_and_units_of_the_others() {
    for name in ["single.toml", "distributed.yaml", "pd.yaml", "ha.toml", "rdma-hugepages.toml", "mcctl.toml"] {
        check("sglang", name);
        check("systemd", name);
    }
}

#[test]
fn the_same_file_gives_the_same_bytes_and_every_file_says_where_it_is_from() {
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

/// A shell reads the script of a file without a complaint.
fn a_shell_reads(shell: &str, text: &str) {
    let mut child = Command::new(shell).arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect(shell);
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("ended");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_shell_reads_every_script_and_environment_file() {
    for name in all_fixtures() {
        for format in ["env", "sglang", "docker"] {
            for text in files(format, &name).values() {
                a_shell_reads("sh", text);
            }
        }
    }
}

#[test]
fn the_variables_of_an_environment_file_are_those_of_the_script() {
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

/// The keys of Compose that are written, and no others.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Compose {
    name: String,
    services: BTreeMap<String, Service>,
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
fn a_compose_file_has_known_keys_and_depends_on_its_own_services() {
    for name in all_fixtures() {
        for (file, text) in files("compose", &name) {
            let compose: Compose = serde_yaml_ng::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
            for (service, found) in &compose.services {
                assert_eq!(service, &found.container_name);
                assert!(found.depends_on.keys().all(|other| compose.services.contains_key(other)), "{file}");
                assert!(found.image.contains(':') && found.network_mode == "host", "{file}");
                let words = found.entrypoint.iter().chain(&found.command).chain(&found.environment);
                // A single $ would be Compose's.
                assert!(words.into_iter().all(|word| !word.replace("$$", "").contains('$')), "{file}");
            }
        }
    }
}

#[test]
fn docker_compose_takes_every_file_where_there_is_one() {
    let there = Command::new("docker").args(["compose", "version"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        let _ = writeln!(
            std::io::stderr(),
            "NOT TESTED: docker compose is not here; the files were read by our own rules only"
        );
        return;
    }
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
fn lint_finds_no_mistake_in_what_is_written() {
    for name in all_fixtures() {
        for format in FORMATS {
            let folder = tempfile::tempdir().expect("a folder");
            for (file, text) in files(format, &name) {
                // What the host reserves starts no process.
                if file.contains("/sysctl.d/") || file.contains("/tmpfiles.d/") {
                    continue;
                }
                let path = folder.path().join(&file);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
                std::fs::write(&path, text).expect("written");
                let run = mcctl(&["lint", path.to_str().expect("text")]);
                assert_eq!(run.code, 0, "{name} {format} {file}: {run:?}");
                assert!(run.stdout.contains(" 0 errors, 0 warnings"), "{name} {format} {file}: {}", run.stdout);
                let sees = ["docker", "compose", "sglang"].contains(&format) || file.ends_with(".service");
                assert!(!sees || !run.stdout.contains(" 0 processes"), "{name} {format} {file}: {}", run.stdout);
            }
        }
    }
}
