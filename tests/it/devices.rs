//! `mcctl devices` on the hosts of fixtures/hosts. Each host is a folder tree created from one text
//! file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::cli::{Run, command, finish, mcctl};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hosts")
}

/// Creates the folder tree of a fixture. fixtures/hosts/README.md describes the file format.
pub fn host(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(fixtures().join(format!("{name}.txt"))).unwrap();
    let mut base = "/".to_owned();
    let mut links = Vec::new();
    let place = |base: &str, path: &str| match path.strip_prefix('/') {
        Some(path) => path.to_owned(),
        None => format!("{}/{path}", base.trim_matches('/')),
    };
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(folder) = line.strip_prefix("@ ") {
            base = folder.to_owned();
        } else if let Some((path, target)) = line.split_once(" -> ") {
            links.push((place(&base, path), target.trim_start_matches('/').to_owned()));
        } else if let Some(path) = line.strip_suffix('/') {
            fs::create_dir_all(dir.path().join(place(&base, path))).unwrap();
        } else {
            let (path, content) = line.split_once(": ").unwrap_or_else(|| (line.strip_suffix(':').expect(line), ""));
            let file = dir.path().join(place(&base, path));
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{}\n", content.replace("\\n", "\n").replace("\\t", "\t"))).unwrap();
        }
    }
    for (path, target) in links {
        let link = dir.path().join(&path);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(format!("{}{target}", "../".repeat(path.matches('/').count())), link).unwrap();
    }
    dir
}

fn devices(name: &str, args: &[&str]) -> Run {
    let dir = host(name);
    let root = format!("--root={}", dir.path().display());
    mcctl(&[&["devices", &root], args].concat())
}

fn json(name: &str) -> Value {
    serde_json::from_str(devices(name, &["--json"]).succeeds()).expect("one JSON document")
}

/// The id of each finding, followed by its device if it has one.
fn findings(document: &Value) -> Vec<String> {
    let one =
        |f: &Value| format!("{} {}", f["id"].as_str().unwrap(), f["device"].as_str().unwrap_or("")).trim().to_owned();
    document["findings"].as_array().unwrap().iter().map(one).collect()
}

#[test]
fn every_recorded_host_matches_its_snapshot() {
    let mut names: Vec<String> = fs::read_dir(fixtures())
        .unwrap()
        .filter_map(|e| Some(e.unwrap().file_name().into_string().unwrap().strip_suffix(".txt")?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() >= 8, "{names:?}");
    for name in names {
        let run = devices(&name, &[]);
        insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
            insta::assert_snapshot!(format!("devices_{name}"), run.succeeds());
        });
        assert_eq!(run.stderr, "", "{name}");
    }
}

#[test]
fn every_fixture_names_its_source() {
    for entry in fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "txt") {
            let head: Vec<String> = fs::read_to_string(&path).unwrap().lines().take(3).map(str::to_owned).collect();
            assert!(
                head.iter().any(|l| l.starts_with("# Made up") || l.starts_with("# Taken from")),
                "{}",
                path.display()
            );
        }
    }
}

#[test]
fn eight_gpus_get_one_device_each_without_the_slow_bond() {
    let document = json("hgx-8-gpus");
    assert_eq!(document["schema"], "mcctl.devices/1");
    let all: Vec<String> = (0..8).map(|i| format!("mlx5_{i}")).collect();
    assert_eq!(document["environment"]["MOONCAKE_DEVICE"], all.join(","));
    assert_eq!(document["environment"]["MC_GID_INDEX"], "3");
    assert_eq!(document["sglang_flags"][0], format!("--disaggregation-ib-device {}", all.join(",")));
    assert_eq!(document["choice"]["left_out"][0]["device"], "mlx5_bond_0");
    assert_eq!(document["choice"]["listed"].as_array().unwrap().len(), 9, "upstream also uses the bond");
    for i in 0..8 {
        assert_eq!(document["topology"][format!("cuda:{i}")][0], serde_json::json!([format!("mlx5_{i}")]), "cuda:{i}");
        let device = &document["distances"][i];
        let gpu = document["gpus"][i]["pci"].as_str().unwrap();
        assert_eq!((&device["device"], &device["gpus"][gpu]), (&format!("mlx5_{i}").into(), &"PIX".into()));
        let (near, far) = if i < 4 { ("0", "1") } else { ("1", "0") };
        assert_eq!((&device["nodes"][near], &device["nodes"][far]), (&10.into(), &21.into()));
    }
    assert_eq!(document["topology"]["cpu:1"][0], serde_json::json!(all[4..].to_vec()));
}

#[test]
fn findings_appear_only_on_affected_hosts() {
    let found = |name: &str| findings(&json(name));
    for healthy in ["mlx5-infiniband", "hgx-8-gpus", "no-rdma", "uneven-gids"] {
        assert_eq!(found(healthy), Vec::<String>::new(), "{healthy}");
    }
    assert_eq!(found("mlx5-roce"), ["memlock"]);
    assert_eq!(found("port-down"), ["port-down ibp0s0", "port-down ibp1s0", "memlock"]);
    assert_eq!(found("roce-v1-only"), ["roce-v1-only mlx4_0", "port-down mlx4_0"]);
    assert_eq!(found("container"), ["uverbs-closed mlx5_0", "no-ipv4-gid mlx5_0", "no-provider mlx5_0", "memlock"]);
    assert_eq!(found("efa"), ["efa rdmap16s27", "efa rdmap32s27"]);
    assert_eq!(found("erdma"), ["erdma erdma_0"]);
    assert_eq!(found("irdma"), ["iwarp iwp177s0f1"]);
    assert_eq!(found("siw"), ["iwarp siw0", "software siw0"]);
    assert_eq!(found("rxe"), ["software rxe0", "software rxe1"]);
    let odd = json("odd");
    let ids = findings(&odd);
    assert_eq!(ids.iter().filter(|id| *id == "odd-text").count(), 6, "{ids:?}");
    assert!(ids.contains(&"unreadable".to_owned()), "{ids:?}");
}

#[test]
fn devices_with_different_gid_indexes_get_no_common_one() {
    let document = json("uneven-gids");
    let picked: Vec<(u64, u64)> = document["choice"]["picked"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| (p["index"].as_u64().unwrap(), p["automatic"].as_u64().unwrap()))
        .collect();
    assert_eq!(picked, [(3, 3), (4, 2)]);
    assert_eq!(document["environment"].get("MC_GID_INDEX"), None);
    assert_eq!(devices("uneven-gids", &["--format=env"]).succeeds(), "MOONCAKE_DEVICE=rocep129s0f0,rocep129s0f1\n");
}

#[test]
fn machine_readable_formats_match_upstream() {
    let dir = fixtures();
    let recorded = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    assert_eq!(devices("rxe", &["--format=ibv_devices"]).succeeds(), recorded("rxe.ibv_devices"));
    // Upstream prints a title line before and an empty line after.
    let dump = format!("Local topology [te/discover]: {}\n", devices("rxe", &["--format=topology"]).succeeds());
    assert_eq!(dump, recorded("rxe.topology"));
    let none = devices("no-rdma", &["--format=ibv_devices"]);
    assert_eq!(none.succeeds().lines().count(), 2);
    assert_eq!(
        devices("no-rdma", &["--format=topology"]).succeeds(),
        "{\n\t\"cpu:0\" : \n\t[\n\t\t[],\n\t\t[]\n\t]\n}\n"
    );
}

#[test]
fn a_host_without_rdma_lists_its_interfaces() {
    let document = json("no-rdma");
    assert_eq!(document["rdma"], "no-kernel-support");
    assert_eq!(
        document["environment"],
        serde_json::json!({"MOONCAKE_PROTOCOL": "tcp", "MOONCAKE_LOCAL_HOSTNAME": "192.0.2.17"})
    );
    let names: Vec<&str> =
        document["interfaces"].as_array().unwrap().iter().map(|i| i["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["lo", "eno1", "eno2", "docker0"]);
}

#[test]
fn mooncakes_environment_variables_are_used() {
    let dir = host("mlx5-roce");
    let run = |pairs: &[(&str, &str)]| {
        let mut command = command(&["devices", "--json", "--root", dir.path().to_str().unwrap()]);
        let run = finish(command.envs(pairs.iter().copied()).output().expect("the program starts"));
        (serde_json::from_str::<Value>(run.succeeds()).unwrap(), run.stderr)
    };
    let (document, _) = run(&[("MC_TE_FILTERS", "mlx5_1, mlx5_9")]);
    assert_eq!(document["environment"]["MOONCAKE_DEVICE"], "mlx5_1");
    assert_eq!(document["choice"]["left_out"][0]["why"], "excluded by MC_TE_FILTERS");
    assert!(findings(&document).contains(&"filter-names-none".to_owned()));
    let (document, _) = run(&[("MC_GID_INDEX", "5")]);
    assert_eq!(findings(&document).iter().filter(|f| f.starts_with("empty-gid-row")).count(), 2);
    let (document, stderr) = run(&[("MC_IB_PORT", "2"), ("MC_GID_INDEX", "x")]);
    assert_eq!(document["choice"]["left_out"][1]["why"], "the device has no port 2 (MC_IB_PORT)");
    assert!(stderr.starts_with("warning: MC_GID_INDEX=x "), "{stderr}");
}

#[test]
fn this_host_can_be_inspected() {
    let run = mcctl(&["devices", "--json"]);
    let document: Value = serde_json::from_str(run.succeeds()).expect("one JSON document");
    assert!(document["interfaces"].as_array().unwrap().iter().any(|i| i["name"] == "lo"), "{document}");
    assert!(!mcctl(&["devices"]).succeeds().is_empty());
}

#[test]
fn an_invalid_root_and_two_formats_exit_with_2() {
    let run = mcctl(&["devices", "--root=/none/at/all"]);
    assert!(run.fails(2).contains("--root /none/at/all"), "{run:?}");
    mcctl(&["devices", "--json", "--format=table"]).fails(2);
    mcctl(&["devices", "--format=xml"]).fails(2);
}
