//! Logging: a stalled reader, files and their rotation, SIGHUP, JSON, and the debug lines of
//! requests.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::serve::master;
use super::service::{Service, get, head};
use super::{command, mcctl};
use crate::peer::process::{PATIENCE, wait_until};

const MASTER: [&str; 7] = [
    "serve",
    "master",
    "--rpc_address=127.0.0.1",
    "--rpc_port=0",
    "--port=0",
    "--metrics_host=127.0.0.1",
    "--metrics_port=0",
];

/// A master at debug level whose stderr is a pipe of 4 KiB that is not read after the ready line.
struct Stalled {
    child: Child,
    lines: BufReader<ChildStderr>,
    rpc: u16,
    admin: u16,
}

impl Stalled {
    fn start() -> Stalled {
        let mut command = command(&MASTER);
        let mut child = command
            .arg("--log-level=debug")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stderr = child.stderr.take().expect("piped");
        fcntl(&stderr, FcntlArg::F_SETPIPE_SZ(4096)).expect("a smaller pipe");
        let mut lines = BufReader::new(stderr);
        let mut line = String::new();
        while !line.contains("Master service started") {
            line.clear();
            assert!(lines.read_line(&mut line).expect("text") > 0, "it ended");
        }
        let port = |part: &str| {
            let rest = line.split(part).nth(1).unwrap_or_else(|| panic!("no '{part}' in {line}"));
            rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a port")
        };
        let rpc = port("RPC 127.0.0.1:");
        let admin = port("admin http://127.0.0.1:");
        Stalled { child, lines, rpc, admin }
    }

    fn stop(&mut self) -> Option<i32> {
        kill(Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")), Signal::SIGTERM).expect("it runs");
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                return status.code();
            }
            assert!(Instant::now() < until, "SIGTERM does not end it");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_stalled_log_reader_blocks_no_request_and_no_sigterm() {
    let mut master = Stalled::start();
    for _ in 0..200 {
        assert_eq!(get(master.admin, "/health").0, 200);
    }
    let run = mcctl(&["store", "exists", "k", &format!("--master=127.0.0.1:{}", master.rpc)]);
    assert_eq!(run.code, 1, "{run:?}");
    assert_eq!(master.stop(), Some(0));
}

#[test]
fn dropped_log_lines_are_counted_when_the_reader_resumes() {
    let mut master = Stalled::start();
    // 3 MiB of lines, more than pipe, writer and queue hold.
    let target = format!("/health?{}", "x".repeat(16 << 10));
    for _ in 0..200 {
        assert_eq!(get(master.admin, &target).0, 200);
    }
    let mut line = String::new();
    while !line.contains("dropped=") {
        line.clear();
        assert!(master.lines.read_line(&mut line).expect("text") > 0, "it ended");
    }
    let count: u64 = line.split("dropped=").nth(1).and_then(|rest| rest.trim().parse().ok()).expect("a count");
    assert!((1..200).contains(&count), "{line}");
}

#[test]
fn a_command_waits_for_a_slow_reader_of_its_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    // 1,000 error lines, more than the pipe holds.
    for number in 0..1000 {
        fs::write(folder.path().join(format!("{number:0100}.json")), "{\"name\":\"a\"}").expect("written");
    }
    let mut command = command(&["lint", folder.path().to_str().expect("text")]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts");
    // Longer than a service waits.
    std::thread::sleep(Duration::from_secs(3));
    let lines = BufReader::new(child.stderr.take().expect("piped")).lines().count();
    assert!(lines > 1000, "{lines}");
    assert_eq!(child.wait().expect("our child").code(), Some(2));
}

/// The text of `path` once it contains `part`.
fn text_with(path: &Path, part: &str) -> String {
    let read = || fs::read_to_string(path).unwrap_or_default();
    wait_until(part, PATIENCE, || read().contains(part));
    read()
}

fn port_in(text: &str, part: &str) -> u16 {
    let rest = text.split(part).nth(1).unwrap_or_else(|| panic!("no '{part}' in {text}"));
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a port")
}

#[test]
fn a_log_file_is_reopened_on_sighup() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("log");
    let moved = dir.path().join("moved");
    let mut command = command(&MASTER);
    command.arg("--log-file").arg(&path);
    let mut service = Service::start(command);
    let admin = port_in(&text_with(&path, "Master service started"), "admin http://127.0.0.1:");
    fs::rename(&path, &moved).expect("moved");
    service.signal(Signal::SIGHUP);
    text_with(&path, "reopened");
    assert_eq!(get(admin, "/health").0, 200);
    assert_eq!(service.stop(Signal::SIGTERM), 0);
    assert!(text_with(&path, "SIGTERM").lines().count() >= 2);
    assert!(!fs::read_to_string(&moved).expect("text").contains("SIGTERM"));
    assert_eq!(service.all_lines(), [] as [String; 0]);
}

#[test]
fn a_log_file_is_rotated_by_size_and_old_ones_are_removed() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("log");
    let mut command = command(&MASTER);
    command.arg("--log-file").arg(&path).args(["--log-file-max-size=4kb", "--log-file-keep=2", "--log-level=debug"]);
    let mut service = Service::start(command);
    let admin = port_in(&text_with(&path, "Master service started"), "admin http://127.0.0.1:");
    for _ in 0..300 {
        assert_eq!(get(admin, "/health").0, 200);
    }
    assert_eq!(service.stop(Signal::SIGTERM), 0);
    let mut names: Vec<_> =
        fs::read_dir(dir.path()).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["log", "log.1", "log.2"]);
    for name in ["log", "log.1", "log.2"] {
        assert!(fs::metadata(dir.path().join(name)).expect("a file").len() <= 4096, "{name}");
    }
}

#[test]
fn a_log_file_that_cannot_be_written_is_reported_once() {
    let mut command = command(&["serve", "metadata", "--host=127.0.0.1", "--port=0", "--log-level=debug"]);
    command.arg("--log-file=/dev/full");
    let mut service = Service::start(command);
    service.line_with("cannot write the log file /dev/full");
    service.signal(Signal::SIGHUP);
    assert_eq!(service.stop(Signal::SIGTERM), 0);
    let warnings = service.all_lines().iter().filter(|line| line.contains("/dev/full")).count();
    // SIGHUP reopens the file, and the next failure is reported again.
    assert!((1..=2).contains(&warnings), "{warnings}");
}

#[test]
fn a_log_file_that_cannot_be_opened_is_4_before_the_start() {
    for args in [
        &["serve", "metadata", "--port=0", "--log-file=/nowhere/log"][..],
        &["--log-file=/", "serve", "metadata", "--port=0"],
        &["serve", "metadata", "--port=0", "--log-file", "/dev/null/log"],
        &["--log-file=/nowhere/log", "status"],
        &["up", "--log-file=/nowhere/log"],
    ] {
        assert!(mcctl(args).fails(4).starts_with("error: cannot open the log file /"), "{args:?}");
    }
    mcctl(&["serve", "metadata", "--log-format=xml"]).fails(2);
    mcctl(&["--log-file-max-size=lots", "status"]).fails(2);
}

#[test]
fn sighup_ends_no_service_even_without_a_log_file() {
    let mut service = Service::start(command(&["serve", "metadata", "--host=127.0.0.1", "--port=0"]));
    let port = service.port_after("http://127.0.0.1:");
    service.signal(Signal::SIGHUP);
    service.line_with("SIGHUP");
    assert_eq!(get(port, "/health").0, 200);
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn debug_lines_name_the_call_its_peer_and_its_result() {
    let (mut service, rpc, admin) = master(&["--log-level=debug", "--log-format=json"]);
    let at = format!("--master=127.0.0.1:{rpc}");
    assert_eq!(mcctl(&["store", "exists", "some-key", &at]).code, 1);
    assert_eq!(mcctl(&["store", "rm", "some-key", &at]).code, 1);
    let line =
        |service: &mut Service, part: &str| -> Value { serde_json::from_str(&service.line_with(part)).expect("JSON") };
    let removed = line(&mut service, "\"method\":\"Remove\"");
    assert_eq!((&removed["level"], &removed["keys"]), (&"DEBUG".into(), &1.into()), "{removed}");
    assert!(removed["result"].as_str().is_some_and(|result| result.contains("-704")), "{removed}");
    assert!(removed["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{removed}");
    assert!(removed["us"].is_u64(), "{removed}");
    assert_eq!(get(admin, "/query_key?key=some-key").0, 404);
    let asked = line(&mut service, "/query_key");
    assert_eq!((&asked["method"], &asked["code"]), (&"GET".into(), &404.into()), "{asked}");
    assert_eq!(asked["target"], "mcctl_net::http::server");
    assert_eq!(asked["uri"], "/query_key?key=some-key");
    assert!(asked["us"].is_u64(), "{asked}");
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn at_info_level_no_request_has_a_line() {
    let (mut service, rpc, admin) = master(&[]);
    assert_eq!(mcctl(&["store", "exists", "some-key", &format!("--master=127.0.0.1:{rpc}")]).code, 1);
    assert_eq!(get(admin, "/health").0, 200);
    assert_eq!(service.stop(Signal::SIGTERM), 0);
    assert!(!service.all_lines().iter().any(|line| line.contains("DEBUG") || line.contains("us=")));
}

#[test]
fn the_process_and_its_http_requests_are_on_the_metrics_page() {
    let (mut service, _, admin) = master(&["--enable_http_metadata_server"]);
    let metadata = service.port_after("metadata http://127.0.0.1:");
    assert_eq!(get(metadata, "/metadata?key=none").0, 404);
    for target in ["/metrics", "/health"] {
        assert_eq!(head(admin, target), (200, String::new()));
    }
    assert_eq!(head(metadata, "/health"), (200, String::new()));
    assert_eq!(get(admin, "/nothing/of/ours").0, 404);
    let (code, version) = get(admin, "/version");
    let version: Value = serde_json::from_str(&version).expect("JSON");
    assert_eq!((code, &version["version"]), (200, &env!("CARGO_PKG_VERSION").into()));
    assert!(get(admin, "/").1.lines().any(|route| route == "/metrics"));
    let (_, page) = get(admin, "/metrics");
    for start in [
        concat!("mcctl_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\""),
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes ",
        "process_virtual_memory_bytes ",
        "process_open_fds ",
        "process_max_fds ",
        "process_start_time_seconds ",
        "mcctl_http_requests_total{route=\"/health\",method=\"HEAD\",code=\"200\"} 1",
        "mcctl_http_requests_total{route=\"/metadata\",method=\"GET\",code=\"404\"} 1",
        "mcctl_http_requests_total{route=\"other\",method=\"GET\",code=\"404\"} 1",
        "mcctl_http_request_duration_seconds_count{route=\"/metrics\"} 1",
    ] {
        assert!(page.lines().any(|line| line.starts_with(start)), "{start}\n{page}");
    }
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}
