//! Raises the huge page pools on NUMA nodes, checks how many pages the kernel granted, and reverts
//! the pools on failure.
//!
//! A pool is never shrunk below its original size.

use std::io;
use std::path::{Path, PathBuf};

use crate::hugetlb::{self, NodePool};

/// The desired size of a node's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolTarget {
    pub node: u32,
    /// Desired number of pages in the pool.
    pub pages: u64,
}

/// A pool that was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaisedPool {
    pub node: u32,
    pub before: u64,
    pub after: u64,
}

/// The reason why the pools could not be raised.
#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    /// A pool cannot be read or written.
    #[error("cannot change the huge page pool on node {node}: {}", path.display())]
    File {
        node: u32,
        path: PathBuf,
        #[source]
        source: io::Error,
        /// Whether all raised pools were reverted.
        undone: bool,
    },
    /// The kernel granted fewer pages than requested.
    #[error("node {node}: the kernel granted {granted} of {wanted} huge pages (previously {before})")]
    Short {
        node: u32,
        /// Number of pages required in the pool.
        wanted: u64,
        /// Number of pages in the pool after the request.
        granted: u64,
        before: u64,
        /// Whether all raised pools were reverted.
        undone: bool,
    },
}

/// Memory that a reservation must leave for the system and its processes, in bytes: 2 GiB, or on a
/// small host a quarter of the `available` memory.
pub fn kept_bytes(available: u64) -> u64 {
    const KEPT_BYTES: u64 = 2 << 30;
    KEPT_BYTES.min(available / 4)
}

/// Whether `bytes` more huge pages leave enough of the `available` memory: [`kept_bytes`], and at
/// least the `regular` bytes that processes need in addition to huge pages.
pub fn leaves_enough(bytes: u64, regular: u64, available: u64) -> bool {
    bytes.saturating_add(regular.max(kept_bytes(available))) <= available
}

/// Access to the huge page pools.
pub trait HugePagePools {
    /// Reads `node`'s pool.
    ///
    /// # Errors
    /// Fails with the path if the pool cannot be read.
    fn read(&self, node: u32) -> Result<NodePool, (PathBuf, io::Error)>;
    /// Requests `pages` pages on `node`.
    ///
    /// # Errors
    /// Fails with the path if the pool cannot be written.
    fn set(&self, node: u32, pages: u64) -> Result<(), (PathBuf, io::Error)>;
}

/// The sysfs pools for one page size.
#[derive(Clone, Copy, Debug)]
pub struct SysfsPools<'a> {
    /// `/sys`, except in tests.
    pub root: &'a Path,
    /// Size of a huge page, in KiB.
    pub kib: u64,
}

impl HugePagePools for SysfsPools<'_> {
    fn read(&self, node: u32) -> Result<NodePool, (PathBuf, io::Error)> {
        hugetlb::node_pool(self.root, node, self.kib)
    }

    fn set(&self, node: u32, pages: u64) -> Result<(), (PathBuf, io::Error)> {
        hugetlb::set_node_pages(self.root, node, self.kib, pages)
    }
}

/// Raises each pool to its target. Pools that are already large enough are unchanged. If a target
/// is not reached, all raised pools are reverted, unless `keep` is set.
///
/// # Errors
/// Fails if a file cannot be read or written, or if the kernel granted fewer pages.
pub fn reserve(pools: &dyn HugePagePools, targets: &[PoolTarget], keep: bool) -> Result<Vec<RaisedPool>, ReserveError> {
    let mut raised: Vec<RaisedPool> = Vec::new();
    for target in targets {
        let node = target.node;
        let step = pools.read(node).and_then(|pool| {
            if pool.total >= target.pages {
                return Ok(None);
            }
            pools.set(node, target.pages)?;
            Ok(Some(RaisedPool { node, before: pool.total, after: pools.read(node)?.total }))
        });
        let step = match step {
            Ok(Some(step)) => step,
            Ok(None) => continue,
            Err((path, source)) => {
                let undone = !keep && undo(pools, &raised);
                return Err(ReserveError::File { node, path, source, undone });
            }
        };
        raised.push(step);
        if step.after < target.pages {
            let undone = !keep && undo(pools, &raised);
            let wanted = target.pages;
            let granted = step.after;
            let before = step.before;
            return Err(ReserveError::Short { node, wanted, granted, before, undone });
        }
    }
    Ok(raised)
}

/// Reverts all pools in `raised`, last one first. Returns whether all of them were reverted.
fn undo(pools: &dyn HugePagePools, raised: &[RaisedPool]) -> bool {
    // Every pool is tried, even after a failure.
    raised.iter().rev().filter(|step| pools.set(step.node, step.before).is_err()).count() == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Simulates nodes on which the kernel grants a limited number of pages.
    struct FakePools {
        nodes: RefCell<Vec<(u64, u64)>>,
        refuses: Option<u32>,
    }

    fn fake(nodes: &[(u64, u64)]) -> FakePools {
        FakePools { nodes: RefCell::new(nodes.to_vec()), refuses: None }
    }

    impl FakePools {
        fn totals(&self) -> Vec<u64> {
            self.nodes.borrow().iter().map(|(total, _)| *total).collect()
        }
    }

    impl HugePagePools for FakePools {
        fn read(&self, node: u32) -> Result<NodePool, (PathBuf, io::Error)> {
            let (total, _) = self.nodes.borrow()[node as usize];
            Ok(NodePool { node, total, free: total })
        }

        fn set(&self, node: u32, pages: u64) -> Result<(), (PathBuf, io::Error)> {
            if self.refuses == Some(node) {
                return Err((PathBuf::from("nr_hugepages"), io::Error::from(io::ErrorKind::PermissionDenied)));
            }
            let pool = &mut self.nodes.borrow_mut()[node as usize];
            pool.0 = pages.min(pool.1);
            Ok(())
        }
    }

    fn targets(pages: &[u64]) -> Vec<PoolTarget> {
        pages.iter().zip(0..).map(|(pages, node)| PoolTarget { node, pages: *pages }).collect()
    }

    #[test]
    fn a_reservation_leaves_memory_for_the_system_and_the_processes() {
        let gib = |n: u64| n << 30;
        assert!(leaves_enough(gib(20), gib(2), gib(22)) && !leaves_enough(gib(20), gib(3), gib(22)));
        assert!(!leaves_enough(gib(21), 0, gib(22)), "the system keeps 2 GiB");
        assert!(leaves_enough(gib(3), 0, gib(4)) && !leaves_enough(gib(3) + 1, 0, gib(4)));
        assert!(!leaves_enough(u64::MAX, u64::MAX, gib(1)));
    }

    #[test]
    fn pools_are_raised_and_never_lowered() {
        let pools = fake(&[(4, 100), (50, 100)]);
        let raised = reserve(&pools, &targets(&[10, 20]), false).unwrap();
        assert_eq!(raised, [RaisedPool { node: 0, before: 4, after: 10 }]);
        assert_eq!(pools.totals(), [10, 50]);
    }

    #[test]
    fn a_short_grant_reverts_all_pools_unless_keep_is_set() {
        let pools = fake(&[(4, 100), (5, 15)]);
        let error = reserve(&pools, &targets(&[10, 20]), false).unwrap_err();
        assert!(matches!(error, ReserveError::Short { node: 1, wanted: 20, granted: 15, before: 5, undone: true }));
        assert_eq!(pools.totals(), [4, 5]);
        let error = reserve(&pools, &targets(&[10, 20]), true).unwrap_err();
        assert!(matches!(error, ReserveError::Short { undone: false, .. }));
        assert_eq!(pools.totals(), [10, 15]);
    }

    #[test]
    fn a_write_error_reverts_raised_pools() {
        let pools = FakePools { refuses: Some(1), ..fake(&[(4, 100), (5, 100)]) };
        let error = reserve(&pools, &targets(&[10, 20]), false).unwrap_err();
        assert!(matches!(error, ReserveError::File { node: 1, undone: true, .. }));
        assert_eq!(pools.totals(), [4, 5]);
    }
}
