//! A peer in a separate process, which can be killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mcctl::engine::transfer::{OpKind, TransferEngine, TransferError};

use crate::rdma::transfer::{LIMIT, NOTICED, engine, memory, op, poll, sent};

const MIB: usize = 1 << 20;

/// A target on rxe0 with 16 MiB of memory open to peers.
struct Target {
    child: Child,
    segment: String,
}

impl Target {
    /// Starts a target on `port`, or on any port.
    fn start(port: Option<u16>) -> Target {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcctl"));
        command.args([
            "bench",
            "transfer",
            "--mode=target",
            "--metadata-server=P2PHANDSHAKE",
            "--local-server-name=127.0.0.1",
        ]);
        command.args(["--protocol=rdma", "--device-name=rxe0", "--buffer-size=16mb"]);
        if let Some(port) = port {
            command.envs([("MC_MIN_RPC_PORT", port.to_string()), ("MC_MAX_RPC_PORT", port.to_string())]);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let segment = line.strip_prefix("listening on ").and_then(|rest| rest.split_whitespace().next());
        let segment = segment.unwrap_or_else(|| panic!("no target: {line}")).to_owned();
        Target { child, segment }
    }

    fn port(&self) -> u16 {
        self.segment.rsplit_once(':').unwrap().1.parse().unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first address of `segment`'s memory.
async fn base(ours: &TransferEngine, segment: &str) -> u64 {
    ours.forget(segment);
    ours.open(segment).await.unwrap().buffers[0].address
}

/// Whether the error contains everything an operator needs to locate the failure.
fn names_all(error: &TransferError, segment: &str) -> bool {
    let text = error.to_string();
    ["rdma rxe1 port 1", "::ffff:192.168.100.2", segment, " while "].iter().all(|words| text.contains(words))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn a_peer_killed_during_a_batch_is_reported_and_its_successor_used() {
    let mut theirs = Target::start(None);
    let segment = theirs.segment.clone();
    let ours = engine(&["rxe1"]).await;
    let buffer = memory(MIB, 3);
    let first = base(&ours, &segment).await;
    // More than any device moves before the kill.
    let ops = (0..4096).map(|at| op(OpKind::Write, &buffer, 0, MIB, first + (at % 16 * MIB) as u64)).collect();
    let pending = ours.submit(&segment, ops, LIMIT);
    let before = sent("rxe1");
    let waits = tokio::task::spawn_blocking(move || pending.wait());
    // More packets than eight operations.
    poll("bytes are in flight", || sent("rxe1") > before + 8 * 256).await;
    theirs.kill();
    let killed = Instant::now();
    let done = waits.await.unwrap();
    assert!(killed.elapsed() < NOTICED, "{:?}", killed.elapsed());
    let good = done.iter().filter(|one| one.is_ok()).count();
    assert!(good > 0 && good < done.len(), "{good} of {}: not in the middle of the batch", done.len());
    for error in done.iter().filter_map(|one| one.as_ref().err()) {
        assert!(error.is_retryable() && names_all(error, &segment), "{error}");
    }

    let again = Target::start(Some(theirs.port()));
    assert_eq!(again.segment, segment);
    let end = Instant::now() + LIMIT;
    let back = memory(MIB, 0);
    loop {
        // While it is considered down it is only probed periodically.
        let moved = match ours.open(&segment).await {
            Ok(_) => {
                let at = base(&ours, &segment).await;
                let write = ours.transfer(&segment, vec![op(OpKind::Write, &buffer, 0, MIB, at)], LIMIT).await;
                match write {
                    Ok(()) => ours.transfer(&segment, vec![op(OpKind::Read, &back, 0, MIB, at)], LIMIT).await,
                    error => error,
                }
            }
            Err(error) => Err(error),
        };
        let Err(error) = moved else { break };
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(back.whole().to_vec() == buffer.whole().to_vec());
}
