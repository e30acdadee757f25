//! The SSD tier's directory.

use std::path::Path;

use crate::find;
use crate::host::HostFacts;
use mcctl_base::ByteSize;
use mcctl_base::check::{Check, CheckStatus, Severity};
use mcctl_sys::host::file_system;

const DIRECTORY: &str = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH";
const LIMIT: &str = "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES";
/// Upstream writes objects to disk in buckets of this size.
const BUCKET: u64 = 256 << 20;

pub(super) fn directory(facts: &HostFacts, check: &Check) -> CheckStatus {
    let Some(path) = facts.intent.variable(DIRECTORY) else {
        return CheckStatus::Passed(format!("{DIRECTORY} is not set: no SSD tier"));
    };
    let evidence = format!("{DIRECTORY}={path}");
    let wrong = |severity, finding: String, remedy: &str| {
        CheckStatus::Found(vec![find(check, severity, finding, evidence.clone(), remedy)])
    };
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return wrong(
            Severity::Error,
            "the SSD tier's directory is not an absolute path without '..': setup fails".to_owned(),
            "use an absolute path without '..'",
        );
    }
    match facts.tree.resolve(path) {
        None => {
            return wrong(
                Severity::Error,
                "the SSD tier's directory does not exist: setup fails".to_owned(),
                &format!("mkdir -p {path}"),
            );
        }
        Some(real) if real != path.trim_end_matches('/') => {
            let finding = format!("the SSD tier's path contains a symbolic link (it resolves to {real}): setup fails");
            return wrong(Severity::Error, finding, &format!("{DIRECTORY}={real}"));
        }
        Some(_) => {}
    }
    if !facts.tree.is_this_host() {
        return CheckStatus::Passed(format!("{evidence}; free space can only be read on this host"));
    }
    let Ok((free, size)) = file_system(Path::new(path)) else {
        return wrong(
            Severity::Warning,
            "cannot read the free space on the SSD tier's file system".to_owned(),
            "check it with df",
        );
    };
    let seen = format!("{evidence}: {} free of {}", ByteSize(free), ByteSize(size));
    let limit = facts.intent.variable(LIMIT).and_then(|text| text.parse::<u64>().ok());
    if free < BUCKET {
        let finding =
            format!("the SSD tier's disk has {} left, but objects are written in buckets of 256 MiB", ByteSize(free));
        return wrong(Severity::Error, finding, "free some space, or use another directory");
    }
    match limit.filter(|limit| *limit > size) {
        Some(limit) => wrong(
            Severity::Warning,
            format!(
                "{LIMIT} allows {} on a {} file system: the master reports capacity that does not exist",
                ByteSize(limit),
                ByteSize(size)
            ),
            &format!("{LIMIT}={} (90 % of the file system)", size / 10 * 9),
        ),
        None => CheckStatus::Passed(seen),
    }
}
