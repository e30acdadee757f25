//! The flags of the services, one table per service, and the log flags that they share.

pub mod access_flags;
pub mod master_flags;
pub mod metadata_flags;
pub mod store_flags;

use crate::commands::cli::flags::{FlagSpec, ValueKind, flag};
use crate::commands::cli::logging;

/// The flags that all services have. They are the last group of each table, under
/// [`logging::COMMON`].
pub(crate) const COMMON: &[FlagSpec] = &[LOG_LEVEL, LOG_FILE, LOG_FILE_MAX_SIZE, LOG_FILE_KEEP, LOG_FORMAT];

const LOG_LEVEL: FlagSpec =
    flag("log_level", ValueKind::Text, "info", "Log level: off, error, warn, info, debug or trace")
        .value("LEVEL")
        .not_in_file("use --log-level or MCCTL_LOG")
        .env("MCCTL_LOG");
const LOG_FILE: FlagSpec = flag(
    "log_file",
    ValueKind::Text,
    "",
    "Append log lines to this file instead of stderr; the file is reopened on SIGHUP",
)
.value("FILE")
.not_in_file("use --log-file");
const LOG_FILE_MAX_SIZE: FlagSpec = flag(
    "log_file_max_size",
    ValueKind::Size,
    logging::FILE_MAX_SIZE,
    "Rotate the log file (PATH to PATH.1 and so on) before it exceeds this size; 0 means no rotation",
)
.not_in_file("use --log-file-max-size");
const LOG_FILE_KEEP: FlagSpec = flag(
    "log_file_keep",
    ValueKind::Whole(0, logging::FILE_KEEP_MAX),
    logging::FILE_KEEP,
    "Number of rotated log files to keep",
)
.not_in_file("use --log-file-keep");
const LOG_FORMAT: FlagSpec = flag(
    "log_format",
    ValueKind::Word(logging::FORMATS),
    logging::FORMATS[0],
    "Log format (json: one object per line)",
)
.not_in_file("use --log-format");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_defaults_parse() {
        for table in [&master_flags::TABLE, &metadata_flags::TABLE, &store_flags::TABLE] {
            let mut names: Vec<_> = table.flags().flat_map(|f| std::iter::once(&f.name).chain(f.aliases)).collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count, "{}", table.command);
            for flag in table.flags() {
                assert!(flag.kind.parse(flag.default).is_some(), "{} {}", table.command, flag.name);
                assert!(!flag.help.ends_with('.'), "{}: help must not end with a period", flag.name);
            }
        }
    }
}
