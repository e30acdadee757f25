//! `mcctl serve`: services that run until they receive SIGINT or SIGTERM. Flags and files become an engine's configuration.

pub mod exposition;
pub mod master;
pub mod master_flags;
pub mod master_process;
pub mod metadata;
pub mod metadata_flags;
pub mod node;
pub mod sim;
pub mod store;
pub mod store_flags;

use std::path::Path;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::flags::{FlagSpec, FlagTable, ValueKind, flag};
use crate::commands::gflags::{self, FlagSources, ParsedFlags};
use crate::commands::settings::{Settings, read_text};
use crate::commands::{VERSION, help, logging, output};
use crate::engine::sys::descriptors;

/// `--log-level`, for all services.
pub(crate) const LOG_LEVEL: FlagSpec =
    flag("log_level", ValueKind::Text, "info", "Log level: off, error, warn, info, debug or trace")
        .not_in_file("use --log-level or MCCTL_LOG")
        .env("MCCTL_LOG");
/// `--log-file`, for all services.
pub(crate) const LOG_FILE: FlagSpec = flag(
    "log_file",
    ValueKind::Text,
    "",
    "Append log lines to this file instead of stderr; the file is reopened on SIGHUP",
)
.not_in_file("use --log-file");
/// `--log-file-max-size`, for all services.
pub(crate) const LOG_FILE_MAX_SIZE: FlagSpec = flag(
    "log_file_max_size",
    ValueKind::Size,
    logging::FILE_MAX_SIZE,
    "Rotate the log file (PATH to PATH.1 and so on) before it exceeds this size; 0 means no rotation",
)
.not_in_file("use --log-file-max-size");
/// `--log-file-keep`, for all services.
pub(crate) const LOG_FILE_KEEP: FlagSpec = flag(
    "log_file_keep",
    ValueKind::Whole(0, logging::FILE_KEEP_MAX),
    logging::FILE_KEEP,
    "Number of rotated log files to keep",
)
.not_in_file("use --log-file-keep");
/// `--log-format`, for all services.
pub(crate) const LOG_FORMAT: FlagSpec = flag(
    "log_format",
    ValueKind::Word(logging::FORMATS),
    logging::FORMATS[0],
    "Log format (json: one object per line)",
)
.not_in_file("use --log-format");

/// Maximum flag file size, in bytes.
const FLAGFILE_BYTES_MAX: u64 = 1 << 20;

/// A service that parses its flags with [`gflags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    Master,
    Metadata,
    Store,
}

impl ServiceKind {
    /// Runs the service with the flags `args`. `log` contains the log flags before the service name.
    ///
    /// # Errors
    /// The flags are invalid, or the service cannot start.
    pub fn run(self, args: &[String], log: &logging::LogOptions) -> Outcome {
        let table = match self {
            ServiceKind::Master => &master_flags::TABLE,
            ServiceKind::Metadata => &metadata_flags::TABLE,
            ServiceKind::Store => &store_flags::TABLE,
        };
        let parsed = gflags::parse(table, args, &ProcessSources)?;
        if let Some(length) = parsed.help {
            output::data(help::render(table, length))?;
            return Ok(Exit::Done);
        }
        if parsed.version {
            output::line(format!("mcctl {VERSION}"))?;
            return Ok(Exit::Done);
        }
        match self {
            ServiceKind::Master => master::run(&parsed, log),
            ServiceKind::Metadata => metadata::run(&parsed, log),
            ServiceKind::Store => store::run(&parsed, log),
        }
    }
}

/// The settings of `table` from the command line only.
fn settings_of(table: &'static FlagTable, parsed: &ParsedFlags) -> Result<Settings, Failure> {
    let mut settings = Settings::new(table);
    settings.assign_all(&parsed.assignments)?;
    Ok(settings)
}

/// Starts logging with the service's flags. If there are none, uses `before`, the flags before the service name. Then raises the open
/// file limit and warns about flags that have no effect.
fn start_logging(settings: &Settings, before: &logging::LogOptions, glog: Option<&'static str>) -> Result<(), Failure> {
    let warnings = settings.check_features()?;
    let text = |name: &str| settings.is_given(name).then(|| settings.text(name).to_owned());
    let mut log = before.clone();
    log.level = text("log_level").or(log.level);
    log.file.path = text("log_file").filter(|path| !path.is_empty()).map(Into::into).or(log.file.path);
    log.format = text("log_format").unwrap_or(log.format);
    if settings.is_given("log_file_max_size") {
        log.file.max_size = settings.size("log_file_max_size");
    }
    if settings.is_given("log_file_keep") {
        log.file.keep = settings.whole("log_file_keep");
    }
    logging::init(&log, glog.unwrap_or(settings.text("log_level")))?;
    allow_open_files();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Raises the soft limit on open files. With the common limit of 1,024, a service would reject connections after roughly the first
/// thousand.
pub(crate) fn allow_open_files() {
    match descriptors::allow(OPEN_FILES) {
        Ok(allowed) if allowed < OPEN_FILES_LOW => {
            tracing::warn!(
                "the open file limit is {allowed}: raise the hard limit (ulimit -Hn) to allow more connections"
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!("cannot raise the open file limit: {error}"),
    }
}

/// Number of open files required for the maximum number of connections on all ports.
const OPEN_FILES: u64 = 128 << 10;
/// With a limit below this value, even a service in a small cluster may run out of file descriptors.
const OPEN_FILES_LOW: u64 = 1024;

/// This process's flag files and environment.
pub(crate) struct ProcessSources;

impl FlagSources for ProcessSources {
    fn read(&self, path: &Path) -> Result<String, Failure> {
        read_text(path, "--flagfile", FLAGFILE_BYTES_MAX)
    }

    fn env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}
