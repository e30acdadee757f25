//! Whether the deployment fits, and the reasons.

use serde::Serialize;

use crate::commands::cli::error::Exit;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::host::TargetHost;
use crate::engine::base::ByteSize;
use crate::engine::plan::client::PLAIN_SEGMENT_BYTES_MIN;
use crate::engine::plan::guard;
use crate::engine::plan::l2::ValueRange;
use crate::engine::plan::need::{MemoryNeed, RegularMemory};

/// Whether the deployment fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SizingVerdict {
    /// Huge pages and memory are sufficient.
    Fits,
    /// Fewer huge pages are available than needed.
    HugepagesShort,
    /// SGLang's check, the pages that must still be reserved, or a deployment without huge pages
    /// need more regular (non-hugepage) memory than is available.
    MemoryShort,
    /// Without huge pages, the store rejects a segment of this size.
    SegmentRejected,
    /// A host has too few GPUs, NICs or NUMA nodes. Only for a deployment file.
    DevicesShort,
    /// The deployment fits only for some models.
    NotCertain,
    /// The number of huge pages is unknown; without huge pages, the amount of memory.
    Unknown,
}

impl SizingVerdict {
    /// Returns the exit code: 1 if the deployment does not fit, or fits only for some models.
    pub(super) fn exit(self) -> Exit {
        match self {
            SizingVerdict::Fits | SizingVerdict::Unknown => Exit::Done,
            SizingVerdict::HugepagesShort
            | SizingVerdict::MemoryShort
            | SizingVerdict::SegmentRejected
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

/// What determines the result, and is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    Model,
    DevicePools,
}

impl Unknown {
    fn of(need: &MemoryNeed) -> Unknown {
        if need.ranks.iter().any(|rank| rank.is_estimate) { Unknown::DevicePools } else { Unknown::Model }
    }
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unknown::Model => "the model: set --model",
            Unknown::DevicePools => {
                "the pools on the device: set --device-pool-tokens, and --device-mamba-slots for states"
            }
        })
    }
}

/// Why the deployment does not fit, or a caveat about its sizes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FitReason {
    #[error("the number of huge pages is unknown: /sys/kernel/mm/hugepages has no pool of this size")]
    UnknownPages,
    #[error("needs {least} to {most} huge pages, depending on {what}")]
    DependsOn { least: u64, most: u64, what: Unknown },
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
    #[error(
        "how L2 is split over the pools depends on the device: the sizes of single pools are estimates with SGLang's \
         default shares. For exact ones, set {missing}"
    )]
    EstimatedPools { missing: &'static str },
    #[error(
        "with sparse attention, SGLang's auto selects fp8_e4m3 on Blackwell GPUs, and bf16 on others: set \
         --kv-cache-dtype to plan for one of them (these figures are for bf16)"
    )]
    AutoCacheOfSparseModel,
    #[error(
        "with sparse attention, SGLang uses pages of {page} tokens on CUDA: set --page-size {page} (these figures are \
         for {given})"
    )]
    SparsePage { page: u64, given: u64 },
    #[error(
        "the index of this model has 1 byte per element on Hopper GPUs, and on Blackwell with trtllm_mha; on others it \
         is twice as large"
    )]
    IndexDependsOnGpu,
    #[error(
        "the states of {prefixes} prefixes fit in L2, fewer than the {live} live ones: requests that use them in turn \
         miss. {remedy}"
    )]
    StatesShort { prefixes: u64, live: u64, remedy: String },
    #[error("L2 has {slots} state slots, fewer than the device ({device}): it adds almost nothing")]
    SlotsBelowDevice { slots: u64, device: u64 },
    #[error("a rank's segment is below 16 MiB: without huge pages the store rejects it (setup returns -600)")]
    SmallSegment,
    #[error(
        "a segment of {segment} is below {least}: without huge pages the store rejects it (setup returns -600), and \
         SGLang or the store service does not start"
    )]
    RejectedSegment { segment: ByteSize, least: ByteSize },
    #[error("the available memory is unknown: set --available-memory")]
    UnknownMemory,
    #[error("needs {least} to {most} of regular memory, depending on {what}")]
    MemoryDependsOn { least: ByteSize, most: ByteSize, what: Unknown },
    #[error(
        "needs {needed} of regular memory ({reserve} of it stay free: SGLang's startup check requires that); {available} \
         available"
    )]
    RegularShort { needed: ByteSize, reserve: ByteSize, available: ByteSize },
    #[error(
        "this host has {0} in free huge pages, which this deployment does not use and which are not part of the \
         available memory"
    )]
    UnusedPages(ByteSize),
    #[error(
        "a rank that starts late may fail: SGLang's check then counts L2 of the other ranks twice. To exclude this, \
         {needed} must be available; {available} available"
    )]
    LateRank { needed: ByteSize, available: ByteSize },
    #[error(
        "the memory of SGLang's own processes is not included: it must be available in addition, or already be in use"
    )]
    ProcessMemory,
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
    if let Some(regular) = &need.regular {
        return regular_verdict(host, need, regular);
    }
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
            reasons.push(FitReason::DependsOn { least, most, what: Unknown::of(need) });
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

/// Determines whether a deployment without huge pages fits, with the reasons.
fn regular_verdict(host: &TargetHost, need: &MemoryNeed, regular: &RegularMemory) -> (SizingVerdict, Vec<FitReason>) {
    let mut reasons = vec![FitReason::ProcessMemory];
    let ValueRange { least, most } = regular.needed;
    let mut verdict = match host.memory {
        None => {
            reasons.push(FitReason::UnknownMemory);
            SizingVerdict::Unknown
        }
        Some(memory) if memory >= most => SizingVerdict::Fits,
        Some(memory) if memory >= least => {
            let what = Unknown::of(need);
            reasons.push(FitReason::MemoryDependsOn { least: ByteSize(least), most: ByteSize(most), what });
            SizingVerdict::NotCertain
        }
        Some(memory) => {
            let (needed, available) = (ByteSize(most), ByteSize(memory));
            reasons.push(FitReason::RegularShort { needed, reserve: ByteSize(guard::RESERVE_BYTES), available });
            let unused = host.pool.available.unwrap_or(0).saturating_mul(host.pool.page);
            reasons.extend((unused > 0).then_some(FitReason::UnusedPages(ByteSize(unused))));
            SizingVerdict::MemoryShort
        }
    };
    let late = regular.needed_by_last_rank;
    if let Some(memory) = host.memory.filter(|memory| *memory >= most && *memory < late) {
        reasons.push(FitReason::LateRank { needed: ByteSize(late), available: ByteSize(memory) });
    }
    if let Some(segment) = need.rejected_segment {
        let least = ByteSize(PLAIN_SEGMENT_BYTES_MIN);
        reasons.push(FitReason::RejectedSegment { segment: ByteSize(segment), least });
        verdict = SizingVerdict::SegmentRejected;
    }
    (verdict, reasons)
}
