//! Memory limits from this process's cgroups, v1 and v2.

use procfs_core::ProcessCGroup;

use crate::find;
use crate::host::HostFacts;
use mcctl_base::ByteSize;
use mcctl_base::check::{Check, CheckStatus, Severity};
use mcctl_sys::procfs;

/// Values above this mean "no limit" in the kernel's files.
const NO_LIMIT: u64 = 1 << 62;
/// A limit counts as nearly exhausted if less than 1/20 of it is left.
const NEARLY: u64 = 20;

/// A cgroup's memory limit.
struct MemoryLimit {
    /// The file that sets the limit.
    file: String,
    limit: u64,
    /// Bytes still available. File cache counts as free, because the kernel can drop it.
    left: u64,
}

pub(super) fn memory(facts: &HostFacts, check: &Check) -> CheckStatus {
    let Some(groups) = facts.text("/proc/self/cgroup") else {
        return CheckStatus::Skipped("/proc/self/cgroup cannot be read: no cgroups".to_owned());
    };
    let tightest = limits(facts, &procfs::cgroups(&groups)).into_iter().min_by_key(|limit| limit.left);
    let Some(MemoryLimit { file, limit, left }) = tightest else {
        return CheckStatus::Passed("no cgroup limits memory".to_owned());
    };
    let seen = format!("{file} is {}, {} left", ByteSize(limit), ByteSize(left));
    let need = facts.intent.memory.unwrap_or(0);
    let (severity, finding) = if need > left {
        (
            Severity::Error,
            format!(
                "the plan needs {}, but the cgroup has {} left: pages are allocated on first use, so the OOM kill comes hours later",
                ByteSize(need),
                ByteSize(left)
            ),
        )
    } else if need > 0 && need.saturating_add(need / 10) > left {
        (
            Severity::Warning,
            format!(
                "the plan needs {}, and the cgroup has {} left: too little remains for the process itself, its buffers and page tables",
                ByteSize(need),
                ByteSize(left)
            ),
        )
    } else if left < limit / NEARLY {
        (
            Severity::Warning,
            format!(
                "the cgroup has {} left of {}: the next process may be OOM-killed",
                ByteSize(left),
                ByteSize(limit)
            ),
        )
    } else {
        return CheckStatus::Passed(seen);
    };
    let remedy = "set the limit (Kubernetes: resources.limits.memory) to the sum of segments, staging (1.25 GiB with the SSD tier) and buffers, plus 10 %";
    CheckStatus::Found(vec![find(check, severity, finding, seen, remedy)])
}

/// The limits of the process's own cgroups and of their parents.
fn limits(facts: &HostFacts, groups: &[ProcessCGroup]) -> Vec<MemoryLimit> {
    let mut found = Vec::new();
    for ProcessCGroup { controllers, pathname, .. } in groups {
        let (root, names, used, stat): (_, &[&str], _, [&str; 2]) = if controllers.is_empty() {
            let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
            let root =
                root.into_iter().find(|root| facts.tree.resolve(&format!("{root}/cgroup.controllers")).is_some());
            (
                root.unwrap_or("/sys/fs/cgroup"),
                &["memory.max", "memory.high"],
                "memory.current",
                ["active_file", "inactive_file"],
            )
        } else if controllers.iter().any(|name| name == "memory") {
            (
                "/sys/fs/cgroup/memory",
                &["memory.limit_in_bytes"],
                "memory.usage_in_bytes",
                ["total_active_file", "total_inactive_file"],
            )
        } else {
            continue;
        };
        for folder in upwards(facts, root, pathname) {
            let limit = names.iter().filter_map(|name| Some((facts.number(&format!("{folder}/{name}"))?, *name)));
            let Some((limit, name)) = limit.filter(|(limit, _)| *limit < NO_LIMIT).min() else { continue };
            let used = facts.number(&format!("{folder}/{used}")).unwrap_or(0);
            let text = facts.text(&format!("{folder}/memory.stat")).unwrap_or_default();
            let field = |name: &str| {
                text.lines()
                    .find_map(|entry| entry.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok())
                    .unwrap_or(0)
            };
            let dropped = stat.iter().map(|name| field(name)).fold(0, u64::saturating_add);
            let left = limit.saturating_sub(used.saturating_sub(dropped));
            found.push(MemoryLimit { file: format!("{folder}/{name}"), limit, left });
        }
    }
    found
}

/// The directories of the cgroup `own` and its parents. In a container, its own cgroup is the root,
/// so `own` may not exist there.
pub(super) fn upwards(facts: &HostFacts, root: &str, own: &str) -> Vec<String> {
    let mut folders = Vec::new();
    let mut path = own.trim_end_matches('/');
    while !path.is_empty() {
        let folder = format!("{root}{path}");
        if facts.tree.resolve(&folder).is_some() {
            folders.push(folder);
        }
        path = path.rsplit_once('/').map_or("", |(rest, _)| rest);
    }
    folders.push(root.to_owned());
    folders
}
