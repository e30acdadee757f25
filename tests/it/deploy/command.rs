//! What `mcctl render` takes, refuses and leaves behind.

use std::fs;

use super::fixture;
use crate::cli::mcctl;

/// Render `text` as a deployment file; gives the one line that refuses it.
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
fn a_wrong_file_is_refused_in_one_line_with_its_place() {
    for (text, said) in [
        ("[model\n", "error: d.toml: line 1: "),
        ("[model]\npaht = \"m\"\n", "error: d.toml: line 2: unknown key 'paht'; nearest is 'path'"),
        ("[model]\npath = 7\n", "error: d.toml: line 2: invalid type: integer `7`, expected a string"),
        ("programs = \"vllm\"\n", "error: d.toml: line 1: unknown variant `vllm`"),
        ("[segment]\nengines = \"16gb\"\n", "error: d.toml: line 2: '16gb' is not a size: write 16GiB (1024-based)"),
        ("mooncake = \"0.3.6\"\n", "error: d.toml: line 1: unknown variant `0.3.6`"),
        ("", "error: d.toml: model.path: "),
        ("[model]\npath = \"m\"\ntp = 0\n", "error: d.toml: model.tp: must be at least 1"),
        ("[model]\npath = \"m\"\ntp = -1\n", "error: d.toml: line 3: "),
        ("[model]\npath = \"m\\n\"\n", "error: d.toml: model.path: "),
        (
            "[model]\npath = \"m\"\n[master]\nextra_flags = [\"--evction_ratio=0.1\"]\n",
            "error: d.toml: master.extra_flags: a master has no flag --evction_ratio; nearest is --eviction",
        ),
    ] {
        let line = refused("env", text, &[]);
        assert!(line.starts_with(said), "{line}");
    }
}

#[test]
fn an_image_of_mcctl_must_be_filled_in_for_containers_only() {
    let text = format!("programs = \"mcctl\"\n{MODEL}");
    for format in ["docker", "compose"] {
        let line = refused(format, &text, &[]);
        assert!(line.contains("images.mcctl: programs = \"mcctl\" needs an image of mcctl"), "{line}");
        let line = refused(format, &text, &["--set", "images.mcctl=mcctl"]);
        assert!(line.contains("is not the name of an image with a tag or digest"), "{line}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d.toml");
    fs::write(&path, &text).expect("written");
    let path = path.to_str().expect("text");
    mcctl(&["render", "systemd", path]).succeeds();
    mcctl(&["render", "docker", path, "--set", "images.mcctl=mcctl:1"]).succeeds();
}

#[test]
fn a_file_that_is_not_there_or_of_another_kind_is_refused() {
    assert!(mcctl(&["render", "env", "/nowhere/d.toml"]).fails(2).contains("cannot read /nowhere/d.toml"));
    assert!(mcctl(&["render", "env", "/nowhere/d.ini"]).fails(2).contains("name it .toml, .yaml or .yml"));
    assert!(mcctl(&["render", "helm", &fixture("single.toml")]).fails(2).contains("known are env, sglang"));
}

#[test]
fn a_set_changes_a_value_and_a_wrong_one_is_refused() {
    let run =
        mcctl(&["render", "sglang", &fixture("single.toml"), "--set", "model.tp=2", "--set", "model.page_size=32"]);
    let text = run.succeeds();
    assert!(text.contains("--tp-size 2") && text.contains("--page-size 32"), "{text}");
    for bad in ["model.tpp=2", "model.tp", "model.tp=two", "model.path.x=1"] {
        let line = mcctl(&["render", "sglang", &fixture("single.toml"), "--set", bad]).fails(2).to_owned();
        assert!(line.contains("sets nothing"), "{line}");
    }
}

#[test]
fn a_folder_gets_the_files_and_keeps_what_somebody_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let out = out.to_str().expect("text");
    let args = ["render", "env", &fixture("single.toml"), "--out", out];
    let first = mcctl(&args);
    assert!(first.succeeds().lines().all(|line| line.starts_with("wrote  ")), "{first:?}");
    assert!(mcctl(&args).succeeds().lines().all(|line| line.starts_with("same   ")));
    let path = folder.path().join("out/10.0.0.1/single-master.env");
    fs::write(&path, "mine\n").expect("written");
    assert!(mcctl(&args).fails(2).contains("is there and differs"));
    assert_eq!(fs::read_to_string(&path).expect("read"), "mine\n");
    mcctl(&[&args[..], &["--force"]].concat()).succeeds();
    assert_ne!(fs::read_to_string(&path).expect("read"), "mine\n");
    let left: Vec<_> = fs::read_dir(folder.path().join("out/10.0.0.1")).expect("a folder").collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn what_cannot_be_written_is_an_error_of_the_host() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("10.0.0.1"), "a file where a folder must be").expect("written");
    let out = folder.path().to_str().expect("text");
    let run = mcctl(&["render", "env", &fixture("single.toml"), "--out", out]);
    assert!(run.fails(4).contains("cannot write"), "{run:?}");
}
