//! `--max-fit`: computes the largest sizes and inserts them into the command line.

use serde::Serialize;

use crate::commands::cli::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::build;
use crate::commands::size_hugepages::host::{AvailablePages, TargetHost};
use crate::commands::size_hugepages::report::RangeRow;
use crate::commands::size_hugepages::request::{self, SizingRequest};
use crate::commands::size_hugepages::summary;
use crate::engine::base::ByteSize;
use crate::engine::plan::client::{GIB1, HugePageCount, PLAIN_SEGMENT_BYTES_MIN};
use crate::engine::plan::fit::{FitResult, FittingSizes, HostCapacity, SearchedSizes, fit};
use crate::engine::plan::host_pool::L2Size;
use crate::engine::plan::need::MemoryNeed;

/// What `--max-fit` has searched, and the result.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct FittedSizes {
    /// `l2-and-segment`, `l2` or `segment`.
    pub searched: &'static str,
    /// `--hicache-size`, in GB (10^9 bytes) per rank; `null` with a ratio.
    pub hicache_gb: Option<u64>,
    /// Segment size per group.
    pub group_segment_bytes: u64,
}

/// `args` with the largest sizes that fit the host.
///
/// # Errors
/// Not even the smallest sizes fit, no size is left to search, or the host's memory is unknown.
pub(super) fn fitted(args: &Args) -> Result<(Args, FittedSizes), Failure> {
    let searched = match (args.hicache_size.is_some() || args.hicache_ratio.is_some(), &args.global_segment_size) {
        (false, None) => SearchedSizes::Balanced,
        (false, Some(_)) => SearchedSizes::L2,
        (true, None) => SearchedSizes::Segment,
        (true, Some(_)) => {
            return Err(Failure::usage("--max-fit has no size to search: L2 and the segment are both set")
                .next("omit --max-fit, or the size to search"));
        }
    };
    let request = match searched {
        SearchedSizes::Segment => request::read(args)?,
        // The L2 size is searched, so any value can be passed here.
        SearchedSizes::Balanced | SearchedSizes::L2 => request::sized(args, L2Size::Gb(1))?,
    };
    let host = TargetHost::read(args, &request)?;
    let capacity = capacity(args, &request, &host)?;
    let carries = |need: &MemoryNeed| {
        let is_reserved = host.to_reserve(&need.most) == 0;
        capacity.carries(need) && (is_reserved || build::fits_nodes(args, &request, &host, need))
    };
    let found = match fit(&request.wanted, searched, carries)? {
        FitResult::Largest(found) => found,
        FitResult::Nothing { smallest, need } => {
            let failure = nothing(args, &request, &capacity, (&smallest, &need));
            return Err(match searched {
                SearchedSizes::Balanced => failure,
                SearchedSizes::L2 => failure.next("lower --global-segment-size, or use a host with more memory"),
                SearchedSizes::Segment => failure.next("lower the size of L2, or use a host with more memory"),
            });
        }
    };
    let hicache_gb = match found.l2_size {
        L2Size::Gb(gb) => Some(gb),
        L2Size::Ratio { .. } | L2Size::Auto { .. } => None,
    };
    let mut sized = Args { max_fit: false, ..args.clone() };
    if searched != SearchedSizes::Segment {
        sized.hicache_size = hicache_gb.map(|gb| gb.to_string());
    }
    if searched != SearchedSizes::L2 {
        sized.global_segment_size = Some(format!("{}gb", found.group_segment >> 30));
    }
    let searched = match searched {
        SearchedSizes::Balanced => "l2-and-segment",
        SearchedSizes::L2 => "l2",
        SearchedSizes::Segment => "segment",
    };
    Ok((sized, FittedSizes { searched, hicache_gb, group_segment_bytes: found.group_segment }))
}

/// What the deployment may use.
fn capacity(args: &Args, request: &SizingRequest, host: &TargetHost) -> Result<HostCapacity, Failure> {
    let Some(memory) = host.memory else {
        return Err(Failure::usage("--max-fit requires the host's regular (non-hugepage) memory")
            .next("also set --available-memory"));
    };
    if !request.wanted.uses_hugepages() {
        let none = HugePageCount::default();
        return Ok(HostCapacity { memory, hugepages: none, hugepages_max: none });
    }
    if host.pool.available.is_none() {
        let page = ByteSize(request.wanted.page);
        return Err(Failure::usage(format!("--max-fit: the number of {page} huge pages on this host is unknown"))
            .found(format!("this kernel has no pool of {page} huge pages"))
            .next("set --available-hugetlb, another --hugepage-size, or --no-hugepages"));
    }
    // A pool on the command line does not grow. The pools of this host do, up to the limit of its
    // cgroup.
    let max = |pool: &AvailablePages| match args.available_hugetlb {
        Some(_) => pool.available.unwrap_or(0),
        None => pool.allowed.unwrap_or(u64::MAX),
    };
    let of = |count: &dyn Fn(&AvailablePages) -> u64| {
        let (pool, other) = (count(&host.pool), count(&host.other));
        let (mib2, gib1) = if host.pool.page == GIB1 { (other, pool) } else { (pool, other) };
        HugePageCount { mib2, gib1 }
    };
    Ok(HostCapacity { memory, hugepages: of(&|pool| pool.available.unwrap_or(0)), hugepages_max: of(&max) })
}

/// The failure if not even the `smallest` sizes fit, with what they need.
fn nothing(
    args: &Args,
    request: &SizingRequest,
    capacity: &HostCapacity,
    (smallest, need): (&FittingSizes, &MemoryNeed),
) -> Failure {
    let segment = ByteSize(smallest.group_segment);
    let sizes = match smallest.l2_size {
        L2Size::Gb(gb) => format!("{gb} GB of L2 per rank and a segment of {segment} per group"),
        L2Size::Ratio { ratio, .. } => format!("L2 for --hicache-ratio {ratio} and a segment of {segment} per group"),
        L2Size::Auto { .. } => format!("SGLang's automatic L2 size and a segment of {segment} per group"),
    };
    if let Some(rejected) = need.rejected_segment {
        return Failure::no(format!(
            "no size fits: a segment is {}, and without huge pages the store rejects segments below {}",
            ByteSize(rejected),
            ByteSize(PLAIN_SEGMENT_BYTES_MIN)
        ))
        .tried(sizes)
        .next("increase --global-segment-size and --store-segment-size, or use huge pages");
    }
    let memory = ByteSize(capacity.memory);
    let needed = ByteSize(need.memory_bytes());
    let (needs, has, next) = if request.wanted.uses_hugepages() {
        let of = |count: u128| ByteSize(u64::try_from(count).unwrap_or(u64::MAX));
        let page = request.wanted.page;
        let most = need.most.count(page);
        let most = summary::pages(RangeRow { least: most, most }, page);
        let limit = match args.available_hugetlb {
            Some(_) => "huge pages of --available-hugetlb",
            None => "huge pages; more may be reserved",
        };
        (
            format!("{most}, and {needed} of regular (non-hugepage) memory"),
            format!("{memory} of regular memory and {} in {limit}", of(capacity.hugepages.bytes())),
            "use a host with more huge pages or memory: SGLang keeps 10 GiB free and needs L2 twice, in huge pages and in regular memory",
        )
    } else {
        (
            format!("{needed} of regular memory, of which SGLang's check keeps 10 GiB free"),
            format!("{memory} of regular memory"),
            "use a host with more memory, or fewer ranks per host",
        )
    };
    Failure::no("not even the smallest sizes fit")
        .tried(sizes)
        .found(format!("needs {needs}; the host has {has}"))
        .next(next)
}
