//! Memory limits from this process's cgroups.
//!
//! The rule matches `sglang/srt/mem_cache/host_memory.py` in SGLang 0.5.23, for both cgroup
//! versions. The available memory is the smallest difference between limit and usage in any group
//! from the process's own group up to the root. File pages do not count as usage, because the
//! kernel can drop them. Huge pages have separate limits (`hugetlb.<size>`) and do not count as
//! memory.

use std::fs;
use std::path::Path;

use crate::procfs;

/// Path of this process's cgroup v2 group, from `/proc/self/cgroup`. `None` with cgroup v1.
pub fn own_group() -> Option<String> {
    parse_own(&fs::read_to_string("/proc/self/cgroup").ok()?)
}

fn parse_own(text: &str) -> Option<String> {
    procfs::cgroups(text).into_iter().find(|group| group.controllers.is_empty()).map(|group| group.pathname)
}

/// Path of this process's cgroup v1 group for `controller`. `None` if the controller uses v2 or is
/// not mounted.
fn own_group_of(text: &str, controller: &str) -> Option<String> {
    let mut groups = procfs::cgroups(text).into_iter();
    groups.find(|group| group.controllers.iter().any(|name| name == controller)).map(|group| group.pathname)
}

/// Bytes of regular (non-hugepage) memory that this process's groups still allow, with either
/// cgroup version. `None` if there is no limit. `root` is `/sys/fs/cgroup`, except in tests.
pub fn memory_left(root: &Path) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let second = parse_own(&text).and_then(|own| headroom(root, &own));
    let first = own_group_of(&text, "memory").and_then(|own| headroom_v1(&root.join("memory"), &own));
    [first, second].into_iter().flatten().min()
}

/// Bytes of `kib` KiB huge pages that this process's groups still allow. `None` if there is no
/// limit. A page fault above the usage limit raises SIGBUS; a mapping above the reservation limit
/// fails with ENOMEM. `root` is `/sys/fs/cgroup`, except in tests.
pub fn huge_pages_left(root: &Path, kib: u64) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let second = parse_own(&text).and_then(|own| hugetlb_left(root, &own, kib, ["max", "current"]));
    let first = own_group_of(&text, "hugetlb")
        .and_then(|own| hugetlb_left(&root.join("hugetlb"), &own, kib, ["limit_in_bytes", "usage_in_bytes"]));
    [first, second].into_iter().flatten().min()
}

/// Bytes that the cgroup v2 group `own` and its ancestors still allow. `None` if there is no limit.
/// `root` is `/sys/fs/cgroup`, except in tests.
pub fn headroom(root: &Path, own: &str) -> Option<u64> {
    least(root, own, |folder| {
        // "max" is not a number and means no limit.
        let limit = ["memory.max", "memory.high"].into_iter().filter_map(|name| number(folder, name)).min()?;
        Some(left(folder, limit, "memory.current", ["active_file", "inactive_file"]))
    })
}

/// Like [`headroom`], for cgroup v1. The v1 counters exclude child groups, except the counters that
/// begin with `total_`.
fn headroom_v1(root: &Path, own: &str) -> Option<u64> {
    least(root, own, |folder| {
        let limit = number(folder, "memory.limit_in_bytes").filter(|limit| *limit < UNLIMITED_V1)?;
        Some(left(folder, limit, "memory.usage_in_bytes", ["total_active_file", "total_inactive_file"]))
    })
}

/// cgroup v1 represents "no limit" as the largest number of whole pages, which depends on the page
/// size.
const UNLIMITED_V1: u64 = 1 << 62;

fn hugetlb_left(root: &Path, own: &str, kib: u64, [limit, used]: [&str; 2]) -> Option<u64> {
    let size = if kib >= 1 << 20 { format!("{}GB", kib >> 20) } else { format!("{}MB", kib >> 10) };
    least(root, own, |folder| {
        let available = |kind: &str| {
            let limit =
                number(folder, &format!("hugetlb.{size}{kind}.{limit}")).filter(|limit| *limit < UNLIMITED_V1)?;
            Some(limit.saturating_sub(number(folder, &format!("hugetlb.{size}{kind}.{used}")).unwrap_or(0)))
        };
        [available(""), available(".rsvd")].into_iter().flatten().min()
    })
}

/// The minimum of `available` over the group `own` and its ancestors up to `root`.
fn least(root: &Path, own: &str, available: impl Fn(&Path) -> Option<u64>) -> Option<u64> {
    let mut folder = root.join(own.trim_start_matches('/'));
    let mut least: Option<u64> = None;
    while folder.starts_with(root) {
        if let Some(left) = available(&folder) {
            least = Some(least.map_or(left, |least| least.min(left)));
        }
        if !folder.pop() {
            break;
        }
    }
    least
}

fn left(folder: &Path, limit: u64, used: &str, file: [&str; 2]) -> u64 {
    let used = number(folder, used).unwrap_or(0);
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    limit.saturating_sub(used.saturating_sub(file_pages(&stat, file)))
}

fn number(folder: &Path, name: &str) -> Option<u64> {
    fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
}

/// Bytes in file pages on the LRU lists.
fn file_pages(stat: &str, names: [&str; 2]) -> u64 {
    let field = |name: &str| {
        stat.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
            .unwrap_or(0)
    };
    names.into_iter().map(field).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headroom_uses_the_tightest_group_and_ignores_file_pages() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("pod/box");
        fs::create_dir_all(&inner).unwrap();
        let write = |folder: &Path, name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        write(&inner, "memory.max", "max\n");
        write(&inner, "memory.high", "5000\n");
        write(&inner, "memory.current", "3000\n");
        write(&inner, "memory.stat", "anon 1\nactive_file 500\ninactive_file 1000\n");
        write(&root.path().join("pod"), "memory.max", "4000\n");
        write(&root.path().join("pod"), "memory.current", "1000\n");
        assert_eq!(headroom(root.path(), "/pod/box"), Some(3_000));
        write(&root.path().join("pod"), "memory.max", "max\n");
        assert_eq!(headroom(root.path(), "/pod/box"), Some(3_500));
        assert_eq!((headroom(root.path(), "/"), headroom(root.path(), "/../x")), (None, None));
    }

    #[test]
    fn own_group_reads_the_cgroup_v2_entry() {
        assert_eq!(parse_own("1:name=x:/y\n0::/a/b\n"), Some("/a/b".to_owned()));
        assert_eq!(parse_own("9:memory:/y\n"), None);
        let both = "8:cpu,cpuacct:/a\n4:memory:/pod/box\n0::/\n";
        assert_eq!(own_group_of(both, "memory"), Some("/pod/box".to_owned()));
        assert_eq!((own_group_of(both, "hugetlb"), own_group_of("strange\n", "memory")), (None, None));
    }

    #[test]
    fn cgroup_v1_counts_child_groups_and_has_a_numeric_unlimited() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("pod");
        fs::create_dir_all(&inner).unwrap();
        let write = |folder: &Path, name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        write(root.path(), "memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(headroom_v1(root.path(), "/pod"), None);
        write(&inner, "memory.limit_in_bytes", "5000\n");
        write(&inner, "memory.usage_in_bytes", "3000\n");
        write(&inner, "memory.stat", "active_file 1\ntotal_active_file 400\ntotal_inactive_file 100\n");
        assert_eq!(headroom_v1(root.path(), "/pod"), Some(2_500));
        // If the group's path does not exist inside a container, the outermost visible group
        // applies.
        assert_eq!(headroom_v1(&inner, "/pod/box"), Some(2_500));
    }

    #[test]
    fn huge_page_limits_apply_per_size_to_usage_and_reservations() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("pod");
        fs::create_dir_all(&inner).unwrap();
        let write = |name: &str, text: &str| fs::write(inner.join(name), text).unwrap();
        let left = |kib| hugetlb_left(root.path(), "/pod", kib, ["max", "current"]);
        write("hugetlb.2MB.max", "max\n");
        write("hugetlb.2MB.rsvd.max", "max\n");
        assert_eq!(left(2048), None);
        write("hugetlb.2MB.max", "10485760\n");
        write("hugetlb.2MB.current", "2097152\n");
        assert_eq!((left(2048), left(1 << 20)), (Some(8 << 20), None));
        write("hugetlb.2MB.rsvd.max", "6291456\n");
        write("hugetlb.1GB.max", "0\n");
        assert_eq!((left(2048), left(1 << 20)), (Some(6 << 20), Some(0)));
        write("hugetlb.2MB.limit_in_bytes", "4194304\n");
        let first = hugetlb_left(root.path(), "/pod", 2048, ["limit_in_bytes", "usage_in_bytes"]);
        assert_eq!(first, Some(4 << 20));
    }
}
