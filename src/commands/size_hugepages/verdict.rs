//! Whether the deployment fits, and the reasons.

use serde::Serialize;

use crate::commands::cli::error::Exit;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::host::TargetHost;
use crate::engine::base::ByteSize;
use crate::engine::plan::guard;
use crate::engine::plan::need::MemoryNeed;

/// Whether the deployment fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SizingVerdict {
    /// Huge pages and memory are sufficient.
    Fits,
    /// Fewer huge pages are available than needed.
    HugepagesShort,
    /// SGLang's check, or the pages that must still be reserved, need more regular (non-hugepage)
    /// memory than is available.
    MemoryShort,
    /// A host has too few GPUs, NICs or NUMA nodes. Only for a deployment file.
    DevicesShort,
    /// The deployment fits only for some models.
    NotCertain,
    /// The number of huge pages is unknown.
    Unknown,
}

impl SizingVerdict {
    /// Returns the exit code: 1 if the deployment does not fit, or fits only for some models.
    pub(super) fn exit(self) -> Exit {
        match self {
            SizingVerdict::Fits | SizingVerdict::Unknown => Exit::Done,
            SizingVerdict::HugepagesShort
            | SizingVerdict::MemoryShort
            | SizingVerdict::DevicesShort
            | SizingVerdict::NotCertain => Exit::No,
        }
    }
}

/// SGLang's check for regular (non-hugepage) memory.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GuardRow {
    /// Bytes that must be available.
    pub needed_bytes: u64,
    /// Bytes that remain available after the missing pages have been reserved.
    pub available_bytes: Option<u64>,
    /// Number of ranks that share the memory.
    pub ranks: u64,
}

/// Why the deployment does not fit, or a caveat about its sizes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FitReason {
    #[error("the number of huge pages is unknown: /sys/kernel/mm/hugepages has no pool of this size")]
    UnknownPages,
    #[error("needs {least} to {most} huge pages, depending on the model: set --model")]
    DependsOnModel { least: u64, most: u64 },
    #[error("needs {needed} huge pages; {available} available")]
    PagesShort { needed: u64, available: u64 },
    #[error(
        "needs {needed} huge pages; this process's cgroup allows {allowed} (hugetlb.*.max). Beyond that limit, a \
         mapping fails or SIGBUS kills the process"
    )]
    CgroupLimit { needed: u64, allowed: u64 },
    #[error("the arenas need {needed} huge pages of the system default size; {available} available")]
    ArenaPagesShort { needed: u64, available: u64 },
    #[error(
        "NUMA node {node} needs {needed} free huge pages but has {free}: SIGBUS would kill the process on first use"
    )]
    NodePagesShort { node: u32, needed: u64, free: u64 },
    #[error("the missing huge pages need {needed} of memory; {available} available")]
    MemoryShort { needed: ByteSize, available: ByteSize },
    #[error(
        "SGLang rejects an L2 larger than {limit} per rank on this host: its startup check requires {needed} of regular \
         (non-hugepage) memory, but only {available} will be available. The check allows at most regular memory minus \
         10 GiB, even if L2 is backed by huge pages"
    )]
    Guard { limit: ByteSize, needed: ByteSize, available: ByteSize },
    #[error("a rank's segment is below 16 MiB: without huge pages the store rejects it (setup returns -600)")]
    SmallSegment,
}

impl Serialize for FitReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Determines whether the deployment fits, with the reasons.
pub(super) fn verdict(
    args: &Args,
    host: &TargetHost,
    need: &MemoryNeed,
    guard: &GuardRow,
) -> (SizingVerdict, Vec<FitReason>) {
    let mut reasons = Vec::new();
    let page = host.pool.page;
    let least = need.least.count(page);
    let most = need.most.count(page);
    let mut verdict = match host.has(&need.most) {
        Some(true) => SizingVerdict::Fits,
        None => {
            reasons.push(FitReason::UnknownPages);
            SizingVerdict::Unknown
        }
        Some(false) if host.has(&need.least) == Some(true) => {
            reasons.push(FitReason::DependsOnModel { least, most });
            SizingVerdict::NotCertain
        }
        Some(false) => {
            let available = host.pool.available.unwrap_or(0);
            if available < most {
                reasons.push(FitReason::PagesShort { needed: most, available });
            }
            if let Some(allowed) = host.pool.allowed.filter(|allowed| *allowed < most) {
                reasons.push(FitReason::CgroupLimit { needed: most, allowed });
            }
            let other = need.most.count(host.other.page);
            if other > host.other.usable().unwrap_or(0) {
                let available = host.other.usable().unwrap_or(0);
                reasons.push(FitReason::ArenaPagesShort { needed: other, available });
            }
            SizingVerdict::HugepagesShort
        }
    };
    // Pages bound to a NUMA node are allocated on first use, when an error can no longer be
    // returned.
    let bound = need.pages_per_nic_node;
    for node in host.pool.nodes.iter().filter(|pool| args.nic_numa_nodes.contains(&pool.node) && pool.free < bound) {
        verdict = SizingVerdict::HugepagesShort;
        reasons.push(FitReason::NodePagesShort { node: node.node, needed: bound, free: node.free });
    }
    let Some(available) = guard.available_bytes else { return (verdict, reasons) };
    let to_reserve = host.to_reserve(&need.most);
    if host.memory.is_some_and(|memory| to_reserve > memory) {
        let available = ByteSize(host.memory.unwrap_or(0));
        reasons.push(FitReason::MemoryShort { needed: ByteSize(to_reserve), available });
        return (if verdict == SizingVerdict::HugepagesShort { verdict } else { SizingVerdict::MemoryShort }, reasons);
    }
    if available >= guard.needed_bytes {
        return (verdict, reasons);
    }
    reasons.push(FitReason::Guard {
        limit: ByteSize(guard::budget(available, guard.ranks)),
        needed: ByteSize(guard.needed_bytes),
        available: ByteSize(available),
    });
    (if verdict == SizingVerdict::HugepagesShort { verdict } else { SizingVerdict::MemoryShort }, reasons)
}
