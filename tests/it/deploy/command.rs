//! `mcctl render`: arguments, errors and written files.

use std::fs;

use super::fixture;
use crate::cli::mcctl;

/// Renders `text` as a deployment file and returns the error, which must be one line.
#[track_caller]
fn refused(format: &str, text: &str, more: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d.toml");
    fs::write(&path, text).expect("written");
    let path = path.to_str().expect("text");
    let run = mcctl(&[&["render", format, path], more].concat());
    let line = run.fails(2).to_owned();
    assert_eq!(line.lines().count(), 1, "{line}");
    line.replace(path, "d.toml")
}

const MODEL: &str = "[model]\npath = \"m\"\n";

#[test]
fn an_invalid_file_is_refused_in_one_line() {
    let mut texts = String::new();
    for text in [
        "[model\n",
        "[model]\npaht = \"m\"\n",
        "[model]\npath = 7\n",
        "programs = \"vllm\"\n",
        "[segment]\nengines = \"16xb\"\n",
        "mooncake = \"0.3.6\"\n",
        "",
        "[model]\npath = \"m\"\ntp = 0\n",
        "[model]\npath = \"m\"\ntp = -1\n",
        "[model]\npath = \"m\\n\"\n",
        "[model]\npath = \"m\"\n[master]\nextra_flags = [\"--evction_ratio=0.1\"]\n",
    ] {
        texts.push_str(&refused("env", text, &[]));
        texts.push('\n');
    }
    for set in ["model.tpp=2", "model.tp", "model.tp=two", "model.path.x=1"] {
        texts.push_str(&refused("env", MODEL, &["--set", set]));
        texts.push('\n');
    }
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "snapshots"}, {
        insta::assert_snapshot!("render_errors", texts);
    });
}

#[test]
fn containers_require_an_mcctl_image() {
    let text = format!("programs = \"mcctl\"\n{MODEL}");
    for format in ["docker", "compose"] {
        let line = refused(format, &text, &[]);
        assert!(line.contains("images.mcctl: required"), "{line}");
        assert!(line.contains("--image") && line.contains("packaging/container"), "{line}");
        let line = refused(format, &text, &["--set", "images.mcctl=mcctl"]);
        assert!(line.contains("images.mcctl: 'mcctl'"), "{line}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d.toml");
    fs::write(&path, &text).expect("written");
    let path = path.to_str().expect("text");
    mcctl(&["render", "systemd", path]).succeeds();
    mcctl(&["render", "docker", path, "--set", "images.mcctl=mcctl:1"]).succeeds();
}

#[test]
fn the_image_of_mcctl_is_set_by_a_flag() {
    for format in ["docker", "compose", "k8s", "rbg"] {
        let run = mcctl(&["render", format, &fixture("mcctl.toml"), "--image", "registry.test/kv/mcctl:2"]);
        assert!(run.succeeds().contains("registry.test/kv/mcctl:2"), "{run:?}");
        assert!(!run.stdout.contains("registry.example/mcctl"), "{run:?}");
    }
    assert!(mcctl(&["render", "k8s", &fixture("mcctl.toml"), "--image", "mcctl"]).fails(2).contains("images.mcctl: "));
    assert!(mcctl(&["render", "k8s", &fixture("single.toml"), "--image", "mcctl:2"]).fails(2).contains("--image"));
}

#[test]
fn a_unit_without_a_user_runs_no_program_of_a_home_directory() {
    let bin = ["--set", "host.bin_dir=/home/kv/bin"];
    let systemd = |more: &[&str]| mcctl(&[&["render", "systemd", &fixture("mcctl.toml")], &bin[..], more].concat());
    assert!(systemd(&[]).fails(2).contains("host.user: "));
    assert!(systemd(&["--set", "host.user=kv"]).succeeds().contains("\nProtectHome=read-only\n"));
}

#[test]
fn a_missing_file_and_an_unknown_format_are_usage_errors() {
    assert!(mcctl(&["render", "env", "/nowhere/d.toml"]).fails(2).contains("cannot read /nowhere/d.toml"));
    assert!(mcctl(&["render", "env", "/nowhere/d.ini"]).fails(2).contains(".toml, .yaml or .yml"));
    assert!(mcctl(&["render", "helm", &fixture("single.toml")]).fails(2).contains("env, sglang"));
}

#[test]
fn set_overrides_values_and_ambiguous_sizes_are_echoed() {
    let run =
        mcctl(&["render", "sglang", &fixture("single.toml"), "--set", "model.tp=2", "--set", "model.page_size=32"]);
    let text = run.succeeds();
    assert!(text.contains("--tp-size 2") && text.contains("--page-size 32"), "{text}");
    let run = mcctl(&["render", "sglang", &fixture("single.toml"), "--set", "segment.engines=64gb"]);
    assert!(run.succeeds().contains("MOONCAKE_GLOBAL_SEGMENT_SIZE=64gb"), "{run:?}");
    assert!(run.stderr.contains("64GiB"), "{run:?}");
    let near = mcctl(&["render", "sglang", &fixture("single.toml"), "--set", "model.tpp=8"]).fails(2).to_owned();
    assert!(near.contains("did you mean 'model.tp'?"), "{near}");
}

#[test]
fn the_volume_of_the_master_is_set_by_flags() {
    let k8s = |flags: &[&str]| mcctl(&[&["render", "k8s", &fixture("mcctl.toml")], flags].concat());
    let set = k8s(&["--storage-class", "fast-ssd", "--master-storage", "20Gi"]);
    assert!(set.succeeds().contains("storageClassName: fast-ssd") && set.stdout.contains("storage: 20Gi"), "{set:?}");
    let standard = k8s(&[]);
    assert!(standard.succeeds().contains("storage: 10Gi") && !standard.stdout.contains("storageClassName"));
    assert!(!k8s(&["--no-master-data"]).succeeds().contains("PersistentVolumeClaim"));
    assert!(k8s(&["--master-storage", "20xb"]).fails(2).contains("kubernetes.master_storage"));
    assert!(k8s(&["--storage-class", "A b"]).fails(2).contains("kubernetes.storage_class"));
    k8s(&["--no-master-data", "--storage-class", "a"]).fails(2);
}

#[test]
fn several_masters_of_a_group_have_no_data_directory() {
    let rbg = |flags: &[&str]| mcctl(&[&["render", "rbg", &fixture("mcctl-ha.toml")], flags].concat());
    assert!(!rbg(&[]).succeeds().contains("data-dir"));
    let line = rbg(&["--set", "master.data_dir=/var/lib/kv"]).fails(2).to_owned();
    assert!(line.contains("master.data_dir: ") && line.contains("data_dir = \"\""), "{line}");
    assert!(rbg(&["--storage-class", "fast"]).fails(2).contains("kubernetes.storage_class: "));
    rbg(&["--set", "master.data_dir=/var/lib/kv", "--no-master-data"]).succeeds();
}

#[test]
fn changed_files_are_kept_unless_forced() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let out = out.to_str().expect("text");
    let args = ["render", "env", &fixture("single.toml"), "--out", out];
    let first = mcctl(&args);
    assert!(first.succeeds().lines().all(|line| line.starts_with("wrote  ")), "{first:?}");
    assert!(mcctl(&args).succeeds().lines().all(|line| line.starts_with("same   ")));
    let path = folder.path().join("out/10.0.0.1/single-master.env");
    fs::write(&path, "mine\n").expect("written");
    assert!(mcctl(&args).fails(2).contains("different contents"));
    assert_eq!(fs::read_to_string(&path).expect("read"), "mine\n");
    mcctl(&[&args[..], &["--force"]].concat()).succeeds();
    assert_ne!(fs::read_to_string(&path).expect("read"), "mine\n");
    let left: Vec<_> = fs::read_dir(folder.path().join("out/10.0.0.1")).expect("a folder").collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn an_unwritable_folder_is_a_host_error() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("10.0.0.1"), "a file where a folder must be").expect("written");
    let out = folder.path().to_str().expect("text");
    let run = mcctl(&["render", "env", &fixture("single.toml"), "--out", out]);
    assert!(run.fails(4).contains("cannot write"), "{run:?}");
}
