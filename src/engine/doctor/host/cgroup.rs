//! What the control groups of this process leave, in both versions.

use crate::engine::base::ByteSize;
use crate::engine::check::{Check, Severity, Status};
use crate::engine::doctor::find;
use crate::engine::doctor::host::Look;

/// A limit above this is the kernel's word for none.
const NO_LIMIT: u64 = 1 << 62;
/// Less than a part of this many of a limit left is nearly nothing.
const NEARLY: u64 = 20;

/// A limit of memory.
struct Limit {
    /// The file that sets it.
    file: String,
    limit: u64,
    /// What may still be taken: file pages can be dropped, and count as free.
    left: u64,
}

pub(super) fn memory(look: &Look, check: &Check) -> Status {
    let Some(groups) = look.text("/proc/self/cgroup") else {
        return Status::Skipped("/proc/self/cgroup cannot be read: no control groups".to_owned());
    };
    let tightest = limits(look, &groups).into_iter().min_by_key(|limit| limit.left);
    let Some(Limit { file, limit, left }) = tightest else {
        return Status::Passed("no control group limits memory".to_owned());
    };
    let seen = format!("{file} is {}, of which {} are left", ByteSize(limit), ByteSize(left));
    let need = look.intent.memory.unwrap_or(0);
    let (severity, finding) = if need > left {
        (
            Severity::Error,
            format!(
                "{} are planned where the control group leaves {}: memory is taken when it is touched, so the kill comes hours later",
                ByteSize(need),
                ByteSize(left)
            ),
        )
    } else if need > 0 && need.saturating_add(need / 10) > left {
        (
            Severity::Warning,
            format!(
                "{} are planned where the control group leaves {}: nothing is left for the process itself, its buffers and page tables",
                ByteSize(need),
                ByteSize(left)
            ),
        )
    } else if left < limit / NEARLY {
        (
            Severity::Warning,
            format!(
                "the control group has {} left of {}: the next process may be killed",
                ByteSize(left),
                ByteSize(limit)
            ),
        )
    } else {
        return Status::Passed(seen);
    };
    let remedy = "make the limit (Kubernetes: resources.limits.memory) the sum of segments, staging (1.25 GiB with the SSD tier) and buffers, plus a tenth";
    Status::Found(vec![find(check, severity, finding, seen, remedy)])
}

/// The limits of the own groups and all around them.
fn limits(look: &Look, groups: &str) -> Vec<Limit> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(own)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (root, names, used, stat): (_, &[&str], _, [&str; 2]) = if controllers.is_empty() {
            let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
            let root = root.into_iter().find(|root| look.tree.resolve(&format!("{root}/cgroup.controllers")).is_some());
            (
                root.unwrap_or("/sys/fs/cgroup"),
                &["memory.max", "memory.high"],
                "memory.current",
                ["active_file", "inactive_file"],
            )
        } else if controllers.split(',').any(|name| name == "memory") {
            (
                "/sys/fs/cgroup/memory",
                &["memory.limit_in_bytes"],
                "memory.usage_in_bytes",
                ["total_active_file", "total_inactive_file"],
            )
        } else {
            continue;
        };
        for folder in upwards(look, root, own) {
            let limit = names.iter().filter_map(|name| Some((look.number(&format!("{folder}/{name}"))?, *name)));
            let Some((limit, name)) = limit.filter(|(limit, _)| *limit < NO_LIMIT).min() else { continue };
            let used = look.number(&format!("{folder}/{used}")).unwrap_or(0);
            let text = look.text(&format!("{folder}/memory.stat")).unwrap_or_default();
            let field = |name: &str| {
                text.lines()
                    .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok())
                    .unwrap_or(0)
            };
            let dropped = stat.iter().map(|name| field(name)).fold(0, u64::saturating_add);
            let left = limit.saturating_sub(used.saturating_sub(dropped));
            found.push(Limit { file: format!("{folder}/{name}"), limit, left });
        }
    }
    found
}

/// The folder of the group `own` and of those around it. A container sees its own group as the root, under a path that is not there.
pub(super) fn upwards(look: &Look, root: &str, own: &str) -> Vec<String> {
    let mut folders = Vec::new();
    let mut path = own.trim_end_matches('/');
    while !path.is_empty() {
        let folder = format!("{root}{path}");
        if look.tree.resolve(&folder).is_some() {
            folders.push(folder);
        }
        path = path.rsplit_once('/').map_or("", |(rest, _)| rest);
    }
    folders.push(root.to_owned());
    folders
}
