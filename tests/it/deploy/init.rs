//! `mcctl init`: the written file has comments and renders in every format.

use std::fs;
use std::process::Stdio;

use super::FORMATS;
use crate::cli::{command, finish, mcctl};

#[test]
fn every_arrangement_renders_in_every_format() {
    let arrangements: [&[&str]; 7] = [
        &[],
        &["--tp-size", "4", "--hicache-size", "64", "--hugepages", "2MiB"],
        &["--mode", "distributed", "--tp", "16", "--hosts", "a,b", "--master", "a"],
        &["--mode", "pd", "--tp", "2", "--hosts", "a", "--decode", "b", "--master", "a", "--metadata", "http"],
        &["--master", "a", "--stores", "b,c", "--store-segment", "100GiB", "--numa", "0,1", "--ssd", "/ssd"],
        &["--master", "10.0.0.1,10.0.0.2", "--hosts", "10.0.0.3", "--etcd", "10.0.0.9:2379"],
        &["--programs", "upstream", "--device", "cpu"],
    ];
    let folder = tempfile::tempdir().expect("a folder");
    for (i, flags) in arrangements.iter().enumerate() {
        for ending in ["toml", "yaml"] {
            let path = folder.path().join(format!("d{i}.{ending}"));
            let path = path.to_str().expect("text");
            let common = ["init", "--model", "Qwen/Qwen3-32B", "--mcctl-image", "mcctl:1", "--out", path];
            mcctl(&[&common, *flags].concat()).succeeds();
            for format in FORMATS {
                mcctl(&["render", format, path]).succeeds();
            }
        }
    }
}

#[test]
fn the_file_has_a_comment_for_every_key() {
    let toml = mcctl(&["init", "--model", "/models/x", "--tp", "2", "--hosts", "10.0.0.1", "--master", "10.0.0.1"]);
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "snapshots"}, {
        insta::assert_snapshot!("init_toml", toml.succeeds());
        let yaml = mcctl(&["init", "--model", "/models/x", "--mode", "pd", "--format", "yaml"]);
        insta::assert_snapshot!("init_yaml", yaml.succeeds());
    });
}

#[test]
fn init_does_not_ask_without_a_terminal() {
    let output = command(&["init"]).stdin(Stdio::null()).output().expect("ran");
    assert!(finish(output).fails(2).contains("--model"));
    let output = command(&["init"]).stdin(Stdio::piped()).output().expect("ran");
    assert!(finish(output).fails(2).contains("--model"));
}

#[test]
fn existing_files_and_contradictions_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d.toml");
    let path = path.to_str().expect("text");
    mcctl(&["init", "--model", "m", "--out", path]).succeeds();
    assert!(mcctl(&["init", "--model", "n", "--out", path]).fails(2).contains("already exists"));
    for flag in ["--decode=b", "--router=b"] {
        assert!(mcctl(&["init", "--model", "m", flag]).fails(2).contains("--mode pd"));
    }
    mcctl(&["init", "--model", "n", "--out", path, "--force"]).succeeds();
    assert!(fs::read_to_string(path).expect("read").contains("path = \"n\""));
    let link = folder.path().join("link.toml");
    let target = folder.path().join("elsewhere");
    std::os::unix::fs::symlink(&target, &link).expect("linked");
    let link = link.to_str().expect("text");
    assert!(mcctl(&["init", "--model", "m", "--out", link]).fails(2).contains("already exists"));
    assert!(!target.exists());
    for (flags, said) in [
        (&["--protocol", "rdma"][..], "transfer.devices"),
        (&["--hosts", "a", "--master", "127.0.0.1"], "master.hosts: "),
        (&["--decode-tp", "4"], "--mode pd"),
        (&["--allow-cidr", "10.0.0.1/8"], "access.allow_cidr: "),
        (&["--segment", "16xb"], "--segment"),
        (&["--segment", "0"], "segment.engines"),
        (&["--format", "yaml", "--out", "x.toml"], "contradicts"),
        (&["--out", "x.ini"], ".toml"),
        (&["--etcd", "10.0.0.9:1"], "master.hosts: high availability"),
    ] {
        let flags = [&["init", "--model", "m"], flags].concat();
        let line = mcctl(&flags).fails(2).to_owned();
        assert!(line.contains(said) && line.lines().count() == 1, "{flags:?}: {line}");
    }
}

#[test]
fn the_master_runs_on_the_first_host_that_is_given() {
    let run = mcctl(&["init", "--model", "m", "--hosts", "10.0.0.11,10.0.0.12", "--allow-cidr", "10.0.0.0/24"]);
    assert!(run.succeeds().contains("\n[master]\nhosts = [\"10.0.0.11\"]"), "{run:?}");
}

#[test]
fn mcctl_programs_are_the_default_and_upstream_replaces_them_where_needed() {
    let programs = |flags: &[&str]| {
        let run = mcctl(&[&["init", "--model", "m"], flags].concat());
        let line = run.succeeds().lines().find(|line| line.starts_with("programs = ")).expect("the key").to_owned();
        (line.split('"').nth(1).expect("a value").to_owned(), run.stderr)
    };
    assert_eq!(programs(&[]), ("mcctl".to_owned(), String::new()));
    let ssd = ["--master", "a", "--stores", "b", "--ssd", "/ssd"];
    let ha = ["--master", "10.0.0.1,10.0.0.2", "--hosts", "10.0.0.3", "--etcd", "10.0.0.9:2379"];
    let (chosen, note) = programs(&ssd);
    assert!(chosen == "upstream" && note.contains("mcctl does not support"), "{chosen}: {note}");
    assert_eq!(programs(&ha), ("mcctl".to_owned(), String::new()));
}

#[test]
fn the_file_names_the_data_directory_of_a_master_of_mcctl() {
    let line = |flags: &[&str]| {
        let run = mcctl(&[&["init", "--model", "m"], flags].concat());
        run.succeeds().lines().find(|line| line.contains("data_dir = ")).expect("the key").to_owned()
    };
    assert!(line(&["--name", "kv"]).starts_with("data_dir = \"/var/lib/mcctl/kv-master\""));
    assert!(line(&["--data-dir", "/mnt/kv"]).starts_with("data_dir = \"/mnt/kv\""));
    assert!(line(&["--data-dir", ""]).starts_with("data_dir = \"\""));
    assert!(line(&["--programs", "upstream"]).starts_with("# data_dir"));
    let ha = ["--master", "10.0.0.1,10.0.0.2", "--hosts", "10.0.0.3", "--etcd", "10.0.0.9:2379"];
    assert!(line(&ha).starts_with("# data_dir = \"/var/lib/mcctl/hicache-master\""));
    assert!(line(&[&ha[..], &["--data-dir", "/mnt/kv"]].concat()).starts_with("data_dir = \"/mnt/kv\""));
    let upstream = mcctl(&["init", "--model", "m", "--programs", "upstream", "--data-dir", "/mnt/kv"]);
    assert!(upstream.fails(2).contains("master.data_dir"));
}

#[test]
fn sizes_have_the_spellings_of_other_flags_and_ambiguous_ones_are_echoed() {
    for (text, is_echoed) in [("64gb", true), ("64GB", true), ("64g", true), ("64GiB", false), ("64Gi", false)] {
        let run = mcctl(&["init", "--model", "m", "--segment", text]);
        assert!(run.succeeds().contains("engines = \"64GiB\""), "{text}: {run:?}");
        assert_eq!(run.stderr.contains("64GiB"), is_echoed, "{text}: {run:?}");
    }
}
