//! Upstream's flags and files. Unit tests of the parser cover the syntax; `exit.rs` covers the
//! error texts.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::{finish, mcctl};

#[test]
fn enabling_an_absent_feature_is_refused() {
    for switch in [
        "--enable-oplog",
        "--enable_offload=1",
        "--promotion_on_hit",
        "--root_fs_dir=/mnt/x",
        "--enable_cxl",
        "--enable_multi_tenants",
        "--enable_kv_events",
        "--dynamic_replication_mode=enforce",
    ] {
        let run = mcctl(&["serve", "master", switch]);
        assert!(run.fails(2).contains("is not available: "), "{switch}: {run:?}");
    }
}

#[test]
fn thread_counts_above_the_maximum_are_2() {
    for flag in ["--rpc-thread-num", "--max-threads"] {
        let run = mcctl(&["serve", "master", &format!("{flag}=1025")]);
        assert!(run.fails(2).starts_with(&format!("error: {flag} is '1025'")), "{run:?}");
    }
}

#[test]
fn a_duplicate_key_of_a_file_is_2_and_named_with_its_line() {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, command, text) in [
        ("m.yaml", ["serve", "master", "--config_path"], "rpc_port: 1\nmetrics_port: 2\nrpc_port: 3\n"),
        ("m.json", ["serve", "master", "--config_path"], "{\"rpc_port\": 1,\n\"metrics_port\": 2,\n\"rpc_port\": 3}"),
        ("s.json", ["serve", "store", "--config"], "{\"protocol\": \"tcp\",\n\n\"protocol\": \"tcp\"}"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("written");
        let run = mcctl(&[&command[..], &[path.to_str().expect("text")]].concat());
        let error = run.fails(2);
        assert!(error.contains("duplicate key") && error.contains(" at line 3 column "), "{error}");
    }
}

#[test]
fn a_file_of_brackets_or_a_huge_file_is_2() {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, text) in
        [("m.yaml", "[".repeat(100_000)), ("m.json", "[".repeat(100_000)), ("h.yaml", "#".repeat(2 << 20))]
    {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("written");
        mcctl(&["serve", "master", "--config_path", path.to_str().expect("text")]).fails(2);
    }
}

#[test]
fn strict_config_refuses_unknown_keys_and_wrong_types() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("master.yaml");
    let shown = path.to_str().expect("text");
    for (text, what) in [
        ("rpc_prot: 1\n", "unknown key 'rpc_prot'"),
        ("client_ttl: 30\n", "unknown key 'client_ttl'"),
        ("metrics_port: many\n", "key 'metrics_port'"),
        ("enable_oplog: true\n", "--enable-oplog is not available"),
    ] {
        fs::write(&path, text).expect("written");
        let run = mcctl(&["serve", "master", "--strict-config", "--config_path", shown]);
        let error = run.fails(2);
        assert!(error.contains(what) && error.contains(shown), "{error}");
    }
}

#[test]
fn an_own_time_without_a_unit_is_accepted_with_a_warning() {
    let run = mcctl(&["status", "--master=127.0.0.1:1", "--admin=127.0.0.1:1", "--interval=5", "--timeout", "100"]);
    let warnings: Vec<&str> = run.fails(3).lines().filter(|line| line.starts_with("warning: ")).collect();
    assert_eq!(warnings.len(), 2, "{run:?}");
    assert!(warnings[0].starts_with("warning: --interval 5 "), "{run:?}");
    for args in [["--interval=0", "--timeout=100ms"], ["--interval=1.5s", "--timeout=0.1s"]] {
        let run = mcctl(&[&["status", "--master=127.0.0.1:1", "--admin=127.0.0.1:1"], &args[..]].concat());
        assert!(!run.fails(3).contains("warning"), "{run:?}");
    }
    mcctl(&["status", "--interval=1.5"]).fails(2);
}

#[test]
fn former_names_are_accepted_and_not_shown() {
    for (words, former, name) in [
        (&["init"][..], "segment", "segment-size"),
        (&["init"], "store-segment", "store-segment-size"),
        (&["up"], "host", "bind"),
        (&["bench", "store"], "batch", "batch-size"),
        (&["bench", "store"], "threads", "clients"),
    ] {
        let help = mcctl(&[words, &["--help-all"]].concat());
        let names: Vec<&str> =
            help.succeeds().split([' ', ',', '\n']).filter_map(|word| word.strip_prefix("--")).collect();
        assert!(names.contains(&name) && !names.contains(&former), "{words:?} --{former}");
        // The value is refused, and not the flag.
        let error = mcctl(&[words, &[&format!("--{former}=?")]].concat());
        assert!(error.fails(2).contains(&format!("--{name}")), "{error:?}");
    }
}

#[test]
fn a_link_with_an_upstream_name_behaves_as_that_program() {
    let dir = tempfile::tempdir().expect("a folder");
    for (link, command) in [
        ("mooncake_master", "serve master"),
        ("mooncake_http_metadata_server", "serve metadata"),
        ("mc_store_rest_server", "serve store"),
        ("mooncake_store_service", "serve store"),
    ] {
        let path = dir.path().join(link);
        symlink(env!("CARGO_BIN_EXE_mcctl"), &path).expect("a link");
        let run = finish(Command::new(&path).arg("--help").output().expect("the program starts"));
        assert!(run.succeeds().contains(&format!("Usage: mcctl {command} [OPTIONS]")), "{link}: {run:?}");
    }
}
