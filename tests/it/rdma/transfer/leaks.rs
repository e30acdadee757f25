//! Closed engines and connections leave nothing behind, neither in the kernel nor in this process.

use std::fs;
use std::time::{Duration, Instant};

use mcctl::engine::transfer::{OpKind, TransferEngine};

use crate::rdma::transfer::{LIMIT, memory, op, resources, target};

/// Number of engines started and stopped. `MCCTL_RDMA_CYCLES` overrides it.
const CYCLES: usize = 40;
/// Number of cycles between counts. Counting takes longer than a cycle.
const LOOK_EVERY: usize = 10;
/// An endpoint that was unused for 30 s is probed, for 10 s.
const RETIRED: Duration = Duration::from_secs(120);

/// System resources used by engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    pairs: u64,
    regions: u64,
    queues: u64,
    domains: u64,
    /// Devices, event channels, wake-up events, sockets.
    descriptors: usize,
    watchers: usize,
}

impl Held {
    fn now() -> Held {
        let [pairs, regions, queues, domains] = resources(["qp", "mr", "cq", "pd"]);
        let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
        Held { pairs, regions, queues, domains, descriptors, watchers: watchers() }
    }
}

/// Number of threads of this process that watch a device. (The runtime's threads vary.)
fn watchers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.trim() == "te-rdma-watch").count()
}

/// Waits until the resources equal `is`.
async fn await_held(what: &str, is: impl Fn() -> Held, limit: Duration) {
    let end = Instant::now() + limit;
    while Held::now() != is() {
        assert!(Instant::now() < end, "{what}: {:?} instead of {:?}", Held::now(), is());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn endpoints(engine: &TransferEngine) -> u64 {
    engine.rails().iter().map(|rail| rail.endpoints).sum()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs two RDMA devices: tests/rdma-vm/run-tests"]
async fn repeated_connecting_and_closing_leaks_nothing() {
    let cycles = std::env::var("MCCTL_RDMA_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(CYCLES);
    let before = Held::now();
    let (stays, there) = target(&["rxe0"], 4096).await;
    let alone = Held::now();
    let buffer = memory(1000, 3);
    let ours = || op(OpKind::Write, &buffer, 0, 1000, there.address());
    for cycle in 0..cycles {
        let (goes, here) = target(&["rxe1"], 4096).await;
        // The sides take turns in dialling.
        let moved = match cycle % 2 {
            0 => goes.transfer(stays.segment_name(), vec![ours()], LIMIT).await,
            _ => {
                let ops = vec![op(OpKind::Read, &there, 0, 1000, here.address())];
                stays.transfer(goes.segment_name(), ops, LIMIT).await
            }
        };
        moved.unwrap_or_else(|error| panic!("cycle {cycle}: {error}"));
        goes.shutdown().await.unwrap();
        drop(goes);
        // The stopped engine has released everything. The other one keeps its end for a while.
        if cycle % LOOK_EVERY == 0 {
            let left = || Held { pairs: alone.pairs + 2 * endpoints(&stays), ..alone };
            await_held(&format!("after cycle {cycle}"), left, LIMIT).await;
        }
    }
    // The remaining engine detects that its peers are gone.
    await_held("resources of the stopped peers", || alone, RETIRED).await;
    assert_eq!(endpoints(&stays), 0);
    stays.shutdown().await.unwrap();
    drop(stays);
    await_held("at the end", || before, LIMIT).await;
}
