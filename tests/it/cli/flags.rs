//! Upstream's flags and files: what is refused, and in which words. The forms themselves are tested beside the parser.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::{finish, mcctl};

#[track_caller]
fn refused(args: &[&str], expected: &str) {
    let run = mcctl(args);
    assert_eq!(run.fails(2), expected, "{args:?}");
}

#[test]
fn an_unknown_flag_names_the_nearest_known_one() {
    refused(
        &["serve", "master", "--rpc-prot=50051"],
        "error: unknown flag --rpc-prot for mcctl serve master; next: the nearest known one is --rpc-port; mcctl serve master \
         --help lists all",
    );
    refused(
        &["serve", "store", "--segment_sise=1gb"],
        "error: unknown flag --segment_sise for mcctl serve store; next: the nearest known one is --segment-size; mcctl serve \
         store --help lists all",
    );
    refused(
        &["serve", "metadata", "--prot", "1"],
        "error: unknown flag --prot for mcctl serve metadata; next: the nearest known one is --port; mcctl serve metadata \
         --help lists all",
    );
}

#[test]
fn an_unknown_flag_that_is_like_none_gets_no_suggestion() {
    refused(
        &["serve", "store", "--rest-timeout=1"],
        "error: unknown flag --rest-timeout for mcctl serve store; next: mcctl serve store --help lists all",
    );
}

#[test]
fn a_feature_that_is_not_there_is_refused_when_it_is_switched_on() {
    for switch in [
        "--enable_ha=true",
        "--enable-oplog",
        "--enable_snapshot",
        "--enable_snapshot_restore",
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
    refused(
        &["serve", "master", "--enable_ha=true"],
        "error: --enable-ha is not available: high availability (more than one master) is not there yet; found: --enable-ha \
         true (command line); next: leave it out; it is refused because ignoring it would change what is kept or served",
    );
    let run = mcctl(&["serve", "store", "--master=127.0.0.1:1", "-Denable_ssd_offload=true"]);
    assert!(run.fails(2).contains("is not available: "), "{run:?}");
}

#[test]
fn a_value_of_another_type_names_flag_value_and_expectation() {
    refused(
        &["serve", "master", "--rpc_port=many"],
        "error: --rpc-port is 'many', but a port from 0 to 65535 is expected; found: 'many' from --rpc_port; next: --rpc-port: \
         RPC port; 0 takes --port",
    );
}

#[test]
fn more_threads_than_any_host_has_use_for_are_2() {
    for flag in ["--rpc-thread-num", "--max-threads"] {
        let run = mcctl(&["serve", "master", &format!("{flag}=1025")]);
        assert!(run.fails(2).starts_with(&format!("error: {flag} is '1025', but a whole number from ")), "{run:?}");
    }
}

#[test]
fn a_key_that_a_file_has_twice_is_2_and_named_with_its_line() {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, command, text) in [
        ("m.yaml", ["serve", "master", "--config_path"], "rpc_port: 1\nmetrics_port: 2\nrpc_port: 3\n"),
        ("m.json", ["serve", "master", "--config_path"], "{\"rpc_port\": 1,\n\"metrics_port\": 2,\n\"rpc_port\": 3}"),
        ("s.json", ["serve", "store", "--config"], "{\"protocol\": \"tcp\",\n\n\"protocol\": \"tcp\"}"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("written");
        let run = mcctl(&[&command[..], &[path.to_str().expect("text")]].concat());
        let said = run.fails(2);
        assert!(said.contains("' is there twice at line 3 column "), "{said}");
    }
}

#[test]
fn a_file_of_brackets_or_a_huge_one_is_2_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, text) in
        [("m.yaml", "[".repeat(100_000)), ("m.json", "[".repeat(100_000)), ("h.yaml", "#".repeat(2 << 20))]
    {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("written");
        let began = std::time::Instant::now();
        mcctl(&["serve", "master", "--config_path", path.to_str().expect("text")]).fails(2);
        assert!(began.elapsed().as_secs() < 5, "{name}: {:?}", began.elapsed());
    }
}

#[test]
fn strict_config_refuses_an_unknown_key_and_every_master_an_ill_typed_value() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("master.yaml");
    let shown = path.to_str().expect("text");
    let check = |text: &str, expected: &str| {
        fs::write(&path, text).expect("written");
        let run = mcctl(&["serve", "master", "--strict-config", "--config_path", shown]);
        assert_eq!(run.fails(2).replace(shown, "master.yaml"), expected);
    };
    check(
        "rpc_prot: 1\n",
        "error: master.yaml: unknown key 'rpc_prot'; next: did you mean rpc_port?; or leave out --strict-config",
    );
    check(
        "client_ttl: 30\n",
        "error: master.yaml: unknown key 'client_ttl'; next: in a file --client-ttl is written client_live_ttl_sec; or leave out \
         --strict-config",
    );
    check(
        "metrics_port: many\n",
        "error: master.yaml: key 'metrics_port' is the text 'many', but a port from 0 to 65535 is expected; found: \
         metrics_port: \"many\"; next: metrics_port: Admin HTTP port (metrics, health, queries); 0 takes any free port",
    );
    check(
        "enable_ha: true\n",
        "error: --enable-ha is not available: high availability (more than one master) is not there yet; found: --enable-ha \
         true (key enable_ha in master.yaml); next: leave it out; it is refused because ignoring it would change what is kept \
         or served",
    );
}

#[test]
fn a_configuration_file_that_is_not_there_is_named() {
    refused(
        &["serve", "master", "--config_path=/nonexistent/m.yaml"],
        "error: cannot read /nonexistent/m.yaml; tried: open the file named by --config-path; found: No such file or directory \
         (os error 2); next: name a readable text file",
    );
}

#[test]
fn a_link_with_the_name_of_an_original_program_behaves_as_that_command() {
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
        assert!(run.succeeds().contains(&format!("Usage: mcctl {command} [FLAGS]")), "{link}: {run:?}");
    }
}
