//! The directory of the SSD tier.

use std::path::Path;

use crate::engine::base::ByteSize;
use crate::engine::check::{Check, Severity, Status};
use crate::engine::doctor::find;
use crate::engine::doctor::host::Look;
use crate::engine::sys::host::file_system;

const DIRECTORY: &str = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH";
const LIMIT: &str = "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES";
/// Objects are written in buckets of this size.
const BUCKET: u64 = 256 << 20;

pub(super) fn directory(look: &Look, check: &Check) -> Status {
    let Some(path) = look.intent.variable(DIRECTORY) else {
        return Status::Passed(format!("{DIRECTORY} is not set: no SSD tier"));
    };
    let evidence = format!("{DIRECTORY}={path}");
    let wrong = |severity, finding: String, remedy: &str| {
        Status::Found(vec![find(check, severity, finding, evidence.clone(), remedy)])
    };
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return wrong(
            Severity::Error,
            "the directory of the SSD tier is not an absolute path without '..': setup fails".to_owned(),
            "write the whole path",
        );
    }
    match look.tree.resolve(path) {
        None => {
            return wrong(
                Severity::Error,
                "the directory of the SSD tier does not exist: setup fails".to_owned(),
                &format!("mkdir -p {path}"),
            );
        }
        Some(real) if real != path.trim_end_matches('/') => {
            let finding = format!("the path of the SSD tier leads through a symbolic link, to {real}: setup fails");
            return wrong(Severity::Error, finding, &format!("{DIRECTORY}={real}"));
        }
        Some(_) => {}
    }
    if !look.tree.is_this_host() {
        return Status::Passed(format!("{evidence}; its room can be asked on this host only"));
    }
    let Ok((free, size)) = file_system(Path::new(path)) else {
        return wrong(Severity::Warning, "the file system of the SSD tier does not tell its room".to_owned(), "see df");
    };
    let seen = format!("{evidence}: {} free of {}", ByteSize(free), ByteSize(size));
    let limit = look.intent.variable(LIMIT).and_then(|text| text.parse::<u64>().ok());
    if free < BUCKET {
        let finding = format!(
            "the disk of the SSD tier has {} left, and objects are written in buckets of 256 MiB",
            ByteSize(free)
        );
        return wrong(Severity::Error, finding, "make room, or name another directory");
    }
    match limit.filter(|limit| *limit > size) {
        Some(limit) => wrong(
            Severity::Warning,
            format!(
                "{LIMIT} allows {} on a file system of {}: what the master shows as capacity is not there",
                ByteSize(limit),
                ByteSize(size)
            ),
            &format!("{LIMIT}={} (nine tenths of it)", size / 10 * 9),
        ),
        None => Status::Passed(seen),
    }
}
