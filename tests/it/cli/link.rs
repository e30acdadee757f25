//! mcctl under the names of the wheel's programs.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::{Run, command, finish, mcctl};

/// The program under another name.
fn named(name: &str, line: &str) -> Command {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut command = command(&words);
    command.arg0(name);
    command
}

fn run(name: &str, line: &str) -> Run {
    finish(named(name, line).output().expect("the program starts"))
}

/// A target, killed with the test.
struct Target(Child);

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn target(line: &str) -> (Target, String) {
    let mut child = named("transfer_engine_bench", &format!("--mode=target {line}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let stdout = child.stdout.take().expect("piped");
    let target = Target(child);
    let mut first = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut first).expect("a line");
    let at = first.strip_prefix("listening on ").expect(&first).split(' ').next().expect("an address").to_owned();
    (target, at)
}

const BENCH: &str = "transfer_engine_bench";

#[test]
fn transfer_engine_bench_moves_bytes_with_upstreams_flags() {
    // A path as program name, gflags' single dash, and a negated switch.
    let (_target, at) = target("--metadata_server=P2PHANDSHAKE -protocol tcp --buffer_size=16777216");
    let line = format!(
        "-mode=initiator --metadata_server P2PHANDSHAKE --protocol=tcp --auto_discovery --noauto_discovery --segment_id={at} \
         --operation=write --block_size=4096 --batch_size=4 --threads=2 --duration=1 --buffer_size=16777216 --report_unit=MiB \
         --report_precision=1 --gpu_id=-1 --init_mem=false --logtostderr"
    );
    let moved = run("/usr/local/bin/transfer_engine_bench", &line);
    let text = moved.succeeds();
    // A busy machine ends a run later than after the second, never earlier.
    let rest = text.strip_prefix("Test completed: duration ").expect("a duration");
    let seconds: f64 = rest.split(',').next().and_then(|seconds| seconds.parse().ok()).expect("a number");
    assert!(seconds >= 1.0 && text.contains(" MiB/s"), "{moved:?}");
    for flag in ["--gpu-id", "--init-mem", "--logtostderr"] {
        assert!(moved.stderr.contains(flag), "{flag} is not named: {moved:?}");
    }
}

#[test]
fn transfer_engine_bench_keeps_upstreams_defaults() {
    // The default protocol is rdma, without a fallback to tcp.
    let refused = run(BENCH, "--segment_id=127.0.0.1:1 --device_name=none_such --buffer_size=16777216");
    assert_eq!(refused.code, 4, "{refused:?}");
    assert!(run(BENCH, "--help").succeeds().contains("--nic-priority-matrix"));
    assert!(run(BENCH, "--version").succeeds().starts_with("mcctl "));
}

#[test]
fn transfer_engine_bench_refuses_what_it_cannot_serve() {
    for (line, part) in [
        ("--use_vram", "GPU memory"),
        ("--use_vram=true --protocol=tcp", "GPU memory"),
        ("--backend=tent", "tent"),
        ("--metadata_server=redis://10.0.0.1:6379", "redis"),
        ("--metadata_server=10.0.0.1:2379", "etcd"),
        ("--protocol=nvlink", "nvlink"),
        ("--mode=both", "--mode"),
        ("--report_unit=TB", "--report-unit"),
        ("--segmnt_id=x", "--segment-id"),
        ("word", "word"),
    ] {
        let refused = run(BENCH, &format!("--segment_id=127.0.0.1:1 --protocol=tcp --buffer_size=16777216 {line}"));
        assert!(refused.fails(2).contains(part), "{line}: {refused:?}");
    }
}

#[test]
fn published_lines_run_after_bench_transfer() {
    // Nothing listens on port 1: a valid line fails with 3.
    let at = "--local_server_name=127.0.0.1 --segment_id=127.0.0.1:1";
    for (line, code) in [
        ("--mode=initiator --auto_discovery --protocol=rdma --metadata_server=P2PHANDSHAKE --gpu_id=-1", 3),
        ("--mode=initiator --auto_discovery --metadata_server=P2PHANDSHAKE", 3),
        ("--metadata_server=P2PHANDSHAKE --protocol=tcp --report_unit=GiB --report_precision=3", 3),
        (
            "--metadata_server=P2PHANDSHAKE --protocol=tcp --operation=write --use_vram=false --threads=4 --batch_size=32",
            3,
        ),
        ("--metadata_server=P2PHANDSHAKE --protocol=tcp --segment_size=1073741824 --backend=classic", 3),
        ("--metadata_server=P2PHANDSHAKE --protocol=tcp --init_mem --nic_priority_matrix=matrix.json", 3),
        ("--metadata_server=etcd://127.0.0.1:1 --protocol=tcp --block_size=16384 --duration 60", 3),
        ("--metadata_server=P2PHANDSHAKE --protocol=ub", 2),
    ] {
        let args: Vec<&str> = ["bench", "transfer", "--buffer_size=16777216"]
            .into_iter()
            .chain(line.split(' '))
            .chain(at.split(' '))
            .collect();
        let run = mcctl(&args);
        assert_eq!(run.code, code, "{line}: {run:?}");
    }
}

#[test]
fn transfer_engine_topology_dump_frames_the_topology() {
    const DUMP: &str = "transfer_engine_topology_dump";
    let matrix = mcctl(&["devices", "--format", "topology"]);
    let framed = format!("Local topology [te/discover]: {}\n", matrix.succeeds());
    for line in ["", "--backend te", "--backend=auto", "--back te"] {
        assert_eq!(run(DUMP, line).succeeds(), framed, "{line}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("matrix.json");
    std::fs::write(&file, r#"{"cpu:0": [["none_such"], []]}"#).expect("written");
    let path = file.display();
    let custom = format!("Local topology [te/custom ({path})]: {{\n\t\"cpu:0\" : \n\t[\n\t\t[],\n\t\t[]\n\t]\n}}\n\n");
    assert_eq!(run(DUMP, &format!("--custom-topo-json {path}")).succeeds(), custom);
    let mut variable = named(DUMP, "--use-custom-topo");
    variable.env("MC_CUSTOM_TOPO_JSON", &file);
    assert_eq!(finish(variable.output().expect("it starts")).succeeds(), custom);
    for line in ["--backend tent", "--use-custom-topo", "--custom-topo-json /none/such", "--foo", "word"] {
        run(DUMP, line).fails(2);
    }
    let mut tent = named(DUMP, "");
    tent.env("MC_USE_TENT", "1");
    finish(tent.output().expect("it starts")).fails(2);
    assert!(run(DUMP, "--help").succeeds().contains("--use-custom-topo"));
}

#[test]
fn mooncake_client_is_refused_with_alternatives() {
    for line in [
        "",
        "--help",
        "--master_server_address=127.0.0.1:50051 --global_segment_size=4GB --port 50052",
        "--host=0.0.0.0 --protocol=rdma --enable_offload --nothing_known",
    ] {
        let refused = run("mooncake_client", line);
        let error = refused.fails(2);
        assert!(
            ["mcctl serve store", "mcctl serve master", "found:", "next:"].iter().all(|part| error.contains(part)),
            "{error}"
        );
    }
}
