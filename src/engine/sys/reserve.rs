//! Raising the pools of huge pages of NUMA nodes, with a check of what the kernel granted, and the way back.
//!
//! A pool is never made smaller than it was found: undoing goes back to that, and no further.

use std::io;
use std::path::{Path, PathBuf};

use crate::engine::sys::hugetlb::{self, NodePool};

/// What a node's pool is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The node.
    pub node: u32,
    /// Pages in its pool.
    pub pages: u64,
}

/// A pool that was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// The node.
    pub node: u32,
    /// Pages before.
    pub before: u64,
    /// Pages now.
    pub after: u64,
}

/// Why pools are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    /// A pool cannot be read or written.
    #[error("the pool of node {node} cannot be changed: {}", path.display())]
    File {
        /// The node.
        node: u32,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
        /// Were pools that had been raised set back?
        undone: bool,
    },
    /// The kernel granted less than was asked for.
    #[error("node {node} has {granted} huge pages, where {wanted} were asked for and {before} were before")]
    Short {
        /// The node.
        node: u32,
        /// Pages asked for.
        wanted: u64,
        /// Pages in its pool.
        granted: u64,
        /// Pages before.
        before: u64,
        /// Were pools that had been raised set back?
        undone: bool,
    },
}

/// Where pools are read and set.
pub trait Pools {
    /// The pool of `node`.
    ///
    /// # Errors
    /// It cannot be read; with the path.
    fn read(&self, node: u32) -> Result<NodePool, (PathBuf, io::Error)>;
    /// Ask for `pages` on `node`.
    ///
    /// # Errors
    /// It cannot be written; with the path.
    fn set(&self, node: u32, pages: u64) -> Result<(), (PathBuf, io::Error)>;
}

/// The pools of one page size in sysfs.
#[derive(Clone, Copy, Debug)]
pub struct Sysfs<'a> {
    /// `/sys` but in tests.
    pub root: &'a Path,
    /// KiB of a page.
    pub kib: u64,
}

impl Pools for Sysfs<'_> {
    fn read(&self, node: u32) -> Result<NodePool, (PathBuf, io::Error)> {
        hugetlb::node_pool(self.root, node, self.kib)
    }

    fn set(&self, node: u32, pages: u64) -> Result<(), (PathBuf, io::Error)> {
        hugetlb::set_node_pages(self.root, node, self.kib, pages)
    }
}

/// Raise each pool to its target; those that are as large already stay as they are. Unless `keep` is set, a target that is not
/// reached sets back all that were raised.
///
/// # Errors
/// A file, or the kernel granted less.
pub fn reserve(pools: &dyn Pools, targets: &[Target], keep: bool) -> Result<Vec<Raised>, ReserveError> {
    let mut raised: Vec<Raised> = Vec::new();
    for target in targets {
        let node = target.node;
        let step = pools.read(node).and_then(|pool| {
            if pool.total >= target.pages {
                return Ok(None);
            }
            pools.set(node, target.pages)?;
            Ok(Some(Raised { node, before: pool.total, after: pools.read(node)?.total }))
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
            let (wanted, granted, before) = (target.pages, step.after, step.before);
            return Err(ReserveError::Short { node, wanted, granted, before, undone });
        }
    }
    Ok(raised)
}

/// Set all of `raised` back, the last first. Did all go?
fn undo(pools: &dyn Pools, raised: &[Raised]) -> bool {
    // Each is tried, also after one that did not go.
    raised.iter().rev().filter(|step| pools.set(step.node, step.before).is_err()).count() == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Nodes whose kernels grant so many pages at most.
    struct Fake {
        nodes: RefCell<Vec<(u64, u64)>>,
        refuses: Option<u32>,
    }

    fn fake(nodes: &[(u64, u64)]) -> Fake {
        Fake { nodes: RefCell::new(nodes.to_vec()), refuses: None }
    }

    impl Fake {
        fn totals(&self) -> Vec<u64> {
            self.nodes.borrow().iter().map(|(total, _)| *total).collect()
        }
    }

    impl Pools for Fake {
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

    fn targets(pages: &[u64]) -> Vec<Target> {
        pages.iter().zip(0..).map(|(pages, node)| Target { node, pages: *pages }).collect()
    }

    #[test]
    fn pools_are_raised_and_never_lowered() {
        let pools = fake(&[(4, 100), (50, 100)]);
        let raised = reserve(&pools, &targets(&[10, 20]), false).unwrap();
        assert_eq!(raised, [Raised { node: 0, before: 4, after: 10 }]);
        assert_eq!(pools.totals(), [10, 50]);
    }

    #[test]
    fn a_grant_that_is_short_sets_all_back_unless_told_otherwise() {
        let pools = fake(&[(4, 100), (5, 15)]);
        let error = reserve(&pools, &targets(&[10, 20]), false).unwrap_err();
        assert!(matches!(error, ReserveError::Short { node: 1, wanted: 20, granted: 15, before: 5, undone: true }));
        assert_eq!(pools.totals(), [4, 5]);
        let error = reserve(&pools, &targets(&[10, 20]), true).unwrap_err();
        assert!(matches!(error, ReserveError::Short { undone: false, .. }));
        assert_eq!(pools.totals(), [10, 15]);
    }

    #[test]
    fn a_file_that_cannot_be_written_sets_back_what_was_raised_before() {
        let pools = Fake { refuses: Some(1), ..fake(&[(4, 100), (5, 100)]) };
        let error = reserve(&pools, &targets(&[10, 20]), false).unwrap_err();
        assert!(matches!(error, ReserveError::File { node: 1, undone: true, .. }));
        assert_eq!(pools.totals(), [4, 5]);
    }
}
