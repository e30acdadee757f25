//! `mcctl serve`: services that run until they receive SIGINT or SIGTERM. Flags and files become an
//! engine's configuration.

pub mod access_files;
pub mod access_plan;
pub mod cluster_plan;
pub mod data_directory;
pub mod master;
pub mod master_process;
pub mod metadata;
pub mod metadata_directory;
pub mod metadata_proxy;
pub mod open_files;
pub mod sim;
pub mod simulator;
pub mod store;

use crate::commands::VERSION;
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::flags::FlagTable;
use crate::commands::cli::gflags::{self, ParsedFlags};
use crate::commands::cli::logging;
use crate::commands::cli::output;
use crate::commands::cli::process_sources::ProcessSources;
use crate::commands::cli::service_flags::{master_flags, metadata_flags, store_flags};
use crate::commands::cli::settings::Settings;
use crate::commands::help::arguments as help;

/// A service that parses its flags with [`gflags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    Master,
    Metadata,
    Store,
}

impl ServiceKind {
    /// Runs the service with the flags `args`. `log` contains the log flags before the service
    /// name.
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
            output::data(help::text(table.command, length)?)?;
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

/// Starts logging with the service's flags. If there are none, uses `before`, the flags before the
/// service name. Then raises the open file limit and warns about flags that have no effect.
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
    open_files::raise_limit();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    Ok(())
}
