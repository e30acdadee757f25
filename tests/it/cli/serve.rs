//! The services: ready lines, ports, signals.

use std::net::TcpStream;

use nix::sys::signal::Signal;

use super::service::{Service, get};
use super::{command, mcctl};
use crate::peer::process::{PATIENCE, free_port, wait_until};

fn metadata() -> (Service, u16) {
    let mut service = Service::start(command(&["serve", "metadata", "--host", "127.0.0.1", "--port=0"]));
    let port = service.port_after("http://127.0.0.1:");
    (service, port)
}

#[test]
fn the_metadata_service_logs_its_address_and_answers_there() {
    let (_service, port) = metadata();
    assert_eq!(get(port, "/health"), (200, "OK".to_owned()));
    assert_eq!(get(port, "/metadata?key=a"), (404, "metadata not found".to_owned()));
}

#[test]
fn a_service_raises_its_soft_limit_of_open_files() {
    let plain = command(&["serve", "metadata", "--host", "127.0.0.1", "--port=0"]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -Sn 256; exec \"$0\" \"$@\""]).arg(plain.get_program()).args(plain.get_args());
    let mut service = Service::start(limited);
    service.port_after("http://127.0.0.1:");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", service.pid())).expect("its limits");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers[0], numbers[1].min(128 << 10), "{line}");
}

#[test]
fn sigterm_and_sigint_end_a_service_with_0() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (mut service, _) = metadata();
        assert_eq!(service.stop(signal), 0, "{signal}");
        assert!(service.all_lines().iter().any(|line| line.contains(signal.as_str())), "the log names the signal");
    }
}

/// A master on free ports with `more` flags, and its RPC and admin ports.
pub fn master(more: &[&str]) -> (Service, u16, u16) {
    let mut args = vec!["serve", "master", "--rpc_address=127.0.0.1", "--rpc_port=0", "--port=0"];
    args.extend(["--metrics_host=127.0.0.1", "--metrics_port", "0"]);
    args.extend(["--http_metadata_server_host=127.0.0.1", "--http-metadata-server-port=0"]);
    args.extend(more);
    let mut service = Service::start(command(&args));
    let rpc = service.port_after("RPC 127.0.0.1:");
    let admin = service.port_after("admin http://127.0.0.1:");
    (service, rpc, admin)
}

#[test]
fn the_master_logs_all_addresses_and_answers_there() {
    let (mut service, rpc, admin) = master(&["--enable_http_metadata_server"]);
    let metadata = service.port_after("metadata http://127.0.0.1:");
    assert!(get(admin, "/health").1.contains("\"service_ready\":true"));
    assert_eq!(get(metadata, "/health"), (200, "OK".to_owned()));
    let place = [&*format!("--master=127.0.0.1:{rpc}"), &*format!("--admin=127.0.0.1:{admin}")];
    assert_eq!(mcctl(&[&["store", "exists", "k"], &place[..]].concat()).code, 1);
    let run = mcctl(&[&["store", "rm", "k"], &place[..]].concat());
    assert_eq!((run.code, run.stderr.contains("OBJECT_NOT_FOUND (-704)")), (1, true), "{run:?}");
    assert!(mcctl(&["status", "--interval=0", place[1]]).succeeds().contains("segments  none"));
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn the_master_logs_settings_that_differ_from_defaults() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.yaml");
    std::fs::write(&path, "default_kv_lease_ttl: 5s\n").expect("written");
    let shown = path.to_str().expect("text");
    let (mut service, ..) = master(&["--config_path", shown, "--offload_cap_ratio=0.7", "--minloglevel=0"]);
    service.line_with(&format!("--default-kv-lease-ttl 5 s (key default_kv_lease_ttl in {shown})"));
    service.line_with("--offload-cap-ratio 0.7 (command line) has no effect");
}

#[test]
fn a_second_master_on_the_same_port_names_the_first() {
    let (first, rpc, _) = master(&[]);
    let port = rpc.to_string();
    let run = mcctl(&[
        "serve",
        "master",
        "--rpc_address=127.0.0.1",
        "--metrics_port=0",
        "--log-level=off",
        "--rpc_port",
        &port,
    ]);
    let error = run.fails(4);
    assert!(error.contains(&format!("port {rpc} ")) && error.contains(&format!("pid {} (", first.pid())), "{error}");
}

#[test]
fn links_with_upstream_names_run_the_services() {
    let dir = tempfile::tempdir().expect("a folder");
    let linked = |name: &str, args: &[&str]| {
        let link = dir.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mcctl"), &link).expect("a link");
        let mut command = std::process::Command::new(link);
        command.args(args);
        Service::start(command)
    };
    let flags = ["--rpc_address=127.0.0.1", "--port=0", "--metrics_port=0", "--logtostderr"];
    let mut master = linked("mooncake_master", &flags);
    let rpc = master.port_after("Master service started on port ");
    let port = free_port();
    let quiet = ["--host=127.0.0.1", "--port", &port.to_string(), "--log-level=WARNING"];
    let mut metadata = linked("mooncake_http_metadata_server", &quiet);
    for name in ["mc_store_rest_server", "mooncake_store_service"] {
        let define = format!("-Dmaster_server_address=127.0.0.1:{rpc}");
        let sizes = ["-D", "global_segment_size=16mb", "-Dlocal_buffer_size=0", "--port=0", "--max-wait-time", "20"];
        let mut node = linked(name, &[&[&*define], &sizes[..]].concat());
        node.line_with("Store service started successfully");
        assert_eq!(node.stop(Signal::SIGTERM), 0);
    }
    wait_until("the metadata service listens", PATIENCE, || TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert_eq!((metadata.stop(Signal::SIGINT), master.stop(Signal::SIGINT)), (0, 0));
}

#[test]
fn flagfile_and_fromenv_set_flags() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("flags");
    std::fs::write(&path, "# for tests\n--default_kv_lease_ttl=7s\n--noenable_metric_reporting\n").expect("written");
    let shown = path.to_str().expect("text");
    let mut command = command(&["serve", "master", "--rpc_address=127.0.0.1", "--port=0", "--flagfile", shown]);
    command.args(["--fromenv=metrics_port"]).env("FLAGS_metrics_port", "0");
    let mut service = Service::start(command);
    let line = service.line_with("settings: ");
    for part in [
        format!("--default-kv-lease-ttl 7 s ({shown}:2)"),
        format!("--enable-metric-reporting false ({shown}:3)"),
        "--metrics-port 0 (environment variable FLAGS_metrics_port)".to_owned(),
    ] {
        assert!(line.contains(&part), "no '{part}' in '{line}'");
    }
    service.line_with("Master service started");
}

#[test]
fn the_log_level_comes_from_the_flag_or_else_the_environment() {
    let port = free_port();
    let start = |level: &[&str], variable: &str, value: &str| {
        let port = if level.is_empty() { 0 } else { port };
        let mut command = command(&["serve", "metadata", "--host=127.0.0.1", &format!("--port={port}")]);
        command.args(level).env(variable, value);
        Service::start(command)
    };
    let mut quiet = start(&["--log-level=warn"], "MCCTL_LOG", "info");
    let mut info = start(&[], "MC_LOG_LEVEL", "INFO");
    info.line_with("metadata service ready");
    assert_eq!(info.stop(Signal::SIGTERM), 0);
    // At level warn, neither start nor stop writes a line.
    wait_until("it listens", PATIENCE, || TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert_eq!(quiet.stop(Signal::SIGTERM), 0);
    assert_eq!(quiet.all_lines(), [] as [String; 0]);
    let mut command = command(&["serve", "metadata", "--port=0"]);
    let run = super::finish(command.env("MCCTL_LOG", "loud").output().expect("the program starts"));
    assert!(run.fails(2).contains("'loud' from MCCTL_LOG"), "{run:?}");
}

#[test]
fn a_port_in_use_is_4_and_names_the_process_that_holds_it() {
    let (first, port) = metadata();
    let run = mcctl(&["serve", "metadata", "--host", "127.0.0.1", "--port", &port.to_string()]);
    let error = run.fails(4);
    assert!(error.contains(&format!("by pid {} (", first.pid())) && error.contains("mcctl serve metadata"), "{error}");
    assert!(error.contains(&format!("--port {port} (command line)")), "{error}");
}
