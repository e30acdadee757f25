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
    /// Pages in the pool, in use or not; the available pages for another host. `None` if unknown.
    pub total: Option<u64>,
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
        // Without huge pages, none are needed from either pool.
        let page = if request.wanted.uses_hugepages() { request.wanted.page } else { MIB2 };
        let other = if page == GIB1 { MIB2 } else { GIB1 };
        let memory =
            args.available_memory.as_deref().map(|text| size_flag::host("--available-memory", text)).transpose()?;
        let sys = args.root.join("sys");
        let memory_here = available(&sys);
        match args.available_hugetlb.as_deref().filter(|text| !text.is_empty()) {
            Some(text) => {
                let available = Some(size_flag::host("--available-hugetlb", text)? / page);
                let pool = AvailablePages { page, total: available, available, ..AvailablePages::default() };
                let other = AvailablePages { page: other, ..AvailablePages::default() };
                Ok(TargetHost { pool, other, memory, memory_here, is_this: false })
            }
            None => {
                let memory = memory.or(memory_here);
                let own = pool(&sys, page);
                let absent = |node: &&u32| !own.nodes.is_empty() && own.nodes.iter().all(|pool| pool.node != **node);
                // Without huge pages, only the memory determines whether a host is suitable.
                let is_other = args.no_hugepages && args.available_memory.is_some();
                if let Some(node) = args.nic_numa_nodes.iter().find(absent).filter(|_| !is_other) {
                    let flag = if args.no_hugepages { "--available-memory" } else { "--available-hugetlb" };
                    let found: Vec<String> = own.nodes.iter().map(|pool| pool.node.to_string()).collect();
                    return Err(Failure::usage(format!(
                        "--nic-numa-nodes {node}: this host has no NUMA node {node} with memory"
                    ))
                    .found(format!("nodes {}", found.join(", ")))
                    .next(format!("to plan for another host, set {flag}")));
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
        self.pool.available.is_some() && self.has_memory_here(bytes.saturating_add(ordinary))
    }

    /// Whether the target is this host, and it has `bytes` of regular memory. False if unknown.
    pub(super) fn has_memory_here(&self, bytes: u64) -> bool {
        let here = self.memory.zip(self.memory_here).map(|(planned, here)| planned.min(here));
        self.is_this && here.is_some_and(|memory| memory >= bytes)
    }

    /// Whether the pools of the target host may grow, and it has the memory to reserve `bytes` of
    /// huge pages and to keep `ordinary` bytes. Unlike in [`TargetHost::can_reserve`], the memory
    /// may be that of the command line.
    pub(super) fn could_reserve(&self, bytes: u64, ordinary: u64) -> bool {
        let needed = bytes.saturating_add(ordinary);
        self.is_this && self.pool.available.is_some() && self.memory.is_some_and(|memory| memory >= needed)
    }

    /// The required pool size on a host without pools per NUMA node, in pages: that of the present
    /// pool, or more.
    pub(super) fn pool_target(&self, needed: u64) -> u64 {
        let missing = needed.saturating_sub(self.pool.available.unwrap_or(0));
        self.pool.total.unwrap_or(0).saturating_add(missing)
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
/// Available regular memory on this host and in this cgroup, in bytes.
pub(super) fn available(sys: &Path) -> Option<u64> {
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
        total: Some(pages.total),
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
    fn a_pool_target_keeps_the_pages_that_exist() {
        let pool = |total, available| TargetHost {
            pool: AvailablePages { page: MIB2, total: Some(total), available: Some(available), ..Default::default() },
            other: AvailablePages::default(),
            memory: None,
            memory_here: None,
            is_this: true,
        };
        assert_eq!((pool(0, 0).pool_target(5), pool(8, 8).pool_target(5), pool(8, 2).pool_target(5)), (5, 8, 11));
    }

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
        assert!(promised.could_reserve(gib(246), gib(248)), "the host of the plan may have it");
        assert!(!TargetHost { is_this: false, ..promised.clone() }.could_reserve(0, 0), "a given pool does not grow");
        assert!(!TargetHost { is_this: false, ..host.clone() }.can_reserve(0, 0));
        assert!(!TargetHost { memory: None, ..host.clone() }.can_reserve(0, 0));
        assert!(!TargetHost { pool: AvailablePages::default(), ..host }.can_reserve(0, 0));
    }
}
