//! Does it fit, and if not, why.

use serde::Serialize;

use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::host::Host;
use crate::engine::base::ByteSize;
use crate::engine::plan::guard;
use crate::engine::plan::need::Need;

/// Does it fit?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Huge pages and memory are enough.
    Fits,
    /// Fewer huge pages are available than needed.
    HugepagesShort,
    /// SGLang's guard, or the pages still to be reserved, need more ordinary memory than is available.
    MemoryShort,
    /// Enough for the least need, not for the most: the model decides.
    NotCertain,
    /// The number of huge pages is unknown.
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
                "the number of huge pages is unknown: /sys/kernel/mm/hugepages has no pool of this size".to_owned(),
            );
            Verdict::Unknown
        }
        Some(false) if host.has(&need.least) == Some(true) => {
            reasons.push(format!("needs {least} to {most} huge pages, depending on the model: give --model"));
            Verdict::NotCertain
        }
        Some(false) => {
            let available = host.pool.available.unwrap_or(0);
            if available < most {
                reasons.push(format!("needs {most} huge pages; {available} available"));
            }
            if let Some(allowed) = host.pool.allowed.filter(|allowed| *allowed < most) {
                reasons.push(format!(
                    "needs {most} huge pages; the control group of this process allows {allowed} (hugetlb.*.max). Beyond that \
                     limit a mapping fails, or SIGBUS kills the process"
                ));
            }
            let other = need.most.count(host.other.page);
            if other > host.other.usable().unwrap_or(0) {
                reasons.push(format!(
                    "the arenas need {other} huge pages of the system's default size; {} available",
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
            "NUMA node {} needs {bound} free huge pages and has {}: SIGBUS would kill the process at the first touch",
            node.node, node.free
        ));
    }
    let Some(available) = guard.available_bytes else { return (verdict, reasons) };
    let to_reserve = host.to_reserve(&need.most);
    if host.memory.is_some_and(|memory| to_reserve > memory) {
        reasons.push(format!(
            "the missing huge pages need {}; {} of memory available",
            ByteSize(to_reserve),
            ByteSize(host.memory.unwrap_or(0))
        ));
        return (if verdict == Verdict::HugepagesShort { verdict } else { Verdict::MemoryShort }, reasons);
    }
    if available >= guard.needed_bytes {
        return (verdict, reasons);
    }
    reasons.push(format!(
        "SGLang refuses an L2 above {} per rank on this host: it needs {} of ordinary memory available at start, and {} will be. \
         It counts ordinary memory less 10 GiB, even where L2 is in huge pages",
        ByteSize(guard::budget(available, guard.ranks)),
        ByteSize(guard.needed_bytes),
        ByteSize(available),
    ));
    (if verdict == Verdict::HugepagesShort { verdict } else { Verdict::MemoryShort }, reasons)
}
