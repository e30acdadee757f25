//! What the host that is planned for has: this one, or what the command line says of another.

use std::path::Path;

use crate::commands::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::question::Question;
use crate::engine::plan::client::{GIB1, MIB2, Pages};
use crate::engine::plan::size_flag;
use crate::engine::sys::cgroup;
use crate::engine::sys::host;
use crate::engine::sys::hugetlb::{self, NodePool};

/// Pages of one size that can be taken.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Bytes of a page.
    pub page: u64,
    /// Pages that are available now: free, not promised, and those by which the pool may grow. `None`: not known.
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
    /// Ordinary memory that is available, bytes: of the host that is planned for.
    pub memory: Option<u64>,
    /// Ordinary memory that is available on this host, bytes, also where another one is planned for.
    pub memory_here: Option<u64>,
    /// False when the command line describes another host.
    pub is_this: bool,
}

impl Host {
    /// Look.
    ///
    /// # Errors
    /// A size on the command line is none.
    pub fn look(args: &Args, question: &Question) -> Result<Host, Failure> {
        let page = question.wanted.page;
        let other = if page == GIB1 { MIB2 } else { GIB1 };
        let memory =
            args.available_memory.as_deref().map(|text| size_flag::host("--available-memory", text)).transpose()?;
        let sys = args.root.join("sys");
        let memory_here = available(&sys);
        match args.available_hugetlb.as_deref().filter(|text| !text.is_empty()) {
            Some(text) => {
                let available = Some(size_flag::host("--available-hugetlb", text)? / page);
                let pool = Pool { page, available, ..Pool::default() };
                let other = Pool { page: other, ..Pool::default() };
                Ok(Host { pool, other, memory, memory_here, is_this: false })
            }
            None => {
                let memory = memory.or(memory_here);
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
                Ok(Host { pool: own, other: pool(&sys, other), memory, memory_here, is_this: true })
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

    /// Can this host reserve `bytes` of huge pages, and have `ordinary` bytes left? False of another host, and where that is unknown.
    pub fn can_reserve(&self, bytes: u64, ordinary: u64) -> bool {
        let needed = bytes.saturating_add(ordinary);
        let here = self.memory.zip(self.memory_here).map(|(planned, here)| planned.min(here));
        self.is_this && self.pool.available.is_some() && here.is_some_and(|memory| memory >= needed)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_reserves_what_leaves_it_enough_ordinary_memory() {
        let gib = |n: u64| n << 30;
        let pool = Pool { page: MIB2, available: Some(0), ..Pool::default() };
        let host =
            Host { pool, other: Pool::default(), memory: Some(gib(24)), memory_here: Some(gib(24)), is_this: true };
        assert!(host.can_reserve(gib(12), gib(12)));
        // All of the memory but a little.
        assert!(!host.can_reserve(gib(13), gib(12)));
        let promised = Host { memory: Some(gib(1024)), ..host.clone() };
        assert!(!promised.can_reserve(gib(246), gib(248)), "--available-memory adds none to this host");
        assert!(!Host { is_this: false, ..host.clone() }.can_reserve(0, 0));
        assert!(!Host { memory: None, ..host.clone() }.can_reserve(0, 0));
        assert!(!Host { pool: Pool::default(), ..host }.can_reserve(0, 0));
    }
}
