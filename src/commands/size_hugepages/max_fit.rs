//! `--max-fit`: computes the largest balanced sizes and inserts them into the command line.

use crate::commands::cli::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::host::TargetHost;
use crate::commands::size_hugepages::request;
use crate::engine::base::ByteSize;
use crate::engine::plan::fit::{HostCapacity, fit};
use crate::engine::plan::host_pool::L2Size;

/// `args` with the largest sizes that fit the host.
///
/// # Errors
/// Not even 1 GB fits, or the host's memory is unknown.
pub(super) fn fitted(args: &Args) -> Result<Args, Failure> {
    // The L2 size is computed below, so any value can be passed here.
    let request = request::sized(args, L2Size::Gb(1))?;
    let host = TargetHost::read(args, &request)?;
    let Some(memory) = host.memory else {
        return Err(Failure::usage("--max-fit requires the host's regular (non-hugepage) memory")
            .next("also set --available-memory"));
    };
    let hugetlb = host.pool.available.unwrap_or(0).saturating_mul(request.wanted.page);
    let capacity = HostCapacity { memory, hugetlb };
    let Some(found) = fit(&request.wanted, &capacity)? else {
        return Err(Failure::no("not even 1 GB of L2 per rank fits")
            .found(format!("{} of regular (non-hugepage) memory and {} of huge pages", ByteSize(memory), ByteSize(hugetlb)))
            .next("use a host with more memory: SGLang keeps 10 GiB free and needs L2 twice, in huge pages and in regular memory"));
    };
    Ok(Args {
        max_fit: false,
        hicache_size: Some(found.gb.to_string()),
        global_segment_size: format!("{}gb", found.group_segment >> 30),
        ..args.clone()
    })
}
