//! Through the command line, on a real disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::cli::serve::master;
use crate::cli::service::{Service, get};
use crate::cli::{Run, command, mcctl};

/// Runs `serve master` with these flags, which it must refuse.
fn refused(more: &[&str], code: i32) -> String {
    let mut args = vec!["serve", "master", "--rpc_address=127.0.0.1", "--rpc_port=0", "--port=0"];
    args.extend(["--metrics_host=127.0.0.1", "--metrics_port=0"]);
    args.extend(more);
    let run: Run = mcctl(&args);
    assert_eq!(run.code, code, "{run:?}");
    run.stderr
}

fn data_dir(path: &Path) -> String {
    format!("--data-dir={}", path.display())
}

/// A node of this project, with the master's RPC port. Its data survives restarts of the master.
fn node(rpc: u16) -> Service {
    let master = format!("--master=127.0.0.1:{rpc}");
    let args = [
        "serve",
        "store",
        &*master,
        "--segment-size=16mb",
        "--rest-port=0",
        "--host=127.0.0.1",
        "--local-hostname=127.0.0.1",
        "--metadata-server=P2PHANDSHAKE",
    ];
    let mut service = Service::start(command(&args));
    service.line_with("REST API started");
    service
}

#[test]
fn keys_survive_sigkill_and_sigterm() {
    let root = tempfile::tempdir().unwrap();
    let dir = data_dir(&root.path().join("data"));
    let (mut first, rpc, _) = master(&[&dir]);
    assert_eq!(fs::metadata(root.path().join("data")).unwrap().permissions().mode() & 0o777, 0o700);
    let mut node = node(rpc);
    let place = format!("--master=127.0.0.1:{rpc}");
    let store = |args: &[&str]| mcctl(&[&["store"], args, &[&*place]].concat());
    store(&["put", "k", "--value", "hello"]).succeeds();
    let port = format!("--rpc_port={rpc}");
    first.stop(Signal::SIGKILL);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let (mut next, _, admin) = master(&[&dir, &port]);
        next.line_with("state restored");
        crate::peer::process::wait_until("the key", crate::peer::process::PATIENCE, || {
            let run = store(&["get", "k"]);
            run.code == 0 && run.stdout == "hello"
        });
        assert!(get(admin, "/metrics").1.contains("mcctl_master_log_changes_total"));
        let code = next.stop(signal);
        assert_eq!(code, if signal == Signal::SIGTERM { 0 } else { -1 });
    }
    assert_eq!(node.stop(Signal::SIGTERM), 0);
}

#[test]
fn a_directory_in_use_or_of_another_cluster_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = data_dir(root.path());
    let (mut first, ..) = master(&[&dir]);
    assert!(refused(&[&dir], 4).contains("another process uses the data directory"));
    assert_eq!(first.stop(Signal::SIGTERM), 0);
    assert!(refused(&[&dir, "--cluster-id=other"], 2).contains("--cluster-id mooncake_cluster"));
}

#[test]
fn a_damaged_log_is_refused_with_file_and_offset_and_can_be_discarded() {
    let root = tempfile::tempdir().unwrap();
    let dir = data_dir(root.path());
    let (mut first, rpc, _) = master(&[&dir]);
    let mut node = node(rpc);
    let place = format!("--master=127.0.0.1:{rpc}");
    for key in ["a", "b", "c"] {
        mcctl(&["store", "put", key, "--value", "hello", &place]).succeeds();
    }
    first.stop(Signal::SIGKILL);
    assert_eq!(node.stop(Signal::SIGKILL), -1);
    let log = root.path().join("log-0000000001");
    let whole = fs::read(&log).unwrap();
    // The kernel has not restarted, so the last change must be complete.
    let mut bytes = whole.clone();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end - 20..=end].fill(0);
    fs::write(&log, bytes).unwrap();
    let message = refused(&[&dir], 4);
    for part in ["log-0000000001", "offset", "since this host started", "--discard-data"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let mut bytes = whole;
    bytes[600] ^= 1;
    fs::write(&log, bytes).unwrap();
    let message = refused(&[&dir], 4);
    for part in ["log-0000000001", "offset", "--discard-data"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let (mut next, ..) = master(&[&dir, "--discard-data"]);
    assert!(next.line_with("state restored").contains("objects=0"));
    assert_eq!(next.stop(Signal::SIGTERM), 0);
}

#[test]
fn upstreams_snapshot_flags_use_a_directory_of_the_cluster() {
    let root = tempfile::tempdir().unwrap();
    let start = |more: &[&str]| {
        let mut args = vec!["serve", "master", "--rpc_address=127.0.0.1", "--rpc_port=0", "--port=0"];
        args.extend(["--metrics_host=127.0.0.1", "--metrics_port=0", "--enable_snapshot", "--cluster_id=c1"]);
        args.extend(more);
        let mut command = command(&args);
        command.env("MOONCAKE_SNAPSHOT_LOCAL_PATH", root.path());
        let mut service = Service::start(command);
        service.line_with("Master service started");
        service
    };
    let dir = root.path().join("mcctl/c1");
    assert_eq!(start(&[]).stop(Signal::SIGTERM), 0);
    assert!(dir.join("identity.json").exists());
    let mut second = start(&[]);
    second.line_with("was moved to this subdirectory");
    assert_eq!(second.stop(Signal::SIGTERM), 0);
    let aside = fs::read_dir(&dir).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    assert_eq!(aside, 1);
    let mut third = start(&["--enable_snapshot_restore"]);
    assert_eq!(third.stop(Signal::SIGTERM), 0);
    assert!(!third.all_lines().iter().any(|line| line.contains("moved aside")));
}
