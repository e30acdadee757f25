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
fn a_target_and_an_initiator_move_verified_bytes_and_report_them() {
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
    let line = run.succeeds().lines().next().expect("a line");
    assert!(line.starts_with("Test completed: duration 1.0") && line.ends_with(" GB/s"), "{line}");
}

#[test]
fn a_signal_ends_a_target_well_and_it_says_what_it_served() {
    let mut target = Target::start(&[]);
    initiate(&target.segment, &["--block-size=1mb", "--batch-size=2"]).succeeds();
    kill(Pid::from_raw(target.child.id() as i32), Signal::SIGTERM).expect("it runs");
    let status = target.child.wait().expect("it ends");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut target.child.stderr.take().expect("piped"), &mut said).expect("text");
    assert!(status.success() && said.contains("SIGTERM: served "), "{status}: {said}");
}

#[test]
fn what_cannot_be_measured_is_one_line_and_an_exit_code_by_the_contract() {
    mcctl(&["bench", "transfer"]).fails(2);
    let quic = initiate("127.0.0.1:1", &["--protocol=quic"]);
    assert_eq!(
        quic.fails(2),
        "error: 'quic' is no protocol that this release speaks; found: --protocol quic; next: give --protocol tcp or rdma"
    );
    let rdma = initiate("127.0.0.1:1", &["--protocol=rdma", "--device_name=none_such"]);
    let said = rdma.fails(4);
    assert!(said.starts_with("error: rdma cannot be used on this host, and is not replaced by tcp; "), "{said}");
    assert!(said.contains("tried: --protocol rdma; "), "{said}");
    let instead = initiate("127.0.0.1:1", &["--protocol=rdma", "--device_name=none_such", "--allow-tcp-fallback"]);
    let said = instead.fails(3);
    assert!(said.contains("WARN bytes go over tcp instead, as was allowed"), "{said}");
    assert!(said.contains("\nerror: lost 127.0.0.1:1 while connecting; "), "{said}");
    let nobody = initiate("127.0.0.1:1", &[]);
    assert!(nobody.fails(3).starts_with("error: lost 127.0.0.1:1 while connecting; tried: --segment-id 127.0.0.1:1"));
    let nowhere = initiate("x", &["--metadata-server=http://127.0.0.1:1/metadata"]);
    assert!(nowhere.fails(3).starts_with("error: cannot reach the metadata service"), "{nowhere:?}");
    let huge = initiate("127.0.0.1:1", &["--block-size=64tb"]);
    assert!(huge.fails(4).contains("of memory are wanted, but there are"), "{huge:?}");
    let target = Target::start(&[]);
    let large = initiate(&target.segment, &["--block-size=1mb", "--batch-size=17"]);
    assert!(large.fails(2).contains("offers 16777216 bytes in one piece, but 17825792 are needed"), "{large:?}");
}

#[test]
fn an_initiator_without_a_target_is_2_and_told_where_to_find_one() {
    assert_eq!(
        mcctl(&["bench", "transfer"]).fails(2),
        "error: an initiator needs the segment of its target; next: give --segment-id with what the target printed after \
         'listening on' (with a metadata service: its name), or --mode target to be one"
    );
}

#[test]
fn a_variable_that_is_not_understood_is_named() {
    let mut command = command(&["bench", "transfer", "--segment-id=127.0.0.1:1", "--buffer-size=16mb"]);
    let run = super::finish(command.env("MC_TCP_PROTO", "7").output().expect("the program starts"));
    assert!(run.fails(3).starts_with("warning: MC_TCP_PROTO=7 is not a number from 1 to 2; using 2"), "{run:?}");
}
