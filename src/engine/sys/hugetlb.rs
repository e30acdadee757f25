//! Huge page pools in sysfs, for the host and for each NUMA node.
//!
//! `root` is `/sys`, except in tests.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::procfs;

/// A NUMA node's huge page pool of one page size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePool {
    pub node: u32,
    /// Pages in the node's pool.
    pub total: u64,
    pub free: u64,
}

/// `nr_hugepages` for the pool of `kib` KiB pages. `None` if the kernel does not support the page
/// size or the file does not contain a number.
pub fn total_pages(root: &Path, kib: u64) -> Option<u64> {
    number(&root.join(format!("kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"))).ok()
}

/// The NUMA nodes that have memory. Node 0 if the kernel has no NUMA support.
pub fn memory_nodes(root: &Path) -> Vec<u32> {
    let text = fs::read_to_string(root.join("devices/system/node/has_memory")).unwrap_or_default();
    let nodes = parse_list(text.trim());
    if nodes.is_empty() { vec![0] } else { nodes }
}

/// Maximum number of NUMA nodes that a kernel build supports.
const NODES_MAX: u32 = 1024;

/// Parses a list in the kernel's format, e.g. `0-1,4`. Invalid entries are skipped.
pub fn parse_list(text: &str) -> Vec<u32> {
    let mut out = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            out.extend(first..=last.min(NODES_MAX));
        }
    }
    out
}

/// The sysfs directory for `node`'s pool of `kib` KiB pages.
pub fn node_folder(root: &Path, node: u32, kib: u64) -> PathBuf {
    root.join(format!("devices/system/node/node{node}/hugepages/hugepages-{kib}kB"))
}

/// Reads `node`'s pool of `kib` KiB pages.
///
/// # Errors
/// Fails with the path if the node has no such pool or the pool cannot be read.
pub fn node_pool(root: &Path, node: u32, kib: u64) -> Result<NodePool, (PathBuf, io::Error)> {
    let folder = node_folder(root, node, kib);
    let read = |name: &str| {
        let path = folder.join(name);
        number(&path).map_err(|e| (path, e))
    };
    Ok(NodePool { node, total: read("nr_hugepages")?, free: read("free_hugepages")? })
}

/// Requests `pages` pages of `kib` KiB on `node`. The kernel may allocate fewer pages without an
/// error, so read the pool afterward.
///
/// # Errors
/// Fails with the path if the file cannot be written.
pub fn set_node_pages(root: &Path, node: u32, kib: u64, pages: u64) -> Result<(), (PathBuf, io::Error)> {
    let path = node_folder(root, node, kib).join("nr_hugepages");
    fs::write(&path, pages.to_string()).map_err(|e| (path, e))
}

/// Number of pages by which the pool of `kib` KiB pages can grow on demand (the unused part of
/// `nr_overcommit_hugepages`).
pub fn overcommit_pages(root: &Path, kib: u64) -> u64 {
    let folder = root.join(format!("kernel/mm/hugepages/hugepages-{kib}kB"));
    let read = |name: &str| number(&folder.join(name)).unwrap_or(0);
    read("nr_overcommit_hugepages").saturating_sub(read("surplus_hugepages"))
}

/// Default huge page size in bytes. `None` if the kernel does not support huge pages.
pub fn default_page_bytes() -> Option<u64> {
    procfs::meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?.hugepagesize
}

fn number(path: &Path) -> io::Result<u64> {
    fs::read_to_string(path)?.trim().parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists_are_parsed() {
        assert_eq!(parse_list("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(parse_list("0"), [0]);
        assert_eq!(parse_list("x,1"), [1]);
        assert!(parse_list("0-4294967295").len() <= 1025);
    }

    #[test]
    fn a_node_pool_is_read_and_written() {
        let root = tempfile::tempdir().unwrap();
        let folder = node_folder(root.path(), 1, 2048);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("nr_hugepages"), "4\n").unwrap();
        fs::write(folder.join("free_hugepages"), "3\n").unwrap();
        set_node_pages(root.path(), 1, 2048, 9).unwrap();
        assert_eq!(node_pool(root.path(), 1, 2048).unwrap(), NodePool { node: 1, total: 9, free: 3 });
        assert!(node_pool(root.path(), 0, 2048).unwrap_err().0.ends_with("hugepages-2048kB/nr_hugepages"));
        assert_eq!((memory_nodes(root.path()), total_pages(root.path(), 2048)), (vec![0], None));
    }
}
