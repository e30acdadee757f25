//! `mcctl bench transfer`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{command, mcctl};

/// A target, killed with the test.
struct Target {
    child: Child,
    segment: String,
}

impl Target {
    fn start(args: &[&str]) -> Target {
        let mut child = command(&["bench", "transfer", "--mode=target", "--buffer-size=16mb"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let at = line.strip_prefix("listening on ").expect(&line).split(' ').next().expect("an address");
        Target { segment: at.to_owned(), child }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn initiate(segment: &str, more: &[&str]) -> super::Run {
    let mut args = vec!["bench", "transfer", "--segment-id", segment, "--duration=1", "--buffer-size=16mb"];
    args.extend(more);
    mcctl(&args)
}

#[test]
fn an_initiator_moves_verified_bytes() {
    let target = Target::start(&[]);
    for operation in ["read", "write"] {
        let run = initiate(
            &target.segment,
            &["--operation", operation, "--block_size=10001", "--batch_size=8", "--threads=2", "--verify", "--json"],
        );
        let report: Value = serde_json::from_str(run.succeeds()).expect("one JSON document");
        assert_eq!((&report["operation"], &report["verified"]), (&operation.into(), &true.into()));
        let (bytes, batches) =
            (report["bytes"].as_u64().expect("a number"), report["batches"].as_u64().expect("a number"));
        assert!(batches > 0 && bytes == batches * 8 * 10_001, "{report}");
        assert_eq!(
            (&report["schema"], &report["batch_latency"]["count"]),
            (&"mcctl.bench.transfer/1".into(), &batches.into())
        );
        assert!(report["doubts"].to_string().contains("--verify"), "{report}");
        assert!(report["cpu_s_per_gb"].as_f64().expect("a number") > 0.0);
    }
    let run = initiate(&target.segment, &["--report_precision=4"]);
    // A busy machine ends a run later than after the second, never earlier.
    let line = run.succeeds().lines().find(|line| line.starts_with("Test completed: ")).expect("a line");
    let seconds = line.strip_prefix("Test completed: duration ").and_then(|rest| rest.split(',').next()).expect(line);
    assert_eq!(seconds.split('.').nth(1).map(str::len), Some(4), "{line}");
    assert!(seconds.parse::<f64>().expect(line) >= 1.0 && line.ends_with(" GB/s"), "{line}");
}

#[test]
fn a_signal_ends_a_target_with_its_counts() {
    let mut target = Target::start(&[]);
    initiate(&target.segment, &["--block-size=1mb", "--batch-size=2"]).succeeds();
    kill(Pid::from_raw(target.child.id() as i32), Signal::SIGTERM).expect("it runs");
    let status = target.child.wait().expect("it ends");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut target.child.stderr.take().expect("piped"), &mut text).expect("text");
    assert!(status.success() && text.contains("SIGTERM: served "), "{status}: {text}");
}

/// Runs that fail, with their exit codes. The snapshot has the texts.
#[test]
fn errors_have_their_exit_codes() {
    let mut texts = String::new();
    let mut fails = |code: i32, run: super::Run| {
        texts.push_str(&format!("{code}: {}\n", run.fails(code)));
    };
    fails(2, mcctl(&["bench", "transfer"]));
    fails(2, initiate("127.0.0.1:1", &["--protocol=quic"]));
    fails(3, initiate("127.0.0.1:1", &[]));
    fails(3, initiate("x", &["--metadata-server=http://127.0.0.1:1/metadata"]));
    let target = Target::start(&[]);
    let large = initiate(&target.segment, &["--block-size=1mb", "--batch-size=17"]);
    assert!(large.fails(2).contains("17825792"), "{large:?}");
    // The text has the memory of this host.
    initiate("127.0.0.1:1", &["--block-size=64tb"]).fails(4);
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!("bench_transfer_errors", texts);
    });
}

#[test]
fn rdma_is_replaced_by_tcp_only_if_allowed() {
    let rdma = initiate("127.0.0.1:1", &["--protocol=rdma", "--device_name=none_such"]);
    assert!(rdma.fails(4).contains("--protocol rdma"), "{rdma:?}");
    let tcp = initiate("127.0.0.1:1", &["--protocol=rdma", "--device_name=none_such", "--allow-tcp-fallback"]);
    assert!(tcp.fails(3).contains("WARN "), "{tcp:?}");
}

#[test]
fn an_invalid_environment_variable_is_a_warning() {
    let mut command = command(&["bench", "transfer", "--segment-id=127.0.0.1:1", "--buffer-size=16mb"]);
    let run = super::finish(command.env("MC_TCP_PROTO", "7").output().expect("the program starts"));
    assert!(run.fails(3).starts_with("warning: MC_TCP_PROTO=7 "), "{run:?}");
}
