//! Does it fit, and if not, why.

use serde::Serialize;

use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::host::Host;
use crate::engine::plan::guard;
use crate::engine::plan::need::Need;

/// Does it fit?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Huge pages and memory are enough.
    Fits,
    /// There are fewer free huge pages than are taken.
    HugepagesShort,
    /// SGLang's guard, or the pages that are still to be reserved, want more ordinary memory than there is.
    MemoryShort,
    /// Enough for the least, not for the most: the model decides.
    NotCertain,
    /// How many pages there are is not known.
    Unknown,
}

/// SGLang's check of ordinary memory.
#[derive(Clone, Debug, Serialize)]
pub struct GuardRow {
    /// Bytes that must be available.
    pub needed_bytes: u64,
    /// Bytes that will be, when the missing pages are reserved.
    pub available_bytes: Option<u64>,
    /// The ranks it divides by.
    pub ranks: u64,
}

/// The verdict, and the reasons for it.
pub fn verdict(args: &Args, host: &Host, need: &Need, guard: &GuardRow) -> (Verdict, Vec<String>) {
    let mut reasons = Vec::new();
    let page = host.pool.page;
    let (least, most) = (need.least.count(page), need.most.count(page));
    let mut verdict = match host.has(&need.most) {
        Some(true) => Verdict::Fits,
        None => {
            reasons.push(
                "how many huge pages there are is not known: no such pool in /sys/kernel/mm/hugepages".to_owned(),
            );
            Verdict::Unknown
        }
        Some(false) if host.has(&need.least) == Some(true) => {
            reasons.push(format!("{least} to {most} huge pages are taken, as the model will have it: give --model"));
            Verdict::NotCertain
        }
        Some(false) => {
            let available = host.pool.available.unwrap_or(0);
            if available < most {
                reasons.push(format!("{most} huge pages are taken, and {available} can be had"));
            }
            if let Some(allowed) = host.pool.allowed.filter(|allowed| *allowed < most) {
                reasons.push(format!(
                    "{most} huge pages are taken, and the control group of this process allows {allowed} (hugetlb.*.max): beyond that \
                     a mapping fails, or the process dies of SIGBUS"
                ));
            }
            let other = need.most.count(host.other.page);
            if other > host.other.usable().unwrap_or(0) {
                reasons.push(format!(
                    "the arena takes {other} huge pages of the system's default size, and {} can be had",
                    host.other.usable().unwrap_or(0)
                ));
            }
            Verdict::HugepagesShort
        }
    };
    // Bound pages are taken at the first touch, when it is too late for an error.
    let bound = need.pages_per_nic_node;
    for node in host.pool.nodes.iter().filter(|pool| args.nic_numa_nodes.contains(&pool.node) && pool.free < bound) {
        verdict = Verdict::HugepagesShort;
        reasons.push(format!(
            "node {} has {} huge pages free where {bound} are bound to it: the process would die of SIGBUS",
            node.node, node.free
        ));
    }
    let Some(available) = guard.available_bytes else { return (verdict, reasons) };
    let to_reserve = host.to_reserve(&need.most);
    if host.memory.is_some_and(|memory| to_reserve > memory) {
        reasons.push(format!(
            "the huge pages that are missing take {:.2} GB, and {:.2} GB of memory are available",
            to_reserve as f64 / 1e9,
            host.memory.unwrap_or(0) as f64 / 1e9
        ));
        return (if verdict == Verdict::HugepagesShort { verdict } else { Verdict::MemoryShort }, reasons);
    }
    if available >= guard.needed_bytes {
        return (verdict, reasons);
    }
    reasons.push(format!(
        "SGLang refuses an L2 above {:.2} GB per rank on this host: it counts ordinary memory less 10 GiB even when huge pages are \
         taken, and {:.2} GB must be available where {:.2} GB will be",
        guard::budget(available, guard.ranks) as f64 / 1e9,
        guard.needed_bytes as f64 / 1e9,
        available as f64 / 1e9,
    ));
    (if verdict == Verdict::HugepagesShort { verdict } else { Verdict::MemoryShort }, reasons)
}
