//! What the control groups of this process leave of the host's memory.
//!
//! Source of the rule: `sglang/srt/mem_cache/host_memory.py` of SGLang 0.5.23, for the second version of control groups: the least, over
//! all groups from the process's own to the outermost, of the limit less what is used without file pages, which can be dropped.

use std::fs;
use std::path::Path;

/// The path of this process's group, as `/proc/self/cgroup` has it; `None` with the first version.
pub fn own_group() -> Option<String> {
    parse_own(&fs::read_to_string("/proc/self/cgroup").ok()?)
}

fn parse_own(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// Bytes that the group `own` under `root` (`/sys/fs/cgroup` but in tests), and those around it, still allow; `None` without a limit.
pub fn headroom(root: &Path, own: &str) -> Option<u64> {
    let mut folder = root.join(own.trim_start_matches('/'));
    let mut least: Option<u64> = None;
    while folder.starts_with(root) {
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        // "max" is no number, and no limit.
        let limits = ["memory.max", "memory.high"].map(|name| read(name).trim().parse::<u64>().ok());
        if let Some(limit) = limits.into_iter().flatten().min() {
            let used: u64 = read("memory.current").trim().parse().unwrap_or(0);
            let left = limit.saturating_sub(used.saturating_sub(file_pages(&read("memory.stat"))));
            least = Some(least.map_or(left, |least| least.min(left)));
        }
        if !folder.pop() {
            break;
        }
    }
    least
}

/// Bytes of file pages on the lists of least recent use.
fn file_pages(stat: &str) -> u64 {
    let field = |name: &str| {
        stat.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
            .unwrap_or(0)
    };
    field("active_file").saturating_add(field("inactive_file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_counts_and_file_pages_do_not() {
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
    fn the_own_group_is_that_of_the_second_version() {
        assert_eq!(parse_own("1:name=x:/y\n0::/a/b\n"), Some("/a/b".to_owned()));
        assert_eq!(parse_own("9:memory:/y\n"), None);
    }
}
