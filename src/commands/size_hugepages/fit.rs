//! `--fit`: the largest balanced sizes, put into the command line that is then answered.

use crate::commands::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::host::Host;
use crate::commands::size_hugepages::question;
use crate::engine::base::ByteSize;
use crate::engine::plan::fit::{Room, fit};
use crate::engine::plan::host_pool::Wish;

/// `args` with the largest sizes that the host carries.
///
/// # Errors
/// Not even 1 GB fits, or what the host has is not known.
pub fn fitted(args: &Args) -> Result<Args, Failure> {
    // The size itself is what is looked for.
    let question = question::sized(args, Wish::Gb(1))?;
    let host = Host::look(args, &question)?;
    let Some(memory) = host.memory else {
        return Err(Failure::usage("--fit needs the host's ordinary memory").next("give --available-memory, too"));
    };
    let hugetlb = host.pool.available.unwrap_or(0).saturating_mul(question.wanted.page);
    let room = Room { memory, hugetlb };
    let Some(found) = fit(&question.wanted, &room)? else {
        return Err(Failure::no("not even 1 GB of L2 per rank fits")
            .found(format!("{} of ordinary memory and {} in huge pages", ByteSize(memory), ByteSize(hugetlb)))
            .next("use a host with more memory: SGLang leaves 10 GiB free and needs L2 twice, in huge pages and as ordinary memory"));
    };
    Ok(Args {
        fit: false,
        hicache_size: Some(found.gb.to_string()),
        global_segment_size: format!("{}gb", found.group_segment >> 30),
        ..args.clone()
    })
}
