//! What the host that is planned for has: this one, or what the command line says of another.

use std::path::Path;

use crate::commands::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::question::Question;
use crate::engine::plan::client::{GIB1, MIB2, Pages};
use crate::engine::plan::upstream;
use crate::engine::sys::cgroup;
use crate::engine::sys::host;
use crate::engine::sys::hugetlb::{self, NodePool};

/// Pages of one size that can be taken.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Bytes of a page.
    pub page: u64,
    /// Pages that can be had now: free, not promised, and those by which the pool may grow. `None`: not known.
    pub available: Option<u64>,
    /// Pages that the control groups of this process still allow. `None`: as many as there are.
    pub allowed: Option<u64>,
    /// Free pages that are promised to somebody.
    pub promised: u64,
    /// The pools of the NUMA nodes; empty for another host.
    pub nodes: Vec<NodePool>,
}

impl Pool {
    /// Pages that a process of this group can have now. `None`: not known.
    pub fn usable(&self) -> Option<u64> {
        Some(self.available?.min(self.allowed.unwrap_or(u64::MAX)))
    }
}

/// What there is.
#[derive(Clone, Debug)]
pub struct Host {
    /// Pages of the size that is planned with.
    pub pool: Pool,
    /// Pages of the other size, which an arena may take.
    pub other: Pool,
    /// Ordinary memory that is available, bytes.
    pub memory: Option<u64>,
    /// Is it this one?
    pub is_this: bool,
}

impl Host {
    /// Look.
    ///
    /// # Errors
    /// A size on the command line is none.
    pub fn look(args: &Args, question: &Question) -> Result<Host, Failure> {
        let bytes = |flag: &str, text: &str| {
            let size = upstream::size(text).map_err(|e| Failure::usage(format!("{flag}: {e}")))?;
            u64::try_from(size).map_err(|_| Failure::usage(format!("{flag} {text} is absurdly large")))
        };
        let page = question.wanted.page;
        let other = if page == GIB1 { MIB2 } else { GIB1 };
        let memory = args.available_memory.as_deref().map(|text| bytes("--available-memory", text)).transpose()?;
        match args.available_hugetlb.as_deref().filter(|text| !text.is_empty()) {
            Some(text) => {
                let available = Some(bytes("--available-hugetlb", text)? / page);
                let pool = Pool { page, available, ..Pool::default() };
                Ok(Host { pool, other: Pool { page: other, ..Pool::default() }, memory, is_this: false })
            }
            None => {
                let sys = args.root.join("sys");
                let memory = memory.or_else(|| available(&sys));
                let own = pool(&sys, page);
                let absent = |node: &&u32| !own.nodes.is_empty() && own.nodes.iter().all(|pool| pool.node != **node);
                if let Some(node) = args.nic_numa_nodes.iter().find(absent) {
                    let found: Vec<String> = own.nodes.iter().map(|pool| pool.node.to_string()).collect();
                    return Err(Failure::usage(format!(
                        "--nic-numa-nodes {node}: this host has no such node with memory"
                    ))
                    .found(format!("nodes {}", found.join(", ")))
                    .next("with --available-hugetlb another host is planned for"));
                }
                Ok(Host { pool: own, other: pool(&sys, other), memory, is_this: true })
            }
        }
    }

    /// Does it have `pages` of both sizes? `None`: not known.
    pub fn has(&self, pages: &Pages) -> Option<bool> {
        let enough = |pool: &Pool| match pages.count(pool.page) {
            0 => Some(true),
            count => pool.usable().map(|usable| usable >= count),
        };
        Some(enough(&self.pool)? && enough(&self.other)?)
    }

    /// Bytes of pages that are still to be reserved for `pages`; they will be missing from ordinary memory.
    pub fn to_reserve(&self, pages: &Pages) -> u64 {
        let missing = |pool: &Pool| {
            let count = pages.count(pool.page).saturating_sub(pool.available.unwrap_or(0));
            count.saturating_mul(pool.page)
        };
        missing(&self.pool).saturating_add(missing(&self.other))
    }
}

/// What SGLang would find available here: MemAvailable, or less where control groups leave less.
fn available(sys: &Path) -> Option<u64> {
    let memory = host::memory()?.available;
    let left = cgroup::memory_left(&sys.join("fs/cgroup"));
    Some(left.map_or(memory, |left| left.min(memory)))
}

fn pool(root: &Path, page: u64) -> Pool {
    let kib = page / 1024;
    let Ok(pages) = host::huge_pages(root, kib) else { return Pool { page, ..Pool::default() } };
    let nodes = hugetlb::memory_nodes(root);
    let free = pages.free.saturating_sub(pages.reserved);
    Pool {
        page,
        available: Some(free.saturating_add(hugetlb::overcommit_pages(root, kib))),
        allowed: cgroup::huge_pages_left(&root.join("fs/cgroup"), kib).map(|bytes| bytes / page),
        promised: pages.reserved,
        // A kernel without NUMA has no files per node.
        nodes: nodes.into_iter().filter_map(|node| hugetlb::node_pool(root, node, kib).ok()).collect(),
    }
}
