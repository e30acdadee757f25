//! What `mcctl init` writes: it explains itself, and every format can be made of it.

use std::fs;
use std::process::Stdio;

use super::FORMATS;
use crate::cli::{command, finish, mcctl};

#[test]
fn every_arrangement_is_written_and_rendered_in_every_format() {
    let arrangements: [&[&str]; 7] = [
        &[],
        &["--tp", "4", "--hicache-size-gb", "64", "--hugepages", "2MiB"],
        &["--mode", "distributed", "--tp", "16", "--hosts", "a,b", "--master", "a"],
        &["--mode", "pd", "--tp", "2", "--hosts", "a", "--decode", "b", "--master", "a", "--metadata", "http"],
        &["--master", "a", "--stores", "b,c", "--store-segment", "100GiB", "--numa", "0,1", "--ssd", "/ssd"],
        &["--master", "10.0.0.1,10.0.0.2", "--hosts", "10.0.0.3", "--etcd", "10.0.0.9:2379"],
        &["--programs", "mcctl", "--mcctl-image", "mcctl:1", "--device", "cpu"],
    ];
    let folder = tempfile::tempdir().expect("a folder");
    for (i, flags) in arrangements.iter().enumerate() {
        for ending in ["toml", "yaml"] {
            let path = folder.path().join(format!("d{i}.{ending}"));
            let path = path.to_str().expect("text");
            mcctl(&[&["init", "--model", "Qwen/Qwen3-32B", "--out", path], *flags].concat()).succeeds();
            for format in FORMATS {
                mcctl(&["render", format, path]).succeeds();
            }
        }
    }
}

#[test]
fn the_file_explains_every_key() {
    let toml = mcctl(&["init", "--model", "/models/x", "--tp", "2", "--hosts", "10.0.0.1", "--master", "10.0.0.1"]);
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "snapshots"}, {
        insta::assert_snapshot!("init_toml", toml.succeeds());
        let yaml = mcctl(&["init", "--model", "/models/x", "--mode", "pd", "--format", "yaml"]);
        insta::assert_snapshot!("init_yaml", yaml.succeeds());
    });
}

#[test]
fn nobody_is_asked_where_nobody_can_answer() {
    let output = command(&["init"]).stdin(Stdio::null()).output().expect("ran");
    assert!(finish(output).fails(2).contains("the model is not given"));
    let output = command(&["init"]).stdin(Stdio::piped()).output().expect("ran");
    assert!(finish(output).fails(2).contains("the model is not given"));
}

#[test]
fn a_file_is_not_overwritten_and_contradictions_are_not_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d.toml");
    let path = path.to_str().expect("text");
    mcctl(&["init", "--model", "m", "--out", path]).succeeds();
    assert!(mcctl(&["init", "--model", "n", "--out", path]).fails(2).contains("is there already"));
    for flag in ["--decode=b", "--router=b"] {
        assert!(mcctl(&["init", "--model", "m", flag]).fails(2).contains("are of --mode pd"));
    }
    mcctl(&["init", "--model", "n", "--out", path, "--force"]).succeeds();
    assert!(fs::read_to_string(path).expect("read").contains("path = \"n\""));
    let (link, target) = (folder.path().join("link.toml"), folder.path().join("elsewhere"));
    std::os::unix::fs::symlink(&target, &link).expect("linked");
    let link = link.to_str().expect("text");
    assert!(mcctl(&["init", "--model", "m", "--out", link]).fails(2).contains("is there already"));
    assert!(!target.exists());
    for (flags, said) in [
        (&["--protocol", "rdma"][..], "transfer.devices"),
        (&["--hosts", "a"], "master.hosts: "),
        (&["--segment", "16gb"], "16GiB"),
        (&["--segment", "0"], "nobody lends"),
        (&["--format", "yaml", "--out", "x.toml"], "not the same"),
        (&["--out", "x.ini"], "name it .toml"),
        (&["--programs", "mcctl", "--etcd", "10.0.0.9:1"], "no high availability yet"),
    ] {
        let flags = [&["init", "--model", "m"], flags].concat();
        let line = mcctl(&flags).fails(2).to_owned();
        assert!(line.contains(said) && line.lines().count() == 1, "{flags:?}: {line}");
    }
}
