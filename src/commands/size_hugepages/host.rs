//! The target host's resources: this host, or another host that the command line describes.

use std::path::Path;

use crate::commands::cli::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::request::SizingRequest;
use crate::engine::plan::client::{GIB1, HugePageCount, MIB2};
use crate::engine::plan::size_flag;
use crate::engine::sys::cgroup;
use crate::engine::sys::host;
use crate::engine::sys::hugetlb::{self, NodePool};

/// The available huge pages of one size.
#[derive(Clone, Debug, Default)]
pub(super) struct AvailablePages {
    /// Page size in bytes.
    pub page: u64,
    /// Available pages: free pages that are not reserved, plus pages that overcommit may add.
    /// `None` if unknown.
    pub available: Option<u64>,
    /// Pages that this process's cgroups still allow; `None` if unlimited.
    pub allowed: Option<u64>,
    /// Free pages that are reserved for a mapping.
    pub promised: u64,
    /// The NUMA nodes' pools; empty for another host.
    pub nodes: Vec<NodePool>,
}

impl AvailablePages {
    /// Pages that a process in this cgroup can allocate now; `None` if unknown.
    pub(super) fn usable(&self) -> Option<u64> {
        Some(self.available?.min(self.allowed.unwrap_or(u64::MAX)))
    }
}

/// The target host's resources.
#[derive(Clone, Debug)]
pub(super) struct TargetHost {
    /// Pages of the planned size.
    pub pool: AvailablePages,
    /// Pages of the other size, which an arena may use.
    pub other: AvailablePages,
    /// Available regular (non-hugepage) memory on the target host, in bytes.
    pub memory: Option<u64>,
    /// Available regular memory on this host, in bytes, even if the target is another host.
    pub memory_here: Option<u64>,
    /// Whether the target is this host.
    pub is_this: bool,
}

impl TargetHost {
    /// Reads the target host's resources.
    ///
    /// # Errors
    /// A size on the command line is invalid, or a NUMA node does not exist.
    pub(super) fn read(args: &Args, request: &SizingRequest) -> Result<TargetHost, Failure> {
        let page = request.wanted.page;
        let other = if page == GIB1 { MIB2 } else { GIB1 };
        let memory =
            args.available_memory.as_deref().map(|text| size_flag::host("--available-memory", text)).transpose()?;
        let sys = args.root.join("sys");
        let memory_here = available(&sys);
        match args.available_hugetlb.as_deref().filter(|text| !text.is_empty()) {
            Some(text) => {
                let available = Some(size_flag::host("--available-hugetlb", text)? / page);
                let pool = AvailablePages { page, available, ..AvailablePages::default() };
                let other = AvailablePages { page: other, ..AvailablePages::default() };
                Ok(TargetHost { pool, other, memory, memory_here, is_this: false })
            }
            None => {
                let memory = memory.or(memory_here);
                let own = pool(&sys, page);
                let absent = |node: &&u32| !own.nodes.is_empty() && own.nodes.iter().all(|pool| pool.node != **node);
                if let Some(node) = args.nic_numa_nodes.iter().find(absent) {
                    let found: Vec<String> = own.nodes.iter().map(|pool| pool.node.to_string()).collect();
                    return Err(Failure::usage(format!(
                        "--nic-numa-nodes {node}: this host has no NUMA node {node} with memory"
                    ))
                    .found(format!("nodes {}", found.join(", ")))
                    .next("to plan for another host, set --available-hugetlb"));
                }
                Ok(TargetHost { pool: own, other: pool(&sys, other), memory, memory_here, is_this: true })
            }
        }
    }

    /// Whether the host has `pages` of both sizes; `None` if unknown.
    pub(super) fn has(&self, pages: &HugePageCount) -> Option<bool> {
        let enough = |pool: &AvailablePages| match pages.count(pool.page) {
            0 => Some(true),
            count => pool.usable().map(|usable| usable >= count),
        };
        Some(enough(&self.pool)? && enough(&self.other)?)
    }

    /// Whether this host can reserve `bytes` of huge pages and keep `ordinary` bytes of regular
    /// memory. False for another host, or if unknown.
    pub(super) fn can_reserve(&self, bytes: u64, ordinary: u64) -> bool {
        let needed = bytes.saturating_add(ordinary);
        let here = self.memory.zip(self.memory_here).map(|(planned, here)| planned.min(here));
        self.is_this && self.pool.available.is_some() && here.is_some_and(|memory| memory >= needed)
    }

    /// Size in bytes of the huge pages that must still be reserved for `pages`. They reduce the
    /// regular memory.
    pub(super) fn to_reserve(&self, pages: &HugePageCount) -> u64 {
        let missing = |pool: &AvailablePages| {
            let count = pages.count(pool.page).saturating_sub(pool.available.unwrap_or(0));
            count.saturating_mul(pool.page)
        };
        missing(&self.pool).saturating_add(missing(&self.other))
    }
}

/// The available memory that SGLang would detect: MemAvailable, or less if cgroups limit it.
fn available(sys: &Path) -> Option<u64> {
    let memory = host::memory()?.available;
    let left = cgroup::memory_left(&sys.join("fs/cgroup"));
    Some(left.map_or(memory, |left| left.min(memory)))
}

fn pool(root: &Path, page: u64) -> AvailablePages {
    let kib = page / 1024;
    let Ok(pages) = host::huge_pages(root, kib) else { return AvailablePages { page, ..AvailablePages::default() } };
    let nodes = hugetlb::memory_nodes(root);
    let free = pages.free.saturating_sub(pages.reserved);
    AvailablePages {
        page,
        available: Some(free.saturating_add(hugetlb::overcommit_pages(root, kib))),
        allowed: cgroup::huge_pages_left(&root.join("fs/cgroup"), kib).map(|bytes| bytes / page),
        promised: pages.reserved,
        // A kernel without NUMA support has no per-node files.
        nodes: nodes.into_iter().filter_map(|node| hugetlb::node_pool(root, node, kib).ok()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_must_leave_enough_ordinary_memory() {
        let gib = |n: u64| n << 30;
        let pool = AvailablePages { page: MIB2, available: Some(0), ..AvailablePages::default() };
        let host = TargetHost {
            pool,
            other: AvailablePages::default(),
            memory: Some(gib(24)),
            memory_here: Some(gib(24)),
            is_this: true,
        };
        assert!(host.can_reserve(gib(12), gib(12)));
        // This reservation would use nearly all of the memory.
        assert!(!host.can_reserve(gib(13), gib(12)));
        let promised = TargetHost { memory: Some(gib(1024)), ..host.clone() };
        assert!(!promised.can_reserve(gib(246), gib(248)), "--available-memory does not add memory to this host");
        assert!(!TargetHost { is_this: false, ..host.clone() }.can_reserve(0, 0));
        assert!(!TargetHost { memory: None, ..host.clone() }.can_reserve(0, 0));
        assert!(!TargetHost { pool: AvailablePages::default(), ..host }.can_reserve(0, 0));
    }
}
