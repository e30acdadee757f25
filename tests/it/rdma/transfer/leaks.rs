//! Nothing is left of engines and connections that are gone: not in the kernel, not in this process.

use std::fs;
use std::time::{Duration, Instant};

use mcctl::engine::transfer::{OpKind, TransferEngine};

use crate::rdma::transfer::{LIMIT, memory, needs_vm, op, resources, target};

/// How many engines come and go, unless `MCCTL_RDMA_CYCLES` says otherwise.
const CYCLES: usize = 40;
/// Counting all there is takes longer than a cycle.
const LOOK_EVERY: usize = 10;
/// An endpoint that nobody used for 30 s is tried out, for 10 s.
const RETIRED: Duration = Duration::from_secs(120);

/// What engines take of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    pairs: u64,
    regions: u64,
    queues: u64,
    domains: u64,
    /// Devices, event channels, wakers, sockets.
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

/// Threads of this process that watch a device. (The runtime's come and go by themselves.)
fn watchers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.trim() == "te-rdma-watch").count()
}

/// Wait until all is as it `is` to be by then.
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
async fn connecting_and_closing_again_and_again_leaves_nothing_behind() {
    needs_vm!();
    let cycles = std::env::var("MCCTL_RDMA_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(CYCLES);
    let before = Held::now();
    let (stays, there) = target(&["rxe0"], 4096).await;
    let alone = Held::now();
    let buffer = memory(1000, 3);
    let ours = || op(OpKind::Write, &buffer, 0, 1000, there.address());
    for cycle in 0..cycles {
        let (goes, here) = target(&["rxe1"], 4096).await;
        // Each side is the one that dials, in turn.
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
        // The end that went has taken all of its own along; that of the other one stays for a while.
        if cycle % LOOK_EVERY == 0 {
            let left = || Held { pairs: alone.pairs + 2 * endpoints(&stays), ..alone };
            await_held(&format!("after cycle {cycle}"), left, LIMIT).await;
        }
    }
    // The one that stays notices by and by that nobody is there any more.
    await_held("of the peers that went", || alone, RETIRED).await;
    assert_eq!(endpoints(&stays), 0);
    stays.shutdown().await.unwrap();
    drop(stays);
    await_held("in the end", || before, LIMIT).await;
}
