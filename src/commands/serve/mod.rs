//! `mcctl serve`: the long-running parts of a store. Flags and files become an engine's configuration; a signal ends it.

pub mod assembly;
pub mod exposition;
pub mod master;
pub mod master_flags;
pub mod metadata;
pub mod metadata_flags;
pub mod node;
pub mod sim;
pub mod store;
pub mod store_flags;

use std::path::Path;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::flags::{Flag, Kind, Table, flag};
use crate::commands::gflags::{self, Parsed, World};
use crate::commands::settings::{Settings, read_text};
use crate::commands::{VERSION, help, logging, output};
use crate::engine::sys::descriptors;

/// Log lines, for every service.
pub(crate) const LOG_LEVEL: Flag =
    flag("log_level", Kind::Text, "info", "Log lines to write: off, error, warn, info, debug or trace")
        .not_in_file("use --log-level or MCCTL_LOG")
        .env("MCCTL_LOG");
/// Where log lines go, for every service.
pub(crate) const LOG_FILE: Flag =
    flag("log_file", Kind::Text, "", "File for log lines instead of stderr; lines are appended, SIGHUP opens it again")
        .not_in_file("use --log-file");
/// When the log file is rotated.
pub(crate) const LOG_FILE_MAX_SIZE: Flag = flag(
    "log_file_max_size",
    Kind::Size,
    logging::FILE_MAX_SIZE,
    "Rotate the log file (PATH to PATH.1 and so on) before it exceeds this size; 0 never rotates",
)
.not_in_file("use --log-file-max-size");
/// How many of it stay.
pub(crate) const LOG_FILE_KEEP: Flag =
    flag("log_file_keep", Kind::Whole(0, logging::FILE_KEEP_MAX), logging::FILE_KEEP, "Rotated log files to keep")
        .not_in_file("use --log-file-keep");
/// What a log line looks like.
pub(crate) const LOG_FORMAT: Flag = flag(
    "log_format",
    Kind::Word(logging::FORMATS),
    logging::FORMATS[0],
    "Format of log lines; json is one object a line",
)
.not_in_file("use --log-format");

/// The longest flag file that is read, bytes.
const FLAGFILE_BYTES_MAX: u64 = 1 << 20;

/// Which service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The master.
    Master,
    /// The metadata service.
    Metadata,
    /// A store node.
    Store,
}

impl Service {
    /// Run it with the flags `args`. `log` is what stood before the service's name.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self, args: &[String], log: &logging::Options) -> Outcome {
        let table = match self {
            Service::Master => &master_flags::TABLE,
            Service::Metadata => &metadata_flags::TABLE,
            Service::Store => &store_flags::TABLE,
        };
        let parsed = gflags::parse(table, args, &RealWorld)?;
        if parsed.help {
            output::data(help::render(table))?;
            return Ok(Exit::Done);
        }
        if parsed.version {
            output::line(format!("mcctl {VERSION}"))?;
            return Ok(Exit::Done);
        }
        match self {
            Service::Master => master::run(&parsed, log),
            Service::Metadata => metadata::run(&parsed, log),
            Service::Store => store::run(&parsed, log),
        }
    }
}

/// The settings of a table whose flags come from the command line only.
fn settings_of(table: &'static Table, parsed: &Parsed) -> Result<Settings, Failure> {
    let mut settings = Settings::new(table);
    settings.assign_all(&parsed.assignments)?;
    Ok(settings)
}

/// Switch log lines on, as the flags ask or else `before`, the flags before the service's name; allow many connections;
/// then report which flags have no effect.
fn start_logging(settings: &Settings, before: &logging::Options, glog: Option<&'static str>) -> Result<(), Failure> {
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

/// Raise the soft limit of open files: with the usual 1,024 a service would refuse its thousandth connection.
pub(crate) fn allow_open_files() {
    match descriptors::allow(OPEN_FILES) {
        Ok(allowed) if allowed < OPEN_FILES_LOW => {
            tracing::warn!(
                "this host allows {allowed} open files to a process: raise the hard limit (ulimit -Hn) for more connections"
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!("cannot raise the limit of open files: {error}"),
    }
}

/// Room for the most connections of all ports of a service.
const OPEN_FILES: u64 = 128 << 10;
/// Below this a service of a small cluster may run out of files.
const OPEN_FILES_LOW: u64 = 1024;

/// The files and the environment of this process.
pub(crate) struct RealWorld;

impl World for RealWorld {
    fn read(&self, path: &Path) -> Result<String, Failure> {
        read_text(path, "--flagfile", FLAGFILE_BYTES_MAX)
    }

    fn env(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}
